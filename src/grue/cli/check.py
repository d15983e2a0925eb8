"""`grue check-game`: does a game keep the contract?"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from grue.cli.common import reading_arguments
from grue.errors import ConfigError, GameError, GrueError, did_you_mean
from grue.games import Game, canonical_params, is_known, known_games, make
from grue.games.alike import likeness
from grue.games.base import FOLDS
from grue.games.check import Checked, check_game
from grue.games.faults import Guarded
from grue.games.known import is_native, plugin_names, ships
from grue.games.native import native_seeds
from grue.games.plugins import is_plugin, load_class, plugin_class, spelled_params
from grue.names import RUN_FOLDS
from grue.progress import Progress
from grue.types import Task

COMPARED = 50  # games of a fold
PATIENCE_S = 5.0


def check(name: str, settings: list[str], games: int, say: Progress) -> dict[str, Any]:
    """Check the game that "module:Class" or a name refers to, on the first seeds of each fold, at most `games`.

    `settings` are parameters of the game: rooms=3, or as in other verbs. Raises GameError with the first promise that
    is broken.
    """
    with reading_arguments():
        params = ",".join(map(_plain, settings))
    factory, task = _what(name, params, say)
    checked, found = {}, list[Checked]()
    for fold in RUN_FOLDS:
        seeds = native_seeds(task.game, task.params, fold) if is_native(task.game) else FOLDS[fold]
        for seed in seeds[:games]:
            found.append(check_game(factory, Task(task.game, task.params, fold, seed, task.limit)))
        checked[fold] = len(seeds[:games])  # a folder of games may have fewer than were asked for
        say(f"{name}: {checked[fold]} {fold} games keep the contract")
    steps = [one.gold_steps for one in found if one.gold_steps is not None]
    say(
        f"gold() wins in {_span(steps)} steps"
        if steps
        else "no solution was checked: gold() is missing, or knows none of these games"
    )
    result = {"game": name, "games": checked, "ok": True, "gold_steps": [min(steps), max(steps)] if steps else None}
    if ships(name):
        return result
    renames = any(one.renames for one in found)
    say(
        "renaming() keeps the game as it is"
        if renames
        else "no renaming was checked: the class has no method renaming()"
    )
    return result | {"renames": renames} | _different(factory, task, say)


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _different(factory: Callable[[], Game], task: Task, say: Progress) -> dict[str, dict[str, int]]:
    """How many of `COMPARED` games of each fold look different, are like one of train, or failed.

    Of train as many games are looked at as `PATIENCE_S` allows.
    """
    draw, looks, failed = random.Random(0), dict[str, list[str]](), dict[str, int]()
    with closing(Guarded(factory())) as game:
        for fold in RUN_FOLDS:
            until, looks[fold], failed[fold] = time.monotonic() + PATIENCE_S, [], 0
            for number, seed in enumerate(draw.sample(FOLDS[fold], len(FOLDS[fold]))):
                if number >= COMPARED and (fold != "train" or time.monotonic() > until):
                    break
                try:
                    looks[fold].append(likeness(game, replace(task, fold=fold, seed=seed)))
                except GrueError as error:
                    failed[fold] += 1
                    if failed[fold] == 1:
                        say.warn(f"{fold} seed {seed} failed: {error.message}")
    train = {*looks["train"]}
    like = {fold: sum(look in train for look in found) for fold, found in looks.items() if fold != "train"}
    for name, found in looks.items():
        again = f", {like[name]} of them like one of {len(looks['train'])} of train" if like.get(name) else ""
        again += f"; {failed[name]} failed" if failed[name] else ""
        say(f"{len(found)} {name} games look like {len({*found})} different ones{again}")
    return {"different": {fold: len({*found}) for fold, found in looks.items()}, "like_train": like, "failed": failed}


def _plain(setting: str) -> str:
    """rooms=3, from that or from game.params.rooms=3 or game.params=rooms=3,doors=1. ConfigError for other settings."""
    plain = setting.removeprefix("game.params.").removeprefix("game.params=").strip("{} ")
    if "." in plain.partition("=")[0]:
        raise ConfigError(f"{setting} is no parameter of a game", hint="those are given as rooms=3")
    return plain


def _what(name: str, params: str, say: Progress) -> tuple[Callable[[], Game], Task]:
    """How to make the game, and a task to vary."""
    if ":" not in name and not is_known(name):
        own = Path(name).stem
        raise ConfigError(
            f"unknown game {name!r}",
            hint=f"{did_you_mean(name, known_games())} (a class of your own is named MODULE:CLASS, for example "
            f"{own}:{own.capitalize()})",
        )
    if is_plugin(name):  # as it is: the guard around games of packages would hide what is wrong with this one
        game_class = plugin_class(name)
    elif is_known(name):
        if name in plugin_names():
            say.warn(f"a package declares another game {name!r}: give it another name, since this one ships with grue")
        return lambda: make(name, params), Task(name, canonical_params(name, params), "train", 0, 8)
    else:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: the module may be here
        game_class = load_class(name)
    if not callable(game_class):
        raise ConfigError(f"{name} is not a class", hint="name it as package.module:Class")
    text = spelled_params(game_class, name, params)
    if spelled_params(game_class, name, text) != text:
        raise GameError(
            f"the game breaks its contract: check_params({text!r}) changes its spelling", hint="it gives one spelling"
        )
    return lambda: game_class(text), Task(name, text, "train", 0, 8)
