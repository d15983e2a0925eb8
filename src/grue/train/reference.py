"""The reference policy: what the trained weights were when PPO began, swapped in for a forward pass.

Only weights that learn are kept. With an adapter, that is the adapter as SFT or DAgger left it, and not a second model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from grue.models.learned import copy_of_learned
from grue.models.sharding import local


class Reference:
    """A copy of the parameters of `model` that learn."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept = copy_of_learned(model)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the reference's weights inside this block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if name in self._kept:
                    # swap numbers, not memory: FSDP keeps its own views of the shards
                    mine, other = local(parameter), local(self._kept[name])
                    held = mine.clone()
                    mine.copy_(other)
                    other.copy_(held)
