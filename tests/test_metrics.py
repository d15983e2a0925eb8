"""What training logs and what the report and docs/metrics.md explain are the same names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tiny
from grue import stages
from grue.progress import Progress
from grue.report.metrics import METRICS, split_name
from grue.storage.contents import read_metrics

DOCUMENT = Path(__file__).parents[1] / "docs" / "metrics.md"
# all that adds a number: float16, a baseline, the KL, what free writing begins with, the dev fold
ALL = (
    "model.dtype=float16",
    "game.limit=30",
    "sft.epochs=3",
    "sft.learning_rate=0.01",
    "dagger.rounds=1",
    "dagger.steps=3",
    "dagger.games_per_round=12",
    "dagger.dev_games=4",
    "ppo.iterations=2",
    "ppo.warmup_iterations=0",
    "ppo.game_baseline=true",
    "policy.kind=aligned",
    "ppo.valid_coef=0.1",
    "ppo.dev_every=1",
)


@pytest.mark.slow
def test_what_is_logged_is_described_and_what_is_described_is_logged(tiny_folder: Path, tmp_path: Path) -> None:
    config, out = tiny.config(tiny_folder, *ALL), tmp_path / "run"
    for stage in ("demos", "sft", "dagger", "ppo"):
        stages.run_stage(stage, config, out, say=Progress(quiet=True))  # type: ignore[arg-type]
    logged = {name for row in read_metrics(out) for name in row} - {"stage", "step", "time_s"}
    assert {split_name(name)[0] for name in logged} == set(METRICS)
    rows = [line.split("|")[3] for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    bounds = {"success_greedy_lo": "_lo", "success_greedy_hi": "_hi"}
    assert documented == {bounds.get(name, name) for name in logged}
