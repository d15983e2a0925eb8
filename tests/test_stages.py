"""The stages of a run, from demonstrations to the report, on the toy game with a model of a few thousand weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import decoders
import tiny
from grue import errors, stages
from grue.config import Config, load_config, override, read_config
from grue.engine.tree import TokenTree
from grue.errors import CheckpointError, ConfigError, DataError, GameError, GrueError, ModelError, TrainingError
from grue.evaluate.runs import compare_runs, training_settings
from grue.games.configured import open_game
from grue.hardware import physical_cores
from grue.interrupt import Interrupt
from grue.models.load import load_model
from grue.parallel import ALONE, Processes
from grue.policy.weigh import CachedText
from grue.progress import Progress
from grue.rollout.pack import samples
from grue.stages.announce import hint_at_processes, plan
from grue.stages.export import export_run
from grue.stages.final import final_results, side_games
from grue.stages.session import open_session
from grue.stages.show import shown_episode
from grue.stages.trained import load_trained, read_probe
from grue.stages.watching import watch
from grue.storage import checkpoint, episodes, jsonl
from grue.storage.contents import read_metrics, read_run_config, read_stages
from grue.storage.run import Run
from grue.storage.settled import SettledError
from grue.train import selection
from grue.train.learner import Learner
from grue.train.sft import train_sft
from grue.types import Outcome

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> Config:
    return tiny.config(tiny_folder, "eval.side_games=4", "ppo.iterations=3", "ppo.warmup_iterations=1")


@pytest.fixture(scope="module")
def finished(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is done. Tests copy it before they change it."""
    out = tmp_path_factory.mktemp("runs") / "done"
    stages.run_all(config, out, say=QUIET)
    return out


def weights(out: Path, stage: str) -> dict[str, torch.Tensor]:
    path = checkpoint.latest_valid(out / "checkpoints" / stage)
    assert path is not None
    return checkpoint.load(path).tensors["model"]


def test_results_have_the_form_that_is_promised(finished: Path, config: Config) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert results["schema"] == 1
    assert results["preset"] == "toy"
    assert results["wall_s"] > 0
    assert {"hardware", "versions", "stages", "command", "seed", "paired"} <= set(results)
    assert {"torch", "transformers", "grue"} <= set(results["versions"])
    assert set(results["policies"]) == {"random", "gold", "base", "sft", "ppo"}
    for policy, entry in results["policies"].items():
        scripted = policy in ("random", "gold")
        assert set(entry["decoding"]) == ({"scripted"} if scripted else {"greedy", "sampled"})
        for row in entry["decoding"].values():
            assert (row["fold"], row["games"], row["failed"]) == ("test", 6, 0)
            assert 0 <= row["success_ci95"][0] <= row["success"] <= row["success_ci95"][1] <= 1
            assert row["score_ci95"][0] <= row["score"] <= row["score_ci95"][1]
            assert row["steps_mean"] <= tiny.LIMIT
            assert row["success"] + row["lost"] + row["limit"] == pytest.approx(1, abs=1e-5)
            assert row["invalid"] == 0
            assert (row["env_steps_trained"] > 0) == (policy == "ppo")
    assert results["policies"]["gold"]["decoding"]["scripted"]["success"] == 1
    assert set(results["train"]) == set(results["dev"]) == set(results["policies"])
    assert results["dev"]["sft"]["decoding"]["greedy"]["games"] == 4
    assert [(pair["a"], pair["b"]) for pair in results["paired"]] == [("ppo", "base"), ("ppo", "sft"), ("ppo", "gold")]


def test_a_run_leaves_what_a_run_directory_promises(finished: Path, config: Config) -> None:
    assert {"config.yaml", "metrics.jsonl", "episodes", "checkpoints", "report.html", "results.json"} <= {
        path.name for path in finished.iterdir()
    }
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "before training" in page
    assert "after PPO" in page
    played = list(episodes.read(finished / "episodes" / "demos.jsonl"))
    assert len(played) == config.demos.games
    assert all(episode.outcome is Outcome.WON and episode.player == "gold" for episode in played)
    assert all(stage["state"] == "done" for stage in read_stages(finished).values())
    assert [row["step"] for row in read_metrics(finished, "sft")] == list(range(1, 7))  # 12 games, 4 a batch, twice
    assert [row["step"] for row in read_metrics(finished, "ppo")] == [1, 2, 3]
    assert [row["step"] for row in read_metrics(finished, "dev")] == [0, 2, 3]  # every second, and the last


def test_what_is_measured_while_training_is_what_happened(finished: Path) -> None:
    rows = read_metrics(finished, "ppo")
    steps = 0
    for row in rows:
        assert row["engine_gap"] < 1e-5
        assert row["failed"] == 0
        assert row["episodes"] == 8
        steps += row["steps_mean"] * row["episodes"]
        assert row["env_steps_trained"] == pytest.approx(steps)
    assert rows[0]["kl_old"] == pytest.approx(0, abs=1e-6)  # warm-up: only the critic learned
    assert rows[0]["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert rows[2]["kl_ref"] > rows[1]["kl_ref"] > 1e-6
    losses = [row["nll"] for row in read_metrics(finished, "sft")]
    assert losses[-1] < losses[0]


def snapshot(out: Path) -> dict[str, tuple[int, bytes]]:
    """Time of change and content of every file but the report, which may always be rendered again."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in ("report.html", ".lock")]
    return {str(path.relative_to(out)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_the_same_command_again_does_nothing(finished: Path, config: Config) -> None:
    before = snapshot(finished)
    # config.yaml is written by every command, with the same content
    ignored = {"config.yaml"}
    results = stages.run_all(config, finished, say=QUIET)
    after = snapshot(finished)
    assert before["config.yaml"][1] == after["config.yaml"][1]
    assert {k: v for k, v in after.items() if k not in ignored} == {k: v for k, v in before.items() if k not in ignored}
    assert results == json.loads((finished / "results.json").read_text())
    assert stages.run_stage("sft", config, finished, say=QUIET)["optimiser_steps"] == 6
    assert snapshot(finished)["metrics.jsonl"] == before["metrics.jsonl"]


def test_a_stage_may_be_done_again(finished: Path, config: Config, tmp_path: Path) -> None:
    """PPO over again, from the same SFT, gives the same weights; the table that was made of the old ones is gone."""
    out = tmp_path / "again"
    shutil.copytree(finished, out)
    stages.run_stage("ppo", config, out, say=QUIET, again=True)
    assert not (out / "results.json").exists()
    assert set(read_stages(out)) == {"demos", "sft", "ppo"}
    ours, theirs = weights(out, "ppo"), weights(finished, "ppo")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_stages_out_of_order_say_what_comes_first(config: Config, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no demonstrations"):
        stages.run_stage("sft", config, tmp_path / "run", say=QUIET)
    with pytest.raises(DataError, match="SFT is not done") as caught:
        stages.run_stage("ppo", config, tmp_path / "run", say=QUIET)
    assert "grue sft" in caught.value.hint


def test_the_teacher_is_measured_beside_its_pupil(config: Config, tmp_path: Path) -> None:
    changes = ["demos.teacher=optimal", "sft.epochs=1", "ppo.iterations=0", "ppo.dev_every=0", "eval.side_games=0"]
    results = stages.run_all(override(config, changes, None), tmp_path / "run", say=QUIET)
    assert list(results["policies"]) == ["random", "gold", "optimal", "base", "sft"]
    assert results["policies"]["optimal"]["decoding"]["scripted"]["success"] == 1
    assert [(row["a"], row["b"]) for row in results["paired"]] == [("sft", "base"), ("sft", "gold"), ("sft", "optimal")]
    assert "optimal player" in (tmp_path / "run/report.html").read_text()


def test_training_can_be_skipped(finished: Path, config: Config, tmp_path: Path) -> None:
    """What no training has made is in no row. The game starts over, and the best score of all attempts counts."""
    changes = ["sft.epochs=0", "ppo.iterations=0", "ppo.dev_every=0", "eval.side_games=0", "eval.restarts=true"]
    results = stages.run_all(override(config, changes, None), tmp_path / "run", say=QUIET)
    assert set(results["policies"]) == {"random", "gold", "base"}
    assert results["paired"] == []
    random, gold, base = (results["policies"][name]["decoding"] for name in ("random", "gold", "base"))
    assert gold["scripted"]["tales"] == gold["scripted"]["best_score"] == 1.0
    assert random["scripted"]["tales"] >= random["scripted"]["best_score"]
    # greedy play is always the same, so its first attempt is its best one (scores are whole per cent)
    assert base["greedy"]["tales"] == pytest.approx(base["greedy"]["best_score"], abs=0.01)
    page = (tmp_path / "run/report.html").read_text()
    assert ">TALES</th>" in page
    assert "Without any training the model won" in page
    assert ">TALES</th>" not in (finished / "report.html").read_text()


def test_a_trained_policy_can_be_watched(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shown = stages.watch(out, policy=None, decoding="greedy", seed=10_005, delay_s=0, say=QUIET)
    assert shown["policy"] == "ppo"
    assert (shown["task"]["fold"], shown["task"]["seed"]) == ("dev", 10_005)
    for turn in shown["turns"]:
        actions = [action for action, _ in turn["considered"]]
        assert turn["action"] in actions
        assert sum(probability for _, probability in turn["considered"]) == pytest.approx(1, abs=1e-4)
    assert stages.watch(out, policy="base", decoding="sampled", seed=None, delay_s=0, say=QUIET)["policy"] == "base"


def test_with_an_adapter_only_the_adapter_learns(tiny_folder: Path, config: Config, tmp_path: Path) -> None:
    changes = ["model.adapter=lora", "model.lora_rank=4", "ppo.kl_coef=0.1", "eval.side_games=0"]
    lora = override(config, changes, None)
    assert "(LoRA of rank 4 learns)" in plan(lora, tmp_path) and "(all weights learn)" in plan(config, tmp_path)
    short = plan(override(config, ["sft.epochs=0", "ppo.iterations=1"]), tmp_path)
    assert "  sft    skipped\n" in short and "  ppo    1 iteration of 8 train games\n" in short
    results = stages.run_all(lora, tmp_path / "run", say=QUIET)
    assert set(results["policies"]) == {"random", "gold", "base", "sft", "ppo"}
    sft, ppo = weights(tmp_path / "run", "sft"), weights(tmp_path / "run", "ppo")
    assert all("lora_" in name or name.startswith("value_head.") for name in sft)
    assert any(not torch.equal(sft[name], ppo[name]) for name in sft if "lora_" in name)
    rows = read_metrics(tmp_path / "run", "ppo")
    assert all(row["engine_gap"] < 1e-5 for row in rows)  # the engine plays with the adapter on
    # the reference is the adapter as it was when PPO began: neither as it is, nor none at all
    assert rows[0]["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert rows[2]["kl_ref"] > rows[1]["kl_ref"] > 1e-6

    from grue.stages.session import open_session

    plain, _ = load_model(config.model)
    with open_session(Run(tmp_path / "run", lora), lora, QUIET) as session:
        base = {name: value.clone() for name, value in session.model.lm.get_base_model().state_dict().items()}
        session.load("ppo")
        for name, value in session.model.lm.get_base_model().state_dict().items():
            if "lora_" not in name:
                assert torch.equal(value, base[name]), name
        frozen = {name.replace(".base_layer", ""): value for name, value in base.items() if "lora_" not in name}
        assert all(torch.equal(value, frozen[name]) for name, value in plain.state_dict().items())


def test_a_policy_that_is_sure_of_every_action_can_be_compared_with_its_copies(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """It weighs one action at each turn, which would be right whatever the weights."""
    sure = ["model.adapter=lora", "policy.kind=aligned", "policy.min_p=0.99999", "ppo.iterations=1"]
    config = tiny.config(tiny_folder, *sure)
    for stage in ("demos", "sft", "ppo"):
        stages.run_stage(stage, config, tmp_path / "run", say=QUIET)  # type: ignore[arg-type]
    (probe,) = read_probe(tmp_path / "run", "ppo")
    assert all(turn.branches for turn in probe.turns)
    trained = load_trained(tmp_path / "run")
    gap = trained.check([probe], "it")
    assert gap.turns == probe.steps and gap.largest < 1e-3
    undecided = replace(probe, turns=tuple(replace(turn, branches=(), log_prob=0.0) for turn in probe.turns))
    assert trained.check([undecided], "it") == (0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("kind", ["aligned", "score"])
def test_attention_without_masks_is_refused_where_trees_are_learnt(kind: str, tmp_path: Path) -> None:
    """Of the embedded base too, which is not looked at before a run."""
    config = load_config("toy", ["model.attention=flash_attention_2", f"policy.kind={kind}"])
    with pytest.raises(ConfigError, match="trees") as caught:
        stages.run_all(config, tmp_path / "run", say=QUIET)
    assert caught.value.hint == "set model.attention=sdpa"
    for stage in ("sft", "ppo"):
        with pytest.raises(ConfigError, match="trees"):
            stages.run_stage(stage, config, tmp_path / "run", say=QUIET)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (["policy.kind=write", "policy.reply_tokens=600"], "need 6[0-9][0-9] tokens"),
        (["policy.kind=think", "policy.thought_tokens=1000"], "need 10[0-9][0-9] tokens"),
    ],
)
def test_a_policy_without_room_is_refused_before_the_first_demonstration(
    settings: list[str], needed: str, config: Config, tmp_path: Path
) -> None:
    """It was found by SFT, when all demonstrations had been recorded and the settings could no longer be changed."""
    out = tmp_path / "run"
    with pytest.raises(ModelError, match=needed):
        stages.run_all(override(config, settings), out, say=QUIET)
    assert read_stages(out) == {}
    stages.run_stage("demos", config, out, say=QUIET)  # with settings that fit the run goes on


@pytest.mark.parametrize("setting", ["model.optimizer=adamw-8bit", "model.quantize=nf4"])
def test_a_package_that_is_not_there_is_missed_before_the_first_demonstration(
    setting: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="bitsandbytes"):
        stages.run_all(override(config, [setting, "model.adapter=lora"]), tmp_path / "run", say=QUIET)
    assert not (tmp_path / "run").exists()


def test_settings_without_an_effect_are_said(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = override(config, ["policy.top_p=0.9", "ppo.value_clip=0.3"])
    stages.run_stage("demos", changed, tmp_path / "run", say=Progress())
    said = capsys.readouterr()
    assert "policy.top_p=0.9 has no effect with policy.kind=choose" in said.out + said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="float16 is for GPUs")
def test_float16_on_a_cpu_is_warned_of(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config(tiny_folder, "model.dtype=float16", "demos.games=2")
    stages.run_stage("demos", config, tmp_path / "run", say=Progress(quiet=True))
    assert "model.dtype=float16 is for GPUs" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_a_training_in_float16_that_skips_its_steps_says_so(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights so large that gradients overflow: a short training ends before the loss scale has come down."""
    folder = tmp_path / "steep"
    shutil.copytree(tiny_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= 1000
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = tiny.config(folder, "model.dtype=float16", "demos.games=2", "sft.epochs=2", "sft.episodes_per_batch=1")
    for stage in ("demos", "sft"):
        stages.run_stage(stage, config, tmp_path / "run", say=Progress(quiet=True))  # type: ignore[arg-type]
    assert re.search(r"[1-4] of 4 optimiser steps overflowed in float16", capsys.readouterr().out)


def test_demonstrations_recorded_at_once_are_those_recorded_one_by_one(
    finished: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def counted(settings: Any) -> Any:
        opened.append(open_game(settings))
        return opened[-1]

    monkeypatch.setattr("grue.stages.session.games_at_once", lambda name: 8)
    monkeypatch.setattr("grue.stages.session.open_game", counted)
    stages.run_stage("demos", override(config, ["eval.slots=3"]), tmp_path, say=QUIET)
    assert len(opened) == 3
    at_once, one_by_one = (out / "episodes" / "demos.jsonl" for out in (tmp_path, finished))
    assert at_once.read_bytes() == one_by_one.read_bytes()


@pytest.mark.parametrize("stage", ["sft", "dagger", "ppo"])
def test_things_that_have_no_other_names_cannot_be_renamed(stage: Any, config: Config, tmp_path: Path) -> None:
    wanted = override(config, [f"{stage}.rename=0.5", "dagger.rounds=1"])
    for start in (stages.run_all, partial(stages.run_stage, stage)):
        with pytest.raises(ConfigError, match=rf"{stage}\.rename is for cookingworld") as caught:
            start(wanted, tmp_path / "run", say=QUIET)
        assert caught.value.hint == f"set {stage}.rename=0"
        assert read_stages(tmp_path / "run") == {}


def test_what_was_trained_with_settings_that_are_refused_now_goes_on(finished: Path, tmp_path: Path) -> None:
    """As by an earlier version: its settings cannot be changed any more."""
    out = _unfinished(finished, tmp_path / "run", "ppo")
    file = out / "config.yaml"
    file.write_text(file.read_text().replace("  rename: 0.0", "  rename: 0.5", 1))  # the first one is that of SFT
    (out / "settings.json").unlink()
    config = read_run_config(out)
    assert (config.sft.rename, config.ppo.rename) == (0.5, 0)
    results = stages.run_all(config, out, say=QUIET)
    assert results["policies"]["ppo"]["decoding"]["greedy"]["games"] > 0


def test_a_baseline_that_is_not_used_is_said_to_be(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = ["ppo.plays_per_game=2", "ppo.group_weight=1", "ppo.game_baseline=true", "ppo.value_passes=1"]
    stages.run_all(override(config, groups), tmp_path / "run", say=Progress(stderr=True))
    assert "ppo.game_baseline is fitted but not used" in capsys.readouterr().err


@pytest.mark.parametrize(("later", "number"), [(0.4, 0), (0.5, 1), (0.6, 1)])
def test_ppo_says_which_weights_it_keeps(
    later: float,
    number: int,
    config: Config,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merits = iter([0.5, later, 0.5])  # of iterations 0 and 1, and of 0 when they are compared
    monkeypatch.setattr(selection, "merit_of", lambda row: next(merits))
    once = override(config, ["ppo.iterations=1", "ppo.dev_every=1"])
    for stage in ("demos", "sft", "ppo"):
        stages.run_stage(stage, once, tmp_path / "run", say=Progress(stderr=True))
    which = {0.4: "0, before the first update", 0.5: "1, no better than iteration 0", 0.6: "1"}[later]
    kept = f"best on dev games and kept: the weights of iteration {which}\n"
    assert kept in capsys.readouterr().err
    assert read_stages(tmp_path / "run")["ppo"]["best_iteration"] == number


def test_a_fold_with_fewer_games_than_asked_for_says_so(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = override(config, ["game.params.rooms=2", "demos.games=2000"])
    with open_session(Run(tmp_path / "run", small), small, Progress(stderr=True)) as session:
        found = [len(session.tasks("train", 2000)) for _ in range(2)]
    assert found == [760, 760]
    assert capsys.readouterr().err.count("toy has 760 train games here, fewer than 2000") == 1


def test_a_model_that_cannot_be_driven_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    model = tmp_path / "bert"
    decoders.bert().save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    out = tmp_path / "run"
    with pytest.raises(ModelError, match="bert is an encoder"):
        stages.run_all(load_config("toy", [f"model.name={model}", "model.context=256"]), out, say=Progress())
    assert not out.exists()


@pytest.mark.parametrize("adapter", ["lora", "none"])
def test_another_base_is_not_taken_for_the_one_that_played(
    tiny_folder: Path, config: Config, adapter: str, tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(tiny_folder, model)
    adapted = override(config, [f"model.name={model}", f"model.adapter={adapter}", "ppo.iterations=0"])
    stages.run_all(adapted, out, say=Progress())
    weights = load_file(model / "model.safetensors")
    changed = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in weights.items()}
    save_file(changed, model / "model.safetensors", metadata={"format": "pt"})
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ModelError, match=f"base in {out}, on {model}, does not say what the policy said"):
        stages.run_stage("eval", adapted, out, say=Progress(), again=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_policy_that_cannot_be_loaded_stops_the_evaluation_before_the_old_one_is_deleted(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    place = checkpoint.best_valid(run / "checkpoints" / "ppo")
    assert place is not None
    whole = checkpoint.load(place)
    name, *_ = whole.tensors["model"]
    halved = {**whole.tensors["model"], name: whole.tensors["model"][name][::2].clone()}
    checkpoint.save(place.parent, whole.step, {"model": halved}, whole.state, best=True, prompt=whole.prompt)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=f"the checkpoint is of another model: {name} has shape"):
        stages.run_stage("eval", config, run, say=QUIET, again=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_teacher_that_cannot_play_the_game_is_an_error_with_its_reason(tmp_path: Path) -> None:
    config = load_config("simonsays", ["demos.teacher=optimal", "demos.games=2"])
    with pytest.raises(GameError, match=r"teacher 'optimal' plays cookingworld, .*not simonsays"):
        stages.run_stage("demos", config, tmp_path / "run", say=QUIET)
    assert stages.run_stage("demos", override(config, ["demos.teacher=gold"]), tmp_path / "run", say=QUIET)


def test_an_evaluation_that_cannot_end_does_not_begin(finished: Path, config: Config, tmp_path: Path) -> None:
    """What was measured before stays where the weights are gone."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "checkpoints" / "ppo")
    before = (run / "results.json").read_bytes()
    with pytest.raises(CheckpointError, match="ppo holds no best weights"):
        stages.run_stage("eval", config, run, say=QUIET, again=True)
    assert (run / "results.json").read_bytes() == before


@pytest.mark.parametrize("stage", ["demos", "sft", "ppo", "eval"])
def test_nothing_is_deleted_for_a_model_that_cannot_be_loaded(
    stage: stages.StageName, finished: Path, config: Config, tmp_path: Path
) -> None:
    run, missing = tmp_path / "run", override(config, [f"model.name={tmp_path / 'gone'}"])
    shutil.copytree(finished, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(GrueError, match="gone"):
        stages.run_stage(stage, missing, run, say=QUIET, again=True)
    with pytest.raises(GrueError, match="gone"):
        stages.run_all(missing, run, say=QUIET, again=True)
    assert {path: path.read_bytes() for path in before} == before


def test_prompts_of_another_form_begin_anew_with_sft_and_with_nothing_later(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    kept = (run / "prompt.json").read_bytes()
    (run / "prompt.json").write_text('{"sha')
    with pytest.raises(DataError, match="not JSON") as damaged:
        Run(run, read_run_config(run)).keep_prompt("x")
    assert "delete it" in damaged.value.hint
    (run / "prompt.json").write_text('{"sha256": "of another template"}')
    with pytest.raises(ConfigError, match="prompt format is not the one"):
        stages.run_stage("eval", config, run, say=QUIET, again=True)
    assert (run / "results.json").exists() and weights(run, "ppo")
    stages.run_stage("sft", config, run, say=QUIET, again=True)
    assert (run / "prompt.json").read_bytes() == kept
    assert not (run / "checkpoints" / "ppo").exists()


def test_the_best_weights_are_not_silently_the_last(finished: Path, config: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (best,) = (run / "checkpoints" / "ppo").glob("best-*")
    shutil.rmtree(best)
    with pytest.raises(CheckpointError, match="no best weights") as caught:
        stages.run_stage("eval", config, run, say=QUIET, again=True)
    assert "--again" in caught.value.hint
    with pytest.raises(CheckpointError, match="no best weights"):
        load_trained(run)


def test_pairs_are_of_all_games_that_were_measured(finished: Path, config: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "results.json").unlink()
    jsonl.keep_first(run / "episodes" / "eval-ppo-test-greedy.jsonl", 4)
    with pytest.raises(DataError, match="4 of the 6 games that were measured"):
        stages.run_stage("eval", config, run, say=QUIET)
    with pytest.raises(DataError, match="4 of the 6 games that were measured"):
        compare_runs([run])


def test_what_the_baseline_knows_of_demonstrations_is_not_silently_less(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    run = _unfinished(finished, tmp_path / "run", "ppo")
    jsonl.keep_first(run / "episodes" / "demos.jsonl", 3)
    before = (run / "stages.json").read_bytes()
    with pytest.raises(DataError, match="holds 3 of the"):
        stages.run_stage("ppo", override(config, ["ppo.game_baseline=true"]), run, say=QUIET, again=True)
    assert (run / "stages.json").read_bytes() == before


@pytest.mark.parametrize("stage", ["sft", "ppo"])
def test_a_stage_that_cannot_begin_settles_nothing(stage: stages.StageName, config: Config, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        stages.run_stage(stage, config, tmp_path / "run", say=QUIET)
    fewer = override(config, ["demos.games=3"])
    assert stages.run_stage("demos", fewer, tmp_path / "run", say=QUIET)["episodes"] == 3


@pytest.mark.parametrize("command", ["eval", "run"])
def test_only_rows_that_were_lost_are_measured_again(
    finished: Path, config: Config, tmp_path: Path, command: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "results.json").unlink()
    table = (run / "evaluation.jsonl").read_text()
    (run / "evaluation.jsonl").write_text(table[: table.rstrip().rindex("\n") + 1])
    if command == "eval":
        again = stages.run_stage("eval", config, run, say=QUIET)
    else:
        again = stages.run_all(config, run, say=QUIET)
    assert (run / "evaluation.jsonl").read_text() == table
    assert again["policies"] == json.loads((finished / "results.json").read_text())["policies"]


def test_demonstrations_that_were_deleted_are_recorded_again(
    finished: Path, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    demos = run / "episodes" / "demos.jsonl"
    before = demos.read_bytes()
    demos.unlink()
    stages.run_stage("demos", config, run, say=Progress())
    assert demos.read_bytes() == before
    assert "is deleted" not in capsys.readouterr().out
    assert (run / "results.json").exists()


@pytest.mark.parametrize(
    ("stage", "damage"),
    [("demos", "teacher"), ("sft", "episodes/demos.jsonl"), ("ppo", "checkpoints/sft"), ("eval", "checkpoints/ppo")],
)
def test_what_cannot_begin_again_deletes_nothing(
    stage: stages.StageName, damage: str, finished: Path, config: Config, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    if damage == "teacher":
        config = override(config, ["demos.teacher=explore"])
    elif (run / damage).is_dir():
        shutil.rmtree(run / damage)
    else:
        (run / damage).unlink()
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(GrueError):
        stages.run_stage(stage, config, run, say=QUIET, again=True)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_no_more_games_are_played_beside_than_are_reported(config: Config, tmp_path: Path) -> None:
    few = override(config, ["eval.games=2", "eval.side_games=300"])
    assert side_games(few.eval) == 2
    assert "2 test games for each policy, greedy and sampled; 2 of train and dev" in stages.plan(few, tmp_path)
    none = override(config, ["eval.side_games=0"])
    assert "of train" not in stages.plan(none, tmp_path).splitlines()[-2]


def test_threads_are_those_that_are_asked_for(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        for asked, threads, expected in (("3", 0, 3), ("3", 2, 2), ("many", 0, physical_cores())):
            monkeypatch.setenv("OMP_NUM_THREADS", asked)
            wanted = override(config, [f"threads={threads}"])
            with open_session(Run(tmp_path / f"{asked}{threads}", wanted), wanted, QUIET):
                assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_a_game_that_the_teacher_fails_at_is_no_reason_not_to_begin(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grue.games.toy import ToyGame

    whole = ToyGame.gold

    def gold(game: ToyGame) -> list[str]:
        assert game._task is not None
        if game._task.seed == 0:
            raise GameError("no solution of seed 0 is known")
        return whole(game)

    monkeypatch.setattr(ToyGame, "gold", gold)
    facts = stages.run_stage("demos", config, tmp_path / "run", say=QUIET)
    assert (facts["episodes"], facts["failed"]) == (12, 1)


@pytest.mark.parametrize("always", [False, True])
def test_a_teacher_who_says_what_no_list_holds_is_warned_of(
    always: bool,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two such steps in one of twelve games are no reason to say anything."""
    from grue.games.toy import ToyGame

    whole = ToyGame.gold

    def gold(game: ToyGame) -> list[str]:
        assert game._task is not None
        return (["sing", "sing"] if always or game._task.seed == 0 else []) + whole(game)

    monkeypatch.setattr(ToyGame, "gold", gold)
    facts = stages.run_stage("demos", config, tmp_path / "run", say=QUIET)
    assert facts["invalid_steps"] == (24 if always else 2)
    warned = f"{facts['invalid_steps']} of the {facts['steps']} steps of gold are no listed actions"
    assert (warned in " ".join(capsys.readouterr().out.split())) == always


def test_a_teacher_who_never_wins_is_warned_of(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = override(config, ["demos.teacher=random", "demos.record_limit=10", "game.limit=3"])
    facts = stages.run_stage("demos", lost, tmp_path / "run", say=QUIET)
    assert facts["won"] + facts["won_past_limit"] == 0
    assert "random won none of these games in 10 steps" in " ".join(capsys.readouterr().out.split())


def test_replays_go_with_the_demonstrations(config: Config, tmp_path: Path) -> None:
    """SFT reads what it finds: none may stay that the settings no longer ask for, and none may be missing."""
    run = tmp_path / "run"
    twice = override(config, ["demos.replays=2"])
    stages.run_stage("demos", twice, run, say=QUIET)
    replays = run / "episodes" / "replays.jsonl"
    before = replays.read_bytes()
    replays.write_bytes(before[: len(before) // 2].rpartition(b"\n")[0] + b"\n")
    with pytest.raises(DataError, match=r"replays\.jsonl holds \d+ of the 24 games"):
        stages.run_stage("sft", twice, run, say=QUIET)
    replays.unlink()
    stages.run_stage("demos", twice, run, say=QUIET)
    assert replays.read_bytes() == before
    stages.run_stage("demos", override(config, ["demos.replays=0"]), run, say=QUIET, again=True)
    assert not replays.exists() or not replays.read_bytes()


def test_demonstrations_that_broke_off_are_not_learnt_from(finished: Path, config: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    entries = json.loads((run / "stages.json").read_text())
    (run / "stages.json").write_text(json.dumps({"demos": {"state": "begun", "seconds": entries["demos"]["seconds"]}}))
    with pytest.raises(DataError, match="are incomplete") as caught:
        stages.run_stage("sft", config, run, say=QUIET)
    assert caught.value.hint == f"go on with grue demos {run}"


def test_a_damaged_file_stops_the_deletion_before_it_begins(finished: Path, config: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*rows[:2], "garbage\n", *rows[2:]]))
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(DataError, match="metrics"):
        stages.run_stage("sft", config, run, say=QUIET, again=True)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_doing_all_over_says_once_what_is_deleted(
    finished: Path, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    stages.run_all(config, run, say=Progress(), again=True)
    assert capsys.readouterr().out.count("is deleted") == 1


def test_doing_a_stage_over_says_what_is_deleted(
    finished: Path, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    stages.run_stage("sft", config, run, say=Progress(), again=True)
    assert f"what sft, ppo and eval left in {run} is deleted" in capsys.readouterr().out


def test_demonstrations_that_were_lost_are_not_done_without(finished: Path, config: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    demos = (run / "episodes" / "demos.jsonl").read_bytes()
    (run / "episodes" / "demos.jsonl").write_bytes(demos[:-20])
    with pytest.raises(DataError, match="holds 11 of the 12 games"):
        stages.run_stage("sft", config, run, say=QUIET, again=True)


def _unfinished(finished: Path, out: Path, stage: str) -> Path:
    """A copy of the run as an interruption in `stage` leaves it, just before the stage is marked as done."""
    shutil.copytree(finished, out)
    entries = read_stages(out)
    entries[stage] = {"state": "begun", "seconds": 1.0}
    (out / "stages.json").write_text(json.dumps(entries), encoding="utf-8")
    return out


@pytest.mark.parametrize(
    ("setting", "listed", "stage"),
    [
        ("policy.kind=aligned", "policy.kind (choose there, aligned now)", "demos"),
        ("policy.min_p=0.001", "policy.min_p (0.01 there, 0.001 now)", "demos"),
        ("policy.history=3", "policy.history (0 there, 3 now)", "demos"),
        ("game.limit=9", "game.limit (12 there, 9 now)", "demos"),
        ("seed=5", "seed (0 there, 5 now)", "demos"),
        ("sft.epochs=5", "sft.epochs (2 there, 5 now)", "sft"),
        ("ppo.gamma=0.5", "ppo.gamma (0.97 there, 0.5 now)", "ppo"),
    ],
)
def test_settings_edited_by_hand_are_refused(
    setting: str, listed: str, stage: str, finished: Path, config: Config, tmp_path: Path
) -> None:
    out = _unfinished(finished, tmp_path / "run", "ppo")
    edited = tiny.edit_config(out, setting)
    before = snapshot(out)
    for go_on in (partial(stages.run_all, edited, out), partial(stages.run_stage, "ppo", edited, out)):
        with pytest.raises(SettledError) as caught:
            go_on(say=QUIET)
        assert caught.value.message == f"{out} was begun with other settings: {listed}"
        assert f"the old settings, put back into {out / 'config.yaml'}, go on with it" in caught.value.hint
        assert f"grue {stage} {out} --again with these settings" in caught.value.hint
    with pytest.raises(SettledError) as caught:
        stages.run_stage("ppo", override(config, [setting]), finished, say=QUIET)
    assert caught.value.message == f"{finished} was begun with other settings: {listed}"  # as from a command
    assert "config.yaml" not in caught.value.hint
    assert snapshot(out) == before


def test_settings_may_be_edited_by_hand_until_their_stage_begins(config: Config, tmp_path: Path) -> None:
    out = tmp_path / "run"
    Run(out, config)  # as a command leaves it that was stopped before the first stage
    edits: dict[stages.StageName, tuple[str, ...]] = {
        "demos": ("demos.games=8", "policy.min_p=0.1", "seed=3"),
        "sft": ("sft.epochs=1", "demos.record_limit=50"),  # the latter is its value
        "ppo": ("ppo.gamma=0.9", "ppo.iterations=1", "sft.micro_tokens=4096"),
        "eval": ("eval.games=4", "ppo.save_every_s=1", "game.read_timeout_s=9"),
    }
    for stage, settings in edits.items():
        stages.run_stage(stage, tiny.edit_config(out, *settings), out, say=QUIET)
    assert [len(read_metrics(out, stage)) for stage in ("sft", "ppo")] == [2, 1]  # 8 games, 4 a batch, once
    with pytest.raises(SettledError, match=r"eval\.games \(4 there, 5 now\)"):
        stages.run_all(tiny.edit_config(out, "eval.games=5"), out, say=QUIET)
    stages.run_stage("eval", read_run_config(out), out, say=QUIET, again=True)  # as the hint says
    assert json.loads((out / "results.json").read_text())["policies"]["ppo"]["decoding"]["greedy"]["games"] == 5


def test_what_was_measured_on_unfinished_weights_is_measured_again(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    out = _unfinished(finished, tmp_path / "run", "ppo")
    rows = [json.loads(line) for line in (out / "evaluation.jsonl").read_text().splitlines()]
    for row in rows:
        row["result"]["success"] = 0.123
    (out / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = stages.run_all(config, out, say=QUIET)["policies"]
    assert found["sft"]["decoding"]["greedy"]["success"] == 0.123  # its weights are what they were
    right = json.loads((finished / "results.json").read_text())["policies"]["ppo"]["decoding"]["greedy"]
    assert found["ppo"]["decoding"]["greedy"] == right


def test_an_unfinished_policy_may_be_measured_with_a_warning(
    finished: Path, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = _unfinished(finished, tmp_path / "run", "ppo")
    (out / "report.html").unlink()
    results = stages.run_stage("eval", config, out, say=Progress(stderr=True), again=True)
    assert "ppo is not finished" in capsys.readouterr().err
    assert results["policies"]["ppo"]["decoding"]["greedy"]["env_steps_trained"] > 0
    assert "has not been evaluated" not in (out / "report.html").read_text()
    (out / "episodes/probe-ppo.jsonl").unlink()
    with pytest.raises(DataError, match="ppo is not finished") as caught:
        export_run(out, what="merged", say=QUIET)
    assert "--again" not in caught.value.hint


def test_who_watches_slowly_can_stop_at_once(finished: Path) -> None:
    command = [sys.executable, "-u", "-m", "grue", "watch", str(finished), "--delay", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        while "  1> " not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_run_that_is_being_trained_can_be_watched(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    code = (
        "import sys; from pathlib import Path; from grue.storage.run import Run; "
        "from grue.storage.contents import read_run_config; "
        "out = Path(sys.argv[1]); run = Run(out, read_run_config(out)); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another process"):
            Run(out, read_run_config(out))
        before = snapshot(out)
        shown = stages.watch(out, policy="sft", decoding="greedy", seed=None, delay_s=0, say=QUIET)
        assert shown["turns"]
        assert snapshot(out) == before
    finally:
        holder.communicate("")


def test_a_run_of_others_starts_no_program(finished: Path, tmp_path: Path) -> None:
    """config.yaml may name a program for games in Java; only a command may have it started."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    program, trace = tmp_path / "java", tmp_path / "was here"
    program.write_text(f"#!/bin/sh\ntouch '{trace}'\n", encoding="utf-8")
    program.chmod(0o755)
    text = (out / "config.yaml").read_text()
    kept = [line for line in text.splitlines() if not line.startswith(("  name: toy", "  java:"))]
    kept.insert(kept.index(next(line for line in kept if line.startswith("game:"))) + 1, "  name: coin")
    kept.insert(kept.index("  name: coin"), f"  java: {program}")
    (out / "config.yaml").write_text("\n".join(kept), encoding="utf-8")
    assert read_config(out / "config.yaml").game.java == str(program)
    stored = read_run_config(out)
    with open_session(Run(out, stored, leads=False), stored, QUIET) as session:
        assert session.games(1)[0].reset(session.tasks("dev", 1)[0]).actions
    assert not trace.exists()


def test_a_kill_before_the_first_file_is_no_run_in_the_way(config: Config, tmp_path: Path) -> None:
    left, written = tmp_path / ".config.yaml.0123abcd.tmp", tmp_path / ".report.html.0123abcd.tmp"
    for file in (left, written):
        file.write_text("half", encoding="utf-8")
    os.utime(left, (0, 0))
    Run(tmp_path, config)
    assert (tmp_path / "config.yaml").exists()
    assert not left.exists()
    assert written.exists()  # another command may be at it


def test_a_random_teacher_plays_otherwise_with_another_seed(tmp_path: Path) -> None:
    played = []
    for seed in (0, 1, 1):
        config = load_config("toy", ["demos.teacher=random", "demos.games=3"], seed=seed)
        out = tmp_path / f"run{len(played)}"
        stages.run_stage("demos", config, out, say=QUIET)
        played.append((out / "episodes" / "demos.jsonl").read_bytes())
    assert played[0] != played[1] == played[2]


def test_pruned_steps_are_told_of_a_stage_that_was_played_at_once(tmp_path: Path, capsys: Any) -> None:
    """The player counts them, and knows of no game that an earlier command has recorded."""
    config, out = load_config("coin", ["demos.teacher=gold-pruned", "demos.games=4"]), tmp_path / "run"
    whole = stages.run_stage("demos", config, out, say=Progress())
    assert whole["pruned_steps"] >= 0 and " pruned steps" in capsys.readouterr().out
    jsonl.keep_first(out / "episodes" / "demos.jsonl", 2)
    (out / "stages.json").unlink()
    resumed = stages.run_stage("demos", config, out, say=Progress())
    assert "pruned_steps" not in resumed and "pruned steps" not in capsys.readouterr().out


def test_passes_that_come_out_shorter_are_an_error_and_no_loop(tmp_path: Path) -> None:
    """Renaming may cut episodes into fewer segments than in the first pass."""
    config = tiny.config(Path("none"), "sft.epochs=2", "sft.episodes_per_batch=1")
    model = tiny.policy_model()
    learner = Learner.of(model, config.model, config.sft)
    played = samples(tiny.rollouts(model, tiny.tasks(3)))
    run = Run(tmp_path / "run", config)
    with pytest.raises(TrainingError, match="pass 1 over the demonstrations has 2 batches, the first had 3"):
        train_sft(run, config, learner, lambda epoch: played[: 3 - epoch], QUIET, Interrupt())


@pytest.mark.parametrize(
    ("stage", "change", "said"),
    [
        ("ppo", "ppo.iterations=1", "SFT is not done in"),
        ("dagger", "dagger.rounds=7", "SFT is not done in"),
        ("ppo", "dagger.rounds=7", "DAgger is not done in .*, but dagger.rounds is 7"),
    ],
)
def test_a_stage_that_cannot_begin_changes_no_setting(stage: str, change: str, said: str, tmp_path: Path) -> None:
    config, out = load_config("toy", ["demos.games=3"]), tmp_path / "run"
    stages.run_stage("demos", config, out, say=QUIET)
    before = (out / "config.yaml").read_bytes()
    with pytest.raises(GrueError, match=said):
        stages.run_stage(stage, override(config, [change]), out, say=QUIET)  # type: ignore[arg-type]
    assert (out / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("change", ["ppo.iterations=1", "dagger.rounds=1"])
def test_what_builds_on_sft_waits_for_its_end(change: str, tiny_folder: Path, tmp_path: Path) -> None:
    """Otherwise the table would compare a policy with an SFT that it did not begin with."""
    config, out = tiny.config(tiny_folder, "demos.games=3", "sft.epochs=1", change), tmp_path / "run"
    for name in ("demos", "sft"):
        stages.run_stage(name, config, out, say=QUIET)  # type: ignore[arg-type]
    entries = json.loads((out / "stages.json").read_text())
    entries["sft"] = {"state": "begun", "seconds": 0.1}
    (out / "stages.json").write_text(json.dumps(entries))
    stage = change.partition(".")[0]
    with pytest.raises(DataError, match=rf"SFT is not done in .*\n.*grue sft {out}"):
        stages.run_stage(stage, config, out, say=QUIET)  # type: ignore[arg-type]
    stages.run_stage("sft", config, out, say=QUIET)
    stages.run_stage(stage, config, out, say=QUIET)  # type: ignore[arg-type]


def test_settings_of_what_is_skipped_then_and_now_may_change(tiny_folder: Path, tmp_path: Path) -> None:
    config, out = tiny.config(tiny_folder, "demos.games=3", "sft.epochs=1", "ppo.iterations=1"), tmp_path / "run"
    for name in ("demos", "sft", "ppo"):
        stages.run_stage(name, config, out, say=QUIET)  # type: ignore[arg-type]
    stages.run_stage("ppo", override(config, ["dagger.steps=7"]), out, say=QUIET)
    with pytest.raises(ConfigError, match=r"grue ppo .* --again"):
        stages.run_stage("ppo", override(config, ["dagger.steps=8", "ppo.iterations=2"]), out, say=QUIET)
    with pytest.raises(ConfigError, match=r"grue dagger .* --again"):
        stages.run_stage("ppo", override(config, ["dagger.steps=8", "dagger.rounds=2"]), out, say=QUIET)


def test_without_demonstrations_stages_come_in_their_order(tiny_folder: Path, tmp_path: Path) -> None:
    out, none = tmp_path / "run", ("demos.games=0", "sft.epochs=0", "eval.games=2", "eval.side_games=0")
    config = tiny.config(tiny_folder, *none, "ppo.iterations=0")
    before = tiny.config(tiny_folder, *none, "demos.teacher=random")
    assert training_settings(before, "ppo") == training_settings(tiny.config(tiny_folder, *none), "ppo")
    with pytest.raises(DataError, match=rf"have not been looked at\n.*grue demos {out}"):
        stages.run_stage("sft", before, out, say=QUIET)
    with pytest.raises(DataError, match="have not been looked at"):
        stages.run_stage("sft", tiny.config(tiny_folder, "sft.epochs=0"), out, say=QUIET)
    stages.run_stage("demos", before, out, say=QUIET)
    with pytest.raises(DataError, match=rf"SFT is not done in .*\n.*grue sft {out}"):
        stages.run_stage("ppo", before, out, say=QUIET)
    assert stages.run_stage("sft", config, out, say=QUIET)["samples"] == 0  # without the teacher that did nothing
    stages.run_all(config, out, say=QUIET)
    with pytest.raises(CheckpointError, match=r"trains no policy: .*\n.*grue ppo .* ppo\.iterations=20 --again"):
        load_trained(out)
    shutil.rmtree(out / "checkpoints" / "sft")
    longer = override(config, ["ppo.iterations=1"])
    with pytest.raises(CheckpointError, match=rf"though sft is done\n.*grue sft {out} --again"):
        stages.run_stage("ppo", longer, out, say=QUIET, again=True)
    stages.run_stage("sft", longer, out, say=QUIET, again=True)
    stages.run_stage("ppo", longer, out, say=QUIET)
    assert load_trained(out).name == "ppo"


def test_a_game_that_is_shown_is_read_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CachedText] = []
    read = CachedText.read

    def noted(text: CachedText, prefix: Sequence[int], tree: TokenTree) -> torch.Tensor:
        asked.append(text)
        return read(text, prefix, tree)

    monkeypatch.setattr(CachedText, "read", noted)
    stored = read_run_config(finished)
    with open_session(Run(finished, stored, leads=False), stored, QUIET) as session:
        session.load("ppo")
        shown = shown_episode(session, "ppo", "", session.tasks("dev", 1)[0])
    assert len(asked) >= len([turn for turn in shown.turns if len(turn.considered) > 1]) > 1
    assert len({id(text) for text in asked}) == 1


def test_a_command_says_which_settings_it_changes(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = tiny.config(tiny_folder, "demos.games=3"), tmp_path / "run"
    for changes in ([], [], ["ppo.gamma=0.5", "demos.omission_keeps="]):
        stages.run_stage("demos", override(config, changes), out, say=Progress())
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("new settings of") == 1
    assert f"new settings of {out}: ppo.gamma (0.97 there, 0.5 now)" in said


def test_what_is_told_not_to_train_leaves_no_policy_and_is_no_result(tiny_folder: Path, tmp_path: Path) -> None:
    out, small = tmp_path / "run", ("demos.games=4", "eval.games=2", "eval.side_games=0")
    config = tiny.config(tiny_folder, *small, "sft.epochs=1", "ppo.iterations=0")
    results = stages.run_all(config, out, say=QUIET)
    assert "ppo" not in results["policies"]
    assert load_trained(out).name == "sft"
    assert {episode["policy"] for _, episode in jsonl.read(out / "episodes" / "shown.jsonl")} == {"base", "sft"}
    untrained = tmp_path / "untrained"
    stages.run_all(override(config, ["sft.epochs=0"]), untrained, say=QUIET)
    with pytest.raises(CheckpointError, match=r"trains no policy: sft.epochs=0, dagger.rounds=0, ppo.iterations=0"):
        load_trained(untrained)
    for look in (  # what SFT hands on is the base
        load_trained,
        partial(export_run, what="merged", say=QUIET),
        partial(watch, decoding="greedy", seed=None, delay_s=0.0, say=QUIET),
    ):
        with pytest.raises(CheckpointError, match="has no sft weights: its settings skip that stage"):
            look(untrained, policy="sft")
    # the hints of both can be followed
    with pytest.raises(CheckpointError, match=r"grue ppo .* ppo\.iterations=N --again"):
        stages.run_stage("eval", override(config, ["ppo.iterations=1"]), out, say=QUIET, again=True)
    stages.run_stage("ppo", override(config, ["ppo.iterations=1"]), out, say=QUIET, again=True)
    stages.run_stage("sft", config, untrained, say=QUIET, again=True)
    assert (load_trained(out).name, load_trained(untrained).name) == ("ppo", "sft")


def test_a_run_of_which_nothing_is_left_says_so(tiny_folder: Path, tmp_path: Path, capsys: Any) -> None:
    config = tiny.config(tiny_folder, "demos.games=3", "sft.epochs=0", "ppo.iterations=0", "eval.games=2")
    stages.run_all(config, tmp_path / "run", say=QUIET)
    stages.run_all(config, tmp_path / "run", say=Progress())
    said = capsys.readouterr().out
    assert f"all is done in {tmp_path / 'run'}; --again" in said and "Ctrl-C" not in said


def test_processes_are_named_where_they_are_faster(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = override(config, ["model.name=embedded", "threads=0"], None)
    for cores, gib, hint in (
        (2, 64, ""),
        (4, 64, "--processes 4"),
        (16, 64, "--processes 8"),
        (16, 9, "--processes 4"),
    ):
        monkeypatch.setattr("grue.stages.announce.physical_cores", lambda cores=cores: cores)
        monkeypatch.setattr("grue.stages.announce.memory_gib", lambda gib=gib: gib)
        assert hint_at_processes(embedded, ALONE).endswith(hint) and (hint or not hint_at_processes(embedded, ALONE))
        assert not hint_at_processes(embedded, Processes(0, 2))
        assert not hint_at_processes(override(embedded, ["threads=3"], None), ALONE)
        assert not hint_at_processes(config, ALONE)  # another model


def test_results_keep_the_machine_that_made_them_and_pair_greedy_games(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    """A chat model is asked later, perhaps from elsewhere; and the order of decodings is the reader's taste."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    other = override(config, ["eval.decodings=sampled,greedy", "eval.side_games=0"])
    earlier = {"hardware": {"gpu": "H100"}, "versions": {"grue": "0.0.1"}}
    with open_session(Run(out, config, leads=False), other, QUIET) as session:
        kept = final_results(session, wall_s=1.0, command="grue", earlier=earlier)
        fresh = final_results(session, wall_s=1.0, command="grue")
    assert {key: kept[key] for key in earlier} == earlier
    assert fresh["hardware"]["cores"] and "H100" not in str(fresh["hardware"])
    assert {pair["decoding"] for pair in kept["paired"]} == {"greedy"}


def test_random_play_is_measured_alike_whatever_the_seed_of_the_run(tiny_folder: Path, tmp_path: Path) -> None:
    rows = []
    for seed in (0, 1):
        nothing = ("sft.epochs=0", "ppo.iterations=0", "demos.games=2", "eval.games=12")
        out = tmp_path / str(seed)
        stages.run_all(tiny.config(tiny_folder, *nothing, seed=seed), out, say=QUIET)
        rows.append(json.loads((out / "results.json").read_text())["policies"]["random"]["decoding"]["scripted"])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("damaged", ["demos", "replays"])
def test_a_demonstration_that_somebody_deleted_is_recorded_again(tmp_path: Path, damaged: str) -> None:
    """Its error names the line and says to delete it: the games after it must not take each other's places."""
    config, out = load_config("toy", ["demos.games=6", "demos.replays=2"]), tmp_path / "run"
    stages.run_stage("demos", config, out, say=QUIET)
    files = [out / "episodes" / f"{name}.jsonl" for name in ("demos", "replays")]
    recorded = [file.read_bytes() for file in files]
    file = out / "episodes" / f"{damaged}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2] + lines[3:]))
    states = json.loads((out / "stages.json").read_text())
    states["demos"]["state"] = "begun"
    (out / "stages.json").write_text(json.dumps(states))
    stages.run_stage("demos", config, out, say=QUIET)
    assert [file.read_bytes() for file in files] == recorded


def test_the_base_need_not_be_measured(finished: Path, config: Config, tmp_path: Path) -> None:
    """A model that knows nothing of the game plays each to its limit, and so takes longest."""
    run, short = _unfinished(finished, tmp_path / "run", "eval"), override(config, ["eval.base=false"])
    results = stages.run_stage("eval", short, run, say=QUIET, again=True)
    assert set(results["policies"]) == {"random", "gold", "sft", "ppo"}
    assert [pair["b"] for pair in results["paired"]] == ["sft", "gold"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "before training" in page  # its shown game is still there
    assert "No test result" not in page
    nothing = override(
        short, ["demos.games=1", "sft.epochs=0", "ppo.iterations=0", "eval.games=2", "eval.side_games=0"]
    )
    assert "base" in stages.run_all(nothing, tmp_path / "nothing", say=QUIET)["policies"]
