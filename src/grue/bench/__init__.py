"""Benchmarks against named baselines, as ratios of rates measured in turn in one run: `rollout`, `update`, `score`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grue.errors import ConfigError

Say = Callable[[str], object]
NAMES = ("rollout", "update", "score")


def main(name: str, settings: Sequence[str] = (), *, say: Say | None = None, **sizes: int) -> dict[str, Any]:
    """Run the benchmark `name`: {"bench", "ratio", "ours", "baseline", "same"}.

    `settings` are overrides of the preset cooking16 such as "model.name=FOLDER" or "threads=2"; `sizes` are the keyword
    arguments of the benchmark's `run`. `say` is told what is going on. Raises ConfigError for an unknown name.
    """
    if name not in NAMES:
        raise ConfigError(f"there is no benchmark {name!r}", hint=f"benchmarks are {', '.join(NAMES)}")
    from grue.config import load_config

    config = load_config("cooking16", list(settings))
    if name == "rollout":
        from grue.bench import rollout

        return rollout.run(config, say or _silent, **sizes)
    if name == "score":
        from grue.bench import score

        return score.run(config, say or _silent, **sizes)
    from grue.bench import update

    return update.run(config, say or _silent, **sizes)


def _silent(_: str) -> None:
    pass
