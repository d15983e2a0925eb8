"""Small homes for ALFWorld that need no download: some furniture, some things, one of its six kinds of task.

The goals are those that ALFWorld's own generator uses. A home has at most a dozen pieces of furniture, against
twenty to forty in a real one: these games are for tests, examples and first steps, and say nothing about the benchmark.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from grue.games.alfworld.data import TASK_TYPES, Household
from grue.games.params import values
from grue.types import Task

_OPENS = ("Fridge", "Microwave", "Cabinet", "Drawer")
_FURNITURE = ("Fridge", "Microwave", "SinkBasin", "CounterTop", "DiningTable", "SideTable", "GarbageCan")
_COLD_OR_HOT = ("Apple", "Potato", "Tomato", "Egg", "Bread", "Cup", "Mug", "Plate")
_WASHED = ("Apple", "Potato", "Tomato", "Egg", "Lettuce", "Cup", "Mug", "Plate", "Bowl", "Fork", "Spoon")
_READ = ("Book", "CreditCard", "CellPhone", "Pencil", "Vase")
_THINGS = tuple(sorted({*_COLD_OR_HOT, *_WASHED, *_READ}))
_PLACES = ("CounterTop", "DiningTable", "SideTable", "GarbageCan", "Cabinet", "Drawer", "Fridge")
_FITS = {  # type of task -> things that it can be about
    "pick_and_place_simple": _THINGS,
    "look_at_obj_in_light": _READ,
    "pick_clean_then_place_in_recep": _WASHED,
    "pick_heat_then_place_in_recep": _COLD_OR_HOT,
    "pick_cool_then_place_in_recep": _COLD_OR_HOT,
    "pick_two_obj_and_place": _THINGS,
}
# The domain refers to these types, so every problem must have them.
_NAMED = ("SinkBasin", "Microwave", "Fridge", "Knife", "ButterKnife")


@dataclass(frozen=True, slots=True)
class _Thing:
    kind: str
    identity: str
    place: str  # identity of a piece of furniture


def home(task: Task) -> Household:
    """The home that the seed draws. Folds differ in their seeds only."""
    from alfworld.gen.goal_library import gdict

    draw = random.Random(f"home/{task.seed}")
    kind = values(task.game, task.params)["task"]
    task_type = TASK_TYPES[kind - 1] if kind else draw.choice(TASK_TYPES)
    furniture = _furniture(draw)
    wanted, where = draw.choice(_FITS[task_type]), draw.choice(_PLACES)
    things = _things(draw, furniture, wanted, where, 2 if task_type == "pick_two_obj_and_place" else 1)
    names = {"obj": wanted, "recep": where, "toggle": "DeskLamp", "mrecep": ""}
    goal = gdict[task_type]["pddl"].format(**names).replace("#", "-")  # it also holds the problem's closing parenthesis
    said = draw.choice(gdict[task_type]["templates"])
    looks = task_type == "look_at_obj_in_light"
    targets = {"object_target": wanted, "parent_target": "" if looks else where}
    targets |= {"toggle_target": "DeskLamp" if looks else "", "mrecep_target": ""}
    return Household(
        problem=_problem(furniture, things, goal),
        goal=said.format(**{key: name.lower() for key, name in names.items()}),
        task_type=task_type,
        targets={key: name.lower() for key, name in targets.items()},
    )


def _furniture(draw: random.Random) -> list[tuple[str, str]]:
    """(kind, identity) of each piece."""
    kinds = [*_FURNITURE, *["Cabinet"] * draw.randint(1, 3), *["Drawer"] * draw.randint(1, 2)]
    # the engine takes the part before "_bar_" as the name, and looks for "basin" in the rest
    return [
        (kind, f"sink_bar_{i}_bar_sinkbasin" if kind == "SinkBasin" else f"{kind.lower()}_bar_{i}")
        for i, kind in enumerate(kinds, 1)
    ]


def _things(draw: random.Random, furniture: list[tuple[str, str]], wanted: str, where: str, count: int) -> list[_Thing]:
    """A lamp, `count` of what is wanted (none where it belongs), and some other things anywhere."""
    elsewhere = [identity for kind, identity in furniture if kind not in (where, "Microwave")]
    anywhere = [identity for kind, identity in furniture if kind != "Microwave"]
    things = [_Thing("DeskLamp", "desklamp_bar_1", next(name for kind, name in furniture if kind == "SideTable"))]
    things += [_Thing(wanted, f"{wanted.lower()}_bar_{i}", draw.choice(elsewhere)) for i in range(count)]
    others = draw.sample([kind for kind in _THINGS if kind != wanted], 5)
    return things + [_Thing(kind, f"{kind.lower()}_bar_1", draw.choice(anywhere)) for kind in others]


def _problem(furniture: list[tuple[str, str]], things: list[_Thing], goal: str) -> str:
    """The home in PDDL. Each piece of furniture stands at a place of its own; the player begins at another."""
    at = {identity: f"loc_bar_{i}" for i, (_, identity) in enumerate(furniture, 1)}
    furniture_kinds = sorted({kind for kind, _ in furniture})
    thing_kinds = sorted({thing.kind for thing in things})
    objects = [f"{identity} - receptacle" for _, identity in furniture]
    objects += [f"{thing.identity} - object" for thing in things]
    objects += [f"{place} - location" for place in ["loc_bar_0", *at.values()]]
    objects += [f"{kind}Type - rtype" for kind in {*furniture_kinds, *_NAMED[:3]} - {"Knife", "ButterKnife"}]
    objects += [f"{kind}Type - otype" for kind in {*thing_kinds, *_NAMED[3:]}]
    facts = ["= (total-cost) 0", "atLocation agent1 loc_bar_0"]
    for kind, identity in furniture:
        facts += [f"receptacleType {identity} {kind}Type", f"receptacleAtLocation {identity} {at[identity]}"]
        facts += [f"openable {identity}"] if kind in _OPENS else []
    for thing in things:
        name, kind = thing.identity, thing.kind
        facts += [f"objectType {name} {kind}Type", f"inReceptacle {name} {thing.place}"]
        facts += [f"objectAtLocation {name} {at[thing.place]}"]
        facts += [f"toggleable {name}"] if kind == "DeskLamp" else [f"pickupable {name}"]
        facts += [f"cleanable {name}"] if kind in _WASHED else []
        facts += [f"heatable {name}", f"coolable {name}"] if kind in _COLD_OR_HOT else []
    facts += [f"canContain {place}Type {kind}Type" for place in furniture_kinds for kind in thing_kinds]
    return (
        "(define (problem home) (:domain alfred)\n"
        f"(:objects agent1 - agent\n{_lines(sorted(objects))})\n"
        f"(:init\n{_lines([f'({fact})' for fact in facts])})\n"
        f"{goal}"
    )


def _lines(parts: list[str]) -> str:
    return "\n".join(f"  {part}" for part in parts)
