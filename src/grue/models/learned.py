"""The weights that learn: all of a model's, or those of its adapter, and the value head's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from grue.errors import CheckpointError
from grue.models.sharding import assign


def learned(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def copy_of_learned(model: nn.Module) -> dict[str, torch.Tensor]:
    """Their present values, for `load_weights`."""
    return {name: parameter.detach().clone() for name, parameter in learned(model).items()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy stored weights into the parameters that learn. CheckpointError where names or shapes differ."""
    own = learned(model)
    if set(own) != set(weights):
        odd = sorted(set(own) ^ set(weights))[0]
        raise CheckpointError(
            f"the checkpoint is of another model: only one of the two has {odd}", hint="check model.* settings"
        )
    for name, parameter in own.items():
        there, here = tuple(weights[name].shape), tuple(parameter.shape)
        if there != here:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} has shape {there}, not {here}",
                hint="check model.* settings",
            )
        assign(parameter, weights[name])
