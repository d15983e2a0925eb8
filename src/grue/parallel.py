"""Several processes that work on one run, as `grue run --processes 4`, `accelerate launch` or `torchrun` starts them.

Every process runs the same program with the same random draws. Lists of work (games to play, micro-batches to read) are
dealt out like cards and results are put back in order, so each process continues with all of them, and the summed
gradients are those of a single process. Only the leader writes files and talks to the user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from grue.errors import GrueError, TrainingError, last_line
from grue.interrupt import Interrupt
from grue.launch import here, machines

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
R = TypeVar("R")
LISTED = 8  # differing facts that a message lists
BUCKET = 2**24  # numbers summed in one message
SAMPLED = 64  # numbers of a tensor that go into its fingerprint


class ProcessLostError(TrainingError):
    """Another process of the run has ended."""


class SharedError(GrueError):
    """An error of one process, raised in all of them."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of its run. With a count of 1 every method returns its input unchanged."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, work: Sequence[T]) -> Sequence[T]:
        """This process's part of `work`."""
        return work if self.count == 1 else work[self.rank :: self.count]

    def gather(self, results: Sequence[T]) -> list[T]:
        """The results of all, in the order of the work that `share` dealt out. Tensors must be on the CPU."""
        if self.count == 1:
            return list(results)
        parts = self._each(list(results))
        return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]

    def gather_tensors(self, results: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """`gather` for tensors on any device; the results are on this process's device."""
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
        """Sums over all processes, by name."""
        if self.count == 1:
            return dict(numbers)
        sums: dict[str, float] = {}
        for part in self._each(dict(numbers)):
            for name, value in part.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def first(self, problem: str) -> str:
        """The problem of the first process that has one; "" if none has."""
        return problem if self.count == 1 else next((said for said in self._each(problem) if said), "")

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error inside, in any process, ends all of them with the same message. All must run this block."""
        error = None
        try:
            yield
        except GrueError as caught:
            if self.count == 1 or isinstance(caught, ProcessLostError):
                raise
            error = caught
        self.raise_together(error)

    def raise_together(self, error: GrueError | None) -> None:
        """Raise SharedError in all processes if any has an `error`, with the message of the first that has one."""
        if self.count == 1:
            return
        said = self._each(None if error is None else (here(), error.message, error.hint))
        found = [problem for problem in said if problem is not None]
        if found:
            who, message, hint = found[0]
            raise SharedError(message if said[0] is not None else f"in {who}: {message}", hint=hint) from error

    def same_everywhere(self, facts: Mapping[str, object]) -> None:
        """Raise SharedError if the facts of some process differ from the leader's."""
        if self.count == 1:
            return
        (_, first), *others = self._each((here(), dict(facts)))
        for who, theirs in others:
            odd = [
                f"{key} ({theirs.get(key, 'missing')}, not {first.get(key, 'missing')})"
                for key in first | theirs
                if theirs.get(key) != first.get(key)
            ]
            if odd:
                more = f" and {len(odd) - LISTED} more" if len(odd) > LISTED else ""
                raise SharedError(
                    f"{who} differs from the first: {', '.join(odd[:LISTED])}{more}",
                    hint="start the same command, with the same versions and files, on every machine",
                )

    def check_read(self, what: str, tensors: Iterable[Tensor]) -> None:
        """Raise SharedError if the processes have read different weights."""
        if self.count > 1 and len(set(self._each(_mark_of(tensors)))) > 1:
            raise SharedError(
                f"the processes have read different weights: {what}",
                hint="if a network drive still showed an older state, run the same command again. Otherwise every "
                "machine needs the same files; model.revision pins the version of a hub model",
            )

    def any(self, flag: bool) -> bool:
        """Is it so in any process?"""
        return flag if self.count == 1 else any(self._each(flag))

    def check_interrupt(self, interrupt: Interrupt) -> None:
        """Raise Interrupted in all processes if one has been asked to stop. Call it where the leader has saved.

        When a process exits, its launcher ends the others on its machine, so none may exit before all have agreed.
        """
        if self.count > 1:
            number = max(self._each(interrupt.number or 0))
            if not number:  # a signal from here on waits for the next check, as not all processes know of it
                return
            interrupt.adopt(number)
        interrupt.check()

    def wait(self) -> None:
        """Wait until all processes have called this."""
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
        """The values of all processes, in the order of their ranks."""
        import torch

        values: list[T | None] = [None] * self.count
        with _lost_explained():
            torch.distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]


ALONE = Processes()


@contextmanager
def _lost_explained() -> Iterator[None]:
    """What a backend says when a peer has gone, as one error with a hint."""
    try:
        yield
    except RuntimeError as error:
        where = ", on whichever machine" if machines() > 1 else ""
        raise ProcessLostError(
            f"another process of this run has ended ({last_line(error)})",
            hint=f"its messages say why{where}; the same command, without --again, goes on from a checkpoint",
        ) from error


@contextmanager
def peers_explained() -> Iterator[None]:
    """The same for passes in which torch itself talks to the peers; errors of other kinds pass through unchanged."""
    try:
        yield
    except RuntimeError as error:
        from torch.distributed import DistError

        if isinstance(error, GrueError) or not (isinstance(error, DistError) or "gloo" in str(error).lower()):
            raise
        with _lost_explained():
            raise


def _mark_of(tensors: Iterable[Tensor]) -> str:
    """A hash of some numbers of each tensor: different weights differ everywhere, so a sample is enough."""
    import torch

    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // SAMPLED)].cpu().contiguous()
        found.update(f"{tuple(tensor.shape)}{some.dtype}".encode() + some.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
