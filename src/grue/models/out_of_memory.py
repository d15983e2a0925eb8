"""What to say when memory runs out: what the settings are now, and which to change first. No torch in here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from grue.config import Config
from grue.errors import GrueError
from grue.names import FREE_TEXT, TRAINING

# for a GPU torch first says how much was requested and is free; then one of these, and what each process on it uses
_MORE = re.compile(r"\.? (?=Process \d|Including |[\d.]+ .iB allowed|Of the allocated )")
_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


class OutOfMemoryError(GrueError, RuntimeError):
    """There was no memory left, on a GPU or in the machine."""


def is_out_of_memory(error: BaseException) -> bool:
    """Is this what Python, torch or a GPU says when memory has run out?"""
    # torch.OutOfMemoryError by its name: torch may not have been imported, and need not be for this
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS))


@contextmanager
def explained_memory(config: Config, stage: str) -> Iterator[None]:
    """Turn memory that ran out inside into OutOfMemoryError with the settings of `stage` and hints."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemoryError) or not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines()
        said = _MORE.split(lines[0])[0] if lines else "no memory left"
        raise OutOfMemoryError(
            f"out of memory in {stage} ({said}) with {_now(config, stage)}",
            hint="in this order: " + "; ".join(hints(config, stage)),
        ) from error


def hints(config: Config, stage: str) -> list[str]:
    """What to change, starting with what changes no result. Settings that are at their limit are left out."""
    model, found = config.model, []
    corrected = stage == "ppo" and config.dagger.rounds > 0  # hints for PPO cover the whole run
    draws = " but for dropout's draws" if model.lora_dropout else ""
    if stage in TRAINING:
        for section in (stage, *(["dagger"] if corrected else [])):
            tokens = getattr(config, section).micro_tokens
            if tokens > 256:
                # a segment is read whole, and few are as long as the context
                helps = "" if tokens > model.context else "; helps if segments are shorter"
                changed = f"{section}.micro_tokens={max(64, tokens // 2)}"
                found.append(f"{changed} (is {tokens}; same result{draws}, slower{helps})")
        if not model.gradient_checkpointing:
            found.append(f"model.gradient_checkpointing=true (same result{draws}, slower)")
    playing = {"dagger": config.dagger.slots, "ppo": config.ppo.slots, "eval": config.eval.slots}
    for section, slots in playing.items():
        also = stage == "ppo" and (section == "eval" or (section == "dagger" and corrected))
        if (stage == section or also) and slots > 1:
            found.append(f"{section}.slots={slots // 2} (is {slots}; same games, slower)")
    if model.sharding == "none":  # none of these works with shards
        if stage != "eval" and not model.optimizer.endswith("8bit"):
            found.append(f"model.optimizer=adamw-8bit (is {model.optimizer})")
        if model.adapter == "none":
            found.append("model.adapter=lora (all weights learn now)")
        if model.quantize == "none":
            found.append("model.quantize=nf4")
    if stage == "ppo" and config.policy.kind in FREE_TEXT and config.ppo.kl_coef > 0:
        found.append(f"ppo.kl_coef=0 (is {config.ppo.kl_coef:g}; no reference is kept, for each token over all words)")
    if model.context > 512:
        found.append(f"model.context={model.context // 2} (is {model.context}; histories are cut sooner)")
    if config.policy.kind == "score":
        found.append("policy.kind=aligned in another run (of long lists of actions it reads the likely part)")
    return [*found, "a smaller model"]


def _now(config: Config, stage: str) -> str:
    model = config.model
    values = {
        "model.name": model.name,
        "model.adapter": model.adapter,
        "model.quantize": model.quantize,
        "model.dtype": model.dtype,
        "model.context": model.context,
    }
    if stage in TRAINING:
        values[f"{stage}.micro_tokens"] = getattr(config, stage).micro_tokens
    if stage in ("dagger", "ppo", "eval"):
        values[f"{stage}.slots"] = getattr(config, stage).slots
    return ", ".join(f"{key}={value}" for key, value in values.items())
