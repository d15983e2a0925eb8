"""Processes that host games for this one: started when needed, killed when a call takes too long, never left behind.

Requests and answers are JSON lines. Safety: a process is a session of its own, so that Ctrl-C does not reach it and
killing its group also ends what it has started (a compiler, Java). It holds the reading end of a pipe, the lifeline,
whose other end is here: when that closes, however this process ends, the kernel kills the group.
"""

from __future__ import annotations

import atexit
import os
import select  # Windows has no poll, and is refused below
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from tempfile import TemporaryFile
from typing import Any

import orjson

from grue.errors import ConfigError, GameError
from grue.games.java import java_environment
from grue.games.restarts import note_restart

MAX_ANSWER = 64 * 2**20  # bytes; a longer answer counts as a crash
_START_TIMEOUT = 120.0  # seconds for Python to come up; it takes 0.3 on an idle machine


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How games are hosted."""

    read_timeout_s: float = 20.0  # for one step; then the process counts as hung
    slow: float = 9.0  # a call that may generate a game (reset, gold path) may take this many times as long
    seats: int = 8  # games that share a process; one that hangs or crashes makes the others replay
    spread: int = 1  # processes to have before one gets a third game: that many can compute at the same time


class WorkerDiedError(Exception):
    """The process is gone or was hung. Internal: `WorkerGame` restarts and replays, or raises GameError."""


class WorkerEndedError(WorkerDiedError):
    """It was gone before the call began: through a call of another game in it, whose fault it may be."""


class Worker:
    """One process with its pipes. Calls from several threads wait for each other."""

    def __init__(self) -> None:
        if os.name != "posix":
            raise ConfigError("games of this engine need Linux or macOS: they run in processes of their own")
        self.lock = threading.RLock()
        self.seats: set[int] = set()
        self._left: list[int] = []  # seats to be closed at the next call
        self._tickets = count()
        # (ticket, seconds allowed) of requests whose answers have not been read, in order
        self._asked: deque[tuple[int, float]] = deque()
        self._answers: dict[int, bytes] = {}  # read while waiting for another one
        self._unwanted: set[int] = set()
        self._buffer = b""
        self._owner = os.getpid()
        self._ending = False
        self._complaints = TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        lifeline, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "grue.games.worker.main", str(lifeline)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                pass_fds=(lifeline,),
                # no game may depend on the order of a set or on the system's language
                env=java_environment() | {"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        finally:
            os.close(lifeline)
        try:
            self.call({"call": "hello"}, _START_TIMEOUT)
        except WorkerDiedError as error:
            raise GameError(f"a process for games did not start: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False when it has ended, is being killed, or belongs to the process that this one was forked from."""
        return self._owner == os.getpid() and not self._ending and self._process.returncode is None

    def call(self, request: dict[str, Any], timeout: float) -> Any:
        """The answer to `request`: {"value": ...} or {"error": ...}. WorkerDiedError when none came in `timeout` s."""
        with self.lock:
            return self.finish(self.begin(request, timeout))

    def begin(self, request: dict[str, Any], timeout: float) -> int:
        """Send `request` and return at once: a ticket for its answer, which may take `timeout` s once those before it
        are there. WorkerDiedError when it cannot be sent.
        """
        with self._guarded():
            if self._left:
                request = request | {"left": [self._left.pop() for _ in range(len(self._left))]}
            self._send(request)
            ticket = next(self._tickets)
            self._asked.append((ticket, timeout))
            return ticket

    def finish(self, ticket: int) -> Any:
        """The answer that belongs to `ticket`. Answers come in the order of the requests."""
        with self._guarded():
            while ticket not in self._answers:
                owner, timeout = self._asked[0]
                line = self._line(time.monotonic() + timeout, timeout)
                self._asked.popleft()
                if owner not in self._unwanted:
                    self._answers[owner] = line
                self._unwanted.discard(owner)
            return orjson.loads(self._answers.pop(ticket))

    def forget(self, ticket: int) -> None:
        """Nobody will ask for this answer."""
        with self.lock:
            if self._answers.pop(ticket, None) is None:
                self._unwanted.add(ticket)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Any failure on the way ends the process: an answer that comes late would be taken for another."""
        with self.lock:
            if not self.alive:
                raise WorkerEndedError("the process was ended")
            try:
                yield
            except WorkerDiedError as error:
                note_restart("a process of game engines", error)
                self.kill()
                raise
            except (OSError, ValueError) as error:  # ValueError: an answer that is no JSON, or a closed pipe
                reason = self._last_words() or f"{type(error).__name__}: {error}"
                note_restart("a process of game engines", reason)
                self.kill()
                raise WorkerDiedError(reason) from error
            except BaseException:  # Ctrl-C
                self.kill()
                raise

    def leave(self, seat: int) -> None:
        """Give a seat back. The last one to leave ends the process. No input or output: a finalizer may call it."""
        if not self.alive:
            return
        with _lock:  # nobody takes a seat here meanwhile
            self.seats.discard(seat)
            self._left.append(seat)
            if not self.seats:
                self.kill()

    def kill(self) -> None:
        """End the process and all that it has started. It holds nothing that is worth saving."""
        if self.alive:
            self._ending = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._close()

    def reap(self) -> None:
        """Note if it has ended by itself, or was killed by the kernel."""
        if not self.lock.acquire(blocking=False):  # a thread waits for an answer, and will notice
            return
        try:
            if self.alive and self._process.poll() is not None:
                self._close()
        finally:
            self.lock.release()

    def abandon(self) -> None:
        """For a forked child: let go of the parent's pipes without touching the process."""
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(request) + b"\n")
        self._process.stdin.flush()

    def _line(self, deadline: float, timeout: float) -> bytes:
        """The next line that the process writes."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        watch = select.poll()
        watch.register(source, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not watch.poll(1000 * left):
                raise WorkerDiedError(f"no answer in {timeout:g} s")
            piece = os.read(source, 1 << 16)
            if not piece or len(self._buffer) > MAX_ANSWER:
                raise WorkerDiedError(self._last_words() or "the process ended without a word")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """The last line that the process wrote to its error stream."""
        if self._complaints.closed:
            return ""
        self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, self._complaints.tell() - 4000))
        lines = self._complaints.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


SHARED = 2  # games that a process gets before another one is started, which costs memory and a second or two
_pool: list[Worker] = []
_lock = threading.RLock()


def take_seat(seat: int, settings: WorkerSettings) -> Worker:
    """A live process of this one, started if none has room, with `seat` among its seats."""
    with _lock:
        for worker in _pool:
            worker.reap()
        _pool[:] = [worker for worker in _pool if worker.alive]
        room = [worker for worker in _pool if len(worker.seats) < settings.seats]
        emptiest = min(room, key=lambda worker: len(worker.seats), default=None)
        if emptiest is None or (len(emptiest.seats) >= SHARED and len(_pool) < settings.spread):
            emptiest = Worker()
            _pool.append(emptiest)
        emptiest.seats.add(seat)
        return emptiest


def shutdown() -> None:
    """End every process that hosts games. Games that are still open start a new one when stepped."""
    with _lock:
        while _pool:
            _pool.pop().kill()


def _forget_in_child() -> None:
    """A forked child must not hold the lifeline of its parent's processes, nor talk on their pipes."""
    global _lock
    _lock = threading.RLock()
    while _pool:
        _pool.pop().abandon()


atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
