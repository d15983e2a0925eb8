"""Read a run directory for the report: bounded, tolerant, and never through a link that leaves the directory.

A run directory may come from somebody else or from a run that was killed, so whatever is wrong in it becomes a
sentence in `problems`, not an exception.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grue.config.yaml_file import settings_in
from grue.errors import ConfigError, DataError, first_line
from grue.names import STAGES, TRAINING
from grue.report.metrics import MAY_BE_NULL
from grue.report.shown import ShownEpisode, read_shown
from grue.report.text import as_number, one_line, redact
from grue.storage.contents import UNMEASURED, read_run_config
from grue.storage.files import explained
from grue.storage.settled import SETTINGS, edits

_MAX_CONFIG = 256 * 2**10
_MAX_RESULTS = 16 * 2**20
_MAX_METRICS = 128 * 2**20
_MOST_EPISODES = 40
_MOST_METRICS = 300  # names in one stage: more are not metrics
_MOST_SIZE = 1e300  # of a value that is drawn: the span of an axis must be finite too


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """What one stage logged: for each metric its steps and values, in the order of the steps."""

    series: dict[str, list[tuple[float, float]]]
    not_finite: dict[str, int]  # how often a value was null, NaN, infinite, or too large to be drawn
    seconds: float | None  # time_s of the last line
    lines: int


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Everything that the page is made of. None and empty mean that the file is absent or unreadable."""

    name: str
    config: dict[str, Any] | None = None
    stages: dict[str, StageMetrics] = field(default_factory=dict)
    results: dict[str, Any] | None = None
    episodes: list[ShownEpisode] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of the stages that are done or have begun
    unfinished: tuple[str, ...] = ()  # trainings that have begun and not come to their end
    kept: dict[str, float] = field(default_factory=dict)  # stage -> iteration or round whose weights dev games chose
    problems: list[str] = field(default_factory=list)


def read_run(run_dir: Path) -> RunFiles:
    """The files of a run. Raises DataError when `run_dir` is not a folder or holds none of them."""
    if not run_dir.is_dir():
        raise DataError(f"no run directory at {run_dir}", hint="give the folder that --out named")
    names = ("config.yaml", "metrics.jsonl", "results.json", "episodes")
    with explained(f"read {run_dir}"):
        found = any((run_dir / name).exists() for name in names)
    if not found:
        raise DataError(f"{run_dir} holds no run: none of {', '.join(names)}", hint="start one with `grue run`")
    problems: list[str] = []
    stages = _read_object(run_dir / "stages.json", problems) or {}
    config = _read_config(run_dir / "config.yaml", problems)
    used = _read_object(run_dir / SETTINGS, problems)
    if config is not None and used is not None:
        problems += _edited(run_dir, used, [name for name in STAGES if _state(stages, name)])
    return RunFiles(
        name=run_dir.resolve().name,
        config=config,
        stages=_read_metrics(run_dir / "metrics.jsonl", problems),
        results=_read_object(run_dir / "results.json", problems),
        episodes=_read_episodes(run_dir / "episodes", problems),
        seconds=_stage_seconds(stages, problems),
        unfinished=tuple(name for name in TRAINING if _state(stages, name) == "begun"),
        kept={name: number for name in stages if (number := _kept(stages[name])) is not None},
        problems=problems,
    )


def _read_bytes(path: Path, most: int, problems: list[str]) -> bytes | None:
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_symlink() or not path.is_file():
        problems.append(f"{path.name} is not an ordinary file and was not read")
        return None
    if path.stat().st_size > most:
        problems.append(f"{path.name} is larger than {most // 2**10:,} KiB and was not read")
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        problems.append(f"{path.name} could not be read: {error.strerror}")
        return None


def _read_config(path: Path, problems: list[str]) -> dict[str, Any] | None:
    data = _read_bytes(path, _MAX_CONFIG, problems)
    if data is None:
        return None
    try:
        return settings_in(data, path.name)
    except ConfigError as error:
        problems.append(first_line(error)[:200])
        return None


def _edited(run_dir: Path, used: dict[str, Any], begun: list[str]) -> list[str]:
    """A sentence if config.yaml no longer says what the run has used."""
    try:
        found = edits(used, read_run_config(run_dir), begun)
    except ConfigError:  # settings of another version, perhaps: they are shown as they are
        return []
    what = f"config.yaml was edited after the run had used it: {redact(found)}. What is shown is of the old values."
    return [what] if found else []


def _read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    data = _read_bytes(path, _MAX_RESULTS, problems)
    if data is None:
        return None
    try:
        results = json.loads(data)
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name} could not be read: {first_line(error)[:200]}")
        return None
    if not isinstance(results, dict):
        problems.append(f"{path.name} does not hold a JSON object")
        return None
    if results.get("schema", 1) != 1:
        problems.append(f"{path.name} has a schema that this version does not know; some of it may be missing here")
    return results


def _state(stages: dict[str, Any], name: str) -> object:
    entry = stages.get(name)
    return entry.get("state") if isinstance(entry, dict) else None


def _kept(entry: object) -> float | None:
    """After how many iterations or rounds a finished stage had its best weights; None if no dev games told it."""
    if not isinstance(entry, dict) or entry.get("state") != "done":
        return None
    merit, best = as_number(entry.get("best_merit")), entry.get("best_iteration", entry.get("best_round"))
    return as_number(best) if merit is not None and merit > UNMEASURED else None


def _stage_seconds(stages: dict[str, Any], problems: list[str]) -> dict[str, float]:
    """Seconds of each stage from stages.json, for runs that have no results yet."""
    found: dict[str, float] = {}
    for name, entry in stages.items():
        seconds = as_number(entry.get("seconds", 0)) if isinstance(entry, dict) else None  # a stage may just have begun
        if seconds is None:
            problems.append(f"stages.json: the seconds of {one_line(name, 40)} are not a number and were left out")
        elif "seconds" in entry:
            found[name] = seconds
    return found


def _read_metrics(path: Path, problems: list[str]) -> dict[str, StageMetrics]:
    data = _read_bytes(path, _MAX_METRICS, problems)
    rows: dict[str, dict[float, dict[str, Any]]] = {}
    unreadable = unplaced = untimed = repeated = 0
    for line in (data or b"").splitlines():
        if not line.strip():
            continue
        row = _metrics_row(line)
        if row is None:
            unreadable += 1
            continue
        step = as_number(row.get("step"))
        if step is None:
            unplaced += 1
            continue
        stage = rows.setdefault(str(row.get("stage", "metrics")), {})
        untimed += as_number(row.get("time_s")) is None
        repeated += step in stage
        stage[step] = row  # a resumed run writes its last steps again: the later line is the valid one
    if unreadable:
        problems.append(f"metrics.jsonl: {unreadable} unreadable line(s) were left out")
    if unplaced:
        problems.append(f"metrics.jsonl: {unplaced} line(s) were left out, as the step is absent or not a number")
    if untimed:
        problems.append(f"metrics.jsonl: in {untimed} line(s) the time is absent or not a number")
    if repeated:
        problems.append(f"metrics.jsonl: {repeated} step(s) were logged more than once; the last line of each counts")
    return {name: _stage(steps) for name, steps in rows.items()}


def _metrics_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _stage(steps: dict[float, dict[str, Any]]) -> StageMetrics:
    series: dict[str, list[tuple[float, float]]] = {}
    not_finite: dict[str, int] = {}
    seconds: float | None = None
    for step in sorted(steps):
        row = steps[step]
        time_s = as_number(row.get("time_s"))
        seconds = time_s if time_s is not None and (seconds is None or time_s > seconds) else seconds
        for name, value in row.items():
            if name in ("stage", "step", "time_s") or (name not in series and len(series) >= _MOST_METRICS):
                continue
            number = as_number(value)
            if number is not None and abs(number) < _MOST_SIZE:
                series.setdefault(name, []).append((step, number))
            elif isinstance(value, float) or (value is None and name not in MAY_BE_NULL):
                not_finite[name] = not_finite.get(name, 0) + 1
    return StageMetrics(series, not_finite, seconds, len(steps))


def _read_episodes(folder: Path, problems: list[str]) -> list[ShownEpisode]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    shown = folder / "shown.jsonl"
    if not os.access(folder, os.R_OK | os.X_OK):
        problems.append(f"{folder.name} could not be read")
        return []
    if shown.exists():
        episodes, found = read_shown(shown, most=_MOST_EPISODES)
        problems.extend(found)
        if episodes:
            # a stage that was repeated shows its game again: the later one counts
            latest = {(episode.policy, episode.decoding, episode.title, episode.task): episode for episode in episodes}
            return list(latest.values())
    # no games were chosen to be shown: two from every file are better than none
    episodes = []
    for path in sorted(folder.glob("*.jsonl"))[:20]:
        if path != shown:
            some, _ = read_shown(path, most=2)
            episodes.extend(episode for episode in some if episode.turns)
    return episodes[:_MOST_EPISODES]
