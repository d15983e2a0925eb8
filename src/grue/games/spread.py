"""Which games stand for a fold when not all of them are played, and which of them pose the same problem."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from grue.types import Task

# Folds with fewer problems than seeds: seed k + 100 poses the problem of seed k, among other furniture.
PROBLEMS = {"arithmetic": 100, "sorting": 100}


def problem(task: Task) -> Hashable:
    """Equal for tasks that pose the same problem: whoever solves one has as good as solved the other."""
    number = PROBLEMS.get(task.game)
    return task if number is None else (task.game, task.params, task.fold, task.seed % number)


def spread(every: Sequence[Task], count: int) -> list[Task]:
    """`count` of a fold's tasks in the order of their seeds, spread evenly: some stretches are easier than others.

    Where problems repeat, the spread is over problems: even steps through the seeds would meet the same few again and
    again. ScienceWorld's seeds go through its variations in turn, so there the first ones differ most.
    """
    if count >= len(every) or (every and every[0].game == "scienceworld"):
        return list(every[:count])
    by_problem = sorted(every, key=lambda task: task.seed % PROBLEMS[task.game] if task.game in PROBLEMS else 0)
    chosen = [by_problem[i * len(every) // count] for i in range(count)]
    return sorted(chosen, key=lambda task: task.seed)
