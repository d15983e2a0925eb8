"""ALFWorld's handcoded expert, told what the player does: it explores, and knows only what has been seen.

The agent is upstream's (`alfworld.agents.expert`). It is fed a little differently from upstream's own wrapper, in which
it loses its way:

* Since ALFWorld 0.4 things are "moved", while the agent still waits for "put" to know that its hand is empty. Without
  that it never fetches the second of two objects.
* A list of furniture seen from the middle of the room is taken for a list of objects, unless it is the opening text.
* It draws from Python's global random generator: here each step has its own, and the global one is restored.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from grue.games.alfworld.data import Household

MOST_STEPS = 200  # after which the expert counts as lost, as in upstream
_FROM_THE_MIDDLE = "You are in the middle of a room."


@dataclass(frozen=True, slots=True)
class Seen:
    """One step as the engine showed it. The first has the action ""."""

    action: str
    text: str
    actions: tuple[str, ...]
    facts: Sequence[Any]  # the engine's propositions
    names: dict[str, Any]  # id -> the engine's entity, which has the name


class Handcoded:
    """The expert in one game. It can be asked at any time, whoever chose the actions so far."""

    def __init__(self, home: Household, seed: int) -> None:
        from alfworld.agents.expert import HandCodedTWAgent

        self._seed = seed
        self._agent = HandCodedTWAgent()
        params = home.targets | {"task_type": home.task_type}
        self._agent.task_params = params
        # it is fed every step of the episode, also those others chose, so a long episode is no failure of its
        self._agent.policy = self._agent.get_task_policy(params)(params, max_steps=10**6)
        self._fed = 0
        self._advice = ""
        self._intro = ""

    def advice(self, seen: Sequence[Seen]) -> str:
        """What it would do after the last of `seen`, all steps of the episode; "" when it is stuck."""
        for number in range(self._fed, len(seen)):
            before = seen[number - 1].actions if number else ()
            self._advice = self._act(seen[number], before, number)
        self._fed = len(seen)
        return self._advice

    def _act(self, seen: Seen, before: tuple[str, ...], number: int) -> str:
        from alfworld.agents.expert import HandCodedAgentFailed, HandCodedAgentTimeout

        self._intro = self._intro or seen.text
        text = self._intro if seen.text.startswith(_FROM_THE_MIDDLE) else seen.text
        did = seen.action if seen.action in before else "look"  # an invalid action did nothing
        if did.startswith("move "):
            did = f"put {did.removeprefix('move ')}"
        facts = [
            SimpleNamespace(name=fact.name, names=[seen.names[variable.name].name for variable in fact.arguments])
            for fact in seen.facts
        ]
        state = {"feedback": text, "facts": facts, "admissible_commands": list(seen.actions)}
        dice = random.getstate()
        random.seed(f"{self._seed}/{number}")
        try:
            action = str(self._agent.act(state, 0, False, did))
        except (HandCodedAgentTimeout, HandCodedAgentFailed, LookupError):
            return ""
        finally:
            random.setstate(dice)
        return action if action in seen.actions else "look"
