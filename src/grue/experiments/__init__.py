"""Questions answered by measurement, one command each: `eval-gap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grue.errors import ConfigError
from grue.progress import Progress
from grue.storage.contents import check_distinct

NAMES = ("eval-gap",)


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
    from grue.experiments.eval_gap import main as eval_gap
    from grue.experiments.eval_gap.settings import read_settings
    from grue.experiments.eval_gap.suspects import wanted

    check_distinct(runs)
    size, suspects = read_settings(settings), wanted(tuple(only), training=training)

    def start(say: Progress) -> dict[str, Any]:
        return eval_gap.run(runs, size, suspects, out=out, say=say)

    return start
