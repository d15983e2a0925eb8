"""What the ragged key-value cache and tree masks ask of an architecture, and masks for each kind of its layers."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from grue.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WAY_OUT = (
    "choose a decoder whose layers attend to earlier tokens by position, such as Llama, Qwen3, Gemma 3, GPT-2 or Phi"
)
# modules that carry a state from token to token, which cannot be cut off where a row of a ragged batch ends
_RECURRENT = re.compile(r"mamba|rwkv|recurrent|deltanet|shortconv|xlstm|retention|linearattention", re.IGNORECASE)


class Window(NamedTuple):
    """Sliding layers of a model."""

    size: int | None  # tokens that a sliding layer sees; None without such layers
    mixed: bool  # other layers see all


def check_architecture(model: PreTrainedModel) -> None:
    """ModelError, with the name of the architecture, where a model cannot be driven by position, mask and cache."""
    config = model.config.get_text_config()
    name = str(config.model_type)
    check_decoder(model.config)
    takes = set(inspect.signature(model.get_decoder().forward).parameters)
    if getattr(config, "is_decoder", True) is False and "encoder_hidden_states" in takes:
        raise ModelError(f"{name} is an encoder, whose tokens see what comes after them", hint=WAY_OUT)
    recurrent = next((type(m).__name__ for m in model.modules() if _RECURRENT.search(type(m).__name__)), None)
    if recurrent is not None:
        raise ModelError(f"{name} keeps a recurrent state ({recurrent}) that cannot be kept ragged", hint=WAY_OUT)
    if getattr(config, "alibi", False):
        raise ModelError(
            f"{name} with alibi derives positions from a padding mask, not from position ids", hint=WAY_OUT
        )
    if missing := {cache_argument(model.get_decoder()), "position_ids", "attention_mask"} - takes:
        raise ModelError(f"the decoder of {name} takes no {min(missing)}, so it cannot be fed in parts", hint=WAY_OUT)
    sliding_window(config)


def cache_argument(decoder: torch.nn.Module) -> str:
    """What a decoder calls its key-value cache: transformers renames it, one architecture after the other (5.24)."""
    takes = inspect.signature(decoder.forward).parameters
    return "past_key_values" if "past_key_values" in takes else "cache"


def check_decoder(config: Any) -> None:
    """ModelError where a configuration is of an encoder with a decoder."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{config.model_type} is an encoder with a decoder, which grue cannot play with", hint=WAY_OUT)


def freeze_towers(model: PreTrainedModel) -> None:
    """What reads pictures or sound beside the text learns nothing here; no moments are kept for it."""
    text = [*model.get_decoder().parameters(), *model.get_output_embeddings().parameters()]
    inside = set(map(id, text))
    for parameter in model.parameters():
        if id(parameter) not in inside:
            parameter.requires_grad_(False)


def sliding_window(config: Any) -> Window:
    """The sliding layers that a configuration names. ModelError for layers that are neither sliding nor full."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{config.model_type} has layers of the kind {sorted(unknown)[0]!r}, whose state cannot be kept ragged",
            hint=WAY_OUT,
        )
    if "local" in (getattr(config, "attention_layers", None) or ()):  # GPT-Neo
        raise ModelError(
            f"{config.model_type} cuts the window of its local layers by places in the cache, not by position",
            hint=WAY_OUT,
        )
    window = getattr(config, "sliding_window", None)
    slides = not kinds or "sliding_attention" in kinds
    if not getattr(config, "use_sliding_window", True) and "sliding_attention" not in kinds:
        slides = False
    return Window(int(window) if window is not None and slides else None, "full_attention" in kinds)


def layer_masks(
    window: Window, seen: torch.Tensor, query_places: torch.Tensor, key_places: torch.Tensor, dtype: torch.dtype | None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Masks (B, 1, n, length) from what may be seen (B, n, length): one, or one for each kind where layers differ.

    `query_places` (B, n, 1) and `key_places` (B or 1, 1, length) are positions in the text, which a window is measured
    in. `dtype` None gives bool masks; else what is not seen is -inf, which is added to the scores.
    """

    def mask(seen: torch.Tensor) -> torch.Tensor:
        if dtype is None:
            return seen[:, None]
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))[:, None]

    if window.size is None:
        return mask(seen)
    sliding = mask(seen & (key_places > query_places - window.size))
    return {"full_attention": mask(seen), "sliding_attention": sliding} if window.mixed else sliding
