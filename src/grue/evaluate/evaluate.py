"""Evaluation is the same `collect` as training, on tasks of another fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grue.errors import whole_number
from grue.games import Game
from grue.parallel import ALONE, Processes
from grue.policy.decision import Decoding
from grue.policy.policy import Policy
from grue.rollout.collect import collect
from grue.rollout.player import PolicyPlayer
from grue.types import Episode, Task


def evaluate(
    policy: Policy | PolicyPlayer,
    games: Sequence[Game],
    tasks: Sequence[Task],
    decoding: Decoding,
    *,
    context: int,
    player: str = "",
    seed: str = "evaluate",
    on_episode: Callable[[Episode], None] | None = None,
    processes: Processes = ALONE,
) -> list[Episode]:
    """One episode per task. The draws of sampled decoding depend on `seed` and the task's place in the list.

    `player` is what episodes call the policy, by default its kind.

    Of what `load_policy` gives, the policy inside plays, with `decoding`.
    """
    if isinstance(policy, PolicyPlayer):
        policy = policy.policy
    context = whole_number("context", context, least=1, hint="in tokens; that of training is model.context")
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
