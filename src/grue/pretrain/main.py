"""`grue pretrain`: record transcripts, train the tokenizer, train the base. Each part is kept and reused when found."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grue import heap
from grue.errors import ConfigError
from grue.games import tasks
from grue.games.twx.food_names import game_foods
from grue.games.twx.game import TwxGame
from grue.interrupt import Interrupt
from grue.pretrain.corpus import Recording, Transcript, augment, record
from grue.pretrain.families import NUMBERS, record_families
from grue.pretrain.shuffled import record_shuffled
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.prompts.transcript import render_action, render_observation, render_task
from grue.storage.files import explained, lock_folder, write_atomic

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GAME = "cookingworld"
PARAMS = "numLocations=3,includeDoors=1,numDistractorItems=2,numIngredients=2"
RECORD_LIMIT = 50  # gold needs up to 26 steps; endings must be in the data
NOISE = (0.03, 0.08, 0.15)  # chance of a random action before each gold action, one value a game


def player_of(rng: random.Random) -> str:
    """5 % random, 35 % gold, 60 % noisy gold."""
    draw = rng.random()
    return "random" if draw < 0.05 else "gold" if draw < 0.4 else "noisy"


def record_corpus(games: int, after: int = 0, first: int = 0) -> Iterator[Transcript]:
    """`games` transcripts on layouts of the pretrain fold, from game `first` on; each depends on its seed alone. Those
    up to seed `after` are left out.
    """
    game = TwxGame(GAME, PARAMS)
    try:
        for task in tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, games, start=first):
            if task.seed > after:
                rng = random.Random(task.seed)
                yield record(game, task, player_of(rng), rng.choice(NOISE), rng)
    finally:
        game.close()


def tokenizer_texts(transcripts: list[Transcript]) -> Iterator[str]:
    """The pieces of the transcripts, renamed as in training, for the tokenizer to learn from."""
    rng = random.Random(0)
    for original in transcripts:
        transcript = augment(original, rng)
        yield render_task(transcript.goal, rng.choice((16, 20, 25, 30, 50)))
        yield from map(render_observation, transcript.observations)
        yield from map(render_action, transcript.actions)


def unread_games(games: int, recording: Recording) -> dict[str, list[Transcript]]:
    """`games` of the kind of each phase, on layouts that no phase reads."""
    from grue.pretrain.heldout import FIRST_GAME, FIRST_SHUFFLED_GAME

    return {
        "first": recording.of("held-out-first", games, lambda after: record_corpus(games, after, FIRST_GAME)),
        "second": recording.of(
            "held-out-second", games, lambda after: record_shuffled(games, PARAMS, after, FIRST_SHUFFLED_GAME)
        ),
    }


def measure(
    model: PreTrainedModel, encoder: Encoder, unread: Mapping[str, Sequence[Transcript]], phase: str, say: Progress
) -> dict[str, dict[str, float]]:
    """How well `model` predicts the `unread` games after `phase`, printed and returned."""
    from grue.pretrain.heldout import held_out

    found = {}
    for kind, transcripts in unread.items():
        measured = held_out(model, encoder, transcripts)
        say(f"after the {phase} phase, unread games of the {kind} phase: {measured}")
        found[f"{phase} phase, games of the {kind}"] = {
            name: round(value, 4) for name, value in asdict(measured).items()
        }
    return found


def main(
    out: Path,
    *,
    games: int = 40_000,
    shuffled_games: int = 32_000,
    family_games: int = 9_000,
    passes: float = 2.0,
    vocabulary: int = 1536,
    threads: int = 0,
    say: Progress,
) -> Path:
    """Make a base under `out`/base; the corpora are recorded once. Returns the folder of the base.

    First gold, noisy gold and random play of the main size, then shuffled gold of many sizes, into which
    `family_games` of gold play of the other families are mixed. Stopped and started again, it goes on where it was.
    """
    import torch

    from grue.pretrain.heldout import GAMES
    from grue.pretrain.tokenizer import train_tokenizer
    from grue.pretrain.train import Recipe, train

    heap.keep_few_kernels()
    if threads:
        torch.set_num_threads(threads)
    with explained(f"open {out}", ConfigError):
        lock_folder(out)
    with Interrupt() as interrupt:
        recording = Recording(out, say, interrupt)
        gold = recording.of("corpus", games, lambda after: record_corpus(games, after))
        shuffled = recording.of(
            "shuffled", shuffled_games, lambda after: record_shuffled(shuffled_games, PARAMS, after)
        )
        others = record_families(family_games, recording) if family_games else []
        unread = unread_games(min(GAMES, games), recording)
        samples = gold[:2000] + others[:: max(1, len(others) // 1000)]
        tokenizer = train_tokenizer(tokenizer_texts(samples), vocabulary, (*game_foods(), *(NUMBERS if others else ())))
        first = Recipe(passes=passes)
        second = replace(first, learning_rate=1e-3, warmup_steps=50, seed=1)
        encoder = Encoder(tokenizer)
        learn = partial(train, tokenizer=tokenizer, say=say, interrupt=interrupt)
        # mixing in other families here would cost much of what it learns
        model = learn(gold, out=None, recipe=first, checkpoints=out / "first")
        found = measure(model, encoder, unread, "first", say)
        model = learn(shuffled + others, out=out / "base", recipe=second, checkpoints=out / "second", start=model)
        found |= measure(model, encoder, unread, "second", say)
    counts = {"games": len(gold), "shuffled_games": len(shuffled), "family_games": len(others)}
    made = {**counts, "vocabulary": len(tokenizer), **asdict(first), "held_out": found}
    with explained(f"write {out / 'base'}"):
        write_atomic(out / "base" / "made.json", f"{json.dumps(made, indent=1)}\n".encode())
    return out / "base"
