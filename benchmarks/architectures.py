"""Every architecture that transformers calls a causal language model, made small: driven, refused or not made.

`python benchmarks/architectures.py [NAME ...]` prints a line for each and counts at the end. "driven" means that three
texts of different lengths, fed in two parts, give the same logits as a plain pass over each of them (float32).

`--train` goes on with a run of each: demonstrations, SFT and PPO of `toy` with LoRA, then the export of the adapter and
of the merged model. "trained" means that both copies, loaded by peft and transformers, read the policy's recorded game
as it was played.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from grue import stages
from grue.config import load_config
from grue.errors import ModelError
from grue.models.architecture import is_recurrent
from grue.models.load import embedded_folder
from grue.models.policy_model import PolicyModel
from grue.models.skeleton import check_model
from grue.policy.drivable import check_drivable, gap_in_parts
from grue.progress import Progress
from grue.stages.export import WHAT, export_run

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY = 1536  # of the tokenizer of the embedded base
LARGEST, SECONDS = 30_000_000, 25
SAME = 1e-4  # of logits, relative to their norm
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
SHORT = (  # settings of a run that trains little and takes seconds
    *("model.adapter=lora", "model.lora_rank=4", "model.dtype=float32", "model.context=384", "threads=1"),
    *("game.limit=8", "demos.games=8", "sft.epochs=2", "sft.episodes_per_batch=4", "sft.learning_rate=0.01"),
    *("ppo.iterations=1", "ppo.episodes_per_iteration=8", "ppo.slots=8", "ppo.minibatches=2", "ppo.dev_games=2"),
    *("sft.warmup_steps=0", "ppo.warmup_iterations=0", "ppo.learning_rate=0.01"),
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


def train(lm: PreTrainedModel, folder: Path) -> float:
    """The largest distance of the log-probabilities of a recorded game between the policy and its exports."""
    model, run = folder / "model", folder / "run"
    lm.save_pretrained(model)
    AutoTokenizer.from_pretrained(embedded_folder()).save_pretrained(model)
    kind = "choose" if is_recurrent(lm.config.get_text_config()) else "aligned"
    config = load_config("toy", [f"model.name={model}", f"policy.kind={kind}", *SHORT])
    say = Progress(silent=True)
    check_model(config.model, config.policy)
    for stage in ("demos", "sft", "ppo"):
        stages.run_stage(stage, config, run, say=say)
    return max(float(export_run(run, what=what, say=say)["largest"]) for what in WHAT)


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


def examine(name: str, *, training: bool = False) -> tuple[str, str]:
    """(driven, trained, untrained, differs, refused, crashed or not made; why)."""
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
    if gap >= SAME or not training:
        return "driven" if gap < SAME else "differs", f"{gap:.0e}, {model.config._attn_implementation}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            return "trained", f"{train(model, Path(folder)):.0e}"
    except Exception as error:  # of grue, or of what it calls
        return "untrained", f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a model_type of transformers; all by default")
    parser.add_argument("--train", action="store_true", help="also train each of them, and export it")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    counts: Counter[str] = Counter()
    for name in arguments.names or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        found, why = examine(name, training=arguments.train)
        counts[found] += 1
        print(f"{found:9} {name:28} {' '.join(why.split())[:120]}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.most_common()))


if __name__ == "__main__":
    main()
