"""Models of a few thousand random weights in architectures that differ in what the engine has to mind."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

import architectures
import tiny

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def llama() -> PreTrainedModel:
    return tiny.llama()


def gpt2() -> PreTrainedModel:
    """Learned positions, one fused projection, biases."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=320, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()


def qwen3() -> PreTrainedModel:
    """Normalised queries and keys, a head size that is not hidden / heads."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        **SIZES,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def gemma3() -> PreTrainedModel:
    """One layer that sees the last 16 tokens only, one that sees all."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **SIZES,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return Gemma3ForCausalLM(config).eval()


def mistral() -> PreTrainedModel:
    """All layers see the last 10 tokens only."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        **SIZES,
        max_position_embeddings=256,
        sliding_window=10,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return MistralForCausalLM(config).eval()


def falcon() -> PreTrainedModel:
    """Multi-query attention: one key head for all query heads, attention and MLP side by side."""
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        multi_query=True,
        parallel_attn=True,
        alibi=False,
        bias=False,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return FalconForCausalLM(config).eval()


def phi() -> PreTrainedModel:
    """Rotary positions on half of each head, biases everywhere, also in the output layer."""
    from transformers import PhiConfig, PhiForCausalLM

    config = PhiConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        partial_rotary_factor=0.5,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = PhiForCausalLM(config).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    return model


def _of(name: str) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config((architectures.ALL | architectures.MORE_RECURRENT)[name]()).eval()


def gemma2() -> PreTrainedModel:
    return _of("gemma2")


def gpt_oss() -> PreTrainedModel:
    return _of("gpt_oss")


def deepseek() -> PreTrainedModel:
    return _of("deepseek")


def gemma4() -> PreTrainedModel:
    return _of("gemma4")


def _named(name: str) -> Callable[[], PreTrainedModel]:
    def make() -> PreTrainedModel:
        return _of(name)

    make.__name__ = name
    return make


def zamba2() -> PreTrainedModel:
    """The second Mamba with a least step size, by which padding would move a state."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(architectures.zamba2()).eval()


RECURRENT = [_named(name) for name in architectures.RECURRENT]
MORE_RECURRENT = [_named(name) for name in architectures.MORE_RECURRENT]
ARCHITECTURES = [llama, gpt2, qwen3, gemma3, mistral, falcon, phi, gemma2, gpt_oss, deepseek, gemma4]


# What cannot be driven.


def rwkv() -> PreTrainedModel:
    from transformers import RwkvConfig, RwkvForCausalLM

    return RwkvForCausalLM(RwkvConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2))


def t5() -> PreTrainedModel:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))


def falcon_with_alibi() -> PreTrainedModel:
    from transformers import FalconConfig, FalconForCausalLM

    return FalconForCausalLM(
        FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    )


def bloom() -> PreTrainedModel:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2))


def bert() -> PreTrainedModel:
    from transformers import BertConfig, BertLMHeadModel

    return BertLMHeadModel(
        BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    )


def doge() -> PreTrainedModel:
    """Takes all that a cache needs, and then makes masks of its own."""
    from transformers import DogeConfig, DogeForCausalLM

    return DogeForCausalLM(
        DogeConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
