"""A cell: the outcome of each game under one way of playing. Each is one JSON file, so an experiment can resume."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from grue.errors import DataError
from grue.evaluate.summary import shared
from grue.games import what_checks
from grue.games.spread import problem, problem_of
from grue.storage.files import explained, write_atomic
from grue.types import Episode, Outcome, Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Cell:
    """Outcomes by seed; the games of a cell differ in nothing else. Failed games are absent, but counted."""

    name: str
    won: dict[int, bool]
    score: dict[int, float]
    steps: dict[int, int]
    lost: int = 0
    failed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    game: str = ""  # the name of its games, which decides what problem a seed poses
    alike: dict[int, int] = field(default_factory=dict)  # seed -> the first seed with its problem, if that is another

    @property
    def games(self) -> int:
        return len(self.won)

    @property
    def success(self) -> float:
        return float(np.mean(list(self.won.values()))) if self.won else float("nan")

    def wins(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """1 or 0 for each of `seeds`."""
        return np.array([self.won[seed] for seed in seeds], dtype=np.float64)

    def problems(self, seeds: Sequence[int]) -> Sequence[Hashable] | None:
        """The problem that each of `seeds` poses, or None if no two pose the same."""
        if not self.alike:  # as in files of older experiments, which lack it
            return shared([problem(Task(self.game, "", "", seed, 0), None) for seed in seeds])
        return shared([self.alike.get(seed, seed) for seed in seeds])


def from_episodes(name: str, episodes: Sequence[Episode], **extra: Any) -> Cell:
    """The cell of played games. DataError if all of them failed."""
    kept = [episode for episode in episodes if not episode.failed]
    if not kept:
        first = episodes[0]
        raise DataError(f"all {len(episodes)} games of {name} failed: {first.error}", hint=what_checks(first.task.game))
    turns = [turn for episode in kept for turn in episode.turns]
    return Cell(
        name,
        {episode.task.seed: episode.won for episode in kept},
        {episode.task.seed: episode.score for episode in kept},
        {episode.task.seed: episode.steps for episode in kept},
        lost=sum(episode.outcome is Outcome.LOST for episode in kept),
        failed=len(episodes) - len(kept),
        extra={"invalid": sum(not turn.valid for turn in turns) / max(1, len(turns)), **extra},
        game=kept[0].task.game,
        alike=_alike(kept),
    )


def _alike(episodes: Sequence[Episode]) -> dict[int, int]:
    first: dict[Hashable, int] = {}
    found = {e.task.seed: first.setdefault(problem_of(e), e.task.seed) for e in episodes}
    return {seed: other for seed, other in found.items() if other != seed}


def digest(weights: Mapping[str, Tensor]) -> str:
    """A name for these weights."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].detach().float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


class Cells:
    """The cells of one experiment. `made` is what determines a cell's content; other content goes to another file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, made: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(orjson.dumps(made, option=orjson.OPT_SORT_KEYS)).hexdigest()[:10]
        return self.folder / f"{name}-{digest}.json"

    def get(self, name: str, made: Mapping[str, Any], play: Callable[[], Cell]) -> Cell:
        """The stored cell, or the one that `play` makes, which is then stored."""
        file = self.path(name, made)
        if file.exists():
            return _read(file)
        cell = play()
        self.folder.mkdir(parents=True, exist_ok=True)
        data = {
            "name": cell.name,
            "made": dict(made),
            "success": cell.success,
            "games": [[seed, cell.won[seed], cell.score[seed], cell.steps[seed]] for seed in sorted(cell.won)],
            "lost": cell.lost,
            "failed": cell.failed,
            "alike": sorted(cell.alike.items()),
            "extra": cell.extra,
        }
        with explained(f"write {file}"):
            write_atomic(file, orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2))
        return cell


def _read(file: Path) -> Cell:
    try:
        data = orjson.loads(file.read_bytes())
        rows = data["games"]
        return Cell(
            str(data["name"]),
            {int(seed): bool(won) for seed, won, _, _ in rows},
            {int(seed): float(score) for seed, _, score, _ in rows},
            {int(seed): int(steps) for seed, _, _, steps in rows},
            int(data["lost"]),
            int(data["failed"]),
            dict(data["extra"]),
            str(data["made"]["game"]["name"]),
            {int(seed): int(other) for seed, other in data.get("alike", ())},
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file} is not a cell of this experiment", hint="delete it to measure it again") from error
