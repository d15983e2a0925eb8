"""What the ragged cache and tree masks require of an architecture, and masks for each kind of layer."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from grue.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

WAY_OUT = (
    "choose a decoder whose layers attend to earlier tokens by position, such as Llama, Qwen3, Gemma 3, GPT-2 or Phi, "
    "or keep a recurrent state in transformers' cache, such as Qwen3.5, LFM2, Granite 4 or Mamba"
)
ATTENDING = frozenset({"full_attention", "sliding_attention"})  # kinds of layers, as configurations name them
RECURRENT = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})  # hybrid: both in one layer
WITHOUT_MEMORY = frozenset({"mlp", "moe"})
# with Mamba 1's scan: a pass of several tokens starts from a state of zeros, whatever came before (transformers 5.23)
STEPWISE = frozenset({"mamba", "falcon_mamba", "jamba", "zamba"})
PASS_TOKENS = 2**15  # that play reads in one pass, unless a single text is longer: a pass takes memory for each
# modules that carry a state from token to token, possibly outside the cache
_RECURRENT = re.compile(r"mamba|rwkv|recurrent|deltanet|shortconv|xlstm|retention|linearattention", re.IGNORECASE)


class Window(NamedTuple):
    """Sliding layers of a model."""

    size: int | None  # tokens that a sliding layer sees; None without such layers
    mixed: bool  # whether other layers see all tokens


def check_architecture(model: PreTrainedModel) -> None:
    """ModelError, with the name of the architecture, where a model cannot be driven by position, mask and cache."""
    config = model.config.get_text_config()
    name = str(config.model_type)
    check_decoder(model.config)
    known = takes(model.get_decoder())
    if getattr(config, "is_decoder", True) is False and "encoder_hidden_states" in known:
        raise ModelError(f"{name} is an encoder, whose tokens see what comes after them", hint=WAY_OUT)
    recurrent = next((type(m).__name__ for m in model.modules() if _RECURRENT.search(type(m).__name__)), None)
    if recurrent is not None and not is_recurrent(config):
        raise ModelError(f"{name} keeps a recurrent state ({recurrent}) outside of the cache", hint=WAY_OUT)
    if getattr(config, "alibi", False):
        raise ModelError(
            f"{name} with alibi derives positions from a padding mask, not from position ids", hint=WAY_OUT
        )
    seeing = {"position_ids", "attention_mask"} if attends(config) else set()
    if missing := {cache_argument(model.get_decoder()), *seeing} - known:
        raise ModelError(f"the decoder of {name} takes no {min(missing)}, so it cannot be fed in parts", hint=WAY_OUT)
    sliding_window(config)


def takes(decoder: torch.nn.Module) -> set[str]:
    """The names of the arguments that a decoder takes."""
    return set(inspect.signature(decoder.forward).parameters)


def takes_places(decoder: torch.nn.Module) -> bool:
    """Does a decoder take positions and masks? One without attention takes neither."""
    return "position_ids" in takes(decoder)


def cache_argument(decoder: torch.nn.Module) -> str:
    """The name of a decoder's cache argument: transformers is renaming it, one architecture after another (5.24)."""
    known = takes(decoder)
    return next((name for name in ("past_key_values", "cache_params") if name in known), "cache")


def _layer_kinds(config: Any) -> set[str]:
    return set(getattr(config, "layer_types", None) or ())


def is_recurrent(config: PreTrainedConfig) -> bool:
    """Do some layers keep a state that moves on with every token, instead of keys and values by place?"""
    return bool(_layer_kinds(config) & RECURRENT)


def attends(config: PreTrainedConfig) -> bool:
    """Does any layer have attention, and so a use for positions and masks?"""
    kinds = _layer_kinds(config)
    return not kinds or bool(kinds - {"linear_attention", "conv"} - WITHOUT_MEMORY)


def check_reads_trees(config: PreTrainedConfig, what: str) -> None:
    """ConfigError for a recurrent model: `what` reads trees of actions, which a state would read as if one text."""
    if is_recurrent(config):
        raise ConfigError(
            f"{what} reads trees of actions, which {config.model_type}, with its recurrent layers, cannot",
            hint="set policy.kind=choose, which decides token by token among the same actions",
        )


def check_decoder(config: Any) -> None:
    """ModelError if a configuration is that of an encoder with a decoder."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{config.model_type} is an encoder with a decoder, which grue cannot play with", hint=WAY_OUT)


def freeze_towers(model: PreTrainedModel) -> None:
    """Freeze the parts that read images or sound: they learn nothing here, and no moments are kept for them."""
    text = [*model.get_decoder().parameters(), *model.get_output_embeddings().parameters()]
    inside = set(map(id, text))
    for parameter in model.parameters():
        if id(parameter) not in inside:
            parameter.requires_grad_(False)


def sliding_window(config: Any) -> Window:
    """The sliding layers that a configuration names. ModelError for layers of an unknown kind."""
    kinds = _layer_kinds(config)
    if unknown := kinds - ATTENDING - RECURRENT - WITHOUT_MEMORY:
        raise ModelError(
            f"{config.model_type} has layers of the kind {sorted(unknown)[0]!r}, whose state cannot be kept ragged",
            hint=WAY_OUT,
        )
    if getattr(config, "attention_layers", None):  # GPT-Neo
        raise ModelError(
            f"{config.model_type} decides what its layers see by place in the cache, not by position",
            hint=WAY_OUT,
        )
    window = getattr(config, "sliding_window", None)
    sliding = bool(kinds & {"sliding_attention", "hybrid_sliding"})
    slides = sliding or (not kinds and getattr(config, "use_sliding_window", True))
    return Window(int(window) if window is not None and slides else None, bool(kinds & {"full_attention", "hybrid"}))


def layer_masks(
    window: Window, seen: torch.Tensor, query_places: torch.Tensor, key_places: torch.Tensor, dtype: torch.dtype | None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Masks (B, 1, n, length) from what may be seen (B, n, length): one, or one for each kind where layers differ.

    `query_places` (B, n, 1) and `key_places` (B or 1, 1, length) are positions in the text, the unit of a window's
    size. `dtype` None gives bool masks; otherwise masks to add to the scores, with -inf where a token is not seen.
    """

    def mask(seen: torch.Tensor) -> torch.Tensor:
        if dtype is None:
            return seen[:, None]
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))[:, None]

    if window.size is None:
        return mask(seen)
    sliding = mask(seen & (key_places > query_places - window.size))
    return {"full_attention": mask(seen), "sliding_attention": sliding} if window.mixed else sliding


def masks_by_kind(masks: torch.Tensor | dict[str, torch.Tensor]) -> Any:
    """`layer_masks` in the form that a model with recurrent layers takes: those layers have no mask."""
    if not isinstance(masks, dict):
        return masks  # a mask with four axes: the model itself passes it to the layers that attend
    return masks | dict.fromkeys(("linear_attention", "conv"))
