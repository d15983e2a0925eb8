"""Made-up words for the things of a game: on real games and demonstrations."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from string import ascii_lowercase

import pytest

from grue.games import tasks
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import RenamedTwx, renamed_episode
from grue.games.twx.words import FAMILIES, draw_words, reword, things
from grue.types import Observation, Outcome

PARAMS = {"twc": {"numLocations": 1, "numItemsToPutAway": 2}}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "arithmetic"])  # that is in test_sums
def test_a_renamed_game_is_won_by_the_renamed_gold_path(family: str) -> None:
    game, changed = TwxGame(family, PARAMS.get(family, {})), 0
    try:
        for task in tasks(family, PARAMS.get(family, {}), "train", 50, 4):
            plain = game.reset(task, gold=True)
            gold = game.gold()
            renamed = RenamedTwx(game, "salt", share=1.0)
            observation, outcome = renamed.reset(task), None
            names = draw_words(family, plain, _after_the_share(f"salt/{task.seed}"))
            changed += observation.text != plain.text
            for action in gold:
                there = reword(action, names)
                if there in (observation.actions or ()):
                    observation, _, outcome = renamed.step(there)
            assert outcome is Outcome.WON
            assert list(observation.actions or ()) == sorted(observation.actions or ())
    finally:
        game.close()
    assert changed


def test_a_renamed_game_does_not_know_its_old_names() -> None:
    """Whoever remembers a solution by its words gets nowhere with it."""
    game, unlisted = TwxGame("simonsays", {}), 0
    try:
        for task in tasks("simonsays", {}, "train", 50, 3):
            game.reset(task, gold=True)
            gold, renamed = game.gold(), RenamedTwx(game, "salt", share=1.0)
            observation, outcome = renamed.reset(task), None
            for action in gold:
                unlisted += action not in (observation.actions or ())
                observation, _, outcome = renamed.step(action)
                if outcome is not None:
                    break
            assert outcome is not Outcome.WON
    finally:
        game.close()
    assert unlisted


def test_made_up_words_begin_and_end_with_any_letter() -> None:
    """Things whose like was never made up are copied wrongly: so it was with "olive" and "onion"."""
    first = Observation("", "", "", ("clap hands",), 0.0)
    drawn = [word for seed in range(3000) for word in draw_words("simonsays", first, random.Random(seed)).values()]
    assert {word[0] for word in drawn} == set(ascii_lowercase)
    assert {word[-1] for word in drawn} >= set(ascii_lowercase) - set("jqvw")
    assert {1, 2, 3, 4} <= {len(re.findall("[aeiouy]+", word)) for word in drawn}


def _after_the_share(salt: str) -> random.Random:
    rng = random.Random(salt)
    rng.random()
    return rng


def test_a_demonstration_is_renamed_throughout_and_its_rules_are_not() -> None:
    game = TwxGame("sorting", {})
    try:
        (task,) = tasks("sorting", {}, "train", 15, 1)
        episode = play(game, task, teacher("gold", game))
    finally:
        game.close()
    episode = replace(episode, turns=tuple(replace(turn, advice=turn.action) for turn in episode.turns))
    old = set(things("sorting", episode.turns[0].observation.actions or ()))
    renamed = [renamed_episode(episode, random.Random(seed)) for seed in range(20)]
    assert len({turn.action for one in renamed for turn in one.turns}) > 20
    for one in renamed:
        assert [turn.reward for turn in one.turns] == [turn.reward for turn in episode.turns]
        gone = old - set(things("sorting", one.turns[0].observation.actions or ()))
        for turn, before in zip(one.turns, episode.turns, strict=True):
            assert turn.action in (turn.observation.actions or ())
            assert turn.advice == turn.action
            said = turn.observation.text + turn.action
            assert not gone & set(re.findall(r"[A-Za-z]+", said))
            # the box and everything around stand where they stood, and so do quantities of the same order
            was = before.observation.text + before.action
            assert _order(re.findall(r"\d+\w*", said)) == _order(re.findall(r"\d+\w*", was))
            assert said.count("box") == was.count("box")


UNITS = {"": 1, "mg": 1, "g": 1e3, "kg": 1e6, "ml": 1, "l": 1e3, "mm": 1, "cm": 10, "m": 1e3}


def _order(quantities: list[str]) -> list[int]:
    """The rank of each in the list."""
    sizes = [int(re.sub(r"\D", "", each)) * UNITS[re.sub(r"\d", "", each)] for each in quantities]
    return [sorted(set(sizes)).index(size) for size in sizes]


def test_quantities_are_drawn_anew_and_still_compare_as_before() -> None:
    drawn = set()
    for seed in range(300):
        first = Observation("", "", "", ("inventory", "take 9cm of oak", "take 80mm of oak", "take 1m of brick"), 0.0)
        names = draw_words("sorting", first, random.Random(seed))
        new = [names[old] for old in ("80mm", "9cm", "1m")]
        assert _order(new) == [0, 1, 2]
        assert all(re.fullmatch(r"([1-9]|[1-4][0-9]|50)(mm|cm|m)", each) for each in new)
        assert reword("take 9cm of 19cm", {"9cm": "1m"}) == "take 1m of 19cm"
        drawn |= set(new)
    assert len(drawn) > 100
    mixed = Observation("", "", "", ("take 9cm of oak", "take 3kg of brick"), 0.0)
    assert not any(re.search(r"\d", old) for old in draw_words("sorting", mixed, random.Random(0)))
    assert not any(re.search(r"\d", old) for old in draw_words("twc", first, random.Random(0)))


def test_what_is_renamed() -> None:
    assert things("sorting", ("inventory", "take 25g of oak", "put 3kg of red clay in box")) == ["oak"]
    assert things("simonsays", ("clap your hands", "eat mango")) == ["clap", "eat", "hands", "mango", "your"]
    first = Observation("There is 25g of oak.", "", "", ("take 25g of oak", "take 3kg of wood-chips"), 0.0)
    drawn = [draw_words("sorting", first, random.Random(seed)) for seed in range(50)]
    assert {frozenset(names) & {"oak", "wood-chips"} for names in drawn} >= {
        frozenset({"oak", "wood-chips"}),
        frozenset({"oak"}),
    }
    assert reword("soak the oak, oaken 5oak", {"oak": "x"}) == "soak the x, oaken 5oak"
