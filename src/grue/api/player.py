"""A chat model behind an endpoint, as a player without training: for evaluation only.

It sees what a person would see: the task, the observation, the valid actions. Whatever it replies is one line of text;
a line that is not a valid action is played as it is and counted as invalid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from grue.api.client import ChatClient, spoken
from grue.games.guard import MAX_ACTION
from grue.types import Observation, Task

_MARKS_BEFORE = re.compile(r"^(?:[`*\"'>•\s-]|\d+[.)]\s|action:)+", re.IGNORECASE)
_MARKS_AFTER = "`*\"'.! "

SYSTEM = (
    "You play a text adventure. Each turn you are shown what happened and the valid actions. Reply with exactly one of "
    "the valid actions, copied letter by letter, on one line, and nothing else."
)


class ApiPlayer:
    """One game played through a client: the conversation so far, to which turns are only appended."""

    def __init__(self, client: ChatClient, name: str) -> None:
        self.name, self._client = name, client
        self._messages: list[dict[str, str]] = []
        self._task = ""

    def start(self, task: Task, observation: Observation) -> None:
        """Say what the task is."""
        self._messages = [{"role": "system", "content": SYSTEM}]
        self._task = f"{observation.goal.strip()} You have {task.limit} steps.\n\n"

    def act(self, observation: Observation) -> str:
        """Ask for the next action: a valid one, or the line that came instead."""
        actions = observation.actions or ()
        listed = "\n\nValid actions:\n" + "\n".join(actions) if actions else ""
        self._messages.append({"role": "user", "content": f"{self._task}{observation.text.strip()}{listed}"})
        self._task = ""
        action = parse_reply(self._client.reply(self._messages), actions)
        # some endpoints refuse a conversation with an empty answer in it
        self._messages.append({"role": "assistant", "content": action or "(no answer)"})
        return action


def parse_reply(reply: str, actions: Sequence[str]) -> str:
    """The action that a reply means: its first line that is a valid action, else its first line."""
    lines = [line.strip() for line in spoken(reply).splitlines()]
    for line in lines:
        found = _meant(line, actions)
        if found is not None:
            return found
    plain = (line.strip("`*\"'").lstrip("->• ").strip() for line in lines)
    return next((line for line in plain if line), "")[:MAX_ACTION]


def _meant(line: str, actions: Sequence[str]) -> str | None:
    """The only action that a line can mean, by the strictest reading that finds any: some have marks of their own."""
    readings: list[tuple[Callable[[str], str], Callable[[str], str]]] = [
        (str, str),
        (str.casefold, str.casefold),
        (_plain, str.casefold),
        (_plain, _plain),
    ]
    for of_line, of_action in readings:
        said = of_line(line)
        found = [action for action in actions if of_action(action) == said]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _plain(line: str) -> str:
    """An action without what models put around it: marks of lists, quotes, emphasis, capitals, a last full stop."""
    words = " ".join(line.split())
    return (_MARKS_BEFORE.sub("", words).rstrip(_MARKS_AFTER) or words).casefold()
