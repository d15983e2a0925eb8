"""The transcript as text: a task header, then observations and actions in turn. Append-only.

You are hungry! ... You have 16 steps.
You are in the kitchen. ...
> open fridge
You open the fridge. It's empty inside.
>
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_TRAILING = re.compile(r"[ \t]+(?=\n|$)")
_BLANK = re.compile(r"\n{2,}")
ACT, THINK = ">", "Thought:"  # after these the policy writes its action, or its thought
ASK = {  # a chat model must be told how to answer; in a plain transcript the marker does that
    ACT: "Answer with your next action and nothing else.\n",
    THINK: "Answer with one line of thought, then with your next action.\n",
}
_DROPPED = ("Cc", "Cf", "Mn", "Me")  # controls, invisible signs, accents
_ENDS = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")  # other ends of a line, which tokenizers may read as \n


def tidy(text: str) -> str:
    """Trailing spaces and blank lines removed; everything else as the game printed it."""
    return _BLANK.sub("\n", _TRAILING.sub("", text)).strip("\n")


def as_said(text: str) -> str:
    """Tidied game text in which no line can be mistaken for the policy's own."""
    lines = tidy(_ENDS.sub("\n", text)).split("\n")
    return "\n".join(f" {line}" if _is_forged(line) else line for line in lines)


def _is_forged(line: str) -> bool:
    """Does it begin as the policy's do, for any tokenizer?

    Some read wide and other forms of a character as the plain one, drop accents and invisible signs, or ignore case.
    """
    if not (line.isascii() and line.isprintable()):
        signs = unicodedata.normalize("NFKD", line)  # "≯" is then ">" and a sign that is dropped
        line = "".join(sign for sign in signs if unicodedata.category(sign) not in _DROPPED)
    return line[: len(THINK)].lower().startswith((ACT, THINK.lower()))


def render_task(goal: str, limit: int) -> str:
    """The header: what to do and how many steps there are, since the limit is part of the task."""
    return f"{as_said(goal)} You have {limit} steps.\n"


def render_scene(text: str, actions: Sequence[str] | None = None) -> str:
    """An observation and, if given, the valid actions."""
    return as_said(text) if actions is None else f"{as_said(text)}\nValid actions: {', '.join(map(one_line, actions))}"


def render_observation(text: str, actions: Sequence[str] | None = None, marker: str = ACT) -> str:
    """An observation up to and including the marker after which the policy writes."""
    return f"{render_scene(text, actions)}\n{marker}"


def render_action(action: str) -> str:
    """An action as the policy writes it: leading space, one line, closing newline."""
    return f" {one_line(action)}\n"


def one_line(action: str) -> str:
    """An action cannot end early, whatever the game calls it."""
    return _ENDS.sub("\n", action).replace("\n", " ")
