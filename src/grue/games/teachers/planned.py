"""Players that ask the game's own expert before every move, from whatever state play has reached."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from grue.errors import GameError
from grue.types import Observation, Task


@runtime_checkable
class CanPlan(Protocol):
    """A game whose engine knows a way to win from the current state."""

    def plan(self) -> list[str]: ...


class Planned:
    """The engine's expert. It sees all; its ways are good, not proved to be shortest."""

    name = "optimal"

    def __init__(self, game: CanPlan) -> None:
        self._game = game

    def start(self, task: Task, observation: Observation) -> None:
        """Nothing to prepare: each move is planned separately."""

    def act(self, observation: Observation) -> str:
        path = self._game.plan()
        if not path:
            raise GameError("the engine's expert knows no way to win from here")
        return path[0]


@runtime_checkable
class CanAdvise(Protocol):
    """A game whose engine has an expert that knows only what has been seen."""

    def advice(self) -> str: ...


class Advised:
    """The engine's exploring expert. It is not sure to win."""

    name = "explore"

    def __init__(self, game: CanAdvise) -> None:
        self._game = game

    def start(self, task: Task, observation: Observation) -> None:
        """Nothing to prepare: the game has seen what the player has."""

    def act(self, observation: Observation) -> str:
        action = self._game.advice()
        if not action:
            raise GameError("the engine's exploring expert does not know what to do here")
        return action
