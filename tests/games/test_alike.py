"""Games that pose the same problem count once, and a part of a fold of one's own game meets all of its problems."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from grue.errors import GameError
from grue.evaluate.summary import compare, summarise, with_problems
from grue.games import canonical_params, make
from grue.games.alike import is_unknown, likeness, must_be_named, name_of, untold
from grue.games.base import FOLDS
from grue.games.spread import spread
from grue.games.toy import ToyGame
from grue.games.twx.recipes import HasRecipe, preparations, read_recipe
from grue.progress import Progress
from grue.stages.session import open_session
from grue.storage.episodes import from_dict, to_dict
from grue.storage.run import Run
from grue.types import Episode, Observation, Outcome, Task


class Doors:
    """One of five doors is the right one. It begins alike for all seeds; only the wrong doors differ."""

    def __init__(self, shown: bool = False, broken: int = -1) -> None:
        self.shown, self.broken, self.right = shown, broken, 0

    def reset(self, task: Task) -> Observation:
        self.right, self.steps = task.seed % 5, 0
        if self.right == self.broken:
            raise GameError("no such door")
        return self.show(f"Take door {self.right}." if self.shown else "Take a door.")

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        won = action == str(self.right)
        return self.show("Open." if won else "Shut."), float(won), Outcome.WON if won else None

    def show(self, text: str) -> Observation:
        return Observation(text, "Find the way out.", "", tuple("01234"), 0.0)

    def close(self) -> None: ...


class Solved(Doors):
    """The doors tell nothing, only the solution does."""

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        return self.show("..."), 0.0, None

    def gold(self) -> list[str]:
        if not self.right:
            raise GameError("no solution is on file")
        return [str(self.right)]


TASKS = [Task("doors", "", "test", FOLDS["test"].start + seed, 20) for seed in range(1000)]


def test_seeds_of_one_game_are_alike_and_those_of_others_are_not() -> None:
    for game in (Doors(shown=True), Doors(), Solved()):
        names = [likeness(game, task) for task in TASKS[:20]]
        assert [names.index(name) for name in names] == [number % 5 for number in range(20)]
    assert likeness(ToyGame(), tiny.tasks(2)[0]) != likeness(ToyGame(), tiny.tasks(2)[1])
    with pytest.raises(GameError, match="no such door"):
        likeness(Doors(broken=3), TASKS[3])
    assert likeness(Doors(), replace(TASKS[0], limit=1)) == likeness(Doors(), TASKS[0])  # a short limit hides nothing
    assert is_unknown(TASKS) and not is_unknown(tiny.tasks(1)) and not is_unknown([])


class Bandit(Doors):
    """Every door opens and only the reward says which one was right."""

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        return self.show("Open."), float(action == str(self.right)), None


def test_games_that_differ_in_what_pays_are_not_alike() -> None:
    assert len({likeness(Bandit(), task) for task in TASKS[:20]}) == 5


def test_where_nothing_tells_most_games_apart_nothing_is_known() -> None:
    assert untold(["a", "b", "a", "a"]) == "a"
    assert untold(["a", "b", "a", "b"]) == untold(["a"]) == untold([]) == ""


def test_a_part_of_a_fold_is_not_in_step_with_how_a_game_uses_its_seeds() -> None:
    for count in (20, 40, 100):
        chosen = spread(TASKS, count)
        assert chosen == spread(TASKS, count)
        for number, task in enumerate(chosen):  # one of each stretch
            assert number * 1000 // count <= task.seed - FOLDS["test"].start < (number + 1) * 1000 // count
        layouts = {task.seed % 20 for task in chosen}
        assert len(layouts) > (10 if count == 20 else 15)
    assert spread(TASKS, 1000) == TASKS and spread(TASKS, 0) == []


def test_intervals_are_over_the_games_that_differ() -> None:
    def played(task: Task, won: bool) -> Episode:
        seen = Observation("Take a door.", "Find the way out.", "", (), float(won))
        return Episode(task, "me", (), Outcome.WON if won else Outcome.LOST, seen)

    half = [played(task, task.seed % 5 in (0, 3)) for task in TASKS[:100]]
    none = [played(task, False) for task in TASKS[:100]]
    named = {task: likeness(Doors(), task) for task in TASKS[:100]}
    alone, together = summarise(half, fold="test"), summarise(with_problems(half, named), fold="test")
    assert with_problems(half, {}) is half
    assert (alone["success"], together["success"], together.get("problems")) == (0.4, 0.4, 5)
    assert "problems" not in alone
    low, high = together["success_ci95"] or (0, 0)
    assert alone["success_ci95"] is not None
    assert low < alone["success_ci95"][0] - 0.1 and high > alone["success_ci95"][1] + 0.1
    kept = [from_dict(to_dict(episode)) for episode in with_problems(half, named)]
    assert [episode.problem for episode in kept] == [named[task] for task in TASKS[:100]]
    narrow, wide = compare(half, none)["ci95"], compare(kept, with_problems(none, named))["ci95"]
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    older = compare(with_problems(half, named), none)["ci95"]  # one side does not say what its games pose
    assert older == compare(half, with_problems(none, named))["ci95"] == wide
    other = replace(half[0], problem="a")
    assert from_dict(to_dict(other)) == other


def test_kitchens_with_one_ingredient_are_named_after_their_recipe() -> None:
    params = canonical_params("cookingworld", {"numLocations": 1, "numIngredients": 1})
    few = [Task("cookingworld", params, "test", 20000 + number, 10) for number in range(60)]
    many = replace(few[0], params=canonical_params("cookingworld", {"numIngredients": 2}))
    assert must_be_named(few) and must_be_named(TASKS)
    assert not (must_be_named([many]) or must_be_named(tiny.tasks(1)) or must_be_named([]))
    with closing(make("cookingworld", few[0].params)) as game:
        assert isinstance(game, HasRecipe)
        names = {task: name_of(game, task) for task in few}
        for task in few[:5]:
            game.reset(task)
            food, cooking, cutting = names[task].rsplit(maxsplit=2)
            text = game.step("read cookbook")[0].text
            read = preparations(read_recipe(text))
            assert read == {(food, cooking, cutting)}, text
    assert 10 < len({*names.values()}) < 45
    lost = [Episode(task, "me", (), Outcome.LOST, Observation("", "", "", (), 0.0)) for task in few]
    assert summarise(with_problems(lost, names), fold="test").get("problems") == len({*names.values()})


def test_a_run_takes_kitchens_with_the_same_recipe_for_one_problem(tiny_folder: Path, tmp_path: Path) -> None:
    kitchen = ("game.name=cookingworld", "game.params=numLocations=1,numIngredients=1", "game.limit=10")
    config = tiny.config(tiny_folder, *kitchen)
    with open_session(Run(tmp_path / "run", config), config, Progress(quiet=True)) as session:
        names = session.problems(session.tasks("test", 40))
        name, count = Counter(names.values()).most_common(1)[0]
        assert name and count > 1
        alike = [task for task in names if names[task] == name]
        assert session.problems(alike) == dict.fromkeys(
            alike, name
        )  # no doubt, though there is nothing to compare with
