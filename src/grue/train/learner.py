"""One optimiser step, shared by all training stages: micro-batches, precision (Accelerate), clipping, schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator

from grue.errors import CheckpointError, TrainingError
from grue.models.load import compute_dtype
from grue.models.policy_model import PolicyModel, Reading
from grue.rollout.pack import Batch, Sample, collate, micro_batches

LossFunction = Callable[[Reading, Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]]


def learning_rate_factor(schedule: str, step: int, total: int, warmup: int) -> float:
    """Factor in 0..1 of the peak learning rate at optimiser step `step` (from 0) of `total`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    if schedule == "linear":
        return max(0.0, 1.0 - progress)
    if schedule == "hold":
        return max(0.0, min(1.0, 3 * (1.0 - progress)))
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress))) if schedule == "cosine" else 1.0


class Learner:
    """Owns the trained weights (float32; products in autocast), the optimiser (AdamW) and the step count."""

    def __init__(
        self,
        model: PolicyModel,
        *,
        learning_rate: float,
        weight_decay: float,
        max_grad_norm: float,
        micro_tokens: int,
        dtype: str,
        value_learning_rate: float = 0.0,
        dropout: bool = False,
    ) -> None:
        device = next(model.parameters()).device.type
        precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(compute_dtype(dtype, device), "no")
        self.accelerator = Accelerator(mixed_precision=precision, cpu=device == "cpu")
        self.max_grad_norm, self.micro_tokens = max_grad_norm, micro_tokens
        # off where log-probs are compared with those of the play: the ratio would not begin at 1
        self.dropout = dropout
        self.step_count = 0
        # 0: the head is fitted apart from the language model, or not at all
        head = list(model.value_head.parameters()) if value_learning_rate > 0 else []
        body = [p for p in model.lm.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in body if p.ndim > 1], "peak": learning_rate, "weight_decay": weight_decay},
            {"params": [p for p in body if p.ndim <= 1], "peak": learning_rate, "weight_decay": 0.0},
            {"params": head, "peak": value_learning_rate, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=learning_rate, betas=(0.9, 0.99), fused=True
        )
        self._learned = body + head
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    @property
    def policy_model(self) -> PolicyModel:
        model: PolicyModel = self.accelerator.unwrap_model(self.model)
        return model

    def step(self, items: Sequence[Sample], loss_of: LossFunction, rate: float) -> dict[str, float]:
        """One optimiser step on `items` at `rate` times the peak learning rates; returns summed metrics.

        `loss_of` gives a micro-batch's share of the loss: shares add up, so the cut into micro-batches changes nothing.
        Raises TrainingError before any weight changes when the loss or a gradient is not finite.
        """
        self.model.train(self.dropout)
        totals: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for group in micro_batches(items, self.micro_tokens):
            batch = collate(group).to(self.accelerator.device)
            loss, metrics = loss_of(self.model(*batch.inputs), batch)
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"the loss is {loss.item()} at optimiser step {self.step_count}",
                    hint="lower the learning rate, or use model.dtype=float32",
                )
            self.accelerator.backward(loss)
            for name, value in {"loss": loss, **metrics}.items():
                totals[name] = totals.get(name, 0.0) + value.item()
        norm = self.accelerator.clip_grad_norm_(self._learned, self.max_grad_norm)
        if norm is not None and not torch.isfinite(norm):
            raise TrainingError(
                f"the gradient's norm is {norm.item()} at optimiser step {self.step_count}",
                hint="lower the learning rate, or use model.dtype=float32",
            )
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["peak"] * rate
        self.optimizer.step()
        self.step_count += 1
        totals["grad_norm"] = float(norm) if norm is not None else 0.0
        return totals

    @torch.no_grad()
    def measure(self, items: Sequence[Sample], loss_of: LossFunction) -> dict[str, float]:
        """The metrics that `step` would give, without a step."""
        self.model.eval()
        totals: dict[str, float] = {"grad_norm": 0.0}
        for group in micro_batches(items, 2 * self.micro_tokens):
            batch = collate(group).to(self.accelerator.device)
            loss, metrics = loss_of(self.model(*batch.inputs), batch)
            for name, value in {"loss": loss, **metrics}.items():
                totals[name] = totals.get(name, 0.0) + value.item()
        return totals

    @torch.no_grad()
    def read(
        self, items: Sequence[Sample], *, model: PolicyModel | None = None, reference: bool = False
    ) -> list[torch.Tensor]:
        """Logits (nodes, children) of each sample under `model` (default: the trained one), in the order of `items`."""
        reader = model if model is not None else self.model
        reader.eval()
        found: dict[int, torch.Tensor] = {}
        for group in micro_batches(items, 2 * self.micro_tokens):
            batch = collate(group).to(self.accelerator.device)
            logits_NC = reader(*batch.inputs, reference=reference).logits_NC.float()
            first = 0
            for item in group:
                count = sum(len(turn.branches) for turn in item.turns)
                found[id(item)] = logits_NC[first : first + count]
                first += count
        return [found[id(item)] for item in items]

    def state(self) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """(tensors by group, JSON) for a checkpoint. With an adapter only what learns is stored, not the base."""
        model = self.policy_model
        learned: dict[str, torch.Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = self.optimizer.state_dict()
        moments = {
            f"{index}.{name}": value
            for index, entry in optimizer["state"].items()
            for name, value in entry.items()
            if isinstance(value, torch.Tensor)
        }
        return {"model": learned, "optimizer": moments}, {"step_count": self.step_count}

    def load_state(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
        """Inverse of `state`. CheckpointError where the weights are of another model."""
        load_weights(self.policy_model, tensors["model"])
        optimizer = self.optimizer.state_dict()
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in tensors["optimizer"].items():
            index, name = key.split(".", 1)
            moments.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({"state": moments, "param_groups": optimizer["param_groups"]})
        self.step_count = int(state["step_count"])


@torch.no_grad()
def load_weights(model: PolicyModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy stored weights into the parameters that learn. CheckpointError where names or shapes differ."""
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if set(learned) != set(weights):
        odd = sorted(set(learned) ^ set(weights))[0]
        raise CheckpointError(
            f"the checkpoint is of another model: {odd} is only on one side", hint="check model.* settings"
        )
    for name, parameter in learned.items():
        there, here = tuple(weights[name].shape), tuple(parameter.shape)
        if there != here:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} has shape {there}, not {here}",
                hint="check model.* settings",
            )
        parameter.copy_(weights[name])
