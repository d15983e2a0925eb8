"""Fitting the critic: a small head on frozen features, over the turns of the last few iterations.

The head does not touch the language model's weights, so it may be fitted as long as it takes: features are kept
from the policy's own forward passes, and a pass over thousands of turns costs milliseconds. Value learning through
a shared trunk disturbs a policy that is nearly deterministic, and an under-fitted critic hides what a lost step costs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from grue.parallel import Processes
from grue.train.optimizers import flatten_state, unflatten_state
from grue.train.seeds import hash_seed

BATCH = 512


@dataclass(slots=True)
class Critic:
    """`head` regressed on discounted targets; `memory` iterations are kept, each as (states (T, H), targets (T,))."""

    head: nn.Module
    learning_rate: float
    passes: int
    memory: int
    seed: str
    optimizer: torch.optim.Optimizer = field(init=False)
    kept: deque[tuple[torch.Tensor, torch.Tensor]] = field(init=False)
    fits: int = 0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=self.learning_rate, weight_decay=0.01)
        self.kept = deque(maxlen=self.memory)

    def remember(self, states_TH: torch.Tensor, targets_T: torch.Tensor) -> None:
        """One iteration's turns."""
        self.kept.append((states_TH.detach().float().clone(), targets_T.detach().float().clone()))

    def fit(self) -> float:
        """`passes` passes of AdamW over what is kept; returns the last pass's mean squared error. NaN: nothing is."""
        states_TH = torch.cat([states for states, _ in self.kept])
        targets_T = torch.cat([targets for _, targets in self.kept])
        if not len(targets_T):  # every pass so far has overflowed
            return math.nan
        # a generator of its own, seeded by the number of fits, makes a resumed run draw the same batches
        shuffle = torch.Generator().manual_seed(hash_seed(f"{self.seed}/critic/{self.fits}"))
        self.fits += 1
        error = 0.0
        for _ in range(self.passes):
            error = 0.0
            for part in torch.randperm(len(targets_T), generator=shuffle).split(BATCH):
                loss = F.mse_loss(self.head(states_TH[part]), targets_T[part])
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                error += loss.item() * len(part)
        self.optimizer.zero_grad(set_to_none=True)
        return error / len(targets_T)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """(tensors, JSON) for a checkpoint; the head itself is stored with the model."""
        tensors = {f"states.{i}": states for i, (states, _) in enumerate(self.kept)}
        tensors |= {f"targets.{i}": targets for i, (_, targets) in enumerate(self.kept)}
        return tensors | self._moments(), {"fits": self.fits}

    def load_state(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self.fits = int(state["fits"])
        count = sum(name.startswith("states.") for name in tensors)
        device = next(self.head.parameters()).device
        self.kept.extend((tensors[f"states.{i}"].to(device), tensors[f"targets.{i}"].to(device)) for i in range(count))
        self._load_moments(tensors)

    def learnt(self) -> dict[str, torch.Tensor]:
        """A copy of all that a fit changes but `fits`, on the CPU."""
        found = {f"head.{name}": value for name, value in self.head.state_dict().items()} | self._moments()
        return {name: value.detach().cpu().clone() for name, value in found.items()}

    def take_over(self, learnt: Mapping[str, torch.Tensor], fits: int) -> None:
        """Continue from a fit that a copy of this critic has made."""
        self.fits = fits
        head = {name.removeprefix("head."): value for name, value in learnt.items() if name.startswith("head.")}
        self.head.load_state_dict(head)
        self._load_moments(learnt)

    def _moments(self) -> dict[str, torch.Tensor]:
        moments, _ = flatten_state(self.optimizer.state_dict()["state"])
        return {f"moment.{name}": value for name, value in moments.items()}

    def _load_moments(self, tensors: Mapping[str, torch.Tensor]) -> None:
        moments = {name.removeprefix("moment."): value for name, value in tensors.items() if name.startswith("moment.")}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": unflatten_state(moments, {}), "param_groups": groups})


def fit_each(critics: Sequence[Critic], processes: Processes) -> list[float]:
    """Fit critics that remember the same in all processes; returns their errors.

    Each is fitted in one process, and the others take over the result: less work, and never two slightly different
    critics where processors round differently.
    """
    if processes.count == 1:
        return [critic.fit() for critic in critics]
    found = processes.all_of(critics, lambda part, _: [(one.fit(), one.learnt(), one.fits) for one in part])
    for critic, (_, learnt, fits) in zip(critics, found, strict=True):
        critic.take_over(learnt, fits)
    return [error for error, _, _ in found]
