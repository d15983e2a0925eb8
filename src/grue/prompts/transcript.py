"""The transcript as text: a task header, then observations and actions in turn. Append-only.

You are hungry! ... You have 16 steps.
You are in the kitchen. ...
> open fridge
You open the fridge. It's empty inside.
>
"""

from __future__ import annotations

import re

_TRAILING = re.compile(r"[ \t]+(?=\n|$)")
_BLANK = re.compile(r"\n{2,}")


def tidy(text: str) -> str:
    """Trailing spaces and blank lines removed; everything else as the game printed it."""
    return _BLANK.sub("\n", _TRAILING.sub("", text)).strip("\n")


def render_task(goal: str, limit: int) -> str:
    """The header: what to do and how many steps there are, since the limit is part of the task."""
    return f"{tidy(goal)} You have {limit} steps.\n"


def render_observation(text: str) -> str:
    """An observation up to and including the marker after which the policy writes its action."""
    return f"{tidy(text)}\n>"


def render_action(action: str) -> str:
    """An action as the policy writes it: leading space, closing newline."""
    return f" {action}\n"
