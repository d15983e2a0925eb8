"""`--processes N`: the command in N processes of this machine, which work on one run as a launcher's would."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from grue.errors import ConfigError
from grue.interrupt import stopping_signals
from grue.launch import STARTED_HERE, launched, speaks_here

LOOK_S = 0.1
WORDS_S = 10.0  # that the others get to report why they end, once one has ended
SAVING_S = 30.0  # that they then get to save, once they have been asked to stop
_SIGNALS = (1, signal.SIGINT, signal.SIGTERM)  # 1 is SIGHUP, which Windows lacks
_STOPPED = (*(-number for number in _SIGNALS), *(128 + number for number in _SIGNALS))  # codes of who was interrupted


def start(count: int) -> int | None:
    """Run this command in `count` processes, and return its exit code. None where this process is to do it itself.

    That is so where `count` is 1, and in the processes that were started. ConfigError under a launcher.
    """
    if launched() > 1:
        if count > 1 and STARTED_HERE not in os.environ:
            raise ConfigError(
                f"--processes {count} under a launcher that has started {launched()}", hint="leave out one of the two"
            )
        return None
    if count == 1:
        return None
    port = _free_port()
    children = [_child(rank, count, port) for rank in range(count)]
    with _passing_on_signals(children) as passed_on:
        late = _wait(children)
    return _exit_code(children, late, interrupted=bool(passed_on))


def end_at_once() -> None:
    """Have Ctrl-C end a process that was started here until it can save something.

    As an exception it could be raised anywhere, and twice: by the terminal and by the process that passes it on.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if speaks_here():
            with suppress(OSError):
                os.write(2, b"interrupted\n")
        os._exit(128 + number)

    if STARTED_HERE in os.environ:
        signal.signal(signal.SIGINT, end)


def _child(rank: int, count: int, port: int) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    told = {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1", STARTED_HERE: "1"}
    # what accelerate would set with a warning; `threads` decides how many there are
    return subprocess.Popen(
        [sys.executable, "-m", "grue", *sys.argv[1:]], env={"OMP_NUM_THREADS": "1"} | os.environ | told
    )


def _free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port: int = asking.getsockname()[1]
        return port


@contextmanager
def _passing_on_signals(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Pass a signal that asks this process to stop on to the children. Gives the list of those that came.

    A terminal sends Ctrl-C to them too: they ignore the second one when it comes within seconds (`Interrupt`).
    """

    passed_on: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed_on.append(number)
        _send(children, number)

    before = {number: signal.signal(number, pass_on) for number in stopping_signals()}
    try:
        yield passed_on
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """Wait until all have ended. If one failed, the others notice when they next talk to it, or are asked to stop.

    Returns which had to be killed, since they had not stopped in time.
    """
    failed = None
    asked = False
    late: set[int] = set()
    while None in (codes := [child.poll() for child in children]):
        if failed is None and any(codes):
            failed = time.monotonic()
        waited = 0.0 if failed is None else time.monotonic() - failed
        if waited > WORDS_S and not asked:
            asked = True
            _send(children, signal.SIGTERM)
        if waited > WORDS_S + SAVING_S:
            late |= {rank for rank, code in enumerate(codes) if code is None}
            for child in children:
                child.kill()
        time.sleep(LOOK_S)
    return late


def _send(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for child in children:
        child.send_signal(number)  # nothing happens to one that has ended


def _exit_code(
    children: Sequence[subprocess.Popen[bytes]], late: Collection[int] = (), *, interrupted: bool = False
) -> int:
    """That of the first process that failed, as the first one does the talking. Reports any that was killed.

    That others were interrupted counts only where none failed: after a failure they are asked to stop. Those of `late`,
    which were killed here, have not failed either. Nor have those that lost the first one when all were `interrupted`.
    """
    codes = [child.returncode for child in children]
    failures = [code for rank, code in enumerate(codes) if code not in (0, *_STOPPED) and rank not in late]
    for rank, code in enumerate(codes):
        if rank in late:
            print(f"process {rank} did not stop in time, and was killed", file=sys.stderr)
        elif code in failures and code < 0:
            print(f"process {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)
    if failures and not (interrupted and codes[0] in _STOPPED):
        if max(failures) < 0:  # then none of those that failed could say anything
            print("hint: did memory run out? The same command, without --again, goes on", file=sys.stderr)
        return next((code for code in failures if code > 0), 1)
    return next((code if code > 0 else 128 - code for code in codes if code in _STOPPED), 1 if any(codes) else 0)
