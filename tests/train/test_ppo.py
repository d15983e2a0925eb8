"""Which games an iteration plays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tiny
from grue import games, stages
from grue.errors import CheckpointError, ConfigError, TrainingError
from grue.games.training import check_training, training_games
from grue.progress import Progress
from grue.stages.checks import check_games
from grue.storage.contents import UNMEASURED
from grue.storage.run import Run
from grue.train.learner import Learner
from grue.train.measures import merit_of
from grue.train.ppo import draw_tasks


def test_draws_are_different_games_decided_by_the_seed() -> None:
    tasks = tiny.tasks(50)
    drawn = draw_tasks(tasks, 20, 1, "0/ppo/3/tasks")
    assert len(set(drawn)) == 20
    assert drawn == draw_tasks(tasks, 20, 1, "0/ppo/3/tasks") != draw_tasks(tasks, 20, 1, "0/ppo/4/tasks")
    every = Counter(task for number in range(200) for task in draw_tasks(tasks, 20, 1, str(number)))
    # each game is in two draws of five: 80 times, give or take 4 standard deviations
    assert set(every) == set(tasks)
    assert all(80 - 28 < count < 80 + 28 for count in every.values())


def test_no_games_to_draw_from_are_an_error() -> None:
    with pytest.raises(TrainingError, match="no train games"):
        draw_tasks([], 4, 1, "x")


def test_plays_of_one_game_stand_together() -> None:
    drawn = draw_tasks(tiny.tasks(50), 24, 4, "x")
    assert len(drawn) == 24
    assert [drawn[i : i + 4] for i in range(0, 24, 4)] == [[drawn[i]] * 4 for i in range(0, 24, 4)]
    assert len(set(drawn)) == 6


def test_where_there_are_too_few_games_all_are_played_again() -> None:
    counts = Counter(draw_tasks(tiny.tasks(3), 8, 1, "x"))
    assert sorted(counts.values()) == [2, 3, 3]


def test_one_win_more_is_better_whatever_the_score() -> None:
    def merit(success: float, score: float, games: int = 200, failed: int = 0) -> float:
        return merit_of({"success_greedy": success, "score_greedy": score, "games": games, "failed": failed})

    assert merit(24 / 200, -0.76) > merit(23 / 200, 0.5)
    assert merit(0.0, 0.2) > merit(0.0, 0.1) > merit(0.0, -1.0) > UNMEASURED
    # how the row's share of 298, 297 or 299 games is rounded counts for less than the score
    equal = [merit(round(150 / (300 - failed), 6), -0.5, 300 - failed, failed) for failed in (1, 2, 3)]
    assert max(equal) < merit(0.5, 0.9, 300)
    # one game won and 99 that grew too long are no better than 60 of 100
    assert merit(1.0, 1.0, games=1, failed=99) < merit(0.6, 0.7, games=100)
    assert merit(0.0, -1.0, games=1, failed=99) <= merit(0.0, -1.0, games=100) < merit(0.0, -0.9, games=90, failed=10)


def test_only_games_that_can_are_renamed_or_tell_of_a_plan() -> None:
    seats = [games.make("toy")]
    assert training_games(seats, 0.0, "x") is seats
    with pytest.raises(ConfigError, match=r"ppo\.rename is for cookingworld, simonsays, .*coin with ten rooms or more"):
        training_games(seats, 0.5, "x")
    with pytest.raises(ConfigError, match=r"ppo\.hidden_state is for cookingworld"):
        training_games(seats, 0.0, "x", {})
    for name in ("simonsays", "twc"):  # whose things have other names
        check_training(name, "", 0.5)
        with pytest.raises(ConfigError, match=rf"ppo\.hidden_state is for cookingworld; this is {name}"):
            check_training(name, "", 0.5, hidden_state=True)


def test_what_the_game_cannot_do_is_said_before_anything_is_played(tmp_path: Path) -> None:
    config = tiny.config(tmp_path, "ppo.hidden_state=true", "ppo.game_baseline=true")
    with pytest.raises(ConfigError, match="this is toy"):
        stages.run_all(config, tmp_path / "run", say=Progress(quiet=True))
    assert not (tmp_path / "run").exists()


def test_a_training_by_another_program_is_not_gone_on_with(tmp_path: Path) -> None:
    """And nothing of it is lost."""
    config = tiny.config(tiny.save(tmp_path / "model"), "demos.games=0", "sft.epochs=0")
    run = Run(tmp_path / "own", config)
    run.begin("ppo")
    for step in range(3):
        run.log("ppo", step + 1, {"success": 0.0})
        run.log("dev", step, {"success": 0.0})
    run.save("ppo", 1, *Learner.of(tiny.policy_model(), config.model, config.ppo).state())
    rows = (run.out / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="was not saved by grue's own ppo"):
        stages.run_all(config, run.out, say=Progress(quiet=True))
    assert (run.out / "metrics.jsonl").read_bytes().startswith(rows)


def test_a_value_loss_without_weight_trains_no_critic(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave the critic untrained"):
        tiny.config(tmp_path, "ppo.value_passes=0", "ppo.value_coef=0")
    alone = ("ppo.group_weight=1", "ppo.plays_per_game=2")
    assert not tiny.config(tmp_path, "ppo.value_passes=0", "ppo.value_coef=0", *alone).ppo.asks_critic


def test_a_baseline_that_only_the_critic_learns_from_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """At the step limit the critic's value goes into the returns, and the baseline is what it learns from."""
    groups = ("ppo.game_baseline=true", "ppo.group_weight=1", "ppo.plays_per_game=2")
    for more, told in (((), True), (("ppo.bootstrap_at_limit=true",), False)):
        check_games("ppo", tiny.config(Path("none"), *groups, *more), Progress(quiet=True))
        assert ("fitted but not used" in "".join(capsys.readouterr())) == told
