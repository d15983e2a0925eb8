"""Exchanged food names: consistent, one to one, and never a pair that dev or test recipes may draw."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from grue.games.twx.food_names import INVENTED, draw_renaming, game_foods, rename
from grue.games.twx.recipes import COOKING, CUTTING, Preparation, held_out, kitchen_lists, recipe_in
from grue.pretrain.corpus import Transcript, augment

COOKBOOK = (
    "Gather all following ingredients and follow the directions to prepare this tasty meal.\n\n"
    "Ingredients:\n  red apple\n  block of cheese\n  salt\n\n"
    "Directions:\n  dice the red apple\n  fry the red apple\n  roast the block of cheese\n  prepare meal\n"
)
VERB = {adjective: verb for verb, adjective in (COOKING | CUTTING).items()}


def drawable(fold: str) -> list[Preparation]:
    """Every recipe line of a fold, read from the game's own file."""
    ways = kitchen_lists()["FOOD_PREPARATIONS_SPLITS"][fold]
    return [(food, cooking, cutting) for food, pairs in ways.items() for cooking, cutting in pairs]


def page_of(lines: list[Preparation]) -> str:
    directions = [f"  {VERB[way]} the {food}" for food, *ways in lines for way in ways if way in VERB]
    foods = [f"  {food}" for food, _, _ in lines]
    return "\n".join(["Gather.", "", "Ingredients:", *foods, "", "Directions:", *directions, "  prepare meal", ""])


TRAIN = st.lists(st.sampled_from(drawable("train")), min_size=1, max_size=5, unique_by=lambda pair: pair[0])


def test_a_recipe_by_hand() -> None:
    assert recipe_in(COOKBOOK) == {
        ("red apple", "fried", "diced"),
        ("block of cheese", "roasted", "uncut"),
        ("salt", "raw", "uncut"),
    }
    assert recipe_in("You are in the kitchen. There is a red apple.") == frozenset()


@given(TRAIN)
def test_what_is_read_is_what_was_written(lines: list[Preparation]) -> None:
    assert recipe_in(page_of(lines)) == set(lines)


def test_what_is_held_out_is_everything_that_dev_and_test_may_ask_for() -> None:
    asked = {way for fold in ("valid", "test") for way in drawable(fold) if way[1] != "raw" or way[2] != "uncut"}
    assert held_out() == asked
    assert len(asked) > 50
    assert not asked & set(drawable("train"))  # otherwise the games themselves would show them


@given(TRAIN, st.sampled_from([0.0, 0.3, 0.7]), st.integers(0, 10**6))
def test_no_renaming_shows_a_held_out_pair(lines: list[Preparation], invented: float, seed: int) -> None:
    recipe = frozenset(lines)
    names = draw_renaming(recipe, invented, random.Random(seed))
    shown = {(names.get(food, food), *ways) for food, *ways in recipe}
    assert not shown & held_out()
    # and with the text itself, as the model reads it
    assert recipe_in(rename(page_of(lines), names)) == shown


@given(TRAIN, st.sampled_from([0.0, 0.3, 0.7]), st.integers(0, 10**6))
def test_a_renaming_is_one_to_one(lines: list[Preparation], invented: float, seed: int) -> None:
    names = draw_renaming(frozenset(lines), invented, random.Random(seed))
    targets = [names.get(food, food) for food in game_foods()]
    assert len(set(targets)) == len(targets)
    assert set(targets) <= set(game_foods()) | set(INVENTED)
    assert invented > 0 or set(targets) == set(game_foods())


def test_a_recipe_that_no_renaming_keeps_apart_keeps_its_names() -> None:
    every = frozenset((food, *how) for food in game_foods() for _, *how in held_out())
    assert draw_renaming(every, 0.0, random.Random(0)) == {}


def test_renaming_is_drawn_anew_and_uses_invented_names_when_asked() -> None:
    recipe, rng = frozenset({("red apple", "fried", "diced")}), random.Random(0)
    drawn = [draw_renaming(recipe, 0.7, rng) for _ in range(20)]
    assert len({names["red apple"] for names in drawn}) > 10
    assert any(names["red apple"] in INVENTED for names in drawn)
    assert not set(INVENTED) & set(game_foods())


def test_every_mention_is_renamed_and_nothing_else() -> None:
    names = {"red apple": "salt", "salt": "red tuna", "red tuna": "red apple"}
    text = "A raw red apple, some salt and red tuna. You take the red apple. Redder apples are no red onion."
    assert rename(text, names) == (
        "A raw salt, some red tuna and red apple. You take the salt. Redder apples are no red onion."
    )
    # names inside longer names are left alone: "red hot pepper" holds no "pepper" of its own
    assert rename("a red hot pepper", {"black pepper": "milk"}) == "a red hot pepper"
    back = {new: old for old, new in names.items()}
    assert rename(rename(text, names), back) == text


def transcript() -> Transcript:
    observations = ("You see a red apple and a block of cheese.", COOKBOOK, "You take the red apple.")
    return Transcript(1, "gold", "Cook!", observations, ("read cookbook", "take red apple"), (True, True), True)


def test_a_transcript_is_renamed_throughout() -> None:
    for seed in range(30):
        found = augment(transcript(), random.Random(seed), original=0.0)
        (apple,) = re.findall(r"You take the (.+)\.", found.observations[2])
        assert found.actions == ("read cookbook", f"take {apple}")
        assert f"You see a {apple} and a " in found.observations[0]
        assert f"dice the {apple}\n" in found.observations[1]
        assert apple in {food for food, _, _ in recipe_in(found.observations[1])}
        assert not recipe_in(found.observations[1]) & held_out()


def test_the_share_of_transcripts_left_alone_is_kept() -> None:
    rng = random.Random(0)
    assert all(augment(transcript(), rng, original=1.0) == transcript() for _ in range(20))
    kept = sum(augment(transcript(), rng) == transcript() for _ in range(500))
    assert 60 < kept < 140  # 20 %, give or take 4 standard deviations
    unread = Transcript(1, "random", "Cook!", ("A red apple.",), (), (), False)
    assert augment(unread, rng, original=0.0) == unread  # no recipe was seen, so nothing can be checked against it


def test_the_share_of_invented_names_is_kept() -> None:
    invented, plain = (draw_renaming(frozenset(), share, random.Random(0)) for share in (1.0, 0.0))
    assert {*invented.values()} <= {*INVENTED} and not {*plain.values()} & {*INVENTED}


def test_lines_of_held_out_recipes_are_avoided_where_asked() -> None:
    lines = [("red apple", "fried", "diced"), ("salt", "roasted", "sliced"), ("red tuna", "grilled", "chopped")]

    def shown(*, lines_apart: bool) -> int:
        drawn = [draw_renaming(frozenset(lines), 0.0, random.Random(n), lines_apart=lines_apart) for n in range(200)]
        return sum(bool({(names[food], *how) for food, *how in lines} & held_out()) for names in drawn)

    assert shown(lines_apart=True) == 0 < shown(lines_apart=False)
