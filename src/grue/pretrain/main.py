"""`grue pretrain`: record transcripts, train the tokenizer, train the base. Each part is kept and reused when found."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from grue.games import tasks
from grue.games.names import game_foods
from grue.games.twx import TwxGame
from grue.pretrain.corpus import Transcript, augment, read_corpus, record, write_corpus
from grue.pretrain.families import NUMBERS, record_families
from grue.pretrain.shuffled import record_shuffled
from grue.prompts.transcript import render_action, render_observation, render_task

GAME = "cookingworld"
PARAMS = "numLocations=3,includeDoors=1,numDistractorItems=2,numIngredients=2"
RECORD_LIMIT = 50  # gold needs up to 26 steps; endings must be in the data
NOISE = (0.03, 0.08, 0.15)  # chance of a random action before each gold action, one value a game


def player_of(rng: random.Random) -> str:
    """5 % random, 35 % gold, 60 % noisy gold."""
    draw = rng.random()
    return "random" if draw < 0.05 else "gold" if draw < 0.4 else "noisy"


def record_corpus(games: int, say: Callable[[str], None]) -> Iterator[Transcript]:
    """`games` transcripts on layouts of the pretrain fold; each depends on its seed alone."""
    game = TwxGame(GAME, PARAMS)
    start = time.monotonic()
    try:
        for number, task in enumerate(tasks(GAME, PARAMS, "pretrain", RECORD_LIMIT, games), 1):
            rng = random.Random(task.seed)
            yield record(game, task, player_of(rng), rng.choice(NOISE), rng)
            if number % 2000 == 0 or number == games:
                say(f"recorded {number}/{games} games, {number / (time.monotonic() - start):.0f} a second")
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


def main(
    out: Path,
    *,
    games: int = 40_000,
    shuffled_games: int = 24_000,
    family_games: int = 14_000,
    passes: float = 1.0,
    vocabulary: int = 1536,
    threads: int = 0,
    say: Callable[[str], None] = print,
) -> Path:
    """Make a base under `out`/base; the three corpora are recorded once. Returns the folder of the base.

    First gold, noisy gold and random play of the main size, then one pass over shuffled gold of many sizes; gold play
    of the other families is mixed into both.
    """
    import torch

    from grue.pretrain.tokenizer import train_tokenizer
    from grue.pretrain.train import Recipe, train

    if threads:
        torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    transcripts = _corpus(out / "corpus.jsonl", lambda: record_corpus(games, say))[:games]
    others = _corpus(out / "families.jsonl", lambda: record_families(family_games, say))
    samples = transcripts[:2000] + others[:: max(1, len(others) // 1000)]
    tokenizer = train_tokenizer(tokenizer_texts(samples), vocabulary, (*game_foods(), *NUMBERS))
    recipe = Recipe(passes=passes)
    start = time.monotonic()
    model = train(transcripts + others, tokenizer, recipe, out / "base", say=say)
    reordered = _corpus(out / "shuffled.jsonl", lambda: record_shuffled(shuffled_games, PARAMS, say))[:shuffled_games]
    second = replace(recipe, passes=1.0, learning_rate=1e-3, warmup_steps=50, seed=1)
    train(reordered + others, tokenizer, second, out / "base", start=model, say=say)
    made = {
        "games": len(transcripts),
        "shuffled_games": len(reordered),
        "family_games": len(others),
        "vocabulary": len(tokenizer),
        "seconds": round(time.monotonic() - start),
        **asdict(recipe),
    }
    (out / "base" / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return out / "base"


def _corpus(path: Path, recorded: Callable[[], Iterator[Transcript]]) -> list[Transcript]:
    """The transcripts of a file, which is written first if there is none."""
    if not path.exists():
        partial = path.with_suffix(".partial")
        write_corpus(partial, recorded())
        partial.rename(path)
    return read_corpus(path)
