"""A teacher that plays fair: it knows what it has read and seen, and what any cook knows about kitchens.

Its only prior knowledge is general and the same in every game and fold: which kinds of food are kept where
(`PLACES`), and that patio and screen doors lead outside. Where things are in *this* house it finds out.
"""

from __future__ import annotations

from grue.games.teachers.atlas import Atlas, Exit
from grue.games.teachers.kitchen import (
    DEVICES,
    USUAL_ROOM,
    Held,
    Recipe,
    capacity,
    needs_cooking,
    read_inventory,
    wanted,
    work_at_hand,
)
from grue.games.twx.recipes import read_recipe
from grue.types import Observation

Place = tuple[str, str]  # room, container
_FRIDGE, _COUNTER = ("kitchen", "fridge"), ("kitchen", "counter")
_GARDEN, _SHELF, _SHOP = ("backyard", "garden"), ("pantry", "shelf"), ("supermarket", "showcase")
# The last words of a food's name -> where such food is kept, likeliest first.
PLACES: dict[str, tuple[Place, ...]] = {
    "bell pepper": (_FRIDGE, _GARDEN),
    "hot pepper": (_COUNTER, _GARDEN),
    "black pepper": (_SHELF, _SHOP),
    **dict.fromkeys(("carrot", "onion", "lettuce", "cilantro", "parsley"), (_FRIDGE, _GARDEN)),
    **dict.fromkeys(("potato", "apple", "banana", "tomato"), (_COUNTER, _GARDEN)),
    **dict.fromkeys(("oil", "flour", "salt", "sugar"), (_SHELF, _SHOP)),
    **dict.fromkeys(("egg", "milk", "water", "wing", "leg", "breast", "chop", "tuna", "cheese"), (_FRIDGE, _SHOP)),
    "knife": (_COUNTER, ("kitchen", "cutlery drawer"), ("kitchen", "kitchen cupboard")),
}
ANYWHERE = (_FRIDGE, _COUNTER, _GARDEN, _SHELF, _SHOP)
OUTSIDE_DOORS = ("patio", "screen")
OUTSIDE_ROOMS = ("backyard", "driveway", "street", "supermarket")


def places_of(thing: str) -> tuple[Place, ...]:
    """Where such a thing is kept, likeliest first."""
    return next((places for ending, places in PLACES.items() if thing.endswith(ending)), ANYWHERE)


class Cook:
    """Reads the cookbook, works with what is at hand, and looks for the rest in likely places."""

    def __init__(self) -> None:
        self._atlas = Atlas()
        self._recipe: Recipe | None = None
        self._last = ""

    def start(self, observation: Observation) -> None:
        """A new game: nothing is known."""
        self._atlas, self._recipe, self._last = Atlas(), None, ""

    def act(self, observation: Observation) -> str:
        self._atlas.update(self._last, observation)
        if self._last == "read cookbook" and "Ingredients:" in observation.text:
            self._recipe = read_recipe(observation.text)
        self._last = self._choose(observation)
        return self._last

    def follow(self, action: str) -> None:
        """`action` has been done instead of what was advised last."""
        self._last = action

    def _choose(self, observation: Observation) -> str:
        actions = observation.actions or ()
        if self._recipe is None:
            return "read cookbook" if "read cookbook" in actions else self._look_for_cookbook()
        held = read_inventory(observation.inventory)
        room_left = capacity(observation.inventory) - len(held)
        at_hand = work_at_hand(self._recipe, held, room_left, actions)
        if at_hand is not None:
            return at_hand
        return self._search(self._recipe, held)

    def _look_for_cookbook(self) -> str:
        """It lies in the kitchen, unless another player has taken it somewhere, or shut it in."""
        if "cookbook" in self._atlas.seen:
            return self._look_for({self._atlas.seen["cookbook"]})
        return self._search_anywhere() if self._atlas.visited("kitchen") else self._look_for({"kitchen"})

    def _search(self, recipe: Recipe, held: Held) -> str:
        """Open something here, or go where there is something to find or to do."""
        places = {thing: self._places_left(thing) for thing in wanted(recipe, held)}
        errands = self._errands(recipe, held, places)
        container = self._worth_opening(recipe, places, errands)
        if container is not None:
            return f"open {container}"
        rooms = errands or {room for left in places.values() for room, _ in left}
        rooms -= {self._atlas.here}
        if rooms:
            return self._look_for(rooms)
        if places:  # everything likely has been searched: open and enter whatever is left
            return self._search_anywhere()
        return self._look_for({"kitchen"})

    def _places_left(self, thing: str) -> list[Place]:
        """Where `thing` can still be, as far as known: one place once it has been seen."""
        atlas = self._atlas
        if thing in atlas.seen:
            return [(atlas.seen[thing], "")]
        left = [
            (room, container)
            for room, container in places_of(thing)
            if not atlas.visited(room) or container in atlas.closed[room]
        ]
        return [place for place in left if place != _SHOP] or left  # the shop is far, and not in every game

    def _errands(self, recipe: Recipe, held: Held, places: dict[str, list[Place]]) -> set[str]:
        """Rooms that must be visited anyway: something is surely there, or must be cooked there."""
        rooms = {left[0][0] for left in places.values() if len({room for room, _ in left}) == 1}
        uncooked = {food: self._cooking_room(recipe, food) for food in recipe if needs_cooking(recipe, held, food)}
        for food, room in uncooked.items():
            # Wait with a trip to the barbeque while more food for it may be found somewhere else.
            more_to_come = any(
                uncooked.get(other) == room and any(place[0] != room for place in left)
                for other, left in places.items()
            )
            if food in held and not more_to_come:
                rooms.add(room)
        return rooms - {self._atlas.here}

    def _cooking_room(self, recipe: Recipe, food: str) -> str:
        """Where this food's device stands, or is likely to stand."""
        cooking = recipe[food][0]
        seen = [self._atlas.devices[device] for device in DEVICES[cooking] if device in self._atlas.devices]
        return seen[0] if seen else USUAL_ROOM[cooking]

    def _worth_opening(self, recipe: Recipe, places: dict[str, list[Place]], errands: set[str]) -> str | None:
        """A closed container here that is likely to hold something, unless an errand may show it elsewhere."""
        here = self._atlas.here
        for thing, left in places.items():
            containers = [container for room, container in left if room == here and container]
            elsewhere = {room for room, _ in left if room != here}
            # For food that must be cooked elsewhere a look here first pays: a second trip would cost more.
            cooked_there = thing in recipe and recipe[thing][0] != "raw" and self._cooking_room(recipe, thing) != here
            may_wait = bool(elsewhere) and elsewhere <= errands and not cooked_there
            if containers and not may_wait:
                return containers[0]
        return None

    def _look_for(self, rooms: set[str]) -> str:
        """One step towards the nearest of `rooms`, or through the exit most likely to lead there."""
        atlas = self._atlas
        distances = atlas.distances()
        known = sorted((distances[room], room) for room in rooms if room in distances)
        if known:
            return atlas.go(atlas.towards(known[0][1]) or "")
        unknown = atlas.unknown_exits()
        if not unknown:  # there is no such room in this house
            return self._search_anywhere()
        sides = {room in OUTSIDE_ROOMS for room in rooms}
        best = min(unknown, key=lambda item: (not any(_leads(item[3], outside) for outside in sides), item[0]))
        return atlas.through(best[1], best[2])

    def _search_anywhere(self) -> str:
        atlas = self._atlas
        if atlas.closed[atlas.here]:
            return f"open {min(atlas.closed[atlas.here])}"
        distances = atlas.distances()
        closed = sorted((distances.get(room, 99), room) for room, names in atlas.closed.items() if names)
        unknown = atlas.unknown_exits()
        if unknown and (not closed or unknown[0][0] <= closed[0][0]):
            return atlas.through(unknown[0][1], unknown[0][2])
        return atlas.go(atlas.towards(closed[0][1]) or "") if closed else "look around"


def _leads(way: Exit, outside: bool) -> bool:
    """Whether this exit looks like one to the outside, or to the inside."""
    if way.room is not None:
        return (way.room in OUTSIDE_ROOMS) == outside
    return any(word in (way.door or "") for word in OUTSIDE_DOORS) == outside
