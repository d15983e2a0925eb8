"""Learning rates over a training, as factors of their peaks."""

from __future__ import annotations

import math

from grue.errors import ConfigError


def learning_rate_factor(schedule: str, step: int, total: int, warmup: int) -> float:
    """Factor in 0..1 of the peak learning rate at optimiser step `step` (from 0) of `total`.

    The warm-up takes `warmup` steps, but at most half of all: otherwise a short training would end before its peak.
    """
    if schedule not in ("constant", "linear", "hold", "cosine"):
        raise ConfigError(f"unknown schedule {schedule!r}", hint="constant, linear, hold or cosine")
    warmup = min(warmup, total // 2)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    if schedule == "linear":
        return max(0.0, 1.0 - progress)
    if schedule == "hold":
        return max(0.0, min(1.0, 3 * (1.0 - progress)))
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress))) if schedule == "cosine" else 1.0


def policy_rate_factor(schedule: str, iteration: int, iterations: int, warmup: int) -> float:
    """The same for an iteration of PPO (from 0): the critic's warm-up does not use up the policy's schedule."""
    return learning_rate_factor(schedule, max(0, iteration - warmup), iterations - warmup, 0)
