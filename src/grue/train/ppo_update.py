"""What PPO does with one iteration's episodes: credit per turn, the loss, a few clipped passes, and its metrics."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from grue.algos.losses import branch_log_probs, clipped_surrogate, clipped_value_loss, node_entropies, node_kl
from grue.config import Config, PPOConfig
from grue.errors import ConfigError, TrainingError
from grue.games import what_checks
from grue.models.policy_model import Reading
from grue.names import FREE_TEXT
from grue.rollout.pack import Batch, Sample, minibatches, samples
from grue.train.credit import Array, RunningScale, credit, critic_values, discounted_return, turn_returns
from grue.train.critic import Critic, fit_each
from grue.train.game_baseline import GameBaseline
from grue.train.learner import Learner
from grue.train.measures import play_metrics
from grue.train.reference import Reference
from grue.types import Episode

# (episodes, settings, values per turn, divisor of rewards) -> (advantages, value targets), per turn of each episode
CreditFunction = Callable[[Sequence[Episode], PPOConfig, Sequence[Array], float], tuple[list[Array], list[Array]]]

LEAST_ENTROPY_COEF, MOST_ENTROPY_COEF = 1e-4, 0.1  # where `ppo.entropy_target` steers


def ppo_loss(
    reading: Reading, batch: Batch, cfg: PPOConfig, turns: int, entropy_coef: float, *, policy: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A micro-batch's share of the PPO loss of a minibatch of `turns`. policy=False trains the critic alone.

    With `kl_coef` the samples must have a reference (`with_reference`), else TrainingError.
    """
    log_probs_NC = branch_log_probs(reading.logits_NC, cfg.temperature)
    chosen_N = log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1)
    log_probs_T = batch.per_turn(chosen_N)
    value_T = clipped_value_loss(reading.values_T, batch.old_values_T, batch.returns_T, cfg.value_clip)
    value_loss = value_T.sum() / turns
    gap_T = log_probs_T - batch.old_log_probs_T
    log_ratio_T = gap_T if cfg.ratio == "turn" else gap_T / _decisions(batch)
    policy_loss = clipped_surrogate(log_ratio_T, batch.advantages_T, cfg.ratio_bounds).sum() / turns
    entropy = node_entropies(log_probs_NC).sum() / turns
    loss = cfg.value_coef * value_loss if cfg.value_passes == 0 else torch.zeros_like(value_loss)
    metrics = {"value_loss": value_loss, "policy_loss": policy_loss, "entropy": entropy}
    if cfg.valid_coef > 0:
        metrics["valid_nll"] = -torch.logsumexp(reading.logits_NC, -1).sum() / turns
    if batch.reference_NC is not None:
        metrics["kl_ref"] = node_kl(log_probs_NC, batch.reference_NC).sum() / turns
    if policy:
        loss = loss + policy_loss - entropy_coef * entropy
        if cfg.valid_coef > 0:
            loss = loss + cfg.valid_coef * metrics["valid_nll"]
        if cfg.kl_coef > 0:
            if batch.reference_NC is None:
                raise TrainingError(
                    f"ppo.kl_coef={cfg.kl_coef:g} needs the reference's log-probabilities, which the samples lack",
                    hint="with_reference(items, learner.read(items, temperature, model=reference)), or ppo.kl_coef=0",
                )
            loss = loss + cfg.kl_coef * metrics["kl_ref"]
    with torch.no_grad():
        ratio_T, (low, high) = log_ratio_T.exp(), cfg.ratio_bounds
        metrics["clip_fraction"] = ((ratio_T < low) | (ratio_T > high)).float().sum() / turns
        # Schulman's k3 estimator of KL(old || new): never negative, and unbiased where all plays are read
        metrics["kl_old"] = (torch.expm1(gap_T) - gap_T).sum() / turns
        metrics["engine_gap"] = gap_T.abs().sum() / turns
    return loss, {name: value.detach() for name, value in metrics.items()}


def _decisions(batch: Batch) -> torch.Tensor:
    """How many nodes each turn has; 1 if it has none, since its ratio is 1 whatever the divisor."""
    return batch.per_turn(torch.ones_like(batch.node_turn_N, dtype=batch.old_log_probs_T.dtype)).clamp(min=1)


def with_reference(items: Sequence[Sample], log_probs: Sequence[torch.Tensor]) -> list[Sample]:
    """The samples with the reference policy's log-probabilities at every branching node (`Learner.read`)."""
    return [replace(item, reference=found) for item, found in zip(items, log_probs, strict=True)]


def _mean(values: Sequence[float]) -> float:
    """Mean over the steps taken: one that was skipped in float16 has no gradient norm. NaN if none was taken."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


class Passes(NamedTuple):
    """What the passes over one iteration's samples gave."""

    rows: list[dict[str, float]]  # metrics of the steps, or of measurements if only a critic fitted apart learns
    passes: int  # that were begun
    turns: int  # that were read in them
    kl_old: float  # of the last minibatch that was read
    seen: list[tuple[torch.Tensor, torch.Tensor]]  # (features, targets) of all turns, for such a critic


class Update(NamedTuple):
    """What one iteration's update did."""

    metrics: dict[str, float]  # most of them means over the optimiser steps
    turns: int  # that were read in all passes
    first_clipped: float  # share of the first minibatch's turns outside of the clip bounds, before any step


@dataclass(slots=True)
class Updater:
    """The update of one iteration, and what it carries from one to the next.

    `of` makes one as the settings ask. ConfigError where advantages would be against a critic that never learns.
    """

    config: Config
    learner: Learner
    entropy_coef: float  # current weight; adapted when ppo.entropy_target > 0
    critic: Critic | None = None  # None: the value loss is part of the PPO loss, with ppo.value_passes=0
    baseline: GameBaseline | None = None  # None: advantages are against the critic
    credit_of: CreditFunction = credit  # what advantages and value targets are
    scale: RunningScale = field(default_factory=RunningScale)
    policy_steps: int = 0  # optimiser steps that the policy has taken

    @classmethod
    def of(
        cls, config: Config, learner: Learner, demo_steps: Mapping[int, int] | None = None, **changes: Any
    ) -> Updater:
        """As the settings ask: with a critic that is fitted apart, and with a baseline that knows the game.

        `demo_steps`: seed of a train game -> steps of its demonstration, for `ppo.game_baseline`; `changes` are fields.
        """
        cfg, seed = config.ppo, str(config.seed)
        critic = baseline = None
        if cfg.value_passes:
            head = learner.policy_model.value_head
            critic = Critic(head, cfg.value_learning_rate, cfg.value_passes, cfg.value_memory, seed)
        if cfg.game_baseline:
            baseline = GameBaseline(demo_steps or {}, cfg, seed)
        made = {"entropy_coef": cfg.entropy_coef, "critic": critic, "baseline": baseline}
        return cls(config, learner, **made | changes)

    def __post_init__(self) -> None:
        cfg = self.config.ppo
        if cfg.game_baseline and self.baseline is None:
            raise ConfigError("ppo.game_baseline asks for a baseline", hint="Updater.of(config, learner) makes it")
        if not cfg.asks_critic or self.critic is not None:
            return
        if cfg.value_passes:
            raise ConfigError(
                f"ppo.value_passes={cfg.value_passes} asks for a critic that is fitted apart",
                hint="Updater.of(config, learner) makes it; with ppo.value_passes=0 the PPO loss trains the critic",
            )
        if not self.learner.learns_values:
            raise ConfigError(
                "with ppo.value_passes=0 the PPO loss trains the critic, but this learner does not move it",
                hint="Learner.of(model, config.model, config.ppo, value_learning_rate=config.ppo.value_rate_in_loss)",
            )

    @property
    def divisor(self) -> float:
        """What rewards are divided by before the critic learns them."""
        return self.scale.deviation if self.config.ppo.normalise_rewards else 1.0

    def update(self, episodes: Sequence[Episode], iteration: int, rate: float, reference: Reference) -> Update:
        """Learn from one iteration's episodes, which the policy has just played with the learner's weights.

        TrainingError when more than half of the games failed. What others played, or `tokenise` made, has no
        log-probabilities of play: its ratios would mean nothing. `engine_gap` in the metrics is then far from 0.
        """
        cfg, usable = self.config.ppo, self._usable(episodes, iteration)
        if cfg.normalise_rewards:
            returns = [discounted_return(episode, cfg, self.divisor) for episode in usable if episode.turns]
            self.scale.add(np.array(returns) * self.divisor)
        values = critic_values(usable) if self.baseline is None else self.baseline.values(usable)
        advantages, targets = self.credit_of(usable, cfg, values, self.divisor)
        items = samples(usable, advantages, targets)
        # the KL costs a forward pass; if it is not in the loss it is only monitored, and not for free text, where the
        # reference holds the whole vocabulary for each token: gigabytes, so a minibatch at a time
        free_text = self.config.policy.kind in FREE_TEXT
        if not free_text and (cfg.kl_coef > 0 or iteration % 5 == 0):
            items = self._with_reference(items, reference)
        read_later = reference if free_text and cfg.kl_coef > 0 else None
        # without any advantage there is nothing to learn; AdamW would take full-size steps on the entropy bonus alone
        policy = iteration >= cfg.warmup and any(advantages_T.any() for advantages_T in advantages)
        # no clipped policy loss would hold the trunk back while the critic warms up
        self.learner.policy_model.value_shares_trunk = policy and cfg.value_shares_trunk
        rng = random.Random(f"{self.config.seed}/ppo/{iteration}/order")
        rows, passes, turns, kl_old, seen = self._passes(items, rate, policy, rng, read_later)
        mean = {name: _mean([row[name] for row in rows if name in row]) for name in rows[-1]}
        # before the first step of an iteration the trained weights are those that played: what differs is rounding
        mean["engine_gap"] = rows[0]["engine_gap"]
        if self.critic is not None:
            self.critic.remember(torch.cat([states for states, _ in seen]), torch.cat([targets for _, targets in seen]))
        if self.baseline is not None:
            mean["baseline_explained_variance"] = explained_variance(usable, cfg, values, self.divisor)
            self.baseline.remember(usable, targets, self.divisor)
        mean |= self._fit()
        updates = len(rows) if self._takes_steps(policy) else 0
        mean |= {"updates": updates, "passes": passes, "entropy_coef": self.entropy_coef, "kl_old": kl_old}
        if policy:
            self._steer_entropy(mean["entropy"])  # for the next iteration
        return Update(mean, turns, rows[0]["clip_fraction"])

    def _takes_steps(self, policy: bool) -> bool:
        """Does the language model learn, given whether the policy does? A critic fitted apart learns without it."""
        return policy or self.critic is None

    def _usable(self, episodes: Sequence[Episode], iteration: int) -> list[Episode]:
        """The episodes that did not fail."""
        usable = [e for e in episodes if not e.failed]
        if len(usable) < len(episodes) / 2:
            raise TrainingError(
                f"{len(episodes) - len(usable)} of {len(episodes)} games failed in iteration {iteration}: "
                f"{next(e.error for e in episodes if e.error)}",
                hint=what_checks(self.config.game.name),
            )
        return usable

    def _fit(self) -> dict[str, float]:
        """Fit what is fitted apart from the policy; returns the losses."""
        apart: dict[str, Critic] = {}
        if self.critic is not None:
            apart["value_loss"] = self.critic
        if self.baseline is not None:
            apart["baseline_loss"] = self.baseline.critic
        return dict(zip(apart, fit_each(list(apart.values()), self.learner.processes), strict=True))

    def state(self) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """(tensors by group, JSON) for a checkpoint; the learner stores itself."""
        scale = self.scale
        state: dict[str, Any] = {
            "entropy_coef": self.entropy_coef,
            "policy_steps": self.policy_steps,
            "scale": [scale.count, scale.mean, scale.m2],
        }
        tensors: dict[str, dict[str, torch.Tensor]] = {}
        for name, part in (("critic", self.critic), ("baseline", self.baseline)):
            if part is not None:
                tensors[name], state[name] = part.state()
        return tensors, state

    def load_state(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        if self.critic is not None:
            self.critic.load_state(tensors["critic"], state["critic"])
        if self.baseline is not None:
            self.baseline.load_state(tensors["baseline"], state["baseline"])
        self.entropy_coef, self.scale = state["entropy_coef"], RunningScale(*state["scale"])
        self.policy_steps = state["policy_steps"]

    def _with_reference(self, items: Sequence[Sample], reference: Reference) -> list[Sample]:
        """The samples with what the reference says of them."""
        with reference.in_place():
            return with_reference(items, self.learner.read(items, self.config.ppo.temperature))

    def _passes(
        self, items: Sequence[Sample], rate: float, policy: bool, rng: random.Random, reference: Reference | None
    ) -> Passes:
        """Go through `items`, until a minibatch shows that the policy has moved by more than target_kl.

        `reference` is still to be read, for each minibatch; None where it has been, or is not wanted.
        """
        cfg = self.config.ppo
        rows: list[dict[str, float]] = []
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        turns, kl_old, stopped = 0, 0.0, False
        # a critic fitted apart needs what one pass reads; unless the policy learns, another pass would read the same
        for epoch in range(cfg.epochs if self._takes_steps(policy) else 1):
            for part in minibatches(items, cfg.minibatches, rng):
                turns += sum(len(item.turns) for item in part)
                if stopped:  # what is left of the first pass is read for the critic's sake only
                    kl_old = self._step(part, rate, False, seen)["kl_old"]
                    continue
                if reference is not None:
                    part = self._with_reference(part, reference)
                rows.append(self._step(part, rate, policy, seen if epoch == 0 else None))
                kl_old = rows[-1]["kl_old"]
                stopped = policy and 0 < cfg.target_kl < kl_old
                if stopped and (epoch > 0 or self.critic is None):
                    break
            if stopped:
                break
        return Passes(rows, epoch + 1, turns, kl_old, seen)

    def _step(
        self, items: Sequence[Sample], rate: float, policy: bool, seen: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> dict[str, float]:
        """One optimiser step; `seen` collects the features and targets of the turns for the critic."""
        turns = sum(len(item.turns) for item in items)
        cfg, coef = self.config.ppo, self.entropy_coef
        here: list[tuple[torch.Tensor, torch.Tensor]] = []

        def loss_of(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            if seen is not None and self.critic is not None and batch.counts:
                here.append((reading.states_TH.detach(), batch.returns_T))
            return ppo_loss(reading, batch, cfg, turns, coef, policy=policy)

        learns = self._takes_steps(policy)
        if policy:
            # AdamW does not know yet how large gradients are: at full rate its first steps would be as large as can be
            self.policy_steps += 1
            rate *= min(1.0, self.policy_steps / max(1, cfg.rate_warmup_steps))
        metrics = self.learner.step(items, loss_of, rate) if learns else self.learner.measure(items, loss_of)
        metrics["learning_rate"] = rate * cfg.learning_rate if policy else 0.0
        if seen is not None and self.critic is not None:
            # in an order that does not depend on the processes: the critic draws its minibatches by place
            for states_TH, targets_T in self.learner.turns_in_order(items, here, learnt=learns):
                if self.learner.loss_scale is not None:  # drop what overflowed in float16: its step was skipped
                    whole_T = states_TH.isfinite().all(-1)
                    states_TH, targets_T = states_TH[whole_T], targets_T[whole_T]
                seen.append((states_TH, targets_T))
        return metrics

    def _steer_entropy(self, entropy: float) -> None:
        target = self.config.ppo.entropy_target
        if target > 0 and math.isfinite(entropy):  # all steps may have been skipped in float16
            factor = 1.1 if entropy < target else 1 / 1.1
            most = max(MOST_ENTROPY_COEF, self.config.ppo.entropy_coef)
            self.entropy_coef = float(np.clip(self.entropy_coef * factor, LEAST_ENTROPY_COEF, most))


def explained_variance(
    episodes: Sequence[Episode],
    cfg: PPOConfig,
    values: Sequence[np.ndarray] | None = None,
    divisor: float = 1.0,
) -> float:
    """1 - Var(G - V) / Var(G) over all turns: 1 is a perfect baseline, 0 is no better than a constant.

    NaN where all returns are equal: there is nothing to predict.

    `values` are parallel to `episodes`, of rewards divided by `divisor`; None = the critic's at play. Failed episodes
    are left out.
    """
    found = critic_values(episodes) if values is None else values
    kept = [(e, v) for e, v in zip(episodes, found, strict=True) if e.turns and not e.failed]
    if not kept:
        return float("nan")
    returns = np.concatenate([turn_returns(e, cfg, divisor) for e, _ in kept])
    spread = float(np.var(returns))
    return 1 - float(np.var(returns - np.concatenate([v for _, v in kept]))) / spread if spread > 1e-10 else math.nan


def rollout_metrics(
    episodes: Sequence[Episode], seconds: float, cfg: PPOConfig, divisor: float = 1.0
) -> dict[str, float]:
    """What one iteration's play looked like, and how well the critic predicted it."""
    return {
        **play_metrics(episodes, seconds),
        "explained_variance": explained_variance(episodes, cfg, divisor=divisor),
    }
