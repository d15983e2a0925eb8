"""When a training saves before it is done: every so often, and when somebody asks it to stop."""

from __future__ import annotations

import time

from grue.interrupt import Interrupt
from grue.parallel import Processes


class SavePoints:
    """All processes ask at the same places of the training, and get the same answer.

    if points.due():
        save()
        points.passed()
    """

    def __init__(self, every_s: float, processes: Processes, interrupt: Interrupt) -> None:
        self._every_s, self._processes, self._interrupt = every_s, processes, interrupt
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Is it time to save?"""
        late = time.monotonic() - self._saved >= self._every_s
        return self._processes.any(self._interrupt.requested or late)

    def passed(self) -> None:
        """All is saved: raise Interrupted if somebody has asked to stop."""
        self._saved = time.monotonic()
        self._processes.check_interrupt(self._interrupt)
