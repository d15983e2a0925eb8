"""Random states as tensors and JSON, so that a resumed run draws what the unbroken one would have drawn."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grue.errors import CheckpointError

Generator = random.Random | np.random.Generator | torch.Generator
_log = logging.getLogger(__name__)


def capture(generators: Mapping[str, Generator] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of Python's, numpy's and torch's global generators, and of named `generators`: (tensors, JSON)."""
    tensors = {"torch.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {f"torch.cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    python = random.getstate()
    state: dict[str, Any] = {"python": [python[0], list(python[1]), python[2]], "numpy": _numpy_state(), "named": {}}
    for name, generator in (generators or {}).items():
        if isinstance(generator, torch.Generator):
            tensors[f"named.{name}"] = generator.get_state()
        elif isinstance(generator, np.random.Generator):
            state["named"][name] = _plain(generator.bit_generator.state)
        else:
            version, words, gauss = generator.getstate()
            state["named"][name] = [version, list(words), gauss]
    return tensors, state


def restore(
    tensors: Mapping[str, Tensor], state: Mapping[str, Any], generators: Mapping[str, Generator] | None = None
) -> None:
    """Undo whatever was drawn since `capture`. CheckpointError if a named generator was not captured."""
    torch.set_rng_state(tensors["torch.cpu"])
    captured = sum(name.startswith("torch.cuda.") for name in tensors)
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if captured != present:
        _log.warning("the checkpoint is of a machine with %d GPUs, this one has %d: draws differ", captured, present)
    for i in range(min(captured, present)):
        torch.cuda.set_rng_state(tensors[f"torch.cuda.{i}"], i)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(_arrays(state["numpy"]))
    for name, generator in (generators or {}).items():
        _restore_named(name, generator, tensors, state["named"])


def _restore_named(name: str, generator: Generator, tensors: Mapping[str, Tensor], named: Mapping[str, Any]) -> None:
    try:
        if isinstance(generator, torch.Generator):
            generator.set_state(tensors[f"named.{name}"])
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = _arrays(named[name])
        else:
            version, words, gauss = named[name]
            generator.setstate((version, tuple(words), gauss))
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit the random generator {name!r}: {error!r}") from error


def _numpy_state() -> dict[str, Any]:
    state: dict[str, Any] = _plain(np.random.get_state(legacy=False))
    return state


def _plain(value: Any) -> Any:
    """numpy arrays -> {"uint32": [...]}, numpy numbers -> Python's, inside dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    """Inverse of `_plain`."""
    if isinstance(value, Mapping):
        if set(value) == {"array", "dtype"}:
            return np.array(value["array"], dtype=value["dtype"])
        return {key: _arrays(inner) for key, inner in value.items()}
    return value
