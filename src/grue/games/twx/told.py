"""A cookingworld game that also reports how many steps a win still takes.

For critics that may know more than the policy does (asymmetric actor-critic: Pinto et al. 2018): the policy never sees
the number, and a game that is evaluated does not need it. Asking the engine for its whole state takes several
milliseconds, so that is done once for each task, and every action is then tracked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from grue.errors import GameError
from grue.games.teachers.kitchen import CUT_VERB
from grue.games.teachers.plan import House, Progress, read, shortest
from grue.games.twx.game import TwxGame
from grue.types import Observation, Outcome, Task

_CUTS = frozenset(CUT_VERB.values())


@dataclass(slots=True)
class Start:
    """The first state of a task, and what is known of the way from its states to a win."""

    house: House
    progress: Progress
    costs: dict[Progress, int | None] = field(default_factory=dict)


Starts = dict[Task, Start]  # shared by the games of a run: tasks return, and so do their states


class Told:
    """`game` with `to_go` in its observations: the steps of a shortest win from here, None where that is not known."""

    def __init__(self, game: TwxGame, starts: Starts) -> None:
        self._game, self._starts = game, starts
        self._start: Start | None = None
        self._progress: Progress | None = None
        self._actions: tuple[str, ...] = ()
        self._served = False  # has the meal been in hand?

    def begin_reset(self, task: Task) -> None:
        self._game.begin_reset(task)

    def reset(self, task: Task) -> Observation:
        observation = self._game.reset(task)
        if task not in self._starts:
            self._starts[task] = Start(*read(self._game.state()))
        self._start = self._starts[task]
        self._progress = self._start.progress
        self._served = False
        return self._told(observation)

    def begin_step(self, action: str) -> None:
        self._game.begin_step(action)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        assert self._start is not None and self._progress is not None
        observation, reward, outcome = self._game.step(action)
        if action in self._actions:
            house, self._progress = followed(self._start.house, self._progress, action)
            if house is not self._start.house:  # something was put down elsewhere: other ways, and other costs
                self._start = Start(house, self._progress)
        return (self._told(observation) if outcome is None else observation), reward, outcome

    def recipe(self, task: Task) -> dict[str, tuple[str, str]]:
        return self._game.recipe(task)

    def close(self) -> None:
        self._game.close()

    def _told(self, observation: Observation) -> Observation:
        assert self._start is not None and self._progress is not None
        self._actions = observation.actions or ()
        if "eat meal" in self._actions:
            self._served = True
            return replace(observation, to_go=1)
        if self._served:  # and put down: the planner knows no ready meals
            return replace(observation, to_go=None)
        costs = self._start.costs
        if self._progress not in costs:
            costs[self._progress] = _cost(self._start.house, self._progress)
        return replace(observation, to_go=costs[self._progress])


def _cost(house: House, progress: Progress) -> int | None:
    try:
        return len(shortest(house, progress))
    except GameError:
        return None  # the planner knows no way: the game itself goes on


def followed(house: House, progress: Progress, action: str) -> tuple[House, Progress]:
    """House and progress after an action that the game lists and that does not lose it."""
    verb, _, rest = action.partition(" ")
    if verb in _CUTS:
        return house, replace(progress, uncut=progress.uncut - {rest})
    if verb == "cook":
        return house, replace(progress, uncooked=progress.uncooked - {rest.rpartition(" in ")[0]})
    if verb == "put":
        return _put_down(house, progress, *rest.rpartition(" in ")[::2])
    change = _CHANGES.get(verb)
    return house, progress if change is None else change(house, progress, rest)


def _put_down(house: House, progress: Progress, thing: str, place: str) -> tuple[House, Progress]:
    around = (place,) if (progress.room, place) in house.lids else ()
    if (progress.room, place) in house.lids - progress.unlidded or thing not in progress.held:
        return house, progress
    moved = replace(house, where=house.where | {thing: (progress.room, around)})
    return moved, replace(progress, held=progress.held - {thing})


def _take(house: House, progress: Progress, thing: str) -> Progress:
    room, around = house.where.get(thing, ("", ()))
    reachable = room == progress.room and all((room, lid) in progress.unlidded for lid in around)
    if thing in progress.held or not reachable or len(progress.held) >= house.capacity:
        return progress
    return replace(progress, held=progress.held | {thing})


def _eat(house: House, progress: Progress, thing: str) -> Progress:
    return replace(progress, held=progress.held - {thing})  # nothing of the recipe, or the game is lost: a hand is free


def _move(house: House, progress: Progress, direction: str) -> Progress:
    behind, has_door = house.exits[progress.room].get(direction, (progress.room, False))
    closed = has_door and frozenset((progress.room, behind)) not in progress.opened
    return progress if closed else replace(progress, room=behind)


def _open(house: House, progress: Progress, what: str) -> Progress:
    if what.startswith("door to "):
        behind, _ = house.exits[progress.room][what.removeprefix("door to ")]
        return replace(progress, opened=progress.opened | {frozenset((progress.room, behind))})
    return replace(progress, unlidded=progress.unlidded | ({(progress.room, what)} & house.lids))


def _close(house: House, progress: Progress, what: str) -> Progress:
    if what.startswith("door to "):
        behind, _ = house.exits[progress.room][what.removeprefix("door to ")]
        return replace(progress, opened=progress.opened - {frozenset((progress.room, behind))})
    return replace(progress, unlidded=progress.unlidded - {(progress.room, what)})


_CHANGES: dict[str, Callable[[House, Progress, str], Progress]] = {
    "take": _take,
    "eat": _eat,
    "move": _move,
    "open": _open,
    "close": _close,
}
