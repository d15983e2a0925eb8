"""Intervals and tests for the results of played games. numpy only; nothing here knows what a game is.

Two sources of chance must not be mixed up: which games were drawn (the intervals here, of one trained policy) and
which training run was drawn. A thousand games of one run say nothing about the next run's seed (Agarwal et al. 2021).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grue.errors import DataError

FloatArray = NDArray[np.float64]

_CHUNK = 4_000_000  # resampled values held at once: 32 MB of float64
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


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Score interval of a success rate; it stays inside [0, 1] and is honest at 0 of n and n of n.

    With no games nothing is known and the interval is [0, 1].
    Wilson (1927), Probable inference, the law of succession, and statistical inference, JASA 22.
    """
    if not 0 <= successes <= n:
        raise DataError(f"{successes} successes in {n} games is impossible", hint="need 0 <= successes <= n")
    _two_sided_z(level)  # refuses an impossible level
    return _wilson(successes / n, n, level) if n else Interval(0.0, 1.0)


def wilson_of_problems(x: ArrayLike, problems: Sequence[Hashable], level: float = 0.95) -> Interval:
    """`wilson` for x [n] in [0, 1], wins or shares won of games of which some pose the same of `problems` [n].

    n is replaced by an effective number of games: what n would have to be for independent games to vary as the problems
    do, reduced as a variance estimated from few problems is uncertain (Korn and Graubard 1998, Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data; with Wilson's interval, Franco
    et al. 2019, Comparative study of confidence intervals for proportions in complex sample surveys). An end is never
    nearer than if each problem had been a single game and all had ended alike: one game that ends differently from
    all others is no reason to be surer of them.
    """
    x_n = _vector(x, "x")
    rate, y_k = float(x_n.mean()), by_problem(x_n[None], problems)[0]
    count, effective = y_k.size, float(x_n.size)
    if count < 2:
        return not_surer(_wilson(rate, 1.0, level), count, level)
    if (variance := float(y_k.var(ddof=1)) / count) > 0:
        effective = max(1e-9, min(effective, rate * (1 - rate) / variance))
    effective *= (_two_sided_z(level) / t_quantile(level, count - 1)) ** 2
    return not_surer(_wilson(rate, effective, level), count, level)


def not_surer(found: Interval, n: int, level: float = 0.95) -> Interval:
    """An interval of success whose ends are no nearer than if n independent games had all been won, or lost."""
    return Interval(min(found.low, wilson(n, n, level).low), max(found.high, wilson(0, n, level).high))


def by_problem(x_RG: FloatArray, problems: Sequence[Hashable]) -> FloatArray:
    """[R, problems] from [R, games]: values whose plain mean is that over games, and which vary as it does.

    The mean over games weighs a problem by its games. Where problems differ in size that mean is a ratio of two sums
    over problems, and these are its linear part at each problem (Cochran 1977, Sampling techniques, section 6.3); where
    they do not, they are the problems' means.
    """
    index: dict[Hashable, int] = {}
    places_n = np.array([index.setdefault(name, len(index)) for name in problems])
    sizes_K = np.bincount(places_n).astype(np.float64)
    sums_RK = np.stack([np.bincount(places_n, weights=row) for row in x_RG])
    mean_R1 = x_RG.mean(axis=1, keepdims=True)
    found: FloatArray = mean_R1 + (sums_RK - sizes_K * mean_R1) * (sizes_K.size / x_RG.shape[1])
    return found


def t_quantile(level: float, degrees: float) -> float:
    """The t such that a variable of Student's t distribution lies in [-t, t] with probability `level`.

    With t = sqrt(degrees) tan(angle) the density is that of cos(angle)^(degrees - 1), which has no tail.
    """
    angles = np.linspace(0, pi / 2, _ANGLES)
    density = np.cos(angles) ** (degrees - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(sqrt(degrees) * np.tan(np.interp(level, area / area[-1], angles)))


def bootstrap_mean(
    x: ArrayLike,
    resamples: int = 2000,
    rng: np.random.Generator | None = None,
    level: float = 0.95,
    *,
    clusters: Sequence[Hashable] | None = None,
) -> Interval:
    """Bootstrap interval of the mean of x [n], by `expanded_percentiles`.

    `clusters` [n] names the games that share a cause (the same layout played several times, the same recipe):
    whole clusters are drawn, since drawing their members apart makes the interval too narrow (Miller 2024,
    Adding error bars to evals, section on clustered questions). Without `rng` the result is the same every time.

    Where all x are equal, or the means of all clusters, the interval has no width. That is not certainty: how much
    other games differ cannot be told from x unless their range is known, so wins use `wilson` then, and scores are left
    as they are.
    """
    x_n = _vector(x, "x")
    means = _bootstrap_means(x_n, resamples, rng, clusters)
    return expanded_percentiles(means, level, _count(x_n, clusters))


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    resamples: int = 2000,
    rng: np.random.Generator | None = None,
    level: float = 0.95,
    *,
    clusters: Sequence[Hashable] | None = None,
) -> Estimate:
    """Mean of a - b, where a[i] and b[i] come from the same game i, with a bootstrap interval over games.

    A game's difficulty cancels in a[i] - b[i], so the interval is narrower than that of two unpaired means
    by a factor of sqrt(1 - correlation) (Miller 2024, Adding error bars to evals, section on paired analysis).
    Where all games, or clusters, differ alike the interval has no width, as in `bootstrap_mean`; `paired_wins` does
    better for wins.
    """
    a_n, b_n = _vector(a, "a"), _vector(b, "b")
    if a_n.shape != b_n.shape:
        raise DataError(
            f"a paired difference needs the same games, got {a_n.size} and {b_n.size}",
            hint="keep the games that both policies finished, in the same order",
        )
    differences_n = a_n - b_n
    means = _bootstrap_means(differences_n, resamples, rng, clusters)
    low, high = expanded_percentiles(means, level, _count(differences_n, clusters))
    return Estimate(float(differences_n.mean()), low, high, _standard_error(means))


def paired_wins(
    a: ArrayLike,
    b: ArrayLike,
    resamples: int = 2000,
    rng: np.random.Generator | None = None,
    level: float = 0.95,
    *,
    clusters: Sequence[Hashable] | None = None,
) -> Estimate:
    """`paired_difference` of wins, or of shares won, with the interval of `never_certain`; same standard error."""
    found = paired_difference(a, b, resamples, rng, level, clusters=clusters)
    games = _vector(a, "a")
    low, high = never_certain(found.value, Interval(found.low, found.high), games.size, _count(games, clusters), level)
    return found._replace(low=low, high=high)


def never_certain(difference: float, found: Interval, games: int, problems: int, level: float = 0.95) -> Interval:
    """The interval `found` of a difference in success, made to claim no certainty if (nearly) all games differ alike.

    It then includes `alike_interval`: one game that differs is no reason to be surer of the others. Where `games` share
    `problems` this holds only if all problems differ alike: their means take many values, and the bound of a few would
    drown what they show.
    """
    low, high = max(-1.0, found.low), min(1.0, found.high)
    if games == problems or high - low < 1e-9:  # shares of a few plays, rounded
        alike = alike_interval(difference, problems, level)
        low, high = min(low, alike.low), max(high, alike.high)
    return Interval(low, high)


def alike_interval(difference: float, n: int, level: float = 0.95) -> Interval:
    """Interval of a difference in success that is the same in all of n independent games; resampling gives no width.

    None of n games differs in another way, so the share of those that do is at most Wilson's upper end of 0 of n, and
    each of them may differ by anything between -1 and 1.
    """
    bound = wilson(0, n, level).high
    return Interval(difference - bound * (1 + difference), difference + bound * (1 - difference))


def smallest_detectable_difference(
    n: int, p: float, *, level: float = 0.95, power: float = 0.8, correlation: float = 0.0
) -> float:
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
    z_level, z_power = _two_sided_z(level), NormalDist().inv_cdf(power)
    towards = 1.0 if p <= 0.5 else -1.0

    def shows(difference: float) -> bool:
        other = p + towards * difference
        mean = (p + other) / 2
        same = 2 * mean * (1 - mean) * (1 - correlation)
        apart = (p * (1 - p) + other * (1 - other)) * (1 - correlation)
        return difference * sqrt(n) >= z_level * sqrt(same) + z_power * sqrt(max(apart, 0.0))

    low, high = 0.0, max(p, 1 - p)
    for _ in range(60):  # bisection: 60 halvings are below the resolution of a float
        middle = (low + high) / 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _wilson(rate: float, n: float, level: float) -> Interval:
    z = _two_sided_z(level)
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # exact ends: rounding would otherwise leave 1e-17 where the formula gives 0 or 1
    return Interval(0.0 if rate == 0 else max(0.0, centre - half), 1.0 if rate == 1 else min(1.0, centre + half))


def _two_sided_z(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise DataError(f"confidence level {level} is outside (0, 1)", hint="use 0.95 for a 95 % interval")
    return NormalDist().inv_cdf((1 + level) / 2)


def _vector(x: ArrayLike, name: str) -> FloatArray:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise DataError(f"{name} has shape {values.shape}", hint="pass one number for each game, at least one")
    if not np.isfinite(values).all():
        raise DataError(f"{name} holds {int((~np.isfinite(values)).sum())} values that are not finite")
    return values


def _generator(rng: np.random.Generator | None) -> np.random.Generator:
    return np.random.default_rng(0) if rng is None else rng


def _chunks(resamples: int, width: int) -> Iterator[int]:
    """Split the resamples so that one chunk of [rows, width] stays small."""
    if resamples < 1:
        raise DataError(f"{resamples} bootstrap resamples", hint="use at least 1,000 for a 95 % interval")
    rows = max(1, _CHUNK // width)
    while resamples > 0:
        yield min(rows, resamples)
        resamples -= rows


def _draw(values: FloatArray, rows: int, rng: np.random.Generator) -> FloatArray:
    """[rows, n] values drawn with replacement."""
    drawn: FloatArray = values[rng.integers(0, values.size, size=(rows, values.size))]
    return drawn


def _bootstrap_means(
    x_n: FloatArray, resamples: int, rng: np.random.Generator | None, clusters: Sequence[Hashable] | None
) -> FloatArray:
    """[resamples] means of x; with clusters, the sum over drawn clusters over the number of games in them."""
    rng = _generator(rng)
    if clusters is None:
        return np.concatenate([_draw(x_n, rows, rng).mean(axis=1) for rows in _chunks(resamples, x_n.size)])
    if len(clusters) != x_n.size:
        raise DataError(f"{len(clusters)} cluster names for {x_n.size} values", hint="name the cluster of every value")
    index: dict[Hashable, int] = {}
    cluster_n = np.array([index.setdefault(name, len(index)) for name in clusters])
    sums_k = np.bincount(cluster_n, weights=x_n)
    sizes_k = np.bincount(cluster_n).astype(np.float64)
    means = []
    for rows in _chunks(resamples, sums_k.size):
        drawn = rng.integers(0, sums_k.size, size=(rows, sums_k.size))
        means.append(sums_k[drawn].sum(axis=1) / sizes_k[drawn].sum(axis=1))
    return np.concatenate(means)


def _count(x_n: FloatArray, clusters: Sequence[Hashable] | None) -> int:
    return x_n.size if clusters is None else len(set(clusters))


def expanded_percentiles(means: FloatArray, level: float, n: int) -> Interval:
    """Percentiles of resampled means of n independent values, further out than `level` the smaller n is.

    Resampled means vary less than means do, by a factor of sqrt((n - 1) / n), and plain percentiles use the normal
    distribution where Student's t is due. Each tail is what a normal distribution has beyond both (the expanded
    percentile interval of Hesterberg 2015, What teachers should know about the bootstrap, The American Statistician
    69). Where even the rarest resample is not that rare, with n below 5 or too few `means`, the interval is Student's.
    """
    _two_sided_z(level)  # refuses an impossible level
    if n < 2:
        return Interval(float(means.min()), float(means.max()))
    reach = sqrt(n / (n - 1)) * t_quantile(level, n - 1)  # in standard deviations of the resampled means
    tail = NormalDist().cdf(-reach)
    if tail < max(n**-n, 1 / means.size):
        centre, half = float(means.mean()), reach * _standard_error(means)
        return Interval(centre - half, centre + half)
    low, high = np.percentile(means, [100 * tail, 100 - 100 * tail])
    return Interval(float(low), float(high))


def _standard_error(resampled: FloatArray) -> float:
    return float(resampled.std(ddof=1)) if resampled.size > 1 else 0.0
