"""Bootstrap intervals of means over games, and of paired differences. numpy only; nothing here knows what a game is."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from grue.errors import DataError
from grue.evaluate.stats import Estimate, FloatArray, Interval, never_certain, numbered, t_quantile, vector

_CHUNK = 4_000_000  # resampled values held at once: 32 MB of float64


def bootstrap_mean(
    x: ArrayLike,
    resamples: int = 2000,
    rng: np.random.Generator | None = None,
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
    x_n = vector(x, "x")
    means = _bootstrap_means(x_n, resamples, rng, clusters)
    return expanded_percentiles(means, _count(x_n, clusters))


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    resamples: int = 2000,
    rng: np.random.Generator | None = None,
    *,
    clusters: Sequence[Hashable] | None = None,
) -> Estimate:
    """Mean of a - b, where a[i] and b[i] come from the same game i, with a bootstrap interval over games.

    A game's difficulty cancels in a[i] - b[i], so the interval is narrower than that of two unpaired means
    by a factor of sqrt(1 - correlation) (Miller 2024, Adding error bars to evals, section on paired analysis).
    Where all games, or clusters, differ alike the interval has no width, as in `bootstrap_mean`; `paired_wins` does
    better for wins.
    """
    a_n, b_n = vector(a, "a"), vector(b, "b")
    if a_n.shape != b_n.shape:
        raise DataError(
            f"a paired difference needs the same games, got {a_n.size} and {b_n.size}",
            hint="keep the games that both policies finished, in the same order",
        )
    differences_n = a_n - b_n
    means = _bootstrap_means(differences_n, resamples, rng, clusters)
    low, high = expanded_percentiles(means, _count(differences_n, clusters))
    return Estimate(float(differences_n.mean()), low, high, _standard_error(means))


def paired_wins(
    a: ArrayLike,
    b: ArrayLike,
    resamples: int = 2000,
    rng: np.random.Generator | None = None,
    *,
    clusters: Sequence[Hashable] | None = None,
) -> Estimate:
    """`paired_difference` of wins, or of shares won, with the interval of `never_certain`; same standard error."""
    found = paired_difference(a, b, resamples, rng, clusters=clusters)
    games = vector(a, "a")
    low, high = never_certain(found.value, Interval(found.low, found.high), games.size, _count(games, clusters))
    return found._replace(low=low, high=high)


def expanded_percentiles(means: FloatArray, n: int) -> Interval:
    """Percentiles of resampled means of n independent values, further out than `LEVEL` the smaller n is.

    Resampled means vary less than means do, by a factor of sqrt((n - 1) / n), and plain percentiles use the normal
    distribution where Student's t is due. Each tail is what a normal distribution has beyond both (the expanded
    percentile interval of Hesterberg 2015, What teachers should know about the bootstrap, The American Statistician
    69). Where even the rarest resample is not that rare, with n below 5 or too few `means`, the interval is Student's.
    """
    if n < 2:
        return Interval(float(means.min()), float(means.max()))
    reach = sqrt(n / (n - 1)) * t_quantile(n - 1)  # in standard deviations of the resampled means
    tail = NormalDist().cdf(-reach)
    if tail < max(n**-n, 1 / means.size):
        centre, half = float(means.mean()), reach * _standard_error(means)
        return Interval(centre - half, centre + half)
    low, high = np.percentile(means, [100 * tail, 100 - 100 * tail])
    return Interval(float(low), float(high))


def _chunks(resamples: int, width: int) -> Iterator[int]:
    """Split the resamples so that one chunk of [rows, width] stays small."""
    if resamples < 1:
        raise DataError(f"{resamples} bootstrap resamples", hint="use at least 1,000 for a 95 % interval")
    rows = max(1, _CHUNK // width)
    while resamples > 0:
        yield min(rows, resamples)
        resamples -= rows


def _bootstrap_means(
    x_n: FloatArray, resamples: int, rng: np.random.Generator | None, clusters: Sequence[Hashable] | None
) -> FloatArray:
    """[resamples] means of x; with clusters, the sum over drawn clusters over the number of games in them."""
    rng = rng or np.random.default_rng(0)
    if clusters is None:
        n = x_n.size
        return np.concatenate([x_n[rng.integers(0, n, size=(rows, n))].mean(axis=1) for rows in _chunks(resamples, n)])
    if len(clusters) != x_n.size:
        raise DataError(f"{len(clusters)} cluster names for {x_n.size} values", hint="name the cluster of every value")
    cluster_n = numbered(clusters)
    sums_k = np.bincount(cluster_n, weights=x_n)
    sizes_k = np.bincount(cluster_n).astype(np.float64)
    means = []
    for rows in _chunks(resamples, sums_k.size):
        drawn = rng.integers(0, sums_k.size, size=(rows, sums_k.size))
        means.append(sums_k[drawn].sum(axis=1) / sizes_k[drawn].sum(axis=1))
    return np.concatenate(means)


def _count(x_n: FloatArray, clusters: Sequence[Hashable] | None) -> int:
    return x_n.size if clusters is None else len(set(clusters))


def _standard_error(resampled: FloatArray) -> float:
    return float(resampled.std(ddof=1)) if resampled.size > 1 else 0.0
