"""Shared by the benchmarks: the model and games of both sides, and rates measured alternately."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from grue.bench import Say
from grue.config import Config
from grue.games import Game
from grue.games.configured import fold_tasks, open_game
from grue.hardware import usual_threads
from grue.models.load import compute_dtype, load_model
from grue.models.policy_model import PolicyModel
from grue.prompts.tokens import Encoder
from grue.types import Task


@dataclass(frozen=True, slots=True)
class Timed:
    """`count` units of work done in `seconds`."""

    count: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def now() -> float:
    """Seconds, read once a GPU has finished its work: calls only queue it, and return before it is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def alternate(
    ours: Callable[[int], int], baseline: Callable[[int], int], repetitions: int, unit: str, say: Say
) -> tuple[list[Timed], list[Timed]]:
    """Time both in turn, A B A B, so that other load on the machine affects both alike.

    Each is called with the number of the repetition and returns how many units it did.
    """
    found: tuple[list[Timed], list[Timed]] = ([], [])
    for repetition in range(repetitions):
        for name, work, kept in (("ours", ours, found[0]), ("baseline", baseline, found[1])):
            start = now()
            count = work(repetition)
            kept.append(Timed(count, now() - start))
            last = kept[-1]
            say(f"{repetition + 1}/{repetitions} {name}: {count} {unit} in {last.seconds:.1f} s, {last.rate:.1f} per s")
    return found


def result(
    bench: str,
    unit: str,
    measured: tuple[list[Timed], list[Timed]],
    ours: dict[str, Any],
    baseline: dict[str, Any],
    same: str,
) -> dict[str, Any]:
    """The benchmark's JSON object: the median rate of each side, their ratio, and the facts about each side."""
    sides = [_side(unit, timed) | facts for timed, facts in zip(measured, (ours, baseline), strict=True)]
    rates = [side[f"{unit}_per_s"] for side in sides]
    return {
        "bench": bench,
        "ratio": round(rates[0] / rates[1], 2),
        "ours": sides[0],
        "baseline": sides[1],
        "same": same,
    }


def _side(unit: str, timed: list[Timed]) -> dict[str, Any]:
    return {
        f"{unit}_per_s": round(statistics.median(t.rate for t in timed), 2),
        f"{unit}_per_s_each": [round(t.rate, 2) for t in timed],
        unit: sum(t.count for t in timed),
        "seconds": round(sum(t.seconds for t in timed), 2),
        "repetitions": len(timed),
    }


@contextmanager
def threads(config: Config) -> Iterator[int]:
    """The configured number of CPU threads for both sides; the previous setting is restored."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    before, wanted = torch.get_num_threads(), config.threads or usual_threads()
    torch.set_num_threads(wanted)
    try:
        yield wanted
    finally:
        torch.set_num_threads(before)


@contextmanager
def open_games(config: Config, count: int) -> Iterator[list[Game]]:
    """`count` games that can be played at once."""
    games = [open_game(config.game) for _ in range(count)]
    try:
        yield games
    finally:
        for game in games:
            game.close()


def task_sets(config: Config, sets: int, size: int) -> list[list[Task]]:
    """`sets` lists of `size` tasks, spread over the dev fold; a fold that is too small is reused."""
    every = fold_tasks(config.game, "dev")
    stride = max(1, len(every) // (sets * size))
    return [[every[(s * size + i) * stride % len(every)] for i in range(size)] for s in range(sets)]


def load(config: Config) -> tuple[PolicyModel, Encoder]:
    """The model that both sides use, and the encoder of its tokenizer."""
    torch.manual_seed(config.seed)
    lm, tokenizer = load_model(config.model)
    return PolicyModel(lm), Encoder(tokenizer)


def facts(config: Config, model: PolicyModel, thread_count: int) -> dict[str, Any]:
    """What both sides had in common, as JSON."""
    weight = next(model.parameters())
    return {
        "model": config.model.name,
        "parameters": sum(p.numel() for p in model.lm.parameters()),
        "device": str(weight.device),
        "dtype": str(compute_dtype(config.model.dtype, weight.device.type)).removeprefix("torch."),
        "threads": thread_count,
    }
