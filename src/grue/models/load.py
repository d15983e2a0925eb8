"""Load a causal LM and its tokenizer: the embedded base, a hub name, or a folder."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grue.config import ModelConfig
from grue.errors import ModelError, needs
from grue.hardware import native_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "embedded"


def embedded_folder() -> Path:
    """The folder of the base that ships with the package; plain transformers loads it too."""
    return Path(str(files("grue.models"))) / EMBEDDED


def compute_dtype(name: str, device: str) -> torch.dtype:
    """The number format of matrix products. "auto" is bfloat16 where the hardware has it natively, else float32."""
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if native_bfloat16() else torch.float32


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(model, tokenizer). Weights that learn are float32; remote code and pickled weights are refused.

    Raises ModelError with the name where nothing can be loaded from it.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    source = str(embedded_folder()) if config.name == EMBEDDED else config.name
    if config.name == EMBEDDED and not (embedded_folder() / "model.safetensors").exists():
        raise ModelError("this installation has no embedded base", hint="make one with: grue pretrain")
    safe: dict[str, Any] = {"trust_remote_code": False, "revision": config.revision}
    options: dict[str, Any] = {"use_safetensors": True, "attn_implementation": "sdpa", **_quantization(config)}
    if "quantization_config" not in options:
        options["dtype"] = torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **safe)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, **safe, **options)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"cannot load the model {config.name!r}: {reason[0] if reason else error!r}",
            hint="model.name is 'embedded', a folder with config.json and *.safetensors, or a hub name",
        ) from error
    if config.adapter == "lora":
        model = _with_adapter(model, config)
    if "quantization_config" not in options:
        model = model.to(default_device())  # type: ignore[arg-type]  # its wrapper has lost `self`
    return model, tokenizer


def _quantization(config: ModelConfig) -> dict[str, Any]:
    if config.quantize == "none":
        return {}
    needs("bitsandbytes", feature=f"model.quantize={config.quantize}")
    from transformers import BitsAndBytesConfig

    if config.quantize == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    dtype = compute_dtype(config.dtype, default_device())
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        ),
        "dtype": dtype,
    }


def _with_adapter(model: PreTrainedModel, config: ModelConfig) -> PreTrainedModel:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if config.quantize != "none":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    targets: str | list[str] = config.lora_targets
    if targets != "all-linear":
        targets = [name.strip() for name in config.lora_targets.split(",")]
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    adapted: PreTrainedModel = get_peft_model(model, lora)  # type: ignore[assignment]
    return adapted
