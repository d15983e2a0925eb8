"""Cells in, differences out. Points are percentage points of success that a defect costs (below 0: gains)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypedDict

import numpy as np

from grue.errors import DataError
from grue.evaluate.bootstrap import expanded_percentiles, paired_wins
from grue.evaluate.seeds import gap_over_seeds, mean_over_seeds
from grue.evaluate.stats import FloatArray, Interval, by_problem
from grue.evaluate.summary import success_interval
from grue.experiments.cells import Cell
from grue.experiments.eval_gap.draws import Places, grouped, redrawn
from grue.experiments.trainings import crossed_interval, shared_games


class Side(TypedDict):
    """One side of a contrast. With several trainings `games` counts those of all."""

    success: float
    ci95: list[float] | None  # over games, for one policy; None where several trainings are averaged
    games: int
    lost: float
    failed: int
    invalid: float


class Contrast(TypedDict):
    """What one defect costs. kind: "cost" moves the result, "chance" widens it, "gap" is in the repaired pipeline."""

    name: str
    kind: str
    group: str  # "evaluation": needs an existing run only; "training": trains
    question: str
    points: float  # of kind "chance": half the width of ci95
    ci95: list[float]
    pairing: str
    seeds: int
    repaired: Side
    defect: Side
    details: dict[str, Any]


def side(cells: Sequence[Cell]) -> Side:
    """The numbers of one cell, or of the cells of several trainings together."""
    wins, games = sum(sum(cell.won.values()) for cell in cells), sum(cell.games for cell in cells)
    interval = _interval(cells[0]) if len(cells) == 1 else None
    return Side(
        success=round(wins / games, 6),
        ci95=None if interval is None else [round(end, 6) for end in interval],
        games=games,
        lost=round(sum(cell.lost for cell in cells) / games, 6),
        failed=sum(cell.failed for cell in cells),
        invalid=round(float(np.mean([cell.extra.get("invalid", 0.0) for cell in cells])), 6),
    )


def paired(
    name: str, question: str, repaired: Cell, defect: Cell, *, resamples: int, kind: str = "cost", **details: Any
) -> Contrast:
    """Two ways of playing with the same weights on the same games."""
    seeds = sorted(set(repaired.won) & set(defect.won))
    if not seeds:
        raise DataError(f"{repaired.name} and {defect.name} share no game", hint="delete their cells to remeasure")
    problems = repaired.problems(seeds)
    found = paired_wins(repaired.wins(seeds), defect.wins(seeds), resamples, clusters=problems)
    return contrast(
        name,
        question,
        [repaired],
        [defect],
        (found.value, found.low, found.high),
        kind=kind,
        group="evaluation",
        pairing=f"paired on {counted(seeds, problems)}",
        details=details,
    )


def unpaired(
    name: str, question: str, repaired: Cell, defect: Cell, *, resamples: int, kind: str = "gap", **details: Any
) -> Contrast:
    """Different games: both are resampled, whole problems at a time."""
    (a_n, a_groups), (b_n, b_groups) = _wins_by_problem(repaired), _wins_by_problem(defect)
    rng = np.random.default_rng(0)
    found = [a_n[redrawn(a_groups, rng)].mean() - b_n[redrawn(b_groups, rng)].mean() for _ in range(resamples)]
    low, high = expanded_percentiles(np.array(found), min(len(a_groups), len(b_groups)))
    gap = float(a_n.mean() - b_n.mean())
    if np.ptp(a_n) == 0 or np.ptp(b_n) == 0:
        low, high = _of_sides(float(a_n.mean()), _interval(repaired), float(b_n.mean()), _interval(defect))
    return contrast(
        name,
        question,
        [repaired],
        [defect],
        (gap, float(low), float(high)),
        kind=kind,
        group="evaluation",
        pairing="different games on each side",
        details=details,
    )


def crossed(
    name: str,
    question: str,
    repaired: Sequence[Cell],
    defect: Sequence[Cell],
    *,
    group: str = "training",
    **details: Any,
) -> Contrast:
    """Several trainings of each arm, paired by seed, on the same games; the interval is over trainings and games.

    In the group "evaluation" the two of a pair are one training, played in two ways.
    """
    if len(repaired) != len(defect):
        raise DataError(f"{name}: {len(repaired)} and {len(defect)} trainings cannot be paired")
    games = shared_games(name, [*repaired, *defect])
    difference_SG = np.stack([a.wins(games) - b.wins(games) for a, b in zip(repaired, defect, strict=True)])
    problems = repaired[0].problems(games)
    low, high = crossed_interval(difference_SG, problems)
    details["by_seed"] = [round(100 * float(row.mean()), 2) for row in difference_SG]
    how = "trainings, paired on" if group == "evaluation" else "trainings each, paired by seed,"
    return contrast(
        name,
        question,
        repaired,
        defect,
        (float(difference_SG.mean()), low, high),
        kind="cost",
        group=group,
        pairing=f"{len(repaired)} {how} {counted(games, problems)}",
        details=details,
    )


def other_games(name: str, question: str, repaired: Sequence[Cell], defect: Sequence[Cell], **details: Any) -> Contrast:
    """Several trainings, each on two different sets of games; the interval is over trainings and both sets."""
    (a_RG, a_problems), (b_RG, b_problems) = (_wins_of_trainings(name, cells) for cells in (repaired, defect))
    apart_R = a_RG.mean(axis=1) - b_RG.mean(axis=1)
    details["by_seed"] = [round(100 * float(apart), 2) for apart in apart_R]
    a_RK, b_RK = by_problem(a_RG, a_problems), by_problem(b_RG, b_problems)
    mean = float(apart_R.mean())
    if any(np.ptp(x_RK) == 0 or x_RK.shape[1] == 1 for x_RK in (a_RK, b_RK)):
        a, b = (
            mean_over_seeds(x_RK)[1:3] if np.ptp(x_RK) and x_RK.shape[1] > 1 else _interval(cells[0])
            for x_RK, cells in ((a_RK, repaired), (b_RK, defect))
        )
        low, high = _of_sides(float(a_RG.mean()), a, float(b_RG.mean()), b)
    else:
        low, high = gap_over_seeds(a_RK, b_RK)[1:3]
    return contrast(
        name,
        question,
        repaired,
        defect,
        (mean, low, high),
        kind="gap",
        group="evaluation",
        pairing=f"{len(repaired)} trainings, different games on each side",
        details=details,
    )


def contrast(
    name: str,
    question: str,
    repaired: Sequence[Cell],
    defect: Sequence[Cell],
    estimate: tuple[float, float, float],
    *,
    kind: str,
    group: str,
    pairing: str,
    details: dict[str, Any],
) -> Contrast:
    """The contrast with this estimate (value, low, high), a difference of shares, in points."""
    value, low, high = (round(100 * min(1.0, max(-1.0, number)), 3) for number in estimate)
    return Contrast(
        name=name,
        kind=kind,
        group=group,
        question=question,
        points=value,
        ci95=[low, high],
        pairing=pairing,
        seeds=len(repaired),
        repaired=side(repaired),
        defect=side(defect),
        details=details,
    )


def counted(seeds: Sequence[int], problems: Sequence[Hashable] | None) -> str:
    """How many games and, where some share a problem, of how many problems."""
    return f"{len(seeds)} games" + ("" if problems is None else f" of {len(set(problems))} problems")


def _of_sides(
    a: float, a_interval: tuple[float, float], b: float, b_interval: tuple[float, float]
) -> tuple[float, float]:
    """Interval of a - b from those of its sides, if on one all games end alike: resampling it would claim certainty.

    Newcombe 1998, Interval estimation for the difference between independent proportions, method 10; if that is so on
    both sides, the interval takes the bounds of both at once.
    """
    (a_low, a_high), (b_low, b_high) = a_interval, b_interval
    if a in (0, 1) and b in (0, 1):
        return a_low - b_high, a_high - b_low
    low, high = np.hypot(a - a_low, b_high - b), np.hypot(a_high - a, b - b_low)
    return a - b - float(low), a - b + float(high)


def _interval(cell: Cell) -> Interval:
    """Interval of the success of one cell, which must have games."""
    seeds = sorted(cell.won)
    found = success_interval([cell.won[seed] for seed in seeds], cell.problems(seeds))
    assert found is not None
    return found


def _wins_by_problem(cell: Cell) -> tuple[FloatArray, list[Places]]:
    """1 or 0 for each game, and the places of the games of each problem."""
    seeds = sorted(cell.won)
    return cell.wins(seeds), grouped(cell.problems(seeds) or seeds)


def _wins_of_trainings(name: str, cells: Sequence[Cell]) -> tuple[FloatArray, Sequence[Hashable]]:
    """Wins [trainings, games] of the games that all have finished, and the problem that each game poses."""
    games = shared_games(name, cells)
    return np.stack([cell.wins(games) for cell in cells]), cells[0].problems(games) or games
