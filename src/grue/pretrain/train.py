"""Train the embedded base from scratch on transcripts: next-token loss, actions weighted above observations."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from grue.models.attention import own_attention
from grue.pretrain.corpus import Transcript, augment
from grue.prompts.tokens import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of one pretraining run."""

    passes: float = 1.0  # over the corpus, each with fresh names
    episodes_per_batch: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warmup_steps: int = 100
    observation_weight: float = 0.2  # loss weight of observation tokens; action tokens have 1
    observation_share: float = 0.5  # of the observation tokens of a batch are scored, with twice the weight
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
    scored_BT = weights_BT[:, 1:] > 0  # logits of the others are not worth their time
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
    out: Path,
    *,
    start: PreTrainedModel | None = None,
    say: Callable[[str], None] = print,
) -> PreTrainedModel:
    """Train and save a base under `out` (safetensors + tokenizer), every 500 steps and at the end.

    `start`: a model to go on from; None begins with random weights.
    """
    model = build_model(tokenizer, recipe) if start is None else start
    encoder, rng = Encoder(tokenizer), random.Random(recipe.seed)
    thinning = torch.Generator().manual_seed(recipe.seed)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)
    total = math.ceil(len(transcripts) * recipe.passes / recipe.episodes_per_batch)
    step, tokens, began = 0, 0, time.monotonic()
    model.train()
    while step < total:
        for ids_BT, weights_BT in batches(transcripts, encoder, recipe, rng):
            progress = step / total
            warm = min(1.0, (step + 1) / recipe.warmup_steps)
            for group in optimiser.param_groups:
                group["lr"] = recipe.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss, action_loss = loss_of(model, ids_BT, thinned(weights_BT, recipe.observation_share, thinning))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
            tokens += ids_BT.numel()
            if step % 50 == 0 or step == total:
                rate = tokens / (time.monotonic() - began)
                say(f"pretrain {step}/{total} loss {loss:.3f} actions {action_loss:.4f} {rate:,.0f} tokens/s")
            if step % 500 == 0 or step == total:
                save(model, tokenizer, out)
            if step == total:
                break
    return model


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Weights as bfloat16-rounded float32 would be 13 MB; stored as bfloat16 they are half of it."""
    from copy import deepcopy

    out.mkdir(parents=True, exist_ok=True)
    rounded = deepcopy(model).to(torch.bfloat16)  # type: ignore[arg-type]  # its wrapper has lost `self`
    rounded.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
