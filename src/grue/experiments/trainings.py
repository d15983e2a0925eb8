"""Several trainings that played the same games."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from grue.errors import DataError
from grue.evaluate.seeds import mean_over_seeds
from grue.evaluate.stats import FloatArray, Interval, by_problem, never_certain
from grue.experiments.cells import Cell


def shared_games(name: str, cells: Sequence[Cell]) -> list[int]:
    """The seeds of the games that all of the cells have finished. DataError, about `name`, if there are none."""
    games = sorted(set.intersection(*(set(cell.won) for cell in cells)))
    if not games:
        raise DataError(f"{name}: the trainings share no game", hint="delete their cells to remeasure")
    return games


def interval_over_trainings(values_SG: FloatArray, problems: Sequence[Hashable] | None = None) -> Interval:
    """95 % interval of the mean over trainings S and games G (`mean_over_seeds`); without width for a single problem.

    Where games share `problems` [G], the problems are the independent units.
    """
    posed = problems or range(values_SG.shape[1])
    if len(set(posed)) == 1:
        value = float(values_SG.mean())
        return Interval(value, value)
    return Interval(*mean_over_seeds(by_problem(values_SG, posed))[1:3])


def crossed_interval(difference_SG: FloatArray, problems: Sequence[Hashable] | None = None) -> Interval:
    """`interval_over_trainings` of the differences of each pair, made to claim no certainty.

    The two trainings of a pair share games and random draws, so a pair counts once; three pairs leave two degrees of
    freedom.
    """
    posed = problems or range(difference_SG.shape[1])
    found = interval_over_trainings(difference_SG, problems)
    return never_certain(float(difference_SG.mean()), found, len(posed), len(set(posed)))
