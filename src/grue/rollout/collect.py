"""Play many games at once with a language-model policy: one ragged batch, finished slots refilled at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch

from grue.games import Game
from grue.policy.choose import ChoosePolicy, Decision, Decoding
from grue.policy.engine import Engine
from grue.rollout.seat import Seat
from grue.types import Episode, Task

LONG_FEED = 24  # rows with more new tokens are fed apart, so that short rows are not padded to their length


def collect(
    policy: ChoosePolicy,
    games: Sequence[Game],
    tasks: Sequence[Task],
    decoding: Decoding,
    *,
    seed: str = "0",
    columns: int = 1024,
    player: str = "choose",
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """One episode for each task, in the order of the tasks; as many at once as there are `games`.

    `seed` and a task's place in the list fix every draw of its episode, whatever plays beside it. A game that crashes
    gives an episode with Outcome.FAILED. A history longer than `columns` tokens starts a new segment.
    """
    episodes: dict[int, Episode] = {}
    index_of: dict[int, int] = {}  # row -> index of the task played there
    queue = iter(enumerate(tasks))

    def finish(seat: Seat, episode: Episode) -> None:
        episodes[index_of[seat.row]] = episode
        if on_episode is not None:
            on_episode(episode)

    def refill(seat: Seat) -> bool:
        """Start the next task in an empty seat; False when there is none left."""
        for index, task in queue:
            index_of[seat.row] = index
            failed = seat.start(task, random.Random(f"{seed}/{index}"))
            if failed is None:
                return True
            finish(seat, failed)
        return False

    slots = min(len(games), len(tasks))
    if not slots:
        return []
    engine = policy.engine(slots, columns)
    seats = [Seat(row, game, policy.encoder, player, columns) for row, game in enumerate(games[:slots])]
    playing = [seat for seat in seats if refill(seat)]
    while playing:
        for group in _feed_groups(playing):
            _decide(policy, engine, group, decoding)
        for seat in playing:
            episode = seat.play()
            if episode is not None:
                finish(seat, episode)
        playing = [seat for seat in playing if seat.task is not None or refill(seat)]
    return [episodes[index] for index in range(len(tasks))]


def _feed_groups(seats: list[Seat]) -> Iterator[list[Seat]]:
    short = [seat for seat in seats if len(seat.unread()) <= LONG_FEED]
    long = [seat for seat in seats if len(seat.unread()) > LONG_FEED]
    yield from (group for group in (short, long) if group)


def _decide(policy: ChoosePolicy, engine: Engine, seats: list[Seat], decoding: Decoding) -> None:
    """Give every seat a finished decision: feed what is new, then walk the tries down, one pass a branching depth."""
    for seat in seats:
        if seat.seen == 0:
            engine.reset(seat.row)
    hidden_BH = engine.feed([seat.row for seat in seats], [seat.unread() for seat in seats])
    for seat, value in zip(seats, policy.values(hidden_BH), strict=True):
        seat.seen, seat.value = len(seat.ids), value
        seat.decision = Decision(policy.tries(seat.actions()), len(seat.ids), seat.rng)
    undecided = [(seat.row, seat.decision) for seat in seats if seat.decision and not seat.decision.follow_forced()]
    at_root = [place for place, seat in enumerate(seats) if seat.decision and not seat.decision.taken]
    if at_root:
        roots = [seats[place].decision for place in at_root]
        policy.decide([d for d in roots if d], hidden_BH[torch.tensor(at_root)], decoding)
    while undecided := [(row, decision) for row, decision in undecided if not decision.follow_forced()]:
        hidden_BH = engine.feed([row for row, _ in undecided], [d.unread() for _, d in undecided])
        for _, decision in undecided:
            decision.fed = len(decision.taken)
        policy.decide([decision for _, decision in undecided], hidden_BH, decoding)
