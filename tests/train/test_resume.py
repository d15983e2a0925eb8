"""Exact resume: a run that was killed again and again ends with the weights of one that was not, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from children import End, start_command, wait, work

import tiny
from grue.config import Config, load_config
from grue.storage import checkpoint
from grue.storage.contents import read_metrics, read_stages
from grue.storage.jsonl import read

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")

KILLED = -signal.SIGKILL
# what may differ between two commands that do the same: the time they take, and what follows from it
TIMES = {"time_s", "seconds", "rollout_s", "update_s", "env_steps_per_s", "turns_per_s"}


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in TIMES}


def assert_equal_runs(one: Path, other: Path) -> None:
    """Weights, moments and counters of every checkpoint that is left, and every row of the metrics."""
    for stage in ("sft", "dagger", "ppo"):
        for newest in (checkpoint.latest_valid, checkpoint.best_valid):
            found = [newest(out / "checkpoints" / stage) for out in (one, other)]
            assert (found[0] is None) == (found[1] is None)
            if found[0] is None or found[1] is None:
                continue
            a, b = checkpoint.load(found[0]), checkpoint.load(found[1])
            assert a.step == b.step
            for state in (a.state, b.state):
                state.get("progress", {}).pop("play_s", None)  # the seconds that a round of DAgger was played
            assert a.state == b.state
            assert {group: set(named) for group, named in a.tensors.items()} == {
                group: set(named) for group, named in b.tensors.items()
            }
            for group, named in a.tensors.items():
                for name, tensor in named.items():
                    assert torch.equal(tensor, b.tensors[group][name]), (stage, group, name)
    metrics = [[without_times(row) for row in read_metrics(out)] for out in (one, other)]
    assert metrics[0] == metrics[1]
    shown = [[without_times(row) for _, row in read(out / "episodes" / "shown.jsonl")] for out in (one, other)]
    assert shown[0] == shown[1]


def learned(out: Path, iterations: int = 4) -> None:
    """The run did something: weights differ between stages, and PPO's loss was more than the critic's."""
    sft, ppo = (checkpoint.latest_valid(out / "checkpoints" / stage) for stage in ("sft", "ppo"))
    assert sft is not None
    assert ppo is not None
    before, after = (checkpoint.load(path).tensors["model"] for path in (sft, ppo))
    moved = [name for name in before if name.startswith("lm.") and not torch.equal(before[name], after[name])]
    assert len(moved) > len(before) / 2
    rows = read_metrics(out, "ppo")
    assert [row["step"] for row in rows] == list(range(1, iterations + 1))
    assert all(row["engine_gap"] < 1e-5 for row in rows)  # also where fine-tuning had dropout


def often(config: Config) -> Config:
    """The same run, saved after every step. How often a run is saved is no part of what it computes."""
    from grue.config import override

    return override(config, ["sft.save_every_s=0", "dagger.save_every_s=0", "ppo.save_every_s=0"], None)


PLAIN = ("ppo.entropy_target=1", "ppo.normalise_rewards=true", "ppo.warmup_iterations=1")
LORA = ("model.adapter=lora", "model.lora_rank=4", "model.lora_dropout=0.3", "ppo.value_passes=0", "ppo.dev_every=0")


@pytest.mark.parametrize(
    "changes",
    [pytest.param(PLAIN, id="all weights"), pytest.param(LORA, id="adapter with dropout", marks=pytest.mark.slow)],
)
def test_a_run_killed_again_and_again_equals_an_unbroken_one(
    changes: tuple[str, ...], tiny_folder: Path, tmp_path: Path
) -> None:
    config = tiny.config(tiny_folder, *changes)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert work(config, whole, "ppo") == 0
    learned(whole)

    # six steps of SFT in two passes: killed before there is any checkpoint, after one, and politely
    assert work(config, broken, "ppo", End("SFT", 2, signal.SIGKILL)) == KILLED
    assert checkpoint.latest_valid(broken / "checkpoints" / "sft") is None
    assert len(read_metrics(broken, "sft")) == 2
    assert work(often(config), broken, "ppo", End("SFT", 4, signal.SIGKILL)) == KILLED
    assert _newest(broken, "sft") == 3
    assert work(config, broken, "ppo", End("SFT", 5, signal.SIGTERM)) == 143
    assert _newest(broken, "sft") == 5
    # four iterations of PPO, likewise; at the first kill a best checkpoint may stand without one to resume from
    assert work(config, broken, "ppo", End("PPO", 2, signal.SIGKILL)) == KILLED
    assert read_stages(broken)["sft"]["state"] == "done"
    assert _newest(broken, "ppo") is None
    assert work(often(config), broken, "ppo", End("PPO", 3, signal.SIGKILL)) == KILLED
    assert _newest(broken, "ppo") == 2
    assert work(config, broken, "ppo", End("PPO", 3, signal.SIGINT)) == 130
    assert _newest(broken, "ppo") == 3
    assert work(config, broken, "ppo") == 0
    assert_equal_runs(whole, broken)


@pytest.mark.slow
def test_a_corrected_imitation_killed_again_and_again_equals_an_unbroken_one(tiny_folder: Path, tmp_path: Path) -> None:
    changes = ("dagger.rounds=2", "dagger.games_per_round=6", "dagger.slots=6", "dagger.steps=3", "dagger.dev_games=4")
    config = tiny.config(tiny_folder, *changes)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert work(config, whole, "dagger") == 0
    assert [row["step"] for row in read_metrics(whole, "dagger")] == [1, 2]

    # at the notes of the bar: when a round has been played, and when it is over
    assert work(config, broken, "dagger", End("DAgger", 0, signal.SIGKILL)) == KILLED
    assert _newest(broken, "dagger") is None
    assert work(often(config), broken, "dagger", End("DAgger", 1, signal.SIGKILL)) == KILLED
    assert _newest(broken, "dagger") == 2  # in the middle of the first round
    assert work(config, broken, "dagger", End("DAgger", 1, signal.SIGTERM)) == 143
    assert _newest(broken, "dagger") == 3
    assert work(config, broken, "dagger") == 0
    assert_equal_runs(whole, broken)
    files = [out / "episodes" / "dagger.jsonl" for out in (whole, broken)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_names_drawn_for_an_epoch_are_the_same_after_a_kill(tmp_path: Path) -> None:
    changes = ["threads=1", "model.dtype=float32", "demos.games=6", "sft.epochs=3", "sft.episodes_per_batch=3"]
    config = load_config("sorting", changes, None, 0)
    assert config.sft.rename
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert work(config, whole, "sft") == 0
    assert len(read_metrics(whole, "sft")) == 6
    # killed in the second epoch
    assert work(often(config), broken, "sft", End("SFT", 4, signal.SIGKILL)) == KILLED
    assert _newest(broken, "sft") == 3
    assert work(config, broken, "sft") == 0
    assert_equal_runs(whole, broken)


# the main preset with all its switches, in one room: 3 iterations of 12 games with the embedded base
COOKING = (
    "threads=1",
    "model.dtype=float32",
    "game.params=numLocations=1,includeDoors=0,numDistractorItems=0,numIngredients=1",
    "game.limit=10",
    "demos.games=4",
    "ppo.iterations=3",
    "ppo.episodes_per_iteration=12",
    "ppo.slots=12",
    "ppo.minibatches=2",
    "ppo.warmup_iterations=1",
    "ppo.dev_every=2",
    "ppo.dev_games=4",
)


@pytest.mark.slow
def test_the_main_preset_killed_in_ppo_equals_an_unbroken_one(tmp_path: Path) -> None:
    """What a baseline remembers of each game, and knows of the steps to a win, is the same after a kill."""
    config = load_config("cooking16", list(COOKING), None, 0)
    assert config.policy.kind == "aligned"
    assert config.ppo.game_baseline
    assert config.ppo.hidden_state
    assert config.ppo.rename
    assert config.ppo.win_bonus
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert work(config, whole, "sft") == 0
    shutil.copytree(whole, broken, ignore=shutil.ignore_patterns(".lock"))
    assert work(config, whole, "ppo") == 0
    learned(whole, config.ppo.iterations)

    assert work(often(config), broken, "ppo", End("PPO", 2, signal.SIGKILL)) == KILLED
    assert _newest(broken, "ppo") == 1
    assert len(read_metrics(broken, "ppo")) == 2  # the second is played again
    assert work(config, broken, "ppo") == 0
    assert_equal_runs(whole, broken)
    newest = checkpoint.latest_valid(broken / "checkpoints" / "ppo")
    assert newest is not None
    plays = checkpoint.load(newest).state["baseline"]["plays"]
    assert max(count for count, _ in plays.values()) > 1, "no game came back: nothing that was remembered was used"


def _newest(out: Path, stage: str) -> int | None:
    path = checkpoint.latest_valid(out / "checkpoints" / stage)
    return None if path is None else checkpoint.load(path).step


@pytest.mark.parametrize(
    "share",
    [pytest.param(1.0, id="better than all to come"), pytest.param(0.0, id="worse", marks=pytest.mark.slow)],
)
def test_the_best_weights_are_those_that_the_counters_name(share: float, tiny_folder: Path, tmp_path: Path) -> None:
    """A best checkpoint of an iteration that, with another number of threads, does not come out the same again."""
    config = tiny.config(tiny_folder, "sft.epochs=1", "ppo.dev_every=1", "ppo.warmup_iterations=0")
    folder = tmp_path / "run" / "checkpoints" / "ppo"
    assert work(often(config), tmp_path / "run", "ppo", End("PPO", 3, signal.SIGKILL)) == KILLED
    newest = checkpoint.latest_valid(folder)
    assert newest is not None
    stored = checkpoint.load(newest)
    assert stored.step == 2
    row = {"success_greedy": share, "score_greedy": share, "games": 4, "failed": 0}
    weights = {name: tensor + 1 for name, tensor in stored.tensors["model"].items()}
    checkpoint.save(folder, 3, {"model": weights}, row, best=True, prompt=stored.prompt)

    assert work(config, tmp_path / "run", "ppo") == 0
    best, last = checkpoint.best_valid(folder), checkpoint.latest_valid(folder)
    assert best is not None
    assert last is not None
    found, progress = checkpoint.load(best), checkpoint.load(last).state["progress"]
    kept = all(torch.equal(tensor, weights[name]) for name, tensor in found.tensors["model"].items())
    assert kept == (share == 1)
    assert progress["best_iteration"] == found.step
    assert progress["best_merit"] == found.state["success_greedy"] + 1e-7 * found.state["score_greedy"]


FAST = ("ppo.warmup_iterations=0", "demos.replays=2", "demos.omission=0.3")


def test_demonstrations_and_evaluation_go_on_where_they_stopped(tiny_folder: Path, tmp_path: Path) -> None:
    """Killed while the teacher plays, and between two rows of the table."""
    config = tiny.config(tiny_folder, "sft.epochs=1", "ppo.iterations=1", "ppo.dev_every=0", *FAST)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert work(config, whole, "eval") == 0
    assert work(config, broken, "eval", End("demos", 5, signal.SIGKILL)) == KILLED
    assert work(config, broken, "eval", End("demos", 7, signal.SIGTERM)) == 143
    # rows of 6 games: random, gold, base greedy, ...; the fourth game of the third row is its last
    assert work(config, broken, "eval", End("evaluation", 16, signal.SIGKILL)) == KILLED
    rows = [row["row"] for _, row in read(broken / "evaluation.jsonl")]
    assert rows == ["eval-random-test-scripted", "eval-gold-test-scripted"]
    assert work(config, broken, "eval", End("evaluation", 8, signal.SIGINT)) == 130
    assert len(list(read(broken / "evaluation.jsonl"))) == 4  # the row it was in is finished first
    assert work(config, broken, "eval") == 0
    for name in (
        "evaluation.jsonl",
        "episodes/demos.jsonl",
        "episodes/replays.jsonl",
        "episodes/eval-ppo-test-sampled.jsonl",
    ):
        assert [row for _, row in read(whole / name)] == [row for _, row in read(broken / name)], name
    assert_equal_runs(whole, broken)


def test_the_command_saves_when_it_is_interrupted_and_says_so_by_its_exit_code(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Ctrl-C in the middle of a PPO that would go on for hours."""
    config = tiny.config(tiny_folder, "ppo.iterations=100000", "ppo.dev_every=0", "demos.games=4", "sft.epochs=1")
    out = tmp_path / "run"
    file = tmp_path / "settings.yaml"
    from grue.config import dump_config

    file.write_text(dump_config(config), encoding="utf-8")
    process = start_command("run", "--config", str(file), "--out", str(out), "--quiet")
    until = time.monotonic() + 200
    while not (out.is_dir() and (out / "metrics.jsonl").exists() and len(read_metrics(out, "ppo")) > 2):
        assert process.is_alive(), process.exitcode
        assert time.monotonic() < until
        time.sleep(0.2)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert wait(process) == 130
    path = checkpoint.latest_valid(out / "checkpoints" / "ppo")
    assert path is not None
    stored = checkpoint.load(path)
    assert [row["step"] for row in read_metrics(out, "ppo")] == list(range(1, stored.step + 1))
    assert stored.state["progress"]["iteration"] == stored.step
    assert not (out / "results.json").exists()


@pytest.mark.slow
def test_a_run_in_bfloat16_plays_with_a_copy_that_follows_the_trained_weights(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Training in autocast, playing in bfloat16: they differ by rounding, also when the weights have moved."""
    changes = ("model.dtype=bfloat16", "ppo.learning_rate=0.01", "ppo.minibatches=1", "ppo.epochs=4", "ppo.target_kl=0")
    config = tiny.config(tiny_folder, *changes, "sft.epochs=1", "ppo.warmup_iterations=0", "ppo.kl_coef=0.1")
    assert work(config, tmp_path / "run", "all") == 0
    rows = read_metrics(tmp_path / "run", "ppo")
    # each iteration moves the policy far further than rounding does, so an actor left behind would show
    assert all(row["kl_old"] > 0.02 for row in rows)
    assert all(row["engine_gap"] < 0.1 for row in rows)
