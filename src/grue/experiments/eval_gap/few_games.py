"""What is reported from few games: how far it may be from the truth, and what choosing on the same games adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grue.errors import DataError
from grue.experiments.cells import Cell
from grue.experiments.eval_gap.contrasts import Contrast, contrast, counted
from grue.experiments.eval_gap.draws import spread_draw


def few_games(cell: Cell, count: int, *, resamples: int) -> Contrast:
    """How far a small evaluation is from the large one: its first games, and the spread over all small draws.

    Where games share problems, a small draw is spread over them, as a small evaluation is (`games.spread`).
    """
    seeds = sorted(cell.won)
    wins_n, problems = cell.wins(seeds), cell.problems(seeds)
    count = min(count, len(seeds))
    rng = np.random.default_rng(0)
    draws = (
        rng.choice(len(seeds), count, replace=False) if problems is None else spread_draw(problems, count, rng)
        for _ in range(resamples)
    )
    small = np.array([wins_n[places].mean() for places in draws])
    low, high = np.percentile(small, [2.5, 97.5])
    whole, half = float(wins_n.mean()), float(high - low) / 2
    won = {seed: cell.won[seed] for seed in seeds[:count]}
    first = Cell("first", won, {}, {}, game=cell.game, alike=cell.alike)
    return contrast(
        "few-games",
        f"{count} games instead of {len(seeds)}: the range of 95 of 100 small evaluations",
        [cell],
        [first],
        (half, float(low) - whole, float(high) - whole),
        kind="chance",
        group="evaluation",
        pairing=f"draws of {count} out of {counted(seeds, problems)}",
        details={
            "standard_deviation_points": round(100 * float(small.std()), 2),
            "range_points": [round(100 * float(low), 2), round(100 * float(high), 2)],
            # rounding must not decide what is exactly ten points off
            "share_ten_points_off": round(float(np.mean(np.abs(small - whole) >= 0.1 - 1e-9)), 4),
        },
    )


def chosen_on_what_is_reported(curves: Sequence[Mapping[int, Cell]], count: int, *, resamples: int) -> Contrast:
    """Optimism of reporting the best of several evaluations on the games that it was chosen by.

    curves[s][iteration] is a greedy evaluation of training s. In each resample `count` of the games choose the best
    iteration and report it; the honest number is its success on all games that are not copies of these.
    """
    rng = np.random.default_rng(0)
    reported: list[float] = []
    honest: list[float] = []
    steps = [sorted(curve) for curve in curves]
    games = sorted(set.intersection(*(set(cell.won) for curve in curves for cell in curve.values())))
    problems = curves[0][steps[0][0]].problems(games) or games
    count = min(count, len(set(problems)) // 2)
    if count < 1:
        raise DataError("too few games to choose on some and report on others", hint="raise arm_games")
    wins = [np.stack([curve[i].wins(games) for i in order]) for curve, order in zip(curves, steps, strict=True)]
    for _ in range(resamples):
        wins_IG = wins[rng.integers(len(wins))]
        small = spread_draw(problems, count, rng)
        seen = {problems[place] for place in small}
        others = [place for place, posed in enumerate(problems) if posed not in seen]
        small_I = wins_IG[:, small].mean(1)
        best = int(np.flatnonzero(small_I == small_I.max())[-1])  # of equals the latest, as in training
        reported.append(float(small_I[best]))
        honest.append(float(wins_IG[best, others].mean()))
    gap = np.array(honest) - np.array(reported)
    low, high = np.percentile(gap, [2.5, 97.5])
    last = [curve[order[-1]] for curve, order in zip(curves, steps, strict=True)]
    found = contrast(
        "chosen-on-test",
        f"the best of {len(steps[0])} checkpoints is chosen on {count} games and reported on them",
        last,
        last,
        (float(gap.mean()), float(low), float(high)),
        kind="cost",
        group="training",
        pairing=f"{len(curves)} trainings, resampled games; the interval is that of one report",
        details={"reported": round(float(np.mean(reported)), 4), "honest": round(float(np.mean(honest)), 4)},
    )
    # the points are the difference of the sides: means over the draws, of whichever checkpoint was best in each
    found["repaired"]["success"] = round(float(np.mean(honest)), 6)
    found["defect"]["success"] = round(float(np.mean(reported)), 6)
    return found
