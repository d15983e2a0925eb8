"""TextWorldExpress: eight families of text games behind the contract of `base.Game`.

One Java process serves all games of a Python process (`jvm.py`); each game has a seat of its own in it and
makes one round trip per step (`seat.py`). Steps are counted here, because the engine's own limit lets one
more step pass.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

from grue.errors import ConfigError, GameError
from grue.games.base import check_open, check_seed, refuse_copy, running
from grue.games.guard import clean_action
from grue.games.known import check_family
from grue.games.params import Params, canonical
from grue.games.twx.jvm import JvmSettings
from grue.games.twx.recipes import read_recipe
from grue.games.twx.seat import EngineSeat
from grue.games.twx.state import read_rooms, read_state
from grue.games.twx.sums import Problem, read_problem
from grue.games.twx.unwinnable import is_unwinnable
from grue.types import Observation, Outcome, Task

# Families whose gold path the engine draws anew at each generation, from an unseeded generator; and their solvers.
_SOLVERS = {"coin": "CoinGoldAgent", "twc": "TWCGoldAgent"}
_GOALS_DIFFER = {"mapreader"}  # families whose goal depends on the seed
_SOLVER_ATTEMPTS = 50  # as in the engine: a solver that walks at random gives up now and then


class TwxGame:
    """One seat at a TextWorldExpress family. A task with other parameters reloads it (about 20 ms)."""

    __getstate__ = refuse_copy

    def __init__(self, game: str, params: Params = "", *, settings: JvmSettings | None = None) -> None:
        self.game = check_family(game)
        self.params = canonical(game, params)
        self._settings = settings or JvmSettings()
        self._seat = EngineSeat(self._settings)
        self._side: EngineSeat | None = None  # gold paths, recipes and rehearsals happen beside the live game
        self._task: Task | None = None
        self._gold: list[str] | None = None
        self._goal = ""
        self._goals: dict[tuple[str, str], str] = {}
        self._score = 0.0
        self._steps = 0
        self._outcome: Outcome | None = None
        self._closed = False

    def reset(self, task: Task, *, gold: bool = False) -> Observation:
        """Start `task`. With `gold` the same generation also makes the gold path, which `gold()` then returns.

        Raises ConfigError for a task that cannot exist (fold, seed, limit, parameters), GameError when Java or
        the engine fails.
        """
        check_open(self._closed)
        check_seed(task)
        check_family(task.game)
        canonical(task.game, task.params)
        self._task = self._gold = None
        gold = gold and task.game not in _SOLVERS
        answer = self._seat.start(task, gold=gold)
        self._goal = self._goal_of(task)
        if gold:
            self._gold = _gold_of(self._seat)
        self._task, self._steps, self._outcome = task, 0, None
        self._score = float(answer["score"])
        return self._observation(answer)

    def begin_reset(self, task: Task) -> None:
        """Have the engine start on `task`, which the next call must `reset`: many games are then made at once."""
        if not self._closed:
            self._task = None
            with suppress(GameError, ConfigError):  # `reset` will report what is wrong with the task
                check_seed(task)
                self._seat.begin_start(task)

    def begin_step(self, action: str) -> None:
        """Have the engine start on `action`, which the next call must `step`: many games then think at once."""
        if self._task is not None and self._outcome is None and not self._closed:
            with suppress(GameError):  # `step` will report what is wrong with the action
                self._seat.begin_step(clean_action(action))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        """Do one action. Actions that the engine does not know cost a step and change nothing."""
        task = running(self._task, self._outcome)
        answer = self._seat.step(clean_action(action))
        before, self._score = self._score, float(answer["score"])
        self._steps += 1
        self._outcome = self._outcome_of(answer, task)
        return self._observation(answer), self._score - before, self._outcome

    def gold(self) -> list[str]:
        """The engine's own solution of the current task, from its start. The live game is not touched.

        Equal tasks have equal paths: in twc and coin the engine's solver gets a generator seeded by the task.
        """
        if self._task is None:
            raise GameError("gold() needs a task", hint="call reset(task) first")
        if is_unwinnable(self._task):
            raise GameError(f"{self._task.game} seed {self._task.seed} cannot be won", hint="skip this seed")
        if self._gold is None:
            side = self._side_seat()
            if self._task.game in _SOLVERS:
                self._gold = _solve(side, self._task)
            else:
                side.start(self._task, gold=True)
                self._gold = _gold_of(side)
        return list(self._gold)

    def rehearse(self, actions: list[str]) -> list[tuple[bool, bool]]:
        """(the game listed the action, the game was won) for each action, played from the task's start.

        Played beside the live game, which is not touched; no step limit; stops where the game ends.
        """
        if self._task is None:
            raise GameError("rehearse() needs a task", hint="call reset(task) first")
        side = self._side_seat()
        answer = side.start(self._task)
        played: list[tuple[bool, bool]] = []
        for action in actions:
            listed = action in answer["validActions"]
            answer = side.step(clean_action(action))
            won = bool(answer["tasksuccess"]) or answer["score"] >= 1.0
            played.append((listed, won))
            if won or answer["taskfailure"]:
                break
        return played

    def recipe(self, task: Task) -> dict[str, tuple[str, str]]:
        """Food -> (cooking, cutting) of a cookingworld task, read beside the live game (0.3 ms)."""
        return read_recipe(self._read_aside(task, "read cookbook"))

    def problem(self, task: Task) -> Problem | None:
        """What an arithmetic task asks, read beside the live game."""
        return read_problem(self._read_aside(task, "take math problem", "read math problem"))

    def first_text(self, task: Task) -> str:
        """What a task shows first, read beside the live game (0.3 ms)."""
        return self._read_aside(task)

    def rooms(self, task: Task) -> tuple[str, ...]:
        """What a task shows first, then what each room of a coin or mapreader task shows, sorted (2 ms)."""
        return (self._read_aside(task), *sorted(self._side_seat().ask(read_rooms)))

    def _side_seat(self) -> EngineSeat:
        self._side = self._side or EngineSeat(self._settings)
        return self._side

    def _read_aside(self, task: Task, *actions: str) -> str:
        """What the last of `actions` shows, done at the start of a task beside the live game."""
        check_open(self._closed)
        side = self._side_seat()
        answer = side.start(task)
        for action in actions:
            answer = side.step(action)
        return str(answer["observation"])

    @property
    def history(self) -> tuple[str, ...]:
        """The actions of the current episode so far, as the engine got them."""
        return self._seat.actions

    def state(self) -> dict[str, Any]:
        """All of the live cookingworld game, hidden things too.

        {"tree": the engine's objects, recipe and inventory,
         "map": room -> direction -> (room beyond, door: True open, False closed, None no door)}
        """
        task = running(self._task, self._outcome)
        if task.game != "cookingworld":
            raise GameError(f"the engine shows the full state of cookingworld only, not of {task.game}")
        return self._seat.ask(read_state)

    def close(self) -> None:
        """Give the seats back; Java stays for other games and ends with Python."""
        for seat in (self._seat, self._side):
            if seat is not None and not self._closed:
                seat.close()
        self._closed, self._task = True, None

    def _goal_of(self, task: Task) -> str:
        """Asked once for all tasks that share it: a round trip takes as long as a step."""
        shared = (task.game, task.params)
        if task.game in _GOALS_DIFFER or shared not in self._goals:
            self._goals[shared] = str(self._seat.ask(lambda _, interface: interface.getTaskDescription())).strip()
        return self._goals[shared]

    def _outcome_of(self, answer: dict[str, Any], task: Task) -> Outcome | None:
        if answer["tasksuccess"] or self._score >= 1.0:
            return Outcome.WON
        if answer["taskfailure"]:
            return Outcome.LOST
        return Outcome.LIMIT if self._steps >= task.limit else None

    def _observation(self, answer: dict[str, Any]) -> Observation:
        return Observation(
            text=_tidy(answer["observation"]),
            goal=self._goal,
            inventory=_tidy(answer["inventory"]),
            actions=tuple(sorted(set(answer["validActions"]) - {""})),
            score=float(answer["score"]),
        )


@lru_cache(maxsize=4_000)
def _tidy(text: str) -> str:
    """`text` without white space at the ends of lines, and without empty lines at its ends."""
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n")).rstrip()


def _gold_of(seat: EngineSeat) -> list[str]:
    actions = seat.ask(lambda jvm, interface: jvm.join(interface.getGoldActionSequence()))
    if not actions or actions[0].startswith("ERROR"):
        raise GameError(f"the engine has no gold path for this task: {actions[:1]}", hint="skip this seed")
    return actions


def _solve(side: EngineSeat, task: Task) -> list[str]:
    """The path of the engine's solver for a family in _SOLVERS."""
    for attempt in range(_SOLVER_ATTEMPTS):
        if actions := _try_solver(side, task, _SOLVER_ATTEMPTS * task.seed + attempt):
            return actions[1:]  # the look around that the generation has done already
    raise GameError(f"the engine's solver finds no way through {task.game} seed {task.seed}", hint="skip this seed")


def _try_solver(side: EngineSeat, task: Task, seed: int) -> list[str]:
    side.start(task)
    return side.ask(lambda jvm, interface: jvm.solve(interface, _SOLVERS[task.game], seed))
