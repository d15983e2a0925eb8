"""What Python has freed and the C library has kept goes back to the system."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys

import pytest
import torch

from grue import heap
from grue.models.reordered import reorders

FRAGMENTED = """
import psutil
from grue import heap
kept = [bytes(100_000) for _ in range(2000)]
kept = kept[::20]  # a block in use every 2 MB: the heap cannot shrink from its end
before = psutil.Process().memory_info().rss
heap.trim()
print(before - psutil.Process().memory_info().rss)
"""

SHAPES = """
import sys

import psutil
import torch

from grue import heap

if sys.argv[1] == "few":
    heap.keep_few_kernels()
weight = torch.randn(256, 256).bfloat16()

def play(sizes):
    with torch.no_grad():
        for size in sizes:
            torch.nn.functional.linear(torch.randn(size, 256).bfloat16(), weight)
    heap.trim()
    return psutil.Process().memory_info().rss

before = play(range(1, 101))
print(play(range(101, 701)) - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_gaps_in_the_heap_go_back_to_the_system() -> None:
    found = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, text=True, check=True, timeout=60)
    assert int(found.stdout) > 100_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
@pytest.mark.skipif(not reorders("cpu", torch.bfloat16), reason="without bfloat16 instructions nothing is compiled")
def test_kernels_of_shapes_that_do_not_come_again_are_forgotten() -> None:
    def grown(how: str) -> int:
        command = [sys.executable, "-c", SHAPES, how]
        given = {name: value for name, value in os.environ.items() if name not in heap.CAPACITIES}
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=given).stdout)

    assert grown("few") < 60_000_000 < 200_000_000 < grown("all")


def test_who_has_chosen_how_many_kernels_are_kept_keeps_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = heap.CAPACITIES
    monkeypatch.setenv(first, "7")
    monkeypatch.delenv(second, raising=False)
    heap.keep_few_kernels()
    assert (os.environ[first], os.environ[second]) == ("7", str(heap.KERNELS))


def test_cycles_are_looked_for_seldom_and_only_inside() -> None:
    before = gc.get_threshold()
    with heap.seldom_collected():
        assert gc.get_threshold() == heap.SELDOM
    assert gc.get_threshold() == before


def test_what_was_frozen_is_let_go_of() -> None:
    before = gc.get_freeze_count()
    with heap.frozen():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == before
