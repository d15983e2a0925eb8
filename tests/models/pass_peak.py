"""Run as a program: how much memory a pass of play takes at most that reads the texts of all games, in bytes.

`python pass_peak.py llama|falcon|gemma2 GAMES TOKENS`: a process of its own, whose peak can only grow.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, FalconConfig, Gemma2Config, LlamaConfig, PreTrainedModel
from vocabulary_peak import peak

from grue.engine.engine import Engine

LAYERS = 2
GROUPED: dict[str, Any] = {"intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4}
CONFIGS = {
    "llama": LlamaConfig(vocab_size=512, hidden_size=256, num_hidden_layers=LAYERS, **GROUPED),
    "gemma2": Gemma2Config(vocab_size=512, hidden_size=256, num_hidden_layers=LAYERS, head_dim=32, **GROUPED),
    "falcon": FalconConfig(vocab_size=512, hidden_size=512, num_hidden_layers=LAYERS, num_attention_heads=16),
}


def model(name: str) -> PreTrainedModel:
    attention = "eager" if name == "gemma2" else "sdpa"
    made: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention)
    return made.eval()


def main(name: str, games: int, tokens: int) -> None:
    torch.set_num_threads(1)
    engine = Engine(model(name), games, tokens)
    engine.feed([0], [[5] * 4])
    engine.reset(0)
    before = peak()
    engine.feed(list(range(games)), [[5] * tokens] * games)
    print(peak() - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
