"""The contract of a game: reset, step, close; and the folds that keep training and test games apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

from grue.errors import ConfigError, GameError, GrueError
from grue.types import Observation, Outcome, Task

MOST_STEPS = 1_000_000  # of an episode
# Layout seeds of each fold. The first three are TextWorldExpress's own ranges; "pretrain" has layouts of
# its own with the recipes of the train fold, so that a base model made from it has seen no other fold.
FOLDS: dict[str, range] = {
    "train": range(0, 1000),
    "dev": range(10_000, 11_000),
    "test": range(20_000, 21_000),
    "pretrain": range(1_000_000, 2_000_000),
}
# For each fold, the folds with which its games must have nothing in common.
PROTECTED = {"train": ("dev", "test"), "pretrain": ("dev", "test"), "dev": ("test",), "test": ()}


@runtime_checkable
class Game(Protocol):
    """One seat at a game engine. It plays one episode at a time and can be reset any number of times."""

    def reset(self, task: Task) -> Observation:
        """Start the task and return what the player sees first. Equal tasks give equal texts."""
        ...

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        """Do one action: what is seen next, the change of the normalised score, and how it ended (None: it goes on).

        Every action costs a step, even one that the game does not understand. The step that reaches
        `task.limit` ends the episode. A step after the end raises GameError.
        """
        ...

    def close(self) -> None:
        """Give the seat back. Calling it twice is fine."""
        ...


def begin_step(game: Game, action: str) -> None:
    """Let `game` start on the action that its next call will `step`, if it can: the method is optional.

    With many games at once, each step then finds its answer ready. It changes nothing else: an error is left to `step`.
    """
    start = getattr(game, "begin_step", None)
    if start is not None:
        with suppress(GrueError):
            start(action)


def begin_reset(game: Game, task: Task) -> None:
    """Let `game` start on the task that its next call will `reset`, if it can, like `begin_step`."""
    start = getattr(game, "begin_reset", None)
    if start is not None:
        with suppress(GrueError):
            start(task)


def own_path(game: str) -> Path:
    """The file or folder that a game's name ends in, after a colon, with ~ for the home folder."""
    return Path(os.path.expanduser(game.partition(":")[2]))  # noqa: PTH111  Path's own one can fail


def layers(game: Game) -> Iterator[Game]:
    """`game` and what is inside it, down to what is played in the end: a class around a game holds it as `inner`."""
    yield game
    while isinstance(inner := getattr(game, "inner", None), Game):
        game = inner
        yield game


def innermost(game: Game) -> Game:
    """The last of the `layers`."""
    *_, last = layers(game)
    return last


def check_open(closed: bool) -> None:
    """Raise ConfigError where a game is `closed`: whoever begins one again is mistaken, and the game did not crash."""
    if closed:
        raise ConfigError("this game is closed", hint="make a new one with games.make")


def running(task: Task | None, outcome: Outcome | None = None) -> Task:
    """The `task` that is being played. GameError before reset, after close and, given an `outcome`, after the end."""
    if task is None:
        raise GameError("step before reset, or after close", hint="call reset(task) first")
    if outcome is not None:
        raise GameError(f"the episode is over ({outcome})", hint="call reset(task) to play again")
    return task


def place(task: Task | None, steps: int) -> str:
    """Where in a game something happened, for messages."""
    return f"{task.game} {task.fold} seed {task.seed} step {steps}" if task else "the start of a game"


def refuse_copy(game: Game) -> NoReturn:
    """Set as a class's `__getstate__`, which copy and pickle call: copies would share one running engine."""
    raise ConfigError(
        f"a {type(game).__name__} cannot be copied or pickled: it leads to a running engine",
        hint="make another one, where it is needed, with games.make",
    )


def fold_of(seed: int) -> str:
    """The fold that a seed lies in; ConfigError when it lies in none."""
    fold = next((fold for fold, seeds in FOLDS.items() if seed in seeds), None)
    if fold is None:
        ranges = ", ".join(f"{fold} {seeds.start}-{seeds.stop - 1}" for fold, seeds in FOLDS.items())
        raise ConfigError(f"seed {seed} is in no fold", hint=f"seeds: {ranges}")
    return fold


def fold_range(fold: str) -> range:
    """The seeds of `fold`; ConfigError when there is no such fold."""
    if fold not in FOLDS:
        raise ConfigError(f"unknown fold {fold!r}", hint=f"folds are {', '.join(FOLDS)}")
    return FOLDS[fold]


def check_seed(task: Task) -> None:
    """Raise ConfigError when the task's seed lies outside its fold, its limit is no step count, or params no text."""
    if not isinstance(task.params, str):
        raise ConfigError(
            f"the params of a Task are a text, not {task.params!r:.60}", hint="canonical_params(game, params) makes one"
        )
    seeds = fold_range(task.fold)
    if isinstance(task.seed, bool) or not isinstance(task.seed, int):
        raise ConfigError(f"seed {task.seed!r} is not an int", hint="convert array integers with int()")
    if task.seed not in seeds:
        home = next((name for name, others in FOLDS.items() if task.seed in others), None)
        hint = (
            f"it belongs to fold {home!r}" if home else f"seeds of {task.fold!r} are {seeds.start} to {seeds.stop - 1}"
        )
        raise ConfigError(f"seed {task.seed} is outside fold {task.fold!r} of game {task.game!r}", hint=hint)
    if isinstance(task.limit, bool) or not isinstance(task.limit, int) or not 1 <= task.limit <= MOST_STEPS:
        raise ConfigError(f"limit {task.limit!r} is not a step count from 1 to {MOST_STEPS:,}", hint="such as limit=16")
