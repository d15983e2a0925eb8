"""Models of a few thousand random weights in the architectures that people use, saved as folders with a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiny

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONTEXT = 512


def _shape(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tiny.tokenizer()),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "bos_token_id": tiny.tokenizer().bos_token_id,
        "eos_token_id": tiny.tokenizer().eos_token_id,
        "pad_token_id": None,
        **changes,
    }


def llama() -> PreTrainedConfig:
    from transformers import LlamaConfig

    return LlamaConfig(**_shape(tie_word_embeddings=True))


def qwen3() -> PreTrainedConfig:
    """Normalised queries and keys; heads that are larger than hidden / heads."""
    from transformers import Qwen3Config

    return Qwen3Config(**_shape(head_dim=32))


def falcon() -> PreTrainedConfig:
    """One key head for all, attention and inner layer side by side."""
    from transformers import FalconConfig

    shape = _shape(new_decoder_architecture=False, multi_query=True, parallel_attn=True, hidden_dropout=0.1)
    return FalconConfig(**{k: v for k, v in shape.items() if k != "num_key_value_heads"})


def gemma3() -> PreTrainedConfig:
    """One layer with a window, one without."""
    from transformers import Gemma3TextConfig

    kinds = ["sliding_attention", "full_attention"]
    return Gemma3TextConfig(**_shape(head_dim=8, sliding_window=16, layer_types=kinds))


def gpt2() -> PreTrainedConfig:
    """Learned positions, biases, matrices the other way round."""
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=len(tiny.tokenizer()), n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, initializer_range=0.3
    )


def phi() -> PreTrainedConfig:
    """Rotation of a part of each head, a bias in the output layer."""
    from transformers import PhiConfig

    return PhiConfig(**_shape(num_key_value_heads=4))


ALL: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": llama,
    "qwen3": qwen3,
    "falcon": falcon,
    "gemma3": gemma3,
    "gpt2": gpt2,
    "phi": phi,
}


def save(folder: Path, name: str, tokenizer: Any = None) -> Path:
    """A folder that `model.name` can name."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ALL[name]()).eval().save_pretrained(folder)
    (tokenizer or tiny.tokenizer()).save_pretrained(folder)
    return folder
