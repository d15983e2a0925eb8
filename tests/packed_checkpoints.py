"""Checkpoints that come quantised, written by hand: GPTQ, AWQ and compressed-tensors, in 4 bits.

None of the libraries is needed to write them, and beside each lies the same model in ordinary weights. Scales are
powers of two, so that every weight is the same number in float32 and in 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import architectures
import tiny

GROUP = 32  # weights that share a scale
BITS, ZERO = 4, 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the eight numbers in an integer

Tensors = dict[str, torch.Tensor]


def save(folder: Path, method: str, architecture: str = "llama") -> tuple[Path, Path]:
    """(quantised, plain): two folders that `model.name` can name, with the same weights but for their format."""
    from safetensors.torch import load_file, save_file

    plain = architectures.save(folder / "plain", architecture)
    weights = load_file(plain / "model.safetensors")
    names = [name.removesuffix(".weight") for name in weights if name.endswith("_proj.weight")]
    rounded, packed = dict(weights), dict(weights)
    for name in names:
        integers, scales = _rounded(weights[f"{name}.weight"])
        rounded[f"{name}.weight"] = (integers - ZERO).float() * scales.repeat_interleave(GROUP, 1)
        del packed[f"{name}.weight"]
        packed |= {f"{name}.{part}": tensor for part, tensor in FORMATS[method](integers, scales).items()}
    save_file(rounded, plain / "model.safetensors", metadata={"format": "pt"})
    quantised = say_quantised(plain, folder / method, SETTINGS[method])
    save_file({n: t.contiguous() for n, t in packed.items()}, quantised / "model.safetensors", {"format": "pt"})
    return quantised, plain


def say_quantised(plain: Path, folder: Path, settings: Mapping[str, Any]) -> Path:
    """A copy of a model without its weights, whose config.json says how they are quantised."""
    folder.mkdir(exist_ok=True)
    about = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "quantization_config": settings}))
    tiny.tokenizer().save_pretrained(folder)
    return folder


def _rounded(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(integers from 0 to 15, scale of each group) of a matrix of outputs by inputs."""
    groups_OGI = weight_OI.unflatten(1, (-1, GROUP))
    scales_OG = torch.exp2((groups_OGI.abs().amax(2) / (ZERO - 1)).log2().ceil())
    integers = (groups_OGI / scales_OG[..., None]).round().clamp(-ZERO, ZERO - 1) + ZERO
    return integers.flatten(1).to(torch.int32), scales_OG


def _packed(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight numbers of the last axis in each integer, the first in the lowest bits."""
    shifts = torch.arange(8, dtype=torch.int64) * BITS
    eights = numbers.long().unflatten(-1, (-1, 8))[..., list(order)]
    return (eights << shifts).sum(-1).to(torch.uint32).view(torch.int32)


def _gptq(integers_OI: torch.Tensor, scales_OG: torch.Tensor) -> Tensors:
    zeros_GO = torch.full_like(scales_OG.T, ZERO - 1)  # stored less one
    return {
        "qweight": _packed(integers_OI).T,
        "qzeros": _packed(zeros_GO),
        "scales": scales_OG.T.half(),
        "g_idx": torch.arange(integers_OI.shape[1], dtype=torch.int32) // GROUP,
    }


def _awq(integers_OI: torch.Tensor, scales_OG: torch.Tensor) -> Tensors:
    zeros_GO = torch.full_like(scales_OG.T, ZERO)
    return {
        "qweight": _packed(integers_OI.T, AWQ_ORDER),
        "qzeros": _packed(zeros_GO, AWQ_ORDER),
        "scales": scales_OG.T.half(),
    }


def _compressed(integers_OI: torch.Tensor, scales_OG: torch.Tensor) -> Tensors:
    return {
        "weight_packed": _packed(integers_OI),
        "weight_scale": scales_OG.bfloat16(),
        "weight_shape": torch.tensor(integers_OI.shape),
    }


FORMATS: dict[str, Callable[[torch.Tensor, torch.Tensor], Tensors]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
}
SETTINGS = {
    "gptq": {
        "quant_method": "gptq", "bits": BITS, "group_size": GROUP, "desc_act": False, "sym": True,
        "checkpoint_format": "gptq", "damp_percent": 0.01, "true_sequential": True, "static_groups": False,
    },
    "awq": {
        "quant_method": "awq", "bits": BITS, "group_size": GROUP, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None,
    },
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "kv_cache_scheme": None, "global_compression_ratio": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"], "input_activations": None, "output_activations": None,
                "weights": {
                    "num_bits": BITS, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP,
                    "dynamic": False, "actorder": None, "observer": "minmax", "observer_kwargs": {},
                },
            }
        },
    },
}  # fmt: skip
