"""Names for what games pose, where it takes more than seed and first text to tell which pose the same problem.

Kitchens with a single ingredient are named after their recipe. What the seeds of a game of another package decide is
not known; they may pose only twenty problems, so it is tried out: seeds that begin alike, answer the same actions alike
and have the same solution count as one problem. Whoever has solved one has as good as solved the other.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from grue.errors import GameError
from grue.games.base import Game
from grue.games.known import ships
from grue.games.spread import has_few_recipes
from grue.games.teachers.scripted import HasGold
from grue.games.twx.recipes import HasRecipe, preparations
from grue.types import Observation, Outcome, Task

TRIED = 16  # actions


def is_unknown(tasks: Sequence[Task]) -> bool:
    """Must it be tried out which of these tasks are alike?"""
    return bool(tasks) and not ships(tasks[0].game)


def must_be_named(tasks: Sequence[Task]) -> bool:
    """Does it take `name_of` to know which of these tasks pose the same problem?"""
    return is_unknown(tasks) or (bool(tasks) and has_few_recipes(tasks[0]))


def name_of(game: Game, task: Task) -> str:
    """A name that tasks share if they pose the same problem. GameError where the game fails."""
    if has_few_recipes(task) and isinstance(game, HasRecipe):
        return "; ".join(" ".join(way) for way in sorted(preparations(game.recipe(task))))
    return likeness(game, task)


def likeness(game: Game, task: Task) -> str:
    """A name that tasks share if they look alike. GameError where the game fails."""
    here = game.reset(replace(task, limit=max(task.limit, TRIED)))
    shown: list[object] = [_seen(here)]
    if isinstance(game, HasGold):
        with suppress(GameError):  # some games have no solution for some seeds
            shown.append(game.gold())
    draw = random.Random("likeness")  # the same actions for all tasks
    outcome: Outcome | None = None
    for _ in range(TRIED):
        if outcome is not None or not here.actions:
            break
        here, reward, outcome = game.step(draw.choice(here.actions))
        shown.append((_seen(here), reward, outcome))
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]


def untold(names: Sequence[str]) -> str:
    """The name of more than half of the games: what was tried did not tell them apart. "" if there is none.

    Perhaps they are one game. But a game that hides what it is about, such as a word out of thousands, looks like this,
    too, and as one problem its interval would say nothing.
    """
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    return name if 2 * count > len(names) > 1 else ""


def _seen(one: Observation) -> tuple[object, ...]:
    return one.text, one.goal, one.inventory, one.actions, one.score
