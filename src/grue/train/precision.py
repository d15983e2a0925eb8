"""Loss scaling for float16: gradients too small for the format are made larger (Micikevicius et al. 2018, 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from grue.errors import TrainingError
from grue.models.sharding import local

GROWTH_INTERVAL = 2000  # steps without an overflow after which the scale is doubled
PATIENCE = 25  # steps in a row that may overflow: from 2^16 the scale has then come down to far below 1


@dataclass(slots=True)
class LossScale:
    """A loss is multiplied by `scale`. A step that overflows is skipped and halves it."""

    scale: float = 2.0**16
    good_steps: int = 0
    skipped_in_a_row: int = 0
    skipped: int = 0  # in all

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the scale."""
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.scale)

    def accept(self) -> None:
        """Note a step without an overflow."""
        self.skipped_in_a_row, self.good_steps = 0, self.good_steps + 1
        if self.good_steps % GROWTH_INTERVAL == 0:
            self.scale *= 2

    def skip(self, problem: str, step: int) -> None:
        """Note a step that overflowed. TrainingError if that goes on: then the scale is not the cause."""
        self.skipped_in_a_row, self.good_steps = self.skipped_in_a_row + 1, 0
        self.skipped += 1
        self.scale /= 2
        if self.skipped_in_a_row >= PATIENCE:
            raise TrainingError(
                f"{problem} at optimiser step {step}, and in the {PATIENCE - 1} before it, whatever the loss scale",
                hint="use model.dtype=bfloat16 or float32, or lower the learning rate",
            )

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`, also of one stored before all skipped steps were counted."""
        self.scale = float(state["scale"])
        self.good_steps, self.skipped_in_a_row = int(state["good_steps"]), int(state["skipped_in_a_row"])
        self.skipped = int(state.get("skipped", 0))
