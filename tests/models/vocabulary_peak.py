"""Run as a program: how much memory a step or a draw takes at most for a vocabulary of 151,936 tokens, in bytes.

`python vocabulary_peak.py learning|sft|trees|playing COUNT`: a process of its own, whose peak can only grow.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from grue.config import PPOConfig, SFTConfig
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decoding, draw
from grue.policy.write import nucleus
from grue.rollout.pack import Sample
from grue.train.learner import Learner
from grue.train.ppo_update import ppo_loss
from grue.train.sft import sft_loss
from grue.types import Branch, Candidate, Observation, Turn

VOCABULARY = 151_936  # of Qwen3
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}


def learning(learner: Learner, what: str, count: int) -> None:
    """A step on a turn with `count` choices among the whole vocabulary, or with trees of as many states."""
    if what == "trees":
        candidates = tuple(Candidate((5 + number, 7), 1.0) for number in range(count))
        turn = _turn((Branch(0, tuple(range(count)), 0),), candidates)
    else:
        turn = _turn(tuple(Branch(place, range(VOCABULARY), 7) for place in range(count)), ())
    loss = partial(ppo_loss, cfg=PPOConfig(kl_coef=0), turns=1, entropy_coef=0.01, policy=True)
    if what == "sft":
        loss = partial(sft_loss, cfg=SFTConfig(), nodes=count)
    learner.step([Sample(tuple(range(5, 6 + count)), (turn,), (1.0,), (0.0,))], loss, 1.0)


def _turn(branches: tuple[Branch, ...], candidates: tuple[Candidate, ...]) -> Turn:
    return Turn(Observation("", "", "", None, 0.0), "", 0.0, branches=branches, candidates=candidates)


@torch.inference_mode()
def playing(model: PolicyModel, count: int) -> None:
    """A token of free text for each of `count` games."""
    logits = model.vocabulary_logits(torch.randn(count, SHAPE["hidden_size"]))
    logits = logits.masked_fill(~nucleus(logits, 0.9), float("-inf"))
    draw(logits, [VOCABULARY] * count, [random.Random(row) for row in range(count)], Decoding())


def main(what: str, count: int) -> None:
    torch.set_num_threads(1)
    model = PolicyModel(Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, num_key_value_heads=1, **SHAPE))).eval()
    learner = Learner(model, learning_rate=1e-4, weight_decay=0, max_grad_norm=1, micro_tokens=10**6, dtype="float32")
    do: Callable[[int], None] = partial(playing, model) if what == "playing" else partial(learning, learner, what)
    do(2)  # gradients and moments, which are other parts of the estimate
    before = peak()
    do(count)
    print(peak() - before)


def peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says counts the program that started this one, too
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
