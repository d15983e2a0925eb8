"""Checkpoints whose weights come quantised: with bitsandbytes, GPTQ, AWQ, or as compressed-tensors."""

from __future__ import annotations

import logging
import shlex
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grue.config import ModelConfig
from grue.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# methods, and the packages that read them; peft wants all of gptqmodel's, and no older one, for both of its methods
LIBRARIES_OF = {
    "gptq": ("gptqmodel>=7", "optimum>=1.24"),
    "awq": ("gptqmodel>=7", "optimum>=1.24"),
    "compressed-tensors": ("compressed-tensors>=0.15",),
    "bitsandbytes": ("bitsandbytes",),
}
PACKED = ("gptq", "awq")  # which gptqmodel keeps packed, and unpacks for each product
GROUP = 128  # weights that share a scale, where config.json does not say


def stored_method(raw: Mapping[str, Any]) -> str | None:
    """How the weights of a checkpoint with this config.json are quantised; None where they are not."""
    settings = raw.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    bits = "bitsandbytes" if settings.get("load_in_4bit") or settings.get("load_in_8bit") else "unknown"
    return str(settings.get("quant_method") or bits).lower()


def stored_bytes(raw: Mapping[str, Any]) -> float | None:
    """Bytes for each weight of a layer that stays quantised, its share of a scale included; None where none does."""
    method = stored_method(raw)
    if method not in (*PACKED, "bitsandbytes"):  # others become ordinary weights
        return None
    settings = raw["quantization_config"]
    if method == "bitsandbytes":
        return 1.0 if settings.get("load_in_8bit") else 0.52
    number, group = settings.get("bits", 4) / 8, settings.get("group_size", GROUP)
    return float(number + (2 + number) / group if group > 0 else number)


def check_stored(config: ModelConfig, raw: Mapping[str, Any]) -> None:
    """Raise an error if a checkpoint that comes quantised cannot be read here, or not with these settings."""
    method = stored_method(raw)
    if method is None:
        return
    if method not in LIBRARIES_OF:
        raise ModelError(
            f"{config.name!r} is quantised with {method!r}, which grue does not load",
            hint=f"known are {', '.join(LIBRARIES_OF)}; or take the full-precision model and model.quantize=nf4",
        )
    missing = [library for library in LIBRARIES_OF[method] if not _is_installed(library)]
    if missing:
        raise ModelError(
            f"{config.name!r} is quantised with {method}, which needs {' and '.join(missing)}",
            hint=f"pip install {shlex.join(missing)}; or take the full-precision model and model.quantize=nf4",
        )
    if config.quantize != "none":
        raise ConfigError(
            f"model.quantize={config.quantize}, but {config.name!r} is quantised already ({method})",
            hint="set model.quantize=none",
        )
    if config.adapter != "lora" and stored_bytes(raw) is not None:
        raise ConfigError(
            f"the weights of {config.name!r} are quantised ({method}) and cannot learn", hint="set model.adapter=lora"
        )
    if config.lora_dora and method in PACKED:
        raise ConfigError(
            f"model.lora_dora=true, but peft has no DoRA for weights quantised with {method}, as {config.name!r} has",
            hint="set model.lora_dora=false",
        )


def _is_installed(requirement: str) -> bool:
    """Is a package there, in this version (of up to two numbers) or a later one?"""
    name, _, oldest = requirement.partition(">=")
    try:
        found = version(name)
    except PackageNotFoundError:
        return False
    return [int(n) for n in found.split(".")[:2] if n.isdigit()] >= [int(n) for n in oldest.split(".") if n]


def stored_options(method: str | None, device: str) -> dict[str, Any]:
    """What `from_pretrained` is given to read a checkpoint that comes quantised; {} where it needs nothing."""
    if method not in (*PACKED, "compressed-tensors"):
        return {}
    # `quantization_config` says only how to load, as is meant
    warnings.filterwarnings("ignore", message="You passed `quantization_config` or equivalent parameters")
    if method == "compressed-tensors":
        from transformers import CompressedTensorsConfig

        # the library would do so at the first pass, too late for an adapter
        return {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    from transformers import AwqConfig, GPTQConfig
    from transformers.utils.quantization_config import AwqBackend

    quiet_gptqmodel()
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
    # The kernels that gptqmodel would choose pass no gradients on. Those for CPUs and training do until the first pass
    # without gradients, here in play, and then no longer, without a word.
    settings = GPTQConfig(bits=4, backend="torch") if method == "gptq" else AwqConfig(backend=AwqBackend.TORCH_AWQ)
    place = torch.cuda.current_device() if device == "cuda" else device
    return {"quantization_config": settings, "device_map": {"": place}}


def quiet_gptqmodel() -> None:
    """Silence what gptqmodel tells of itself and its progress on stdout, where our own JSON may be wanted."""
    if find_spec("logbar") is not None:
        from logbar import LogBar

        LogBar.shared().setLevel(logging.ERROR)
    # optimum looks at every property of a model, so at a loss that it does not have
    logging.getLogger("transformers.modeling_utils").addFilter(_is_not_of_a_loss)


def _is_not_of_a_loss(record: logging.LogRecord) -> bool:
    return "`loss_type=None`" not in record.getMessage()


def is_packed(module: object) -> bool:
    """Is it a linear layer of gptqmodel?"""
    return hasattr(module, "qweight")


def mend_unpacking(model: nn.Module) -> None:
    """Have gptqmodel unpack weights by the code as it is written, and AWQ's layers compute in float32 where asked to.

    That code would be compiled anew for each mode of autograd, which needs a C++ compiler and takes seconds each time.
    """
    vars(model).pop("hf_device_map", None)  # all is on one device; on a CPU it is taken for a model that was moved off
    for module in model.modules():
        if is_packed(module):
            vars(module).pop("dequantize_weight", None)
            if type(module).__name__ == "AwqTorchLinear":
                module.forward = partial(_awq_product, module, module.forward)


def _awq_product(layer: Any, forward: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    """`forward` turns states that are not in 16 bits into float16."""
    if states.dtype is not torch.float32:
        return forward(states)
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    weight_IO = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, layer.bits, layer.group_size).float()
    return nn.functional.linear(states, weight_IO.T, None if layer.bias is None else layer.bias.float())


@torch.no_grad()
def unpacked(model: PreTrainedModel) -> PreTrainedModel:
    """The model with ordinary linear layers in place of gptqmodel's, with the numbers that these compute with.

    What a layer gives for the unit matrix are its weights, whatever its method.
    """
    layers: dict[str, Any] = {name: module for name, module in model.named_modules() if is_packed(module)}
    for name, layer in layers.items():
        bias, layer.bias = layer.bias, None
        unit = torch.eye(layer.in_features, dtype=model.dtype, device=layer.qweight.device)
        plain = nn.Linear(layer.in_features, layer.out_features, bias=bias is not None, device="meta")
        plain.weight = nn.Parameter(layer(unit).T.float().contiguous())
        if bias is not None:
            plain.bias = nn.Parameter(bias.float())
        model.set_submodule(name, plain)
    quantizer: Any = model.hf_quantizer
    quantizer.remove_quantization_config(model)
    return model
