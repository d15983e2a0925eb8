"""What is measured while a stage trains: the games that it plays, and how well it does on the dev fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grue.config import Config
from grue.errors import TrainingError
from grue.evaluate.evaluate import evaluate
from grue.evaluate.failures import failures_of
from grue.evaluate.summary import summarise, with_problems
from grue.games import Game, what_checks
from grue.parallel import Processes
from grue.policy.decision import Decoding
from grue.policy.policy import Policy
from grue.types import Episode, Outcome, Task


def play_metrics(episodes: Sequence[Episode], seconds: float | None) -> dict[str, float]:
    """What the play of one round looked like. Failed games are counted, and left out of the means.

    `seconds` = None: played by a command that was killed before it could say how long.
    """
    kept = [e for e in episodes if not e.failed]
    rates: dict[str, float] = {}
    if seconds is not None:
        rates = {"rollout_s": seconds, "env_steps_per_s": sum(e.steps for e in episodes) / max(seconds, 1e-9)}
    return {
        "success": mean([e.won for e in kept]),
        "score": mean([e.score for e in kept]),
        "steps_mean": mean([e.steps for e in kept]),
        "lost": mean([e.outcome is Outcome.LOST for e in kept]),
        "limit": mean([e.outcome is Outcome.LIMIT for e in kept]),
        "invalid": mean([not turn.valid for e in kept for turn in e.turns if turn.observation.actions is not None]),
        "forced": mean([not turn.branches for e in kept for turn in e.turns]),
        "failed": len(episodes) - len(kept),
        "episodes": len(episodes),
        **rates,
    }


def mean(values: Sequence[float]) -> float:
    """The mean; NaN if there are no values."""
    return float(np.mean(values)) if values else float("nan")


def dev_metrics(
    config: Config,
    policy: Policy,
    games: Sequence[Game],
    tasks: Sequence[Task],
    processes: Processes,
    problems: Mapping[Task, str] | None = None,
) -> tuple[dict[str, Any], str]:
    """(metrics, the same in words) of `tasks` of the dev fold, played greedily. `problems`: see `Episode.problem`."""
    greedy, context, kind = Decoding(greedy=True), config.model.context, config.policy.kind
    episodes = evaluate(policy, games, tasks, greedy, context=context, player=kind, processes=processes)
    found = summarise(with_problems(episodes, problems or {}), fold="dev", bootstrap=200)
    if found["success"] is None or found["success_ci95"] is None:
        raise TrainingError(
            f"all {len(episodes)} dev games failed: {episodes[0].error}", hint=what_checks(config.game.name)
        )
    low, high = found["success_ci95"]
    words = f"dev success {found['success']:.3f} [{low:.3f}, {high:.3f}] greedy, {found['games']} games"
    if not found["success"]:
        words += f", score {found['score']:.3f}"
    if found["failed"]:
        words += f"; {found['failed']} failed, the first with: {failures_of(episodes).error}"
    row = {
        "success_greedy": found["success"],
        "success_greedy_lo": low,
        "success_greedy_hi": high,
        "score_greedy": found["score"],
        "games": found["games"],
        "failed": found["failed"],
    }
    return row, words


def merit_of(row: Mapping[str, Any]) -> float:
    """The number by which the best weights are chosen, from a row of `dev_metrics`.

    The score only breaks ties: early on no game may be won. Games that failed count as lost here: the policy itself may
    have made them too long, and otherwise weights with which most fail could be chosen for the few that do not.
    """
    games, failed = row["games"], row["failed"]
    finished = games / (games + failed) if failed else 1.0
    score = finished * float(row["score_greedy"] or 0.0) - (1 - finished)  # a lost game may score as low as -1
    wins = round(games * float(row["success_greedy"]))  # the row's share is rounded, by more than a score weighs
    return float(wins / max(1, games + failed) + 1e-7 * score)
