"""One optimiser step, shared by all training stages: micro-batches, precision, clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch

from grue.algos.losses import branch_log_probs
from grue.config import LearningConfig, ModelConfig
from grue.errors import TrainingError
from grue.models.checkpointing import decoder_layers, training
from grue.models.compiled import compile_layers
from grue.models.learned import learned, load_weights
from grue.models.load import compute_dtype
from grue.models.policy_model import PolicyModel, Reading
from grue.models.sharding import clip_gradients, gathered, is_shard, is_sharded, part_like
from grue.models.value import state_width
from grue.parallel import ALONE, Processes, peers_explained
from grue.rollout.pack import Batch, Sample, collate, micro_batches, piles
from grue.train.metric_sums import add_up, as_numbers, loss_and_metrics
from grue.train.optimizers import flatten_state, make_optimizer, page_moments, unflatten_state
from grue.train.precision import LossScale

Found = TypeVar("Found")
LossFunction = Callable[[Reading, Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]]


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
        optimizer: str = "adamw",
        attention: str = "sdpa",
        recompute: bool = False,
        compiled: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self.device = next(model.parameters()).device
        self.products = compute_dtype(dtype, self.device.type)
        self.loss_scale = LossScale() if self.products is torch.float16 else None
        self.policy_model = model
        self.max_grad_norm, self.micro_tokens = max_grad_norm, micro_tokens
        self.attention, self.recompute, self.processes = attention, recompute, processes
        # off where log-probs are compared with those of play: otherwise the ratio would not start at 1
        self.dropout = dropout
        self.step_count = 0
        # 0: the head is fitted apart from the language model, or not at all
        head = list(model.value_head.parameters()) if value_learning_rate > 0 else []
        body = [p for p in model.lm.parameters() if p.requires_grad]
        _check_precision(model)
        groups = [
            {"params": [p for p in body if p.ndim > 1], "peak": learning_rate, "weight_decay": weight_decay},
            {"params": [p for p in body if p.ndim <= 1], "peak": learning_rate, "weight_decay": 0.0},
            {"params": head, "peak": value_learning_rate, "weight_decay": 0.0},
        ]
        self.optimizer = make_optimizer(optimizer, [g for g in groups if g["params"]], learning_rate)
        self._learned = body + head
        self.sharded = is_sharded(model)
        self.compiled = compile_layers(decoder_layers(model)) if compiled else ()

    @classmethod
    def of(cls, model: PolicyModel, settings: ModelConfig, cfg: LearningConfig, **changes: Any) -> Learner:
        """The learner that a stage's settings ask for; `changes` are keyword arguments of the constructor.

        The value head gets no learning rate by default: whether it is learned here is the caller's choice.
        """
        asked: dict[str, Any] = {
            "learning_rate": cfg.learning_rate,
            "weight_decay": cfg.weight_decay,
            "max_grad_norm": cfg.max_grad_norm,
            "micro_tokens": cfg.micro_tokens,
            "dtype": settings.dtype,
            "optimizer": settings.optimizer,
            "attention": settings.attention,
            "recompute": settings.gradient_checkpointing,
            "compiled": settings.compile,
        }
        return cls(model, **asked | changes)

    @property
    def learns_values(self) -> bool:
        """Does `step` move the value head?"""
        head = {id(parameter) for parameter in self.policy_model.value_head.parameters()}
        return any(id(parameter) in head for parameter in self._learned)

    @property
    def _reading_tokens(self) -> int:
        """Tokens of a forward pass that keeps no activations for a backward one."""
        return 2 * self.micro_tokens

    @peers_explained()
    def step(self, items: Sequence[Sample], loss_of: LossFunction, rate: float) -> dict[str, float]:
        """One optimiser step on `items` at `rate` times the peak learning rates; returns summed metrics.

        `loss_of` gives a micro-batch's share of the loss: shares add up, so the cut into micro-batches changes nothing.
        A loss or gradient that is not finite raises TrainingError before any weight changes. In float16 the step is
        skipped instead and the loss scale halved, and only many such steps in a row raise.
        """
        if not items:
            raise TrainingError(
                "there are no samples to learn from", hint="samples(episodes) leaves out games that failed"
            )
        self.optimizer.zero_grad(set_to_none=True)  # an error or Ctrl-C may have ended the step before in the middle
        sums: dict[str, torch.Tensor] = {}
        with self._training():
            mine, idle, _ = self._groups(self._parts(items, self.micro_tokens), self.micro_tokens)
            for group, counts in [*((group, True) for group in mine), *((group, False) for group in idle)]:
                loss, metrics = self._loss(group, loss_of, counts=counts)
                add_up(sums, metrics)
                (loss if self.loss_scale is None else loss * self.loss_scale.scale).backward()
        totals = as_numbers(sums)
        loss_here = totals.get("loss", 0.0)  # a process may have had nothing to read
        problem = self.processes.first("" if math.isfinite(loss_here) else f"the loss is {loss_here}")
        norm = float("nan") if problem else self._gradient_norm()
        if not problem and not math.isfinite(norm):
            problem = f"the gradient's norm is {norm}"
        totals = {**self.processes.total(totals), "grad_norm": norm}
        if self.loss_scale is not None:
            totals |= {"loss_scale": self.loss_scale.scale, "skipped": float(bool(problem))}
        if not problem:
            self._apply(rate)
        elif self.loss_scale is not None:
            self.loss_scale.skip(problem, self.step_count)
        else:
            raise TrainingError(
                f"{problem} at optimiser step {self.step_count}",
                hint="lower the learning rate, or use model.dtype=float32",
            )
        self.optimizer.zero_grad(set_to_none=True)  # here, so that no gradients are held while games are played
        self.step_count += 1
        return totals

    def _parts(self, items: Sequence[Sample], tokens: int) -> list[Sample]:
        """What is read at once of each sample."""
        width = state_width(self.policy_model.lm)
        return [part for item in items for part in item.parts(tokens, width)]

    def _groups(self, items: Sequence[Sample], tokens: int) -> tuple[list[list[Sample]], ...]:
        """(the micro-batches that this process reads, those it reads only to keep in step, those of all processes).

        A sharded layer is gathered by all processes at once, so all must make the same number of passes.
        """
        known, longest = self.policy_model.positions, max((len(item.ids) for item in items), default=0)
        if known is not None and longest > known:  # which none is in play
            raise TrainingError(
                f"a segment of {longest} tokens is longer than the {known} positions that the model knows",
                hint="tokenise(episode, policy, context) cuts it",
            )
        count = self.processes.count
        cut = [micro_batches(pile, tokens) for pile in piles(items, count)]
        # one of each pile in turn, since that is how they are dealt out
        groups = [part[i] for i in range(max(map(len, cut))) for part in cut if i < len(part)]
        mine = list(self.processes.share(groups))
        lacks = self.sharded and len(mine) < -(-len(groups) // count)
        idle = [min(groups, key=lambda group: sum(item.size for item in group))] if lacks else []
        return mine, idle, groups

    def _loss(
        self, group: list[Sample], loss_of: LossFunction, *, counts: bool = True
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """A micro-batch's (loss, metrics including the loss). If it does not count: a loss of 0, no metrics."""
        batch = collate(group).to(self.device)
        loss, metrics = loss_and_metrics(loss_of(self._read(batch), replace(batch, counts=counts)))
        # FSDP requires that the loss depend on the same weights everywhere
        return (loss, {"loss": loss.detach(), **metrics}) if counts else (0 * loss, {})

    def _read(self, batch: Batch) -> Reading:
        with self._autocast():
            reading: Reading = self.policy_model(*batch.inputs)
        return Reading(*(part.float() for part in reading))

    def _training(self) -> AbstractContextManager[None]:
        return training(
            self.policy_model,
            dropout=self.dropout,
            recompute=self.recompute,
            attention=self.attention,
            compiled=self.compiled,
        )

    def _autocast(self) -> AbstractContextManager[object]:
        """Products in 16 bits, if that is the setting."""
        if self.products is torch.float32 or self.sharded:  # shards are gathered in 16 bits already
            return nullcontext()
        return torch.autocast(self.device.type, self.products)

    def _gradient_norm(self) -> float:
        """Sum the gradients of all processes, clip them, and return the norm that they had."""
        # gradients of shards were summed in the backward pass
        self.processes.sum_gradients(p for p in self._learned if not is_shard(p))
        if all(parameter.grad is None for parameter in self._learned):
            raise TrainingError(
                "the loss reaches no weight that learns here",
                hint="a loss of values needs a value_learning_rate above 0; the language model learns from logits",
            )
        if self.loss_scale is not None:
            self.loss_scale.unscale(self._learned)
        if self.sharded:
            return clip_gradients(self._learned, self.max_grad_norm)
        return float(torch.nn.utils.clip_grad_norm_(self._learned, self.max_grad_norm))

    def _apply(self, rate: float) -> None:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["peak"] * rate
        self.optimizer.step()
        if self.loss_scale is not None:
            self.loss_scale.accept()

    @peers_explained()
    @torch.no_grad()
    def measure(self, items: Sequence[Sample], loss_of: LossFunction) -> dict[str, float]:
        """The metrics that `step` would give, without a step: `grad_norm` is 0, and nothing is said of float16."""
        self.policy_model.eval()
        sums: dict[str, torch.Tensor] = {}
        mine, idle, _ = self._groups(self._parts(items, self._reading_tokens), self._reading_tokens)
        for group in mine:
            add_up(sums, self._loss(group, loss_of)[1])
        for group in idle:
            self._loss(group, loss_of, counts=False)
        return self.processes.total({"grad_norm": 0.0, **as_numbers(sums)})

    @peers_explained()
    @torch.no_grad()
    def read(
        self, items: Sequence[Sample], temperature: float, *, model: PolicyModel | None = None
    ) -> list[torch.Tensor]:
        """Log-probabilities (nodes, children) of each sample in order, under `model` (default: the trained one).

        Those of turns `over_vocabulary` are over the whole vocabulary, of which the children are a part; at a
        temperature other than 1 they raise TrainingError. A `model` whose weights have the same formats as those of the
        trained one is read as that one is.

        On the CPU: in free text each node has the whole vocabulary, which is gigabytes for an iteration.
        """
        reader = model if model is not None else self.policy_model
        reader.eval()
        alike = model is None or _formats(model.lm) == _formats(self.policy_model.lm)

        def read(group: list[Sample]) -> list[torch.Tensor]:
            batch = collate(group).to(self.device)
            with self._autocast() if alike else nullcontext():
                logits_NC = reader(*batch.inputs).logits_NC.float()
            log_probs_NC = _log_probs(logits_NC, batch, temperature).cpu()
            return list(log_probs_NC.split([sum(len(turn.branches) for turn in item.turns) for item in group]))

        return [_one_below_another(parts) for parts in self._for_each(items, read)]

    @peers_explained()
    @torch.no_grad()
    def read_turns(self, items: Sequence[Sample], temperature: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(log-probability (T,) of what was done, critic's value (T,)) at the turns of each sample, as the weights are.

        What corrections of off-policy play weigh with, such as V-trace (Espeholt et al. 2018). On the CPU, in float32.
        TrainingError as in `read`.
        """
        self.policy_model.eval()

        def read(group: list[Sample]) -> list[tuple[torch.Tensor, torch.Tensor]]:
            batch = collate(group).to(self.device)
            reading = self._read(batch)
            log_probs_NC = _log_probs(reading.logits_NC, batch, temperature)
            log_probs_T = batch.per_turn(log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1))
            counts = [len(item.turns) for item in group]
            return list(zip(log_probs_T.cpu().split(counts), reading.values_T.cpu().split(counts), strict=True))

        found = self._for_each(items, read)
        return [(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])) for parts in found]

    def _for_each(self, items: Sequence[Sample], read: Callable[[list[Sample]], Sequence[Found]]) -> list[list[Found]]:
        """What `read` finds for the parts of each sample, for all `items` in order and in every process."""
        parts_of = [self._parts([item], self._reading_tokens) for item in items]
        mine, idle, groups = self._groups([part for parts in parts_of for part in parts], self._reading_tokens)
        here = [list(read(group)) for group in (*mine, *idle)]
        found: dict[int, Found] = {}
        for group, pieces in zip(groups, self.processes.gather(here[: len(mine)]), strict=True):
            found |= {id(part): piece for part, piece in zip(group, pieces, strict=True)}
        return [[found[id(part)] for part in parts] for parts in parts_of]

    def turns_in_order(
        self, items: Sequence[Sample], read: Sequence[tuple[torch.Tensor, ...]], *, learnt: bool
    ) -> list[tuple[torch.Tensor, ...]]:
        """What the passes of all processes found for each turn of `items`, in the order in which one process reads.

        `read` has a row for each micro-batch of this process, of tensors (turns, ...): from `step` if `learnt`,
        otherwise from `measure`.
        """
        rows = self.processes.gather_tensors(read)
        if self.processes.count == 1:
            return rows
        tokens = self.micro_tokens if learnt else self._reading_tokens
        parts = self._parts(items, tokens)
        *_, groups = self._groups(parts, tokens)
        found: dict[int, tuple[torch.Tensor, ...]] = {}
        for group, row in zip(groups, rows, strict=True):
            counts = [len(part.turns) for part in group]
            pieces = zip(*(tensor.split(counts) for tensor in row), strict=True)
            found |= {id(part): piece for part, piece in zip(group, pieces, strict=True)}
        return [found[id(part)] for group in micro_batches(parts, tokens) for part in group]

    def state(self) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """(tensors by group, JSON) for a checkpoint. With an adapter only what learns is stored, not the base.

        For a sharded model all processes must call this, and only the leader gets the tensors.
        """
        moments, numbers = flatten_state(self.optimizer.state_dict()["state"])
        state: dict[str, Any] = {"step_count": self.step_count}
        if numbers:
            state["optimizer"] = numbers
        if self.loss_scale is not None:
            state["loss_scale"] = self.loss_scale.state()
        keep = self.processes.leads or not self.sharded
        weights = gathered(learned(self.policy_model), keep=keep)
        return {"model": weights, "optimizer": gathered(moments, keep=keep)}, state

    def load_state(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
        """Inverse of `state`. CheckpointError where the weights are of another model."""
        load_weights(self.policy_model, tensors["model"])
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        stored = {
            key: part_like(value, parameters[int(key.partition(".")[0])]) for key, value in tensors["optimizer"].items()
        }
        moments = unflatten_state(stored, state.get("optimizer", {}))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        page_moments(self.optimizer)
        self.step_count = int(state["step_count"])
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state(state["loss_scale"])


def _one_below_another(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Log-probabilities (nodes, children) of the parts of a sample as one tensor; -inf pads."""
    if len(tensors) == 1:
        return tensors[0]
    width = max(tensor.shape[1] for tensor in tensors)
    wide = [torch.nn.functional.pad(t, (0, width - t.shape[1]), value=float("-inf")) for t in tensors]
    return torch.cat(wide)


def _check_precision(model: PolicyModel) -> None:
    """TrainingError for weights that learn in 16 bits: most of AdamW's steps are smaller than what rounding leaves."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype is not torch.float32:
            raise TrainingError(
                f"{name} is to learn in {str(weight.dtype).removeprefix('torch.')}, where most steps are rounded away",
                hint="train float32 weights: load_trained(folder).model of grue.stages.trained has them, while "
                "load_policy gives the copy that plays",
            )


def _formats(model: torch.nn.Module) -> set[torch.dtype]:
    """In which number formats a model's weights are stored."""
    return {parameter.dtype for parameter in model.parameters()}


def _log_probs(logits_NC: torch.Tensor, batch: Batch, temperature: float) -> torch.Tensor:
    """Log-probabilities at every node. TrainingError for a teacher's turns at a temperature."""
    if not batch.over_vocabulary:
        return branch_log_probs(logits_NC, temperature)
    if temperature != 1:
        raise TrainingError(
            f"a teacher's turns cannot be read at temperature {temperature:g}: their log-probabilities are over the "
            "whole vocabulary",
            hint="read them apart, at temperature 1",
        )
    return logits_NC
