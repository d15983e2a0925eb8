"""Steps to a win, followed action by action: on the real game, against a new plan from the engine's whole state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from grue.games import tasks
from grue.games.teachers.plan import plan, read
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import RenamedTwx
from grue.games.twx.told import Starts, Told, followed

KITCHEN = {"numLocations": 3, "includeDoors": 1, "numDistractorItems": 2, "numIngredients": 2}


@pytest.fixture(scope="module")
def game() -> Iterator[TwxGame]:
    twx = TwxGame("cookingworld", KITCHEN)
    yield twx
    twx.close()


def test_it_knows_what_a_plan_from_the_whole_state_finds(game: TwxGame) -> None:
    told, done = Told(game, {}), set()
    for task in tasks("cookingworld", KITCHEN, "train", 40, 20):
        rng = random.Random(task.seed)
        observation, outcome = told.reset(task), None
        losing = ("prepare", *(f"eat {food}" for food in game.recipe(task)))
        while outcome is None:
            if "eat meal" in (observation.actions or ()):
                assert observation.to_go == 1
                break
            best = plan(game.state())
            assert observation.to_go == len(best), game.history
            # half of the steps go astray: doors and lids closed again, things put elsewhere, food cut or eaten in vain
            safe = [action for action in observation.actions or () if not action.startswith(losing)]
            food = [action for action in safe if action.startswith("eat")]
            action = best[0] if rng.random() < 0.5 else rng.choice(food or safe)
            done.add(action.split()[0])
            observation, _, outcome = told.step(action)
    assert {"put", "close", "take", "move", "cook", "open", "eat"} <= done


def test_a_best_step_takes_one_off(game: TwxGame) -> None:
    told = Told(game, {})
    (task,) = tasks("cookingworld", KITCHEN, "train", 40, 1)
    observation = told.reset(task)
    expected = observation.to_go
    for action in plan(game.state()):
        assert observation.to_go == expected
        assert expected is not None
        expected -= 1
        observation, _, outcome = told.step(action)
    assert str(outcome) == "won"


def test_a_meal_that_was_put_down_is_at_an_unknown_distance(game: TwxGame) -> None:
    told = Told(game, {})
    (task,) = tasks("cookingworld", KITCHEN, "train", 40, 1)
    observation = told.reset(task)
    for action in plan(game.state())[:-1]:
        observation, _, _ = told.step(action)
    assert observation.to_go == 1
    put = next(action for action in observation.actions or () if action.startswith("put meal in "))
    away, _, _ = told.step(put)
    assert away.to_go is None
    assert told.step("take meal")[0].to_go == 1
    assert told.reset(task).to_go is not None


def test_an_action_that_is_not_listed_changes_nothing(game: TwxGame) -> None:
    told = Told(game, {})
    observation = told.reset(tasks("cookingworld", KITCHEN, "train", 40, 1)[0])
    after, _, _ = told.step("move nowhere")
    assert after.to_go == observation.to_go


def test_what_is_known_of_a_task_serves_its_next_play_under_other_names(game: TwxGame) -> None:
    starts: Starts = {}
    (task,) = tasks("cookingworld", KITCHEN, "train", 40, 1)
    first = Told(game, starts).reset(task)
    known = starts[task]
    again = RenamedTwx(Told(game, starts), "salt", share=1.0)
    assert again.reset(task).to_go == first.to_go
    assert starts[task] is known
    assert RenamedTwx(game, "salt", share=1.0).reset(task).to_go is None


def test_an_action_that_the_game_does_not_list_moves_no_win(game: TwxGame) -> None:
    told = Told(game, {})
    (task,) = tasks("cookingworld", KITCHEN, "train", 40, 1)
    first = told.reset(task)
    cuts = [f"{verb} {food}" for food in game.recipe(task) for verb in ("slice", "chop", "dice")]
    for action in ("open door to nowhere", *cuts):
        assert told.step(action)[0].to_go == first.to_go, action


def test_each_step_of_the_shortest_way_is_one_less_to_go_without_doors_too() -> None:
    kitchen = {**KITCHEN, "includeDoors": 0}
    game, moves = TwxGame("cookingworld", kitchen), 0
    told = Told(game, {})
    for task in tasks("cookingworld", kitchen, "train", 40, 5):
        left = told.reset(task).to_go
        assert left is not None
        for action in plan(game.state()):
            observation, _, outcome = told.step(action)
            moves += action.startswith("move")
            left -= 1
            assert outcome is not None or observation.to_go == left
    game.close()
    assert moves


def test_what_is_put_into_an_open_thing_lies_there() -> None:
    kitchen = {**KITCHEN, "numLocations": 1, "includeDoors": 0}
    game = TwxGame("cookingworld", kitchen)
    (task,) = tasks("cookingworld", kitchen, "train", 40, 1)
    game.reset(task)
    house, progress = read(game.state())
    game.close()
    room, lid = min(house.lids)
    holding = replace(progress, unlidded=progress.unlidded | {(room, lid)}, held=frozenset({"apple"}))
    moved, after = followed(house, holding, f"put apple in {lid}")
    assert moved.where["apple"] == (room, (lid,)) and "apple" not in after.held
