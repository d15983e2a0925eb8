"""Play one episode with a scripted player, and report on demonstrations made this way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from grue.errors import GameError
from grue.games.base import Game
from grue.games.guard import as_played
from grue.types import Episode, Observation, Outcome, Task, Turn


class Player(Protocol):
    """A player: told the task and the first observation once, then asked for one action after another."""

    @property
    def name(self) -> str: ...

    def start(self, task: Task, observation: Observation) -> None: ...

    def act(self, observation: Observation) -> str: ...


def play(game: Game, task: Task, player: Player, *, record_limit: int | None = None) -> Episode:
    """One episode of `task`. A game that crashes gives Outcome.FAILED with the turns played before.

    With `record_limit` play goes on to that many steps (for recording a gold path that is longer than the
    task allows); `Episode.task` keeps the task's own limit, so `steps > task.limit` shows a late end. An
    action that the game did not list is played all the same and flagged by `Turn.valid`.
    """
    longer = task if record_limit is None else replace(task, limit=max(record_limit, task.limit))
    turns: list[Turn] = []
    observation: Observation | None = None
    outcome: Outcome | None = None
    try:
        observation = game.reset(longer)
        player.start(longer, observation)
        while outcome is None:
            action = as_played(player.act(observation), observation.actions)
            valid = observation.actions is None or action in observation.actions
            after, reward, outcome = game.step(action)
            turns.append(Turn(observation=observation, action=action, reward=reward, valid=valid))
            observation = after
    except GameError as error:
        return Episode(task, player.name, tuple(turns), Outcome.FAILED, observation, error=str(error))
    return Episode(task, player.name, tuple(turns), outcome, observation)


def demo_report(episodes: Iterable[Episode]) -> dict[str, int]:
    """Counts over demonstrations."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        counts["episodes"] += 1
        counts["steps"] += episode.steps
        counts["invalid_steps"] += sum(not turn.valid for turn in episode.turns)
        late = episode.steps > episode.task.limit
        counts["won_past_limit" if episode.won and late else str(episode.outcome)] += 1
    names = ("episodes", "won", "won_past_limit", "lost", "limit", "failed", "steps", "invalid_steps")
    return {name: counts[name] for name in names}
