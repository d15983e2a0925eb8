"""Play tasks one after the other, or several at a time where games compute in processes of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from grue.types import Task

AHEAD = 4  # tasks for each seat that are played before the first one's result is asked for: those are lost by a stop
Seat = TypeVar("Seat")
Result = TypeVar("Result")


def play_each(
    seats: Sequence[Seat], tasks: Sequence[Task], play_one: Callable[[Seat, Task], Result]
) -> Generator[Result]:
    """`play_one(seat, task)` for each task, in the order of the tasks; as many at a time as there are seats.

    A seat is what one task at a time can be played with: a game, and the player if it knows that game. With several
    seats tasks are played in threads, so `play_one` must touch nothing else that changes. Whoever stops early closes
    the iterator (`contextlib.closing`): tasks that have begun are played to their end, and no other one begins.
    """
    if len(seats) == 1:
        for task in tasks:
            yield play_one(seats[0], task)
        return
    free: SimpleQueue[Seat] = SimpleQueue()
    for seat in seats:
        free.put(seat)

    def play_here(task: Task) -> Result:
        seat = free.get()  # there are as many as threads
        try:
            return play_one(seat, task)
        finally:
            free.put(seat)

    pool = ThreadPoolExecutor(len(seats), thread_name_prefix="games")
    begun: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            if len(begun) == AHEAD * len(seats):
                yield begun.popleft().result()
            begun.append(pool.submit(play_here, task))
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
