"""The settings of the stages that train: imitation, corrected imitation, PPO."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grue.config.base import LOCAL, Section
from grue.errors import ConfigError


class LearningConfig(Section):
    """Settings that all trainings have."""

    learning_rate: float = Field(3e-4, gt=0, lt=1, description="peak learning rate of the language model")
    weight_decay: float = Field(0.01, ge=0, lt=1, description="decoupled weight decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    micro_tokens: int = Field(
        8192, ge=64, description="tokens per forward pass; gradients are accumulated", json_schema_extra=LOCAL
    )
    save_every_s: float = Field(
        60.0, ge=0, description="seconds between two checkpoints; 0 = as often as possible", json_schema_extra=LOCAL
    )


class ImitationConfig(LearningConfig):
    """Learning from the actions of a teacher."""

    episodes_per_batch: int = Field(
        32,
        ge=1,
        description="episodes per optimiser step (a few more where they do not divide evenly, up to twice as many "
        "where there are few), or segments where policy.history or model.context cuts episodes",
    )
    warmup_steps: int = Field(10, ge=0, description="optimiser steps of linear warm-up, at most half of all steps")
    schedule: Literal["linear", "constant", "cosine", "hold"] = Field(
        "linear", description="learning rate after the warm-up"
    )
    smoothing: float = Field(
        0.02, ge=0, lt=1, description="label smoothing over the trie's children; not used by policy.kind=write"
    )
    rename: float = Field(
        0.0, ge=0, le=1, description="share of episodes with things renamed, differently in each pass or round"
    )


class SFTConfig(ImitationConfig):
    """Supervised fine-tuning on the demonstrations."""

    epochs: int = Field(1, ge=0, le=1000, description="passes over the demonstrations; 0 = skip")


class DaggerConfig(ImitationConfig):
    """DAgger, between SFT and PPO: the policy plays, a teacher says what it would have done, SFT on all of that."""

    rounds: int = Field(0, ge=0, le=1000, description="rounds of playing, being corrected and learning; 0 = skip")
    teacher: Literal["explore", "optimal"] = Field("optimal", description="the teacher that corrects")
    games_per_round: int = Field(200, ge=1, le=1_000_000, description="train games played per round")
    slots: int = Field(128, ge=1, description="games that advance together in one batch", json_schema_extra=LOCAL)
    steps: int = Field(100, ge=1, le=1_000_000, description="optimiser steps per round, on all games so far")
    demo_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of demonstrations in each batch; use 0 where their teacher and this one disagree",
    )
    dev_every: int = Field(1, ge=0, description="rounds between evaluations on the dev fold; 0 = never")
    dev_games: int = Field(200, ge=1, le=1000, description="dev games per such evaluation")


class PPOConfig(LearningConfig):
    """Proximal policy optimisation on whole games."""

    iterations: int = Field(60, ge=0, description="rounds of playing and learning; 0 = skip")
    episodes_per_iteration: int = Field(128, ge=1, description="games played per iteration")
    plays_per_game: int = Field(1, ge=1, description="how often each drawn game is played per iteration")
    slots: int = Field(128, ge=1, description="games that advance together in one batch", json_schema_extra=LOCAL)
    epochs: int = Field(2, ge=1, le=100, description="passes over an iteration's episodes")
    minibatches: int = Field(4, ge=1, description="optimiser steps per pass")
    value_learning_rate: float = Field(
        1e-3, gt=0, lt=1, description="learning rate of the value head (constant if the critic is fitted separately)"
    )
    weight_decay: float = Field(0.0, ge=0, lt=1, description="decoupled weight decay")
    warmup_iterations: int = Field(
        3,
        ge=0,
        description="initial iterations in which only the critic learns, at most half of all; 0 with group_weight=1, "
        "which does not use it (but for bootstrap_at_limit)",
    )
    rate_warmup: int = Field(
        0,
        ge=0,
        description="optimiser steps over which the policy's learning rate rises, at most half of all; "
        "with value_passes=0 also the value head's",
    )
    schedule: Literal["linear", "constant", "cosine", "hold"] = Field(
        "linear", description="learning rate; hold = 2/3 flat, then linear"
    )
    gamma: float = Field(0.97, ge=0, le=1, description="discount per turn")
    lam: float = Field(0.95, ge=0, le=1, description="lambda of generalised advantage estimation, per turn")
    clip: float = Field(0.2, gt=0, le=10, description="the policy ratio is clipped to 1 +- this")
    clip_high: float | None = Field(
        None, gt=0, le=10, description="upper clipping bound is 1 + this instead; null = same as clip"
    )
    ratio: Literal["turn", "decision"] = Field(
        "turn",
        description="policy ratio of the whole turn's probability, or its n-th root for a turn of n decisions (GSPO)",
    )
    value_clip: float = Field(
        0.2,
        ge=0,
        description="with value_passes=0: value predictions gain nothing by moving further in an iteration (0: off)",
    )
    value_passes: int = Field(8, ge=0, description="passes that fit the critic separately; 0 = inside the PPO loss")
    value_memory: int = Field(4, ge=1, description="iterations whose turns the critic is fitted on")
    game_baseline: bool = Field(
        False, description="advantages against a baseline that knows how hard each train game is"
    )
    hidden_state: bool = Field(
        False, description="that baseline is also told how many steps a win still takes; cookingworld only"
    )
    value_shares_trunk: bool = Field(
        False, description="the value loss also moves the language model's weights, after the warm-up"
    )
    value_coef: float = Field(0.5, ge=0, description="with value_passes=0: weight of the value loss")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    entropy_target: float = Field(
        0.0,
        ge=0,
        description="entropy in nats that the bonus steers towards, with a weight up to 0.1 or entropy_coef; 0 = off",
    )
    valid_coef: float = Field(
        0.0,
        ge=0,
        description="weight of -log p(free writing begins with an action that was weighed); aligned, or summed score",
    )
    kl_coef: float = Field(0.01, ge=0, description="weight of the KL divergence from the policy that PPO began with")
    target_kl: float = Field(
        0.05, ge=0, description="the policy stops learning for the iteration above this KL from its start; 0 = off"
    )
    temperature: float = Field(1.0, gt=0, le=100, description="temperature of sampling, and of the trained policy")
    normalise_advantages: bool = Field(True, description="scale an iteration's advantages to mean 0 and deviation 1")
    normalise_rewards: bool = Field(False, description="divide rewards by a running standard deviation of the return")
    bootstrap_at_limit: bool = Field(
        False, description="at the step limit the critic's value of the last state replaces the rewards still to come"
    )
    dev_every: int = Field(10, ge=0, description="iterations between evaluations on the dev fold; 0 = never")
    dev_games: int = Field(200, ge=1, le=1000, description="dev games per such evaluation")
    group_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="weight in the advantage of the return minus its mean over plays of the same game; the rest is GAE",
    )
    state_weight: float = Field(
        0.0,
        ge=0,
        le=100,
        description="with group_weight: weight of a turn's return minus its mean over turns at which plays of the same "
        "game were in the same state (GiGPO: 1)",
    )
    rename: float = Field(0.0, ge=0, le=1, description="share of training games with things renamed")
    win_bonus: float = Field(0.0, ge=0, description="added to the reward of the turn that wins a game")
    lost_penalty: float = Field(0.0, ge=0, description="subtracted from the reward of the turn that loses a game")
    invalid_penalty: float = Field(
        0.0, ge=0, description="subtracted from the reward of a turn with an unlisted action (policy.kind=write)"
    )

    @property
    def warmup(self) -> int:
        """Iterations in which only the critic learns: in a short training at most half, or the policy would never move.

        0 where advantages do not use the critic.
        """
        return min(self.warmup_iterations, self.iterations // 2) if self.asks_critic else 0

    @property
    def rate_warmup_steps(self) -> int:
        """Optimiser steps over which the policy's learning rate rises: at most half of those that it takes."""
        return min(self.rate_warmup, (self.iterations - self.warmup) * self.epochs * self.minibatches // 2)

    @property
    def asks_critic(self) -> bool:
        """Do advantages depend on the critic's values?"""
        return self.group_weight < 1 or self.bootstrap_at_limit

    @property
    def value_rate_in_loss(self) -> float:
        """Learning rate of the value head in the policy's own steps: 0 where it has passes of its own."""
        return 0.0 if self.value_passes else self.value_learning_rate

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """The bounds that the policy ratio is clipped to."""
        return 1 - self.clip, 1 + (self.clip if self.clip_high is None else self.clip_high)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.episodes_per_iteration % self.plays_per_game:
            raise ValueError(
                f"episodes_per_iteration={self.episodes_per_iteration} is not a multiple of "
                f"plays_per_game={self.plays_per_game}"
            )
        if self.group_weight > 0 and self.plays_per_game < 2:
            raise ValueError("group_weight compares plays of one game: set plays_per_game to 2 or more")
        if self.value_shares_trunk and self.value_passes:
            raise ValueError("value_shares_trunk needs the value loss inside the PPO loss: set value_passes to 0")
        if self.hidden_state and not self.game_baseline:
            raise ValueError("hidden_state is for the game baseline: set game_baseline to true")
        if self.asks_critic and not self.value_passes and not self.value_coef:
            raise ValueError(
                "value_coef=0 and value_passes=0 leave the critic untrained, on which advantages depend unless "
                "group_weight is 1 and bootstrap_at_limit false"
            )
        if self.game_baseline and not self.value_passes:
            raise ValueError("game_baseline is fitted separately, like the critic: set value_passes to 1 or more")
        if self.minibatches > self.episodes_per_iteration:
            raise ConfigError(
                f"minibatches={self.minibatches} is more than episodes_per_iteration={self.episodes_per_iteration}",
                hint=f"set ppo.minibatches={self.episodes_per_iteration}, or less",
            )
        return self
