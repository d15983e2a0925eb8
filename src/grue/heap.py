"""Free memory goes back to the system.

glibc keeps what is freed between blocks that are still in use, and tensors of ever new sizes leave many such gaps: the
main job would hold 4 GiB, three times what it uses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def trim() -> None:
    """Give the gaps back: some 50 ms for a heap of 2 GiB. Does nothing where the C library is not glibc."""
    release = _malloc_trim()
    if release is not None:
        release(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
