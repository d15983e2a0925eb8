"""A teacher that watches another player, and says at each state what it would do: the labeller of DAgger."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from grue.errors import GameError, TeacherError
from grue.games.play import Player
from grue.types import Observation, Task


@runtime_checkable
class Follows(Protocol):
    """A teacher that remembers what has been done, and must be told when its advice was not followed."""

    def follow(self, action: str) -> None: ...


class Adviser:
    """`teacher` beside another player of its game."""

    def __init__(self, teacher: Player) -> None:
        self._teacher = teacher
        self.trouble = ""  # why the last request got no advice
        self._lost = ""  # why there is none in this game

    def start(self, task: Task, observation: Observation) -> None:
        """Another game begins. TeacherError where the teacher does not know such games."""
        self._lost = ""
        try:
            self._teacher.start(task, observation)
        except TeacherError:
            raise
        except GameError as error:  # of this game alone: others go on
            self._lost = error.message

    def advice(self, observation: Observation) -> str:
        """What the teacher would do now; "" where it does not know, or names an unlisted action."""
        self.trouble = self._lost
        if self._lost:
            return ""
        try:
            action = self._teacher.act(observation)
        except GameError as error:  # most often: the game can no longer be won
            self.trouble = error.message
            return ""
        return action if action in (observation.actions or ()) else ""

    def saw(self, action: str) -> None:
        """What the player did."""
        if isinstance(self._teacher, Follows) and not self._lost:
            self._teacher.follow(action)
