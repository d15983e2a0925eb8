"""Games that run in this process and are not ours: an error in one fails its episode, not the run."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from grue.errors import GameError, GrueError
from grue.games.base import Game
from grue.progress import clean
from grue.types import Observation, Outcome, Task

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHONS = f"{sysconfig.get_paths()['stdlib']}{os.sep}"  # installed packages may lie in it
_traced: set[str] = set()  # where exceptions came from whose traceback has been printed: a game may fail often

_MOST_SCORE = 1 + 1e-4  # sums of rewards are rounded, and a game may compute in 32 bits
# what teachers ask of a game; `dir` does not show it of a wrapper that forwards calls
_ASKED = ("gold", "rehearse", "equivalent", "plan", "advice", "state", "save", "restore")
_PATHS = ("gold", "plan")  # methods that give a list of actions


@contextmanager
def engine_errors() -> Iterator[None]:
    """An exception of the engine as a GameError that says where it was raised.

    A call that hangs is not ended: that takes a separate process.
    """
    try:
        yield
    except GrueError:
        raise
    except (Exception, SystemExit) as error:  # a game that calls sys.exit fails, and the run goes on
        place = place_of(error)
        if os.environ.get("GRUE_DEBUG") and place not in _traced:
            _traced.add(place)
            print(clean("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)
        where = f" ({place})" if place else ""
        raise GameError(f"the game failed: {named(error)}{where}") from cause_of(error)


def named(error: BaseException) -> str:
    """The error's type, and what it says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def cause_of(error: BaseException) -> BaseException:
    """What a context manager raises another error from: `error`, or a stand-in with its traceback.

    contextlib takes an error from a StopIteration for Python's own rewording of it, and raises the StopIteration.
    """
    return RuntimeError(repr(error)).with_traceback(error.__traceback__) if isinstance(error, StopIteration) else error


def place_of(error: BaseException) -> str:
    """File and line of the innermost frame that is neither ours nor Python's own; "" if there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [(file, line) for file, line in frames if not _is_ours(file) and not _is_pythons(file)]
    return f"{Path(theirs[-1][0]).name}:{theirs[-1][1]}" if theirs else ""


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)


def _is_pythons(file: str) -> bool:
    return file.startswith("<") or (file.startswith(_PYTHONS) and "site-packages" not in file)


class Guarded:
    """`game` with its exceptions turned into GameErrors. It can do whatever else the game can: gold, rehearse, plan.

    `check_task` refuses tasks that the game does not play.
    """

    def __init__(self, game: Game, check_task: Callable[[Task], None] | None = None) -> None:
        self._check_task, self._left = check_task, 0
        for name in dir(game):
            public = not name.startswith("_") and name not in ("reset", "step", "close")
            if public and callable(getattr(type(game), name, None)):  # looked up on the class: a property may raise
                # as attributes of the instance, which isinstance with a protocol sees (since Python 3.12 it does not
                # look into __getattr__) and which are copied with it: a copy asks its own game
                setattr(self, name, partial(_ask, game, name))
        for name in (name for name in _ASKED if not hasattr(type(game), name)):
            with suppress(Exception):  # whoever asks for it meets the error
                if callable(getattr(game, name)):
                    setattr(self, name, partial(_ask, game, name))
        self.inner = game

    def reset(self, task: Task) -> Observation:
        if self._check_task is not None:
            self._check_task(task)
        with engine_errors():
            self._left = task.limit
            return _sound(self.inner.reset(task))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        with engine_errors():
            found = self.inner.step(action)
            if not isinstance(found, tuple) or len(found) != 3:
                raise GameError(f"step gave {kind_of(found)}", hint="it gives (Observation, reward, outcome)")
            observation, reward, outcome = found
            if not (outcome is None or isinstance(outcome, str)):  # as Outcome is
                raise GameError(f"step gave the outcome {outcome!r:.60}", hint="it gives None or one of Outcome")
            outcome = None if outcome is None else Outcome(outcome)
            if not isfinite(reward):
                raise GameError(f"the game gave a reward of {reward}")
            if outcome is Outcome.FAILED:
                raise GameError("the game said that it failed", hint="an exception can say why")
            self._left -= 1
            if outcome is None and self._left <= 0:  # who plays it would never come to an end
                raise GameError("the game did not end at its step limit", hint="its last step has Outcome.LIMIT")
            return _sound(observation), float(reward), outcome

    def close(self) -> None:
        with engine_errors():
            self.inner.close()


def _sound(observation: Observation) -> Observation:
    """The observation, its score as a float (a game may give a bool or a fraction), its actions as the contract says.

    GameError where it could not be stored, which would end the run and not just the game.
    """
    if not isinstance(observation, Observation):
        raise GameError(f"the game gave {kind_of(observation)} for an observation", hint="see grue.types.Observation")
    actions = observation.actions
    if not (actions is None or (isinstance(actions, Collection) and not isinstance(actions, str | Mapping))):
        raise GameError(f"the game listed its actions as {kind_of(actions)}", hint='a tuple of str: ("look",), or None')
    for text in observation.texts:
        if not isinstance(text, str):
            raise GameError(
                f"the game gave {kind_of(text)} for a text: {text!r:.60}", hint="see grue.types.Observation"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise GameError(f"the game's text is not valid Unicode, it has half a character: {text[:60]!r}") from error
    if not -_MOST_SCORE <= observation.score <= _MOST_SCORE:  # nor NaN
        raise GameError(
            f"the game gave a score of {observation.score}", hint="scores are normalised: -1 to 1, 1 is a win"
        )
    if actions is not None:  # sorted, as a policy is not to learn their order
        actions = tuple(sorted(set(actions)))
    return replace(observation, score=min(1.0, max(-1.0, float(observation.score))), actions=actions)


def kind_of(given: object) -> str:
    """What something is, for a message: "a tuple of 2", "a str", "an int"."""
    name = type(given).__name__
    size = f" of {len(given)}" if isinstance(given, tuple) else ""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{size}"


def _ask(game: Game, method: str, /, *arguments: Any, **options: Any) -> Any:
    with engine_errors():
        found = getattr(game, method)(*arguments, **options)
        if method in _PATHS and not (isinstance(found, list) and all(isinstance(action, str) for action in found)):
            raise GameError(f"{method}() of the game gave {found!r:.60}", hint="it gives a list of actions")
        return found
