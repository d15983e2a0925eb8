"""A cookingworld game that also reports how many steps a win still takes.

For critics that may know more than the policy does (asymmetric actor-critic: Pinto et al. 2018): the policy never sees
the number, and a game that is evaluated does not need it. Asking the engine for its whole state takes several
milliseconds, so that is done once for each task, and every action is then tracked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from grue.errors import GameError
from grue.games import base
from grue.games.base import Game, innermost
from grue.games.teachers.kitchen import CUT_VERB
from grue.games.teachers.plan import House, Standing, read, shortest
from grue.games.twx.game import TwxGame
from grue.types import Observation, Outcome, Task

_CUTS = frozenset(CUT_VERB.values())


@dataclass(slots=True)
class Start:
    """The first state of a task, and what is known of the way from its states to a win."""

    house: House
    standing: Standing
    costs: dict[Standing, int | None] = field(default_factory=dict)


Starts = dict[Task, Start]  # shared by the games of a run: tasks return, and so do their states


class Told:
    """`game` with `to_go` in its observations: the steps of a shortest win from here, None where that is not known."""

    def __init__(self, game: Game, starts: Starts) -> None:
        engine = innermost(game)
        assert isinstance(engine, TwxGame)
        self.inner, self._engine, self._starts = game, engine, starts
        self._start: Start | None = None
        self._standing: Standing | None = None
        self._actions: tuple[str, ...] = ()
        self._served = False  # has the meal been in hand?

    def begin_reset(self, task: Task) -> None:
        base.begin_reset(self.inner, task)

    def reset(self, task: Task) -> Observation:
        observation = self.inner.reset(task)
        if task not in self._starts:
            self._starts[task] = Start(*read(self._engine.state()))
        self._start = self._starts[task]
        self._standing = self._start.standing
        self._served = False
        return self._told(observation)

    def begin_step(self, action: str) -> None:
        base.begin_step(self.inner, action)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        assert self._start is not None and self._standing is not None
        observation, reward, outcome = self.inner.step(action)
        if action in self._actions:
            house, self._standing = followed(self._start.house, self._standing, action)
            if house is not self._start.house:  # something was put down elsewhere: other ways, and other costs
                self._start = Start(house, self._standing)
        return (self._told(observation) if outcome is None else observation), reward, outcome

    def close(self) -> None:
        self.inner.close()

    def _told(self, observation: Observation) -> Observation:
        assert self._start is not None and self._standing is not None
        self._actions = observation.actions or ()
        if "eat meal" in self._actions:
            self._served = True
            return replace(observation, to_go=1)
        if self._served:  # and put down: the planner knows no ready meals
            return replace(observation, to_go=None)
        costs = self._start.costs
        if self._standing not in costs:
            costs[self._standing] = _cost(self._start.house, self._standing)
        return replace(observation, to_go=costs[self._standing])


def _cost(house: House, standing: Standing) -> int | None:
    try:
        return len(shortest(house, standing))
    except GameError:
        return None  # the planner knows no way: the game itself goes on


def followed(house: House, standing: Standing, action: str) -> tuple[House, Standing]:
    """House and standing after an action that the game lists and that does not lose it."""
    verb, _, rest = action.partition(" ")
    if verb in _CUTS:
        return house, replace(standing, uncut=standing.uncut - {rest})
    if verb == "cook":
        return house, replace(standing, uncooked=standing.uncooked - {rest.rpartition(" in ")[0]})
    if verb == "put":
        return _put_down(house, standing, *rest.rpartition(" in ")[::2])
    change = _CHANGES.get(verb)
    return house, standing if change is None else change(house, standing, rest)


def _put_down(house: House, standing: Standing, thing: str, place: str) -> tuple[House, Standing]:
    around = (place,) if (standing.room, place) in house.lids else ()
    if (standing.room, place) in house.lids - standing.unlidded or thing not in standing.held:
        return house, standing
    moved = replace(house, where=house.where | {thing: (standing.room, around)})
    return moved, replace(standing, held=standing.held - {thing})


def _take(house: House, standing: Standing, thing: str) -> Standing:
    room, around = house.where.get(thing, ("", ()))
    reachable = room == standing.room and all((room, lid) in standing.unlidded for lid in around)
    if thing in standing.held or not reachable or len(standing.held) >= house.capacity:
        return standing
    return replace(standing, held=standing.held | {thing})


def _eat(house: House, standing: Standing, thing: str) -> Standing:
    return replace(standing, held=standing.held - {thing})  # nothing of the recipe, or the game is lost: a hand is free


def _move(house: House, standing: Standing, direction: str) -> Standing:
    behind, has_door = house.exits[standing.room].get(direction, (standing.room, False))
    closed = has_door and frozenset((standing.room, behind)) not in standing.opened
    return standing if closed else replace(standing, room=behind)


def _open(house: House, standing: Standing, what: str) -> Standing:
    if what.startswith("door to "):
        behind, _ = house.exits[standing.room][what.removeprefix("door to ")]
        return replace(standing, opened=standing.opened | {frozenset((standing.room, behind))})
    return replace(standing, unlidded=standing.unlidded | ({(standing.room, what)} & house.lids))


def _close(house: House, standing: Standing, what: str) -> Standing:
    if what.startswith("door to "):
        behind, _ = house.exits[standing.room][what.removeprefix("door to ")]
        return replace(standing, opened=standing.opened - {frozenset((standing.room, behind))})
    return replace(standing, unlidded=standing.unlidded - {(standing.room, what)})


_CHANGES: dict[str, Callable[[House, Standing, str], Standing]] = {
    "take": _take,
    "eat": _eat,
    "move": _move,
    "open": _open,
    "close": _close,
}
