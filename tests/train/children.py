"""Processes that work on a run and end as real ones do: killed, asked to stop, or done.

They are forked from a server process that has imported everything once, so that a child costs a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from grue.config import Config
from grue.interrupt import Interrupted
from grue.names import STAGES
from grue.progress import Bar, Progress

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class End:
    """The signal that a process sends itself when the bar `label` has come to `count`."""

    label: str
    count: int
    signal: int


class DoomedBar(Bar):
    """A progress bar at one place of which its process is sent a signal."""

    end: End

    def advance(self, steps: int = 1, *, note: str | None = None) -> None:
        super().advance(steps, note=note)
        if self._label == self.end.label and self.done == self.end.count:
            os.kill(os.getpid(), self.end.signal)


class DoomedProgress(Progress):
    """Progress that ends its process at a given place."""

    def __init__(self, end: End) -> None:
        super().__init__(quiet=True)
        self._end = end

    @contextmanager
    def bar(self, label: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Bar]:
        bar = DoomedBar(self, label, total, done, unit)
        bar.end = self._end
        yield bar


def _work(config: Config, out: Path, last: str, end: End | None) -> None:
    """The stages of a run up to `last`, each by itself, or all of them in one go ("all"); in this process."""
    from grue.stages import run_all, run_stage

    say = Progress(quiet=True) if end is None else DoomedProgress(end)
    try:
        if last == "all":
            run_all(config, out, say=say)
            return
        for stage in STAGES[: STAGES.index(last) + 1]:
            if stage != "dagger" or config.dagger.rounds:
                run_stage(stage, config, out, say=say)  # type: ignore[arg-type]
    except Interrupted as stop:
        sys.exit(stop.exit_code)


def _command(arguments: list[str]) -> None:
    """The command line itself, in this process."""
    sys.argv = ["grue", *arguments]
    from grue.cli.main import main

    main()


def _server() -> multiprocessing.context.BaseContext:
    if torch.cuda.is_available():  # what is imported looks at the GPU, and it cannot be used in a fork afterwards
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # imported once by the server, which never computes anything: forking after torch has is not safe
    context.set_forkserver_preload(["grue.stages", "grue.cli.main", "peft", "transformers.models.llama.modeling_llama"])
    return context


def start(target: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    """A process that calls `target`."""
    process = _server().Process(target=target, args=arguments)
    process.start()
    return process


def start_command(*arguments: str) -> multiprocessing.process.BaseProcess:
    """A running `grue` command."""
    process = _server().Process(target=_command, args=(list(arguments),))
    process.start()
    return process


def work(config: Config, out: Path, last: str, end: End | None = None) -> int:
    """Work on the run in a process of its own; its exit code, -9 if it was killed."""
    process = _server().Process(target=_work, args=(config, out, last, end))
    process.start()
    return wait(process)


def wait(process: multiprocessing.process.BaseProcess, timeout_s: float = TIMEOUT_S) -> int:
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"the process did not end within {timeout_s} s")
    return process.exitcode
