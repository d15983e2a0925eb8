"""Games and tasks as the settings of a run describe them (`game.*`)."""

from __future__ import annotations

from grue.config import GameConfig
from grue.games import make, tasks
from grue.games.base import Game
from grue.types import Task


def open_game(settings: GameConfig) -> Game:
    """A game of the run."""
    return make(settings.name, settings.params, settings.java, read_timeout_s=settings.read_timeout_s)


def fold_tasks(settings: GameConfig, fold: str, count: int | None = None, start: int = 0) -> list[Task]:
    """`count` tasks of a fold in the order of their seeds, from the `start`-th seed on; all that remain without."""
    return tasks(
        settings.name,
        settings.params,
        fold,
        settings.limit,
        count,
        start,
        java=settings.java,
        read_timeout_s=settings.read_timeout_s,
    )
