"""Gradient checkpointing: activations are recomputed in the backward pass (Chen et al. 2016)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torch import nn

from grue.errors import ModelError
from grue.models.attention import own_attention
from grue.models.compiled import Compiled, in_place

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grue.models.policy_model import PolicyModel


def check_recomputing(model: PreTrainedModel) -> None:
    """ModelError if no layer of a model can recompute its activations."""
    if not (decoder_layers(model) and model.supports_gradient_checkpointing):
        raise ModelError(
            f"{model.config.model_type} cannot recompute its activations",
            hint="set model.gradient_checkpointing=false and a smaller micro_tokens",
        )


def prepare_recomputing(model: PreTrainedModel) -> None:
    """Enable recomputing in the layers; they do so inside `training`. ModelError if the model has no such layers."""
    check_recomputing(model)
    with warnings.catch_warnings():  # the new name is not in all versions
        warnings.filterwarnings("ignore", message="`gradient_checkpointing_enable` is deprecated")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in decoder_layers(model):
        # see `training`: the same switch would turn on these layers' own dropout
        for name in [name for name in vars(layer) if "dropout" in name]:
            if isinstance(getattr(layer, name), float):
                setattr(layer, name, 0.0)
    config = model.config.get_text_config()
    for name in ("hidden_dropout", "attention_dropout", "activation_dropout", "dropout", "layerdrop"):
        if isinstance(getattr(config, name, None), float):
            setattr(config, name, 0.0)


@contextmanager
def training(
    model: PolicyModel, *, dropout: bool, recompute: bool, attention: str = "sdpa", compiled: Compiled = ()
) -> Iterator[None]:
    """Set up the model for one optimiser step; afterwards it is ready for play, without dropout, all else as before.

    transformers recomputes a layer only if its `training` switch is on, and PPO trains with it off, since dropout would
    change log-probs. So the switch of the layers themselves is on, that of the modules inside is as `dropout` says.
    """
    model.train(dropout)
    layers = decoder_layers(model) if recompute else []
    for layer in layers:
        layer.training = True
    decoder = model.base_lm().get_decoder()
    config = decoder.config
    stock = config._attn_implementation
    if attention.startswith("flash"):
        config._attn_implementation = attention
    model.compiled = bool(compiled)
    try:
        with own_attention(decoder) if recompute and not compiled else nullcontext(), in_place(compiled):
            yield
    finally:
        model.compiled = False
        config._attn_implementation = stock
        model.eval()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that a transformer repeats, in their order."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
