"""Short training runs that differ in one switch and share the library's loss, credit, learner and play."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grue.config import PPOConfig
from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import with_problems
from grue.experiments.eval_gap.defects import Arm, advantages_with, top_k_policy
from grue.experiments.eval_gap.settings import Settings
from grue.games.training import training_games
from grue.models.adapter import with_adapter
from grue.models.learned import load_weights
from grue.models.load import load_model
from grue.models.policy_model import PolicyModel
from grue.policy.actor import Actor
from grue.policy.decision import Decoding
from grue.policy.policy import Policy, make_policy
from grue.rollout.collect import collect
from grue.rollout.pack import minibatches
from grue.stages.lessons import lessons_of
from grue.train.credit import Array, credit, critic_values, scaled, turn_rewards
from grue.train.learner import Learner
from grue.train.ppo import draw_tasks
from grue.train.ppo_update import Updater
from grue.train.reference import Reference
from grue.train.schedule import learning_rate_factor, policy_rate_factor
from grue.train.seeds import hash_seed
from grue.train.sft import imitation_step
from grue.types import Episode, Task

if TYPE_CHECKING:
    from grue.stages.session import Session

Weights = dict[str, torch.Tensor]
Watch = Callable[[int, Policy], None]  # called every few iterations with the iteration and the policy, uncut


def train_sft_arm(
    session: Session, base: Weights, demonstrations: Sequence[Episode], size: Settings, seed: int
) -> PolicyModel:
    """`base` after one pass of SFT over the demonstrations, in an order drawn by `seed`."""
    cfg = session.config.sft
    model = fresh_model(session, base, seed)
    items = lessons_of(session, demonstrations, f"{seed}/sft/names", cfg.rename)
    learner = Learner.of(model, session.config.model, cfg, dropout=True)
    steps = max(1, len(items) // size.sft_batch)
    for part in minibatches(items, steps, random.Random(f"{seed}/sft")):
        rate = learning_rate_factor(cfg.schedule, learner.step_count, steps, cfg.warmup_steps)
        imitation_step(learner, part, cfg, rate, f"{seed}/sft/dropout/{learner.step_count}")
        session.interrupt.check()
    return model


def arm_config(ours: PPOConfig, size: Settings, arm: Arm) -> PPOConfig:
    """The run's own PPO settings at the sizes of the experiment, with a separately fitted critic and no other baseline.

    Other controls of a run (an entropy target, early stopping at a KL) are off: arms differ in one thing.
    """
    changed: dict[str, Any] = {
        "iterations": size.iterations,
        "episodes_per_iteration": size.episodes,
        "minibatches": min(size.minibatches, size.episodes),
        "epochs": 1,
        "plays_per_game": 1,
        "group_weight": 0.0,
        "value_shares_trunk": False,
        "game_baseline": False,
        "hidden_state": False,
        "normalise_rewards": False,
        "bootstrap_at_limit": False,
        "entropy_target": 0.0,
        "target_kl": 0.0,
        "valid_coef": 0.0,
        "kl_coef": size.kl_coef if arm.kl != "none" else 0.0,
        "value_passes": ours.value_passes or 8,
        "warmup_iterations": min(ours.warmup_iterations, size.iterations // 4),
    }
    return PPOConfig.model_validate({**ours.model_dump(), **changed})


@dataclass(slots=True)
class PPOArm:
    """One PPO training of an arm, starting from the SFT weights."""

    session: Session
    arm: Arm
    size: Settings
    seed: int
    start: Weights

    def train(self, watch: Watch | None = None) -> tuple[PolicyModel, list[dict[str, float]]]:
        """(the trained model, one row of metrics for each iteration)."""
        session, size = self.session, self.size
        cfg = arm_config(session.config.ppo, size, self.arm)
        model = adapted_model(session, self.start, size, self.seed) if self.arm.adapter else self._full_model()
        # an adapter's few weights have further to go; a run that trains one has its own rate for it
        added = self.arm.adapter and session.config.model.adapter == "none"
        peak = cfg.learning_rate * (size.lora_rate if added else 1.0)
        learner = Learner.of(model, session.config.model, cfg, learning_rate=peak, dropout=self.arm.dropout)
        config = session.config.model_copy(update={"ppo": cfg, "seed": self.seed})
        updater = Updater.of(config, learner, credit_of=self._credit)
        reference, actor = Reference(model), Actor(model, session.config.model.dtype)
        whole = make_policy(actor.model, session.encoder)
        policy = top_k_policy(actor.model, session.encoder, size.top_k) if self.arm.top_k else whole
        train, rows = session.tasks("train"), []
        for iteration in range(size.iterations):
            if watch is not None and iteration % size.curve_every == 0:
                watch(iteration, whole)
            episodes = self._play(policy, train, iteration, cfg)
            torch.manual_seed(hash_seed(f"{self.seed}/{iteration}/dropout"))
            rate = policy_rate_factor(cfg.schedule, iteration, cfg.iterations, cfg.warmup)
            update = updater.update(episodes, iteration, rate, Reference(model) if self.arm.kl == "old" else reference)
            rows.append(
                {
                    "success": float(np.mean([episode.won for episode in episodes])),
                    "first_gap": update.metrics["engine_gap"],  # 0 except for dropout and rounding
                    "first_clipped": update.first_clipped,
                    **{name: update.metrics[name] for name in ("entropy", "kl_old", "value_loss")},
                }
            )
            actor.sync()
            session.interrupt.check()
        if watch is not None:
            watch(size.iterations, whole)
        return actor.model, rows

    def _full_model(self) -> PolicyModel:
        return fresh_model(self.session, self.start, self.seed)

    def _play(self, policy: Policy, train: Sequence[Task], iteration: int, cfg: PPOConfig) -> list[Episode]:
        name, games = f"{self.seed}/{iteration}", self.session.games(min(cfg.slots, self.size.episodes))
        tasks = draw_tasks(train, self.size.episodes, 1, f"{name}/tasks")
        renamed = training_games(games, cfg.rename, f"{name}/names")
        context = self.session.config.model.context
        decoding = Decoding(temperature=cfg.temperature)
        played = collect(policy, renamed, tasks, decoding, seed=f"{name}/play", context=context)
        return [episode for episode in played if not episode.failed]

    def _credit(
        self, episodes: Sequence[Episode], cfg: PPOConfig, values: Sequence[Array], divisor: float
    ) -> tuple[list[Array], list[Array]]:
        """`credit`, with the arm's defects added."""
        advantages, targets = credit(episodes, cfg, values, divisor)
        return (defective(episodes, self.arm, cfg) if not self.arm.bootstrap or self.arm.leak else advantages), targets


def defective(episodes: Sequence[Episode], arm: Arm, cfg: PPOConfig) -> list[Array]:
    """The advantages that `credit` gives, with the arm's defects added."""
    rewards = [turn_rewards(episode, cfg) for episode in episodes]
    raw = advantages_with(rewards, critic_values(episodes), cfg.gamma, cfg.lam, bootstrap=arm.bootstrap, leak=arm.leak)
    return scaled(raw, centre=True) if cfg.normalise_advantages else raw


def fresh_model(session: Session, weights: Weights, seed: int) -> PolicyModel:
    """A separate model with these weights and an untrained critic."""
    torch.manual_seed(seed)
    lm, _ = load_model(session.config.model)
    model = PolicyModel(lm)
    # the critic starts untrained in every arm: what an earlier training taught it belongs to that training
    own = {name: p.detach().clone() for name, p in model.named_parameters() if name.startswith("value_head.")}
    load_weights(model, {**weights, **own})
    return model


def adapted_model(session: Session, weights: Weights, size: Settings, seed: int) -> PolicyModel:
    """The same with fresh LoRA adapters with dropout; the weights themselves are frozen."""
    inner = fresh_model(session, weights, seed)
    if inner.has_adapter:
        return inner  # the run already trains adapters; their dropout is model.lora_dropout
    options = {"lora_rank": size.lora_rank, "lora_alpha": size.lora_alpha, "lora_dropout": size.dropout}
    config = session.config.model.model_copy(update={"adapter": "lora", "lora_targets": "all-linear", **options})
    return PolicyModel(with_adapter(inner.lm, config), inner.value_head)


def measured(session: Session, model: PolicyModel, tasks: Sequence[Task], *, greedy: bool) -> list[Episode]:
    """The games of `tasks` played by `model`."""
    policy = make_policy(Actor(model, session.config.model.dtype).model, session.encoder)
    games = session.games(min(session.config.eval.slots, len(tasks)))
    decoding = Decoding(greedy, session.config.sampling_temperature)
    played = evaluate(policy, games, tasks, decoding, context=session.config.model.context)
    return [*with_problems(played, session.problems(tasks))]
