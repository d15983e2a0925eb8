"""Frozen weights in 4 or 8 bits, quantised by bitsandbytes as they are loaded."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from grue.config import ModelConfig
from grue.errors import ModelError, needs

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)

NF4_ERROR = 0.09  # relative, of normally distributed weights in blocks of 64 (measured)


def check_quantisable(name: str, architecture: str, method: str | None) -> None:
    """ModelError if an architecture multiplies directly with weights that this method would pack."""
    if method is not None and architecture in ("mamba", "falcon_mamba"):
        raise ModelError(
            f"{name!r} cannot be quantised: {architecture} multiplies with weights that {method} would pack",
            hint="take weights that are not quantised, with model.adapter=lora, or a later Mamba",
        )


def loading_options(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """What `from_pretrained` is given to quantise while it loads; {} where nothing is to be quantised."""
    if config.quantize == "none":
        return {}
    needs("bitsandbytes", feature=f"model.quantize={config.quantize}")
    import bitsandbytes  # noqa: F401
    from transformers import BitsAndBytesConfig

    if config.quantize == "int8":
        # warned at every layer that is not in float16, as ours are not
        warnings.filterwarnings("ignore", message="MatMul8bitLt: inputs will be cast")
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    }


@contextmanager
def ordinary_layers(architecture: str, method: str | None) -> Iterator[None]:
    """Inside, Falcon is built of ordinary linear layers: bitsandbytes skips subclasses without a word."""
    if architecture != "falcon" or method != "bitsandbytes":
        yield
        return
    from transformers.models.falcon import modeling_falcon

    own: Any = modeling_falcon.FalconLinear
    setattr(modeling_falcon, "FalconLinear", torch.nn.Linear)  # noqa: B010
    try:
        yield
    finally:
        setattr(modeling_falcon, "FalconLinear", own)  # noqa: B010


def check_packed(name: str, model: PreTrainedModel) -> None:
    """ModelError if bitsandbytes has packed no layer of a model; a warning if it has packed less than half of it."""
    layers: list[Any] = [one for one in model.modules() if type(one).__name__ in ("Linear4bit", "Linear8bitLt")]
    if not layers:
        raise ModelError(
            f"bitsandbytes packs none of the layers of {name!r} ({model.config.model_type})",
            hint="take model.quantize=none, with model.adapter=lora",
        )
    packed = sum(layer.in_features * layer.out_features for layer in layers)
    tables = [one for one in model.modules() if isinstance(one, torch.nn.Embedding)]
    aside = {id(one.weight) for one in (*layers, *tables, model.get_output_embeddings())}
    plain = sum(p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in aside)
    if packed < plain:
        _log.warning(
            "only %.0f %% of the weights of %s are quantised: bitsandbytes leaves the experts of a mixture as they are",
            100 * packed / (packed + plain),
            name,
        )


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Have a model that was stored in 4 or 8 bits compute in `dtype`, whatever its other weights were stored in."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point() and not hasattr(parameter, "quant_state"):
                parameter.data = parameter.data.to(dtype)
        if hasattr(module, "compute_dtype"):
            setattr(module, "compute_dtype", dtype)  # noqa: B010


def mend_8bit(model: nn.Module) -> None:
    """Let 8-bit layers take inputs of four dimensions, as in latent attention, and keep their scales beside DoRA.

    On a CPU peft replaces their weight when it reads it, and the scales, which bitsandbytes then looks for there, are
    only in the layer's state.
    """
    for module in model.modules():
        if type(module).__name__ == "Linear8bitLt":
            module.forward = partial(_mended, module, module.forward)


def _mended(layer: Any, forward: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    if layer.weight.CB is not None and layer.weight.SCB is None:
        layer.weight.SCB = layer.state.SCB
    if states.ndim < 4:
        return forward(states)
    products: torch.Tensor = forward(states.flatten(0, -3)).unflatten(0, states.shape[:-2])
    return products


def keep_unpacked(model: nn.Module) -> None:
    """Have bitsandbytes leave 4-bit weights as they are when it computes on a CPU.

    On a CPU with AVX512-BF16 it repacks them at the first pass without gradients, here in play. Anything that reads
    the weights afterwards (a merge, a move) then silently reads them wrongly (bitsandbytes#2078).
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010


@torch.no_grad()
def check_reading(name: str, model: nn.Module) -> None:
    """ModelError where bitsandbytes reads 4-bit weights of this model's shapes wrongly on this device.

    On CPUs version 0.50 silently does so for most numbers of inputs that are not a multiple of 64: the policy would
    be consistent, but another model. So first a matrix of each width is quantised and dequantised.
    """
    layers = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    widths: dict[int, torch.device] = {layer.in_features: layer.weight.device for layer in layers}  # type: ignore[misc]
    if not widths:
        return
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    generator = torch.Generator().manual_seed(0)
    for width, device in widths.items():
        matrix = torch.randn(64, width, generator=generator).to(device)
        error = (dequantize_4bit(*quantize_4bit(matrix, quant_type="nf4")) - matrix).norm() / matrix.norm()
        if not float(error) < 2 * NF4_ERROR:
            raise ModelError(
                f"bitsandbytes reads 4-bit weights of {width} inputs wrongly on {device.type}, as {name!r} has them "
                f"(error {float(error):.2f} instead of {NF4_ERROR})",
                hint="use model.quantize=int8, a GPU, or a model whose widths are multiples of 64",
            )


def is_quantised(model: nn.Module) -> bool:
    """Does the model hold weights that cannot be cast, moved or merged like others?"""
    return getattr(model, "hf_quantizer", None) is not None or bool(getattr(model, "is_quantized", False))
