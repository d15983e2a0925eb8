"""ALFWorld (Shridhar et al. 2021) as text: household tasks in PDDL, played by the engine of TextWorld.

Hosted by a worker process (`native.make_native`): states and plans come from a C++ library. "alfworld" and
"alfworld:FOLDER" play the official data or a folder like it, "alfworld-micro" small homes that are made here.
A game is won when its goal holds; nothing loses it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from grue.errors import GameError
from grue.games.alfworld.data import Household, game_file, load
from grue.games.alfworld.engine import borrow, give_back, logic
from grue.games.alfworld.expert import MOST_STEPS, Handcoded, Seen
from grue.games.engine_game import EngineGame, State
from grue.types import Outcome, Task


class AlfworldGame(EngineGame):
    """Params: task (0: all, 1 to 6: one type, numbered as in ALFWorld's configuration)."""

    def __init__(self, game: str, params: str = "") -> None:
        super().__init__(game, params)
        _first_import()
        self._env: Any = None
        self._home: Household | None = None
        self._seen: list[Seen] = []
        self._expert: Handcoded | None = None

    def gold(self) -> list[str]:
        """A solution from the start: the exploring expert's, or the planner's where that expert fails."""
        task, _ = self._running(over=True)
        other = AlfworldGame(self.game, self.params)
        try:
            path = other._explored(replace(task, limit=MOST_STEPS + 1))
            if not path:
                other.reset(task)
                path = other.plan()
        finally:
            other.close()
        if not path:
            raise GameError(f"no ALFWorld expert knows a solution for {task.game} {task.fold} seed {task.seed}")
        return path

    def plan(self) -> list[str]:
        """The planner's way (Fast Downward) from the current state, which it sees in full; [] when it finds none."""
        self._running()
        engine = self._env.unwrapped
        # what the engine itself does after every move when its policy commands are requested
        return [str(command).strip() for command in engine._pddl_state.replan(engine._entity_infos)]

    def advice(self) -> str:
        """The exploring expert's next action, whoever has played so far; "" when it has none."""
        task, _ = self._running()
        assert self._home is not None
        if self._expert is None:
            self._expert = Handcoded(self._home, task.seed)
        return self._expert.advice(self._seen)

    def _begin(self, task: Task) -> State:
        home = self._home = _home(task)
        self._seen, self._expert = [], None
        self._env = self._env or borrow()
        domain, grammar = logic()
        self._env.load({"pddl_domain": domain, "grammar": grammar, "pddl_problem": home.problem})
        state = self._env.reset()
        # The opening text is a banner, this description, and the task, which an observation holds separately.
        text = str(state["feedback"]).partition("\n\n")[2].partition("Your task is to:")[0]
        return self._shown("", state, text)

    def _act(self, action: str) -> State:
        state, _, _ = self._env.step(action)
        return self._shown(action, state, state["feedback"])

    def _end(self) -> None:
        if self._env is not None:
            give_back(self._env)
            self._env = None

    def _shown(self, action: str, state: Any, text: str) -> State:
        assert self._home is not None
        actions, names = tuple(state["admissible_commands"]), state["_entity_infos"]
        self._seen.append(Seen(action, str(state["feedback"]), actions, state["_facts"], names))
        held = [names[fact.arguments[1].name].name.strip() for fact in state["_facts"] if fact.name == "holds"]
        won = bool(state["won"])
        return State(
            text=" ".join(str(text).split()) if not action else str(text).strip(),
            goal=f"Your task is to: {self._home.goal}.",
            inventory=f"You carry {', '.join(f'a {name}' for name in sorted(held)) or 'nothing'}.",
            actions=actions,
            score=float(won),
            won=won,
            lost=False,
        )

    def _explored(self, task: Task) -> list[str]:
        """The exploring expert's way through `task`, played in this game; [] when it does not win."""
        self.reset(task)
        path: list[str] = []
        while len(path) < MOST_STEPS and (action := self.advice()):
            path.append(action)
            if self.step(action)[2] is Outcome.WON:
                return path
        return []


@cache
def _first_import() -> None:
    """Import the library without the empty ~/.cache/alfworld that this makes: only we decide where data is stored."""
    given = os.environ.get("ALFWORLD_DATA")
    os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()  # a folder that exists
    try:
        import_module("alfworld.info")
    finally:
        del os.environ["ALFWORLD_DATA"]  # the import sets it too
        if given is not None:
            os.environ["ALFWORLD_DATA"] = given


def _home(task: Task) -> Household:
    if task.game == "alfworld-micro":
        from grue.games.alfworld.micro import home

        return home(task)
    return load(game_file(task))
