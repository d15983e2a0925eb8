"""Sizes of the experiment. They are given as `key=value` and stored with every result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grue.config.base import Section
from grue.names import PolicyName


class Settings(Section):
    """How much is played and trained. The defaults take hours on two cores, most of them for the trainings."""

    policy: PolicyName = Field("ppo", description="policy whose evaluation is examined")
    fold: Literal["dev", "test"] = Field("dev", description="fold of the paired contrasts (test: final result only)")
    games: int = Field(1000, ge=2, le=1000, description="games for each cell that needs no training")
    few_games: int = Field(20, ge=1, le=1000, description="games of the small evaluation")
    window: int = Field(11, ge=1, description="steps of history in a windowed prompt")
    top_k: int = Field(50, ge=1, description="k of the hidden top-k truncation in sampling")
    answer_tokens: int = Field(15, ge=1, description="most tokens of a freely written action")
    seeds: int = Field(3, ge=3, le=100, description="trainings of each arm")
    sft_games: int = Field(900, ge=1, description="demonstrations in an SFT arm")
    sft_batch: int = Field(32, ge=1, description="episodes per optimiser step of an SFT arm")
    iterations: int = Field(30, ge=1, description="PPO iterations of an arm")
    episodes: int = Field(128, ge=2, description="games per PPO iteration")
    minibatches: int = Field(6, ge=1, description="optimiser steps per PPO iteration")
    arm_games: int = Field(300, ge=2, le=1000, description="games on which an arm is evaluated")
    curve_every: int = Field(5, ge=1, description="iterations between two evaluations of the repaired arm")
    kl_coef: float = Field(0.05, gt=0, description="weight of the KL term where arms differ in its reference")
    lora_rank: int = Field(4, ge=1, description="rank of the adapters in the dropout arms")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters in the dropout arms")
    lora_rate: float = Field(10.0, gt=0, description="learning rate of the adapters, as a multiple of the run's own")
    dropout: float = Field(0.25, gt=0, lt=1, description="dropout of the adapters while PPO updates")
    bootstrap: int = Field(2000, ge=100, description="resamples for an interval")
