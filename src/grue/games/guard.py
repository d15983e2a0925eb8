"""Action hygiene: whatever a model writes reaches a game as one short, clean line."""

from __future__ import annotations

from grue.errors import GameError

MAX_ACTION = 100  # characters


def clean_action(action: str) -> str:
    """`action` as one line of at most MAX_ACTION characters that any engine can take.

    Runs of white space become one space; control characters and lone surrogates become "?" (dropping them
    could turn nonsense into a valid action). Only a value that is not a str raises: that is a bug of the
    caller, while bad text is a move like any other and costs its step.
    """
    if not isinstance(action, str):
        raise GameError(f"an action must be a str, not {type(action).__name__}", hint="decode the model's output first")
    line = " ".join(action[: 20 * MAX_ACTION].split())
    line = "".join(char if _is_clean(char) else "?" for char in line)
    return line[:MAX_ACTION].rstrip()


def _is_clean(char: str) -> bool:
    code = ord(char)
    is_control = code < 32 or 127 <= code < 160
    is_surrogate = 0xD800 <= code <= 0xDFFF
    return not (is_control or is_surrogate)
