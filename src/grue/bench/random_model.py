"""Models in the shape of real ones with random weights: what a real one costs, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grue.config import Config
from grue.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def make_model(
    folder: Path, config: Config, hidden: int, layers: int, key_heads: int | None = None, *, recurrent: bool = False
) -> Path:
    """A folder with random weights in bfloat16, heads of 64 and the inner layer 8/3 as wide, as Llama has them.

    Without `key_heads` each head has keys of its own; most current models share them between heads. With `recurrent`
    three of four layers keep a state instead of keys, as in Qwen3.5.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    from grue.models.tokenizer import load_tokenizer

    if hidden % 64:
        raise ConfigError(f"hidden={hidden} is not a multiple of 64", hint="4-bit weights and heads need one")
    heads = hidden // 64
    key_heads = key_heads or heads
    if heads % key_heads:
        raise ConfigError(f"{heads} heads cannot share {key_heads} sets of keys", hint=f"use a divisor of {heads}")
    tokenizer = load_tokenizer(config.model)
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": -(-8 * hidden // 3 // 64) * 64,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    hf_logging.disable_progress_bar()
    torch.manual_seed(config.seed)
    model = AutoModelForCausalLM.from_config(_recurrent(shape) if recurrent else _llama(shape), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _llama(shape: dict[str, Any]) -> PreTrainedConfig:
    from transformers import LlamaConfig

    return LlamaConfig(**shape)


def _recurrent(shape: dict[str, Any]) -> PreTrainedConfig:
    from transformers import Qwen3_5TextConfig

    heads, layers = shape["num_attention_heads"], shape["num_hidden_layers"]
    states: dict[str, Any] = {f"linear_{name}_head_dim": 64 for name in ("key", "value")}
    states |= {f"linear_num_{name}_heads": heads for name in ("key", "value")}
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)]
    return Qwen3_5TextConfig(**shape, **states, head_dim=64, layer_types=kinds)
