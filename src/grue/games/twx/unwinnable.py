"""Games that an engine makes and nobody can win: not used as tasks, as they would only blur results on dev.

In `peckingorder` two things may have the same name. The instructions ask for one, its name is taken for the other, and
the first mistake loses. No test game is affected. tests/games/test_tasks.py plays these and some others.
"""

from __future__ import annotations

from grue.types import Task

_SEEDS = {
    "peckingorder": """
    10022 10042 10063 10064 10083 10095 10110 10153 10156 10171 10175 10217 10218 10225 10237 10261 10275 10287 10294
    10295 10332 10351 10373 10374 10407 10409 10410 10412 10428 10436 10447 10473 10528 10556 10568 10596 10598 10611
    10623 10666 10670 10706 10727 10755 10816 10836 10852 10858 10871 10902 10908 10938 10942 10975 10994
    """
}
_UNWINNABLE = {game: frozenset(map(int, seeds.split())) for game, seeds in _SEEDS.items()}


def is_unwinnable(task: Task) -> bool:
    """Is it known that nobody can win this game?"""
    return task.seed in _UNWINNABLE.get(task.game, ())
