"""The contents of a run directory, for code that only reads: where its files are, and readers of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from grue.config import Config, read_config
from grue.errors import ConfigError, DataError
from grue.storage import forms, jsonl
from grue.storage.files import explained

LISTED = 3  # runs that a hint names
UNMEASURED = -1.0  # best_merit of a stage that played no dev games; below every merit
REPORT = "report.html"
ABOUT = "grue.json"  # what makes a folder an exported policy


def checkpoints_folder(out: Path, stage: str) -> Path:
    """Folder of a stage's checkpoints in a run directory."""
    return out / "checkpoints" / _plain(stage)


def episodes_file(out: Path, name: str) -> Path:
    """File of a run's episodes called `name`."""
    return out / "episodes" / f"{_plain(name)}.jsonl"


def evaluation_name(policy: str, fold: str, decoding: str) -> str:
    """The name of one measurement's games and row."""
    return f"eval-{policy}-{fold}-{decoding}"


def tracking_file(out: Path, tracker: str) -> Path:
    """The record of what a tracker has been sent of the run in `out`; what it printed is beside it."""
    return out / "tracking" / f"{_plain(tracker)}.json"


def read_run_config(out: Path) -> Config:
    """The configuration of an existing run."""
    file = out / "config.yaml"
    if not out.exists():
        fetch = "grue run --out DIR makes a run; huggingface_hub.snapshot_download fetches one from a hub"
        raise ConfigError(f"there is no folder {out}", hint=_meant(out) or fetch)
    if not file.exists() and (out / ABOUT).exists():
        raise ConfigError(
            f"{out} is an exported policy, not a run directory",
            hint=f'from Python, grue.load_policy("{out}") loads it; grue push uploads it; other commands take a run',
        )
    if not file.exists():
        raise ConfigError(
            f"{out} is not a run directory: it has no config.yaml", hint=_meant(out) or "grue run --out DIR makes one"
        )
    config = read_config(file)
    # a run may be somebody else's: only the command, or JAVA_HOME, decides which program is started
    return config.model_copy(update={"game": config.game.model_copy(update={"java": None})})


def _meant(folder: Path) -> str:
    """Which run may have been meant: the one that `folder` lies in, else those in it or, where it is not, beside it."""
    above = next((parent for parent in folder.parents if (parent / "stages.json").exists()), None)
    if above is not None:
        return f"name the run directory itself: {above}"
    found = newest_runs(folder if folder.is_dir() else folder.parent)
    return f"last written to: {', '.join(map(str, found[:LISTED]))}" if found else ""


def newest_runs(folder: Path = Path("runs")) -> list[Path]:
    """The runs in `folder`, the one that was last written to first."""
    return sorted((path.parent for path in folder.glob("*/config.yaml")), key=_last_written, reverse=True)


def _last_written(run: Path) -> float:
    times = [0.0]
    for file in run.iterdir():
        with suppress(OSError):  # a file that a run is replacing right now, a dangling link
            times.append(file.stat().st_mtime)
    return max(times)


def check_distinct(runs: Sequence[Path]) -> None:
    """ConfigError where two are the same folder, as each training counts once."""
    places = [run.resolve() for run in runs]
    twice = [run for i, run in enumerate(runs) if places[i] in places[:i]]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice", hint="each training counts once")


def read_metrics(out: Path, stage: str = "") -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, those of one stage if it is named."""
    rows = jsonl.read(out / "metrics.jsonl", forms.metrics_row)
    return [row for _, row in rows if not stage or row["stage"] == stage]


def keep_metrics(out: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the rows of metrics.jsonl that are not `wanted`."""
    jsonl.keep(out / "metrics.jsonl", wanted, forms.metrics_row)


def read_evaluation(out: Path) -> list[dict[str, Any]]:
    """The rows of evaluation.jsonl: {"row": name, "result": ...}, and "api", who played what, for a chat model."""
    return [row for _, row in jsonl.read(out / "evaluation.jsonl", forms.evaluation_row)]


def keep_evaluation(out: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the rows of evaluation.jsonl that are not `wanted`."""
    jsonl.keep(out / "evaluation.jsonl", wanted, forms.evaluation_row)


def read_results(out: Path) -> dict[str, Any] | None:
    """results.json, None before there is one."""
    file = out / "results.json"
    results = read_json(file)
    if results is not None:
        forms.results(str(file), results)
    return results


def read_stages(out: Path) -> dict[str, dict[str, Any]]:
    """Stage -> {"state": "begun" or "done", ...facts}."""
    file = out / "stages.json"
    stages = read_json(file) or {}
    forms.stages(str(file), stages)
    return stages


def is_done(out: Path, stage: str) -> bool:
    """Has the stage been finished?"""
    return bool(read_stages(out).get(stage, {}).get("state") == "done")


# files that a run can do without, and how
_DISPENSABLE = {
    "results.json": "delete it, and the run's command writes it again, without playing",
    "prompt.json": "delete it: it is made anew, and compared with what the checkpoints say",
    "settings.json": "delete it; the run's settings are then those of its config.yaml",
}


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a file of a run, None where there is no file. DataError for anything else in it."""
    hint = _DISPENSABLE.get(file.name, "restore it; if you cannot, start over in another folder")
    if not file.exists():
        return None
    try:
        with explained(f"read {file}"):
            data = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"{file} is not JSON: {error}", hint=hint) from error
    if not isinstance(data, dict):
        raise DataError(f"{file} holds {type(data).__name__}, not an object", hint=hint)
    return data


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{name!r} cannot be a file name")
    return name
