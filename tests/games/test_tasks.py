"""Folds do not leak: seeds by definition, recipes by the rule of `games.tasks`."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from grue import games
from grue.errors import ConfigError, GameError
from grue.games import FOLDS, make, tasks
from grue.games.params import _LOCATIONS_FOR, canonical
from grue.games.spread import PROBLEMS, problem, spread
from grue.games.twx import game as twx_game
from grue.games.twx.game import TwxGame
from grue.games.twx.recipes import can_occur, is_shared, preparations, read_recipe
from grue.types import Observation, Outcome, Task

CW16 = "numLocations=3,numIngredients=2,numDistractorItems=2,includeDoors=1"
COOKBOOK = """Gather all following ingredients and follow the directions to prepare this tasty meal.

Ingredients:
  white onion
  salt

Directions:
  dice the white onion
  roast the white onion
  prepare meal
"""


def recipes(fold: str, count: int | None) -> list[frozenset[tuple[str, tuple[str, str]]]]:
    game = TwxGame("cookingworld", CW16)
    found = [frozenset(game.recipe(task).items()) for task in games.tasks("cookingworld", CW16, fold, 16, count)]
    game.close()
    return found


def test_seed_ranges_are_disjoint() -> None:
    folds = list(games.FOLDS.values())
    assert sum(len(fold) for fold in folds) == len(set().union(*(range(f.start, f.stop) for f in folds)))


def test_no_recipe_of_training_occurs_in_dev_or_test() -> None:
    train, dev, test = set(recipes("train", None)), set(recipes("dev", None)), set(recipes("test", None))
    pretrain = set(recipes("pretrain", 300))
    assert not (train | pretrain) & (dev | test)
    assert not dev & test
    assert min(len(train), len(dev), len(test)) > 400


def test_the_test_fold_is_never_thinned_and_the_others_a_little() -> None:
    assert len(games.tasks("cookingworld", CW16, "test", 16)) == 1000
    seeds = [task.seed for task in games.tasks("cookingworld", CW16, "train", 16)]
    assert 900 < len(seeds) < 1000
    assert seeds == sorted(set(seeds))


Walk = list[tuple[str, Observation]]  # (action, what was seen after it)


def walk(game: games.Game, task: Task, number: int) -> Walk:
    draw, outcome = random.Random(number), None
    seen: Walk = [("", observation := game.reset(task))]
    while outcome is None:
        action = draw.choice(observation.actions or ("look",))
        observation, _, outcome = game.step(action)
        seen.append((action, observation))
    return seen


def shows_the_same(game: games.Game, task: Task, seen: Walk) -> bool:
    return alike(game.reset(task), seen[0][1]) and all(alike(game.step(action)[0], after) for action, after in seen[1:])


def alike(one: Observation, other: Observation) -> bool:
    """Whether both show the same, whichever line comes first: a map of mapreader begins with any room."""
    texts = [sorted(observation.text.splitlines()) for observation in (one, other)]
    return texts[0] == texts[1] and replace(one, text=other.text) == other


@pytest.mark.parametrize(
    ("name", "params"),
    [
        pytest.param("coin", "numLocations=5", marks=pytest.mark.slow),
        ("mapreader", "numLocations=2,maxDistanceApart=1,maxDistractorItemsPerLocation=0"),
        ("toy", "rooms=2"),
        pytest.param("babyai", "level=2", marks=pytest.mark.slow),
    ],
)
def test_no_fold_repeats_a_game_of_a_later_one(name: str, params: str) -> None:
    if name == "babyai":
        pytest.importorskip("minigrid")
    kept, test = (games.tasks(name, params, fold, 60) for fold in ("train", "test"))
    seeds = {task.seed for task in kept}
    left_out = [Task(name, params, "train", seed, 60) for seed in games.FOLDS["train"] if seed not in seeds]
    assert 20 < len(left_out) < 500 and len(test) == 1000
    later = [*games.tasks(name, params, "dev", 60), *test]
    with closing(games.make(name, params)) as game:

        def has_twin(task: Task) -> bool:
            """Whether eight walks, some of which may end early, show the same in a later game."""
            walks = [walk(game, task, number) for number in range(8)]
            return any(all(shows_the_same(game, other, seen) for seen in walks) for other in later)

        assert all(has_twin(task) for task in left_out[:2])
        assert not any(has_twin(task) for task in kept[:2])


def test_parameters_of_which_no_new_game_can_be_made_are_refused() -> None:
    with pytest.raises(ConfigError, match="every game of train is also one of dev or test"):
        games.tasks("coin", "numLocations=1", "train", 16)


def test_count_and_start_choose_a_stretch_of_seeds() -> None:
    chosen = games.tasks("coin", "numLocations=11", "dev", 16, count=3, start=5)
    assert [task.seed for task in chosen] == [10_005, 10_006, 10_007]
    assert {(task.params, task.fold, task.limit) for task in chosen} == {("numLocations=11", "dev", 16)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("coin", "", "train", 16, 1001), "fewer than count"),
        (("coin", "", "pretrain", 16), "million"),
        (("coin", "", "validation", 16), "unknown fold"),
        (("coin", "", "train", 0), "limit"),
        (("coin", "", "train", 16, -1), "negative"),
        (("coin", "", "train", 16, None, 1000), "no tasks from start=1000 on"),
    ],
)
def test_impossible_requests_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games.tasks(*arguments)  # type: ignore[arg-type]


def test_recipes_are_read_and_placed() -> None:
    recipe = read_recipe(COOKBOOK)
    assert recipe == {"white onion": ("roasted", "diced"), "salt": ("raw", "uncut")}
    assert can_occur(preparations(recipe), "train")
    assert not is_shared(preparations(recipe), "train")
    spices = frozenset({("salt", "raw", "uncut"), ("flour", "raw", "uncut")})
    assert [fold for fold in games.FOLDS if is_shared(spices, fold)] == ["train", "dev", "pretrain"]


def test_a_spread_is_even_over_a_fold() -> None:
    every = games.tasks("coin", fold="dev")
    assert [task.seed for task in spread(every, 4)] == [10_000, 10_250, 10_500, 10_750]
    assert spread(every, 1000) == spread(every, 2000) == every
    assert [task.seed % 1000 for task in spread(games.tasks("scienceworld", fold="dev"), 3)] == [0, 1, 2]


@pytest.mark.parametrize("game", sorted(PROBLEMS))
def test_problems_come_again_and_a_spread_knows(game: str) -> None:
    def asked(played: TwxGame, task: Task) -> object:
        things = sorted(action for action in played.reset(task).actions or () if action.startswith("take "))
        return played.problem(task) if game == "arithmetic" else things

    every, played = games.tasks(game, fold="dev"), TwxGame(game)
    try:
        sets = [asked(played, every[seed]) for seed in range(PROBLEMS[game])]
        again = [asked(played, every[seed + PROBLEMS[game]]) for seed in range(0, PROBLEMS[game], 7)]
    finally:
        played.close()
    assert again == sets[::7]
    assert all(sets.count(one) == 1 for one in sets)
    for count, share in ((50, 1), (100, 1), (200, 2), (900, 9)):
        chosen = spread(every, count)
        assert len(set(chosen)) == count
        assert [task.seed for task in chosen] == sorted(task.seed for task in chosen)
        assert set(Counter(problem(task, None) for task in chosen).values()) == {share}
    assert len({problem(task, None) for task in games.tasks("coin", fold="dev")}) == 1000


def test_games_of_twc_that_begin_alike_are_one_game() -> None:
    """200 test games of one room and one thing, its preset's, are 73: do the same in two of them, and see the same."""
    room, rng = "numLocations=1,numItemsToPutAway=1", random.Random(0)
    every = spread(games.tasks("twc", room, "test", 16), 200)
    with closing(games.make("twc", room)) as first, closing(games.make("twc", room)) as other:
        alike: dict[object, list[Task]] = {}
        for task in every:
            alike.setdefault(problem(task, first.reset(task)), []).append(task)
        for a, b, *_ in [tasks for tasks in alike.values() if len(tasks) > 1][:8]:
            observation, outcome = first.reset(a), None
            assert other.reset(b) == observation
            while outcome is None:
                action = rng.choice(observation.actions or ())
                observation, _, outcome = step = first.step(action)
                assert other.step(action) == step
    assert len(alike) == 73
    shown = Observation("A room.", "", "", ("look",), 0.0)
    assert len({problem(task, shown) for task in every}) == 1
    others = (
        replace(shown, **{part: value})  # type: ignore[arg-type]
        for part, value in (("text", "A hall."), ("goal", "Win."), ("inventory", "a key"), ("actions", ("go",)))
    )
    apart = {problem(every[0], other) for other in (shown, *others)}
    assert len(apart | {problem(replace(every[0], fold="dev"), shown)}) == 6  # whatever differs tells games apart
    few = [("coin", "numLocations=2"), ("coin", "includeDoors=0,numLocations=5"), ("textworld-coin", "level=2")]
    one = ("simonsays", "gameLength=1,numDistractors=0")
    for name, params in (*few, one, ("scienceworld", "task=3"), ("babyai", "")):
        assert len({problem(replace(task, game=name, params=params), shown) for task in every}) == 1
    many = [
        ("simonsays", "gameLength=1"),
        ("coin", "numLocations=5"),
        ("coin", "includeDoors=0,numLocations=6"),
        ("coin", ""),
    ]
    for name, params in (*many, ("cookingworld", ""), ("textworld-coin", "level=9"), ("babyai", "level=1")):
        assert len({problem(replace(task, game=name, params=params), shown) for task in every}) == 200


def test_games_that_nobody_can_win_are_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tasks("peckingorder", "", "dev", 50)
    left = {task.seed for task in chosen}
    assert len(left) == 945
    with closing(make("peckingorder")) as game:
        for seed in (*sorted({*FOLDS["dev"]} - left), *(task.seed for task in chosen[:45])):
            game.reset(Task("peckingorder", "", "dev", seed, 50))
            if seed not in left:
                with pytest.raises(GameError, match="cannot be won"):
                    game.gold()  # type: ignore[attr-defined]
                monkeypatch.setattr(twx_game, "is_unwinnable", lambda task: False)
            outcome = None
            for action in game.gold():  # type: ignore[attr-defined]
                if outcome is None:
                    outcome = game.step(action)[2]
            assert (outcome is Outcome.WON) == (seed in left), seed
            monkeypatch.undo()


def test_mapreader_needs_as_many_rooms_as_the_way_is_long() -> None:
    for apart, fewest in _LOCATIONS_FOR.items():
        assert canonical("mapreader", {"maxDistanceApart": apart, "numLocations": fewest})
        if fewest > 2:
            with pytest.raises(ConfigError, match="too few"):
                canonical("mapreader", {"maxDistanceApart": apart, "numLocations": fewest - 1})


def test_the_names_of_parameters_and_the_params_of_a_task_are_texts() -> None:
    with pytest.raises(ConfigError, match="name of a game parameter, 3, is not a text"):
        canonical("coin", {3: 1})  # type: ignore[dict-item]
    task = Task("coin", {"numLocations": 3}, "train", 0, 5)  # type: ignore[arg-type]
    with closing(games.make("coin")) as game, pytest.raises(ConfigError, match="params of a Task are a text") as caught:
        game.reset(task)
    assert "canonical_params" in (caught.value.hint or "")


@pytest.mark.parametrize("wrong", [{"count": 1.5}, {"limit": "16"}, {"start": None}, {"count": True}])
def test_counts_are_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.* is not a whole number"):
        tasks("toy", fold="dev", **wrong)
