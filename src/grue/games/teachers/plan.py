"""Shortest plans in cookingworld, made by a planner that sees everything.

What has to be done on the spot (take, cut, cook, open a container that holds something needed) is done at the
first chance: each of these costs its step exactly once in every plan. What is left to decide is the order
in which rooms are visited, and that is searched by cost (Dijkstra).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from grue.errors import GameError
from grue.games.teachers.kitchen import CUT_VERB, DEVICES, Recipe
from grue.games.twx.state import Map

Door = frozenset[str]  # the two rooms that it joins
Lid = tuple[str, str]  # (room, container that can be closed)
Exits = dict[str, dict[str, tuple[str, bool]]]  # room -> direction -> (room beyond, whether there is a door)


@dataclass(frozen=True, slots=True)
class House:
    """What does not change while a plan is made."""

    recipe: Recipe
    exits: Exits
    where: dict[str, tuple[str, tuple[str, ...]]]  # thing -> (room, lids over it, open or not, outermost first)
    device: dict[str, tuple[str, str]]  # "roasted", "fried", "grilled" -> (device, room) of this house
    surface: dict[str, str]  # room -> something open to put things down on
    lids: frozenset[Lid]
    capacity: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What changes."""

    room: str
    opened: frozenset[Door]  # that are open
    unlidded: frozenset[Lid]  # that are open
    held: frozenset[str]
    uncut: frozenset[str]
    uncooked: frozenset[str]

    def wants(self, house: House) -> list[str]:
        missing = [food for food in house.recipe if food not in self.held]
        return missing + (["knife"] if self.uncut and "knife" not in self.held else [])


def plan(state: dict[str, Any]) -> list[str]:
    """Shortest list of actions that wins from `state` (as given by TwxGame.state)."""
    return shortest(*read(state))


def shortest(house: House, standing: Standing) -> list[str]:
    """Shortest list of actions that wins. GameError where nothing wins any more."""
    standing, actions = _settle(house, standing)
    queue: list[tuple[int, int, Standing, list[str]]] = [(len(actions), 0, standing, actions)]
    done: set[Standing] = set()
    pushed = 0
    while queue:
        cost, _, standing, actions = heapq.heappop(queue)
        if standing in done:
            continue
        done.add(standing)
        if standing.room == "kitchen" and _is_ready(house, standing):
            return [*actions, "prepare meal", "eat meal"]
        for walk, moved in _walks(house, standing):
            after, work = _settle(house, moved)
            pushed += 1
            heapq.heappush(queue, (cost + len(walk) + len(work), pushed, after, actions + walk + work))
    raise GameError("this cookingworld game cannot be won any more", hint="an ingredient was spoiled or eaten")


def _is_ready(house: House, standing: Standing) -> bool:
    return not standing.uncut and not standing.uncooked and standing.held.issuperset(house.recipe)


def _walks(house: House, standing: Standing) -> Iterator[tuple[list[str], Standing]]:
    """Shortest walks from here to every room where something can be done, in a fixed order."""
    goals = {house.where[thing][0] for thing in standing.wants(house) if thing in house.where}
    goals |= {house.device[house.recipe[food][0]][1] for food in standing.uncooked & standing.held}
    goals = goals - {standing.room} or {"kitchen"} - {standing.room}
    queue: list[tuple[int, str, list[str], frozenset[Door]]] = [(0, standing.room, [], standing.opened)]
    seen: set[str] = set()
    while queue:
        steps, room, walk, opened = heapq.heappop(queue)
        if room in seen:
            continue
        seen.add(room)
        if room in goals:
            yield walk, replace(standing, room=room, opened=opened)
            continue  # a walk that reaches a goal stops there
        for direction, (behind, has_door) in house.exits[room].items():
            door = frozenset((room, behind))
            closed = has_door and door not in opened
            way = [*([f"open door to {direction}"] if closed else []), f"move {direction}"]
            heapq.heappush(queue, (steps + len(way), behind, walk + way, opened | {door} if closed else opened))


def _settle(house: House, standing: Standing) -> tuple[Standing, list[str]]:
    """Everything useful that can be done in this room, done."""
    actions: list[str] = []
    for thing in standing.wants(house):
        room, around = house.where.get(thing, ("", ()))
        if room != standing.room:
            continue
        if len(standing.held) >= house.capacity:
            standing, dropped = _drop(house, standing)
            actions += dropped
        for container in around:  # outermost first
            if (room, container) not in standing.unlidded:
                actions.append(f"open {container}")
                standing = replace(standing, unlidded=standing.unlidded | {(room, container)})
        actions.append(f"take {thing}")
        standing = replace(standing, held=standing.held | {thing})
    for food, (cooking, cutting) in house.recipe.items():
        if food not in standing.held:
            continue
        if food in standing.uncut and "knife" in standing.held:
            actions.append(f"{CUT_VERB[cutting]} {food}")
            standing = replace(standing, uncut=standing.uncut - {food})
        if food in standing.uncooked and house.device[cooking][1] == standing.room:
            actions.append(f"cook {food} in {house.device[cooking][0]}")
            standing = replace(standing, uncooked=standing.uncooked - {food})
    return standing, actions


def _drop(house: House, standing: Standing) -> tuple[Standing, list[str]]:
    spare = sorted(standing.held - set(house.recipe) - ({"knife"} if standing.uncut else set()))
    if not spare or standing.room not in house.surface:
        return standing, []
    put = f"put {spare[0]} in {house.surface[standing.room]}"
    return replace(standing, held=standing.held - {spare[0]}), [put]


def read(state: dict[str, Any]) -> tuple[House, Standing]:
    """House and standing of a live game, from TwxGame.state."""
    tree = state["tree"]
    recipe: Recipe = {}
    for entry in tree["recipe"]:
        cooking, cutting = entry["preparation"].split(", ")
        recipe[entry["name"]] = (cooking, cutting)
    where: dict[str, tuple[str, tuple[str, ...]]] = {}
    things: dict[str, dict[str, Any]] = dict(tree["inventory"])
    surface: dict[str, str] = {}
    lids: set[Lid] = set()
    unlidded: set[Lid] = set()
    for room, place in tree["locations"].items():
        for name, thing, around in _contents(place, ()):
            if thing["isContainer"] and thing["isOpen"] and not around:
                surface.setdefault(room, name)
            if thing["isOpenable"]:
                lids.add((room, name))
                unlidded |= {(room, name)} if thing["isOpen"] else set()
            if name not in tree["inventory"]:
                where[name] = (room, around)
                things[name] = thing
    unfit = [food for food in recipe if food not in things]
    if unfit:
        raise GameError(f"this cookingworld game cannot be won any more: {', '.join(unfit)} is gone")
    exits, opened = _exits(state["map"])
    standing = Standing(
        room=tree["player_location"],
        opened=opened,
        unlidded=frozenset(unlidded),
        held=frozenset(tree["inventory"]),
        uncut=frozenset(food for food, (_, cutting) in recipe.items() if _lacks(things[food], cutting, "uncut")),
        uncooked=frozenset(food for food, (cooking, _) in recipe.items() if _lacks(things[food], cooking, "raw")),
    )
    house = House(recipe, exits, where, _devices(where), surface, frozenset(lids), state["capacity"])
    return house, standing


def _exits(rooms: Map) -> tuple[Exits, frozenset[Door]]:
    """(the exits, the doors that are open)."""
    exits = {
        room: {direction: (behind, door is not None) for direction, (behind, door) in ways.items()}
        for room, ways in rooms.items()
    }
    open_doors = {frozenset((room, behind)) for room, ways in rooms.items() for behind, door in ways.values() if door}
    return exits, frozenset(open_doors)


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
    """(name, thing, lids over it) of everything in a place, at any depth."""
    for name, thing in place["contents"].items():
        yield name, thing, around
        yield from _contents(thing, (*around, name) if thing["isOpenable"] else around)
