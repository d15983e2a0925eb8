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


def gemma3_pictures() -> PreTrainedConfig:
    """The same beside a tower that reads pictures, as the larger Gemma 3 come."""
    from transformers import Gemma3Config

    text = {**gemma3().to_dict(), "vocab_size": len(tiny.tokenizer()) + 4}
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    places = {"boi_token_index": text["vocab_size"] - 3, "eoi_token_index": text["vocab_size"] - 2}
    return Gemma3Config(
        text_config=text,
        vision_config={**tower, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=text["vocab_size"] - 1,
        **places,
    )


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


def gemma2() -> PreTrainedConfig:
    """Scores that are capped, which torch's attention cannot do; one layer with a window."""
    from transformers import Gemma2Config

    return Gemma2Config(**_shape(head_dim=16, sliding_window=16, attn_logit_softcapping=5.0))


def gemma4() -> PreTrainedConfig:
    """Heads of two sizes; the last two layers read keys that others have written."""
    from transformers import Gemma4TextConfig

    kinds = ["sliding_attention", "full_attention"] * 2
    shape = _shape(head_dim=16, sliding_window=16, layer_types=kinds, num_hidden_layers=4, global_head_dim=32)
    own = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}
    return Gemma4TextConfig(**shape, **own, vocab_size_per_layer_input=shape["vocab_size"])


def gpt_oss() -> PreTrainedConfig:
    """Attention with sinks, a choice of experts, one layer with a window."""
    from transformers import GptOssConfig

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return GptOssConfig(**_shape(head_dim=16, sliding_window=16, **experts))


def deepseek() -> PreTrainedConfig:
    """Keys and values from one small vector, of different sizes; a choice of experts in the second layer."""
    from transformers import DeepseekV3Config

    latent = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 24}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    more = {"first_k_dense_replace": 1, "moe_intermediate_size": 64, "num_key_value_heads": 4}
    return DeepseekV3Config(**_shape(**latent, **experts, **more))


def cohere() -> PreTrainedConfig:
    """Logits that are scaled down to a sixteenth."""
    from transformers import CohereConfig

    return CohereConfig(**_shape())


def granite() -> PreTrainedConfig:
    """Logits that are divided, and scales of its own everywhere."""
    from transformers import GraniteConfig

    return GraniteConfig(**_shape(logits_scaling=8.0, embedding_multiplier=12.0, residual_multiplier=0.5))


def phimoe() -> PreTrainedConfig:
    """A router that is a linear layer and gives back more than its product."""
    from transformers import PhimoeConfig

    return PhimoeConfig(**_shape(num_local_experts=4, num_experts_per_tok=2))


def mixtral() -> PreTrainedConfig:
    """A router and experts that are no linear layers."""
    from transformers import MixtralConfig

    return MixtralConfig(**_shape(num_local_experts=4, num_experts_per_tok=2))


def opt() -> PreTrainedConfig:
    """Hidden states that are narrowed before the output layer reads them, as those of OPT-350M."""
    from transformers import OPTConfig

    shape = {"hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "init_std": 0.3}
    words = {"vocab_size": len(tiny.tokenizer()), "max_position_embeddings": CONTEXT, "word_embed_proj_dim": 32}
    return OPTConfig(**shape, **words, do_layer_norm_before=False)


def phi3() -> PreTrainedConfig:
    """Frequencies that change where a text is longer than half the context."""
    from transformers import Phi3Config

    factors = {"short_factor": [1.0] * 8, "long_factor": [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    return Phi3Config(**_shape(rope_parameters=rope, original_max_position_embeddings=CONTEXT // 2))


def qwen3_5() -> PreTrainedConfig:
    """A state that is corrected rather than added to (Gated DeltaNet), and one layer that attends."""
    from transformers import Qwen3_5TextConfig

    # values of 64 in all: bitsandbytes may read 4-bit weights of fewer inputs wrongly
    states = {"linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_key_head_dim": 16}
    kinds = ["linear_attention", "full_attention"]
    return Qwen3_5TextConfig(**_shape(head_dim=16, layer_types=kinds), **states, linear_value_head_dim=8)


def qwen3_5_pictures() -> PreTrainedConfig:
    """The same beside a tower that reads pictures, as all Qwen3.5 come."""
    from transformers import Qwen3_5Config

    text = {**qwen3_5().to_dict(), "vocab_size": len(tiny.tokenizer()) + 4}
    places = {"image_token_id": 1, "video_token_id": 2, "vision_start_token_id": 3, "vision_end_token_id": 4}
    first = len(tiny.tokenizer()) - 1
    tower = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
    return Qwen3_5Config(
        text_config=text,
        vision_config={**tower, "patch_size": 4, "num_position_embeddings": 16},
        **{name: first + place for name, place in places.items()},
    )


def lfm2() -> PreTrainedConfig:
    """Short convolutions, which remember the last two tokens, and a layer that attends."""
    from transformers import Lfm2Config

    return Lfm2Config(**_shape(layer_types=["conv", "full_attention"]))


def granite_hybrid() -> PreTrainedConfig:
    """Layers of the second Mamba, one that attends, and logits with a scale (Granite 4)."""
    from transformers import GraniteMoeHybridConfig

    states = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
    experts = {"num_local_experts": 0, "shared_intermediate_size": 128, "logits_scaling": 4.0}
    return GraniteMoeHybridConfig(**_shape(layer_types=["linear_attention", "full_attention"]), **states, **experts)


def falcon_h1() -> PreTrainedConfig:
    """Attention and the second Mamba side by side in every layer."""
    from transformers import FalconH1Config

    states = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_d_state": 16, "mamba_chunk_size": 16}
    return FalconH1Config(**_shape(), **states, lm_head_multiplier=0.5)  # as published ones have, 1 by default


def jamba() -> PreTrainedConfig:
    """The first Mamba, which goes on by one token at a time, and a layer that attends without positions."""
    from transformers import JambaConfig

    states = {"mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False}
    kinds = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "num_experts_per_tok": 1}
    return JambaConfig(**_shape(), **states, **kinds)


def mamba() -> PreTrainedConfig:
    """No attention at all."""
    from transformers import MambaConfig

    names = ("vocab_size", "hidden_size", "num_hidden_layers", "bos_token_id", "eos_token_id")
    shape = {name: size for name, size in _shape().items() if name in names}
    return MambaConfig(**shape, state_size=8, initializer_range=0.3)


def qwen3_next() -> PreTrainedConfig:
    """As Qwen3.5, with one projection for both kinds of gates, and experts."""
    from transformers import Qwen3NextConfig

    # values of 64 in all: bitsandbytes may read 4-bit weights of fewer inputs wrongly
    states = {"linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_key_head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    experts["shared_expert_intermediate_size"] = 32
    kinds = ["linear_attention", "full_attention"]
    return Qwen3NextConfig(**_shape(head_dim=16, layer_types=kinds), **states, **experts, linear_value_head_dim=8)


def olmo_hybrid() -> PreTrainedConfig:
    """The same rule with gates that may take back more than was written."""
    from transformers import OlmoHybridConfig

    states = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 16}
    kinds = ["linear_attention", "full_attention"]
    return OlmoHybridConfig(**_shape(layer_types=kinds), **states, linear_value_head_dim=16)


def mamba2() -> PreTrainedConfig:
    """Nothing but the second Mamba."""
    from transformers import Mamba2Config

    names = ("vocab_size", "hidden_size", "num_hidden_layers", "bos_token_id", "eos_token_id", "pad_token_id")
    shape = {name: size for name, size in _shape().items() if name in names}
    return Mamba2Config(**shape, num_heads=8, head_dim=16, state_size=16, n_groups=2, chunk_size=16)


def bamba() -> PreTrainedConfig:
    from transformers import BambaConfig

    states = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
    return BambaConfig(**_shape(attn_layer_indices=[1]), **states)


def zamba2() -> PreTrainedConfig:
    """The second Mamba with a least step size, by which padding would move a state."""
    from transformers import Zamba2Config

    states = {"n_mamba_heads": 8, "mamba_d_state": 16, "chunk_size": 16, "mamba_headdim": 16, "mamba_ngroups": 1}
    return Zamba2Config(**_shape(layers_block_type=["mamba", "hybrid"], attention_head_dim=32), **states)


# played by the engine and no more
MORE_RECURRENT: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3_next": qwen3_next,
    "olmo_hybrid": olmo_hybrid,
    "mamba2": mamba2,
    "bamba": bamba,
}
RECURRENT: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3_5": qwen3_5,
    "lfm2": lfm2,
    "granite_hybrid": granite_hybrid,
    "falcon_h1": falcon_h1,
    "jamba": jamba,
    "mamba": mamba,
}
ALL: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": llama,
    "qwen3": qwen3,
    "falcon": falcon,
    "gemma3": gemma3,
    "gemma3_pictures": gemma3_pictures,
    "gpt2": gpt2,
    "phi": phi,
    "gemma2": gemma2,
    "gemma4": gemma4,
    "gpt_oss": gpt_oss,
    "deepseek": deepseek,
    "phimoe": phimoe,
    "cohere": cohere,
    "granite": granite,
    "mixtral": mixtral,
    "opt": opt,
    **RECURRENT,
    "qwen3_5_pictures": qwen3_5_pictures,
}


def save(folder: Path, name: str, tokenizer: Any = None) -> Path:
    """A folder that `model.name` can name."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ALL[name]()).eval().save_pretrained(folder)
    (tokenizer or tiny.tokenizer()).save_pretrained(folder)
    return folder
