"""Transcripts for the embedded base: games of the fold "pretrain", played by random, gold and noisy gold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from grue.errors import DataError
from grue.games.renaming import Rename
from grue.games.twx import words
from grue.games.twx.food_names import draw_renaming, rename
from grue.games.twx.game import TwxGame
from grue.games.twx.recipes import first_recipe
from grue.interrupt import Interrupt
from grue.progress import Progress
from grue.storage import jsonl
from grue.types import Observation, Outcome, Task

TOGETHER = 50  # games that are written at once


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
    game: str = "cookingworld"
    listed: tuple[str, ...] = ()  # the valid actions at the start, if they tell which things there are


def read_corpus(path: Path) -> list[Transcript]:
    """The transcripts of a JSONL file written by `Recording`."""
    transcripts = []
    for where, fields in jsonl.read(path):
        try:
            row: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
            }
            transcripts.append(Transcript(**row))
        except TypeError as error:
            raise DataError(f"{where} is no transcript: {error}", hint="record it again") from error
    return transcripts


@dataclass(frozen=True, slots=True)
class Recording:
    """Corpora of a folder. What is there is kept, what is missing is recorded."""

    folder: Path
    say: Progress
    interrupt: Interrupt

    def of(self, name: str, games: int, recorded: Callable[[int], Iterator[Transcript]]) -> list[Transcript]:
        """The first `games` transcripts of the corpus `name`, fewer where the engine could not play some.

        `recorded` makes the transcripts after a seed, in the order of their seeds, so a recording that was stopped, or
        had fewer games, continues after its last one.
        """
        path = self.folder / f"{name}.jsonl"
        done = read_corpus(path)
        if len(done) < games:
            coming = recorded(done[-1].seed if done else 0)
            with self.say.bar(f"recording {name}", games, done=len(done), unit="games") as bar:
                while part := list(islice(coming, TOGETHER)):
                    jsonl.append(path, map(asdict, part))
                    bar.advance(len(part))
                    self.interrupt.check()
            done = read_corpus(path)
        return done[:games]


def _wins(game: TwxGame, task: Task, actions: list[str]) -> bool:
    game.reset(task)
    for action in actions:
        _, _, outcome = game.step(action)
        if outcome is not None:
            return outcome is Outcome.WON
    return False


def with_noise(
    plan: list[str], listed: Sequence[tuple[str, ...]], noise: float, rng: random.Random
) -> tuple[list[str], list[bool]]:
    """`plan` with random ones of the `listed` actions put in between, and which of the steps are the plan's own.

    Whether they break the plan is found by playing it.
    """
    actions: list[str] = []
    own: list[bool] = []
    for action, choices in zip(plan, listed, strict=True):
        if rng.random() < noise and choices:
            actions.append(rng.choice(choices))
            own.append(False)
        actions.append(action)
        own.append(True)
    return actions, own


Player = Callable[[int, Observation], str | None]  # step, what is seen -> action; None: enough


def follow(plan: Sequence[str]) -> Player:
    """The player that knows a plan."""
    return lambda step, seen: plan[step] if step < len(plan) else None


def transcribe(game: TwxGame, task: Task, name: str, observation: Observation, player: Player) -> Transcript:
    """Play on from the first observation and write it down."""
    observations = [observation.text]
    actions: list[str] = []
    valid: list[bool] = []
    outcome = None
    while outcome is None and (action := player(len(actions), observation)) is not None:
        valid.append(action in (observation.actions or ()))
        observation, _, outcome = game.step(action)
        actions.append(action)
        observations.append(observation.text)
    won = outcome is Outcome.WON
    return Transcript(task.seed, name, observation.goal, tuple(observations), tuple(actions), tuple(valid), won)


def record(game: TwxGame, task: Task, player: str, noise: float, rng: random.Random) -> Transcript:
    """Play one game with `player` (random | gold | noisy) and return its transcript.

    Noise only ever adds steps: leaving gold's steps out would teach shortcuts that RL is to find by itself.
    """
    observation = game.reset(task, gold=True)
    if player == "random":
        return transcribe(game, task, player, observation, lambda step, seen: _any(seen, rng) if step < 16 else None)
    plan = gold = game.gold()
    if player == "noisy":
        listed = [observation.actions or ()]
        listed += [game.step(action)[0].actions or () for action in gold[:-1]]
        tries = (with_noise(gold, listed, noise, rng)[0] for _ in range(8))
        plan = next((tried for tried in tries if _wins(game, task, tried)), gold)
        observation = game.reset(task)
    return transcribe(game, task, player, observation, follow(plan))


def _any(seen: Observation, rng: random.Random) -> str:
    return rng.choice(seen.actions or ("look around",))


def augment(transcript: Transcript, rng: random.Random, *, original: float = 0.2, invented: float = 0.3) -> Transcript:
    """The transcript with other names for its things; a share `original` is left alone.

    Foods of CookingWorld are exchanged, in a share `invented` partly for invented ones. In the other families whose
    folds differ in names things get made-up words, and quantities are drawn again.
    """
    draw = rng.random()
    if draw < original:
        return transcript
    if transcript.game in words.FAMILIES:
        first = Observation(transcript.observations[0], "", transcript.goal, transcript.listed, 0.0)
        return _renamed(transcript, words.draw_words(transcript.game, first, rng), words.reword)
    recipe = first_recipe(transcript.observations)
    if not recipe:
        return transcript
    return _renamed(transcript, draw_renaming(recipe, 0.7 if draw < original + invented else 0.0, rng), rename)


def _renamed(transcript: Transcript, names: dict[str, str], change: Rename) -> Transcript:
    return replace(
        transcript,
        observations=tuple(change(text, names) for text in transcript.observations),
        actions=tuple(change(action, names) for action in transcript.actions),
    )
