"""The metric of TALES, worked by hand, and its presets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from grue.config import PRESETS
from grue.config.families import TALES
from grue.evaluate.summary import best_score
from grue.evaluate.tales import TalesScore, mean_score, tales_scores
from grue.games import canonical_params, make, tasks
from grue.games.play import play
from grue.games.teachers import teacher
from grue.types import Episode, Observation, Outcome, Task, Turn

TASK = Task("toy", "", "test", 20_000, 100)


def episode(scores: Sequence[float], outcome: Outcome) -> Episode:
    """An episode whose score after each step is given; it is 0 before the first."""
    seen = [Observation("", "", "", None, score) for score in (0.0, *scores)]
    turns = [Turn(before, "x", after.score - before.score) for before, after in pairwise(seen)]
    return Episode(TASK, "x", tuple(turns), outcome, seen[-1])


def score(attempts: list[Episode], budget: int) -> TalesScore:
    (found,) = tales_scores(lambda _, attempt: [attempts[attempt]], [TASK], budget)
    return found


def test_the_best_score_counts_whatever_the_end() -> None:
    # 3 + 4 steps; a loss takes the score to -1, but 0.4 has been there
    lost, limit = episode([0.2, 0.4, -1.0], Outcome.LOST), episode([0.0, 0.1, 0.1, 0.1], Outcome.LIMIT)
    assert score([lost, limit], 7) == TalesScore(score=0.4, steps=7, attempts=2)


def test_only_steps_within_the_budget_count() -> None:
    # the second attempt has 2 steps left, so its 0.9 at step 3 comes too late
    first, second = episode([0.3, -1.0], Outcome.LOST), episode([0.1, 0.5, 0.9], Outcome.LIMIT)
    assert score([first, second], 4) == TalesScore(score=0.5, steps=4, attempts=2)


def test_a_win_ends_it_and_losses_never_go_below_zero() -> None:
    lost, won = episode([-1.0], Outcome.LOST), episode([0.5, 1.0], Outcome.WON)
    assert score([lost, won], 100) == TalesScore(score=1.0, steps=3, attempts=2)
    assert score([lost] * 5, 5) == TalesScore(score=0.0, steps=5, attempts=5)


def test_scores_are_whole_per_cent() -> None:
    assert score([episode([2 / 3, -1.0], Outcome.LOST)], 2).score == 0.66
    for points in range(101):  # of ScienceWorld; 100 * 0.29 is a little less than 29
        assert score([episode([points / 100, -1.0], Outcome.LOST)], 2).score == points / 100


def test_a_crash_ends_the_game_and_is_marked() -> None:
    crashed = episode([0.25], Outcome.FAILED)
    assert score([crashed], 100) == TalesScore(score=0.25, steps=1, attempts=1, failed=True)
    assert score([Episode(TASK, "x", (), Outcome.FAILED, None)], 100).failed


def test_games_that_fail_at_once_are_in_no_mean() -> None:
    won, crashed = TalesScore(1.0, 3, 1), TalesScore(0.0, 0, 1, failed=True)
    later = TalesScore(0.5, 7, 2, failed=True)  # what its first attempt has reached stands
    assert mean_score([won, crashed]) == 1.0
    assert mean_score([won, later]) == 0.75
    assert mean_score([crashed]) is None


def test_best_score_of_one_attempt() -> None:
    assert best_score(episode([0.2, 0.6, -1.0], Outcome.LOST)) == 0.6
    assert best_score(episode([-1.0], Outcome.LOST)) == 0.0


def test_random_gets_better_with_attempts_on_a_game_that_can_be_lost() -> None:
    game = make("toy")
    chosen = tasks("toy", "", "dev", 100, count=60)

    def attempt(some: Sequence[Task], number: int) -> list[Episode]:
        player = teacher("random", game, seed=number)
        return [play(game, task, player) for task in some]

    found = tales_scores(attempt, chosen)
    once = [best_score(each) for each in attempt(chosen, 0)]
    assert sum(each.score for each in found) > sum(once) + 5
    assert all(each.score == 1.0 or each.steps == 100 for each in found)
    assert max(each.attempts for each in found) > 3


def test_every_task_of_tales_is_a_preset_that_trains_nothing() -> None:
    assert len(TALES) == 16
    for name, (game, params) in TALES.items():
        config = PRESETS[f"tales-{name}"]()
        assert (config.game.name, config.game.limit, config.eval.fold) == (game, 100, "test")
        assert canonical_params(game, config.game.params) == canonical_params(game, params)
        assert (config.sft.epochs, config.ppo.iterations) == (0, 0)
