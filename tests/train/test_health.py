"""What PPO warns of."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from grue.progress import Progress
from grue.train.health import Health
from grue.train.ppo_update import Update, rollout_metrics
from grue.types import Episode, Outcome


def said_of(capsys: pytest.CaptureFixture[str], entropies: list[float], *settings: str) -> int:
    """How often drift is told of in iterations with these entropies."""
    health = Health(tiny.config(Path("none"), *settings), Progress(quiet=True))
    for entropy in entropies:
        health.look(Update({"entropy": entropy, "engine_gap": 0.0}, 9, 0.0), tiny.scripted("gold", 2), {"forced": 0.0})
    return "".join(capsys.readouterr()).count("entropy has grown")


def test_entropy_that_grows_out_of_hand_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert said_of(capsys, [0.5, 0.9, 2.4, 2.6, 9.0, 12.0]) == 1
    assert said_of(capsys, [0.5, 2.4, 0.2]) == 0  # less than two nats more
    assert said_of(capsys, [30.0, 50.0, 59.0]) == 0  # long thoughts of an untrained model: less than twice as much
    assert said_of(capsys, [0.5, 9.0], "ppo.entropy_coef=0") == 0  # no bonus has done it
    assert said_of(capsys, [0.5, 9.0], "ppo.entropy_target=5") == 0  # it is asked for
    assert said_of(capsys, [math.nan, 0.5, math.nan, 9.0]) == 1  # no step was taken in float16 at first
    assert said_of(capsys, [math.nan, 9.0, 0.5]) == 0


def test_a_resumed_training_remembers_how_it_began(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"entropy": None}, {"entropy": 0.5}, {"entropy": 0.1}]
    health = Health(tiny.config(Path("none"), "policy.kind=write"), Progress(quiet=True), rows)
    health.look(Update({"entropy": 2.7, "engine_gap": 0.0}, 9, 0.0), tiny.scripted("gold", 2), {"forced": 0.0})
    said = "".join(capsys.readouterr())
    assert "entropy has grown from 0.5 to 2.7 nats a turn: unless it has only learnt to write more" in said


def test_games_that_all_return_the_same_are_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config(Path("none"), "ppo.lost_penalty=0.5", "ppo.gamma=1")
    empty = [
        replace(e, outcome=Outcome.LIMIT, turns=tuple(replace(turn, reward=0.0) for turn in e.turns))
        for e in tiny.scripted("random", 2)
    ]
    penalised = [replace(empty[0], outcome=Outcome.LOST), *empty[1:]]  # a loss teaches, if it costs something
    won = [replace(e, outcome=Outcome.WON) for e in empty]

    def said(health: Health, *rounds: list[Episode]) -> str:
        for episodes in rounds:
            update = Update({"entropy": 0.5, "engine_gap": 0.0}, 9, 0.0)
            health.look(update, episodes, rollout_metrics(episodes, 1.0, config.ppo))
        return "".join(capsys.readouterr())

    health = Health(config, Progress(quiet=True))
    assert not said(health, *[empty] * 4, penalised, *[empty] * 4, won, *[empty] * 4)
    assert "10 games in a row were not won and returned the same" in said(health, empty)
    assert not said(health, *[empty] * 6, penalised, *[empty] * 6)
    # a resumed training goes on counting; null is what files say for NaN
    rows = [{"entropy": 0.5, "success": 0.0, "explained_variance": None, "episodes": 3, "failed": 1}] * 4
    assert "10 games in a row" in said(Health(config, Progress(quiet=True), rows), empty)
    assert not said(Health(config, Progress(quiet=True), [*rows, *rows]), empty)


@pytest.mark.parametrize(
    ("gap", "clipped", "forced", "temperature", "said"),
    [
        (0.0, 0.0, 0.0, 1.0, []),
        (1e-6, 0.01, 0.0, 1.0, []),  # rounding
        (0.1, 0.0, 0.0, 1.0, ["differ by 0.1 nats"]),
        (0.1, 0.0, 0.5, 1.0, ["differ by 0.2 nats"]),  # half of the turns left no choice
        (0.0, 0.015, 0.5, 1.0, ["3% of the turns with a choice are outside"]),
        (0.1, 0.5, 1.0, 1.0, []),  # no turn left any
        (0.01, 0.0, 0.0, 1.0, ["differ by 0.01 nats"]),
        (0.01, 0.0, 0.0, 0.1, []),  # which a low temperature magnifies
    ],
)
def test_what_the_first_iteration_shows(
    capsys: pytest.CaptureFixture[str], gap: float, clipped: float, forced: float, temperature: float, said: list[str]
) -> None:
    config = tiny.config(Path("none"), f"ppo.temperature={temperature}", "model.dtype=float32")
    health = Health(config, Progress(quiet=True))
    for _ in range(2):  # it is told of once
        update = Update({"entropy": 0.5, "engine_gap": gap}, 9, clipped)
        health.look(update, tiny.scripted("gold", 2), {"forced": forced})
    printed = "".join(capsys.readouterr())
    assert printed.count("warning") == len(said) and all(words in printed for words in said), printed
