"""Every architecture that transformers calls a causal language model, made small: driven, refused or not made.

`python benchmarks/architectures.py [NAME ...]` prints a line for each and counts at the end. "driven" means that three
texts of different lengths, fed in two parts, give the same logits as a plain pass over each of them (float32).
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from grue.errors import ModelError
from grue.models.policy_model import PolicyModel
from grue.policy.drivable import check_drivable, gap_in_parts

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY, LARGEST, SECONDS = 600, 30_000_000, 25
LENGTHS = {70: 30, 5: 2, 41: 40}  # of texts -> tokens of the first part
SMALL: dict[int, tuple[str, ...]] = {  # by the names that configurations give to sizes
    1: ("bos_token_id", "n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "attn_layer_offset"),
    2: ("eos_token_id", "num_experts_per_tok", "moe_k", "encoder_layers", "decoder_layers", "attn_layer_period"),
    4: (
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_attention_heads", "n_head", "n_heads"),
        *("num_heads", "num_key_value_heads", "decoder_attention_heads", "encoder_attention_heads"),
        *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ),
    8: ("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "mamba_n_heads"),
    16: ("head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim", "hidden_size_per_layer_input", "mamba_d_head"),
    32: ("moe_intermediate_size", "shared_expert_intermediate_size", "sliding_window", "attention_window"),
    64: ("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"),
    96: ("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    512: ("max_position_embeddings", "n_positions", "max_seq_len"),
    VOCABULARY: ("vocab_size", "vocab_size_per_layer_input"),
}
SIZES = {name: size for size, names in SMALL.items() for name in names} | {"pad_token_id": 0}
# tried in turn: some configurations contradict themselves when made small
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": 8},
    {"head_dim": None},
    {"layer_types": None},
    {"head_dim": None, "layer_types": None},
    {"num_key_value_heads": 2, "head_dim": None},
    {"layer_types": None, "mamba_d_ssm": 128},
    {"layer_types": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]},
    {"layer_types": ["conv", "full_attention"] * 2},
    {"layer_types": None, "num_experts_per_tok": 1},
    {"num_heads": 16, "head_dim": 8},
)


def small(name: str, change: dict[str, Any]) -> PreTrainedConfig:
    """The configuration of an architecture with small sizes, and with each kind of its layers."""
    kind = CONFIG_MAPPING[name]
    stock = kind()
    sizes: dict[str, Any] = {key: size for key, size in SIZES.items() if _has(stock, key)}
    if kinds := getattr(stock, "layer_types", None):
        sizes["layer_types"] = (list(dict.fromkeys(kinds)) * 4)[:4]
    given = {key: size for key, size in {**sizes, **change}.items() if size is not None and _has(stock, key)}
    return kind(**given)


def _has(config: PreTrainedConfig, key: str) -> bool:
    return key in vars(config) or key in config.attribute_map


def made(name: str) -> PreTrainedModel:
    """A small model that can read three tokens; the first error if no change of sizes helps."""
    reasons = []
    for change in CHANGES:
        try:
            torch.manual_seed(0)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(small(name, change)).eval().float()
            if model.num_parameters() > LARGEST:
                raise ValueError(f"{model.num_parameters():,} parameters")
            model(torch.tensor([[5, 6, 7]]), use_cache=False)
        except TimeoutError:
            raise
        except Exception as error:  # whatever a model raises at sizes it was not made for
            reasons.append(error)
        else:
            return model
    raise reasons[0]


def trial(lm: PreTrainedModel) -> float:
    """The largest distance of logits, relative to their norm; ModelError if the model is refused."""
    model = PolicyModel(lm)
    check_drivable(model)
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, VOCABULARY - 10, (length,), generator=draw).tolist() for length in LENGTHS]
    return gap_in_parts(model, texts, list(LENGTHS.values()))


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """TimeoutError after `seconds`: some models cannot be made small by these names."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not made in {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def examine(name: str) -> tuple[str, str]:
    """(driven, differs, refused, crashed or not made; why)."""
    try:
        with limited(SECONDS):
            model = made(name)
    except Exception as error:  # anything may fail with sizes like these, which says nothing about grue
        return "not made", f"{type(error).__name__}: {error}"
    try:
        gap = trial(model)
    except ModelError as error:
        return "refused", error.message
    except Exception as error:  # what this program looks for
        return "crashed", f"{type(error).__name__}: {error}"
    return "driven" if gap < 1e-4 else "differs", f"{gap:.0e}, {model.config._attn_implementation}"


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    for name in sys.argv[1:] or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        found, why = examine(name)
        counts[found] += 1
        print(f"{found:9} {name:28} {' '.join(why.split())[:120]}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.most_common()))


if __name__ == "__main__":
    main()
