"""Does it learn? The whole of PPO on the toy game, from random weights and without a teacher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from grue.interrupt import Interrupt
from grue.progress import Progress
from grue.storage.run import Run, read_metrics
from grue.train.learner import Learner
from grue.train.ppo import train_ppo


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_ppo_improves_the_score(tmp_path: Path, seed: int) -> None:
    """The mean score of the last five iterations against that of the first two, in which only the critic learns."""
    changes = ("ppo.iterations=25", "ppo.episodes_per_iteration=48", "ppo.slots=48", "ppo.learning_rate=0.001")
    more = ("ppo.warmup_iterations=2", "ppo.kl_coef=0", "ppo.dev_every=0", "ppo.minibatches=4", "game.limit=16")
    config = tiny.config(tmp_path, *changes, *more, seed=seed)
    model, cfg = tiny.policy_model(seed, hidden=64, spread=0.05), config.ppo
    from grue import games

    learner = Learner(
        model,
        learning_rate=cfg.learning_rate,
        weight_decay=0.0,
        max_grad_norm=cfg.max_grad_norm,
        micro_tokens=cfg.micro_tokens,
        dtype="float32",
    )
    seats = [games.make("toy") for _ in range(cfg.slots)]
    tasks = tiny.tasks(300, limit=16)
    run = Run(tmp_path / "run", config)
    train_ppo(run, config, learner, tiny.encoder(), seats, tasks, [], Progress(quiet=True), Interrupt())
    scores = [row["score"] for row in read_metrics(run.out, "ppo")]
    assert len(scores) == 25
    assert np.mean(scores[-5:]) > np.mean(scores[:2]) + 0.1, scores
