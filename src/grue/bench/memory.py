"""Peak memory of one PPO update with LoRA on 4-bit weights: one model in three parts, against three models.

Ours is what grue does: one NF4 model with an adapter that learns; the reference is the same model with the adapter as
it was before PPO, swapped in for a pass; the value head reads the hidden states of the same pass. The baseline is what
trainers with separate models do: the same policy, a frozen reference model, and a value model with an adapter and a
head of its own. The figure that `ratio` takes has both of these in NF4 too, which is the smallest that they can be;
`unquantised_peak_mib` has them in the number format of products, as where only the policy is quantised.

Each arm is a child process of its own (`memory_arm`), so that none finds what another has left. Counted is the highest
memory during the update less that before any model was loaded: on a GPU as torch has allocated it, on a CPU as the
kernel counts resident pages, both with the watermark set back once the models are loaded, since a loader's own peak is
not the update's (it is given beside it). Before all that, a child does the same with a model of 0.2 M parameters, as
libraries take some 50 MiB when they first run. What is learned from is random tokens: memory does not read.

A model on a CPU is small, and what is not weights (activations, adapters, moments, a matrix that is being unpacked)
weighs more than it would in a model of billions. So the embedded base is replaced by random weights in the shape of
eight wide Llama layers (0.4 B), and few tokens are read at once. Any other `model.name` is taken as it is.
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
    # fixed, so that glibc returns what is freed instead of raising the threshold with each large tensor
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "TOKENIZERS_PARALLELISM": "false",
}
SAME = (
    "the same NF4 policy, adapter, tokens, micro-batches, threads, optimiser and PPO loss (policy, value, entropy and "
    "KL terms), each in a process of its own; peak of one update less the memory before loading. The baseline has the "
    "reference and the value model as separate models, in NF4 as well, and learns policy and value one after the "
    "other, so that its activations are never held together. `ratio` is ours over the baseline: smaller is better"
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
    """One update on `segments` segments of `tokens` tokens, one a pass, by each arm, `repetitions` times in turn.

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
    """ConfigError where neither a GPU nor Linux counts the memory."""
    import torch

    if not torch.cuda.is_available() and not Path("/proc/self/clear_refs").exists():
        raise ConfigError(
            "grue bench memory reads /proc/self, which this system does not have", hint="use Linux, or a GPU"
        )


def measure(arm: str, config: Config, small: Path, segments: int, tokens: int) -> dict[str, Any]:
    """What a child process finds that begins with the model in `small`; ModelError with its last words if it fails."""
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
            hint="a negative exit code is a signal: -9 is often lack of memory; a smaller model needs less",
        )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _side(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of one arm, with the median of its peaks."""
    peaks = [one["peak_mib"] for one in found]
    return {**found[0], "peak_mib": round(statistics.median(peaks), 1), "peak_mib_each": peaks}
