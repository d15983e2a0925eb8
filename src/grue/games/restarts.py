"""Engines that die are restarted and replayed, unnoticed by callers. It takes time, so it is counted and logged."""

from __future__ import annotations

import logging
from collections import Counter

_log = logging.getLogger(__name__)
_restarts: Counter[str] = Counter()  # of this process


def note_restart(engine: str, reason: object) -> None:
    """Log that `engine` died or hung: the first time, and whenever the number of times has doubled."""
    _restarts[engine] += 1
    number = _restarts[engine]
    if number & (number - 1) == 0:
        _log.warning("%s died or hung %s, and is restarted: %s", engine, _times(number), reason)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times so far"
