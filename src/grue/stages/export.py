"""`grue export`: a run's trained policy as a folder that transformers and peft load, checked before it appears."""

from __future__ import annotations

import glob
import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from grue.config import Config, dump_config
from grue.errors import ConfigError, DataError
from grue.evaluate.probe import Gap, tolerance
from grue.hardware import versions
from grue.models.export import save_adapter, save_merged, save_value_head
from grue.models.sources import is_local
from grue.names import FORMATS, FURTHEST_FIRST, PLAYED_IN, TRAINING
from grue.progress import Progress
from grue.stages.card import model_card
from grue.stages.trained import (
    EXPORT_SETTINGS,
    PROBE,
    SCHEMA,
    Trained,
    check_trains,
    check_weights,
    furthest,
    known_format,
    load_trained,
    read_probe,
    stage_weights,
)
from grue.storage import checkpoint, episodes
from grue.storage.contents import ABOUT, is_done, read_results, read_run_config, read_stages
from grue.storage.files import explained, files_below, is_fresh, readable_alike
from grue.storage.settled import check_unedited

WHAT = ("adapter", "merged")


def export_run(
    run: Path, *, what: str, policy: str | None = None, dtype: str = "float32", to: Path | None = None, say: Progress
) -> dict[str, Any]:
    """Write the policy of `run` to the folder `to` (default: RUN/export-WHAT) and return the result of its check.

    The folder appears when all of it is written and a recorded game has been read with what was written: a copy whose
    outputs differ from the policy's raises ModelError and leaves nothing.
    """
    if what not in WHAT or dtype not in FORMATS:
        raise ConfigError(
            f"cannot export what={what}, dtype={dtype}", hint=f"what: {', '.join(WHAT)}; dtype: {', '.join(FORMATS)}"
        )
    config = read_run_config(run)
    check_unedited(run, config, read_stages(run))  # what is published says how the policy was made
    name = policy or furthest(run)
    target = (to or run / f"export-{what}").resolve()
    if target == Path.cwd():
        raise ConfigError(
            f"{target} is the current folder, which cannot be replaced", hint="name a folder in it with --to"
        )
    if name not in TRAINING:
        raise ConfigError(f"there is no trained policy {name!r}", hint=f"known are {', '.join(FURTHEST_FIRST)}")
    check_trains(run, config, name)
    check_weights(run, name)
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise ConfigError(f"{target} already exists", hint="name another folder with --to, or delete it")
    probe = read_probe(run, name)
    if not probe:
        if not is_done(run, name):  # its game is recorded at its end
            raise DataError(
                f"{name} is not finished in {run}",
                hint=f"finish it with grue {name} {run}, or choose a finished one with --policy",
            )
        raise DataError(
            f"{run} holds no recorded game of {name} to check a copy with",
            hint=f"train again, which deletes later stages' results: grue {name} {run} --again",
        )
    for leftover in target.parent.glob(f".{glob.escape(target.name)}-????????"):
        if not is_fresh(leftover):  # of an export that was killed, not of one under way
            shutil.rmtree(leftover, ignore_errors=True)
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        with explained(f"write {target}"), checkpoint.system_errors():
            temporary.mkdir(parents=True)
            _write(temporary, run, config, name, what, dtype, probe)
            copy = load_trained(temporary)
            gap = copy.check(probe, f"the exported {what}")
            _about(temporary, run, what, copy, gap)
            readable_alike(temporary, temporary / ABOUT)
            if target.exists():
                target.rmdir()
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if what == "adapter" and is_local(config.model.name):
        say.warn(
            f"the adapter in {target} names its base by a folder, {config.model.name}: others cannot load the adapter. "
            "--what merged makes a model that stands alone"
        )
    say(f"{target}: {what} of {name}, checked on {gap.turns} turns (mean difference {gap.mean:.2g} nats)")
    say(f'from grue import load_policy; policy = load_policy("{target}")', style="dim")
    return {"folder": str(target), "what": what, "policy": name, **gap._asdict()}


def _write(folder: Path, run: Path, config: Config, policy: str, what: str, dtype: str, probe: list[Any]) -> None:
    trained = load_trained(run, policy)
    weights = stage_weights(run, policy, trained.encoder.fingerprint)
    trained.check(probe, f"the checkpoint of {policy}")
    if what == "adapter":
        save_adapter(trained.model.lm, config.model, folder)
    else:
        save_merged(config.model, weights, folder, getattr(torch, dtype))
    save_value_head(weights, folder)
    trained.encoder.tokenizer.save_pretrained(folder)
    (folder / EXPORT_SETTINGS).write_text(dump_config(_portable(config, what)), encoding="utf-8")
    # the error of a game may name paths of this machine
    episodes.append(folder / PROBE, [replace(episode, error="") for episode in probe])
    # enough to load it; the rest follows once it has been checked
    about = {"schema": SCHEMA, "what": what, "policy": policy, "prompt": trained.encoder.fingerprint}
    about["dtype"] = _format(what, dtype)
    if played := known_format(config, read_stages(run).get(policy, {})):
        about[PLAYED_IN] = played
    (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def _about(folder: Path, run: Path, what: str, copy: Trained, gap: Gap) -> None:
    """Say what has been checked, and write the model card."""
    config = read_run_config(run)
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8")) | {
        "base": _base_name(config),
        "probe": {**gap._asdict(), "tolerance": tolerance(config.model, copy.played, copy.stored)},
        "versions": versions(),
        "files": sorted({*files_below(folder), "README.md"}),
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    card = model_card(_portable(config, what), about, read_results(run))
    (folder / "README.md").write_text(card, encoding="utf-8")


def _format(what: str, dtype: str) -> str:
    """The number format in which weights are written: adapters keep the one in which they learn."""
    return dtype if what == "merged" else "float32"


def _portable(config: Config, what: str) -> Config:
    """The settings without paths of this machine. An adapter must name its base, wherever that is."""
    engine, _, file = config.game.name.partition(":")
    game = config.game.model_copy(update={"java": None, "name": f"{engine}:{Path(file).name}" if file else engine})
    changes = {"game": game}
    if what == "merged":
        model = config.model.model_copy(update={"name": _base_name(config), "revision": None})
        changes["model"] = model  # type: ignore[assignment]
    return config.model_copy(update=changes)


def _base_name(config: Config) -> str:
    """A name of the base for others: a hub name, or the last part of a local path."""
    name = config.model.name
    return Path(name).name if is_local(name) else name
