"""ScienceWorld (Wang et al. 2022): thirty tasks of school science, with its own splits.

Hosted by a worker process (`native.make_native`). The seats of a process share one Java process, whose heap is capped:
uncapped it grows to gigabytes. The engine has one source of random numbers, one counter of objects and one list of
simplifications for all games in it, so every call gets those of its game (`_alone`). A game is won at a score of 100
only; the engine's "completed" also means lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from typing import Any

import orjson

from grue.errors import GameError
from grue.games.base import fold_range
from grue.games.engine_game import EngineGame, State
from grue.games.params import values
from grue.types import Task

HEAP = "1g"
# The engine iterates over sets in the order of hashes that Java draws anew each time. With one hash for all objects a
# game prints the same texts whenever, and wherever, it is played
SAME_ORDER = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
# Scala objects, of which a Java process has one each
RANDOM, COUNTER = "scala.util.Random$", "util.UniqueIdentifier$"
SIMPLIFIER = "main.scala.scienceworld.runtime.SimplifierProcessor$"
PATHS = "scienceworld.goldagent.PathFinder$"
_SYNONYMS = {"examine": "look at", "drop": "put down"}  # of verbs in solutions -> as they are listed
_LISTS = {
    "train": "getVariationsTrain",
    "pretrain": "getVariationsTrain",
    "dev": "getVariationsDev",
    "test": "getVariationsTest",
}


class ScienceWorldGame(EngineGame):
    """Params: task (0 to 29; -1: all), easy (1: simplifications), validActions (1: list them, which is slow)."""

    def __init__(self, game: str, params: str = "") -> None:
        super().__init__(game, params)
        self._values = values(self.game, self.params)
        self._server: Any = None
        self._variant = ("", 0)  # the engine's task, its variation
        self._moves = self._objects = 0  # made, and numbered by the engine, in this episode
        self._simplified: Any = None  # the engine's simplifications in this episode

    def gold(self) -> list[str]:
        """The engine's solution from the start of the task. The live game is not touched.

        Steps that find done what they want to do, mostly opening an open door, are left out if that still wins. They
        are not listed, so a policy that chooses among listed actions would learn to go on from what it never sees.
        """
        task, _ = self._running(over=True)
        known = _shared(PATHS).precomputedExhaustivePaths()
        before = known.size()
        path = self._solution()
        if known.size() > before:  # paths that are not looked up but found draw random numbers: it would not come again
            path = self._solution()
        if not path or path[0].startswith("ERROR"):
            name, variation = self._variant
            raise GameError(f"ScienceWorld has no solution for {name} {variation}: {path[:1]}")
        shorter = [action for action, state in zip(path, self._tried(task, path), strict=True) if not _idle(state)]
        if len(shorter) < len(path) and any(state.won for state in self._tried(task, shorter)):
            return shorter
        return path

    def _tried(self, task: Task, path: Sequence[str]) -> list[State]:
        """What each step of `path` leads to, in a game beside the live one that lists no actions, which takes time."""
        beside = replace(task, params=f"task={self._values['task']},easy={self._values['easy']}")
        game = ScienceWorldGame(beside.game, beside.params)
        game._begin(beside)
        return [game._act(action) for action in path]

    def _solution(self) -> list[str]:
        server = _new_server()
        server.load(*self._variant, self._easy(), True)
        return [str(action) for action in server.getGoldActionSequence()]

    def equivalent(self, action: str, then: Sequence[str] = ()) -> str:
        """The listed action that does the same to the same objects; `action` itself if there is not exactly one.

        Solutions say "examine lead" and "use thermometer in inventory on lead" where "look at lead" and "use
        thermometer on lead" are listed. What follows (`then`) does not matter: the engine sees no difference.
        """
        _, state = self._running()
        if state.actions is None or action in state.actions:
            return action
        server = self._server
        with self._alone("actions"):
            every = orjson.loads(str(server.getValidActionObjectCombinationsJSON()))["validActions"]
            known = orjson.loads(str(server.getAllObjectIdsTypesReferentsLUTJSON()))
            templates = orjson.loads(str(server.getPossibleActionsWithIDs()))
        names = {int(number): [name.lower() for name in each["referents"]] for number, each in known.items()}
        read = [(each["template_id"], named) for each in templates if (named := _named(action, each["action_example"]))]
        same = {
            listed["action"]
            for listed in every
            for template, named in read
            if template == listed["template_id"] and _fit(named, [names.get(i, []) for i in listed["obj_ids"]])
        }
        return same.pop() if len(same) == 1 else action

    def _begin(self, task: Task) -> State:
        self._values = values(task.game, task.params)
        self._variant, self._moves, self._objects, self._simplified = self._variation(task), 0, 0, None
        self._server = self._server or _new_server()
        with self._alone("begin"):
            self._server.load(*self._variant, self._easy(), False)
            self._server.reset()
            self._simplified = _shared(SIMPLIFIER).simplifications().clone()
            # The official environment begins with this move too. The engine counts the first points only after one.
            text = str(self._server.step("look around"))
        return self._shown(text)

    def _act(self, action: str) -> State:
        self._moves += 1
        with self._alone("act"):
            text = str(self._server.step(action))
        return self._shown(text)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Let the engine do something as if no other game were in its Java, and as it does it in every replay."""
        key = f"{self._variant}/{self._moves}/{what}"
        _shared(RANDOM).setSeed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest()))
        getattr(_shared(COUNTER), "count_$eq")(self._objects)
        simplifications = _shared(SIMPLIFIER).simplifications()
        simplifications.clear()
        if self._simplified is not None:
            getattr(simplifications, "$plus$plus$eq")(self._simplified)
        yield
        self._objects = int(_shared(COUNTER).count())

    def _end(self) -> None:
        self._server = None

    def _easy(self) -> str:
        return "easy" if self._values["easy"] else ""

    def _variation(self, task: Task) -> tuple[str, int]:
        """(the engine's task, its variation) that a seed means. Seeds past the end of a split start over."""
        place = task.seed - fold_range(task.fold).start
        return _variations(_LISTS[task.fold], self._values["task"], place)

    def _shown(self, text: str) -> State:
        server = self._server
        points = round(100 * float(server.getScore()))
        won = points >= 100
        actions: tuple[str, ...] | None = None
        if self._values["validActions"]:
            with self._alone("actions"):
                actions = tuple(str(action) for action in server.getValidActionObjectCombinations())
        return State(
            text=text.strip() or "Nothing happens.",
            goal=str(server.freeActionTaskDesc()).strip(),
            inventory=str(server.freeActionInventory()).strip(),
            actions=actions,
            score=max(-1.0, min(1.0, points / 100)),
            won=won,
            lost=not won and (points < 0 or bool(server.getCompleted())),
        )


def _idle(state: State) -> bool:
    return re.match(r"The .* is already ", state.text) is not None


def _named(action: str, template: str) -> tuple[str, ...]:
    """The names that `action` has in place of each OBJ of `template`, in lower case; none if it reads otherwise."""
    verb, _, rest = action.lower().partition(" ")
    pattern = re.escape(template).replace("OBJ", "(.+?)")
    found = re.fullmatch(pattern, f"{_SYNONYMS.get(verb, verb)} {rest}")
    return tuple(name.removesuffix(" in inventory") for name in found.groups()) if found else ()


def _fit(named: Sequence[str], names: Sequence[Sequence[str]]) -> bool:
    """Is what was `named` in this order the things that have these names?"""
    return len(named) == len(names) and all(name in known for name, known in zip(named, names, strict=True))


@cache
def _gateway() -> Any:
    """This process's Java, which ends with it: py4j kills it when its input closes."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from scienceworld.constants import BASEPATH, JAR_PATH

    from grue.games.java import ENGLISH, find_java

    port, token = launch_gateway(
        classpath=JAR_PATH,
        cwd=BASEPATH,  # the engine reads its files by relative path
        die_on_exit=True,
        enable_auth=True,
        java_path=find_java(None),
        javaopts=[f"-Xmx{HEAP}", "-XX:+UseSerialGC", *SAME_ORDER, *ENGLISH],
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))


def _new_server() -> Any:
    return _gateway().jvm.scienceworld.runtime.pythonapi.PythonInterface()


@cache
def _shared(name: str) -> Any:
    """A Scala object by its class."""
    found = _gateway().jvm
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "MODULE$")


@cache
def _tasks() -> tuple[str, ...]:
    """The names of the thirty tasks, in the order of their ids ("1-1" to "10-2")."""
    from scienceworld.constants import ID2TASK

    def number(key: str) -> tuple[int, ...]:
        return tuple(int(part) for part in key.split("-"))

    return tuple(ID2TASK[key] for key in sorted(ID2TASK, key=number))


@cache
def _split(split: str, task: int) -> tuple[tuple[str, int], ...]:
    """The variations of a task in one of the official splits; of all tasks in turn where `task` is -1."""
    if task < 0:
        rows = zip_longest(*(_split(split, each) for each in range(len(_tasks()))))
        return tuple(entry for row in rows for entry in row if entry is not None)
    name, server = _tasks()[task], _new_server()
    server.load(name, 0, "", False)
    return tuple((name, int(variation)) for variation in getattr(server, split)())


def _variations(split: str, task: int, place: int) -> tuple[str, int]:
    entries = _split(split, task)
    return entries[place % len(entries)]
