"""Return freed memory to the system, cache few kernels, and make Python search for reference cycles rarely.

glibc keeps memory that was freed between blocks still in use, and tensors of ever-changing sizes leave many such gaps:
the main job would hold 4 GiB, three times what it uses.
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
KERNELS = 64  # matrix-product kernels to keep on a CPU; more than the number of shapes in one pass through a model


def trim() -> None:
    """Give freed memory back: some 50 ms for a heap of 2 GiB. Does nothing if the C library is not glibc."""
    release = _malloc_trim()
    if release is not None:
        release(0)


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def keep_few_kernels() -> None:
    """Let oneDNN and torch's layer above it keep 64 kernels each instead of 1024. Call it before the first product.

    A kernel is compiled for one shape, and hardly any shape repeats, since passes vary with what a batch holds: a
    thousand kernels take more than a GiB. Values that the user has set are kept.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, str(KERNELS))


@contextmanager
def frozen() -> Iterator[None]:
    """Exempt the objects that exist on entry from searches for cycles, until exit."""
    ours = gc.get_freeze_count() == 0  # else a caller has frozen objects already and will unfreeze them
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Search for cycles rarely inside this block: a thousand games are millions of objects with hardly any cycles.

    Walking over them again and again took a tenth of an evaluation's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
