"""Other numbers for a game of arithmetic, whose folds have 100 problems each: sooner memorised than worked out.

The problem is redrawn with the same operation, and every quantity in the room follows: the old answer becomes the new
one, and the result of another operation becomes its result on the new numbers. No problem of dev or test is drawn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from functools import cache

LARGEST = 49  # of the engine's own numbers
Problem = tuple[str, int, int]  # as the engine says it: ("subtract", 6, 31) is 31 - 6, ("divide", 22, 11) is 22 / 11
_PROBLEM = re.compile(r"\b(add|subtract|multiply|divide) (\d+) (?:and|from|by) (\d+)\b")
_TAKEN = re.compile(r"^take (\d+) ")
_TRIES = 200
# the problems of the engine's dev and test folds; tests/games/test_sums.py plays them
_HELD_OUT = {
    "add": "1/21 2/38 3/31 3/37 3/38 7/26 7/28 7/46 9/30 10/23 12/2 12/46 12/48 16/14 18/13 20/41 21/10 22/14 22/23 "
    "23/25 25/4 25/12 26/8 28/26 30/31 30/33 31/47 32/26 32/40 32/42 33/38 34/43 35/39 37/6 38/4 38/42 39/30 40/33 "
    "41/42 43/11 43/17 44/9 46/30 46/41 47/4 48/8 48/18 48/44 49/9 49/14",
    "subtract": "1/16 1/22 1/49 2/15 2/39 3/15 3/43 4/29 5/9 5/47 6/7 6/12 6/40 7/20 7/38 10/14 10/23 11/28 12/18 "
    "14/37 16/21 16/38 17/32 17/44 18/19 18/45 19/23 19/32 20/32 21/37 21/42 22/24 22/29 22/43 22/48 23/26 24/37 "
    "25/31 29/42 30/42 32/39 33/46 34/46 36/39 36/41 36/47 36/48 38/47 39/47 48/49",
    "multiply": "1/16 1/18 1/23 1/43 2/16 2/29 3/3 3/37 6/36 7/13 7/15 7/34 7/38 8/41 8/43 9/15 11/33 12/25 12/44 "
    "13/32 14/7 16/8 16/18 17/3 17/45 19/42 21/4 21/13 23/15 23/26 23/41 26/36 27/42 27/43 28/36 29/13 29/28 31/47 "
    "34/23 35/7 36/11 36/13 37/49 40/18 40/37 40/43 41/33 45/40 46/33 47/19",
    "divide": "3/3 5/5 9/9 10/10 11/11 12/4 13/13 14/7 14/14 15/15 16/4 18/3 18/6 18/9 18/18 20/2 20/10 21/21 22/2 "
    "24/3 24/6 24/24 25/5 26/2 28/14 29/29 30/6 30/15 32/16 33/33 35/7 36/2 36/3 36/9 38/2 38/19 38/38 40/5 40/8 41/41 "
    "42/6 42/7 42/42 44/2 44/4 44/22 46/46 48/12 49/7 49/49",
}


def read_problem(text: str) -> Problem | None:
    """The problem that a text asks to solve."""
    found = _PROBLEM.search(text)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


def answer(problem: Problem) -> int:
    """The answer to the problem."""
    verb, first, second = problem
    by_verb = {"add": first + second, "subtract": second - first, "multiply": first * second}
    return by_verb[verb] if verb in by_verb else first // second


def is_held_out(problem: Problem) -> bool:
    """Does dev or test ask this? Swapping the numbers of a sum or a product changes nothing."""
    verb, first, second = problem
    turned = verb in ("add", "multiply") and f"{second}/{first}" in _held_out(verb)
    return turned or f"{first}/{second}" in _held_out(verb)


@cache
def _held_out(verb: str) -> frozenset[str]:
    return frozenset(_HELD_OUT[verb].split())


@cache
def _problems(verb: str) -> tuple[Problem, ...]:
    """All that the engine could have made for this operation, except those of dev and test."""
    numbers = range(1, LARGEST + 1)
    every = ((verb, first, second) for first in numbers for second in numbers)
    return tuple(problem for problem in every if _is_posed(problem) and not is_held_out(problem))


def _is_posed(problem: Problem) -> bool:
    verb, first, second = problem
    if verb == "subtract":
        return second > first
    return verb != "divide" or (second > 1 and first % second == 0)


def draw_numbers(actions: Sequence[str], problem: Problem, rng: random.Random) -> dict[str, str]:
    """Old number -> new one, for the numbers of the problem and the quantities that `actions` can take; one-to-one.

    Empty where a few tries find no numbers that keep equal quantities equal.
    """
    quantities = {int(found[1]) for action in actions if (found := _TAKEN.match(action))}
    for _ in range(_TRIES):
        new = _follow(problem, rng.choice(_problems(problem[0])), quantities, rng)
        if new is not None:
            return {str(old): str(number) for old, number in new.items()}
    return {}


def _follow(old: Problem, new: Problem, quantities: Iterable[int], rng: random.Random) -> dict[int, int] | None:
    """What `quantities` and the numbers of `old` become with `new`; None where they would not stay distinct."""
    changed = {old[1]: new[1]}
    if changed.setdefault(old[2], new[2]) != new[2]:
        return None
    results = dict(zip(reversed(_results(old)), reversed(_results(new)), strict=True))  # the answer takes precedence
    for quantity in sorted(quantities):
        # a single thing is worded differently: one stays one
        number = results.get(quantity) or (1 if quantity == 1 else rng.randint(2, LARGEST))
        if changed.setdefault(quantity, number) != number or (number == 1) != (quantity == 1):
            return None
    return changed if len(set(changed.values())) == len(changed) else None


def _results(problem: Problem) -> tuple[int, ...]:
    """The answer, and what the other operations make of its numbers."""
    _, first, second = problem
    small, large = sorted((first, second))
    return answer(problem), first + second, large - small, first * second, large // small
