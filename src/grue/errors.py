"""Errors that say what happened, where, with which value, and what to try next."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any


class GrueError(Exception):
    """Base of every error that a user can fix. `hint` is the next thing to try."""

    def __init__(self, message: str | GrueError, *, hint: str = "") -> None:
        if isinstance(message, GrueError):  # Gymnasium's vector environments make an error of an error
            hint, message = hint or message.hint, message.message
        super().__init__(message)
        self.message: str = message
        self.hint: str = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(GrueError, ValueError):
    """A setting, key, preset or argument is wrong."""


class GameError(GrueError, RuntimeError):
    """A game could not be started, reset or stepped."""


class TeacherError(GameError):
    """A teacher cannot play this kind of game at all."""


class DataError(GrueError, ValueError):
    """A file that should hold demonstrations, episodes or results does not."""


class CheckpointError(GrueError, RuntimeError):
    """A checkpoint is missing, incomplete, altered or from another model."""


class TrainingError(GrueError, RuntimeError):
    """Training cannot go on: a non-finite loss, an empty batch, too many failed games."""


class ModelError(GrueError, RuntimeError):
    """A model or tokenizer cannot be loaded or cannot be driven."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to quote in a message of our own."""
    return (str(error).strip().splitlines() or [repr(error)])[0]


def last_line(error: BaseException) -> str:
    """The last line of another library's error, shortened: torch says there why processes have lost each other."""
    lines = str(error).strip().splitlines()
    return lines[-1][:120] if lines else repr(error)


_EXTRA_OF = {
    "bitsandbytes": "qlora",
    "minigrid": "babyai",
    "datasets": "trl",
    "sb3_contrib": "sb3",
    "bm25s": "retrieval",
}


def install_line(extra: str) -> str:
    """How to install an extra."""
    return f"in grue's folder: pip install -c constraints.txt -e '.[{extra}]'"


def needs(module: str, *, feature: str) -> None:
    """Raise ConfigError naming the extra to install when `module` is absent."""
    if find_spec(module) is None:
        extra = _EXTRA_OF.get(module, module)
        raise ConfigError(f"{feature} needs {module}, which is not installed", hint=install_line(extra))


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """A hint: the one of `known` that is most like `word`, or else `otherwise`, or all of them."""
    known = list(dict.fromkeys(known))  # a name may be of two kinds
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise or f"known are {', '.join(known)}"


def whole_number(name: str, value: Any, *, least: int | None = None, hint: str = "") -> int:
    """`value` as an int, from `least` up if that is given. ConfigError for anything else, truth values too."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" from {least} up"
        raise ConfigError(f"{name}={value!r} is not a whole number{bound}", hint=hint)
    return number
