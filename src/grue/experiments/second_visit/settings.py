"""Sizes of the experiment. They are given as `key=value` and stored with the result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grue.config.base import Section
from grue.names import PolicyName


class Settings(Section):
    """What is visited, trained and measured. The defaults take an hour on one core, most of it for the trainings."""

    policy: PolicyName = Field("ppo", description="policy of the run that makes the first visits and learns on")
    fold: Literal["dev", "test"] = Field("dev", description="fold that is measured (test: final result only)")
    train_games: int = Field(0, ge=0, description="train games that are visited and trained on; 0 = all")
    games: int = Field(300, ge=2, le=1000, description="games that are measured")
    places: int = Field(25, ge=2, description="games that a player remembers: among these its note is looked for")
    notes: int = Field(1, ge=1, le=10, description="notes that a game is told")
    visit_limit: int = Field(0, ge=0, description="steps of a first visit; 0 = two and a half times game.limit")
    lessons: int = Field(
        8, ge=0, description="passes of SFT over games in which the way of the first visit is followed"
    )
    lesson_rate: float = Field(5e-4, gt=0, description="learning rate of these passes")
    iterations: int = Field(40, ge=1, description="PPO iterations of each training, with and without notes")
    episodes: int = Field(128, ge=2, description="games per PPO iteration")
    dev_games: int = Field(200, ge=2, le=1000, description="dev games that choose the weights, every ten iterations")
    seeds: int = Field(3, ge=1, le=100, description="trainings of each kind")
    bootstrap: int = Field(2000, ge=100, description="resamples for an interval of a single training")
