"""Small forward passes of a GPU that come again are recorded (CUDA graphs), and then started by one call.

Python takes some 15 ms to start the hundreds of kernels of a pass, whatever they have to do. For a few games at once,
or for a single token of each in `write` and `think`, the GPU waits for that most of the time. A recording reads and
writes the memory that it was made with. So what a new pass reads is copied there first, and a recording is of no use
once the cache has moved.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from grue.policy.passes import Pass

MOST_TOKENS = 2_048  # of a pass: with more, a GPU computes for longer than Python takes to start it
LONGEST = 48  # new tokens of a row: where a game begins, hardly two passes are alike
WORTH = 3  # times that a pass is met before it is recorded, which takes twice as long as starting it
KEPT = 64  # recordings, each with the masks that it reads
MOST_FAILURES = 3

Read = Callable[[Pass], torch.Tensor]  # hidden states (N, hidden)
Record = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], object], torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Recording:
    given: list[torch.Tensor]  # what it reads
    start: Callable[[], object]
    hidden_NH: torch.Tensor  # what it writes


class Recorder:
    """Reads passes as it is told, and by recordings where their shapes repeat.

    `record` gives (how to do what a function does, where the result is written). Some models cannot be recorded, as
    their kernels depend on numbers that only the GPU knows (mixtures of experts): after a few failures nothing more is
    tried.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._met: Counter[Hashable] = Counter()
        self._failures = 0
        self.replays = 0  # passes so far that a recording has read

    def forget(self) -> None:
        """The memory that recordings use is no longer what it was."""
        self._known.clear()

    def takes(self, sizes: Sequence[int]) -> bool:
        """Might a pass of rows with so many new tokens be recorded?"""
        return self._failures < MOST_FAILURES and max(sizes) <= LONGEST and sum(sizes) <= MOST_TOKENS

    def __call__(self, whole: Pass, read: Read, setting: Hashable = None) -> torch.Tensor:
        """What `read` would give, hidden states (N, hidden). They are there until the next pass.

        Passes in another `setting` of the model are others.
        """
        key = (setting, tuple(tensor.shape for tensor in whole.tensors()), *(group.length for group in whole.groups))
        if key not in self._known and not (self._is_worth(key, whole) and self._make(key, whole, read)):
            return read(whole)
        self._known.move_to_end(key)
        recording = self._known[key]
        for mine, new in zip(recording.given, whole.tensors(), strict=True):
            mine.copy_(new)
        recording.start()
        self.replays += 1
        return recording.hidden_NH

    def _is_worth(self, key: Hashable, whole: Pass) -> bool:
        """Will it come again? One in which each row has a single token will: something is being written."""
        self._met[key] += 1
        single = all(group.tokens_Bn.shape[1] == 1 for group in whole.groups)
        return self._failures < MOST_FAILURES and (single or self._met[key] >= WORTH)

    def _make(self, key: Hashable, whole: Pass, read: Read) -> bool:
        try:
            start, hidden_NH = self._record(lambda: read(whole))
        except RuntimeError:  # whatever it was, the pass itself will tell if it matters
            self._failures += 1
            return False
        self._known[key] = _Recording(whole.tensors(), start, hidden_NH)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return True


def recording(device: torch.device) -> Record:
    """How to record on a device: as CUDA graphs; elsewhere the same again is to compute it again."""
    return _graphs(device) if device.type == "cuda" and torch.backends.cuda.is_built() else _again


def _again(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
    found = run()
    return lambda: found.copy_(run()), found


def _graphs(device: torch.device) -> Record:
    """CUDA graphs, which share the memory that they need while they run."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        graph, stream, waiting = torch.cuda.CUDAGraph(), _stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(waiting)
        with torch.cuda.stream(stream):  # on this device, whichever is the current one
            # not `torch.cuda.graph`, which gives all free memory back to the driver first
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                found = run()
            finally:
                graph.capture_end()
        waiting.wait_stream(stream)
        return graph.replay, found

    return record


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all recordings of a GPU are made: libraries keep memory for each one they have seen."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            ones = torch.ones(64, 64, device=device, dtype=dtype)
            torch.nn.functional.linear(ones, ones)
    stream.synchronize()
    return stream
