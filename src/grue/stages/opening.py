"""The run's folder, opened by all processes of a run: the same run with the same settings, in a folder that all see."""

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

SEEN = ".seen.tmp"  # what the leader writes and the others look for; of a run that is killed it is no obstacle
# A network drive may go on for that long to say that there is no such folder, as it answered before.
PATIENCE_S, PAUSE_S = 45.0, 0.5


def open_run(out: Path, config: Config, again: str, processes: Processes, stage: str = "run") -> Run:
    """The run directory: the leader makes it what the others then read."""
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
    """ConfigError where a process has another folder, or none, under the name of the run's."""
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
                    f"{out.resolve()} is not the folder in which the first process has begun the run",
                    hint="--out has to lead to one folder that all machines share, on a network drive for example",
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
