"""Which seeds of a game of another package are the same game: a thousand seeds may pose only twenty problems.

Of the games that ship this is known (`spread`). Of others it is tried out: seeds that begin alike, answer the same
actions alike and have the same solution count as one problem. Whoever has solved one has as good as solved the other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from contextlib import suppress

from grue.errors import GameError
from grue.games.base import Game
from grue.games.params import ships
from grue.games.teachers.scripted import HasGold
from grue.types import Observation, Outcome, Task

TRIED = 16  # actions


def is_unknown(tasks: Sequence[Task]) -> bool:
    """Must it be tried out which of these tasks are alike?"""
    return bool(tasks) and not ships(tasks[0].game)


def likeness(game: Game, task: Task) -> str:
    """A name that tasks share if they look alike; "" where the game fails, so that it is like no other."""
    try:
        first = here = game.reset(task)
        shown: list[object] = [_seen(first)]
        if isinstance(game, HasGold):
            with suppress(GameError):  # some games have no solution for some seeds
                shown.append(game.gold())
        draw = random.Random("likeness")  # the same actions for all tasks
        outcome: Outcome | None = None
        for _ in range(TRIED):
            if outcome is not None or not here.actions:
                break
            here, _, outcome = game.step(draw.choice(here.actions))
            shown.append(_seen(here))
    except GameError:
        return ""
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]


def _seen(one: Observation) -> tuple[object, ...]:
    return one.text, one.goal, one.inventory, one.actions
