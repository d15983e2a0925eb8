"""A small game in pure Python: find the key, unlock the chest, take the gem, leave the poison alone.

It keeps the whole contract of `base.Game` with neither Java nor a download, so tests and first steps run
anywhere. Rooms lie in a row from west to east; the seed draws their names and what lies where.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from grue.errors import ConfigError, GameError
from grue.games.base import check_open, check_seed, running
from grue.games.guard import clean_action
from grue.games.params import Params, canonical, values
from grue.games.play import rehearse_in
from grue.types import Observation, Outcome, Task

GOAL = "Find the key, unlock the chest and take the gem. Do not drink the potion."
_ROOMS = ("attic", "cellar", "chapel", "gallery", "hall", "library", "study", "workshop")
_BOXES = ("basket", "cupboard", "drawer", "sack")
_MILESTONES = {"take key": "key", "unlock chest": "unlocked", "open chest": "opened", "take gem": "gem"}
# Milestone -> score once it is reached.
_SCORES = {"key": 0.25, "unlocked": 0.5, "opened": 0.75, "gem": 1.0}


@dataclass(frozen=True, slots=True)
class _House:
    """What the seed decides."""

    rooms: tuple[str, ...]  # from west to east
    boxes: tuple[str, ...]  # one closed box in each room
    start: int
    key: int  # room whose box holds the key
    chest: int
    potion: int


@dataclass(slots=True)
class _State:
    """What the player changes."""

    here: int
    opened: set[int] = field(default_factory=set)  # rooms whose box is open
    done: set[str] = field(default_factory=set)  # milestones reached
    poisoned: bool = False


class ToyGame:
    """The toy behind the contract. Params: "rooms=N"."""

    def __init__(self, params: Params = "") -> None:
        self.game = "toy"
        self.params = canonical("toy", params)
        self._task: Task | None = None
        self._house = _draw_house(0, values("toy", "")["rooms"])
        self._state = _State(0)
        self._steps = 0
        self._outcome: Outcome | None = None
        self._closed = False

    def reset(self, task: Task) -> Observation:
        """Start `task`."""
        check_open(self._closed)
        check_seed(task)
        if task.game != "toy":
            raise ConfigError(f"ToyGame cannot play {task.game!r}", hint="use games.make(task.game)")
        self._house = house(task)
        self._state = _State(self._house.start)
        self._task, self._steps, self._outcome = task, 0, None
        return self._observation(self._describe())

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        """Do one action. Unknown ones cost a step and change nothing."""
        task = running(self._task, self._outcome)
        before = self._score()
        action = clean_action(action)
        text = self._do(action) if action in self._actions() else "You cannot do that."
        self._steps += 1
        if self._state.poisoned:
            self._outcome = Outcome.LOST
        elif "gem" in self._state.done:
            self._outcome = Outcome.WON
        elif self._steps >= task.limit:
            self._outcome = Outcome.LIMIT
        return self._observation(text), self._score() - before, self._outcome

    def gold(self) -> list[str]:
        """A shortest way to win, from the start of the task."""
        if self._task is None:
            raise GameError("gold() needs a task", hint="call reset(task) first")
        house = self._house
        fetch = [*_walk(house.start, house.key), f"open {house.boxes[house.key]}", "take key"]
        return [*fetch, *_walk(house.key, house.chest), "unlock chest", "open chest", "take gem"]

    def plan(self) -> list[str]:
        """A shortest way to win from here."""
        if self._task is None or self._outcome is not None:
            raise GameError("plan() needs a game that is running", hint="call reset(task) first")
        house, state, path = self._house, self._state, []
        here = state.here
        if "key" not in state.done:
            path = _walk(here, house.key)
            path += [f"open {house.boxes[house.key]}"] if house.key not in state.opened else []
            path.append("take key")
            here = house.key
        left = [action for action, done in _MILESTONES.items() if done not in state.done and done != "key"]
        return [*path, *_walk(here, house.chest), *left]

    def rehearse(self, actions: list[str]) -> list[tuple[bool, bool]]:
        """(the game listed the action, the game was won) for each, beside the live episode."""
        if self._task is None:
            raise GameError("rehearse() needs a task", hint="call reset(task) first")
        return rehearse_in(ToyGame(self.params), self._task, actions)

    def close(self) -> None:
        """There is nothing to release, but a closed game stays closed."""
        self._closed, self._task = True, None

    def _actions(self) -> tuple[str, ...]:
        house, state = self._house, self._state
        listed = ["look"]
        listed += ["go west"] if state.here > 0 else []
        listed += ["go east"] if state.here < len(house.rooms) - 1 else []
        listed += [f"open {house.boxes[state.here]}"] if state.here not in state.opened else []
        listed += ["drink potion"] if state.here == house.potion else []
        if state.here == house.key and state.here in state.opened and "key" not in state.done:
            listed.append("take key")
        if state.here == house.chest:
            next_step = {0: "", 1: "unlock chest", 2: "open chest", 3: "take gem", 4: ""}[len(state.done)]
            listed += [next_step] if next_step else []
        return tuple(sorted(listed))

    def _do(self, action: str) -> str:
        house, state = self._house, self._state
        if action.startswith("go "):
            state.here += 1 if action == "go east" else -1
            return self._describe()
        if action == "look":
            return self._describe()
        if action == "drink potion":
            state.poisoned = True
            return "You drink the potion. It was poison."
        if action in _MILESTONES:
            state.done.add(_MILESTONES[action])
            return f"Done: {action}."
        state.opened.add(state.here)
        inside = "There is a key inside." if state.here == house.key else "It is empty."
        return f"You open the {house.boxes[state.here]}. {inside}"

    def _describe(self) -> str:
        house, here = self._house, self._state.here
        parts = [f"You are in the {house.rooms[here]}. There is a {house.boxes[here]}."]
        parts += ["There is a locked chest."] if here == house.chest else []
        parts += ["A potion stands on the floor."] if here == house.potion else []
        parts += [f"To the west is the {house.rooms[here - 1]}."] if here > 0 else []
        parts += [f"To the east is the {house.rooms[here + 1]}."] if here + 1 < len(house.rooms) else []
        return " ".join(parts)

    def _score(self) -> float:
        return max((_SCORES[milestone] for milestone in self._state.done), default=0.0)

    def _observation(self, text: str) -> Observation:
        held = [thing for thing in ("key", "gem") if thing in self._state.done]
        inventory = f"You carry: {', '.join(held) or 'nothing'}."
        return Observation(text, GOAL, inventory, self._actions(), self._score())


def house(task: Task) -> _House:
    """What the seed of `task` drew: equal for equal games."""
    return _draw_house(task.seed, values("toy", task.params)["rooms"])


def _draw_house(seed: int, rooms: int) -> _House:
    draw = random.Random(f"toy/{seed}/{rooms}")
    key, chest = draw.sample(range(rooms), 2)
    return _House(
        rooms=tuple(draw.sample(_ROOMS, rooms)),
        boxes=tuple(draw.choice(_BOXES) for _ in range(rooms)),
        start=draw.randrange(rooms),
        key=key,
        chest=chest,
        potion=draw.randrange(rooms),
    )


def _walk(start: int, end: int) -> list[str]:
    return ["go east" if end > start else "go west"] * abs(end - start)
