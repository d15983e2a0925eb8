"""Which games represent a fold when not all of them are played, and which of them pose the same problem."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from itertools import pairwise

from grue.games.known import ships
from grue.games.params import coin_rooms, values
from grue.types import Episode, Observation, Task

# Folds with fewer problems than seeds: seed k + 100 poses the problem of seed k, with other furniture.
PROBLEMS = {"arithmetic": 100, "sorting": 100}
_FEW_ROOMS = 4  # with so few, 200 games of coin are 171 distinct ones with 79 beginnings; with one more, 198
_FEW_ROOMS_WITHOUT_DOORS = 5  # so 1000 are 821 with 180 beginnings; with one more, 982
_FEW_OF_BABYAI = 0  # 1000 games of this level are 651 with 122 beginnings; those of the others 980 at least


def problem(task: Task, first: Observation | None, name: str = "") -> Hashable:
    """Equal for tasks that pose the same problem: whoever has solved one has as good as solved the other.

    `name` is `Episode.problem`, and `first` is what the game showed first. Where a fold has far fewer games than
    seeds, games that begin alike count as one problem: these are all identical games and a few others, which makes no
    interval too narrow.
    """
    number = PROBLEMS.get(task.game)
    if number is not None:
        return (task.game, task.params, task.fold, task.seed % number)
    if name:
        return (task.game, task.params, task.fold, name)
    if first is not None and first.text and has_few_games(task):  # older files kept no text
        return (task.game, task.params, task.fold, first.text, first.goal, first.inventory, first.actions)
    return task


def problem_of(episode: Episode) -> Hashable:
    """What the game of `episode` posed."""
    return problem(episode.task, episode.first, episode.problem)


def has_few_games(task: Task) -> bool:
    """Do seeds of a fold often make identical games? Of 200 games of twc only 73 are distinct."""
    game, params = task.game, task.params
    if game == "coin":
        drawn = values(game, params)
        return drawn["numLocations"] <= (_FEW_ROOMS if drawn["includeDoors"] else _FEW_ROOMS_WITHOUT_DOORS)
    if game == "textworld-coin":
        return coin_rooms(values(game, params)["level"]) <= _FEW_ROOMS
    if game == "simonsays":  # one action of a few rooms: 1000 games are 65
        drawn = values(game, params)
        return drawn["gameLength"] == 1 and drawn["numDistractors"] == 0
    if game == "babyai":
        return values(game, params)["level"] == _FEW_OF_BABYAI
    return game in ("twc", "scienceworld")


def has_few_recipes(task: Task) -> bool:
    """Do games of a fold share recipes so often that a few of these decide a result?

    Of kitchens with one ingredient, 1000 test games have 44 recipes; with two, more than 500.
    """
    return task.game == "cookingworld" and values(task.game, task.params)["numIngredients"] == 1


def spread(every: Sequence[Task], count: int) -> list[Task]:
    """`count` of a fold's tasks in the order of their seeds, spread evenly: some stretches are easier than others.

    Where problems repeat, the spread is over problems: even steps through the seeds would meet the same few again and
    again. ScienceWorld's seeds go through its variations in turn, so there the first ones differ most. In a game of
    another package, which may draw its layouts by `seed % 20`, each is a random one of its stretch.
    """
    if count >= len(every) or (every and every[0].game == "scienceworld"):
        return list(every[:count])
    if count > 0 and not ships(every[0].game):
        draw, edges = random.Random(0), [i * len(every) // count for i in range(count + 1)]
        return [every[draw.randrange(low, high)] for low, high in pairwise(edges)]
    by_problem = sorted(every, key=lambda task: task.seed % PROBLEMS[task.game] if task.game in PROBLEMS else 0)
    chosen = [by_problem[i * len(every) // count] for i in range(count)]
    return sorted(chosen, key=lambda task: task.seed)
