"""Foods renamed in a game, and demonstrations replayed with steps left out: on the real game."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from grue.games import tasks
from grue.games.omission import replay_with_omissions
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.training import training_games
from grue.games.twx.food_names import game_foods
from grue.games.twx.game import TwxGame
from grue.games.twx.recipes import Preparation, held_out, is_held_out, recipe_in
from grue.games.twx.renamed import RenamedTwx, renamed_episode
from grue.games.twx.told import Told
from grue.types import Outcome, Task

KITCHEN = {"numLocations": 3, "includeDoors": 1, "numDistractorItems": 2, "numIngredients": 2}


@pytest.fixture(scope="module")
def game() -> Iterator[TwxGame]:
    twx = TwxGame("cookingworld", KITCHEN)
    yield twx
    twx.close()


def test_renamed_game_is_won_by_the_renamed_gold_path(game: TwxGame) -> None:
    for task in tasks("cookingworld", KITCHEN, "train", 50, 5):
        game.reset(task, gold=True)
        gold = game.gold()
        renamed = RenamedTwx(game, "salt", share=1.0)
        observation = renamed.reset(task)
        outcome = None
        for action in gold:
            there = next((a for a in observation.actions or () if _back(renamed, a) == action), None)
            if there is None:  # gold holds a few steps that are not valid
                continue
            observation, _, outcome = renamed.step(there)
        assert outcome is Outcome.WON


def test_renaming_is_the_same_for_the_same_salt_and_differs_for_another(game: TwxGame) -> None:
    (task,) = tasks("cookingworld", KITCHEN, "train", 16, 1)
    texts = []
    for salt in ("a", "a", "b"):
        renamed = RenamedTwx(game, salt, share=1.0)
        renamed.reset(task)
        texts.append(renamed.step("read cookbook")[0].text)
    assert texts[0] == texts[1] != texts[2]


def test_no_recipe_of_dev_or_test_comes_from_renaming(game: TwxGame) -> None:
    others = [task for fold in ("dev", "test") for task in tasks("cookingworld", KITCHEN, fold, 16, 300)]
    known = {recipe_of(game, task) for task in others}
    assert all(is_held_out(recipe) for recipe in known)
    lines = set()
    for task in tasks("cookingworld", KITCHEN, "train", 16, 60):
        recipe = recipe_of(RenamedTwx(game, "x", share=1.0), task)
        assert {food for food, _, _ in recipe} <= set(game_foods())
        assert recipe not in known
        assert not is_held_out(recipe)
        lines |= recipe
    # any food may come with any preparation: what is apart is whole recipes
    assert lines & held_out()


def recipe_of(game: RenamedTwx | TwxGame, task: Task) -> frozenset[Preparation]:
    observation = game.reset(task)
    assert "read cookbook" in (observation.actions or ())
    return recipe_in(game.step("read cookbook")[0].text)


def test_share_zero_leaves_every_name_alone(game: TwxGame) -> None:
    (task,) = tasks("cookingworld", KITCHEN, "train", 16, 1)
    plain = game.reset(task).text
    assert RenamedTwx(game, "x", share=0.0).reset(task).text == plain


def test_replay_without_omissions_is_the_demonstration_less_its_invalid_steps(game: TwxGame) -> None:
    (task,) = tasks("cookingworld", KITCHEN, "train", 16, 1)
    gold = play(game, task, teacher("gold", game), record_limit=50)
    again = replay_with_omissions(game, gold, 0.0, random.Random(0))
    assert [turn.action for turn in again.turns] == [turn.action for turn in gold.turns if turn.valid]
    assert again.outcome is Outcome.WON


def test_replays_leave_steps_out_and_are_not_selected_by_success(game: TwxGame) -> None:
    outcomes = []
    for task in tasks("cookingworld", KITCHEN, "train", 16, 20):
        gold = play(game, task, teacher("gold", game), record_limit=50)
        again = replay_with_omissions(game, gold, 0.3, random.Random(task.seed))
        assert again.steps < gold.steps
        assert all(turn.valid for turn in again.turns)
        outcomes.append(again.outcome)
    # with 30 % of about 20 steps missing hardly any replay can still win
    assert outcomes.count(Outcome.WON) < 10


def _back(renamed: RenamedTwx, action: str) -> str:
    from grue.games.twx.food_names import rename

    return rename(action, renamed._back)


def test_renamed_episode_is_consistent_and_keeps_what_happened(game: TwxGame) -> None:
    (task,) = tasks("cookingworld", KITCHEN, "train", 16, 1)
    gold = play(game, task, teacher("gold", game), record_limit=50)
    gold = replace(gold, turns=tuple(replace(turn, advice=turn.action) for turn in gold.turns))
    other = renamed_episode(gold, random.Random(1))
    assert [turn.advice for turn in other.turns] == [turn.action for turn in other.turns]
    assert [turn.reward for turn in other.turns] == [turn.reward for turn in gold.turns]
    assert [turn.action for turn in other.turns] != [turn.action for turn in gold.turns]
    for turn, before in zip(other.turns, gold.turns, strict=True):
        assert (turn.action in (turn.observation.actions or ())) == before.valid
    pairs = {pair for turn in other.turns for pair in recipe_in(turn.observation.text)}
    assert pairs
    assert not is_held_out(frozenset(pairs))


def test_training_games_are_renamed_and_tell_the_baseline_as_asked(game: TwxGame) -> None:
    plain, renamed, told, both = (
        training_games([game], share, "salt", starts)[0]
        for share, starts in ((0.0, None), (0.5, None), (0.0, {}), (0.5, {}))
    )
    assert plain is game
    assert isinstance(renamed, RenamedTwx) and isinstance(told, Told) and isinstance(both, RenamedTwx)
