"""A person plays: `grue play`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from grue.config import PRESETS, GameConfig, load_config
from grue.errors import ConfigError, GameError, GrueError, did_you_mean
from grue.games import canonical_params, fold_of, is_known, known_games
from grue.games.configured import open_game
from grue.games.play import play
from grue.progress import Progress
from grue.report.text import counted
from grue.types import Observation, Outcome, Task

_ENDS = {
    Outcome.WON: "You have won.",
    Outcome.LOST: "You have lost.",
    Outcome.LIMIT: "No steps are left.",
    Outcome.FAILED: "The game has crashed.",
}


def what_to_play(name: str | None, settings: list[str], seed: int) -> tuple[Task, GameConfig]:
    """The task that the arguments of `grue play` mean. `name` is a preset or a game; the seed tells the fold."""
    if name is not None and name not in PRESETS:
        if not is_known(name):
            raise ConfigError(
                f"{name!r} is neither a preset nor a game", hint=did_you_mean(name, [*PRESETS, *known_games()])
            )
        settings, name = [f"game.name={name}", *settings], None
    game = load_config(name, settings).game
    return Task(game.name, canonical_params(game.name, game.params), fold_of(seed), seed, game.limit), game


def play_human(task: Task, config: GameConfig, say: Progress, *, record: Path | None = None) -> dict[str, Any]:
    """Play `task` in the terminal. Returns outcome, score and steps; {} if the person left before the end.

    GameError where the game cannot start or crashes; what was played so far is recorded.
    """
    if record is not None:
        _check_record(record)
    game = open_game(config)
    try:
        episode = play(game, task, Human(say))
    except (EOFError, KeyboardInterrupt):
        say(
            "\nGood bye." if record is None else f"\nGood bye. A game that is not finished is not recorded in {record}."
        )
        return {}
    finally:
        try:
            game.close()
        except GameError as error:  # what was played counts all the same
            say.warn(error.message)
    if episode.final is not None:
        say(f"\n{episode.final.text}", wrap=True)
        say(f"\n{_ENDS[episode.outcome]} Score {episode.score:.2f} in {episode.steps} steps.", style="bold")
    if record is not None and episode.final is not None:
        from grue.storage import episodes

        episodes.append(record, [episode])
        say(f"recorded in {record}")
    if episode.failed:
        raise GameError(episode.error)
    return {"outcome": str(episode.outcome), "score": episode.score, "steps": episode.steps}


def _check_record(file: Path) -> None:
    """ConfigError where a finished game could not be appended to the file."""
    hint = "name a new file, or one that grue play or a run has written"
    if file.is_dir():
        raise ConfigError(f"--record {file} is a folder", hint=hint)
    there = next(path for path in (file, *file.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK) or (there != file and not there.is_dir()):
        raise ConfigError(
            f"--record {file}: {there} cannot be written to", hint="choose a folder and a file that you may write to"
        )
    if file.exists():
        from grue.storage import episodes

        try:
            next(iter(episodes.read(file)), None)
        except GrueError as error:
            raise ConfigError(f"--record {file} holds no episodes: {error.message}", hint=hint) from error


class Human:
    """A player who reads the screen and types."""

    name = "human"

    def __init__(self, say: Progress) -> None:
        self._say = say
        self._left = 0

    def start(self, task: Task, observation: Observation) -> None:
        """Show the task."""
        self._left = task.limit
        self._say(observation.goal, style="bold", wrap=True)
        self._say("Type the number of an action, or an action of your own; quit or Ctrl-D leaves.", style="dim")

    def act(self, observation: Observation) -> str:
        """Show what is seen and wait until something is typed. EOFError at the end of the input."""
        say, actions = self._say, observation.actions or ()
        say(f"\n{observation.text}", wrap=True)
        if observation.inventory and observation.inventory != observation.text:
            say(observation.inventory, style="dim", wrap=True)
        say(f"\nscore {observation.score:.2f}, {counted(self._left, 'step')} left", style="cyan")
        for number, action in enumerate(actions, 1):
            say(f"  {number:2d}  {action}")
        self._left -= 1
        while True:
            typed = input("> ").strip()
            if not sys.stdin.isatty():  # echo what was typed, so that a log shows it as a terminal does
                print(typed)
            if not typed:
                continue
            if typed in ("quit", "exit") and typed not in actions:  # to most games these are only a wasted step
                raise EOFError
            if typed in actions or not actions or not typed.isdecimal():
                return typed
            if len(typed) < 10 and 1 <= int(typed) <= len(actions):
                return actions[int(typed) - 1]
            say(f"there is no action {typed}: 1 to {len(actions)}", style="red")
