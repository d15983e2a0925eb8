"""Recurrent layers in a ragged pass: padding that leaves states unchanged, and chunks no longer than what is read.

What a layer forgets and writes at a token is decided by gates that a projection gives: sigmoid and softplus of them in
a gated delta rule (Yang et al. 2024, arXiv:2412.06464), the softplus of a step size in Mamba-2 (Dao and Gu 2024,
arXiv:2405.21060). At minus infinity nothing is forgotten and nothing written: padding leaves a state unchanged.
Short convolutions have no gates; for them `StateLayer` keeps what came last before the padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# projections whose outputs are all gates, by the model_type of a decoder; () for layers that only have convolutions
_GATES: dict[str, tuple[str, ...]] = {
    "lfm2": (),
    "lfm2_moe": (),
    "olmo_hybrid": ("a_proj", "b_proj"),
    "qwen3_5_moe_text": ("in_proj_a", "in_proj_b"),
    "qwen3_5_text": ("in_proj_a", "in_proj_b"),
    "qwen3_next": ("in_proj_ba",),
}
# Mamba-2: the last columns of `in_proj` are step sizes, one for each head
_STEPS = frozenset({"bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"})
_DELTA_CHUNK = 64  # tokens that transformers' own version of the delta rule processes together, however few there are


class Recurrence:
    """The recurrent layers of a decoder. `pads`: can rows with different numbers of tokens be read together?"""

    def __init__(self, decoder: PreTrainedModel) -> None:
        kind = decoder.config.model_type
        layers: list[Any] = [module for module in decoder.modules() if hasattr(module, "A_log")]
        self._gates: dict[Any, int | None] = {}  # projection -> how many of its last columns are gates; None: all
        self._stepping: list[Any] = []
        self._by_the_rule = False
        self.pads = False
        if kind in _STEPS:
            self._gates = {layer.in_proj: layer.num_heads for layer in layers}
            self._stepping = layers
            # a minimum step size above 0 would change a state at padding
            self.pads = all(layer.time_step_limit[0] == 0 for layer in layers)
        elif kind in _GATES:
            self._gates = {getattr(layer, name): None for layer in layers for name in _GATES[kind]}
            self._by_the_rule = bool(self._gates)
            self.pads = True

    @contextmanager
    def reading(self, tokens: int, real_BL: torch.Tensor | None, *, on_cpu: bool) -> Iterator[dict[str, Any]]:
        """Inside, a pass over `tokens` of each row advances states by the real ones only (None: all are real).

        Yields extra arguments for the decoder. On a CPU chunks are no longer than the pass: otherwise a short pass
        would cost as much as a whole chunk.
        """
        given: dict[str, Any] = {}
        with ExitStack() as undo:
            if real_BL is not None:
                padding_BL1 = ~real_BL[..., None]
                for projection, columns in self._gates.items():
                    undo.callback(projection.register_forward_hook(_closing(padding_BL1, columns)).remove)
            if on_cpu and self._by_the_rule and tokens < _DELTA_CHUNK:
                given["chunk_size"] = tokens
            for layer in self._stepping if on_cpu else ():
                undo.callback(setattr, layer, "chunk_size", layer.chunk_size)
                layer.chunk_size = min(tokens, layer.chunk_size)
            yield given


def _closing(padding_BL1: torch.Tensor, columns: int | None) -> Any:
    def close(_module: Any, _given: Any, gates: torch.Tensor) -> None:
        (gates if columns is None else gates[..., -columns:]).masked_fill_(padding_BL1, float("-inf"))

    return close
