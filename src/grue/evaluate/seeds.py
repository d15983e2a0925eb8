"""Means over training seeds: several trainings that all played the same games. numpy only.

Another seed would have given another policy, and other games another rate; the interval covers both. The mean of R
trainings over G games has the variance s_r^2 / R + s_g^2 / G, where s_r^2 is that of the trainings' means and s_g^2
that of the games' (two crossed random effects; what chance adds to each single game is in both). Its degrees of freedom
are those of Satterthwaite (1946, An approximate distribution of estimates of variance components): with three
trainings, and games that agree, hardly more than two. In simulations over 1000 games, 94 to 99 % of the 95 %
intervals held the truth with three trainings, 91 to 98 % with two, if trainings differ by up to two points (standard
deviation); if they differ by five, 92 to 94 and 85 to 88 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from grue.errors import DataError
from grue.evaluate.stats import Estimate, FloatArray, t_quantile


def mean_over_seeds(x_RG: FloatArray) -> Estimate:
    """Mean of R >= 2 trainings on the same G >= 2 games, with an interval over trainings and games."""
    return _estimate(float(x_RG.mean()), [_of_trainings(x_RG), _of_games(x_RG.mean(axis=0))])


def difference_over_seeds(a_RG: FloatArray, b_SG: FloatArray) -> Estimate:
    """Mean of a less that of b, of R and S >= 2 trainings on the same games: a game's difficulty cancels."""
    if a_RG.shape[1:] != b_SG.shape[1:]:
        raise DataError(f"{a_RG.shape[1:]} and {b_SG.shape[1:]} games", hint="both need the same games")
    apart_G = a_RG.mean(axis=0) - b_SG.mean(axis=0)
    return _estimate(float(apart_G.mean()), [_of_trainings(a_RG), _of_trainings(b_SG), _of_games(apart_G)])


def gap_over_seeds(a_RG: FloatArray, b_RH: FloatArray) -> Estimate:
    """Mean of a less that of b, of the same R >= 2 trainings on games G and on other games H."""
    if len(a_RG) != len(b_RH):
        raise DataError(f"{len(a_RG)} trainings on one side, {len(b_RH)} on the other")
    apart_R1 = a_RG.mean(axis=1, keepdims=True) - b_RH.mean(axis=1, keepdims=True)
    games = [_of_games(x.mean(axis=0)) for x in (a_RG, b_RH)]
    return _estimate(float(apart_R1.mean()), [_of_trainings(apart_R1), *games])


def _of_trainings(x_RG: FloatArray) -> tuple[float, int]:
    """(Variance of the mean, degrees of freedom) by the choice of trainings."""
    if x_RG.ndim != 2 or len(x_RG) < 2:
        raise DataError(f"{len(x_RG)} trainings tell nothing of how far others would lie", hint="train with two seeds")
    return float(x_RG.mean(axis=1).var(ddof=1)) / len(x_RG), len(x_RG) - 1


def _of_games(x_G: FloatArray) -> tuple[float, int]:
    if x_G.size < 2:
        raise DataError(f"{x_G.size} games tell nothing of how far others would lie")
    return float(x_G.var(ddof=1)) / x_G.size, x_G.size - 1


def _estimate(value: float, parts: Sequence[tuple[float, int]]) -> Estimate:
    variance = sum(part for part, _ in parts)
    if variance < 1e-18:  # rounding: all alike
        return Estimate(value, value, value, 0.0)
    degrees = variance**2 / sum(part**2 / free for part, free in parts)
    half = t_quantile(degrees) * sqrt(variance)
    return Estimate(value, value - half, value + half, sqrt(variance))
