"""Result rows from hand-made episodes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from grue.errors import DataError
from grue.evaluate.stats import wilson
from grue.evaluate.summary import compare, summarise
from grue.stages.final import _outline
from grue.storage import episodes
from grue.types import Episode, Observation, Outcome, Task, Turn


def observation(score: float) -> Observation:
    return Observation(text="You are here.", goal="win", inventory="", actions=("wait",), score=score)


def episode(
    seed: int,
    outcome: Outcome = Outcome.WON,
    *,
    score: float = 1.0,
    actions: tuple[str, ...] = ("take apple", "eat apple"),
    player: str = "choose",
    fold: str = "test",
    invalid: int = 0,
    limit: int = 16,
) -> Episode:
    turns = tuple(
        Turn(observation(0.0), action, reward=score / len(actions), valid=number >= invalid)
        for number, action in enumerate(actions)
    )
    final = None if outcome is Outcome.FAILED else observation(score)
    return Episode(Task("toy", "", fold, seed, limit), player, turns, outcome, final)


FOUR = [
    episode(20000),
    episode(20001, Outcome.LOST, score=0.25, actions=("look around",) * 4, invalid=1),
    episode(20002, Outcome.LIMIT, score=0.5, actions=("look around",) * 6),
    episode(20009, Outcome.FAILED, actions=("take apple",)),
]


def test_a_row_by_hand() -> None:
    row = summarise(FOUR, fold="test")
    assert row == summarise(iter(FOUR), fold="test")
    assert row["games"] == 3
    assert row["failed"] == 1
    assert row["success"] == pytest.approx(1 / 3, abs=1e-6)
    assert row["success_ci95"] == pytest.approx(list(wilson(1, 3)), abs=1e-6)
    assert row["success_failed_as_loss"] == 0.25
    assert row["score"] == pytest.approx((1 + 0.25 + 0.5) / 3, abs=1e-6)
    assert row["return_mean"] == pytest.approx((1 + 0.25 + 0.5) / 3, abs=1e-6)
    assert row["steps_mean"] == pytest.approx((2 + 4 + 6) / 3)
    assert row["lost"] == row["limit"] == pytest.approx(1 / 3, abs=1e-6)
    assert row["invalid"] == pytest.approx(1 / 12, abs=1e-6)  # one of 2 + 4 + 6 turns
    assert row["outcomes"] == {"won": 1, "lost": 1, "limit": 1, "failed": 1}
    assert row["seeds"] == [20000, 20009]
    assert row["step_limit"] == 16
    assert list(row["verbs"].items()) == [("look", 10), ("eat", 1), ("take", 1)]


def test_saying_nothing_is_counted_as_a_verb() -> None:
    row = summarise([episode(20000, Outcome.LIMIT, actions=("", "look", ""))], fold="test")
    assert row["verbs"] == {"(nothing)": 2, "look": 1}


def test_a_row_holds_what_the_results_file_promises_and_is_json() -> None:
    row = summarise(FOUR, fold="test")
    promised = "fold games success success_ci95 score score_ci95 steps_mean limit lost failed invalid"
    assert set(promised.split()) <= set(row)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_equal_episodes_give_an_equal_row() -> None:
    assert summarise(FOUR, fold="test") == summarise(FOUR, fold="test")


def test_failed_games_change_no_mean() -> None:
    without = summarise(FOUR[:3], fold="test")
    with_failed = summarise(FOUR, fold="test")
    for key in ("success", "success_ci95", "score", "score_ci95", "steps_mean", "limit", "lost", "invalid"):
        assert dict(with_failed)[key] == dict(without)[key]


def test_only_failed_games_leave_nothing_to_say() -> None:
    row = summarise([FOUR[3]], fold="test")
    assert (row["games"], row["failed"], row["success"], row["score_ci95"]) == (0, 1, None, None)


def test_different_step_limits_are_not_hidden() -> None:
    assert summarise([episode(1), episode(2, limit=30)], fold="test")["step_limit"] is None


def test_repeated_games_widen_the_interval() -> None:
    once = [episode(seed, Outcome.WON if seed % 2 else Outcome.LOST, score=float(seed % 2)) for seed in range(60)]
    four_times = [played for played in once for _ in range(4)]
    single, repeated = summarise(once, fold="test"), summarise(four_times, fold="test")
    assert single["success"] == repeated["success"] == 0.5
    for before, after in (
        (single["success_ci95"], repeated["success_ci95"]),
        (single["score_ci95"], repeated["score_ci95"]),
    ):
        assert before is not None
        assert after is not None
        # 240 plays of 60 games are worth 60 games
        assert after[1] - after[0] == pytest.approx(before[1] - before[0], rel=0.15)


def _sorting(problems: int, times: int) -> list[Episode]:
    """Each problem in several rooms; every third is not solved."""
    return [
        replace(played, task=replace(played.task, game="sorting"))
        for number in range(problems)
        for room in range(times)
        for played in [episode(20_000 + number + 100 * room, Outcome.LOST if number % 3 == 0 else Outcome.WON, score=1)]
    ]


def test_games_that_pose_the_same_problem_count_as_one() -> None:
    """200 games of 20 problems are worth 20; before they were taken for 200."""
    row = summarise(_sorting(20, 10), fold="test")
    assert (row["games"], row["problems"]) == (200, 20)
    assert "problems" not in summarise(_sorting(20, 1), fold="test")  # all differ
    assert row["success_ci95"] is not None
    low, high = row["success_ci95"]
    by_problem = wilson(13, 20)
    assert high - low == pytest.approx(by_problem.high - by_problem.low, rel=0.15)
    assert (low, high) == pytest.approx(by_problem, abs=0.03)
    lost = [replace(e, outcome=Outcome.LOST) for e in _sorting(20, 10)]
    paired = compare(_sorting(20, 10), lost)
    assert paired["games"] == 200
    assert paired["ci95"][1] - paired["ci95"][0] == pytest.approx(high - low, rel=0.15)


def test_games_that_are_all_won_are_no_proof_of_certainty() -> None:
    row = summarise([replace(e, outcome=Outcome.WON) for e in _sorting(20, 10)], fold="test")
    assert row["success_ci95"] == pytest.approx(list(wilson(20, 20)), abs=1e-6)


def test_games_that_two_policies_end_alike_are_no_proof_of_certainty() -> None:
    played = [episode(seed, Outcome.WON if seed % 2 else Outcome.LOST) for seed in range(5)]
    found = compare(played, played)
    bound = wilson(0, 5).high
    assert found["difference"] == 0
    assert found["ci95"] == pytest.approx([-bound, bound], abs=1e-6)
    assert found["score_ci95"] == [0, 0]  # how far scores of other games lie apart is unknown
    same_problems = compare(_sorting(20, 10), _sorting(20, 10))
    bound = wilson(0, 20).high
    assert same_problems["ci95"] == pytest.approx([-bound, bound], abs=1e-6)


def test_another_fold_is_refused() -> None:
    with pytest.raises(DataError, match="train"):
        summarise([episode(1), episode(2, fold="train")], fold="test")


def test_no_episodes_are_refused() -> None:
    with pytest.raises(DataError):
        summarise([], fold="test")


# compare


def test_compare_by_hand() -> None:
    a = [episode(1), episode(2), episode(3, Outcome.LOST, score=0.5), episode(4)]
    b = [episode(1), episode(2, Outcome.LOST, score=0.0), episode(3), episode(4, Outcome.FAILED), episode(5)]
    found = compare(a, b)
    assert found["games"] == 3  # 1, 2, 3: b crashed in 4, a never played 5
    assert found["unpaired"] == 2
    assert found["difference"] == 0.0  # +1 on game 2, -1 on game 3
    assert (found["only_a_won"], found["only_b_won"]) == (1.0, 1.0)
    assert found["score_difference"] == pytest.approx((0 + 1.0 - 0.5) / 3, abs=1e-6)
    assert found["ci95"][0] < 0 < found["ci95"][1]


def test_order_does_not_matter_and_sides_mirror() -> None:
    a = [episode(seed, Outcome.WON if seed % 3 else Outcome.LOST, score=float(seed % 3 > 0)) for seed in range(30)]
    b = [episode(seed, Outcome.LOST, score=0.0) for seed in range(30)]
    forth, back = compare(a, b), compare(list(reversed(b)), a)
    assert forth["difference"] == -back["difference"] == pytest.approx(2 / 3, abs=1e-6)
    assert forth["only_a_won"] == back["only_b_won"] == 20


def test_no_difference_of_scores_is_beyond_the_range() -> None:
    won, lost = (
        [episode(seed, score=score) for seed, score in enumerate(scores)] for scores in ([1, 1, 1], [0, 0, 0.9])
    )
    assert compare(won, lost)["score_ci95"][1] == 1
    assert compare(lost, won)["score_ci95"][0] == -1
    punished = [episode(seed, score=score) for seed, score in enumerate([-1, -1, 0.9])]
    assert compare(won, punished)["score_ci95"][1] == 2


def test_a_game_with_another_limit_is_another_game() -> None:
    with pytest.raises(DataError, match="no game was finished by both"):
        compare([episode(1, limit=16)], [episode(1, limit=30)])


def test_repeated_plays_are_averaged() -> None:
    a = [episode(1), episode(1, Outcome.LOST, score=0.0), episode(2)]
    b = [episode(1, Outcome.LOST, score=0.0), episode(2)]
    assert compare(a, b)["difference"] == 0.25


def test_what_is_kept_of_a_game_still_says_which_problem_it_posed() -> None:
    """Differences are measured on what is kept: games that begin alike have to be one game there too."""

    def began(seed: int, text: str) -> Episode:
        one = episode(seed)
        turns = (replace(one.turns[0], observation=replace(one.turns[0].observation, text=text)), *one.turns[1:])
        return replace(one, task=replace(one.task, game="twc"), turns=turns)

    played = [began(20_001, "a kitchen"), began(20_002, "a kitchen"), began(20_003, "a bedroom")]
    kept = [episodes.from_dict(episodes.to_dict(_outline(one))) for one in played]
    assert summarise(played, fold="test")["problems"] == summarise(kept, fold="test")["problems"] == 2
    assert compare(kept, [replace(one, outcome=Outcome.LOST) for one in kept])["games"] == 3
    older = [replace(one, final=Observation("", "", "", None, one.score)) for one in kept]  # kept no beginning
    assert "problems" not in summarise(older, fold="test")
    assert all(_outline(one).final == Observation("", "", "", None, one.score) for one in [episode(5)])
