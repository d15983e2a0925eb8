"""Does it learn? The whole of PPO on the toy game, from random weights and without a teacher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from grue import games
from grue.interrupt import Interrupt
from grue.progress import Progress
from grue.storage.contents import read_metrics
from grue.storage.run import Run
from grue.train.context import StageContext
from grue.train.learner import Learner
from grue.train.ppo import train_ppo

SETTINGS = (
    "ppo.iterations=14",
    "ppo.episodes_per_iteration=32",
    "ppo.slots=32",
    "ppo.minibatches=4",
    "ppo.learning_rate=0.002",
    "ppo.warmup_iterations=1",
    "ppo.entropy_coef=0.01",
    "ppo.kl_coef=0",
    "ppo.target_kl=0.1",
    "ppo.dev_every=0",
)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_ppo_improves_the_score(tmp_path: Path, seed: int) -> None:
    """The mean score of the last four iterations against that of the first two, before anything is learned.

    Random weights get about 0.2; 14 iterations are enough for 0.5 and more.
    """
    config = tiny.config(tmp_path, *SETTINGS, seed=seed)
    learner = Learner(
        tiny.policy_model(seed, spread=0.05),
        learning_rate=config.ppo.learning_rate,
        weight_decay=0.0,
        max_grad_norm=config.ppo.max_grad_norm,
        micro_tokens=config.ppo.micro_tokens,
        dtype="float32",
    )
    seats = [games.make("toy") for _ in range(config.ppo.slots)]
    run = Run(tmp_path / "run", config)
    say, interrupt = Progress(quiet=True), Interrupt()
    train_ppo(StageContext(run, config, learner, tiny.encoder(), seats, tiny.tasks(200), [], say, interrupt))
    scores = [row["score"] for row in read_metrics(run.out, "ppo")]
    assert len(scores) == 14
    assert np.mean(scores[-4:]) > np.mean(scores[:2]) + 0.15, scores
