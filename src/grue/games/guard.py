"""Action hygiene: whatever a model writes reaches a game as one short, clean line."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from grue.errors import GameError

MAX_ACTION = 300  # characters; the longest known are ScienceWorld's, of 104
NO_MOVE = "That is not a move of this game."
ONE_MOVE = "One move at a time, please."

# Commands to an interpreter, not to the world: they end the game, wait for an answer, write files, or undo a turn
# without the turn counter noticing.
_META = frozenset(("q", "quit", "restart", "restore", "save", "undo", "oops", "script", "unscript", "transcript"))
_META |= {"verify", "recording", "replay", "die"}  # die: from Inform's library, which asks for confirmation
_MANY_MOVES = re.compile(r"[.;!?]\s*\S|\bthen\b")


def clean_action(action: str) -> str:
    """`action` as one line of at most MAX_ACTION characters that any engine can take.

    Runs of white space become one space; control characters and lone surrogates become "?" (dropping them
    could turn nonsense into a valid action). Only a value that is not a str raises: that is a bug in the
    caller, while bad text is a move like any other and costs its step.
    """
    if not isinstance(action, str):
        raise GameError(f"an action must be a str, not {type(action).__name__}", hint="decode the model's output first")
    return _cleaned(action)


@lru_cache(maxsize=4_000)
def _cleaned(action: str) -> str:
    line = " ".join(action[: 20 * MAX_ACTION].split())
    if not line.isprintable():
        line = "".join(char if _is_clean(char) else "?" for char in line)
    return line[:MAX_ACTION].rstrip()


def as_played(action: str, listed: Collection[str] | None) -> str:
    """`action` itself where the game lists it, however long or odd; otherwise its `clean_action`.

    As the game spells it, where that lists it but for capital letters: parsers take some words in small letters only.
    """
    if listed and action in listed:
        return action
    clean = clean_action(action)
    spelled = [known for known in listed or () if known.casefold() == clean.casefold()]
    return spelled[0] if len(spelled) == 1 else clean


def refusal(action: str, *, commas: bool = False) -> str:
    """The answer to give instead of passing a clean action on to a parser; "" for one that may pass.

    Refused: several moves in one line ("take lamp. go north", "take lamp then go north"; with a comma too, unless
    `commas`), which parsers accept, and commands to the interpreter such as "quit".
    """
    words = action.lower().split()
    if not words or words[0].strip(".!?,:;\"'") in _META or words[0].startswith(("$", "#", "/", "*", "@")):
        return NO_MOVE
    if _MANY_MOVES.search(action.lower()) or (not commas and "," in action):
        return ONE_MOVE
    return ""


def _is_clean(char: str) -> bool:
    code = ord(char)
    is_control = code < 32 or 127 <= code < 160
    is_surrogate = 0xD800 <= code <= 0xDFFF
    return not (is_control or is_surrogate)
