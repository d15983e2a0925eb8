"""Sends what a run has measured to a tracker, once.

The run's files are the source: rows that a tracker already has are skipped, those from before it was asked for are
sent too. A stage that goes on from a checkpoint repeats some steps, with the same numbers; they are not sent twice. A
stage that starts over (`--again`) forgets what was sent, and the tracker gets a new run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from grue.config import flat
from grue.errors import DataError, GrueError, first_line
from grue.storage.contents import read_evaluation, read_metrics, read_run_config, tracking_file
from grue.storage.files import explained, lock, write_atomic
from grue.tracking.trackers import TRACKERS, Tracker

EVALUATED = ("success", "score", "steps_mean", "limit", "lost", "invalid", "failed")  # of a row of the final table


class Sender:
    """One tracker's run for one run directory. No other process may send the same to it meanwhile."""

    def __init__(self, out: Path, name: str) -> None:
        self._out, self._name, self._file = out, name, tracking_file(out, name)
        with explained(f"write to {self._file.parent}"):
            self._file.parent.mkdir(exist_ok=True)
            lock(self._file.with_suffix(".lock"), f"another process is sending {out} to {name}", "it ends with the run")
        self._sent = _read(self._file)
        self._tracker: Tracker | None = None
        if not self._sent["steps"]:  # a tracker that refuses does so at once, not after an hour of demonstrations
            self.open()

    def open(self) -> Tracker:
        """The tracker's run: a new one, or the one that was sent to before."""
        if self._tracker is None:
            name = self._sent.setdefault("run", f"{self._out.resolve().name}-{self._sent['id']}")  # folders get renamed
            self._tracker = TRACKERS[self._name](self._out, name, flat(read_run_config(self._out)))
            self._keep()
        return self._tracker

    def send(self) -> int:
        """Send what is new. Returns the number of rows."""
        count = 0
        try:
            for row in read_metrics(self._out):
                stage, step = row["stage"], row["step"]
                if step > self._sent["steps"].get(stage, -1):
                    values = _numbers({key: value for key, value in row.items() if key not in ("stage", "step")})
                    self.open().log(stage, step, values)
                    self._sent["steps"][stage] = step
                    count += 1
            for row in read_evaluation(self._out):
                name = row["row"].removeprefix("eval-")
                values = _numbers({key: row["result"].get(key) for key in EVALUATED})
                if self._sent["results"].get(name) != values:
                    self.open().log("eval", 0, {f"{name}/{key}": value for key, value in values.items()})
                    self._sent["results"][name] = values
                    count += 1
        finally:  # a tracker that fails has received the rows before
            if count:
                self._keep()
        return count

    def close(self) -> None:
        """Wait until all that was sent has arrived."""
        if self._tracker is not None:
            self._tracker.close()

    def _keep(self) -> None:
        write_atomic(self._file, orjson.dumps(self._sent, option=orjson.OPT_INDENT_2))


def follow(out: Path, name: str, over: Callable[[], bool]) -> None:
    """Send rows as they are written, until `over` says that no more will come; it decides how long to wait.

    DataError if the tracker fails, whatever its library raises.
    """
    with _explained(name):
        sender = Sender(out, name)
        while not over():
            sender.send()
        sender.send()
        sender.close()


def send_rest(out: Path, name: str) -> int:
    """Send what a tracker has not been sent yet. Returns the number of rows. Raises the same as `follow`."""
    with _explained(name):
        sender = Sender(out, name)
        count = sender.send()
        sender.close()
    return count


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except GrueError:
        raise
    except Exception as error:  # trackers raise anything without a network, an account or a disk
        raise DataError(f"{name}: {type(error).__name__}: {first_line(error)}") from error


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if isinstance(value, int | float)}


def _read(file: Path) -> dict[str, Any]:
    """Which run of the tracker this is, and what it has: the last step of each stage, rows of the final table."""
    try:
        sent: dict[str, Any] = orjson.loads(file.read_bytes())
        if isinstance(sent["id"], str) and isinstance(sent["steps"], dict) and isinstance(sent["results"], dict):
            return sent
    except FileNotFoundError:
        pass
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read: {first_line(error)}", hint="delete it: then all is sent again"
        ) from error
    return {"id": uuid.uuid4().hex[:8], "steps": {}, "results": {}}
