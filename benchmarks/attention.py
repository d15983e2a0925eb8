"""Our attention against torch's, as ratios of times measured in turn in one run: `python benchmarks/attention.py`.

Causal attention in bfloat16 on a CPU, forward and backward, as in training; and grouped heads over a long cache,
forward, as in play. One JSON object a line; a ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grue.models.attention import attention

REPETITIONS = 5
TRAINING = [
    (32, 8, 4, 200, 32),  # the embedded base and a batch of the main job
    (16, 4, 4, 64, 64),
    (8, 4, 2, 256, 64),
    (4, 8, 4, 512, 32),
]  # B, heads, key heads, L, dim
PLAY = [
    (64, 8, 4, 1, 512, 32),
    (64, 16, 2, 1, 1024, 64),
    (16, 8, 4, 24, 512, 32),
]  # B, heads, key heads, n, length, dim


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(ours: Callable[[], object], theirs: Callable[[], object]) -> dict[str, float]:
    """Medians of both, timed in turn, and their ratio."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(REPETITIONS)]
    mine, stock = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"ours_ms": round(1e3 * mine, 3), "sdpa_ms": round(1e3 * stock, 3), "ratio": round(stock / mine, 2)}


def training(batch: int, heads: int, key_heads: int, length: int, dim: int) -> dict[str, float]:
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = heads // key_heads, True
    shapes = ((batch, heads, length, dim), (batch, key_heads, length, dim), (batch, key_heads, length, dim))
    states = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]

    def step(function: Callable[..., tuple[torch.Tensor, None]]) -> Callable[[], object]:
        return lambda: function(module, *states, None)[0].sum().backward()

    return compare(step(attention), step(sdpa_attention_forward))


@torch.inference_mode()
def play(batch: int, heads: int, key_heads: int, n: int, length: int, dim: int) -> dict[str, float]:
    module = nn.Module()
    module.num_key_value_groups = heads // key_heads
    query = torch.randn(batch, heads, n, dim)
    key, value = (torch.randn(batch, key_heads, length, dim) for _ in range(2))
    mask = torch.zeros(batch, 1, n, length)
    return compare(
        lambda: attention(module, query, key, value, mask),
        lambda: sdpa_attention_forward(module, query, key, value, mask),
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(0)
    for shape in TRAINING:
        print(
            json.dumps({"bench": "attention, training", "B heads key_heads L dim": shape, **training(*shape)}),
            flush=True,
        )
    for shape in PLAY:
        print(json.dumps({"bench": "attention, play", "B heads key_heads n L dim": shape, **play(*shape)}), flush=True)


if __name__ == "__main__":
    main()
