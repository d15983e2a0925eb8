"""Episodes in, numbers with intervals out: the rows of every results table.

A failed game (the engine crashed, or showed more than the model reads) is not a loss of the policy: it stays out of
every mean and is counted beside it. The pessimistic number is under "success_failed_as_loss".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict

import numpy as np

from grue.errors import DataError
from grue.evaluate.bootstrap import bootstrap_mean, paired_difference, paired_wins
from grue.evaluate.stats import Interval, wilson, wilson_of_problems
from grue.games.spread import problem_of
from grue.types import Episode, Outcome, Task


class Result(TypedDict):
    """How one policy did on one fold. Shares and means are over `games`; they are None when no game finished."""

    fold: str
    games: int  # that ended in won, lost or limit: the denominator of every share and mean below
    seeds: list[int]  # [first, last] of all games, failed ones too
    step_limit: int | None  # None when the games had different limits
    success: float | None  # share won
    success_ci95: list[float] | None
    score: float | None  # mean final score
    score_ci95: list[float] | None
    best_score: float | None  # mean of the highest score at any time, at least 0: what TALES counts of one attempt
    return_mean: float | None  # mean sum of rewards: differs from the score where a game starts above 0
    steps_mean: float | None
    limit: float | None  # share that ran into the step limit
    lost: float | None
    invalid: float | None  # share of turns whose action the game did not list; None where it lists none
    failed: int  # games that crashed or grew too long; not in `games`
    success_failed_as_loss: float
    outcomes: dict[str, int]
    verbs: dict[str, int]  # how often each first word of an action was used, most frequent first
    problems: NotRequired[int]  # number of problems in `games`, if some share one: intervals are over problems then
    tales: NotRequired[float]  # mean TALES score, where eval.restarts asks for it


class Comparison(TypedDict):
    """a against b on the games that both finished. Positive: a is better."""

    games: int
    unpaired: int  # games that only one of them finished
    difference: float  # of the success rates
    ci95: list[float]
    score_difference: float
    score_ci95: list[float]
    only_a_won: float  # in games; fractions where a game was played several times
    only_b_won: float


def summarise(episodes: Iterable[Episode], *, fold: str, bootstrap: int = 2000) -> Result:
    """One row of results from the games that one policy played on one fold; equal episodes give an equal row.

    Steps and rewards are None where a finished episode has no turns, as in the games that `grue eval` keeps.
    Raises DataError when there are no episodes or when one of them belongs to another fold.
    """
    episodes = list(episodes)  # of a file, perhaps
    if not episodes:
        raise DataError("no episodes to summarise", hint="evaluate at least one game")
    stray = next((episode.task for episode in episodes if episode.task.fold != fold), None)
    if stray is not None:
        raise DataError(f"a {fold} result holds a game of fold {stray.fold!r} (seed {stray.seed})")

    finished = [episode for episode in episodes if not episode.failed]
    outcomes = Counter(str(episode.outcome) for episode in episodes)
    wins = outcomes[Outcome.WON]
    seeds = [episode.task.seed for episode in episodes]
    limits = {episode.task.limit for episode in episodes}
    listed = [turn for episode in finished for turn in episode.turns if turn.observation.actions is not None]
    scores = [episode.score for episode in finished]
    problems = shared([problem_of(episode) for episode in finished])
    # the games of a run's table are kept without their turns
    whole = finished if all(episode.turns for episode in finished) else []

    row = Result(
        fold=fold,
        games=len(finished),
        seeds=[min(seeds), max(seeds)],
        step_limit=limits.pop() if len(limits) == 1 else None,
        success=_mean([episode.won for episode in finished]),
        success_ci95=_rounded(success_interval([episode.won for episode in finished], problems)),
        score=_mean(scores),
        score_ci95=_rounded(score_interval(scores, problems, bootstrap)),
        best_score=_mean([best_score(episode) for episode in whole]),
        return_mean=_mean([sum(turn.reward for turn in episode.turns) for episode in whole]),
        steps_mean=_mean([episode.steps for episode in whole]),
        limit=_mean([episode.outcome is Outcome.LIMIT for episode in finished]),
        lost=_mean([episode.outcome is Outcome.LOST for episode in finished]),
        invalid=_mean([not turn.valid for turn in listed]) if listed else None,
        failed=len(episodes) - len(finished),
        success_failed_as_loss=_round(wins / len(episodes)),
        outcomes={str(outcome): outcomes[outcome] for outcome in Outcome},
        verbs=_verbs(finished, top=12),
    )
    if problems is not None:
        row["problems"] = len(set(problems))
    return row


def compare(a_episodes: Sequence[Episode], b_episodes: Sequence[Episode], *, bootstrap: int = 2000) -> Comparison:
    """a minus b on the same games. A game played several times counts once, with its mean.

    The interval of scores has no width where all differences are equal.
    Raises DataError when they share no finished game.
    """
    a_by_game, b_by_game = by_game(a_episodes), by_game(b_episodes)
    games = [game for game in a_by_game if game in b_by_game]
    if not games:
        raise DataError(
            f"no game was finished by both ({len(a_by_game)} and {len(b_by_game)} games)",
            hint="a paired comparison needs the same game, parameters, fold, seed and step limit",
        )
    a_won, b_won = (np.array([by_game[game].won for game in games]) for by_game in (a_by_game, b_by_game))
    a_score, b_score = (np.array([by_game[game].score for game in games]) for by_game in (a_by_game, b_by_game))
    clusters = shared([posed((a_by_game[game], b_by_game[game]), game) for game in games])
    success = paired_wins(a_won, b_won, bootstrap, clusters=clusters)
    score = paired_difference(a_score, b_score, bootstrap, clusters=clusters)
    most = most_difference([*a_score, *b_score])
    return Comparison(
        games=len(games),
        unpaired=len(a_by_game) + len(b_by_game) - 2 * len(games),
        difference=_round(success.value),
        ci95=[_round(success.low), _round(success.high)],
        score_difference=_round(score.value),
        score_ci95=[_round(max(-most, score.low)), _round(min(most, score.high))],
        only_a_won=_round(float(np.sum(a_won * (1 - b_won)))),
        only_b_won=_round(float(np.sum(b_won * (1 - a_won)))),
    )


def best_score(episode: Episode) -> float:
    """The highest score at any time in the episode, at least 0."""
    return max([0.0, episode.score, *(turn.observation.score for turn in episode.turns)])


class Played:
    """Sums over the plays of one game, which poses `problem`."""

    def __init__(self, problem: Hashable) -> None:
        self.problem, self.plays, self.wins, self.scores = problem, 0, 0, 0.0

    def add(self, episode: Episode) -> None:
        self.plays, self.wins, self.scores = self.plays + 1, self.wins + episode.won, self.scores + episode.score

    @property
    def won(self) -> float:
        return self.wins / self.plays

    @property
    def score(self) -> float:
        return self.scores / self.plays


def by_game(episodes: Iterable[Episode]) -> dict[Task, Played]:
    """The finished games, each with all of its plays."""
    played: dict[Task, Played] = {}
    for episode in episodes:
        if not episode.failed:
            if episode.task not in played:
                played[episode.task] = Played(problem_of(episode))
            played[episode.task].add(episode)
    return played


def with_problems(episodes: Sequence[Episode], names: Mapping[Task, str]) -> Sequence[Episode]:
    """The episodes with the name of what each game poses, if it has one."""
    return [replace(episode, problem=names.get(episode.task, "")) for episode in episodes] if names else episodes


def posed(plays: Iterable[Played], task: Task) -> Hashable:
    """What `task` poses. Some of its plays may not say so: older ones, or those from outside a run."""
    return next((one.problem for one in plays if one.problem != task), task)


def shared(problems: Sequence[Hashable]) -> Sequence[Hashable] | None:
    """`problems`, or None where no two are the same: games that pose the same one are not independent."""
    return problems if len(set(problems)) < len(problems) else None


def success_interval(won: Sequence[float], problems: Sequence[Hashable] | None) -> Interval | None:
    """Wilson's interval of wins, or of shares won in several plays of a game; None without games.

    If games share `problems`, these are the independent units (`wilson_of_problems`).
    """
    if not won:
        return None
    if problems is None and {*won} <= {0, 1}:
        return wilson(int(sum(won)), len(won))
    return wilson_of_problems(won, problems or range(len(won)))


def score_interval(
    scores: Sequence[float],
    problems: Sequence[Hashable] | None,
    bootstrap: int = 2000,
) -> Interval | None:
    """Bootstrap interval of scores, within their range of -1 or 0 to 1; None without games. `problems` as above.

    One game or problem says nothing of how far others would lie: the interval is then the whole range.
    """
    if not scores:
        return None
    low, high = bootstrap_mean(scores, bootstrap, clusters=problems)
    if len(set(problems or range(len(scores)))) == 1:
        low, high = -1.0, 1.0
    return Interval(max(least_score(scores), low), min(1.0, high))


def least_score(scores: Sequence[float]) -> float:
    """The lowest score that can be expected where these were seen: 0, or -1 if some are negative."""
    return 0.0 if min(scores) >= 0 else -1.0


def most_difference(scores: Sequence[float]) -> float:
    """By how much two means of such scores can differ at most."""
    return 1.0 - least_score(scores)


def _verbs(episodes: Sequence[Episode], *, top: int) -> dict[str, int]:
    words = (turn.action.split() for episode in episodes for turn in episode.turns)
    counts = Counter(first[0] if first else "(nothing)" for first in words)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))  # ties in a fixed order
    return dict(ordered[:top])


def _mean(values: Sequence[float]) -> float | None:
    return _round(float(np.mean(values))) if len(values) else None


def _round(value: float) -> float:
    return round(value, 6)  # a millionth of a game: keeps results.json readable


def _rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [_round(interval.low), _round(interval.high)]
