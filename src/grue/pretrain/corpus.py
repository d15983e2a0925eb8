"""Transcripts for the embedded base: games of the fold "pretrain", played by random, gold and noisy gold."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grue.errors import DataError
from grue.games.names import draw_renaming, recipe_pairs, rename
from grue.games.twx import TwxGame
from grue.types import Outcome, Task


@dataclass(frozen=True, slots=True)
class Transcript:
    """One played game as text. `observations` has one more entry than `actions`."""

    seed: int
    player: str
    goal: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    valid: tuple[bool, ...]  # False: the game did not list the action; such steps are not learned
    won: bool


def read_corpus(path: Path) -> list[Transcript]:
    """The transcripts of a JSONL file written by `record_corpus`."""
    transcripts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line).items()
            row: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields}
            transcripts.append(Transcript(**row))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}:{number} is no transcript: {error}", hint="record it again") from error
    return transcripts


def write_corpus(path: Path, transcripts: Iterator[Transcript]) -> int:
    """Write transcripts as JSONL; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for transcript in transcripts:
            file.write(json.dumps(asdict(transcript)) + "\n")
            count += 1
    return count


def _wins(game: TwxGame, task: Task, actions: list[str]) -> bool:
    game.reset(task)
    for action in actions:
        _, _, outcome = game.step(action)
        if outcome is not None:
            return outcome is Outcome.WON
    return False


def _noisy(gold: list[str], listed: list[tuple[str, ...]], noise: float, rng: random.Random) -> list[str]:
    """Gold with random valid actions put in between; what they break is found by replay."""
    actions: list[str] = []
    for action, choices in zip(gold, listed, strict=True):
        if rng.random() < noise and choices:
            actions.append(rng.choice(choices))
        actions.append(action)
    return actions


def record(game: TwxGame, task: Task, player: str, noise: float, rng: random.Random) -> Transcript:
    """Play one game with `player` (random | gold | noisy) and return its transcript.

    Noise only ever adds steps: leaving gold's steps out would teach shortcuts that RL is to find by itself.
    """
    observation = game.reset(task, gold=True)
    gold = game.gold()
    if player == "noisy":
        listed = [observation.actions or ()]
        listed += [game.step(action)[0].actions or () for action in gold[:-1]]
        for _ in range(8):
            plan = _noisy(gold, listed, noise, rng)
            if _wins(game, task, plan):
                break
        else:
            plan = gold
        observation = game.reset(task)
    else:
        plan = gold
    observations, actions, valid = [observation.text], [], []
    outcome = None
    steps = task.limit if player != "random" else 16
    for step in range(steps):
        if player == "random":
            action = rng.choice(observation.actions or ("look around",))
        elif step < len(plan):
            action = plan[step]
        else:
            break
        valid.append(action in (observation.actions or ()))
        observation, _, outcome = game.step(action)
        actions.append(action)
        observations.append(observation.text)
        if outcome is not None:
            break
    won = outcome is Outcome.WON
    return Transcript(task.seed, player, observation.goal, tuple(observations), tuple(actions), tuple(valid), won)


def augment(transcript: Transcript, rng: random.Random, *, original: float = 0.2, invented: float = 0.3) -> Transcript:
    """The transcript with other food names: `original` and `invented` are the shares left alone and partly invented."""
    draw = rng.random()
    recipe = next((pairs for text in transcript.observations if (pairs := recipe_pairs(text))), frozenset())
    if draw < original or not recipe:
        return transcript
    names = draw_renaming(recipe, 0.7 if draw < original + invented else 0.0, rng)
    return Transcript(
        transcript.seed,
        transcript.player,
        transcript.goal,
        tuple(rename(text, names) for text in transcript.observations),
        tuple(rename(action, names) for action in transcript.actions),
        transcript.valid,
        transcript.won,
    )
