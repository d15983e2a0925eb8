"""Stopping when asked: a first Ctrl-C, SIGTERM or SIGHUP lets a run save at the next safe point, a second ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

REPEAT_S = 5.0  # a signal that a launcher passes on within this time is not a second one
LAST_WORDS = "stopped at once; the same command goes on from the last save\n"


class Interrupted(BaseException):
    """Raised by `Interrupt.check` at a safe point. Not an Exception, so no handler of errors swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number  # 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP, as in shells


def stopping_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a command to stop: Ctrl-C, `kill`, and a terminal that closes, unless `nohup` ignores it."""
    signals = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        signals.append(hangup)
    return tuple(signals)


class Interrupt:
    """Catches the `stopping_signals` while it is open.

    with Interrupt() as stop:
        for step in steps:
            ...
            save()
            stop.check()
    """

    def __init__(self) -> None:
        self.safe_point = "at the next safe point"  # when a run stops, in words
        self._number: int | None = None
        self._since = 0.0
        self._before: dict[int, signal._HANDLER] = {}

    @property
    def requested(self) -> bool:
        """Has somebody asked to stop?"""
        return self._number is not None

    @property
    def number(self) -> int | None:
        """The signal that was caught."""
        return self._number

    def adopt(self, number: int | None) -> None:
        """Stop as if `number` had been caught here: another process of the run caught it."""
        if number is not None and self._number is None:
            self._number, self._since = number, time.monotonic()

    def check(self) -> None:
        """Raise Interrupted if somebody has asked to stop. Call it where everything is saved or can be saved."""
        if self._number is not None:
            raise Interrupted(self._number)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in stopping_signals():
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not (self.requested and "WORLD_SIZE" in os.environ):  # else a launcher would end us before our last words
            for number, handler in self._before.items():
                signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None and "WORLD_SIZE" in os.environ and time.monotonic() - self._since < REPEAT_S:
            return  # Ctrl-C reaches the launcher too, and it passes the signal on
        if self._number is not None:
            # Not sys.exit: whatever is running would get to clean up, which can take as long as what it was doing.
            cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # which a progress bar hides
            _write(f"{cursor}\n{LAST_WORDS if _speaks() else ''}")
            os._exit(128 + number)
        self._number, self._since = number, time.monotonic()
        if _speaks():
            _write(f"\nstopping {self.safe_point}; interrupt again to stop at once\n")


def _speaks() -> bool:
    """Only one process per machine says that it stops."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _write(text: str) -> None:
    """Write to stderr past Python's buffers, which a signal handler must not enter."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
