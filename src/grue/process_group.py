"""How a process joins the others that a launcher has started for the same run, and leaves them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from grue.errors import ConfigError, GrueError, last_line
from grue.launch import ask_for_life, choose_interface, here, launched, machines
from grue.parallel import ALONE, Processes

# a process may wait as long as another one plays; one that has died is noticed at once
PATIENCE = timedelta(hours=6)
MEETING = timedelta(minutes=5)  # for all processes to join, once the launchers have found each other


def join(error: GrueError | None = None) -> Processes:
    """This process and the others that a launcher has started with it. Call it once, before models are loaded.

    With an `error` it joins only to report it, so that the others do not wait for this process.
    """
    if launched() == 1:
        return ALONE
    import torch
    from accelerate import PartialState
    from torch.distributed import distributed_c10d

    _end_with_parent()
    choose_interface()
    cpu = not torch.cuda.is_available()
    if not cpu:
        _check_gpus(torch.cuda.device_count())
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _unmet_explained():
        state = PartialState(cpu=cpu, timeout=MEETING)
    if state.num_processes != launched():
        raise GrueError(
            f"the launcher has started {launched()} processes, but only {state.num_processes} of them found each other",
            hint="accelerate launch --multi_gpu --num_processes 2 -m grue run ..., or grue run --processes 2 ...",
        )
    processes = Processes(state.process_index, state.num_processes)
    processes.raise_together(error)  # so that an early failure does not look like a broken network to the others
    ask_for_life()
    distributed_c10d._set_pg_timeout(PATIENCE)
    return processes


def _check_gpus(count: int) -> None:
    """ConfigError where not every process of this machine can have a GPU of its own."""
    placed = int(os.environ.get("LOCAL_WORLD_SIZE") or int(os.environ.get("LOCAL_RANK", "0")) + 1)
    if placed > count:
        most = (
            "a run without --processes or a launcher has one"
            if count == machines() == 1
            else f"at most {count * machines()}"
        )
        raise ConfigError(
            f"{placed} processes were started here, and torch sees {count} GPU{'' if count == 1 else 's'}",
            hint=f"each process needs one of its own: {most}; CUDA_VISIBLE_DEVICES may hide some",
        )


def leave() -> None:
    """Leave the process group, so that no other process waits for this one."""
    if launched() > 1 and "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _unmet_explained() -> Iterator[None]:
    """What a backend says when its processes do not find each other, as one error with a hint."""
    try:
        yield
    except RuntimeError as error:
        several = "--main_process_ip must be an address of the first machine that all others reach, no firewall may "
        several += "block them, and GLOO_SOCKET_IFNAME (with GPUs NCCL_SOCKET_IFNAME) names the interface"
        raise GrueError(
            f"{here()} has not found the others ({last_line(error)})",
            hint=several if machines() > 1 else "their messages say why",
        ) from error


def _end_with_parent() -> None:
    """Have Linux send SIGTERM when the launcher dies, so that a killed one leaves no process behind."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
