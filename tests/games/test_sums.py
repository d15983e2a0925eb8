"""Other numbers in arithmetic: on real games and demonstrations."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from grue.games import tasks
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import RenamedTwx, renamed_episode
from grue.games.twx.sums import Problem, answer, draw_numbers, is_held_out, read_problem
from grue.types import Episode, Outcome


@pytest.fixture(scope="module")
def game() -> Iterator[TwxGame]:
    twx = TwxGame("arithmetic")
    yield twx
    twx.close()


def asked(game: TwxGame, fold: str, count: int) -> set[Problem]:
    found = {game.problem(task) for task in tasks("arithmetic", {}, fold, 8, count)}
    assert None not in found
    return {problem for problem in found if problem is not None}


def quantities(episode: Episode) -> list[str]:
    return re.findall(r"take (\d+) ", "\n".join(episode.turns[0].observation.actions or ()))


def test_what_dev_and_test_ask_is_held_out_and_nothing_else(game: TwxGame) -> None:
    for fold in ("dev", "test"):
        held_out = asked(game, fold, 300)
        assert len(held_out) > 80
        assert all(is_held_out(problem) for problem in held_out)
    assert not any(is_held_out(problem) for problem in asked(game, "train", 300))


def test_a_sum_is_held_out_either_way_round_and_a_difference_is_not() -> None:
    assert is_held_out(("add", 1, 21)) and is_held_out(("add", 21, 1))
    assert is_held_out(("divide", 12, 4)) and not is_held_out(("divide", 12, 3))


def test_a_demonstration_with_other_numbers_solves_another_problem(game: TwxGame) -> None:
    problems = set()
    for task in tasks("arithmetic", {}, "train", 8, 40):
        episode = play(game, task, teacher("gold", game))
        for seed in range(5):
            renamed = renamed_episode(episode, random.Random(f"{task.seed}/{seed}"))
            problem = next(p for turn in renamed.turns if (p := read_problem(turn.observation.text)))
            assert not is_held_out(problem)
            taken = next(turn.action for turn in renamed.turns if re.match(r"take \d", turn.action))
            assert taken.split()[1] == str(answer(problem)), (problem, taken)
            assert len(set(quantities(renamed))) == len(set(quantities(episode)))
            assert all(turn.action in (turn.observation.actions or ()) for turn in renamed.turns)
            problems.add(problem)
    assert len(problems) > 120  # of 200; the train fold has 100


def test_a_game_with_other_numbers_is_won_by_their_answer(game: TwxGame) -> None:
    for task in tasks("arithmetic", {}, "train", 8, 10):
        renamed = RenamedTwx(game, "salt", share=1.0)
        renamed.reset(task)
        renamed.step("take math problem")
        observation, _, _ = renamed.step("read math problem")
        problem = read_problem(observation.text)
        assert problem is not None and problem != game.problem(task)
        wanted = f"take {answer(problem)} "
        (take,) = [action for action in observation.actions or () if action.startswith(wanted)]
        renamed.step(take)
        _, _, outcome = renamed.step(take.replace("take", "put", 1) + " in box")
        assert outcome is Outcome.WON


def test_what_is_equal_stays_equal_and_one_of_a_thing_stays_one() -> None:
    # 11 is a number of the problem and a quantity; 1 is an apple, the others are several
    actions = ("inventory", "take 1 apple", "take 2 pears", "take 11 plums", "take 33 figs", "take 242 nuts")
    for seed in range(100):
        names = draw_numbers(actions, ("divide", 22, 11), random.Random(seed))
        assert set(names) == {"1", "2", "11", "22", "33", "242"}
        assert len(set(names.values())) == 6
        first, second = int(names["22"]), int(names["11"])
        assert names["1"] == "1" and int(names["2"]) == first // second > 1
        assert (int(names["33"]), int(names["242"])) == (first + second, first * second)
        assert second == first - second  # 11 is what subtracting leaves


def test_numbers_that_no_other_problem_has_stay() -> None:
    same = {"1": "1", "2": "2"}
    for seed in range(20):  # only 1 times 1 is 1
        assert draw_numbers(("take 1 pear", "take 2 plums"), ("multiply", 1, 1), random.Random(seed)) in ({}, same)
