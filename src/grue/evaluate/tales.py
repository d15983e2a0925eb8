"""The metric of TALES (Cui et al. 2025; its benchmark.py): the best score within a budget of steps over all attempts.

A player has 100 steps for a game. When an attempt ends without a full score, the same game starts over, and what counts
is the highest score ever shown, in whole per cent and at least 0. Our own score is that of one attempt, at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grue.types import Episode, Task

BUDGET = 100  # steps

# Plays each task once, in this order; the number of the attempt lets a player draw other actions the next time.
Play = Callable[[Sequence[Task], int], Sequence[Episode]]


@dataclass(frozen=True, slots=True)
class TalesScore:
    """One game under the metric."""

    score: float = 0.0  # 0 to 1
    steps: int = 0
    attempts: int = 0
    failed: bool = False  # the game crashed in its last attempt; what was reached before counts


def tales_scores(play: Play, tasks: Sequence[Task], budget: int = BUDGET) -> list[TalesScore]:
    """One score per task. Attempts have a limit of `budget` steps; the steps of all of them together are counted."""
    found = [TalesScore() for _ in tasks]
    running = list(range(len(tasks)))
    attempt = 0
    while running:
        episodes = play([replace(tasks[i], limit=budget) for i in running], attempt)
        for i, episode in zip(running, episodes, strict=True):
            found[i] = _add(found[i], episode, budget)
        running = [i for i in running if not _is_over(found[i], budget)]
        attempt += 1
    return found


def mean_score(found: Sequence[TalesScore]) -> float | None:
    """The normalised score of a run. Games that failed at once are left out, as always; None if none is left."""
    scores = [score.score for score in found if not (score.failed and score.attempts == 1)]
    return round(sum(scores) / len(scores), 4) if scores else None


def _add(before: TalesScore, episode: Episode, budget: int) -> TalesScore:
    """`before` with one more attempt, as far as the budget goes."""
    shown = [turn.observation.score for turn in episode.turns[1:]]
    shown += [episode.score] if episode.turns and episode.final is not None else []
    shown = shown[: budget - before.steps]
    best = max([before.score, *(int(100 * score + 1e-9) / 100 for score in shown)])  # 0.29 is 29 points
    crashed = episode.failed
    return TalesScore(best, before.steps + len(shown), before.attempts + 1, crashed)


def _is_over(score: TalesScore, budget: int) -> bool:
    return score.failed or score.steps >= budget or score.score >= 1.0
