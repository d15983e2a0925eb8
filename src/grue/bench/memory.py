"""Peak memory of one PPO update with LoRA on 4-bit weights: one model in three roles, against three models.

Ours is what grue does: one NF4 model with a trained adapter; the reference is the same model with the adapter as
it was before PPO, swapped in for a pass; the value head reads the hidden states of the same pass. The baseline is what
trainers with separate models do: the same policy, a frozen reference model, and a value model with an adapter and a
head of its own. `ratio` is against both of these in NF4 too, the smallest that they can be; `unquantised_peak_mib` has
them in the number format of matrix products, as where only the policy is quantised.

Each arm is a child process of its own (`memory_arm`), so that none inherits what another has left. What counts is the
peak memory during the update less the memory before any model was loaded: on a GPU as torch allocates it, on a CPU as
the kernel counts resident pages, both with the peak reset once the models are loaded, since a loader's own peak is not
the update's (it is reported separately). Before all that, a child does the same with a model of 0.2 M parameters, as
libraries take some 50 MiB when they first run. The training data are random tokens: memory does not depend on them.

A model for a CPU is small, and what is not weights (activations, adapters, moments, a matrix being unpacked) takes a
larger share than in a model of billions. So the embedded base is replaced by random weights in the shape of eight wide
Llama layers (0.4 B), and few tokens are read at once. Any other `model.name` is used as it is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grue.bench import Say
from grue.bench.random_model import make_model
from grue.config import Config, override
from grue.errors import ConfigError, ModelError, needs
from grue.hardware import usual_threads
from grue.models.sources import EMBEDDED

ARMS = ("shared", "separate", "unquantised")
CHILD = {
    # fixed, so that glibc returns freed memory instead of raising the threshold with each large tensor
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "TOKENIZERS_PARALLELISM": "false",
}
SAME = (
    "the same NF4 policy, adapter, tokens, micro-batches, threads, optimiser and PPO loss (policy, value, entropy and "
    "KL terms), each in a process of its own; peak of one update less the memory before loading. The baseline has the "
    "reference and the value model as separate models, in NF4 as well, and trains policy and value one after the "
    "other, so that it never holds the activations of both. `ratio` is ours over the baseline: smaller is better"
)


def run(
    config: Config,
    say: Say,
    *,
    hidden: int = 2048,
    layers: int = 8,
    segments: int = 2,
    tokens: int = 64,
    repetitions: int = 1,
) -> dict[str, Any]:
    """One update on `segments` segments of `tokens` tokens, one per pass, by each arm, `repetitions` times in turn.

    `hidden` and `layers` are those of the model that stands in for the embedded base.
    """
    needs("bitsandbytes", feature="grue bench memory")
    check_platform()
    with tempfile.TemporaryDirectory() as folder:
        changed = [
            "model.adapter=lora",
            "model.quantize=nf4",
            f"threads={config.threads or usual_threads()}",
        ]
        small = make_model(Path(folder) / "small", config, 64, 1)
        if config.model.name == EMBEDDED:
            say(f"making {layers} Llama layers, {hidden} wide")
            changed.append(f"model.name={make_model(Path(folder) / 'large', config, hidden, layers)}")
        config = override(config, changed)
        found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
        for number in range(repetitions):
            for arm in ARMS:
                found[arm].append(measure(arm, config, small, segments, tokens))
                say(f"{number + 1}/{repetitions} {arm}: {found[arm][-1]['peak_mib']:.0f} MiB")
    ours, baseline, unquantised = (_side(found[arm]) for arm in ARMS)
    baseline["unquantised_peak_mib"] = unquantised["peak_mib"]
    baseline["ratio_unquantised"] = round(ours["peak_mib"] / unquantised["peak_mib"], 3)
    return {
        "bench": "memory",
        "ratio": round(ours["peak_mib"] / baseline["peak_mib"], 3),
        "ours": ours,
        "baseline": baseline,
        "same": SAME,
    }


def check_platform() -> None:
    """Raise ConfigError if there is neither a GPU nor a Linux kernel to count the memory."""
    import torch

    if not torch.cuda.is_available() and not Path("/proc/self/clear_refs").exists():
        raise ConfigError(
            "grue bench memory reads /proc/self, which this system does not have", hint="use Linux, or a GPU"
        )


def measure(arm: str, config: Config, small: Path, segments: int, tokens: int) -> dict[str, Any]:
    """Result of a child process that warms up with the model in `small`; ModelError with its last line if it fails."""
    settings = {
        "arm": arm,
        "config": config.model_dump(mode="json"),
        "small": str(small),
        "segments": segments,
        "tokens": tokens,
    }
    command = [sys.executable, "-m", "grue.bench.memory_arm", json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **CHILD})
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ModelError(
            f"the arm {arm!r} of the memory benchmark failed: {last}",
            hint="a negative exit code is a signal, and -9 often means out of memory: use a smaller model",
        )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _side(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of one arm, with the median of its peaks."""
    peaks = [one["peak_mib"] for one in found]
    return {**found[0], "peak_mib": round(statistics.median(peaks), 1), "peak_mib_each": peaks}
