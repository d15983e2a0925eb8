"""Intervals and tests in closed form for the results of played games. numpy only; nothing here knows what a game is.

Two sources of chance must not be mixed up: which games were drawn (the intervals here and in `bootstrap`, of one
trained policy) and which training run was drawn. A thousand games of one run say nothing about the next run's seed
(Agarwal et al. 2021).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grue.errors import DataError

FloatArray = NDArray[np.float64]

LEVEL = 0.95  # of every interval
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)  # a standard normal variable lies in [-Z, Z] with this probability
_ANGLES = 100_001


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A point estimate with its confidence interval and its standard error."""

    value: float
    low: float
    high: float
    standard_error: float


def wilson(successes: int, n: int) -> Interval:
    """Score interval of a success rate; it stays inside [0, 1] and is honest at 0 of n and n of n.

    With no games nothing is known and the interval is [0, 1].
    Wilson (1927), Probable inference, the law of succession, and statistical inference, JASA 22.
    """
    if not 0 <= successes <= n:
        raise DataError(f"{successes} successes in {n} games is impossible", hint="need 0 <= successes <= n")
    return _wilson(successes / n, n) if n else Interval(0.0, 1.0)


def wilson_of_problems(x: ArrayLike, problems: Sequence[Hashable]) -> Interval:
    """`wilson` for x [n] in [0, 1], wins or shares won of games of which some pose the same of `problems` [n].

    n is replaced by an effective number of games: what n would have to be for independent games to vary as the problems
    do, reduced as a variance estimated from few problems is uncertain (Korn and Graubard 1998, Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data; with Wilson's interval, Franco
    et al. 2019, Comparative study of confidence intervals for proportions in complex sample surveys). An end is never
    nearer than if each problem had been a single game and all had ended alike: one game that ends differently from
    all others is no reason to be surer of them.
    """
    x_n = vector(x, "x")
    rate, y_k = float(x_n.mean()), by_problem(x_n[None], problems)[0]
    count, effective = y_k.size, float(x_n.size)
    if count < 2:
        return not_surer(_wilson(rate, 1.0), count)
    if (variance := float(y_k.var(ddof=1)) / count) > 0:
        effective = max(1e-9, min(effective, rate * (1 - rate) / variance))
    effective *= (Z / t_quantile(count - 1)) ** 2
    return not_surer(_wilson(rate, effective), count)


def not_surer(found: Interval, n: int) -> Interval:
    """An interval of success whose ends are no nearer than if n independent games had all been won, or lost."""
    return Interval(min(found.low, wilson(n, n).low), max(found.high, wilson(0, n).high))


def numbered(names: Sequence[Hashable]) -> NDArray[np.int64]:
    """A number for each name, from 0 on in the order in which they first appear."""
    index: dict[Hashable, int] = {}
    return np.array([index.setdefault(name, len(index)) for name in names])


def by_problem(x_RG: FloatArray, problems: Sequence[Hashable]) -> FloatArray:
    """[R, problems] from [R, games]: values whose plain mean is that over games, and which vary as it does.

    The mean over games weighs a problem by its games. Where problems differ in size that mean is a ratio of two sums
    over problems, and these are its linear part at each problem (Cochran 1977, Sampling techniques, section 6.3); where
    they do not, they are the problems' means.
    """
    places_n = numbered(problems)
    sizes_K = np.bincount(places_n).astype(np.float64)
    sums_RK = np.stack([np.bincount(places_n, weights=row) for row in x_RG])
    mean_R1 = x_RG.mean(axis=1, keepdims=True)
    found: FloatArray = mean_R1 + (sums_RK - sizes_K * mean_R1) * (sizes_K.size / x_RG.shape[1])
    return found


def t_quantile(degrees: float) -> float:
    """The t such that a variable of Student's t distribution lies in [-t, t] with probability `LEVEL`.

    With t = sqrt(degrees) tan(angle) the density is that of cos(angle)^(degrees - 1), which has no tail.
    """
    angles = np.linspace(0, pi / 2, _ANGLES)
    density = np.cos(angles) ** (degrees - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(sqrt(degrees) * np.tan(np.interp(LEVEL, area / area[-1], angles)))


def never_certain(difference: float, found: Interval, games: int, problems: int) -> Interval:
    """The interval `found` of a difference in success, made to claim no certainty if (nearly) all games differ alike.

    It then includes `alike_interval`: one game that differs is no reason to be surer of the others. Where `games` share
    `problems` this holds only if all problems differ alike: their means take many values, and the bound of a few would
    drown what they show.
    """
    low, high = max(-1.0, found.low), min(1.0, found.high)
    if games == problems or high - low < 1e-9:  # shares of a few plays, rounded
        alike = alike_interval(difference, problems)
        low, high = min(low, alike.low), max(high, alike.high)
    return Interval(low, high)


def alike_interval(difference: float, n: int) -> Interval:
    """Interval of a difference in success that is the same in all of n independent games; resampling gives no width.

    None of n games differs in another way, so the share of those that do is at most Wilson's upper end of 0 of n, and
    each of them may differ by anything between -1 and 1.
    """
    bound = wilson(0, n).high
    return Interval(difference - bound * (1 + difference), difference + bound * (1 - difference))


def smallest_detectable_difference(n: int, p: float, *, power: float = 0.8, correlation: float = 0.0) -> float:
    """The smallest change of a success rate p that n games for each of two policies show with this power.

    Solves the two-proportion sample-size formula (Fleiss, Levin and Paik 2003, chapter 4) for the difference,
    taking the change towards 0.5, where chance is larger; `correlation` is that of the two policies on the same
    games and 0 when the games differ (Miller 2024, section on power). It cannot exceed max(p, 1 - p): that value
    means that n games show nothing.
    """
    if n < 1 or not 0.0 <= p <= 1.0 or not 0.0 <= correlation < 1.0 or not 0.0 < power < 1.0:
        raise DataError(
            f"no detectable difference for n={n}, p={p}, correlation={correlation}, power={power}",
            hint="need n >= 1, p in [0, 1], correlation in [0, 1), power in (0, 1)",
        )
    z_power = NormalDist().inv_cdf(power)
    towards = 1.0 if p <= 0.5 else -1.0

    def shows(difference: float) -> bool:
        other = p + towards * difference
        mean = (p + other) / 2
        same = 2 * mean * (1 - mean) * (1 - correlation)
        apart = (p * (1 - p) + other * (1 - other)) * (1 - correlation)
        return difference * sqrt(n) >= Z * sqrt(same) + z_power * sqrt(max(apart, 0.0))

    low, high = 0.0, max(p, 1 - p)
    for _ in range(60):  # bisection: 60 halvings are below the resolution of a float
        middle = (low + high) / 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def vector(x: ArrayLike, name: str) -> FloatArray:
    """One finite number for each game, or DataError."""
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise DataError(f"{name} has shape {values.shape}", hint="pass one number for each game, at least one")
    if not np.isfinite(values).all():
        raise DataError(f"{name} holds {int((~np.isfinite(values)).sum())} values that are not finite")
    return values


def _wilson(rate: float, n: float) -> Interval:
    centre = (rate + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    # exact ends: rounding would otherwise leave 1e-17 where the formula gives 0 or 1
    return Interval(0.0 if rate == 0 else max(0.0, centre - half), 1.0 if rate == 1 else min(1.0, centre + half))
