"""Games of other packages. One that declares an entry point in the group `grue.games` is played by its name.

    [project.entry-points."grue.games"]
    guess = "my_package.games:Guess"

The value is a class that keeps the contract of `base.Game` and is called with the parameters of a task. If it has a
static method `check_params(params) -> str`, that returns their canonical spelling and refuses wrong ones. Another one,
`renaming`, gives things other names in training (`games.renaming`).

Only what is installed counts: a configuration or run directory names games, never classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from grue.errors import ConfigError, GameError, GrueError, did_you_mean, first_line
from grue.games.base import Game
from grue.games.faults import Guarded, engine_errors
from grue.games.known import GROUP, plugin_names, ships
from grue.games.params import Params, check_form, parse
from grue.types import Task

_CLASS = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def is_plugin(game: str) -> bool:
    """Is `game` declared by an installed package? One that ships is not replaced by another of its name."""
    return not ships(game) and game in plugin_names()


def plugin_params(game: str, params: Params) -> str:
    """The canonical spelling of `params` for a declared game: its own, or sorted by key."""
    return spelled_params(plugin_class(game), game, params)


def spelled_params(game_class: Any, name: str, params: Params) -> str:
    """`params` as the `check_params` of `game_class` spells them, or sorted by key. GameError where that fails."""
    check: Callable[[str], object] | None = getattr(game_class, "check_params", None)
    if check is None:
        return _joined(parse(params))
    check_form(params)
    try:
        found = check(params if isinstance(params, str) else _joined(params))
    except GrueError:
        raise
    except (Exception, SystemExit) as error:  # their code: whoever gave the parameters must know where it came from
        raise GameError(
            f"check_params of the game {name!r} raised {type(error).__name__}: {error}",
            hint='it gets one text, such as "doors=1,rooms=3", and raises grue.errors.ConfigError for a wrong one',
        ) from error
    if not isinstance(found, str):
        raise GameError(f"check_params of the game {name!r} gave a {type(found).__name__}", hint="it gives a str")
    return found


def _joined(params: Mapping[str, object]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(params.items()))


def plugin_class(game: str) -> Any:
    """The class that is declared as `game`: it makes games as they are, without a guard."""
    return _load(_entry(game))


def make_plugin(game: str, params: Params) -> Game:
    """A declared game, checked for having the methods of the contract, and guarded."""
    checked = plugin_params(game, params)
    with engine_errors():
        made = plugin_class(game)(checked)
    if not isinstance(made, Game):
        raise GameError(f"game {game!r} has no reset, step or close", hint="see grue.games.base.Game")
    return Guarded(made, partial(_check_task, game, checked))


def _check_task(game: str, params: str, task: Task) -> None:
    """ConfigError for a task of another game or of other parameters than those that the class was called with."""
    if task.game != game:
        raise ConfigError(f"a game of {game!r} cannot play {task.game!r}", hint="use games.make(task.game)")
    if task.params != params and plugin_params(game, task.params) != params:
        raise ConfigError(
            f"a game of {game!r} with {params or 'no parameters'} cannot play one with {task.params or 'none'}",
            hint="use games.make(task.game, task.params)",
        )


def load_class(where: str) -> Any:
    """The class that "module:Class" names. For a command that was typed by hand, never for data."""
    if not _CLASS.fullmatch(where):
        raise ConfigError(
            f"{where!r} does not name a class",
            hint="go to the folder of the file and name it as MODULE:CLASS, for example guess:Guess",
        )
    file, _, name = where.partition(":")
    if file.endswith(".py"):
        raise GameError(f"{file} is a file, not a module", hint=f"leave out the .py: {file[:-3]}:{name}")
    module = file.partition(".")[0]
    if not module or find_spec(module) is None:
        raise GameError(
            f"there is no module {module!r} here, for {where}",
            hint=f"go to the folder that holds {module}.py, or name that folder in PYTHONPATH",
        )
    return _load(EntryPoint(where, where, GROUP))


def _entry(game: str) -> EntryPoint:
    found = [entry for entry in entry_points(group=GROUP) if entry.name == game]
    if len({entry.value for entry in found}) > 1:
        raise ConfigError(
            f"several packages declare a game {game!r}: {', '.join(entry.value for entry in found)}",
            hint="uninstall all but one",
        )
    if not found:
        raise ConfigError(
            f"no installed package declares a game {game!r}", hint=f"declared are {plugin_names() or 'none'}"
        )
    return found[0]


def _load(entry: EntryPoint) -> Any:
    try:
        module = import_module(entry.module)
    except (Exception, SystemExit) as error:  # their code: importing it may do anything
        said = first_line(error)
        if isinstance(error, SyntaxError):
            said = f"{Path(error.filename or '?').name}, line {error.lineno}: {error.msg}"
        raise GameError(
            f"cannot import the game {entry.name!r}: {type(error).__name__}: {said}",
            hint=f"python -c 'import {entry.module}' shows where",
        ) from error
    try:
        return attrgetter(entry.attr)(module)
    except AttributeError as error:
        raise GameError(
            f"{entry.module} has no class {entry.attr!r}, for the game {entry.name!r}",
            hint=did_you_mean(entry.attr, dir(module), otherwise="a game is named as package.module:Class"),
        ) from error
