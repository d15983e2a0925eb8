"""Evaluation is the same `collect` as training, on tasks of another fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grue.errors import ConfigError, whole_number
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
    if not all(hasattr(policy, part) for part in ("model", "encoder", "room")):  # a teacher has `act`, too
        raise ConfigError(
            f"evaluate plays a policy, as load_policy and make_policy give it, not {type(policy).__name__}",
            hint="for any other player: [play(game, task, player) for task in tasks], then summarise (docs/python.md)",
        )
    _check_given(games, tasks, decoding)
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


def _check_given(games: object, tasks: object, decoding: object) -> None:
    """ConfigError for arguments that are easily confused."""
    if not isinstance(games, Sequence) or not all(isinstance(game, Game) for game in games):
        hint = "[game] plays one at a time" if isinstance(games, Game) else '[make("toy") for _ in range(8)] makes one'
        raise ConfigError(f"games={games!r} is not a list of games", hint=hint)
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        raise ConfigError("tasks is not a list of tasks", hint='tasks("toy", fold="dev", limit=16, count=24) makes one')
    if not isinstance(decoding, Decoding):
        raise ConfigError(
            f"{decoding!r} is no Decoding",
            hint="Decoding(greedy=True), or Decoding(temperature=1.0) to sample",
        )
