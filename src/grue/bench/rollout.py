"""Environment steps per second: many games in one ragged batch, against one game and one whole prompt at a time."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field
from typing import Any

from grue.bench import Say
from grue.bench.common import Timed, alternate, facts, load, now, open_games, result, task_sets, threads
from grue.bench.notebook import PromptPlayer
from grue.config import Config
from grue.games import Game
from grue.policy.actor import Actor
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.types import Episode, Task

SAME = (
    "the same model, number format, threads and games (the baseline plays the first ones of each repetition), through "
    "the same adapter of the game: the ratio compares the models' side. Both sample at temperature 1 from the valid "
    "actions, and both record what PPO learns from: the log-probability of each action and the value before it. The "
    "baseline reads its whole prompt again for each token of an action, as generation without a cache does, and, as "
    "the notebook does, prompt and action once more for log-probability and value. The baseline's `playing_only` "
    "omits that last pass; ours omits nothing"
)


@dataclass(slots=True)
class Sides:
    """The two ways of playing, on the same task sets."""

    policy: ChoosePolicy
    player: PromptPlayer
    games: list[Game]
    task_sets: list[list[Task]]
    context: int
    playing: list[Timed] = field(default_factory=list)  # the baseline's games without the extra pass for PPO

    def ours(self, repetition: int) -> list[Episode]:
        tasks = self.task_sets[repetition]
        return collect(self.policy, self.games, tasks, Decoding(), seed=f"bench/{repetition}", context=self.context)

    def baseline(self, repetition: int, count: int) -> list[Episode]:
        tasks = self.task_sets[repetition][:count]
        start = now()
        played = [
            self.player.play(self.games[0], task, random.Random(f"bench/{repetition}/{index}"))
            for index, task in enumerate(tasks)
        ]
        self.playing.append(Timed(_steps(played), now() - start))
        for episode in played:
            self.player.weigh(episode.turns)
        return played


def run(
    config: Config, say: Say, *, slots: int = 128, games: int = 512, baseline_games: int = 4, repetitions: int = 3
) -> dict[str, Any]:
    """`games` games with `slots` at once against `baseline_games` of them one by one, `repetitions` times each."""
    model, encoder = load(config)
    actor, plain = (Actor(model, config.model.dtype, reordered=reordered).model for reordered in (True, False))
    with threads(config) as thread_count, open_games(config, slots) as seats:
        say(f"starting {slots} games")
        warm_up, *sets = task_sets(config, repetitions + 1, games)
        for number, seat in enumerate(seats):  # a game's first reset loads it
            seat.reset(warm_up[number % games])
        sides = Sides(
            ChoosePolicy(actor, encoder), PromptPlayer(plain, encoder), seats, [*sets, warm_up], config.model.context
        )
        sides.baseline(-1, 1)
        sides.ours(-1)
        sides.player.passes = sides.player.tokens = 0
        sides.playing.clear()
        fed = 0

        def ours(repetition: int) -> int:
            nonlocal fed
            episodes = sides.ours(repetition)
            fed += sum(len(segment.ids) for episode in episodes for segment in episode.segments)
            return _steps(episodes)

        measured = alternate(
            ours, lambda repetition: _steps(sides.baseline(repetition, baseline_games)), repetitions, "steps", say
        )
    common = facts(config, actor, thread_count)
    steps = [sum(timed.count for timed in side) for side in measured]
    found = result(
        "rollout",
        "steps",
        measured,
        {
            **common,
            "games_at_once": slots,
            "games": games * repetitions,
            "tokens_read_per_step": round(fed / steps[0], 1),
        },
        {
            **common,
            "games_at_once": 1,
            "games": min(baseline_games, games) * repetitions,
            "tokens_read_per_step": round(sides.player.tokens / steps[1], 1),
            "passes_per_step": round(sides.player.passes / steps[1], 2),
        },
        SAME,
    )
    rate = statistics.median(timed.rate for timed in sides.playing)
    found["baseline"]["playing_only"] = {
        "steps_per_s": round(rate, 2),
        "ratio": round(found["ours"]["steps_per_s"] / rate, 2),
    }
    return found


def _steps(episodes: list[Episode]) -> int:
    return sum(episode.steps for episode in episodes)
