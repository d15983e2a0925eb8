"""Players that do not think: random, and the engine's own solution with or without its idle steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from grue.errors import GameError
from grue.types import Observation, Task


@runtime_checkable
class HasGold(Protocol):
    """A game that can solve its current task."""

    def gold(self) -> list[str]: ...


@runtime_checkable
class CanRehearse(HasGold, Protocol):
    """A game that can also try a list of actions beside the live episode."""

    def rehearse(self, actions: list[str]) -> list[tuple[bool, bool]]: ...


@runtime_checkable
class HasWords(Protocol):
    """A game that can say an action of its solution in the words of its list."""

    def equivalent(self, action: str, then: Sequence[str] = ()) -> str: ...


class Random:
    """Uniform over the valid actions; the same choices for the same task, whatever was played before."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._random = random.Random(seed)

    def start(self, task: Task, observation: Observation) -> None:
        self._random = random.Random(f"{self._seed}/{task.game}/{task.params}/{task.fold}/{task.seed}")

    def act(self, observation: Observation) -> str:
        if not observation.actions:
            none = "there is no valid action here" if observation.actions is not None else "this game lists none"
            raise GameError(f"the random player draws from the valid actions: {none}")
        return self._random.choice(observation.actions)


class Gold:
    """The engine's solution with its detours, as far as possible in listed words; rarely, an invalid action."""

    name = "gold"

    def __init__(self, game: HasGold) -> None:
        self._game = game
        self._path: list[str] = []

    def start(self, task: Task, observation: Observation) -> None:
        self._path = self._game.gold()[::-1]

    def act(self, observation: Observation) -> str:
        if not self._path:
            raise GameError("the gold path ended before the game did")
        return _said(self._game, self._path)


class GoldPruned(Gold):
    """The engine's solution without steps that do nothing for the goal.

    Dropped: `look around`, `close ...`, `take cookbook`, invalid actions, doors opened twice. The shorter
    path is rehearsed first; where it does not win, the full one is played.
    """

    name = "gold-pruned"

    def __init__(self, game: CanRehearse) -> None:
        super().__init__(game)
        self._rehearsing = game
        self.pruned_steps = 0  # over all episodes

    def start(self, task: Task, observation: Observation) -> None:
        gold = self._game.gold()
        path = prune(self._rehearsing, gold)
        self.pruned_steps += len(gold) - len(path)
        self._path = path[::-1]


def _said(game: HasGold, path: list[str]) -> str:
    """The last of `path`, removed from it, in listed words where the game knows them."""
    action = path.pop()
    return game.equivalent(action, path[::-1]) if isinstance(game, HasWords) else action


def prune(game: CanRehearse, gold: list[str]) -> list[str]:
    """`gold` without idle steps when that still wins, else `gold` itself."""
    path = [action for action in gold if not _is_idle(action)]
    path = [action for action, (listed, _) in zip(path, game.rehearse(path), strict=False) if listed]
    path = _without_reopened_doors(path)
    played = game.rehearse(path)
    wins = bool(played) and played[-1][1] and all(listed for listed, _ in played)
    return path[: len(played)] if wins else gold


def _is_idle(action: str) -> bool:
    return action in ("look around", "take cookbook") or action.startswith("close ")


def _without_reopened_doors(path: list[str]) -> list[str]:
    """Drop `open door to D` where that door was opened before, from this side or from the other.

    Rooms are told apart by their place on a grid that starts at (0, 0); as nothing is closed any more,
    every door that was opened stays open.
    """
    step = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
    here, opened, kept = (0, 0), set(), []
    for action in path:
        direction = action.rpartition(" ")[2]
        if direction in step and action.startswith(("open door to ", "move ")):
            there = (here[0] + step[direction][0], here[1] + step[direction][1])
            door = frozenset((here, there))
            if action.startswith("move "):
                here = there
            elif door in opened:
                continue
            else:
                opened.add(door)
        kept.append(action)
    return kept
