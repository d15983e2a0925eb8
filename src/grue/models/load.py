"""Load a causal LM and its tokenizer: the embedded base, a hub name, or a folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from grue import heap
from grue.config import ModelConfig
from grue.errors import ModelError
from grue.hardware import native_bfloat16
from grue.models.adapter import with_adapter
from grue.models.architecture import freeze_towers
from grue.models.attention import attend_without_plans
from grue.models.checkpointing import prepare_recomputing
from grue.models.norms import fuse_norms
from grue.models.out_of_memory import is_out_of_memory
from grue.models.quantization import (
    check_packed,
    check_reading,
    compute_in,
    is_quantised,
    keep_unpacked,
    loading_options,
    mend_8bit,
    ordinary_layers,
)
from grue.models.skeleton import check_attention, plain_attention, skeleton
from grue.models.sources import EMBEDDED, UNREADABLE, cannot_load, embedded_folder, safe_options, source_of
from grue.models.stored import mend_unpacking, stored_options
from grue.models.tokenizer import check_context, check_tokenizer, load_tokenizer
from grue.models.weight_files import check_weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_log = logging.getLogger(__name__)

__all__ = ["EMBEDDED", "compute_dtype", "default_device", "embedded_folder", "load_base", "load_model"]


def compute_dtype(name: str, device: str) -> torch.dtype:
    """The number format of matrix products.

    "auto" is bfloat16 if the hardware has it natively, else float32 on a CPU and float16 on a GPU.
    """
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if native_bfloat16() else torch.float32


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(config: ModelConfig, *, device: str | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(model, tokenizer), ready to learn, on `device`: a GPU if there is one.

    Weights that learn are float32, frozen ones have the format of products.

    Remote code and pickled weights are refused. Raises ModelError with the name where nothing can be loaded from it,
    ConfigError where settings do not fit the model or a package is missing.
    """
    heap.keep_few_kernels()
    attend_without_plans()
    model, tokenizer = load_base(config, device=device)
    if config.adapter == "lora":
        model = with_adapter(model, config)
        if not is_quantised(model):
            model = model.to(device or default_device())  # type: ignore[arg-type]  # its wrapper has lost `self`
    if config.gradient_checkpointing:
        prepare_recomputing(model)
    return model, tokenizer


def load_base(
    config: ModelConfig, *, dtype: torch.dtype | None = None, device: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(model, tokenizer) without an adapter, on `device`. `dtype` replaces the format that `config` asks for."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    check_attention(config.attention)
    shape = skeleton(config)
    check_weight_files(config)
    wanted = dtype or stored_dtype(config)
    tokenizer = load_tokenizer(config)
    check_tokenizer(config.name, tokenizer, shape)
    check_context(config.name, shape, config.context)
    device, stored = device or default_device(), shape.config.grue_stored_method
    options: dict[str, Any] = {
        "use_safetensors": True,
        "ignore_mismatched_sizes": True,  # they are named below
        "attn_implementation": plain_attention(shape, config),
        "dtype": wanted,
        **loading_options(config, wanted),
        **stored_options(stored, device),
    }
    method = "bitsandbytes" if config.quantize != "none" else stored
    try:
        with ordinary_layers(shape.config.model_type, method):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source_of(config), **safe_options(config), **options, output_loading_info=True
            )
    except (*UNREADABLE, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise cannot_load(config.name, error) from error
    model: PreTrainedModel = loaded[0]
    _check_whole(config.name, loaded[1])
    _warn_unread(config.name, model, loaded[1])
    freeze_towers(model)
    if stored == "bitsandbytes":
        compute_in(model, wanted)
    if method == "bitsandbytes":
        check_packed(config.name, model)
    keep_unpacked(model)
    mend_unpacking(model)
    mend_8bit(model)
    fuse_norms(model)
    check_reading(config.name, model)
    if not is_quantised(model):
        model = model.to(device)  # type: ignore[arg-type]
    return model.eval(), tokenizer


def _check_whole(name: str, info: Mapping[str, Any]) -> None:
    """ModelError if tensors are missing or of the wrong shape: transformers would fill them with random numbers.

    `info` is what `from_pretrained` reports about loading.
    """
    odd = [f"{key} is {tuple(stored)}, not {tuple(asked)}" for key, stored, asked in sorted(info["mismatched_keys"])]
    missing = sorted(info["missing_keys"])
    if not odd and not missing:
        return
    found = odd or missing
    said = "of other shapes than config.json asks for" if odd else "missing, though config.json asks for them"
    raise ModelError(
        f"{len(found)} of the weights of {name!r} are {said}: {', '.join(found[:3])}{', ...' if found[3:] else ''}",
        hint="fetch or save the model again; its files are incomplete, or from different models",
    )


def _warn_unread(name: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Warn of a decoder's tensors that are in the files but not used: config.json may be the wrong one."""
    parts = {
        ".".join(key.split(".")[:2]) for key, _ in model.named_parameters()
    }  # towers that were not loaded are not among them
    unread = sorted(key for key in info["unexpected_keys"] if ".".join(key.split(".")[:2]) in parts)
    if unread:
        listing = f"{', '.join(unread[:3])}{', ...' if unread[3:] else ''}"
        _log.warning(
            "%d weights of %s are left out, as config.json does not ask for them: %s", len(unread), name, listing
        )


def stored_dtype(config: ModelConfig) -> torch.dtype:
    """The number format in which a model's weights are held: float32 where they learn."""
    return torch.float32 if config.adapter == "none" else compute_dtype(config.dtype, default_device())
