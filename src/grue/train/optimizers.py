"""AdamW in its forms: 32 or 8 bits of moments, paged or not; and its state in the form for checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grue.errors import needs

BETAS = (0.9, 0.99)


def make_optimizer(kind: str, groups: Sequence[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """AdamW over parameter groups. Other kinds than "adamw" come from bitsandbytes (Dettmers et al. 2022)."""
    if kind == "adamw":
        return torch.optim.AdamW(list(groups), lr=learning_rate, betas=BETAS, fused=True)
    needs("bitsandbytes", feature=f"model.optimizer={kind}")
    from bitsandbytes.optim.adamw import AdamW8bit, PagedAdamW, PagedAdamW8bit

    # moments on a CPU are in main memory anyway
    warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
    form = {"adamw-8bit": AdamW8bit, "paged-adamw": PagedAdamW, "paged-adamw-8bit": PagedAdamW8bit}
    optimizer: torch.optim.Optimizer = form[kind](list(groups), lr=learning_rate, betas=BETAS)
    return optimizer


def page_moments(optimizer: Any) -> None:
    """Move the loaded moments of a paged optimiser back into paged memory, from which the GPU may evict them.

    bitsandbytes loads them into ordinary GPU memory, and only makes paged ones at a parameter's first step.
    """
    if not getattr(optimizer, "is_paged", False):
        return
    for parameter, state in optimizer.state.items():
        for name in ("state1", "state2"):
            loaded = state.get(name) if parameter.is_cuda else None
            if loaded is not None:
                buffer = optimizer.get_state_buffer(parameter, dtype=loaded.dtype)
                torch.cuda.synchronize(parameter.device)  # the GPU must have filled it with zeros before we write
                state[name] = buffer.copy_(loaded)


def flatten_state(state: Mapping[int, Mapping[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The "state" of an optimiser's state_dict as (tensors, JSON), by "index.name" or "index.name.inner name"."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors[path] = value
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                walk(f"{path}.{name}", inner)
        elif isinstance(value, int | float | str | bool):
            numbers[path] = value

    for index, entry in state.items():
        walk(str(index), entry)
    return tensors, numbers


def unflatten_state(tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Inverse of `flatten_state`."""
    state: dict[int, dict[str, Any]] = {}
    for path, value in [*tensors.items(), *numbers.items()]:
        index, *names, last = path.split(".")
        place = state.setdefault(int(index), {})
        for name in names:
            place = place.setdefault(name, {})
        place[last] = value
    return state
