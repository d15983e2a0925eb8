"""Small forward passes that repeat on a GPU are captured as CUDA graphs, and then started by a single call.

Python takes some 15 ms to start the hundreds of kernels of a pass, however little they do. For a few games at once,
or for a single token of each in `write` and `think`, the GPU waits for that most of the time. A graph reads and writes
the memory that it was captured with. So the inputs of a new pass are copied there first, and a graph is useless once
the cache has moved.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from grue.engine.passes import SHORT, Pass

MOST_TOKENS = 2_048  # of a pass: with more, a GPU computes for longer than Python takes to start it
WORTH = 6  # times that a pass must occur before it is captured, which takes longer than starting it
MOST_BYTES = 2**29  # of what all graphs read and write beside the cache

Read = Callable[[Pass], torch.Tensor]  # hidden states (N, hidden)
# runs a function; returns a function that replays it, and where the result is written
Capture = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], object], torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Graph:
    given: list[torch.Tensor]  # what it reads
    replay: Callable[[], object]
    hidden_NH: torch.Tensor  # what it writes

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.given, self.hidden_NH))


class PassRecorder:
    """Runs passes of `decoder` with a given function, or by graphs if shapes repeat. Gives up if capturing fails."""

    def __init__(self, decoder: nn.Module, capture: Capture) -> None:
        self._decoder, self._capture = decoder, capture
        self._weights = [*decoder.parameters(), *decoder.buffers()]
        self._adapter: Any = next((part for part in decoder.modules() if hasattr(part, "merged_adapters")), None)
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._met: Counter[Hashable] = Counter()
        self._failed = False
        self.replays = 0  # passes so far that a graph has read

    def clear(self) -> None:
        """Drop all graphs: the memory that they use has changed."""
        self._graphs.clear()
        self._met.clear()

    def takes(self, sizes: Sequence[int]) -> bool:
        """Might a pass with these numbers of new tokens be captured? When games begin, hardly two passes are alike."""
        return not self._failed and max(sizes) <= SHORT and sum(sizes) <= MOST_TOKENS

    def __call__(self, planned: Pass, read: Read) -> torch.Tensor:
        """What `read` would return, hidden states (N, hidden); valid until the next pass."""
        key = (self._setting(), *(tensor.shape for tensor in planned.tensors()))
        if key not in self._graphs and not (self._is_worth(key, planned) and self._make(key, planned, read)):
            return read(planned)
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        for mine, new in zip(graph.given, planned.tensors(), strict=True):
            mine.copy_(new)
        graph.replay()
        self.replays += 1
        return graph.hidden_NH

    def _setting(self) -> Hashable:
        """The addresses of the weights and the state of the adapter: a graph is valid only for these."""
        adapter = self._adapter
        beside = None if adapter is None else (adapter.disable_adapters, adapter.merged, tuple(adapter.active_adapters))
        return tuple(weight.data_ptr() for weight in self._weights), self._decoder.training, beside

    def _is_worth(self, key: Hashable, planned: Pass) -> bool:
        """Will it repeat? A pass with a single token in each row will: something is being written."""
        self._met[key] += 1
        single = all(group.tokens_Bn.shape[1] == 1 for group in planned.groups)
        return not self._failed and (single or self._met[key] >= WORTH)

    def _make(self, key: Hashable, planned: Pass, read: Read) -> bool:
        try:
            replay, hidden_NH = self._capture(lambda: read(planned))
        except RuntimeError:  # whatever it was: if it matters, running the pass itself will raise it
            self._failed = True
            return False
        self._graphs[key] = _Graph(planned.tensors(), replay, hidden_NH)
        while len(self._graphs) > 1 and sum(graph.bytes for graph in self._graphs.values()) > MOST_BYTES:
            del self._met[self._graphs.popitem(last=False)[0]]
        return True


_asking: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # what `_asks_the_gpu` has found
_one_at_a_time = threading.Lock()  # there is one stream for all captures of a GPU


def cuda_graphs(decoder: nn.Module, device: torch.device) -> Capture:
    """Captures passes of `decoder` as CUDA graphs, which share the memory that they need while they run."""
    alive: WeakSet[Any] = WeakSet()
    pool: Any = None

    def capture(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        nonlocal pool
        with _one_at_a_time, torch.cuda.device(device):
            if _asks_the_gpu(decoder, run):
                raise RuntimeError("passes that ask the GPU for numbers cannot be captured")
            if not alive:  # torch does not reuse a pool that no graph uses any more
                pool = torch.cuda.graph_pool_handle()
            graph, stream, current = torch.cuda.CUDAGraph(), _stream(device), torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                # not `torch.cuda.graph`, which gives all free memory back to the driver first
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    found = run()
                finally:
                    graph.capture_end()
            current.wait_stream(stream)
            alive.add(graph)
            return graph.replay, found

    return capture


def _asks_the_gpu(decoder: nn.Module, run: Callable[[], torch.Tensor]) -> bool:
    """Do its kernels depend on numbers that only the GPU knows, as with mixtures of experts or 8-bit outliers?

    Tested once by running it, since a failed capture leaves torch 2.11's allocator unable to free memory.
    """
    if decoder not in _asking:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                torch.cuda.set_sync_debug_mode("warn")
                run()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        _asking[decoder] = any("synchronizing" in str(warning.message) for warning in said)
    return _asking[decoder]


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all captures of a GPU are made: libraries keep memory for each one they have seen."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            ones = torch.ones(64, 64, device=device, dtype=dtype)
            torch.nn.functional.linear(ones, ones)
    stream.synchronize()
    return stream
