"""Train the embedded base from scratch on transcripts: next-token loss, actions weighted above observations.

A training that was stopped resumes from its last checkpoint and ends with the same weights as one that was not.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from grue import heap
from grue.errors import CheckpointError, TrainingError
from grue.interrupt import Interrupt
from grue.models.attention import own_attention
from grue.models.load import compute_dtype
from grue.pretrain.corpus import Transcript, augment
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.storage import checkpoint
from grue.storage.files import explained, readable_alike
from grue.train.optimizers import flatten_state, unflatten_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SAVE_EVERY_S = 120.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of one pretraining run."""

    passes: float = 2.0  # over the corpus, each with fresh names
    episodes_per_batch: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warmup_steps: int = 100
    observation_weight: float = 0.2  # loss weight of observation tokens; action tokens have 1
    observation_share: float = 0.5  # share of the observation tokens of a batch that are scored, with twice the weight
    hidden: int = 256
    layers: int = 4
    heads: int = 8
    key_value_heads: int = 4
    intermediate: int = 704
    max_length: int = 4096
    limits: tuple[int, ...] = (16, 16, 16, 20, 25, 30, 50)  # drawn for the header
    family_limits: tuple[int, ...] = (8, 12, 15, 16, 25)  # likewise, in the other families
    seed: int = 0


def build_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> PreTrainedModel:
    """A Llama-shaped decoder with random weights; plain transformers loads it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        max_position_embeddings=recipe.max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(config)


def encode(
    transcript: Transcript, encoder: Encoder, limit: int, observation_weight: float
) -> tuple[list[int], list[float]]:
    """Ids and loss weights (same length) of one transcript; weight i belongs to predicting ids[i]."""
    ids = list(encoder.task(transcript.goal, limit))
    weights = [0.0] * len(ids)
    for i, observation in enumerate(transcript.observations):
        piece = encoder.observation(observation)
        ids += piece
        weights += [observation_weight] * len(piece)
        if i < len(transcript.actions):
            piece = encoder.action(transcript.actions[i])
            ids += piece
            weights += [1.0 if transcript.valid[i] else 0.0] * len(piece)
    return ids, weights


def batches(
    transcripts: list[Transcript], encoder: Encoder, recipe: Recipe, rng: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(ids_BT, weights_BT) of one pass in random order; similar lengths share a batch."""
    order = list(range(len(transcripts)))
    rng.shuffle(order)
    pool = recipe.episodes_per_batch * 32
    for start in range(0, len(order), pool):
        rows = []
        for index in order[start : start + pool]:
            renamed = augment(transcripts[index], rng)
            limits = recipe.limits if renamed.game == "cookingworld" else recipe.family_limits
            rows.append(encode(renamed, encoder, rng.choice(limits), recipe.observation_weight))
        rows.sort(key=lambda row: len(row[0]))
        groups = [rows[i : i + recipe.episodes_per_batch] for i in range(0, len(rows), recipe.episodes_per_batch)]
        rng.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            ids_BT = torch.zeros(len(group), length, dtype=torch.long)
            weights_BT = torch.zeros(len(group), length)
            for row, (ids, weights) in enumerate(group):
                ids_BT[row, : len(ids)] = torch.tensor(ids)
                weights_BT[row, : len(ids)] = torch.tensor(weights)
            yield ids_BT, weights_BT


def loss_of(
    model: PreTrainedModel, ids_BT: torch.Tensor, weights_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean loss, and plain mean loss on action tokens (nats). Attention is causal: padding needs no mask."""
    with own_attention(model.get_decoder()):
        hidden_BTH = model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
    scored_BT = weights_BT[:, 1:] > 0  # logits of the others would be wasted time
    targets, weights = ids_BT[:, 1:][scored_BT], weights_BT[:, 1:][scored_BT]
    logits = model.get_output_embeddings()(hidden_BTH[scored_BT])
    loss = F.cross_entropy(logits.float(), targets, reduction="none")
    action = weights == 1.0
    return (loss * weights).sum() / weights.sum(), loss.detach()[action].mean()


def thinned(weights_BT: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """Weights with only a random `share` of the observation tokens left, whose weights make up for the others."""
    kept_BT = torch.rand(weights_BT.shape, generator=generator) < share
    return torch.where(weights_BT == 1.0, weights_BT, weights_BT * kept_BT / share)


def train(
    transcripts: list[Transcript],
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    out: Path | None,
    *,
    start: PreTrainedModel | None = None,
    checkpoints: Path,
    say: Progress,
    interrupt: Interrupt,
) -> PreTrainedModel:
    """Train on from the last checkpoint below `checkpoints`, if there is one, and save the base under `out`, if given.

    `start`: a model to begin with; None begins with random weights. Errors: CheckpointError where the checkpoint was
    made with other settings, TrainingError for a loss that is not finite, Interrupted when asked to stop.
    """
    encoder = Encoder(tokenizer)
    read = {"transcripts": len(transcripts), "tokenizer": encoder.fingerprint}
    work = _Work(build_model(tokenizer, recipe) if start is None else start, recipe, read)
    work.resume(checkpoints)
    total = math.ceil(len(transcripts) * recipe.passes / recipe.episodes_per_batch)
    coming = _all_batches(transcripts, encoder, recipe)
    saved = time.monotonic()
    with say.bar(f"pretraining, {checkpoints.name} phase", total, done=work.step, unit="steps") as bar:
        for ids_BT, weights_BT in islice(coming, work.step, total) if work.step < total else ():
            loss, action_loss = work.learn(ids_BT, weights_BT, total)
            bar.advance(note=f"loss {loss:.3f} actions {action_loss:.4f}")
            if work.step % 20 == 0:
                heap.trim()
            if interrupt.requested or time.monotonic() - saved >= SAVE_EVERY_S:
                work.save(checkpoints)
                saved = time.monotonic()
                interrupt.check()
    work.save(checkpoints)
    if out is not None:
        save(work.model, tokenizer, out)
    return work.model


class _Work:
    """The model, its optimiser, and how far training has come."""

    def __init__(self, model: PreTrainedModel, recipe: Recipe, read: dict[str, Any]) -> None:
        self.model, self.recipe, self.step = model, recipe, 0
        model.train()
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)
        self.thinning = torch.Generator().manual_seed(recipe.seed)
        settings = {"vocabulary": model.config.vocab_size, **asdict(recipe), **read}
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as a checkpoint gives them back

    def learn(self, ids_BT: torch.Tensor, weights_BT: torch.Tensor, total: int) -> tuple[float, float]:
        """One step; returns the loss and that of the action tokens."""
        recipe = self.recipe
        warm = min(1.0, (self.step + 1) / recipe.warmup_steps)
        for group in self.optimizer.param_groups:
            cosine = 0.5 * (1 + math.cos(math.pi * self.step / total))
            group["lr"] = recipe.learning_rate * warm * (0.02 + 0.98 * cosine)
        weights_BT = thinned(weights_BT, recipe.observation_share, self.thinning)
        # in bfloat16 a step takes minutes where the processor has no instructions for it
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=compute_dtype("auto", "cpu") is torch.bfloat16):
            loss, action_loss = loss_of(self.model, ids_BT, weights_BT)
        if not math.isfinite(value := loss.item()):
            raise TrainingError(
                f"the loss of pretraining step {self.step + 1} is {value}",
                hint="pretrain again with a lower learning rate",
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return value, action_loss.item()

    def save(self, folder: Path) -> None:
        weights: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        moments, _ = flatten_state(self.optimizer.state_dict()["state"])
        tensors = {"model": weights, "optimizer": moments, "thinning": {"state": self.thinning.get_state()}}
        checkpoint.save(folder, self.step, tensors, self.settings, keep=1)

    @torch.no_grad()
    def resume(self, folder: Path) -> None:
        """Load the last checkpoint, if there is one."""
        newest = checkpoint.latest_valid(folder)
        if newest is None:
            return
        stored = checkpoint.load(newest)
        odd = [key for key, value in self.settings.items() if _differ(key, stored.state.get(key), value)]
        if odd:
            was, now = stored.state.get(odd[0]), self.settings[odd[0]]
            raise CheckpointError(
                f"{newest} was made with {odd[0]}={was}, not {now}",
                hint="give another --out, or use the previous settings",
            )
        for name, parameter in self.model.named_parameters():
            parameter.copy_(stored.tensors["model"][name])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(
            {"state": unflatten_state(stored.tensors["optimizer"], {}), "param_groups": groups}
        )
        self.thinning.set_state(stored.tensors["thinning"]["state"])
        self.step = stored.step


def _all_batches(
    transcripts: list[Transcript], encoder: Encoder, recipe: Recipe
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rng = random.Random(recipe.seed)
    while transcripts:
        yield from batches(transcripts, encoder, recipe, rng)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save in bfloat16: the rounded weights would take 13 MB as float32, and take half of that this way."""
    from copy import deepcopy

    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    rounded = deepcopy(model).to(torch.bfloat16)  # type: ignore[arg-type]  # its wrapper has lost `self`
    with explained(f"write {out}"), checkpoint.system_errors():
        out.mkdir(parents=True, exist_ok=True)
        rounded.save_pretrained(out, safe_serialization=True)
        tokenizer.save_pretrained(out)
    readable_alike(out, out / "config.json")


def _differ(key: str, before: Any, now: Any) -> bool:
    """Is a setting another one? The hashes of a tokenizer have had fewer parts."""
    if key == "tokenizer" and before is not None:
        return bool(checkpoint.prompt_change(str(before), str(now)))
    return bool(before != now)
