"""Teachers that play fair: they know what they have read and seen, like a policy."""

from __future__ import annotations

from collections.abc import Callable

from grue.errors import TeacherError
from grue.games.teachers.cook import Cook
from grue.games.teachers.search import Search
from grue.types import Observation, Task

PLAYERS: dict[str, Callable[[], Cook | Search]] = {"cookingworld": Cook, "coin": Search, "mapreader": Search}


class Explore:
    """The fair player of a game's family."""

    name = "explore"

    def __init__(self) -> None:
        self._player: Cook | Search = Cook()

    def start(self, task: Task, observation: Observation) -> None:
        if task.game not in PLAYERS:
            raise TeacherError(
                f"teacher 'explore' plays {', '.join(PLAYERS)} and alfworld, not {task.game}",
                hint="gold and gold-pruned play every game that can solve itself",
            )
        self._player = PLAYERS[task.game]()
        self._player.start(observation)

    def act(self, observation: Observation) -> str:
        return self._player.act(observation)

    def follow(self, action: str) -> None:
        """`action` has been done instead of what was advised last."""
        self._player.follow(action)
