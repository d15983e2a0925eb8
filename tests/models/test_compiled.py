"""Layers compiled for training give the same step. Most tests generate no machine code, which takes a minute."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import architectures
import tiny
from grue import games
from grue.config import load_config
from grue.errors import ConfigError, ModelError
from grue.models import compiled
from grue.models.checkpointing import decoder_layers, prepare_recomputing
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decoding
from grue.progress import Progress
from grue.rollout.collect import collect
from grue.rollout.pack import Sample, samples
from grue.stages.runner import run_all
from grue.train.learner import Learner

# torch looks at gradients of everything that it traces, and warns about itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated ahead of time, but computed by torch's own operations."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch.compiler.reset()


def played(kind: str) -> list[Sample]:
    seats = [games.make("toy") for _ in range(3)]
    return samples(collect(tiny.player(kind=kind), seats, tiny.tasks(3), Decoding(), seed="0", context=512))


def step(name: str, items: list[Sample], *, recompute: bool, compile_layers: bool) -> tuple[float, PolicyModel]:
    """(norm of the gradient, model) of a step in passes of several sizes."""
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(architectures.ALL[name]()).eval()
    if recompute:
        prepare_recomputing(lm)
    model = PolicyModel(lm)
    learner = Learner(
        model,
        learning_rate=1e-2,
        weight_decay=0.01,
        max_grad_norm=1.0,
        micro_tokens=150,
        dtype="float32",
        recompute=recompute,
        compiled=compile_layers,
    )
    return learner.step(items, tiny.nll, 1.0)["grad_norm"], model


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "kind", "recompute"),
    [
        ("llama", "choose", False),
        ("llama", "aligned", True),
        ("gemma3", "choose", False),
        ("gemma2", "aligned", False),
        ("gpt2", "choose", False),
    ],
)
def test_a_step_of_compiled_layers_is_that_of_plain_ones(name: str, kind: str, recompute: bool) -> None:
    items = played(kind)
    (plain, one), (found, other) = (
        step(name, items, recompute=recompute, compile_layers=compile_layers) for compile_layers in (False, True)
    )
    assert found == pytest.approx(plain, rel=1e-4)
    for (key, left), right in zip(one.named_parameters(), other.parameters(), strict=True):
        # AdamW's first step is as long for gradients near 0, such as those of biases of keys, whose sign is rounding
        assert left.ndim == 1 or ((left - right).abs() > 2e-4).float().mean() < 0.01, key


@pytest.mark.usefixtures("quick")
def test_layers_are_compiled_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def seen(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        calls.append(True)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", seen)
    _, model = step("llama", played("choose"), recompute=False, compile_layers=True)
    assert calls
    assert not model.compiled
    assert all("forward" not in vars(layer) for layer in decoder_layers(model))
    calls.clear()
    tiny.rollouts(model, tiny.tasks(2))
    assert not calls


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise OSError("no compiler here")

    torch.compiler.reset()
    monkeypatch.setattr(compiled, "BACKEND", broken)
    with pytest.raises(ModelError, match=r"cannot compile the layers .*OSError: no compiler here") as raised:
        step("llama", played("choose"), recompute=False, compile_layers=True)
    assert raised.value.hint == "set model.compile=false"


def test_other_errors_in_compiled_layers_pass_through() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="another"), compiled.in_place([(layer, layer.forward)]):
        raise RuntimeError("another")
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("other", ["model.sharding=fsdp", "model.attention=flash_attention_2"])
def test_what_was_never_tried_with_compiled_layers_is_refused(other: str) -> None:
    with pytest.raises(ConfigError, match=f"compile=true and {other.partition('.')[2]} cannot be combined"):
        load_config("toy", ["model.compile=true", other])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
def test_a_run_with_compiled_layers(tmp_path: Path) -> None:
    torch.compiler.reset()
    settings = ["model.compile=true", "model.adapter=lora", "ppo.iterations=1"]
    run_all(tiny.config(tiny.save(tmp_path / "model"), *settings), tmp_path / "run", say=Progress(quiet=True))
    assert (tmp_path / "run" / "results.json").exists()
