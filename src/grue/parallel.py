"""Several processes that work on one run, as `accelerate launch` or `torchrun` starts them.

Every process runs the same program with the same random draws. Lists of work (games to play, micro-batches to read) are
dealt out like cards and results are put back in order, so each process goes on with all of them, and the sum of the
gradients is that of one process. Only the leader writes files and talks to the user.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from grue.errors import GrueError, TrainingError
from grue.interrupt import Interrupt

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
R = TypeVar("R")
BUCKET = 2**24  # numbers that are summed in one message
# a process may wait as long as another one plays; one that has died is noticed at once
PATIENCE = timedelta(hours=6)


class ProcessLostError(TrainingError):
    """Another process of the run has ended."""


def launched() -> int:
    """How many processes the launcher has started; 1 without one. Imports nothing."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def this_command(but: str = "") -> str:
    """The command line that was given, ready to be pasted: without the program's folder, with the launcher.

    `but` is an option to leave out.
    """
    launcher = ["accelerate", "launch", "--multi_gpu", "--num_processes", str(launched()), "-m", "grue"]
    return shlex.join(
        [*(launcher if launched() > 1 else [Path(sys.argv[0]).name]), *(part for part in sys.argv[1:] if part != but)]
    )


def is_follower() -> bool:
    """Is this a process that only helps the leader?"""
    return launched() > 1 and int(os.environ.get("RANK", "0")) > 0


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of its run. With a count of 1 every method gives back what it was given."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, work: Sequence[T]) -> Sequence[T]:
        """This process's part of `work`."""
        return work if self.count == 1 else work[self.rank :: self.count]

    def gather(self, results: Sequence[T]) -> list[T]:
        """The results of all, in the order of the work that `share` dealt out. Tensors have to be on the CPU."""
        if self.count == 1:
            return list(results)
        parts = self._each(list(results))
        return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]

    def gather_tensors(self, results: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """`gather` for tensors on any device; all come back on this process's."""
        if self.count == 1:
            return list(results)
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        gathered = self.gather([tuple(tensor.cpu() for tensor in row) for row in results])
        return [tuple(tensor.to(device) for tensor in row) for row in gathered]

    def all_of(self, work: Sequence[T], do: Callable[[Sequence[T], Sequence[int]], Sequence[R]]) -> list[R]:
        """`do(part of the work, places of that part in the whole)`, done by all, for all."""
        return self.gather(do(self.share(work), self.share(range(len(work)))))

    def total(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums by name."""
        if self.count == 1:
            return dict(numbers)
        sums: dict[str, float] = {}
        for part in self._each(dict(numbers)):
            for name, value in part.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def first(self, problem: str) -> str:
        """What the first process with a problem has to say; "" if none has one."""
        return problem if self.count == 1 else next((said for said in self._each(problem) if said), "")

    def any(self, flag: bool) -> bool:
        """Is it so in any process?"""
        return flag if self.count == 1 else any(self._each(flag))

    def share_interrupt(self, interrupt: Interrupt) -> None:
        """A signal that one process has got counts for all, so that they stop at the same place."""
        if self.count > 1:
            interrupt.adopt(max(self._each(interrupt.number or 0)) or None)

    def wait(self) -> None:
        """Until all have come here."""
        self.any(False)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give every parameter the sum of its gradients in all processes."""
        if self.count == 1:
            return
        import torch

        learned = list(parameters)
        reached = self._each([parameter.grad is not None for parameter in learned])
        wanted = [p for p, flags in zip(learned, zip(*reached, strict=True), strict=True) if any(flags)]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets(wanted):
            flat = torch.cat([p.grad.reshape(-1) for p in bucket if p.grad is not None])
            with _lost_explained():
                torch.distributed.all_reduce(flat)
            start = 0
            for parameter in bucket:
                assert parameter.grad is not None
                parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
                start += parameter.numel()

    def _each(self, value: T) -> list[T]:
        """The value of every process, in the order of their ranks."""
        import torch

        values: list[T | None] = [None] * self.count
        with _lost_explained():
            torch.distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]


ALONE = Processes()


def join() -> Processes:
    """This process and the others that a launcher has started with it. Call it once, before models are loaded."""
    if launched() == 1:
        return ALONE
    import torch
    from accelerate import PartialState

    _end_with_parent()
    cpu = not torch.cuda.is_available()
    if not cpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _lost_explained():
        state = PartialState(cpu=cpu, timeout=PATIENCE)
    if state.num_processes != launched():
        raise GrueError(
            f"the launcher has started {launched()} processes, and {state.num_processes} of them found each other",
            hint="accelerate launch --multi_gpu --num_processes 2 -m grue run ...",
        )
    processes = Processes(state.process_index, state.num_processes)
    processes.wait()  # one that fails at once must not look like a broken network to the others
    return processes


def leave() -> None:
    """Take leave of the others, so that none of them waits."""
    if launched() > 1 and "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _lost_explained() -> Iterator[None]:
    """What a backend says when a peer has gone, as one error with a hint."""
    try:
        yield
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise ProcessLostError(
            f"another process of this run has ended ({lines[-1][:120] if lines else error!r})",
            hint="the reason stands in its messages; the same command, without --again, goes on from a checkpoint",
        ) from error


@contextmanager
def peers_explained() -> Iterator[None]:
    """The same for passes in which torch itself speaks to the peers: errors of another kind stay what they are."""
    try:
        yield
    except RuntimeError as error:
        from torch.distributed import DistError

        if isinstance(error, GrueError) or not (isinstance(error, DistError) or "gloo" in str(error).lower()):
            raise
        with _lost_explained():
            raise


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _end_with_parent() -> None:
    """Have Linux send SIGTERM when the launcher dies, so that a killed one leaves no process behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
