"""Valid actions for adventures that list none: candidates are tried, and kept if they change the world.

Candidates are templates filled with the nouns of the game's dictionary that occur in what is seen and carried, as in
Jericho (Hausknecht et al. 2020, section 4), but without a language model or knowledge of the game. Each one is done
and undone. A change counts only if doing nothing for a turn does not cause it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

ALWAYS = ("look", "inventory", "wait")
_DIRECTIONS = ("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest")
_WAYS = (*_DIRECTIONS, "up", "down", "in", "out")
# More common verbs first: where two actions have the same effect, the earlier one is listed.
_ONE: tuple[str, ...] = (
    *("open", "close", "turn on", "turn off", "read", "move", "push", "pull", "turn", "climb", "enter"),
    *("eat", "drink", "wear", "remove", "light", "wave", "rub", "ring", "wind", "raise", "lower", "attack"),
    "search",
)
_CARRIED_TO_SEEN = ("put {} in {}", "put {} on {}", "give {} to {}", "throw {} at {}", "tie {} to {}")
_SEEN_WITH_CARRIED = ("unlock {} with {}", "attack {} with {}", "cut {} with {}", "dig {} with {}")
MAX_NOUNS = 12
_WORD = re.compile(r"[a-z][a-z'-]+")
_NO_NOUNS = frozenset((*_WAYS, *ALWAYS, "the", "you", "there", "here", "all", "everything", "and", "it", "is", "of"))
_NOT_UNDERSTOOD = re.compile(
    r"don't (know|understand|recogni[sz]e)|can't see|not a verb|verb i recogni[sz]e|no verb|isn't here|used the word|"
    r"beg (your )?pardon|that's not|don't have|doesn't make sense|there was no|what do you want|didn't understand",
    re.IGNORECASE,
)


class Trial(NamedTuple):
    """The result of an action that was then undone."""

    text: str
    world: bytes  # attributes and places of all things
    points: int
    over: bool

    @property
    def effect(self) -> tuple[bytes, int, bool]:
        """What is compared: actions with the same effect do the same."""
        return self.world, self.points, self.over


class Words(NamedTuple):
    """A story's dictionary: words are cut to the length that its parser compares."""

    nouns: frozenset[str]
    length: int

    def in_text(self, text: str) -> list[str]:
        """The nouns in `text`, in order, each once."""
        found = (word for word in _WORD.findall(text.lower()) if word[: self.length] in self.nouns)
        return [word for word in dict.fromkeys(found) if word not in _NO_NOUNS]


def words(dictionary: Iterable[tuple[str, bool]], version: int) -> Words:
    """From (word, is it a noun). Of a dictionary that does not mark its nouns, all words count."""
    entries = list(dictionary)
    marked = [word for word, is_noun in entries if is_noun]
    return Words(frozenset(marked or [word for word, _ in entries]), 6 if version <= 3 else 9)


def valid_actions(seen: str, carried: str, known: Words, attempt: Callable[[str], Trial]) -> tuple[str, ...]:
    """The actions that change something now, sorted, and those that only look.

    `seen` and `carried` are what "look" (with the last reply) and "inventory" print; `attempt` does an action and
    undoes it. A few hundred attempts.
    """
    idle = attempt("wait")
    before = attempt("inventory")
    nothing = {(before.world, before.points), (idle.world, idle.points)}
    effects: dict[tuple[bytes, int, bool], str] = {}
    held = known.in_text(carried)[:MAX_NOUNS]
    near = [noun for noun in known.in_text(seen) if noun not in held][:MAX_NOUNS]
    examined = [noun for noun in (*near, *held) if not _NOT_UNDERSTOOD.search(attempt(f"examine {noun}").text)]
    held = [noun for noun in held if noun in examined]
    near = [noun for noun in near if noun in examined]
    for action in _candidates(near, held):
        trial = attempt(action)
        if (trial.world, trial.points) not in nothing or trial.over:
            effects.setdefault(trial.effect, action)
    looking = [f"examine {noun}" for noun in examined]
    return tuple(sorted({*ALWAYS, *looking, *effects.values()}))


def _candidates(near: Sequence[str], held: Sequence[str]) -> Iterable[str]:
    yield from _WAYS
    yield from (f"take {noun}" for noun in near)
    yield from (f"drop {noun}" for noun in held)
    for noun in (*near, *held):
        yield from (f"{verb} {noun}" for verb in _ONE)
    for mine in held:
        for other in near:
            yield from (template.format(mine, other) for template in _CARRIED_TO_SEEN)
            yield from (template.format(other, mine) for template in _SEEN_WITH_CARRIED)
