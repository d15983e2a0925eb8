"""The copy that plays in 16 bits: its weights are rounded, and nothing else."""

from __future__ import annotations

from contextlib import closing

import torch
from torch import nn
from transformers import AutoModelForCausalLM

import architectures
from grue import games
from grue.config import ModelConfig
from grue.games.play import play
from grue.games.teachers import teacher
from grue.models.casting import cast
from grue.models.load import load_model
from grue.models.policy_model import PolicyModel
from grue.policy.actor import Actor
from grue.prompts.tokens import Encoder


@torch.no_grad()
def test_late_tokens_are_read_as_exactly_as_early_ones() -> None:
    """Rotary frequencies that are rounded, too, turn a token by an angle that grows with its position."""
    lm, tokenizer = load_model(ModelConfig(context=4096))
    encoder, ids = Encoder(tokenizer), []
    with closing(games.make("toy")) as game:
        for task in games.tasks("toy", "", "train", 30, count=40):
            for turn in play(game, task, teacher("random", game)).turns:
                ids += [*encoder.observation(turn.observation.text), *encoder.action(turn.action)]
    ids = ids[:2000]
    assert len(ids) == 2000

    def read(model: PolicyModel) -> torch.Tensor:
        logits = model.lm(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    trained = PolicyModel(lm).eval()
    rounding = (read(Actor(trained, "bfloat16").model) - read(trained)).abs()
    early, late = float(rounding[:500].mean()), float(rounding[1000:].mean())
    assert 0 < late < 1.5 * early  # with rounded frequencies 4 times as much


def test_what_an_architecture_wants_in_float32_stays_so() -> None:
    router = AutoModelForCausalLM.from_config(architectures.deepseek())
    wanted = {name for name, _ in router.named_buffers() if name.endswith(("e_score_correction_bias", "inv_freq"))}
    cast(router, torch.bfloat16)
    assert wanted
    assert {name for name, buffer in router.named_buffers() if buffer.dtype is torch.float32} == wanted
    strict = router._keep_in_fp32_modules_strict or ()  # since transformers 5.24 the router's weights, too
    others = {w.dtype for name, w in router.named_parameters() if not any(part in name for part in strict)}
    assert others == {torch.bfloat16}


def test_weights_that_an_architecture_wants_in_float32_stay_so() -> None:
    model = nn.ModuleDict({"gate": nn.Linear(4, 4), "inner": nn.Linear(4, 4)})
    model.register_parameter("packed", nn.Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False))
    model._keep_in_fp32_modules_strict = {"gate"}  # type: ignore[assignment]
    cast(model, torch.bfloat16)
    assert {w.dtype for w in model["gate"].parameters()} == {torch.float32}
    assert {w.dtype for w in model["inner"].parameters()} == {torch.bfloat16}
    assert model.packed.dtype is torch.uint8
