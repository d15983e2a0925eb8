"""A game that runs in a process of its own and survives that process: killed, restarted and replayed as needed.

Engines that can hang, crash or leak (interpreters in C, parsers, Java) are played through this. After a call that takes
too long or a process that ends, a new process replays the episode from its task and its actions; the game must
therefore be deterministic, and the replay is checked. Where that does not help, GameError ends the episode as failed,
and the next `reset` starts afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import Any, NamedTuple
from weakref import finalize

from grue.errors import ConfigError, GameError, GrueError
from grue.games.base import check_open, check_seed, place, refuse_copy, running
from grue.games.guard import as_played
from grue.games.worker.process import Worker, WorkerDiedError, WorkerEndedError, WorkerSettings, take_seat
from grue.games.worker.protocol import ERRORS
from grue.types import Observation, Outcome, Task

RESTARTS = 1  # within one call: what hangs or crashes twice at the same place will do so again
_SLOW = {"open", "reset", "gold", "rehearse", "plan", "equivalent"}  # calls that may make a game or play one
_numbers = count()


class Begun(NamedTuple):
    """A call that was sent ahead of time."""

    what: str | Task  # the action of a step, or the task of a reset
    worker: Worker
    ticket: int  # of the answer


class Saved(NamedTuple):
    """A point of an episode, given by the actions that led there."""

    task: Task
    actions: tuple[str, ...]
    seen: Observation
    outcome: Outcome | None


class WorkerGame:
    """`game` behind the contract, in another process. Made by `native.make_native`."""

    __getstate__ = refuse_copy

    def __init__(self, game: str, params: str = "", *, settings: WorkerSettings | None = None) -> None:
        self.game, self.params = game, params
        self._settings = settings or WorkerSettings()
        self._worker: Worker | None = None
        self._seat = next(_numbers)
        self._leave: finalize[..., Any] | None = None  # gives the seat back, also when this is collected
        self._task: Task | None = None
        self._actions: list[str] = []
        self._seen: Observation | None = None
        self._outcome: Outcome | None = None
        self._closed = False
        self._begun: Begun | None = None

    def reset(self, task: Task) -> Observation:
        """Start `task`. ConfigError for one that cannot exist, GameError when the engine fails."""
        check_open(self._closed)
        check_seed(task)
        if self._begun is not None and self._begun.what != task:
            self._forget_begun()
        self._task, self._actions, self._seen, self._outcome = None, [], None, None
        observation = _observation(self._ask({"call": "reset", "task": asdict(task)}, begun=self._begun))
        self._task, self._seen = task, observation
        return observation

    def begin_reset(self, task: Task) -> None:
        """Have the game start on `task`, which the next call must `reset`: other processes make theirs meanwhile."""
        self._forget_begun()
        with suppress(GrueError, WorkerDiedError):  # `reset` will report it, or start again
            check_seed(task)
            if not self._closed:
                self._task = None  # the episode before is over, whatever comes now
                self._revive()
                self._begin(task, {"call": "reset", "task": asdict(task)})

    def begin_step(self, action: str) -> None:
        """Have the game start on `action`, which the next call must `step`: games in other processes work meanwhile."""
        self._forget_begun()
        if self._task is None or self._outcome is not None or self.pid is None:
            return
        with suppress(GameError, WorkerDiedError):  # `step` will report it, or start again
            action = self._played(action)
            self._begin(action, {"call": "step", "action": action})

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        """Do one action, again after a restart and replay if the process dies or hangs."""
        running(self._task, self._outcome)
        action = self._played(action)
        if self._begun is not None and self._begun.what != action:
            self._forget_begun()
        plain, reward, outcome = self._ask({"call": "step", "action": action}, begun=self._begun)
        self._actions.append(action)
        self._seen = _observation(plain)
        self._outcome = None if outcome is None else Outcome(outcome)
        return self._seen, reward, self._outcome

    def _played(self, action: str) -> str:
        return as_played(action, None if self._seen is None else self._seen.actions)

    def save(self) -> Saved:
        """This point of the episode, for `restore`, here or in another game of this name."""
        task = running(self._task)
        assert self._seen is not None
        return Saved(task, tuple(self._actions), self._seen, self._outcome)

    def restore(self, saved: Saved) -> Observation:
        """Go back to a saved point: its actions are done again, which takes as long as before.

        Returns what was seen there. GameError if the game shows something else this time.
        """
        check_open(self._closed)
        if saved.task.game != self.game:
            raise ConfigError(f"a game of {self.game!r} cannot continue one of {saved.task.game!r}")
        self._forget_begun()
        self._task, self._actions, self._seen, self._outcome = (saved.task, list(saved.actions), *saved[2:])
        self._with_restarts(lambda: self._revive() if self.pid is None else self._replay())
        return saved.seen

    def close(self) -> None:
        """Give the seat back. The last seat to leave a process ends it."""
        self._closed, self._task = True, None
        self._drop()

    @property
    def history(self) -> tuple[str, ...]:
        """The actions of the current episode so far."""
        return tuple(self._actions)

    @property
    def pid(self) -> int | None:
        """The process that hosts the game now, if one does."""
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    def _begin(self, what: str | Task, request: dict[str, Any]) -> None:
        assert self._worker is not None
        ticket = self._worker.begin(request | {"seat": self._seat}, self._allowed(request))
        self._begun = Begun(what, self._worker, ticket)

    def _allowed(self, request: dict[str, Any]) -> float:
        """Seconds that a call may take."""
        return self._settings.read_timeout_s * (self._settings.slow if request["call"] in _SLOW else 1.0)

    def _ask(self, request: dict[str, Any], begun: Begun | None = None) -> Any:
        """Ask the game `request` in the state that the episode has reached. `begun`: it has been sent already."""
        if begun is None:
            self._forget_begun()
        self._begun = None

        def answer() -> Any:
            nonlocal begun
            self._revive()
            sent, begun = begun, None  # an answer is fetched once
            if sent is not None and sent.worker is self._worker:
                return self._value(sent.worker.finish(sent.ticket))
            return self._call(request)

        return self._with_restarts(answer)

    def _with_restarts(self, attempt: Callable[[], Any]) -> Any:
        """The result of `attempt`, made again in a new process if the process died or hung."""
        last: WorkerDiedError | None = None
        deaths = 0
        while deaths <= RESTARTS:
            try:
                return attempt()
            except WorkerEndedError:  # a game in another thread has lost the process; it gives up in time
                continue
            except WorkerDiedError as error:
                last, deaths = error, deaths + 1
            except BaseException:  # Ctrl-C: the step may have been done, so the state is in doubt
                if self.pid is None:
                    self._drop()
                raise
        where = place(self._task, len(self._actions))
        self._task = None
        self._drop()
        raise GameError(
            f"{self.game} died or hung {1 + RESTARTS} times in a row at {where}: {last}",
            hint="the next reset starts a new process; game.read_timeout_s says how long a step may take",
        ) from last

    def _revive(self) -> None:
        """Take a seat in a live process, in the state that the episode has reached."""
        if self.pid is not None:
            return
        self._drop()
        worker = self._worker = take_seat(self._seat, self._settings)
        self._leave = finalize(self, worker.leave, self._seat)
        self._leave.atexit = False
        try:
            self._call({"call": "open", "game": self.game, "params": self.params})
        except GrueError:  # no game was opened, so the seat is nobody's
            self._drop()
            raise
        if self._task is not None:
            self._replay()

    def _replay(self) -> None:
        """Play the episode's actions from its task, in the seat that it now has."""
        assert self._task is not None
        seen = _observation(self._call({"call": "reset", "task": asdict(self._task)}))
        for action in self._actions:
            seen = _observation(self._call({"call": "step", "action": action})[0])
        if seen != self._seen:
            where = place(self._task, len(self._actions))
            self._task = None
            raise GameError(f"a replay of {where} shows something else: the game is not deterministic")

    def _call(self, request: dict[str, Any]) -> Any:
        assert self._worker is not None
        return self._value(self._worker.call(request | {"seat": self._seat}, self._allowed(request)))

    def _value(self, answer: dict[str, Any]) -> Any:
        if "error" not in answer:
            return answer["value"]
        if answer["broken"]:
            self._drop()
        raise ERRORS[answer["error"]](answer["message"], hint=answer["hint"])

    def _forget_begun(self) -> None:
        """A call that was begun and is not wanted any more: the state that it belongs to is lost."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            begun.worker.forget(begun.ticket)
            self._drop()

    def _drop(self) -> None:
        if self._leave is not None:
            self._leave()
        self._worker = self._leave = None


class WorkerGoldGame(WorkerGame):
    """A hosted game that can solve its tasks."""

    def gold(self) -> list[str]:
        """A solution of the current task from its start. The live game is not touched."""
        running(self._task)
        return [str(action) for action in self._ask({"call": "gold"})]

    def rehearse(self, actions: Sequence[str]) -> list[tuple[bool, bool]]:
        """For each action from the task's start (the game listed it, the game was won), beside the live game."""
        running(self._task)
        return [(listed, won) for listed, won in self._ask({"call": "rehearse", "actions": list(actions)})]


class WorkerStoryGame(WorkerGoldGame):
    """A hosted game whose solution words some actions differently from its list."""

    def equivalent(self, action: str, then: Sequence[str] = ()) -> str:
        """The listed action that does here what `action` does, with the same end after `then`; else `action`."""
        running(self._task)
        return str(self._ask({"call": "equivalent", "action": action, "then": list(then)}))


class WorkerPlanGame(WorkerGoldGame):
    """A hosted game that knows a way to win from any state in which that is still possible."""

    def plan(self) -> list[str]:
        """The engine's own actions from the current state to a win; [] when it knows none."""
        running(self._task)
        return [str(action) for action in self._ask({"call": "plan"})]


class WorkerExpertsGame(WorkerPlanGame):
    """A hosted game with a second expert, which knows only what has been seen."""

    def advice(self) -> str:
        """That expert's next action, whoever has played so far; "" when it has none."""
        running(self._task)
        return str(self._ask({"call": "advice"}))


def _observation(plain: dict[str, Any]) -> Observation:
    actions = plain["actions"]
    return Observation(**plain | {"actions": None if actions is None else tuple(actions)})
