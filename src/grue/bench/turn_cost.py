"""What a late turn of a long game costs against an early one: feeding only new tokens, against rereading the prompt."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grue.bench import Say
from grue.bench.common import facts, load, now, open_games, task_sets, threads
from grue.bench.notebook import WINDOW, PromptPlayer
from grue.config import Config
from grue.errors import ConfigError
from grue.games import Game
from grue.policy.actor import Actor
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decoding
from grue.rollout.collect import collect
from grue.types import Episode, Observation, Outcome, Task

ENDING = ("chop", "cook", "dice", "eat", "prepare", "slice")  # verbs that can win or lose a CookingWorld game
COLUMNS = 4096  # tokens of a segment, if the model has as many positions: no history is cut
SAME = (
    "the same model, number format, threads and games, through the same adapter of the game, without the actions that "
    "can end a game early; at the late turns the observations and actions of the early ones are shown again, so that "
    "only the history differs. Ours plays the same games once before, so that every text is known to the tokeniser. "
    "`ratio` is ours alone: the median cost of the turns around the late one over that around the early one; the "
    "baseline has its own `ratio`. The cost of a turn is everything but the time inside the games: prompts, tries, "
    "the model, sampling. `cpu_ratio` is the same in processor time, which other work on the machine disturbs less "
    "(on a GPU it says little). The baseline forgets all but the last "
    f"{WINDOW} steps; `ratio_whole_history` is its ratio when it keeps all of them, as ours does"
)
Seconds = NDArray[np.float64]  # wall-clock time, and processor time of this process


def _now() -> Seconds:
    return np.array([now(), time.process_time()])


@dataclass(slots=True)
class Clock:
    """When the first game was given its n-th action, and the seconds that all games spent on theirs."""

    began: list[Seconds] = field(default_factory=list)
    inside: list[Seconds] = field(default_factory=list)

    def cost(self, turn: int) -> Seconds:
        """Seconds of a turn, numbered from 2: from one action to the next, without the time inside the games."""
        return self.began[turn - 1] - self.began[turn - 2] - self.inside[turn - 2]


@dataclass(frozen=True, slots=True)
class Span:
    """The turns that are compared: `early` and `late`, each with `around` turns on both sides."""

    early: int
    late: int
    around: int

    @property
    def limit(self) -> int:
        return self.late + self.around

    def turns(self, middle: int) -> range:
        return range(middle - self.around, middle + self.around + 1)

    def ratio(self, clocks: Sequence[Clock]) -> tuple[float, float]:
        """Cost of the late turn over that of the early one, in wall-clock and in processor time."""
        wall, cpu = (self.seconds(clocks, self.late) / self.seconds(clocks, self.early)).round(3).tolist()
        return wall, cpu

    def seconds(self, clocks: Sequence[Clock], middle: int) -> Seconds:
        """Median cost of the turns around `middle`, over all clocks."""
        costs = [clock.cost(turn) for clock in clocks for turn in self.turns(middle)]
        found: Seconds = np.median(costs, axis=0)
        return found


@dataclass(slots=True)
class ClockedGame:
    """A game that records when it is stepped, lists no action that could end it, and at the late turns shows again what
    it showed at the early ones, so that only the history differs: the underlying game is no longer stepped by then.
    """

    game: Game
    clock: Clock
    span: Span
    turn: int = 0
    shown: list[Observation] = field(default_factory=list)  # at turn 1, 2, ...

    def reset(self, task: Task) -> Observation:
        self.turn, self.shown = 0, [_endless(self.game.reset(task))]
        return self.shown[0]

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        start = _now()
        if self.turn == len(self.clock.began):
            self.clock.began.append(start)
            self.clock.inside.append(np.zeros(2))
        found = self._next(action)
        self.clock.inside[self.turn] += _now() - start
        self.turn += 1
        return found

    def _next(self, action: str) -> tuple[Observation, float, Outcome | None]:
        early, late = self.span.turns(self.span.early), self.span.turns(self.span.late)
        coming = self.turn + 2  # `turn` actions were done before this one
        if coming in late:
            return self.shown[early[late.index(coming)] - 1], 0.0, None
        if coming > late[-1]:
            return self.shown[-1], 0.0, Outcome.LIMIT
        observation, reward, outcome = self.game.step(action)
        self.shown.append(_endless(observation))
        return self.shown[-1], reward, outcome

    def close(self) -> None:
        self.game.close()


def _endless(observation: Observation) -> Observation:
    kept = tuple(action for action in observation.actions or () if action.split(" ")[0] not in ENDING)
    return replace(observation, actions=kept)


@dataclass(slots=True)
class Sides:
    """The ways of playing, each on the same games."""

    policy: ChoosePolicy
    games: list[Game]
    context: int
    span: Span

    def ours(self, tasks: Sequence[Task]) -> tuple[list[Episode], list[Clock]]:
        """All tasks at once, on one clock."""
        clock = Clock()
        seats = [ClockedGame(game, clock, self.span) for game in self.games]
        return collect(self.policy, seats, tasks, Decoding(), seed="bench", context=self.context), [clock]

    def baseline(self, tasks: Sequence[Task], window: int) -> tuple[list[Episode], list[Clock]]:
        """One task after another, each on a clock of its own."""
        player = PromptPlayer(self.policy.model, self.policy.encoder, window)
        clocks = [Clock() for _ in tasks]
        played = [
            player.play(ClockedGame(self.games[0], clock, self.span), task, random.Random(f"bench/{index}"))
            for index, (task, clock) in enumerate(zip(tasks, clocks, strict=True))
        ]
        return played, clocks


def run(
    config: Config,
    say: Say,
    *,
    games: int = 64,
    baseline_games: int = 2,
    early: int = 5,
    late: int = 50,
    around: int = 2,
    repetitions: int = 3,
) -> dict[str, Any]:
    """`games` games at once against `baseline_games` of them one by one, `repetitions` times each in turn."""
    span = Span(early, late, around)
    if not 2 <= early - around <= early + around < late - around:
        raise ConfigError(
            f"early={early}, late={late}, around={around}: the two ranges of turns must not overlap or reach turn 1",
            hint="for example early=5 late=50 around=2",
        )
    config = config.model_copy(update={"game": config.game.model_copy(update={"limit": span.limit})})
    trained, encoder = load(config)
    model = Actor(trained, config.model.dtype).model
    with threads(config) as thread_count, open_games(config, games) as seats:
        sides = Sides(ChoosePolicy(model, encoder), seats, min(model.positions or COLUMNS, COLUMNS), span)
        played: list[Episode] = []
        clocks: dict[str, list[Clock]] = {"ours": [], "baseline": [], "whole history": []}
        for number, tasks in enumerate(task_sets(config, repetitions, games)):
            say(f"{number + 1}/{repetitions} warming up: {games} games of {span.limit} turns")
            sides.ours(tasks)  # the same games: otherwise only the late texts would already be tokenised and have tries
            for name, (episodes, found) in (
                ("ours", sides.ours(tasks)),
                ("baseline", sides.baseline(tasks[:baseline_games], WINDOW)),
                ("whole history", sides.baseline(tasks[:baseline_games], span.limit)),
            ):
                _check_long(episodes, span)
                clocks[name] += found
                played += episodes if name == "ours" else []
                say(f"{number + 1}/{repetitions} {name}: turn {late} costs {span.ratio(found)[0]:.2f} of turn {early}")
    common = {**facts(config, model, thread_count), "repetitions": repetitions}
    baseline = {**common, "games_at_once": 1, "games": min(baseline_games, games) * repetitions}
    whole = span.ratio(clocks["whole history"])
    return {
        "bench": "turn-cost",
        "ratio": span.ratio(clocks["ours"])[0],
        "ours": {
            **common,
            "games_at_once": games,
            "games": len(played),
            **_costs(span, clocks["ours"], games),
            **_tokens(span, played),
        },
        "baseline": {
            **baseline,
            **_costs(span, clocks["baseline"], 1),
            "ratio_whole_history": whole[0],
            "cpu_ratio_whole_history": whole[1],
        },
        "same": SAME,
    }


def _check_long(episodes: Sequence[Episode], span: Span) -> None:
    for episode in episodes:
        if episode.steps < span.limit:
            raise ConfigError(
                f"{episode.task.game} (seed {episode.task.seed}) ended after {episode.steps} of {span.limit} turns"
                + (f": {episode.error}" if episode.error else ""),
                hint="turn-cost needs games that last: game.name=cookingworld, whose ending actions it leaves out",
            )


def _costs(span: Span, clocks: Sequence[Clock], games: int) -> dict[str, Any]:
    """Both ratios, and milliseconds per turn of one game."""
    found: dict[str, Any] = dict(zip(("ratio", "cpu_ratio"), span.ratio(clocks), strict=True))
    for middle in (span.early, span.late):
        wall, cpu = (1e3 * span.seconds(clocks, middle) / games).round(3).tolist()
        found |= {f"turn_{middle}_ms": wall, f"turn_{middle}_cpu_ms": cpu}
    return found


def _tokens(span: Span, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Mean new tokens of a turn and tokens before it, around both turns; and the count of games with a cut history."""
    found: dict[str, Any] = {}
    for middle in (span.early, span.late):
        pairs = [(e.turns[n - 2], e.turns[n - 1]) for e in episodes for n in span.turns(middle)]
        whole = [(a, b) for a, b in pairs if a.segment == b.segment]
        new = [now.state_position - before.state_position for before, now in whole]
        found[f"turn_{middle}_new_tokens"] = round(statistics.fmean(new), 1)
        found[f"turn_{middle}_history_tokens"] = round(statistics.fmean(now.state_position for _, now in pairs))
    return {**found, "histories_cut": sum(len(episode.segments) > 1 for episode in episodes)}
