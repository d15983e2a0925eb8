"""A teacher that sees everything: the shortest plan from any state that is not yet lost.

What has to be done on the spot (take, cut, cook, open a container that holds something needed) is done at the
first chance: each of these costs its step exactly once in every plan. What is left to decide is the order
in which rooms are visited, and that is searched by cost (Dijkstra).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from grue.errors import GameError
from grue.games.state import Map
from grue.games.teachers.kitchen import CUT_VERB, DEVICES, Recipe
from grue.types import Observation, Task

Door = frozenset[str]  # the two rooms that it joins


@runtime_checkable
class SeesAll(Protocol):
    """A game that shows its whole state and what has been done so far."""

    @property
    def history(self) -> tuple[str, ...]: ...

    def state(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class House:
    """What does not change while a plan is made."""

    recipe: Recipe
    exits: Map
    where: dict[str, tuple[str, tuple[str, ...]]]  # thing -> (room, closed containers around it, outermost first)
    device: dict[str, tuple[str, str]]  # "roasted", "fried", "grilled" -> (device, room) of this house
    surface: dict[str, str]  # room -> something open to put things down on
    capacity: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What changes."""

    room: str
    opened: frozenset[Door]
    unlidded: frozenset[tuple[str, str]]  # (room, container) that has been opened
    held: frozenset[str]
    uncut: frozenset[str]
    uncooked: frozenset[str]

    def wants(self, house: House) -> list[str]:
        missing = [food for food in house.recipe if food not in self.held]
        return missing + (["knife"] if self.uncut and "knife" not in self.held else [])


class Optimal:
    """Plays the shortest plan, and makes a new one when something else was done than it said."""

    name = "optimal"

    def __init__(self, game: SeesAll) -> None:
        self._game = game
        self._plan: list[str] = []
        self._expected: tuple[str, ...] = ()

    def start(self, task: Task, observation: Observation) -> None:
        if task.game != "cookingworld":
            raise GameError(f"teacher 'optimal' cooks only; it cannot play {task.game}", hint="use the gold teacher")
        self._plan = []

    def act(self, observation: Observation) -> str:
        """The next action of a shortest plan from the game's live state; the cookbook is read once, first."""
        history = self._game.history
        if not self._plan or history != self._expected:
            self._plan = self._new_plan(observation, history)
        action = self._plan.pop(0)
        self._expected = (*history, action)
        return action

    def _new_plan(self, observation: Observation, history: tuple[str, ...]) -> list[str]:
        actions = observation.actions or ()
        if "read cookbook" not in history and "read cookbook" in actions:
            return ["read cookbook"]
        if "eat meal" in actions:
            return ["eat meal"]
        return plan(self._game.state())


def plan(state: dict[str, Any]) -> list[str]:
    """Shortest list of actions that wins from `state` (as given by TwxGame.state)."""
    house, progress = _read(state)
    progress, actions = _settle(house, progress)
    queue: list[tuple[int, int, Progress, list[str]]] = [(len(actions), 0, progress, actions)]
    done: set[Progress] = set()
    pushed = 0
    while queue:
        cost, _, progress, actions = heapq.heappop(queue)
        if progress in done:
            continue
        done.add(progress)
        if progress.room == "kitchen" and _is_ready(house, progress):
            return [*actions, "prepare meal", "eat meal"]
        for walk, moved in _walks(house, progress):
            after, work = _settle(house, moved)
            pushed += 1
            heapq.heappush(queue, (cost + len(walk) + len(work), pushed, after, actions + walk + work))
    raise GameError("this cookingworld game cannot be won any more", hint="an ingredient was spoiled or eaten")


def _is_ready(house: House, progress: Progress) -> bool:
    return not progress.uncut and not progress.uncooked and progress.held.issuperset(house.recipe)


def _walks(house: House, progress: Progress) -> Iterator[tuple[list[str], Progress]]:
    """Shortest walks from here to every room where something can be done, in a fixed order."""
    goals = {house.where[thing][0] for thing in progress.wants(house) if thing in house.where}
    goals |= {house.device[house.recipe[food][0]][1] for food in progress.uncooked & progress.held}
    goals = goals - {progress.room} or {"kitchen"} - {progress.room}
    queue: list[tuple[int, str, list[str], frozenset[Door]]] = [(0, progress.room, [], progress.opened)]
    seen: set[str] = set()
    while queue:
        steps, room, walk, opened = heapq.heappop(queue)
        if room in seen:
            continue
        seen.add(room)
        if room in goals:
            yield walk, replace(progress, room=room, opened=opened)
            continue  # whoever walks through a goal stops there
        for direction, (behind, door_open) in house.exits[room].items():
            door = frozenset((room, behind))
            closed = door_open is False and door not in opened
            way = [*([f"open door to {direction}"] if closed else []), f"move {direction}"]
            heapq.heappush(queue, (steps + len(way), behind, walk + way, opened | {door} if closed else opened))


def _settle(house: House, progress: Progress) -> tuple[Progress, list[str]]:
    """Everything useful that can be done in this room, done."""
    actions: list[str] = []
    for thing in progress.wants(house):
        room, around = house.where.get(thing, ("", ()))
        if room != progress.room:
            continue
        if len(progress.held) >= house.capacity:
            progress, dropped = _drop(house, progress)
            actions += dropped
        for container in around:
            if (room, container) not in progress.unlidded:
                actions.append(f"open {container}")
                progress = replace(progress, unlidded=progress.unlidded | {(room, container)})
        actions.append(f"take {thing}")
        progress = replace(progress, held=progress.held | {thing})
    for food, (cooking, cutting) in house.recipe.items():
        if food not in progress.held:
            continue
        if food in progress.uncut and "knife" in progress.held:
            actions.append(f"{CUT_VERB[cutting]} {food}")
            progress = replace(progress, uncut=progress.uncut - {food})
        if food in progress.uncooked and house.device[cooking][1] == progress.room:
            actions.append(f"cook {food} in {house.device[cooking][0]}")
            progress = replace(progress, uncooked=progress.uncooked - {food})
    return progress, actions


def _drop(house: House, progress: Progress) -> tuple[Progress, list[str]]:
    spare = sorted(progress.held - set(house.recipe) - ({"knife"} if progress.uncut else set()))
    if not spare or progress.room not in house.surface:
        return progress, []
    put = f"put {spare[0]} in {house.surface[progress.room]}"
    return replace(progress, held=progress.held - {spare[0]}), [put]


def _read(state: dict[str, Any]) -> tuple[House, Progress]:
    tree = state["tree"]
    recipe: Recipe = {}
    for entry in tree["recipe"]:
        cooking, cutting = entry["preparation"].split(", ")
        recipe[entry["name"]] = (cooking, cutting)
    where: dict[str, tuple[str, tuple[str, ...]]] = {}
    things: dict[str, dict[str, Any]] = dict(tree["inventory"])
    surface: dict[str, str] = {}
    for room, place in tree["locations"].items():
        for name, thing, around in _contents(place, ()):
            if thing["isContainer"] and thing["isOpen"] and not around:
                surface.setdefault(room, name)
            if name not in tree["inventory"]:
                where[name] = (room, around)
                things[name] = thing
    unfit = [food for food in recipe if food not in things]
    if unfit:
        raise GameError(f"this cookingworld game cannot be won any more: {', '.join(unfit)} is gone")
    progress = Progress(
        room=tree["player_location"],
        opened=frozenset(),
        unlidded=frozenset(),
        held=frozenset(tree["inventory"]),
        uncut=frozenset(food for food, (_, cutting) in recipe.items() if _lacks(things[food], cutting, "uncut")),
        uncooked=frozenset(food for food, (cooking, _) in recipe.items() if _lacks(things[food], cooking, "raw")),
    )
    return House(recipe, state["map"], where, _devices(where), surface, state["capacity"]), progress


def _devices(where: dict[str, tuple[str, tuple[str, ...]]]) -> dict[str, tuple[str, str]]:
    """Cooking -> (device, room), for the devices that this house has."""
    return {
        cooking: (name, where[name][0])
        for cooking, names in DEVICES.items()
        for name in reversed(names)
        if name in where
    }


def _lacks(thing: dict[str, Any], preparation: str, none: str) -> bool:
    """Whether the thing still has to be "diced", "fried", ..., by the engine's flag "isDiced", "isFried", ..."""
    return preparation != none and not thing[f"is{preparation.capitalize()}"]


def _contents(place: dict[str, Any], around: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """(name, thing, closed containers around it) of everything in a place, at any depth."""
    for name, thing in place["contents"].items():
        yield name, thing, around
        yield from _contents(thing, (*around, name) if thing["isOpenable"] and not thing["isOpen"] else around)
