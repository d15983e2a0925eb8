"""Losses of the training stages, one value for each node or turn: the caller takes the mean."""

from __future__ import annotations

import torch

MOST_LOG_RATIO = 20.0


def branch_log_probs(logits_NC: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities over the children of each branching node; padded children (-inf) stay at -inf."""
    return torch.log_softmax(logits_NC / temperature, -1)


def node_entropies(log_probs_NC: torch.Tensor) -> torch.Tensor:
    """Entropy of each branching node (nats)."""
    return -(log_probs_NC.exp() * log_probs_NC.masked_fill(torch.isinf(log_probs_NC), 0.0)).sum(-1)


def node_kl(log_probs_NC: torch.Tensor, reference_NC: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference) of each branching node, exact over its children (nats)."""
    padded = torch.isinf(log_probs_NC)
    difference = (log_probs_NC - reference_NC).masked_fill(padded, 0.0)
    return (log_probs_NC.exp() * difference).sum(-1)


def clipped_surrogate(
    log_ratio_T: torch.Tensor, advantages_T: torch.Tensor, bounds: tuple[float, float]
) -> torch.Tensor:
    """PPO's policy loss for each turn (Schulman et al. 2017, eq. 7); the ratio is that of whole actions.

    `bounds` of the ratio need not lie as far below 1 as above (Yu et al. 2025, DAPO, eq. 10).
    """
    # for long texts the ratio may overflow, and an advantage of 0 times infinity is NaN
    ratio_T = log_ratio_T.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()
    return -torch.minimum(ratio_T * advantages_T, ratio_T.clamp(*bounds) * advantages_T)


def clipped_value_loss(
    values_T: torch.Tensor, old_T: torch.Tensor, returns_T: torch.Tensor, clip: float
) -> torch.Tensor:
    """For each turn half the larger of two squared errors: of the new value, and of it kept within `clip` of the old.

    With clip=0 the first alone.
    """
    loss_T = (values_T - returns_T) ** 2
    if clip > 0:
        clipped_T = old_T + (values_T - old_T).clamp(-clip, clip)
        loss_T = torch.maximum(loss_T, (clipped_T - returns_T) ** 2)
    return 0.5 * loss_T


def smoothed_nll(log_probs_NC: torch.Tensor, chosen_N: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Cross-entropy of each node against (1 - smoothing) on the demonstrated child, the rest spread over all children.

    Smoothing keeps a clone from becoming certain: a deterministic teacher leaves it an entropy near 0, and an agent
    that never tries anything else cannot improve.
    """
    chosen = log_probs_NC.gather(1, chosen_N[:, None]).squeeze(1)
    padded = torch.isinf(log_probs_NC)
    spread = log_probs_NC.masked_fill(padded, 0.0).sum(-1) / (~padded).sum(-1)
    return -(1 - smoothing) * chosen - smoothing * spread
