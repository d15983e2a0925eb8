"""Free memory goes back to the system, and Python looks for cycles seldom.

glibc keeps what is freed between blocks that are still in use, and tensors of ever new sizes leave many such gaps: the
main job would hold 4 GiB, three times what it uses.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

SELDOM = (50_000, 20, 20)  # instead of Python's 700, 10, 10


def trim() -> None:
    """Give the gaps back: some 50 ms for a heap of 2 GiB. Does nothing where the C library is not glibc."""
    release = _malloc_trim()
    if release is not None:
        release(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Inside, the search for cycles is rare: a thousand games are millions of objects, and hardly any cycle.

    A tenth of the time of an evaluation went into walking over them again and again.
    """
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
