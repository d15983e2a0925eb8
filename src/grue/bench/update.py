"""Turns learned per second: each segment read once with all its turns, against one whole prompt for each turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from grue.bench import Say
from grue.bench.common import alternate, facts, load, open_games, result, task_sets, threads
from grue.bench.notebook import PromptActorCritic, PromptSample, prompts_of
from grue.config import Config, PPOConfig
from grue.models.load import compute_dtype
from grue.models.policy_model import PolicyModel, Reading
from grue.policy.actor import Actor
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.prompts.tokens import Encoder
from grue.rollout.collect import collect
from grue.rollout.pack import Batch, Sample, minibatches, samples
from grue.train.credit import credit
from grue.train.learner import Learner
from grue.train.ppo_update import ppo_loss
from grue.types import Episode

SMALL = 1e-3  # of the configured learning rate: the policies hardly change
ACCUMULATE = 8  # samples per optimiser step of the baseline
ONE_LOSS = {"kl_coef": 0.0, "group_weight": 0.0}  # leaves the terms that both sides have
SAME = (
    "the same model, number format, threads, episodes, optimiser and PPO loss (policy, value and entropy terms); the "
    "baseline's turns are a random part of the same episodes, its prompts are tokenised and its old log-probabilities "
    "taken before the clock starts, and it computes logits for the answer only"
)


def run(
    config: Config, say: Say, *, games: int = 128, baseline_turns: int = 48, repetitions: int = 3
) -> dict[str, Any]:
    """One pass over `games` episodes against one over `baseline_turns` of their turns, `repetitions` times each.

    Ours takes ppo.minibatches optimiser steps per pass, the baseline one for every ACCUMULATE turns.
    """
    model, encoder = load(config)
    model.value_shares_trunk = True
    cfg = config.ppo.model_copy(update={"value_shares_trunk": True, "value_passes": 0, **ONE_LOSS})
    with threads(config) as thread_count:
        sets = _play(config, model, encoder, repetitions, games, say)
        twin = deepcopy(model)
        ours, baseline = Ours(model, config, cfg), Baseline(twin, config, cfg)
        items = [samples(played, *credit(played, cfg)) for played in sets]
        prompts = [prompt_samples(played, cfg, encoder, baseline_turns, seed=n) for n, played in enumerate(sets)]
        old = [baseline.log_probs(part) for part in prompts]
        # the first pass of each is slower than the others; two samples a step, as compiled code treats one as special
        ours.learn(items[0][: 2 * cfg.minibatches])
        baseline.learn(prompts[0][:2], old[0][:2])
        ours.steps = baseline.steps = 0
        measured = alternate(
            lambda n: ours.learn(items[n]), lambda n: baseline.learn(prompts[n], old[n]), repetitions, "turns", say
        )
    common = facts(config, model, thread_count)
    read = sum(len(item.ids) for part in items for item in part), sum(len(s.ids_L) for part in prompts for s in part)
    turns = [sum(timed.count for timed in side) for side in measured]
    return result(
        "update",
        "turns",
        measured,
        {**common, "optimiser_steps": ours.steps, "tokens_read_per_turn": round(read[0] / turns[0], 1)},
        {**common, "optimiser_steps": baseline.steps, "tokens_read_per_turn": round(read[1] / turns[1], 1)},
        SAME,
    )


def _play(config: Config, model: PolicyModel, encoder: Encoder, sets: int, games: int, say: Say) -> list[list[Episode]]:
    """Sampled episodes of `sets` times `games` games; those that failed are left out."""
    say(f"playing {sets * games} games to learn from")
    policy = ChoosePolicy(Actor(model, config.model.dtype).model, encoder)
    found = []
    with open_games(config, min(games, config.ppo.slots)) as seats:
        for number, tasks in enumerate(task_sets(config, sets, games)):
            played = collect(policy, seats, tasks, Decoding(), seed=f"bench/{number}", context=config.model.context)
            found.append([episode for episode in played if not episode.failed])
    return found


class Ours:
    """`Learner.step` on packed episodes."""

    def __init__(self, model: PolicyModel, config: Config, cfg: PPOConfig) -> None:
        self.cfg, self.steps = cfg, 0
        self.learner = Learner.of(model, config.model, cfg, value_learning_rate=cfg.value_learning_rate)

    def learn(self, items: Sequence[Sample]) -> int:
        """One pass over the samples; the number of turns."""
        for part in minibatches(items, self.cfg.minibatches, random.Random(self.steps)):
            self._step(part)
        return sum(len(item.turns) for item in items)

    def _step(self, items: Sequence[Sample]) -> None:
        turns = sum(len(item.turns) for item in items)

        def loss_of(reading: Reading, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return ppo_loss(reading, batch, self.cfg, turns, self.cfg.entropy_coef, policy=True)

        self.learner.step(items, loss_of, SMALL)
        self.steps += 1


class Baseline:
    """One turn per sample, one sample per forward pass, gradients accumulated over ACCUMULATE of them."""

    def __init__(self, model: PolicyModel, config: Config, cfg: PPOConfig) -> None:
        self.cfg, self.steps = cfg, 0
        actor_critic = PromptActorCritic(model)
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=SMALL * cfg.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=cfg.weight_decay,
            fused=True,
        )
        self.agent, self.optimizer = actor_critic, optimizer
        self.device = next(model.parameters()).device
        self.products = compute_dtype(config.model.dtype, self.device.type)

    @torch.no_grad()
    def log_probs(self, items: Sequence[PromptSample]) -> list[float]:
        """Log-probability of each answer before learning."""
        self.agent.eval()
        return [self._read(item)[0].item() for item in items]

    def learn(self, items: Sequence[PromptSample], old_log_probs: Sequence[float]) -> int:
        """One pass over the samples; the number of turns."""
        self.agent.train()
        for number, (item, old) in enumerate(zip(items, old_log_probs, strict=True), 1):
            loss = self._loss(item, old) / ACCUMULATE
            loss.backward()
            loss.item()
            if number % ACCUMULATE == 0 or number == len(items):
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.steps += 1
        return len(items)

    def _loss(self, item: PromptSample, old_log_prob: float) -> torch.Tensor:
        cfg = self.cfg
        log_prob, value, entropy = self._read(item)
        ratio = (log_prob - old_log_prob).exp()
        policy_loss = -torch.minimum(ratio * item.advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * item.advantage)
        near = item.old_value + (value - item.old_value).clamp(-cfg.value_clip, cfg.value_clip)
        value_loss = 0.5 * torch.maximum((value - item.target) ** 2, (near - item.target) ** 2)
        loss: torch.Tensor = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
        return loss

    def _read(self, item: PromptSample) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probability, value and entropy of one prompt, in the number format that the learner uses."""
        with torch.autocast(self.device.type, self.products, enabled=self.products is not torch.float32):
            log_prob, value, entropy = self.agent(item.ids_L.to(self.device), item.answer)
        return log_prob.float(), value.float(), entropy.float()


def prompt_samples(
    episodes: Sequence[Episode], cfg: PPOConfig, encoder: Encoder, count: int, *, seed: int
) -> list[PromptSample]:
    """`count` turns drawn from the episodes, each a sample of its own, with the same credit as ours."""
    advantages, returns = credit(episodes, cfg)
    found = []
    for number, episode in enumerate(episodes):
        for place, (turn, prompt) in enumerate(zip(episode.turns, prompts_of(episode.turns), strict=True)):
            found.append((turn, prompt, float(advantages[number][place]), float(returns[number][place])))
    drawn = random.Random(seed).sample(found, min(count, len(found)))
    made = []
    for turn, prompt, advantage, target in drawn:
        answer = encoder.action(turn.action)
        ids = [*encoder.tokenizer(prompt).input_ids, *answer]
        made.append(PromptSample(torch.tensor(ids), len(answer), advantage, target, turn.value))
    return made
