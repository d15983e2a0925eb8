"""How much memory a run needs at most, reported before anything is loaded.

Weights, adapters, copies, moments and the cache are counted on a model without data ("meta" device); activations
follow what a transformer layer keeps for the backward pass (after Korthikanti et al. 2022, section 4.1), with segments
as long as `model.context`. So it is an upper estimate: real segments are shorter. Choices from the whole
vocabulary are counted apart: with 150,000 tokens a few hundred such choices outweigh a small model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicCache

from grue.config import Config, ModelConfig
from grue.hardware import memory_gib
from grue.launch import processes_here
from grue.models.adapter import adapted_matrices, matrices
from grue.models.architecture import PASS_TOKENS, STEPWISE, attends, cache_argument, is_recurrent, takes_places
from grue.models.load import compute_dtype, default_device, stored_dtype
from grue.models.reordered import reorders
from grue.models.scores import CHUNK
from grue.models.sharding import wants_shards
from grue.models.skeleton import TREE_KINDS, plain_attention, skeleton
from grue.models.stored import PACKED
from grue.names import FREE_TEXT
from grue.parallel import ALONE, Processes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GIB = 2**30
# what torch and the other libraries take; in main memory also what the heap retains (main job: 1.6 GiB in all)
LIBRARY_BYTES = {"cuda": GIB // 2, "cpu": 7 * GIB // 8}
# passes of different sizes leave gaps in the heap (SmolLM2-135M with LoRA: 10.4 GiB in all, where 9.9 were counted)
GAPS = {"cuda": 1.0, "cpu": 1.15}
FULL = 4  # bytes of a float32: what learns, its gradient, its moments
# bytes per weight: 4 bits and a doubly quantised scale for each 64 weights (QLoRA, section 3); 8 bits
QUANTISED = {"nf4": 0.5 + 0.127 / 8, "int8": 1.0}
MOMENTS = {"adamw": 8, "paged-adamw": 8, "adamw-8bit": 2, "paged-adamw-8bit": 2}
SCANNED_STATES, CHUNKED_STATES = 2.5, 0.5  # that recurrent layers keep for the backward pass, per token
# bytes per token of the vocabulary, measured as peaks (tests/models/vocabulary_peak.py): of a choice in free text, of
# one of CHUNK states in a tree, and of a game that is about to choose
FREE_NODE, FREE_NODE_WITH_REFERENCE, TREE_STATE = 24, 40, 16
FREE_TEXT_IN_PLAY, TREE_STATE_IN_PLAY = 44, 12
# how long a segment is together with the trees that are read beside it at once: what Sample.parts allows in any case,
# and the most in 16 games of cooking16, rounded up
WITH_TREES = {"score": 2.0, "aligned": 1.5}


@dataclass(frozen=True)
class Estimate:
    """Bytes by part: `always` is held throughout, and beside it either `playing` or `learning`."""

    always: dict[str, int]
    playing: dict[str, int]
    learning: dict[str, int]
    available: int
    reads_lists: bool = False  # whole actions are weighed, and games may list more than those that were measured

    @property
    def total(self) -> int:
        return sum(self.always.values()) + max(sum(self.playing.values()), sum(self.learning.values()))

    @property
    def fits(self) -> bool:
        return self.total <= self.available

    def line(self) -> str:
        """One line for people."""
        always, playing, learning = map(_listed, (self.always, self.playing, self.learning))
        but = ", more where hundreds of actions are listed" if self.reads_lists else ""
        words = f"memory  at most about {_gib(self.total)} of {_gib(self.available)} GiB{but}: {always}, "
        return words + f"and the larger of play ({playing}) and learning ({learning})"


def estimate(config: Config, processes: Processes = ALONE) -> Estimate:
    """What each of the run's processes needs on its device. Reads the model's config.json, and no weights."""
    model = skeleton(config.model)
    settings = config.model
    dtype = compute_dtype(settings.dtype, default_device())
    shards = processes.count if wants_shards(settings, processes) else 1
    learned = -(-learned_weights(model, settings) // shards) + _value_head(model)
    always = {
        "weights": weight_bytes(model, settings) // shards,
        # to start stages from the base again, and as the reference of PPO
        "copies": 2 * FULL * learned + _playing_copy(model, settings, dtype, whole=shards > 1),
        "optimiser": MOMENTS[settings.optimizer] * learned,
        "libraries": LIBRARY_BYTES[default_device()],
    }
    if settings.adapter == "lora":
        always["adapters"] = FULL * learned
    # two buffers while one grows into the other
    slots = max(config.ppo.slots, config.eval.slots, config.dagger.slots if config.dagger.rounds else 0)
    slots = -(-slots // processes.count)  # each plays its share
    places, states = cached_numbers(model)
    at_once = min(slots * settings.context, max(PASS_TOKENS, settings.context))
    playing = {
        "cache": int(1.5 * slots * (settings.context + 1) * places * dtype.itemsize) + slots * states * FULL,
        "a pass": int(GAPS[default_device()] * pass_bytes(model, settings, at_once, dtype)),
    }
    vocabulary = len(model.get_output_embeddings().weight)
    # a segment is read whole, however small micro-batches are
    tokens = [int(settings.context * WITH_TREES.get(config.policy.kind, 1.0))]
    tokens += [config.sft.micro_tokens, config.ppo.micro_tokens]
    tokens += [config.dagger.micro_tokens] if config.dagger.rounds else []
    learning = {
        "gradients": FULL * learned,
        "activations": int(GAPS[default_device()] * activation_bytes(model, settings, max(tokens), dtype)),
    }
    playing["vocabulary in play"], learning["vocabulary"] = vocabulary_bytes(config, vocabulary, max(tokens), slots)
    if default_device() == "cpu":  # it is kept in main memory
        learning["reference"] = reference_bytes(config, vocabulary)
    # processes with a GPU each have it to themselves
    sharing = processes_here() if processes.count > 1 and default_device() == "cpu" else 1
    return Estimate(always, playing, learning, available_bytes() // sharing, config.policy.kind in WITH_TREES)


def learned_weights(model: PreTrainedModel, config: ModelConfig) -> int:
    """Weights of the language model that learn."""
    if config.adapter == "none":
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    shapes = adapted_matrices(model, config.lora_targets).values()
    return sum(config.lora_rank * (inputs + outputs) + config.lora_dora * outputs for inputs, outputs in shapes)


def weight_bytes(model: PreTrainedModel, config: ModelConfig) -> int:
    """Bytes of the language model's own weights as they are loaded."""
    each = QUANTISED.get(config.quantize, getattr(model.config, "grue_stored_bytes", None))
    total, size = model.num_parameters(), stored_dtype(config).itemsize
    if each is None:
        return total * size
    quantised = _in_matrices(model)
    return int(quantised * each + (total - quantised) * size)


def _in_matrices(model: PreTrainedModel) -> int:
    """Weights of the linear layers."""
    return sum(inputs * outputs for inputs, outputs in matrices(model).values())


@lru_cache(maxsize=1)  # a model with hundreds of layers takes seconds, and is asked for twice
@torch.no_grad()
def cached_numbers(model: PreTrainedModel) -> tuple[int, int]:
    """Numbers that the cache holds: (for each token, for each sequence). Counted after one token, without data.

    `model` is on the "meta" device, where some mixtures of experts cannot run: for these, settings are used.
    """
    decoder = copy.deepcopy(model.get_decoder()).to(torch.bfloat16)  # experts can be multiplied in 16 bits only
    token = torch.zeros(1, 1, dtype=torch.long, device="meta")
    cache = DynamicCache(config=decoder.config)
    seeing = {}
    if takes_places(decoder):
        seeing = {"position_ids": token, "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16, device="meta")}
    try:
        decoder(input_ids=token, use_cache=True, **seeing, **{cache_argument(decoder): cache})
    except NotImplementedError:  # the choice of experts depends on the data
        layers = _layers(decoder.config)
        return sum(2 * int(one.num_key_value_heads) * _head_size(one) for one in layers), 0
    places, states = [], []
    for layer in cache.layers:
        places += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        states += [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()]
    return _numbers(places), _numbers(states)


def _numbers(tensors: Iterable[torch.Tensor | None]) -> int:
    return sum(tensor.numel() for tensor in tensors if tensor is not None)


def activation_bytes(model: PreTrainedModel, config: ModelConfig, tokens: int, dtype: torch.dtype) -> int:
    """Bytes kept for the backward pass of one micro-batch of `tokens`."""
    text: Any = model.config.get_text_config()
    b, hidden, layers = dtype.itemsize, int(text.hidden_size), int(text.num_hidden_layers)
    layer = _layer_bytes(model, config, tokens, b)
    if config.adapter == "lora":
        adapted = adapted_matrices(model, config.lora_targets).values()
        layer += b * sum(inputs + config.lora_rank for inputs, _ in adapted) // layers
    kept = FULL * hidden * layers + layer if config.gradient_checkpointing else layer * layers
    cast = 0
    # the copies that autocast makes of float32 weights; shards are gathered in 16 bits, and split again
    if config.adapter == "none" and dtype is not torch.float32 and config.sharding == "none":
        cast = b * _in_matrices(model)
    elif getattr(model.config, "grue_stored_method", None) in PACKED:  # autograd keeps what was unpacked for a product
        unpacked = b * _in_matrices(model)
        cast = unpacked // layers if config.gradient_checkpointing else unpacked
    return tokens * (kept + 3 * FULL * hidden) + cast


def pass_bytes(model: PreTrainedModel, config: ModelConfig, tokens: int, dtype: torch.dtype) -> int:
    """Bytes that one layer takes while a pass without gradients reads `tokens`: in play many games' texts at once."""
    hidden = int(model.config.get_text_config().hidden_size)
    return tokens * (_layer_bytes(model, config, tokens, dtype.itemsize) + 3 * FULL * hidden)


def _layer_bytes(model: PreTrainedModel, config: ModelConfig, tokens: int, b: int) -> int:
    """Bytes per token of what a layer computes, in a pass of `tokens`; numbers take `b` bytes."""
    text: Any = model.config.get_text_config()
    layer = _recurrent_layer(model, b) if is_recurrent(text) else _attending_layer(model, b)
    # the first Falcon hands torch one head of keys for all queries, for which it has no kernel without whole scores
    single = text.model_type == "falcon" and text.multi_query and not text.new_decoder_architecture
    if attends(text) and (plain_attention(model, config) == "eager" or single):
        layer += (FULL + b) * int(text.num_attention_heads) * min(config.context, tokens)
    return layer


def _attending_layer(model: PreTrainedModel, b: int) -> int:
    """Bytes that a layer keeps of a token, where all of them attend; numbers take `b` bytes."""
    text: Any = model.config.get_text_config()
    hidden, layers = int(text.hidden_size), int(text.num_hidden_layers)
    queries = sum(int(one.num_attention_heads) * _head_size(one) for one in _layers(text)) // layers
    inner = int(getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden)
    keys = cached_numbers(model)[0] // (2 * layers)
    # two norms, computed in float32; inputs of the projections; queries, keys, values, output; the inner layer
    return 2 * (FULL + FULL) * hidden + b * (2 * hidden + 2 * queries + 2 * keys + 4 * inner)


def _recurrent_layer(model: PreTrainedModel, b: int) -> int:
    """The same where some layers keep a state, on average; measured with the implementations of transformers itself.

    Inputs and outputs of products, twice, and states: in a scan several for every token, else one for some tokens.
    """
    text: Any = model.config.get_text_config()
    products = sum(inputs + outputs for inputs, outputs in matrices(model.get_decoder()).values())
    copies = SCANNED_STATES if text.model_type in STEPWISE else CHUNKED_STATES
    states = FULL * copies * cached_numbers(model)[1]
    return int(2 * b * products + states) // int(text.num_hidden_layers)


def vocabulary_bytes(config: Config, vocabulary: int, tokens: int, slots: int) -> tuple[int, int]:
    """Bytes over the vocabulary: (in play of `slots` games, in learning from a micro-batch of `tokens`)."""
    kind = config.policy.kind
    if kind in TREE_KINDS:
        # some of the states at a time, and in play also those at which the trees begin
        return TREE_STATE_IN_PLAY * (CHUNK + slots) * vocabulary, TREE_STATE * CHUNK * vocabulary
    if kind == "choose":
        return 0, 0
    nodes = min(tokens, written_tokens(config) * -(-tokens // config.model.context))
    node = FREE_NODE_WITH_REFERENCE if config.ppo.kl_coef > 0 else FREE_NODE
    return FREE_TEXT_IN_PLAY * slots * vocabulary, node * nodes * vocabulary


def reference_bytes(config: Config, vocabulary: int) -> int:
    """Bytes of what the reference says of a minibatch of free text."""
    if config.policy.kind not in FREE_TEXT or config.ppo.kl_coef == 0 or not config.ppo.iterations:
        return 0
    episodes = -(-config.ppo.episodes_per_iteration // config.ppo.minibatches)
    return FULL * episodes * written_tokens(config) * vocabulary


def written_tokens(config: Config) -> int:
    """How many tokens a policy of free text writes in a game, at most."""
    each = config.policy.thought_tokens if config.policy.kind == "think" else config.policy.reply_tokens
    return config.game.limit * each


def available_bytes() -> int:
    """Memory of the device that the model goes to."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(memory_gib() * GIB)


def _value_head(model: PreTrainedModel) -> int:
    from grue.models.value import ValueHead, state_width

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ValueHead(state_width(model)).parameters())


def _playing_copy(model: PreTrainedModel, config: ModelConfig, dtype: torch.dtype, *, whole: bool) -> int:
    """Bytes of the copy of a model that learns in float32 or in shards, and plays in another format or whole."""
    copied = whole or (config.adapter == "none" and dtype is not torch.float32)
    if not copied:
        return 0
    twice = not whole and reorders(default_device(), dtype)
    return (model.num_parameters() + twice * _in_matrices(model)) * dtype.itemsize


def _layers(config: Any) -> list[Any]:
    """The configuration of each layer: in Gemma 4 the size of heads differs between layers."""
    if getattr(config, "is_heterogeneous", False):
        return list(config.per_layer_config)
    return [config] * int(config.num_hidden_layers)


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_gib(size)}" for name, size in parts.items() if size >= GIB // 100) or "little"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB else f"{size / GIB:.2f}"
