"""`grue experiment eval-gap RUNS`: the requested contrasts, one file each, and the ranked table."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from grue.config import Config
from grue.errors import ConfigError, DataError
from grue.evaluate.runs import training_settings
from grue.experiments.cells import Cell, Cells, digest
from grue.experiments.eval_gap.arms import Weights
from grue.experiments.eval_gap.contrasts import Contrast
from grue.experiments.eval_gap.measure import Measure
from grue.experiments.eval_gap.settings import Settings
from grue.experiments.eval_gap.suspects import Pair, Suspect, fitting
from grue.experiments.eval_gap.table import markdown, ranked
from grue.experiments.examined import examined_config
from grue.hardware import hardware, versions
from grue.models.learned import copy_of_learned
from grue.progress import Progress
from grue.stages.session import open_session
from grue.storage.files import explained, lock_folder, write_atomic
from grue.storage.run import Run


def run(
    folders: Sequence[Path], size: Settings, suspects: Mapping[str, Suspect], *, out: Path | None, say: Progress
) -> dict[str, Any]:
    """Measure the run in each folder. Returns the ranked result; for several trainings, the one over all of them.

    Results of a single run, or those over several, go to `out`: by default experiments/eval-gap in the first run. Of
    several runs each also has its own there. Cells on file are not played again, so the same command continues where
    it stopped.
    """
    configs = {folder: _examined(folder, size.policy) for folder in folders}
    first = configs[folders[0]]
    suspects = fitting(suspects, first.game.name, say, demonstrations=first.demos.games > 0)
    if len(folders) == 1:
        return _measure(folders[0], configs[folders[0]], size, suspects, out or _place(folders[0]), say)[0]
    _check_kind(configs, size.policy)
    pairs = {name: suspect for name, suspect in suspects.items() if isinstance(suspect, Pair)}
    if not pairs:
        raise ConfigError(
            f"{', '.join(suspects)}: none of these can be averaged over several runs",
            hint="name one run; contrasts that train already have several trainings",
        )
    out = out or _place(folders[0])
    with explained(f"open {out}", ConfigError):
        out.mkdir(parents=True, exist_ok=True)
    if alone := [name for name in suspects if name not in pairs]:
        say(f"measured on single runs only, so skipped here: {', '.join(alone)}")
    known: set[str] = set()
    cells: dict[str, list[tuple[Cell, Cell]]] = {name: [] for name in pairs}
    for folder, config in configs.items():
        say(f"{folder}:", style="bold")
        result, measured = _measure(folder, config, size, pairs, _place(folder), say, known)
        known.add(result["weights"])
        for name in pairs:
            cells[name].append(measured[name])
    found = [pair.over_trainings(cells[name], size) for name, pair in pairs.items()]
    title = f"Why is {size.policy} worse in evaluation? {len(folders)} trainings, {size.fold} fold"
    head = {"runs": [folder.name for folder in folders], "seeds": [config.seed for config in configs.values()]}
    return _publish(out, "over-trainings", title, head | {"settings": size.model_dump()}, found, say)


def _place(folder: Path) -> Path:
    return folder / "experiments" / "eval-gap"


def _examined(folder: Path, trained: str) -> Config:
    """The configuration of a run. ConfigError if it does not train `trained`, or a kind of policy not examined here."""
    config = examined_config(folder, trained)
    policy = config.policy
    fits = policy.kind in ("aligned", "choose")
    if not fits or (policy.template, policy.list_actions, policy.history) != ("plain", False, 0):
        raise ConfigError(
            f"{folder} has policy.kind={policy.kind}, policy.template={policy.template}, "
            f"policy.list_actions={str(policy.list_actions).lower()}, policy.history={policy.history}",
            hint="eval-gap needs policy.kind=aligned or choose, policy.template=plain, policy.list_actions=false and "
            "policy.history=0",
        )
    return config


def _check_kind(configs: Mapping[Path, Config], policy: str) -> None:
    """Raise ConfigError if the trainings of `policy` differ in more than their seeds, or in how they are sampled."""
    (first, settings), *others = (
        (folder, training_settings(config, policy) | {"eval.temperature": config.sampling_temperature})
        for folder, config in configs.items()
    )
    for folder, other in others:
        for name, value in settings.items():
            # of a stage that one of them skips only its length is known, and that differs
            if name in other and other[name] != value:
                raise ConfigError(
                    f"{first} and {folder} are not trainings of one kind: {name}={value} and {other[name]}",
                    hint="runs are averaged, so their settings may differ only in the seed",
                )


def _measure(
    folder: Path,
    config: Config,
    size: Settings,
    suspects: Mapping[str, Suspect],
    out: Path,
    say: Progress,
    known: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, tuple[Cell, Cell]]]:
    """(the ranked result of one run, the cells of each `Pair`). `known`: weights that were measured in another run."""
    with explained(f"open {out}", ConfigError):
        lock_folder(out)
    cells: dict[str, tuple[Cell, Cell]] = {}
    with open_session(Run(folder, config, leads=False), config, say) as session:  # the run itself is only read
        session.load(size.policy)
        weights = copy_of_learned(session.model)
        measure, made = Measure(session, size, Cells(out / "cells"), weights), _made(config, size, weights)
        if made["weights"] in known:
            raise DataError(f"{folder} has the same weights as another of the runs", hint="each training counts once")
        found = _on_file(out / "contrasts", made, without=set(suspects))
        for name, suspect in suspects.items():
            start = time.monotonic()
            contrast = suspect(measure)
            if contrast is None:
                continue
            if isinstance(suspect, Pair):
                cells[name] = suspect.cells(measure)
            found.append(contrast)
            _write(out / "contrasts" / f"{name}.json", {**contrast, **made})
            low, high = contrast["ci95"]
            seconds = time.monotonic() - start
            say(f"{name}: {contrast['points']:+z.1f} points [{low:+z.1f}, {high:+z.1f}]  {seconds:.0f} s")
    title = f"Why is {size.policy} worse in evaluation? {folder.name}, {size.fold} fold"
    return _publish(out, "eval-gap", title, {"run": folder.name, **made}, found, say), cells


def _publish(
    out: Path, stem: str, title: str, head: Mapping[str, Any], found: Sequence[Contrast], say: Progress
) -> dict[str, Any]:
    """Write the ranked table, for programs and for people."""
    result = {
        "experiment": "eval-gap",
        **head,
        "contrasts": ranked(found),
        "hardware": hardware(),
        "versions": versions(),
    }
    _write(out / f"{stem}.json", result)
    text = markdown(found, title)
    with explained(f"write {out / stem}.md"):
        write_atomic(out / f"{stem}.md", text.encode())
    say(text)
    say(f"table: {out / stem}.md")
    return result


def _made(config: Config, size: Settings, weights: Weights) -> dict[str, Any]:
    how = {"policy_kind": config.policy.kind, "temperature": config.sampling_temperature}
    return {"settings": size.model_dump(), "weights": digest(weights), **how}


def _on_file(folder: Path, made: dict[str, Any], *, without: Collection[str]) -> list[Contrast]:
    """Contrasts that an earlier command left: of the same weights, policy and fold; other settings may differ."""
    found: list[Contrast] = []
    for file in sorted(folder.glob("*.json")):
        with explained(f"read {file}"):
            text = file.read_bytes()
        try:
            data = orjson.loads(text)
            same = _same(made, {key: data.pop(key, None) for key in made})
            markdown([data], "")  # fails where the table would
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file} is not a contrast", hint="delete it to measure it again") from error
        if file.stem not in without and same:
            found.append(data)
    return found


def _same(made: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Do two contrasts belong in one table? Other settings may differ: a contrast's file records them."""
    settings = earlier["settings"] or {}
    same = all(settings.get(key) == made["settings"][key] for key in ("policy", "fold"))
    return same and all(earlier[key] == made[key] for key in ("weights", "policy_kind", "temperature"))


def _write(file: Path, data: dict[str, Any]) -> None:
    with explained(f"write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        write_atomic(file, orjson.dumps(data, option=option))
