"""A process beside the run for each tracker: whatever a tracker does, it neither stops nor delays the run.

The process ends when its standard input does, and so when the run is killed. Ctrl-C does not reach it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from grue.errors import GrueError
from grue.progress import Progress
from grue.storage.contents import tracking_file

EVERY_S = 5.0  # between two looks at the run's files
SILENCE_S = 3.0  # before a run says that it waits for a tracker
PATIENCE_S = 60.0  # for which a finished run waits for what is still to be sent


class Trackers:
    """The processes of a run's trackers: `start` once the run's stages have begun, `finish` when nothing more comes."""

    def __init__(self, names: Sequence[str], out: Path, say: Progress) -> None:
        self._names, self._out, self._say = names, out, say
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: list[threading.Thread] = []
        self._given_up: set[str] = set()

    def start(self) -> None:
        """Start those that have not been started."""
        for name in self._names:
            if name not in self._started:
                self._started[name] = process = _start(self._out, name)
                self._watchers.append(threading.Thread(target=self._watch, args=(name, process), daemon=True))
                self._watchers[-1].start()

    def finish(self) -> None:
        """Let each send what is left, and end."""
        for process in self._started.values():
            _pipe(process).close()
        for name, process in self._started.items():
            try:
                self._wait(name, process)
            except subprocess.TimeoutExpired:
                self._give_up(name, process)
                self._warn(name, f"has not sent everything after {PATIENCE_S:.0f} seconds")
            except BaseException:  # Ctrl-C too: processes that wait for a network end with the run
                for other, running in self._started.items():
                    if running.poll() is None:
                        self._give_up(other, running)
                raise
        for watcher in self._watchers:
            watcher.join()

    def _wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(min(SILENCE_S, PATIENCE_S))
        except subprocess.TimeoutExpired:
            self._say(f"{name} sends what is left, which may take up to {PATIENCE_S:.0f} seconds")
            process.wait(max(0.0, PATIENCE_S - SILENCE_S))

    def _give_up(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self._given_up.add(name)
        _kill(process)
        with suppress(OSError):  # what was sent may not have arrived: all is sent again next time
            tracking_file(self._out, name).unlink(missing_ok=True)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Say so at once if a tracker ends with an error: the run may go on for hours."""
        if process.wait() and name not in self._given_up:
            log = _log_file(self._out, name).read_text(encoding="utf-8", errors="replace")
            last = (log.strip().splitlines() or ["no message"])[-1]
            self._warn(name, f"is no longer written to: {last}")

    def _warn(self, name: str, what: str) -> None:
        log = _log_file(self._out, name)
        rest = "all of it to a new run" if name in self._given_up else "the rest"
        self._say.warn(f"{name} {what} ({log}). Nothing is lost: grue track {self._out} {name} sends {rest}")


def show_finished(names: Sequence[str], out: Path, say: Progress) -> None:
    """Show a run to trackers when nothing of it is left to do."""
    trackers = Trackers(names, out, say)
    trackers.start()
    trackers.finish()


def _start(out: Path, name: str) -> subprocess.Popen[bytes]:
    log = _log_file(out, name)
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "grue.tracking.beside", str(out), name],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )


def _log_file(out: Path, name: str) -> Path:
    return tracking_file(out, name).with_suffix(".log")


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With the processes that it has started, where the system has process groups."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _main(out: str, name: str) -> None:
    from grue.tracking.follow import follow

    with suppress(AttributeError, OSError):
        os.nice(10)  # the cores are the run's
    over = threading.Event()

    def read_to_the_end() -> None:
        while os.read(0, 1):  # `sys.stdin` has a lock that a waiting thread would hold when the process ends
            pass
        over.set()

    threading.Thread(target=read_to_the_end, daemon=True).start()
    try:
        follow(Path(out), name, lambda: over.wait(EVERY_S))
    except GrueError as error:
        print(error.message, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    _main(*sys.argv[1:])
