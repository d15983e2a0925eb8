"""What Python has freed and the C library has kept goes back to the system."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

from grue import heap

FRAGMENTED = """
import psutil
from grue import heap
kept = [bytes(100_000) for _ in range(2000)]
kept = kept[::20]  # a block in use every 2 MB: the heap cannot shrink from its end
before = psutil.Process().memory_info().rss
heap.trim()
print(before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_gaps_in_the_heap_go_back_to_the_system() -> None:
    found = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, text=True, check=True, timeout=60)
    assert int(found.stdout) > 100_000_000


def test_cycles_are_looked_for_seldom_and_only_inside() -> None:
    before = gc.get_threshold()
    with heap.seldom_collected():
        assert gc.get_threshold() == heap.SELDOM
    assert gc.get_threshold() == before
