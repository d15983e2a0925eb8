"""Prompts built anew at every step, as a first notebook builds them: with windows, cuts and retokenised text.

The library appends ids and never rebuilds a prompt. These are the methods that it replaces, each behind one switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from grue.prompts.tokens import Encoder
from grue.prompts.transcript import render_action, render_observation, render_task

Past = Sequence[tuple[str, str]]  # (observation, action) of each step so far


@dataclass(frozen=True, slots=True)
class Style:
    """How a prompt is made. The default is the library's transcript."""

    window: int | None = None  # steps of history kept; None: all
    task_line: bool = True  # False: lost at the one step whose number is the window (`>` written for `>=`)
    retokenise: bool = False  # all of the text is tokenised again at every step, across the boundaries of its pieces
    budget: int | None = None  # tokens; None: no cut
    cut: Literal["oldest", "left", "right"] = "oldest"  # what goes first when the budget is exceeded

    def within(self, tokens: int) -> Style:
        """The same; what it leaves longer than `tokens` loses its oldest steps."""
        short = self.budget is not None and self.budget <= tokens
        return self if short else replace(self, budget=tokens, cut="oldest")


def prompt_ids(style: Style, encoder: Encoder, goal: str, limit: int, past: Past, seen: str) -> list[int]:
    """The ids before the next action. `cut="oldest"` keeps the task and drops whole steps; the others cut ids."""
    steps = list(past if style.window is None else past[max(0, len(past) - style.window) :])
    task = style.task_line or style.window is None or len(past) != style.window
    ids = _ids(style, encoder, goal, limit, steps, seen, task=task)
    if style.budget is None or len(ids) <= style.budget:
        return ids
    if style.cut == "right":
        return ids[: style.budget]
    if style.cut == "left":
        return ids[-style.budget :]
    while steps and len(ids) > style.budget:
        steps = steps[1:]
        ids = _ids(style, encoder, goal, limit, steps, seen, task=task)
    return ids


def _ids(style: Style, encoder: Encoder, goal: str, limit: int, steps: Past, seen: str, *, task: bool) -> list[int]:
    if not style.retokenise:
        ids = list(encoder.task(goal, limit)) if task else []
        for text, action in steps:
            ids += [*encoder.observation(text), *encoder.action(action)]
        return ids + list(encoder.observation(seen))
    parts = [render_task(goal, limit)] if task else []
    parts += [render_observation(text) + render_action(action) for text, action in steps]
    text = "".join([*parts, render_observation(seen)])
    tokenizer = encoder.tokenizer
    first = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    return first + list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
