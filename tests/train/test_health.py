"""What PPO warns of."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tiny
from grue.progress import Progress
from grue.train.health import Health
from grue.train.ppo_update import Update


def said_of(capsys: pytest.CaptureFixture[str], entropies: list[float], *settings: str) -> int:
    """How often drift is told of in iterations with these entropies."""
    health = Health(tiny.config(Path("none"), *settings), Progress(quiet=True))
    for entropy in entropies:
        health.look(Update({"entropy": entropy, "engine_gap": 0.0}, 9, 0.0), tiny.scripted("gold", 2), 0.0)
    return "".join(capsys.readouterr()).count("entropy has grown")


def test_entropy_that_grows_out_of_hand_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert said_of(capsys, [0.5, 0.9, 2.4, 2.6, 9.0, 12.0]) == 1
    assert said_of(capsys, [0.5, 2.4, 0.2]) == 0  # less than two nats more
    assert said_of(capsys, [30.0, 50.0, 59.0]) == 0  # long thoughts of an untrained model: less than twice as much
    assert said_of(capsys, [0.5, 9.0], "ppo.entropy_coef=0") == 0  # no bonus has done it
    assert said_of(capsys, [0.5, 9.0], "ppo.entropy_target=5") == 0  # it is asked for
    assert said_of(capsys, [math.nan, 9.0, 0.5]) == 0  # no step was taken in float16
