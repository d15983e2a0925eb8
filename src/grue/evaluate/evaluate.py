"""Evaluation is the same `collect` as training, on tasks of another fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grue.games import Game
from grue.parallel import ALONE, Processes
from grue.policy.decision import Decoding
from grue.policy.policy import Policy
from grue.rollout.collect import collect
from grue.types import Episode, Task


def evaluate(
    policy: Policy,
    games: Sequence[Game],
    tasks: Sequence[Task],
    decoding: Decoding,
    *,
    context: int,
    player: str = "choose",
    seed: str = "evaluate",
    on_episode: Callable[[Episode], None] | None = None,
    processes: Processes = ALONE,
) -> list[Episode]:
    """One episode per task. The draws of sampled decoding depend on `seed` and the task's place in the list."""
    return collect(
        policy,
        games,
        tasks,
        decoding,
        seed=seed,
        context=context,
        player=player,
        on_episode=on_episode,
        processes=processes,
    )
