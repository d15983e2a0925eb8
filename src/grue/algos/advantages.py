"""Credit for turns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def turn_gae(rewards_T: Array, values_T: Array, last_value: float, gamma: float, lam: float) -> tuple[Array, Array]:
    """Generalised advantage estimation over the turns of one episode (Schulman et al. 2016, eq. 16).

    delta_t = r_t + gamma V(s_t+1) - V(s_t);  A_t = sum_k (gamma lam)^k delta_t+k. `last_value` stands for V after
    the last turn: 0 where the episode ended, the critic's estimate where it was only cut off. Returns (advantages,
    returns), where returns = advantages + values is the critic's target.
    """
    advantages_T = np.zeros(len(rewards_T))
    following, running = last_value, 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        delta = rewards_T[t] + gamma * following - values_T[t]
        running = delta + gamma * lam * running
        advantages_T[t] = running
        following = values_T[t]
    return advantages_T, advantages_T + values_T


def discounted_returns(rewards_T: Array, gamma: float, last_value: float = 0.0) -> Array:
    """G_t = r_t + gamma G_t+1 for one episode; `last_value` stands for G after the last turn, as in `turn_gae`."""
    returns_T, running = np.zeros(len(rewards_T)), last_value
    for t in range(len(rewards_T) - 1, -1, -1):
        running = rewards_T[t] + gamma * running
        returns_T[t] = running
    return returns_T


def normalise(values_T: Array, *, centre: bool = True) -> Array:
    """Standard deviation 1 over all turns given, and mean 0 if `centre`. 0 if they differ only by rounding."""
    deviation = float(values_T.std())
    if deviation < 1e-6:
        return np.zeros(values_T.shape)
    normalised: Array = (values_T - (values_T.mean() if centre else 0.0)) / (deviation + 1e-8)
    return normalised
