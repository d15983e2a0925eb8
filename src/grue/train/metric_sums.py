"""What a loss function gives for a micro-batch: checked, and added up over the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from grue.errors import TrainingError

_LOGGED = {"loss", "grad_norm", "loss_scale", "skipped"}  # what a step says of itself


def loss_and_metrics(found: Any) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """What a loss function gave. TrainingError if one that a user wrote gave something else than loss and metrics."""
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        hint = "return loss, {}: the dict is of metrics"
        raise TrainingError(f"the loss function gave {type(found).__name__}, not a pair", hint=hint)
    loss, metrics = found
    for what, value in (("the loss", loss), *((f"the metric {name!r}", value) for name, value in metrics.items())):
        if not isinstance(value, torch.Tensor):
            raise TrainingError(f"{what} is a {type(value).__name__}", hint="loss and metrics are tensors")
        if value.ndim:
            hint = "sum it over the turns: a micro-batch gives one number"
            raise TrainingError(f"{what} has the shape {tuple(value.shape)}", hint=hint)
    if torch.is_grad_enabled() and not loss.requires_grad:
        hint = "compute it from the reading, without detach() and torch.no_grad()"
        raise TrainingError("the loss has no gradient", hint=hint)
    taken = _LOGGED & metrics.keys()
    if taken:
        raise TrainingError(f"a metric is named {min(taken)!r}, which step gives itself", hint="name it otherwise")
    return loss, metrics


def add_up(sums: dict[str, torch.Tensor], metrics: Mapping[str, torch.Tensor]) -> None:
    """Add up on the device: reading a number would wait for all work under way."""
    for name, value in metrics.items():
        more = value.detach().double()
        sums[name] = sums[name] + more if name in sums else more


def as_numbers(sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The sums as Python numbers, copied from the device at once."""
    return dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True)) if sums else {}
