"""Can the engine drive a model? Tested on a few tokens: there are more architectures than rules could cover."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grue.engine.engine import Engine
from grue.errors import ModelError, first_line
from grue.models.architecture import WAY_OUT
from grue.models.out_of_memory import is_out_of_memory
from grue.models.policy_model import PolicyModel
from grue.models.quantization import is_quantised

PARTS = ((7, 5), (1, 2), (20, 1))  # tokens of texts that are read together, in two parts each
TOLERANCE = 1e-2  # of the logits' length
COARSE = 0.3  # the same in 16 bits or less, where rounding may send a token to another expert


@torch.inference_mode()
def check_drivable(model: PolicyModel) -> None:
    """ModelError, naming the model type, if texts read in two parts give other logits than when read whole."""
    lm = model.lm
    name = lm.config.get_text_config().model_type
    texts = [[(7 * place + 3) % model.vocabulary for place in range(sum(parts))] for parts in PARTS]
    try:
        gap = gap_in_parts(model, texts, [first for first, _ in PARTS])
    except ModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # such errors say nothing of the architecture, others mostly do
        broken = isinstance(error, (AttributeError, TypeError)) and (model.has_adapter or is_quantised(lm))
        hint = "try it without model.quantize, model.lora_dora and model.lora_rslora, one at a time"
        raise ModelError(
            f"{name} cannot be fed in parts: {first_line(error)}", hint=hint if broken else WAY_OUT
        ) from error
    exact = next(lm.parameters()).dtype is torch.float32 and not getattr(lm, "is_quantized", False)
    if not gap <= (TOLERANCE if exact else COARSE):
        raise ModelError(
            f"{name} gives other logits when a text is read in parts (they differ by {gap:.0%})", hint=WAY_OUT
        )


@torch.inference_mode()
def gap_in_parts(model: PolicyModel, texts: Sequence[Sequence[int]], firsts: Sequence[int]) -> float:
    """The largest distance between the last logits of texts read together in two parts (firsts[i] tokens first) and
    those of each text read alone and whole, relative to the norm of the latter.
    """
    rows, engine = range(len(texts)), Engine(model.lm, len(texts), max(map(len, texts)))
    engine.feed(rows, [ids[:first] for ids, first in zip(texts, firsts, strict=True)])
    found_BH = engine.feed(rows, [ids[first:] for ids, first in zip(texts, firsts, strict=True)])
    found_BV = model.vocabulary_logits(found_BH)
    whole = (model.lm(input_ids=torch.tensor([ids], device=engine.device), use_cache=False) for ids in texts)
    wanted_BV = torch.stack([out.logits[0, -1] for out in whole]).float()
    if not wanted_BV.isfinite().all():
        raise ModelError(
            f"{model.lm.config.get_text_config().model_type} gives logits that are not finite: its weights are damaged",
            hint="fetch or save the model again; in float16 a larger format may help (model.dtype)",
        )
    return float(((found_BV - wanted_BV).norm(dim=1) / wanted_BV.norm(dim=1).clamp_min(1e-6)).max())
