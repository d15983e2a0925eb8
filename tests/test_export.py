"""Export and loading back: the copy says what the policy said, anything else is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import architectures
import tiny
from grue import games, load_policy, stages
from grue.algos.losses import branch_log_probs
from grue.config import Config, load_config, override
from grue.errors import CheckpointError, ConfigError, DataError, GrueError, ModelError
from grue.evaluate.probe import TOLERANCE, replay
from grue.experiments.eval_gap.arms import measured
from grue.games.play import play
from grue.models.export import save_adapter
from grue.models.load import default_device, load_model
from grue.progress import Progress
from grue.rollout.pack import collate, samples
from grue.stages.card import model_card
from grue.stages.export import _portable, export_run
from grue.stages.final import Row, _play
from grue.stages.push import PushError, push
from grue.stages.session import open_session
from grue.stages.show import play_and_show
from grue.stages.trained import load_trained, read_probe
from grue.storage import checkpoint, episodes
from grue.storage.contents import read_run_config
from grue.storage.run import Run
from grue.types import Episode

QUIET = Progress(quiet=True)
FAST = ("sft.epochs=1", "ppo.iterations=2", "ppo.dev_every=1", "ppo.warmup_iterations=0", "ppo.learning_rate=0.003")
KINDS = {
    "full": (),
    "lora": ("model.adapter=lora", "model.lora_rank=4"),
    "dora": ("model.adapter=lora", "model.lora_dora=true", "model.lora_targets=q_proj,down_proj"),
    "nf4": ("model.quantize=nf4", "model.lora_rank=4"),
    "int8": ("model.quantize=int8", "model.lora_rank=4"),
    "gpt2": ("model.quantize=nf4", "model.lora_rank=4"),  # whose matrices lie the other way round until then
}


def trained(config: Config, out: Path) -> Path:
    for stage in ("demos", "sft", "ppo"):
        stages.run_stage(stage, config, out, say=QUIET)  # type: ignore[arg-type]
    return out


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wider than the one of the other tests: bitsandbytes wants 64 inputs."""
    return tiny.save(tmp_path_factory.mktemp("models") / "wide", hidden=64)


@pytest.fixture(scope="module")
def runs(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One trained run of each kind; made when first asked for."""
    root = tmp_path_factory.mktemp("runs")

    class Runs(dict[str, Path]):
        def __missing__(self, kind: str) -> Path:
            if "quantize" in str(KINDS[kind]):
                pytest.importorskip("bitsandbytes")
            model = architectures.save(root / "model", kind) if kind in architectures.ALL else tiny_folder
            self[kind] = trained(tiny.config(model, *FAST, *KINDS[kind]), root / kind)
            return self[kind]

    return Runs()


def game_of(run: Path, name: str = "ppo") -> Episode:
    (episode,) = read_probe(run, name)
    return episode


# int8 rounds activations by the batch they stand in, so that only ordinary numbers can agree to the last digits
def test_a_policy_samples_at_the_temperature_that_it_was_trained_at(tiny_folder: Path, tmp_path: Path) -> None:
    run = trained(tiny.config(tiny_folder, *FAST, "ppo.iterations=1", "ppo.temperature=0.5"), tmp_path / "run")
    assert load_policy(run, greedy=False)._decoding.temperature == 0.5
    config = read_run_config(run)
    with open_session(Run(run, config), config, QUIET) as session:
        session.load("ppo")
        tasks = session.tasks("dev", 1)
        _, shown = play_and_show(session, session.policy(), "ppo", "", tasks[0], greedy=False)
        (counted,) = _play(session, Row("ppo", "dev", "sampled", 1), tasks, None)
        (examined,) = measured(session, session.model, tasks, greedy=False)
        for episode in (shown, counted, examined):
            batch = collate(samples([episode])).to(default_device())
            read = branch_log_probs(session.model(*batch.inputs).logits_NC, 0.5).gather(1, batch.chosen_N[:, None])
            found = read.new_zeros(episode.steps).index_add(0, batch.node_turn_N, read[:, 0])
            assert found.tolist() == pytest.approx([turn.log_prob for turn in episode.turns], abs=1e-4)


@pytest.mark.parametrize("kind", ["full", "lora", "dora", "nf4", "gpt2"])
def test_a_merged_model_says_what_the_policy_said(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    found = export_run(runs[kind], what="merged", to=tmp_path / "merged", say=QUIET)
    assert found["policy"] == "ppo"
    assert found["turns"] == game_of(runs[kind]).steps
    assert found["largest"] < 2e-3
    assert found["same_choice"] == 1
    # plain transformers is enough to load it, and finds no trace of the adapter
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not any("lora" in name for name, _ in lm.named_parameters())
    assert {p.dtype for p in lm.parameters()} == {torch.float32}
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == tiny.tokenizer().get_vocab()


@pytest.mark.parametrize("kind", ["lora", "dora", "nf4", "int8", "gpt2"])
def test_an_adapter_says_what_the_policy_said(
    kind: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = export_run(runs[kind], what="adapter", to=tmp_path / "adapter", say=QUIET)
    assert "others cannot load the adapter" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match="names its base by a folder"):
        push(tmp_path / "adapter", "me/policy", QUIET)
    assert len({path.stat().st_mode for path in (tmp_path / "adapter").iterdir()}) == 1
    assert found["mean"] < (0.3 if kind == "int8" else 2e-3)
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "grue.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)


def test_an_adapter_of_others_runs_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    """Neither a pickle in the place of the weights nor a module that the configuration names."""
    folder = tmp_path / "adapter"
    export_run(runs["lora"], what="adapter", to=folder, say=QUIET)
    about = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps({**about, "megatron_config": {"a": 1}, "megatron_core": "os"})
    )
    with pytest.raises(ModelError, match="not of an adapter that grue has made"):
        load_policy(folder)
    for odd in ({"peft_type": "NOSUCH"}, {"auto_mapping": {"base_model_class": "C", "parent_library": "os"}}):
        (folder / "adapter_config.json").write_text(json.dumps({**about, **odd}))
        with pytest.raises(ModelError, match="not of an adapter that grue has made"):
            load_policy(folder)
    (folder / "adapter_config.json").write_text(json.dumps(about))
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors"):
        load_policy(folder)


def test_an_adapter_names_its_base_as_the_settings_do(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny.config(tiny_folder, "model.adapter=lora").model
    lm, _ = load_model(config)
    save_adapter(lm, config.model_copy(update={"name": "me/base", "revision": "abc"}), tmp_path)
    about = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (about["base_model_name_or_path"], about["revision"]) == ("me/base", "abc")


def test_the_policy_has_changed_in_training_so_the_check_means_something(runs: dict[str, Path]) -> None:
    """The probe of PPO read with the weights of SFT, or with the adapter off, is far away."""
    trained_model = load_trained(runs["lora"], "ppo")
    probe = read_probe(runs["lora"], "ppo")
    assert replay(trained_model.model, probe, 1.0).largest < 1e-3
    with trained_model.model.lm.disable_adapter():
        assert replay(trained_model.model, probe, 1.0).mean > 0.01


def test_a_damaged_copy_is_refused_and_leaves_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    """A recorded game whose log-probabilities are not those of the weights stands for whatever goes wrong."""
    run = tmp_path / "run"
    shutil.copytree(runs["lora"], run)
    episode = game_of(run)
    changed = replace(episode, turns=tuple(replace(t, log_prob=t.log_prob - 0.5) for t in episode.turns))
    file = run / "episodes" / "probe-ppo.jsonl"
    file.unlink()
    episodes.append(file, [changed])
    with pytest.raises(ModelError, match="does not say what the policy said") as caught:
        export_run(run, what="merged", to=tmp_path / "out", say=QUIET)
    assert "0.5" in caught.value.message
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(ModelError, match="does not say"):
        load_policy(run)


def test_weights_that_were_changed_after_the_export_are_noticed(runs: dict[str, Path], tmp_path: Path) -> None:
    export_run(runs["full"], what="merged", to=tmp_path / "out", say=QUIET)
    from safetensors.torch import load_file, save_file

    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file({**tensors, name: tensors[name] * 3}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="does not say"):
        load_policy(tmp_path / "out")


def test_the_copy_that_plays_is_the_one_that_is_checked(tmp_path: Path) -> None:
    """In 16 bits it rounds otherwise than what trains, which for long texts was more than is let pass."""
    folder, run = tiny.save(tmp_path / "model", spread=0.3), tmp_path / "run"
    settings = ("policy.kind=write", "policy.reply_tokens=12", "model.dtype=bfloat16", "demos.games=4", "sft.epochs=1")
    config = tiny.config(folder, *settings)
    for stage in ("demos", "sft"):
        stages.run_stage(stage, config, run, say=QUIET)  # type: ignore[arg-type]
    trained, probe = load_trained(run, "sft"), read_probe(run, "sft")
    assert trained.check(probe, "it").mean < 0.8 * replay(trained.model, probe, 1.0).mean


def test_a_policy_that_played_in_bfloat16_loads_where_auto_is_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on a GPU and loaded on a laptop: what differs is the rounding of the machine that played."""
    folder, run, here = tiny.save(tmp_path / "model", spread=0.3), tmp_path / "run", "grue.models.load.native_bfloat16"
    settings = ("model.dtype=auto", "model.adapter=lora", "demos.games=4", "sft.epochs=1")
    monkeypatch.setattr(here, lambda: True)
    for stage in ("demos", "sft"):
        stages.run_stage(stage, tiny.config(folder, *settings), run, say=QUIET)  # type: ignore[arg-type]
    copy = tmp_path / "copy"
    export_run(run, what="adapter", to=copy, say=QUIET)
    assert "`bfloat16`" in (copy / "README.md").read_text()
    monkeypatch.setattr(here, lambda: False)
    for place in (run, copy):
        trained, probe = load_trained(place), read_probe(place, "sft")
        assert TOLERANCE[torch.float32] < trained.check(probe, "it").mean < TOLERANCE[torch.bfloat16]
        load_policy(place)
    facts = json.loads((run / "stages.json").read_text())
    assert facts["sft"]["played_in"] == "bfloat16"
    facts["sft"]["played_in"] = "float32"  # a policy that was played in full precision is held to it
    (run / "stages.json").write_text(json.dumps(facts))
    with pytest.raises(ModelError, match="does not say"):
        load_policy(run)
    facts["sft"]["played_in"] = "float8"
    (run / "stages.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="float8"):
        load_policy(run)
    del facts["sft"]["played_in"]  # an older run, of which that is not known
    (run / "stages.json").write_text(json.dumps(facts))
    load_policy(run)
    export_run(run, what="adapter", to=tmp_path / "older", say=QUIET)
    assert "the format of its matrix products" in (tmp_path / "older" / "README.md").read_text()
    assert "played_in" not in json.loads((tmp_path / "older" / "grue.json").read_text())
    load_policy(tmp_path / "older")


def test_two_lines_give_a_policy_that_plays_as_in_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    """From the run, from a merged copy and from an adapter: the recorded game again, action by action."""
    expected = game_of(runs["lora"])
    export_run(runs["lora"], what="merged", to=tmp_path / "merged", say=QUIET)
    export_run(runs["lora"], what="adapter", to=tmp_path / "adapter", say=QUIET)
    for folder in (runs["lora"], tmp_path / "merged", tmp_path / "adapter"):
        policy = load_policy(folder)
        game = games.make("toy")
        episode = play(game, expected.task, policy)
        assert [turn.action for turn in episode.turns] == [turn.action for turn in expected.turns]
        assert episode.outcome is expected.outcome
        assert policy.decision is not None
        assert policy.decision.log_prob == pytest.approx(expected.turns[-1].log_prob, abs=2e-3)
        assert policy.value == pytest.approx(expected.turns[-1].value, abs=2e-3)
        # a second game, without being told of its task
        policy.reset()
        observation = game.reset(expected.task)
        assert policy.act(observation) == expected.turns[0].action
        policy.start(expected.task, observation)
        listed = replace(observation, actions=list(observation.actions or ()))  # type: ignore[arg-type]
        assert policy.act(listed) == expected.turns[0].action  # who builds observations by hand may take a list


def test_a_base_that_has_moved_can_be_named(runs: dict[str, Path], tiny_folder: Path, tmp_path: Path) -> None:
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    export_run(runs["lora"], what="adapter", to=adapter, say=QUIET)
    export_run(runs["lora"], what="merged", to=merged, say=QUIET)
    run, other = shutil.copytree(runs["lora"], tmp_path / "run"), tiny.save(tmp_path / "other", hidden=64, seed=5)
    here = shutil.copytree(tiny_folder, tmp_path / "here")
    (task,) = tiny.tasks(1)
    expected = play(games.make("toy"), task, load_policy(runs["lora"]))
    for folder, file in ((adapter, "grue.yaml"), (run, "config.yaml")):
        settings = (folder / file).read_text()
        assert str(tiny_folder) in settings
        (folder / file).write_text(settings.replace(str(tiny_folder), str(tmp_path / "gone")))
        with pytest.raises(GrueError, match="gone"):
            load_policy(folder)
        assert play(games.make("toy"), task, load_policy(folder, base=str(here))).turns == expected.turns
        with pytest.raises(ModelError, match="log-prob"):
            load_policy(folder, base=str(other))
    with pytest.raises(ConfigError, match="has no base"):
        load_policy(merged, base=str(here))


def test_a_call_that_was_interrupted_may_be_repeated(runs: dict[str, Path]) -> None:
    """It has shown the observation, and has read some of it, as after Ctrl-C in a notebook."""
    expected, policy, game = game_of(runs["full"]), load_policy(runs["full"]), games.make("toy")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    observation = game.reset(expected.task)
    policy.start(expected.task, observation)
    for turn in expected.turns:
        hook = policy.policy.model.base_lm().get_decoder().layers[1].register_forward_pre_hook(interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                policy.act(observation)
        hook.remove()
        assert policy.act(observation) == turn.action
        assert policy.value == pytest.approx(turn.value, abs=1e-4)
        assert policy.decision is not None
        assert policy.decision.log_prob == pytest.approx(turn.log_prob, abs=1e-4)
        observation, *_ = game.step(turn.action)


def test_what_a_card_would_say_falsely_is_not_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["full"], run)
    tiny.edit_config(run, "game.limit=99", "threads=2")
    with pytest.raises(ConfigError, match=r"config\.yaml was edited .*: game\.limit \(12 there, 99 now\)\n"):
        export_run(run, what="merged", to=tmp_path / "out", say=QUIET)
    tiny.edit_config(run, "game.limit=12")
    export_run(run, what="merged", to=tmp_path / "out", say=QUIET)


def test_a_policy_may_sample_and_then_depends_on_its_seed(runs: dict[str, Path]) -> None:
    def actions(seed: int) -> list[list[str]]:
        policy, game = load_policy(runs["full"], "sft", greedy=False, seed=seed), games.make("toy")
        return [[turn.action for turn in play(game, task, policy).turns] for task in tiny.tasks(4, fold="dev")]

    assert actions(0) == actions(0) != actions(1)


@pytest.mark.parametrize(
    ("game", "fold", "said"),
    [
        ("toy", "test", "which no part of the training has seen"),
        ("toy", "dev", "which were not trained on"),
        ("toy", "train", "the training may have played some"),
        ("jericho:zork1.z5", "test", "all of the one story that it was trained on"),
        ("guess", "test", "whose seeds no part of the training has used"),
    ],
)
def test_the_card_calls_unseen_what_is_unseen(game: str, fold: str, said: str) -> None:
    config = load_config(overrides=[f"game.name={game}", f"eval.fold={fold}"])
    about = {"what": "merged", "policy": "sft", "base": "base", "versions": {}}
    about |= {"probe": {"turns": 1, "mean": 0.0, "largest": 0.0, "same_choice": 1.0}}
    row = {"games": 2, "seeds": [0, 1], "success": 0.5, "success_ci95": [0.1, 0.9], "score": 0.5, "failed": 0}
    card = model_card(config, about, {"policies": {"sft": {"decoding": {"greedy": row}}}})
    assert f"Fold `{fold}`, seeds 0 to 1, " in card
    assert said in card
    assert "All weights were trained." in card
    adapted = override(config, ["model.adapter=lora"])
    assert "The adapter is merged into the weights." in model_card(adapted, about, None)
    both = {"policies": {"ppo": {"decoding": {"greedy": row}}}}
    chosen = "on which the weights were chosen" in model_card(config, about | {"policy": "ppo"}, both)
    assert chosen == (game == "toy" and fold == "dev")
    before = {"policies": {"base": {"decoding": {"greedy": row}}}}  # measured, and only then trained
    assert "Not evaluated." in model_card(config, about, before)


def test_the_card_says_how_its_intervals_are_made() -> None:
    config = load_config(overrides=["game.name=sorting"])
    about = {"what": "merged", "policy": "sft", "base": "base", "versions": {}}
    about |= {"probe": {"turns": 1, "mean": 0.0, "largest": 0.0, "same_choice": 1.0}}
    row = {"games": 200, "seeds": [0, 1], "success": 0.5, "success_ci95": [0.1, 0.9], "score": 0.5, "failed": 0}

    def card(row: dict[str, Any]) -> str:
        return model_card(config, about, {"policies": {"sft": {"decoding": {"greedy": row}}}})

    assert "Intervals are Wilson intervals." in card(row)
    assert "over 1 turns the" in card(row)
    about["probe"] = {"turns": 0, "mean": 0.0, "largest": 0.0, "same_choice": 1.0}
    assert "there was nothing to compare" in card(row) and "100.0%" not in card(row)
    assert "generated freely need not be one of them, and may win less." in card(row)
    learnt = {**about, "policy": "ppo"}
    assert "may win less: PPO has compared valid actions with each other only." in model_card(config, learnt, None)
    held = override(config, ["policy.kind=aligned", "ppo.valid_coef=0.1"])
    assert "may win less." in model_card(held, learnt, None)
    assert "generated freely" not in model_card(override(config, ["policy.kind=write"]), learnt, None)
    shared = card({**row, "problems": 100})
    assert "The 200 games pose 100 different problems, so intervals are Wilson intervals with the number" in shared
    assert "Intervals are Wilson intervals." not in shared


def test_no_path_of_a_story_leaves_this_machine() -> None:
    for name, left in (("jericho:/home/me/zork1.z5", "jericho:zork1.z5"), ("alfworld:/data/", "alfworld:data")):
        assert _portable(load_config(overrides=[f"game.name={name}"]), "merged").game.name == left


def test_the_card_says_what_one_has_to_know(tiny_folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    config = tiny.config(tiny_folder, *FAST)
    run = tmp_path / "run"
    shutil.copytree(runs["full"], run)
    stages.run_stage("eval", config, run, say=QUIET)
    export_run(run, what="merged", to=tmp_path / "out", say=QUIET)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    results = json.loads((run / "results.json").read_text())
    row = results["policies"]["ppo"]["decoding"]["greedy"]
    for part in (
        "library_name: transformers",
        "load_policy(",
        f"{row['success_ci95'][0]:.1%} to {row['success_ci95'][1]:.1%}",
        "Fold `test`",
        "| **ppo** | sampled |",
        "| gold | scripted |",
        "temperature 1.0",
        "torch ",
        "log-probability",
    ):
        assert part in card, part
    assert str(tiny_folder) not in card
    assert str(tmp_path) not in card
    for file in (tmp_path / "out").glob("*.json"):
        assert str(tmp_path.parent) not in file.read_text(encoding="utf-8"), file.name


def test_a_smaller_format_is_a_choice(runs: dict[str, Path], tmp_path: Path) -> None:
    """bfloat16 rounds more than the check allows to a policy that played in float32, or it is let through and said."""
    left, young = tmp_path / ".half-0123abcd", tmp_path / ".half-4567abcd"  # by exports, the second under way
    for folder, changed in ((left, 1), (young, None)):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        for path in (folder / "model.safetensors", folder):
            os.utime(path, changed and (changed, changed))
    try:
        found = export_run(runs["full"], what="merged", dtype="float16", to=tmp_path / "half", say=QUIET)
    except ModelError as error:
        assert "--dtype float32" in error.hint  # noqa: PT017
        assert not (tmp_path / "half").exists()
    else:
        assert 0 < found["mean"] < 0.01  # float16 may be off by 0.02
        from safetensors.torch import load_file

        stored = load_file(tmp_path / "half" / "model.safetensors")
        assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert not left.exists() and young.exists()


def test_mistakes_are_one_error_each(runs: dict[str, Path], tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="no adapter"):
        export_run(runs["full"], what="adapter", to=tmp_path / "a", say=QUIET)
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        export_run(runs["full"], what="merged", to=tmp_path / "b", say=QUIET)
    empty = tmp_path / "demos only"
    stages.run_stage("demos", tiny.config(tiny_folder), empty, say=QUIET)
    with pytest.raises(GrueError, match="no trained policy yet"):
        export_run(empty, what="merged", say=QUIET)
    with pytest.raises(ConfigError, match="no trained policy 'best'"):
        load_policy(runs["full"], "best")
    with pytest.raises(GrueError, match="not a run directory"):
        load_policy(tmp_path)


@pytest.mark.slow
def test_a_full_disk_is_one_error(runs: dict[str, Path], tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from grue.cli.main import app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        f"app(['export', {str(runs['full'])!r}, '--to', {str(tmp_path / 'out')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "cannot write" in done.stderr and "a file size limit was reached" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_older_run_without_a_recorded_game_says_what_to_do(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["full"], run)
    (run / "episodes" / "probe-ppo.jsonl").unlink()
    with pytest.raises(DataError, match="no recorded game"):
        export_run(run, what="merged", to=tmp_path / "out", say=QUIET)
    assert load_policy(run).name == "ppo"


def test_an_export_without_its_recorded_game_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    export_run(runs["full"], what="merged", to=tmp_path / "out", say=QUIET)
    (tmp_path / "out" / "probe.jsonl").write_text('{"half of a li')
    with pytest.raises(DataError, match="no recorded game"):
        load_policy(tmp_path / "out")


def test_a_checkpoint_of_another_model_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["full"], run)
    from grue.config import dump_config, read_config

    other = override(read_config(run / "config.yaml"), ["model.adapter=lora"], None)
    (run / "config.yaml").write_text(dump_config(other))
    with pytest.raises(GrueError, match="another model"):
        load_policy(run)


def test_the_best_weights_are_exported_not_the_last(runs: dict[str, Path]) -> None:
    folder = runs["full"] / "checkpoints" / "ppo"
    best = checkpoint.best_valid(folder)
    assert best is not None
    stored = checkpoint.load(best).tensors["model"]
    now = dict(load_trained(runs["full"]).model.named_parameters())
    assert all(torch.equal(now[name].cpu(), value) for name, value in stored.items())


def test_pushing_needs_an_export_a_name_and_a_hub(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="was not made by grue export"):
        push(runs["full"], "me/policy", QUIET)
    export_run(runs["full"], what="merged", to=tmp_path / "out", say=QUIET)
    with pytest.raises(ConfigError, match="is an exported policy, not a run directory"):
        read_run_config(tmp_path / "out")
    with pytest.raises(ConfigError, match="not a repository name"):
        push(tmp_path / "out", "policy", QUIET)

    def asking(hub: str) -> subprocess.Popen[str]:
        """A process of its own that asks `hub`, as its address is read at import."""
        script = (
            "import sys; from pathlib import Path; from grue.progress import Progress; "
            "from grue.stages.push import push; push(Path(sys.argv[1]), 'me/p', Progress(quiet=True))"
        )
        environment = {"HF_ENDPOINT": hub, "HF_TOKEN": "hf_secret", "PATH": "", "HOME": str(tmp_path)}
        command = [sys.executable, "-c", script, str(tmp_path / "out")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def said(process: subprocess.Popen[str]) -> str:
        text = process.communicate(timeout=900)[1]
        assert "hf_secret" not in text
        return text.splitlines()[-2]  # a hint comes last

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        nobody, refused = map(said, [asking("http://127.0.0.1:9"), asking(f"http://127.0.0.1:{server.server_port}")])
        server.shutdown()
    assert PushError.__name__ in nobody
    assert "cannot push to me/p" in nobody
    assert PushError.__name__ in refused
    assert "403" in refused
    assert "your token may only read" in refused


class Refusing(BaseHTTPRequestHandler):
    """A hub that refuses everything, and says why."""

    def do_POST(self) -> None:
        body = json.dumps({"error": "your token may only read"}).encode()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_head_of_a_card_is_yaml_whatever_the_game_is_called() -> None:
    config = load_config(overrides=["game.name=jericho:hunger: a tale.z5"])
    about = {"what": "merged", "policy": "sft", "base": "org/name", "versions": {}}
    about |= {"probe": {"turns": 1, "mean": 0.0, "largest": 0.0, "same_choice": 1.0}}
    _, head, _ = model_card(config, about, None).split("---", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "base_model": "org/name",
        "pipeline_tag": "text-generation",
        "tags": ["grue", "reinforcement-learning", "text-game", "jericho:hunger: a tale.z5"],
    }


def test_what_cannot_be_exported_is_said_before_anything_is_written(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, said in (
        ({"what": "onnx"}, "what=onnx"),
        ({"dtype": "int3"}, "dtype=int3"),
        ({"policy": "gold"}, "there is no trained policy 'gold'"),
        ({"policy": "dagger"}, "has no dagger weights: its settings skip that stage"),
        ({"to": Path()}, "is the current folder"),
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises((ConfigError, CheckpointError), match=said):
            export_run(runs["full"], **{"what": "merged", **given}, say=QUIET)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_upload_takes_the_place_of_another_is_private_and_holds_the_export_alone(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub is a stand-in: what it is asked for is what counts."""
    asked: dict[str, Any] = {}

    class Hub:
        private = True

        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            return f"https://hub/{name}"

        def repo_info(self, name: str) -> Any:
            return SimpleNamespace(private=self.private)

        def upload_folder(self, **given: Any) -> None:
            asked.update(given)

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    export_run(runs["full"], what="merged", to=tmp_path / "out", say=QUIET)
    exported = sorted(path.name for path in (tmp_path / "out").iterdir())
    (tmp_path / "out" / "sub").mkdir()
    (tmp_path / "out" / ".git").mkdir()
    for private in (".env", ".git/config", "notes.txt", "other.json", "sub/grue.yaml"):
        (tmp_path / "out" / private).write_text("secret")
    assert push(tmp_path / "out", "me/policy", QUIET) == "https://hub/me/policy"
    assert asked["allow_patterns"] == exported
    assert "not uploaded, as the export did not write it: .env, notes.txt, other.json, sub/grue.yaml" in " ".join(
        capsys.readouterr().out.split()
    )
    left = ["adapter_model.safetensors", "adapter_config.json", "model.safetensors"]
    assert all(any(fnmatch(file, pattern) for pattern in asked["delete_patterns"]) for file in left)
    asked.clear()
    Hub.private = False
    with pytest.raises(PushError, match="already exists and is public"):
        push(tmp_path / "out", "me/policy", QUIET)
    assert not asked
    push(tmp_path / "out", "me/policy", QUIET, public=True)
    assert asked


def test_the_base_can_be_loaded_to_compare_with(runs: dict[str, Path]) -> None:
    task, game = tiny.tasks(1, "dev")[0], games.make("toy")
    for run in (runs["full"], runs["lora"]):
        base, trained = load_policy(run, "base"), load_policy(run)
        assert base.name == "base"
        first = game.reset(task)
        for policy in (base, trained):
            policy.start(task, first)
            policy.act(first)
        assert base.decision is not None and trained.decision is not None
        assert base.decision.entropy != trained.decision.entropy
