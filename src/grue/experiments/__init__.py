"""Questions answered by measurement, one command each: `eval-gap`, `second-visit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grue.errors import ConfigError
from grue.experiments.sizes import read_sizes
from grue.progress import Progress
from grue.storage.contents import check_distinct

NAMES = ("eval-gap", "second-visit")


def check_name(name: str) -> None:
    """Raise ConfigError if there is no such experiment."""
    if name not in NAMES:
        raise ConfigError(f"there is no experiment {name!r}", hint=f"experiments: {', '.join(NAMES)}")


def prepare(
    name: str,
    runs: Sequence[Path],
    settings: Sequence[str] = (),
    *,
    only: Sequence[str] = (),
    training: bool = True,
    out: Path | None = None,
) -> Callable[[Progress], dict[str, Any]]:
    """The experiment `name` on run directories, ready to start. ConfigError for wrong names or settings.

    `settings` are `key=value` texts for the experiment's own sizes; `only` names the contrasts to measure.
    """
    check_name(name)
    check_distinct(runs)
    make = _eval_gap if name == "eval-gap" else _second_visit
    return make(runs, settings, only=only, training=training, out=out)


def _eval_gap(
    runs: Sequence[Path], settings: Sequence[str], *, only: Sequence[str], training: bool, out: Path | None
) -> Callable[[Progress], dict[str, Any]]:
    from grue.experiments.eval_gap import main as eval_gap
    from grue.experiments.eval_gap.settings import Settings
    from grue.experiments.eval_gap.suspects import wanted

    size, suspects = read_sizes(Settings, settings), wanted(tuple(only), training=training)
    return lambda say: eval_gap.run(runs, size, suspects, out=out, say=say)


def _second_visit(
    runs: Sequence[Path], settings: Sequence[str], *, only: Sequence[str], training: bool, out: Path | None
) -> Callable[[Progress], dict[str, Any]]:
    from grue.experiments.second_visit import main as second_visit
    from grue.experiments.second_visit.settings import Settings

    if only or not training:
        raise ConfigError("--only and --no-training are for eval-gap", hint="second-visit has sizes: seeds=1")
    if len(runs) > 1:
        raise ConfigError(
            f"second-visit examines one run, not {len(runs)}", hint="its trainings have seeds of their own"
        )
    size = read_sizes(Settings, settings)
    return lambda say: second_visit.run(runs[0], size, out=out, say=say)
