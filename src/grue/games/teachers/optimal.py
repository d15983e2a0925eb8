"""A teacher that sees everything: the shortest plan from any state that is not yet lost."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from grue.errors import TeacherError
from grue.games.teachers.plan import plan
from grue.types import Observation, Task


@runtime_checkable
class SeesAll(Protocol):
    """A game that shows its whole state and what has been done so far."""

    @property
    def history(self) -> tuple[str, ...]: ...

    def state(self) -> dict[str, Any]: ...


class Optimal:
    """Plays the shortest plan, and makes a new one when an action departs from it."""

    name = "optimal"

    def __init__(self, game: SeesAll) -> None:
        self._game = game
        self._plan: list[str] = []
        self._expected: tuple[str, ...] = ()

    def start(self, task: Task, observation: Observation) -> None:
        if task.game != "cookingworld":
            raise TeacherError(
                f"teacher 'optimal' plays cookingworld, textworld, babyai, alfworld and toy, not {task.game}",
                hint="gold and gold-pruned play every game that can solve itself",
            )
        self._plan = []

    def act(self, observation: Observation) -> str:
        """The next action of a shortest plan from the game's live state; the cookbook is read once, first."""
        history = self._game.history
        if not self._plan or history != self._expected:
            self._plan = self._new_plan(observation, history)
        action = self._plan.pop(0)
        self._expected = (*history, action)
        return action

    def _new_plan(self, observation: Observation, history: tuple[str, ...]) -> list[str]:
        actions = observation.actions or ()
        if "read cookbook" not in history and "read cookbook" in actions:
            return ["read cookbook"]
        if "eat meal" in actions:
            return ["eat meal"]
        return plan(self._game.state())
