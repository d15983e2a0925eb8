"""A game whose things have other names: data augmentation by a symmetry that makes remembering names useless.

A game of another package takes part by a static method

    renaming(first: Observation, rng: random.Random) -> dict[str, str]

which is given what an episode shows first, and returns other names for things in it, by their names in the game; {}
leaves the episode as it is. `grue.games.made_up.made_up_names` makes up words. Names are replaced as whole words, also
where they begin with a capital letter, in everything that the player sees and does.
"""

from __future__ import annotations

import inspect
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from grue.errors import GameError
from grue.games import base
from grue.games.base import Game
from grue.games.faults import engine_errors
from grue.types import Episode, Observation, Outcome, Task

Rename = Callable[[str, dict[str, str]], str]  # (text, names) -> the text with things renamed
Renaming = Callable[[Observation, random.Random], Any]  # what a game of another package has: see above
NO_SUCH_THING = "grue"  # the engines have none


class Names(NamedTuple):
    """What things are called in one episode."""

    there: dict[str, str]  # the game's name of a thing -> the player's
    change: Rename


class Renamed(ABC):
    """`game` with things renamed in a `share` of its episodes. `salt` and the task's seed fix the names."""

    def __init__(self, game: Game, salt: str, share: float = 0.5) -> None:
        self._game, self._salt, self._share = game, salt, share
        self.names = Names({}, reworded)
        self._back: dict[str, str] = {}

    @abstractmethod
    def _namer(self, task: Task, rng: random.Random) -> Callable[[Observation], Names]:
        """How an episode's names are drawn from what it shows first. Asked for before the game begins."""

    def begin_reset(self, task: Task) -> None:
        base.begin_reset(self._game, task)

    def reset(self, task: Task) -> Observation:
        rng = random.Random(f"{self._salt}/{task.seed}")
        namer = self._namer(task, rng) if rng.random() < self._share else None
        observation = self._game.reset(task)
        self.names = Names({}, reworded) if namer is None else namer(observation)
        there = self.names.there
        self._back = {new: old for old, new in there.items()}
        # the game itself still knows the old names, which a player may remember and must not get anywhere with
        self._back |= dict.fromkeys(there.keys() - self._back.keys(), NO_SUCH_THING)
        return self._shown(observation)

    def begin_step(self, action: str) -> None:
        base.begin_step(self._game, self.meant(action))

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self._game.step(self.meant(action))
        return self._shown(observation), reward, outcome

    def close(self) -> None:
        self._game.close()

    def meant(self, action: str) -> str:
        """What the game itself is told when the player does `action`."""
        return self.names.change(action, self._back)

    def _shown(self, observation: Observation) -> Observation:
        return renamed_observation(observation, self.names) if self.names.there else observation


class RenamedOwn(Renamed):
    """A game of another package, which has a method `renaming`."""

    def __init__(self, game: Game, renaming: Renaming, salt: str, share: float = 0.5) -> None:
        super().__init__(game, salt, share)
        self._renaming = renaming

    def _namer(self, task: Task, rng: random.Random) -> Callable[[Observation], Names]:
        return lambda first: own_names(self._renaming, first, rng)


def renamed_observation(observation: Observation, names: Names) -> Observation:
    """The observation with things renamed; valid actions stay sorted."""
    (there, change), actions = names, observation.actions
    return replace(
        observation,
        text=change(observation.text, there),
        goal=change(observation.goal, there),
        inventory=change(observation.inventory, there),
        actions=None if actions is None else tuple(sorted(change(action, there) for action in actions)),
    )


def with_names(episode: Episode, names: Names) -> Episode:
    """A played episode with its things renamed throughout, as a game with other names would have shown it."""
    there, change = names
    if not there:
        return episode
    turns = tuple(
        replace(
            turn,
            observation=renamed_observation(turn.observation, names),
            action=change(turn.action, there),
            advice=change(turn.advice, there),
        )
        for turn in episode.turns
    )
    return replace(episode, turns=turns)


def renamed_own(episode: Episode, rng: random.Random, renaming: Renaming) -> Episode:
    """A played episode of a game of another package, with the names that its `renaming` draws."""
    return with_names(episode, own_names(renaming, episode.turns[0].observation, rng)) if episode.turns else episode


def static_renaming(game_class: Any, name: str) -> Renaming | None:
    """The `renaming` of a class; None if it has none. GameError if it needs an instance: recorded games have none."""
    found: Renaming | None = getattr(game_class, "renaming", None)
    if found is None:
        return None
    if not isinstance(inspect.getattr_static(game_class, "renaming"), staticmethod | classmethod):
        raise GameError(
            f"renaming of the game {name!r} is no static method", hint="write @staticmethod above it, without self"
        )
    return found


def own_names(renaming: Renaming, first: Observation, rng: random.Random) -> Names:
    """The names that `renaming` draws. GameError where the game could no longer be played with them."""
    with engine_errors():
        drawn = renaming(first, rng)
    words = [*drawn, *drawn.values()] if isinstance(drawn, Mapping) else [drawn]
    stray = next((word for word in words if not _is_name(word)), None)
    if stray is not None:
        raise GameError(
            f"renaming gave {stray!r:.60}", hint="it gives a dict of names, one line each: {'apple': 'wib'}"
        )
    there = {old: new for old, new in drawn.items() if new != old}
    known: dict[str, str] = {}
    for old, new in there.items():
        if known.setdefault(_capital(new), _capital(old)) != _capital(old):
            raise GameError(f"renaming gave the name {new!r} to two things", hint="no two things share a name")
    names = {_capital(old): _capital(new) for old, new in there.items()} | there  # at the beginning of a sentence too
    old_of = {new: old for old, new in names.items() if new not in names}
    taken = next((word for text in first.texts for word in _found(text, tuple(old_of))), None)
    if taken is not None:
        raise GameError(
            f"renaming gave the name {taken!r} to {old_of[taken]!r}, but the game shows {taken!r} already",
            hint="names must be new, or be exchanged with that of the other thing",
        )
    return Names(names, reworded)


def reworded(text: str, names: dict[str, str]) -> str:
    """`text` with whole words and phrases replaced, the longest that fits first."""
    return _pattern(tuple(names)).sub(lambda found: names[found[0]], text) if names else text


def _found(text: str, words: tuple[str, ...]) -> list[str]:
    return _pattern(words).findall(text) if words else []


@lru_cache(maxsize=1_000)  # three for each game that is being played
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")


def _is_name(word: object) -> bool:
    return isinstance(word, str) and word.isprintable() and word.strip() == word != ""


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]
