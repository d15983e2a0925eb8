"""Does a model say what it said when it played? Recomputes the log-probabilities of recorded turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import torch

from grue.algos.losses import branch_log_probs
from grue.config import ModelConfig
from grue.errors import ModelError
from grue.models.load import compute_dtype, default_device
from grue.models.policy_model import PolicyModel
from grue.rollout.pack import collate, samples
from grue.types import Episode

# largest mean difference per turn, in nats: rounding of the format, added up over the tokens of an action
TOLERANCE = {torch.float32: 0.002, torch.float16: 0.02, torch.bfloat16: 0.1}
PROBE_TEMPERATURE = 1.0  # of the greedy games that are shown and kept, whatever that of sampling is
INT8_TOLERANCE = 0.3  # which columns of the activations are outliers depends on the tokens beside them


class Gap(NamedTuple):
    """Differences between log-probabilities of whole turns, in nats, over the `turns` turns that decided something."""

    turns: int
    mean: float
    largest: float
    same_choice: float  # share of branches at which the likeliest child is the one that was taken


@torch.no_grad()
def replay(model: PolicyModel, episodes: Sequence[Episode], temperature: float) -> Gap:
    """Read recorded episodes with `model` and compare. `temperature` is the one that they were played with.

    The gap is 0, over 0 turns, if the episodes hold no decision: if each turn had only one action to choose from.
    """
    items = samples(episodes)
    if not any(turn.branches for item in items for turn in item.turns):
        return Gap(0, 0.0, 0.0, 1.0)
    model.eval()
    batch = collate(items).to(next(model.parameters()).device)
    log_probs_NC = branch_log_probs(model(*batch.inputs).logits_NC, temperature)
    chosen_N = log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1)
    # a turn without a branch would be right whatever the weights, and make the mean look small
    gap_T = (batch.per_turn(chosen_N) - batch.old_log_probs_T).abs()[batch.node_turn_N.unique()]
    same = (log_probs_NC.argmax(-1) == batch.chosen_N).float().mean()
    return Gap(len(gap_T), float(gap_T.mean()), float(gap_T.max()), float(same))


def tolerance(config: ModelConfig, *others: torch.dtype) -> float:
    """How far log-probabilities of a turn may differ on average, in nats, for a model that plays here with `config`.

    `others` are further number formats that round: that in which it played elsewhere, that of stored weights.
    """
    limit = max(TOLERANCE[dtype] for dtype in (compute_dtype(config.dtype, default_device()), *others))
    return max(limit, INT8_TOLERANCE) if config.quantize == "int8" else limit


def limit_of(probe: Sequence[Episode], tolerance: float) -> float:
    """`tolerance`, which is for turns of up to four decisions: with more, independent errors grow by their root."""
    decisions = [len(turn.branches) for episode in probe for turn in episode.turns if turn.branches]
    return tolerance * max(1.0, math.sqrt(fmean(decisions) / 4)) if decisions else tolerance


def check_gap(gap: Gap, limit: float, what: str) -> None:
    """ModelError where a gap is more than `limit`."""
    if not gap.mean <= limit:  # NaN too
        raise ModelError(
            f"{what} does not say what the policy said when it played: log-probabilities differ by {gap.mean:.4f} nats "
            f"a turn on average and {gap.largest:.4f} at most ({gap.turns} turns), more than rounding ({limit:.3g})",
            hint="the weights are of another model, were changed, or rounded too much (--dtype float32 rounds least)",
        )


def check_probe(model: PolicyModel, probe: Sequence[Episode], limit: float, what: str) -> Gap:
    """The gap between `model` and what was recorded when a policy played; ModelError if it is not within `limit`."""
    gap = replay(model, probe, PROBE_TEMPERATURE)
    check_gap(gap, limit_of(probe, limit), what)
    return gap
