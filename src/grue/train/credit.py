"""Credit for one iteration's episodes: advantages and value targets per turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grue.algos.advantages import discounted_returns, normalise, turn_gae
from grue.config import PPOConfig
from grue.types import Episode, Observation, Outcome, Task

Array = NDArray[np.float64]


@dataclass(slots=True)
class RunningScale:
    """Running standard deviation of returns, for reward normalisation."""

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    def add(self, values: np.ndarray) -> None:
        for value in values:
            self.count += 1
            delta = value - self.mean
            self.mean += delta / self.count
            self.m2 += delta * (value - self.mean)

    @property
    def deviation(self) -> float:
        found = float(np.sqrt(self.m2 / self.count)) if self.count > 1 else 0.0
        return found if found > 1e-6 else 1.0  # returns that are equal but for rounding say nothing about their scale


def credit(
    episodes: Sequence[Episode], cfg: PPOConfig, values: Sequence[Array] | None = None, divisor: float = 1.0
) -> tuple[list[Array], list[Array]]:
    """(advantages, value targets) per turn of each episode, none of which failed.

    `values` per turn are the baseline's; None = the critic's at play. Rewards are divided by `divisor`, and values
    count as if they were of rewards so divided: where the divisor still moves they lag behind, by less each iteration.

    With group_weight w, advantages are (1 - w) GAE + w (return of the play - mean over the plays of its game), both
    scaled to deviation 1. The two use different baselines: the critic knows the turn, the group knows the game, and a
    game's recipe and layout explain most of the spread of returns. The second counts turn t with gamma^t, since its
    return is from the first turn on. But for that, for scale and for GAE's bias, they estimate the same gradient.
    With state_weight, `against_state` times it is added to the second before it is scaled.
    """
    advantages, targets = [], []
    for episode, values_T in zip(episodes, values or critic_values(episodes), strict=True):
        rewards_T = turn_rewards(episode, cfg) / divisor
        advantage, target = turn_gae(rewards_T, values_T, episode.last_value, cfg.gamma, cfg.lam)
        advantages.append(advantage)
        targets.append(target)
    if cfg.group_weight > 0:
        group = against_group(episodes, cfg, divisor)
        if cfg.state_weight > 0:
            states = against_state(episodes, cfg, divisor)
            group = [play_T + cfg.state_weight * state_T for play_T, state_T in zip(group, states, strict=True)]
        weight, mine, theirs = cfg.group_weight, scaled(advantages), scaled(group)
        advantages = [(1 - weight) * a + weight * b for a, b in zip(mine, theirs, strict=True)]
    if cfg.normalise_advantages:
        advantages = scaled(advantages, centre=True)
    return advantages, targets


def critic_values(episodes: Sequence[Episode]) -> list[Array]:
    """The critic's values at play, per turn of each episode."""
    return [np.array([turn.value for turn in episode.turns], dtype=np.float64) for episode in episodes]


def against_group(episodes: Sequence[Episode], cfg: PPOConfig, divisor: float = 1.0) -> list[Array]:
    """Discounted return of a play less the mean over the plays of the same game, the same for every turn."""
    returns = [discounted_return(episode, cfg, divisor) for episode in episodes]
    plays: dict[Task, list[float]] = {}
    for episode, total in zip(episodes, returns, strict=True):
        plays.setdefault(episode.task, []).append(total)
    means = {task: float(np.mean(totals)) for task, totals in plays.items()}
    return [
        np.full(episode.steps, total - means[episode.task]) for episode, total in zip(episodes, returns, strict=True)
    ]


def against_state(episodes: Sequence[Episode], cfg: PPOConfig, divisor: float = 1.0) -> list[Array]:
    """Return from each turn on less its mean over the turns at which plays of the same game were in the same state.

    That is: showed the same text and inventory, at the same score.
    The step-level groups of GiGPO (Feng et al. 2025), without dividing by each group's deviation. 0 for a turn that
    stands alone.
    """
    returns = [turn_returns(episode, cfg, divisor) for episode in episodes]
    states = [[_state(episode.task, turn.observation) for turn in episode.turns] for episode in episodes]
    groups: dict[tuple[Task, str, str, float], list[float]] = {}
    for visited, returns_T in zip(states, returns, strict=True):
        for state, total in zip(visited, returns_T, strict=True):
            groups.setdefault(state, []).append(float(total))
    means = {state: float(np.mean(totals)) for state, totals in groups.items()}
    return [
        returns_T - np.array([means[state] for state in visited])
        for visited, returns_T in zip(states, returns, strict=True)
    ]


def _state(task: Task, seen: Observation) -> tuple[Task, str, str, float]:
    """What turns are compared by; with all that is shown, PPO learnt less (docs/experiments.md)."""
    return task, seen.text, seen.inventory, seen.score


def turn_rewards(episode: Episode, cfg: PPOConfig) -> Array:
    """The game's rewards less `invalid_penalty`, and with `win_bonus` or `lost_penalty` added to the last one."""
    rewards_T = np.array([turn.reward - cfg.invalid_penalty * (not turn.valid) for turn in episode.turns], np.float64)
    if episode.turns and episode.outcome is Outcome.WON:
        rewards_T[-1] += cfg.win_bonus
    if episode.turns and episode.outcome is Outcome.LOST:
        rewards_T[-1] -= cfg.lost_penalty
    return rewards_T


def turn_returns(episode: Episode, cfg: PPOConfig, divisor: float = 1.0) -> Array:
    """Discounted returns of the divided rewards, from each turn on.

    A game that was only cut off continues with `Episode.last_value`.
    """
    return discounted_returns(turn_rewards(episode, cfg) / divisor, cfg.gamma, episode.last_value)


def discounted_return(episode: Episode, cfg: PPOConfig, divisor: float = 1.0) -> float:
    """`turn_returns` from the first turn on; 0 for an episode without turns."""
    return float(turn_returns(episode, cfg, divisor)[0]) if episode.turns else 0.0


def scaled(per_turn: Sequence[Array], *, centre: bool = False) -> list[Array]:
    """`normalise` over all turns of all episodes."""
    flat = normalise(np.concatenate(per_turn), centre=centre)
    return np.split(flat, np.cumsum([len(values_T) for values_T in per_turn])[:-1])
