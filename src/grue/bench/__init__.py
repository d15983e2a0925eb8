"""Benchmarks against named baselines, as ratios measured in one run.

`rollout`, `update`, `score` and `grpo` compare rates, `turn-cost` a late turn with an early one, `memory` peak memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from grue import heap
from grue.errors import ConfigError

Say = Callable[[str], object]
NAMES = ("rollout", "update", "score", "turn-cost", "memory", "grpo")


def main(name: str, settings: Sequence[str] = (), *, say: Say | None = None, **sizes: int) -> dict[str, Any]:
    """Run the benchmark `name`: {"bench", "ratio", "ours", "baseline", "same"}.

    `settings` are overrides of the preset cooking16 such as "model.name=FOLDER" or "threads=2"; `sizes` are the keyword
    arguments of the benchmark's `run`. `say` gets progress messages. Raises ConfigError for an unknown name.
    """
    run = run_of(name)
    from grue.config import load_config

    with heap.seldom_collected():  # as in every stage
        return run(load_config("cooking16", list(settings)), say or _silent, **sizes)


def run_of(name: str) -> Callable[..., dict[str, Any]]:
    """The function that `main` calls, whose keyword arguments are the sizes. ConfigError for an unknown name."""
    check_name(name)
    found: Callable[..., dict[str, Any]] = import_module(f"grue.bench.{name.replace('-', '_')}").run
    return found


def check_name(name: str) -> None:
    """Raise ConfigError if there is no benchmark of this name."""
    if name not in NAMES:
        raise ConfigError(f"there is no benchmark {name!r}", hint=f"benchmarks: {', '.join(NAMES)}")


def _silent(_: str) -> None:
    pass
