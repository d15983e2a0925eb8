"""Weights know the form of the prompts that they have learnt from, and are not used with another."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest

import tiny
from grue import load_policy, stages
from grue.config import Config
from grue.errors import CheckpointError, ConfigError
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.stages.export import export_run
from grue.stages.trained import load_trained
from grue.storage import checkpoint
from grue.storage.run import Run

QUIET = Progress(quiet=True)
CHANGED = tiny.CHAT.replace("<bos>", "<bos> ")


def template(folder: Path, text: str) -> None:
    """Give the tokenizer in a folder another chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = text
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.save(tmp_path_factory.mktemp("models") / "chatty")
    template(folder, tiny.CHAT)
    return folder


@pytest.fixture(scope="module")
def config(model: Path) -> Config:
    return tiny.config(
        model, "policy.template=chat", "sft.epochs=1", "ppo.iterations=1", "ppo.dev_every=1", "eval.games=2"
    )


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    for stage in ("demos", "sft", "ppo"):
        stages.run_stage(stage, config, out, say=QUIET)  # type: ignore[arg-type]
    return out


@pytest.fixture
def changed(model: Path, run: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the run, without the file that would notice first, beside a model whose template has changed."""
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("prompt.json", ".lock"))
    template(model, CHANGED)
    yield copy
    template(model, tiny.CHAT)


def not_done(run: Path, *names: str) -> None:
    """Have the run go on with stages that it had finished."""
    file = run / "stages.json"
    kept = {name: entry for name, entry in json.loads(file.read_text()).items() if name not in names[1:]}
    kept[names[0]] = {"state": "begun", "seconds": 0.0}
    file.write_text(json.dumps(kept))
    for name in names[1:]:
        shutil.rmtree(run / "checkpoints" / name)


def test_another_vocabulary_is_another_form() -> None:
    known, other = tiny.tokenizer(), deepcopy(tiny.tokenizer())
    other.add_tokens(["grue"])
    assert Encoder(known).fingerprint == Encoder(deepcopy(known)).fingerprint
    assert Encoder(known).fingerprint != Encoder(other).fingerprint


class _Terse(Encoder):
    """Prompts without the task."""

    def task(self, goal: str, limit: int) -> tuple[int, ...]:
        return self._bos


def test_prompts_of_an_own_class_are_of_another_form(tmp_path: Path) -> None:
    """`load_policy` would let a policy play with prompts that it was not trained with."""
    run = Run(tmp_path / "run", tiny.config(tiny.save(tmp_path / "model")))
    run.keep_prompt(_Terse(tiny.tokenizer()).fingerprint)
    with pytest.raises(ConfigError, match="template, vocabulary or settings differ"):
        run.keep_prompt(Encoder(tiny.tokenizer()).fingerprint)


def test_every_checkpoint_holds_the_hash(run: Path) -> None:
    found = [checkpoint.verify(path) for path in sorted((run / "checkpoints").glob("*/*"))]
    assert len(found) == 3  # of SFT, the last of PPO, the best of PPO
    assert {manifest["prompt"] for manifest in found} == {load_trained(run).encoder.fingerprint}


def go_on(stage: str, *finished: str) -> Callable[[Path, Config], object]:
    def begin(run: Path, config: Config) -> None:
        not_done(run, stage, *finished)
        stages.run_stage(stage, config, run, say=QUIET)  # type: ignore[arg-type]

    return begin


USES: dict[str, tuple[str, Callable[[Path, Config], object]]] = {
    "SFT resumed": ("sft/step-", go_on("sft", "ppo")),
    "PPO after SFT": ("sft/step-", go_on("ppo")),
    "evaluation": ("sft/best-|sft/step-", go_on("eval")),
    "load_policy": ("ppo/best-", lambda run, config: load_policy(run)),
    "load_policy of SFT": ("sft/step-", lambda run, config: load_policy(run, "sft")),
    "export": ("ppo/best-", lambda run, config: export_run(run, what="merged", say=QUIET)),
}


@pytest.mark.parametrize("use", USES)
def test_weights_are_not_used_with_prompts_of_another_form(use: str, changed: Path, config: Config) -> None:
    place, begin = USES[use]
    with pytest.raises(CheckpointError, match=f"checkpoints/({place}).* with another prompt format") as caught:
        begin(changed, config)
    assert "template, vocabulary or settings differ" in caught.value.message
    assert "model.revision" in caught.value.hint
    assert not (changed / "export-merged").exists()


def test_a_refused_change_leaves_no_trace(changed: Path, run: Path, model: Path, config: Config) -> None:
    """The hash of the new form is not written down: with the old one back the run goes on."""
    not_done(changed, "ppo")
    with pytest.raises(CheckpointError, match="with another prompt format"):
        stages.run_stage("ppo", config, changed, say=QUIET)
    assert not (changed / "prompt.json").exists()
    template(model, tiny.CHAT)
    stages.run_stage("ppo", config, changed, say=QUIET)
    assert (changed / "prompt.json").read_bytes() == (run / "prompt.json").read_bytes()


def test_ppo_does_not_go_on_either(changed: Path, config: Config) -> None:
    """Where the weights of SFT are older than the hash, PPO's own checkpoint is what refuses."""
    forget(changed / "checkpoints" / "sft")
    not_done(changed, "ppo")
    with pytest.raises(CheckpointError, match=r"checkpoints/ppo/step-.* with another prompt format"):
        stages.run_stage("ppo", config, changed, say=QUIET)


def forget(folder: Path) -> None:
    """Make the checkpoints below a folder those of a version that knew no hash."""
    for file in folder.rglob("manifest.json"):
        manifest = json.loads(file.read_text())
        del manifest["prompt"], manifest["sha256"]
        manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        file.write_text(json.dumps(manifest))


def test_checkpoints_from_before_the_hash_still_load(changed: Path) -> None:
    forget(changed / "checkpoints")
    assert load_policy(changed).name == "ppo"


def test_an_exported_folder_knows_it_too(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "exported"
    export_run(run, what="merged", to=to, say=QUIET)
    load_policy(to)
    template(to, CHANGED)
    with pytest.raises(CheckpointError, match="exported was trained with another prompt format"):
        load_policy(to)


def test_a_hash_is_compared_only_where_both_are_known(tmp_path: Path) -> None:
    old, new = (checkpoint.save(tmp_path, step, {}, {}, prompt=known) for step, known in ((1, None), (2, "a" * 64)))
    assert checkpoint.load(old, prompt="b" * 64).prompt is None
    assert checkpoint.load(new).prompt == checkpoint.load(new, prompt="a" * 64).prompt == "a" * 64
    with pytest.raises(CheckpointError, match="template, vocabulary or settings differ"):
        checkpoint.load(new, prompt="b" * 64)


def test_hashes_of_an_older_form_are_compared_as_far_as_they_go() -> None:
    change = checkpoint.prompt_change
    assert change("a-b", "a-b-c") == change("a", "a-b-c") == change("a-b-c", "a-b") == ""
    assert "cuts texts otherwise" in change("a-b-c", "a-b-d")
    assert "cuts texts otherwise" in change("a-b", "a-d-c")
    assert "template" in change("a-b-c", "d-b-c")
