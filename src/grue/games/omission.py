"""Demonstrations replayed with steps left out: noise that keeps a clone consistent when it strays from the teacher.

A clone of clean demonstrations answers a skipped step by going back to the script, so a shortcut that exploration
finds is undone at once and never pays. Replays with random steps missing, whatever their outcome, teach it to
go on from there (noise injection for imitation: Laskey et al. 2017). Needed steps are left out as often as useless
ones, except those that `keep` names, and most replays do not win, so RL must find out which steps are worth skipping.
"""

from __future__ import annotations

import random
from dataclasses import replace

from grue.errors import GameError
from grue.games.base import Game
from grue.games.play import Recorder
from grue.types import Episode, Outcome


def replay_with_omissions(
    game: Game, demonstration: Episode, share: float, rng: random.Random, *, keep: str = ""
) -> Episode:
    """`demonstration` played again with each step left out with probability `share` (0..1).

    Actions that begin with `keep` are never left out by chance ("" keeps none). Steps that are no longer valid without
    the missing ones are left out too. A replay whose script runs out before the game ends has Outcome.LIMIT.
    """
    task = demonstration.task
    recorder = Recorder(game, task, f"{demonstration.player}-omit")
    try:
        recorder.reset(replace(task, limit=max(task.limit, demonstration.steps)))
        for planned in demonstration.turns:
            left_out = rng.random() < share and not (keep and planned.action.startswith(keep))
            listed = recorder.observation.actions
            if left_out or (listed is not None and planned.action not in listed):
                continue
            outcome = recorder.step(planned.action)
            if outcome is not None:
                return recorder.end(outcome)
    except GameError as error:
        return recorder.failed(error)
    return recorder.end(Outcome.LIMIT)
