"""`grue experiment eval-gap RUN`: every contrast that is wanted, one file each, and the ranked table."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import orjson

from grue.errors import ConfigError, DataError
from grue.experiments.eval_gap.arms import Weights
from grue.experiments.eval_gap.cells import Cells
from grue.experiments.eval_gap.contrasts import Contrast
from grue.experiments.eval_gap.measure import Measure, digest
from grue.experiments.eval_gap.settings import Settings
from grue.experiments.eval_gap.suspects import Suspect
from grue.experiments.eval_gap.table import markdown, ranked
from grue.hardware import hardware, versions
from grue.progress import Progress
from grue.stages.session import open_session
from grue.storage.files import explained, lock, write_atomic
from grue.storage.run import Run, read_run_config


def run(
    folder: Path, size: Settings, suspects: Mapping[str, Suspect], *, out: Path | None, say: Progress
) -> dict[str, Any]:
    """Measure on the run in `folder`; results go to `out`, or to RUN/experiments/eval-gap. Returns the ranked result.

    Cells that are on file are not played again, so the same command goes on where it was interrupted.
    """
    config = read_run_config(folder)
    if (config.policy.kind, config.policy.template, config.policy.list_actions) != ("choose", "plain", False):
        raise ConfigError(
            f"{folder} has policy.kind={config.policy.kind}, policy.template={config.policy.template}",
            hint="eval-gap examines policies that choose, after a plain transcript without a list of actions",
        )
    out = out or folder / "experiments" / "eval-gap"
    with explained(f"open {out}", ConfigError):
        out.mkdir(parents=True, exist_ok=True)
        lock(out / ".lock", f"another process is working on {out}", "wait for it, or choose another folder with --out")
    with open_session(Run(folder, config, leads=False), config, say) as session:  # the run itself is only read
        session.load(size.policy)
        weights = {name: p.detach().clone() for name, p in session.model.named_parameters() if p.requires_grad}
        measure, made = Measure(session, size, Cells(out / "cells"), weights), _made(size, weights)
        found = _on_file(out / "contrasts", made, without=set(suspects))
        for name, suspect in suspects.items():
            start = time.monotonic()
            contrast = suspect(measure)
            found.append(contrast)
            _write(out / "contrasts" / f"{name}.json", {**contrast, **made})
            low, high = contrast["ci95"]
            seconds = time.monotonic() - start
            say(f"{name}: {contrast['points']:+.1f} points [{low:+.1f}, {high:+.1f}]  {seconds:.0f} s")
    result = {
        "experiment": "eval-gap",
        "run": folder.name,
        "settings": size.model_dump(),
        "contrasts": ranked(found),
        "hardware": hardware(),
        "versions": versions(),
    }
    _write(out / "eval-gap.json", result)
    text = markdown(found, f"Why is {size.policy} worse in evaluation? {folder.name}, {size.fold} fold")
    with explained(f"write {out / 'eval-gap.md'}"):
        write_atomic(out / "eval-gap.md", text.encode())
    say(text)
    say(f"table: {out / 'eval-gap.md'}")
    return result


def _made(size: Settings, weights: Weights) -> dict[str, Any]:
    return {"settings": size.model_dump(), "weights": digest(weights)}


def _on_file(folder: Path, made: dict[str, Any], *, without: Collection[str]) -> list[Contrast]:
    """Contrasts that an earlier command left: of the same weights, policy and fold, with settings of their own."""
    found: list[Contrast] = []
    for file in sorted(folder.glob("*.json")):
        with explained(f"read {file}"):
            text = file.read_bytes()
        try:
            data = orjson.loads(text)
            same = _same(made, {key: data.pop(key, None) for key in made})
            markdown([data], "")  # needs what the table will need of it
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file} is no contrast", hint="delete it to have it measured again") from error
        if file.stem not in without and same:
            found.append(data)
    return found


def _same(made: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Do two contrasts belong into one table? Other settings may differ: they stand in a contrast's file."""
    settings = earlier["settings"] or {}
    same = all(settings.get(key) == made["settings"][key] for key in ("policy", "fold"))
    return same and earlier["weights"] == made["weights"]


def _write(file: Path, data: dict[str, Any]) -> None:
    with explained(f"write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        write_atomic(file, orjson.dumps(data, option=option))
