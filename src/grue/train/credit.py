"""Credit for one iteration's episodes: advantages and value targets per turn, and which plays to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grue.algos.advantages import discounted_returns, normalise, turn_gae
from grue.config import PPOConfig
from grue.rollout.pack import Sample, samples
from grue.types import Episode, Outcome, Task

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

    def divisor(self, cfg: PPOConfig) -> float:
        """What rewards are divided by before the critic learns them: the units of values."""
        return self.deviation if cfg.normalise_rewards else 1.0


class Credited(NamedTuple):
    """One iteration's games as samples, and what critic and baseline learn of them.

    `normalise_rewards` measures values in other units after each iteration: samples and targets are in the new ones.
    """

    episodes: Sequence[Episode]
    items: Sequence[Sample]  # to learn from
    left_out: Sequence[Sample]  # by `ppo.plays_kept`: only the critic learns from them
    tells: bool  # has any turn an advantage?
    targets: Sequence[Array]  # of values, per turn of each episode
    values: Sequence[Array] | None  # what the baseline said, per turn of each episode; None: there is none
    divisor: float  # the units in which critic and baseline have spoken
    unit: float  # what a number in those units is multiplied by


def credited(
    episodes: Sequence[Episode], cfg: PPOConfig, scale: RunningScale, values: Sequence[Array] | None
) -> Credited:
    """`credit`, and the samples to learn from, of episodes none of which failed. `values` as there."""
    before = scale.divisor(cfg)
    advantages, targets = credit(episodes, cfg, scale, values)
    unit = before / scale.divisor(cfg)
    telling = telling_plays(episodes, cfg, before)
    kept = telling or list(range(len(episodes)))  # the critic learns all the same
    # the clipped value loss compares the values at play with targets in the new units
    read = episodes if unit == 1 else [in_units(episode, unit) for episode in episodes]
    items, left_out = (
        samples([read[i] for i in part], [advantages[i] for i in part], [targets[i] for i in part])
        for part in (kept, sorted({*range(len(episodes))} - {*kept}))
    )
    tells = any(advantages[i].any() for i in telling)
    return Credited(episodes, items, left_out, tells, targets, values, before, unit)


def credit(
    episodes: Sequence[Episode], cfg: PPOConfig, scale: RunningScale, values: Sequence[Array] | None = None
) -> tuple[list[Array], list[Array]]:
    """(advantages, value targets) per turn of each episode, none of which failed.

    `values` per turn are the baseline's; None = the critic's at play. Like `Episode.last_value` they are in units of
    the scale as it is given here. `normalise_rewards` then adds these episodes to it; the targets are in the new units.

    With group_weight w, advantages are (1 - w) GAE + w (return of the play - mean over the plays of its game), both
    scaled to deviation 1. The two use different baselines: the critic knows the turn, the group knows the game, and a
    game's recipe and layout explain most of the spread of returns. The second counts turn t with gamma^t, since its
    return is from the first turn on. But for that, for scale and for GAE's bias, they estimate the same gradient.
    """
    before = scale.divisor(cfg)
    if cfg.normalise_rewards:
        scale.add(np.array([discounted_return(episode, cfg, before) for episode in episodes if episode.turns]))
    now = scale.divisor(cfg)
    unit = before / now
    advantages, targets = [], []
    for episode, values_T in zip(episodes, values or critic_values(episodes), strict=True):
        rewards_T = turn_rewards(episode, cfg) / now
        advantage, target = turn_gae(rewards_T, values_T * unit, episode.last_value * unit, cfg.gamma, cfg.lam)
        advantages.append(advantage)
        targets.append(target)
    if cfg.group_weight > 0:
        weight, mine, group = cfg.group_weight, scaled(advantages), scaled(against_group(episodes, cfg, before))
        advantages = [(1 - weight) * a + weight * b for a, b in zip(mine, group, strict=True)]
    if cfg.normalise_advantages:
        advantages = scaled(advantages, centre=True)
    return advantages, targets


def in_units(episode: Episode, unit: float) -> Episode:
    """`episode` with the critic's values at play multiplied by `unit`."""
    return replace(episode, turns=tuple(replace(turn, value=turn.value * unit) for turn in episode.turns))


def critic_values(episodes: Sequence[Episode]) -> list[Array]:
    """The critic's values at play, per turn of each episode."""
    return [np.array([turn.value for turn in episode.turns], dtype=np.float64) for episode in episodes]


def against_group(episodes: Sequence[Episode], cfg: PPOConfig, divisor: float) -> list[Array]:
    """Discounted return of a play less the mean over the plays of the same game, the same for every turn."""
    returns = [discounted_return(episode, cfg, divisor) for episode in episodes]
    means = {task: float(np.mean([returns[i] for i in plays])) for task, plays in _plays_by_game(episodes).items()}
    return [
        np.full(episode.steps, total - means[episode.task]) for episode, total in zip(episodes, returns, strict=True)
    ]


def telling_plays(episodes: Sequence[Episode], cfg: PPOConfig, divisor: float) -> list[int]:
    """Indices of the plays to learn from: all, or of each game the `plays_kept` with the most extreme returns.

    Play is cheaper than learning, and plays near the mean of their game hardly move the policy: keeping the best and
    the worst keeps most of the variance of the advantages (max-variance down-sampling, Xu et al. 2025). A game whose
    plays all returned the same says nothing and is left out; there may be no others.
    """
    if cfg.plays_kept == 0:
        return list(range(len(episodes)))
    returns = [discounted_return(episode, cfg, divisor) for episode in episodes]
    kept: list[int] = []
    for plays in _plays_by_game(episodes).values():
        ranked = sorted(plays, key=lambda i: returns[i])
        if returns[ranked[-1]] - returns[ranked[0]] > 1e-9:
            low = cfg.plays_kept // 2
            kept += ranked[:low] + ranked[-(cfg.plays_kept - low) :]
    return sorted(set(kept))


def _plays_by_game(episodes: Sequence[Episode]) -> dict[Task, list[int]]:
    plays: dict[Task, list[int]] = {}
    for index, episode in enumerate(episodes):
        plays.setdefault(episode.task, []).append(index)
    return plays


def turn_rewards(episode: Episode, cfg: PPOConfig) -> Array:
    """The game's rewards less `invalid_penalty`, and with `win_bonus` or `lost_penalty` added to the last one."""
    rewards_T = np.array([turn.reward - cfg.invalid_penalty * (not turn.valid) for turn in episode.turns], np.float64)
    if episode.turns and episode.outcome is Outcome.WON:
        rewards_T[-1] += cfg.win_bonus
    if episode.turns and episode.outcome is Outcome.LOST:
        rewards_T[-1] -= cfg.lost_penalty
    return rewards_T


def turn_returns(episode: Episode, cfg: PPOConfig, divisor: float) -> Array:
    """Discounted returns of the undivided rewards, from each turn on.

    A game that was only cut off continues with `Episode.last_value`, which is in units of `divisor`.
    """
    return discounted_returns(turn_rewards(episode, cfg), cfg.gamma, episode.last_value * divisor)


def discounted_return(episode: Episode, cfg: PPOConfig, divisor: float) -> float:
    """`turn_returns` from the first turn on; 0 for an episode without turns."""
    return float(turn_returns(episode, cfg, divisor)[0]) if episode.turns else 0.0


def scaled(per_turn: Sequence[Array], *, centre: bool = False) -> list[Array]:
    """`normalise` over all turns of all episodes."""
    flat = normalise(np.concatenate(per_turn), centre=centre)
    return np.split(flat, np.cumsum([len(values_T) for values_T in per_turn])[:-1])
