"""The run directory, opened by all processes of a run: with the same settings, in a folder that all of them see."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from grue.config import Config, flat
from grue.errors import ConfigError
from grue.hardware import versions
from grue.parallel import Processes
from grue.storage.files import explained, write_atomic
from grue.storage.run import Run

SEEN = ".seen.tmp"  # the leader writes it and the others look for it; left over from a killed run, it does no harm
# A network drive may repeat for this long its earlier answer that there is no such folder.
PATIENCE_S, PAUSE_S = 45.0, 0.5


def open_run(out: Path, config: Config, again: str, processes: Processes, stage: str = "run") -> Run:
    """The run directory: the leader prepares it, then the others read it."""
    facts = {"verb": stage, "--again": bool(again), **flat(config, local=False), **versions()}
    processes.same_everywhere({name: fact for name, fact in facts.items() if name != "python"})
    with processes.together():
        run = Run(out, config, again=again) if processes.leads else None
    if processes.count > 1:
        _check_seen(out, processes)
    run = run or Run(out, config, again=again, leads=False)
    processes.wait()
    return run


def _check_seen(out: Path, processes: Processes) -> None:
    """ConfigError if a process sees another folder, or none, under the name of the run's."""
    sign = processes.first(uuid.uuid4().hex if processes.leads else "")
    file = out / SEEN
    with processes.together():
        if processes.leads:
            with explained(f"write {file}", ConfigError):
                write_atomic(file, sign.encode())
    try:
        with processes.together():
            if not _appears(file, sign):
                raise ConfigError(
                    f"{out.resolve()} is not the folder in which the first process began the run",
                    hint="--out must name a folder that all machines share, for example on a network drive",
                )
    finally:
        if processes.leads:
            file.unlink(missing_ok=True)


def _appears(file: Path, sign: str) -> bool:
    until = time.monotonic() + PATIENCE_S
    while True:
        with explained(f"read {file}", ConfigError):
            if file.exists() and file.read_text(encoding="utf-8") == sign:
                return True
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE_S)
