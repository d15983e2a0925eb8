"""Free memory goes back to the system, few kernels are kept, and Python looks for cycles seldom.

glibc keeps what is freed between blocks that are still in use, and tensors of ever new sizes leave many such gaps: the
main job would hold 4 GiB, three times what it uses.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

SELDOM = (50_000, 20, 20)  # instead of Python's 700, 10, 10
CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN, and of torch's layer above it
KERNELS = 64  # of products on a CPU that are kept; more than one pass through a model has shapes


def trim() -> None:
    """Give the gaps back: some 50 ms for a heap of 2 GiB. Does nothing where the C library is not glibc."""
    release = _malloc_trim()
    if release is not None:
        release(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def keep_few_kernels() -> None:
    """Let oneDNN and torch's layer above it keep 64 kernels each instead of 1024. Before the first product only.

    A kernel is compiled for one shape, and hardly any shape comes again when a pass holds what a batch happens to: a
    thousand take more than a GiB. Who has set these variables keeps them.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, str(KERNELS))


@contextmanager
def frozen() -> Iterator[None]:
    """What is there at the beginning stays inside: searches for cycles need not walk over it."""
    ours = gc.get_freeze_count() == 0  # else somebody has frozen more, who will let go of it
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


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
