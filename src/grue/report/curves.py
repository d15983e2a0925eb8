"""From logged numbers to what is drawn: panels of series with bands. Pure data, no drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from statistics import fmean

from grue.report.metrics import DECODINGS, GROUP_TITLES, METRICS, Group, Metric, lookup, split_name
from grue.report.runfiles import StageMetrics

Points = list[tuple[float, float]]

SMOOTHED = "running mean and standard deviation"

SMOOTH_FROM = 16  # points: shorter series are shown as they are
_MOST_POINTS = 600


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points and, where known, the band around it."""

    name: str  # "", "greedy", "sampled"
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    raw_y: tuple[float, ...] = ()  # the values that y smooths, drawn faintly


@dataclass(frozen=True, slots=True)
class Panel:
    """One small figure: a metric, its lines, and what the band is."""

    metric: Metric
    series: tuple[Series, ...]
    band: str  # what the band shows; empty without one


@dataclass(frozen=True, slots=True)
class Constant:
    """A metric without a curve: a counter's last value, or a number that never changed."""

    metric: Metric
    decoding: str
    value: float
    step: float  # at which it was logged last


def panels(stage: StageMetrics) -> tuple[dict[Group, list[Panel]], list[Constant]]:
    """The panels of a stage by group, in the order of the metrics table, and the numbers that need no figure."""
    by_metric = _by_metric(stage)
    grouped: dict[Group, list[Panel]] = {group: [] for group in GROUP_TITLES}
    constants: list[Constant] = []
    for name in sorted(by_metric, key=_rank):
        metric_info, lines = lookup(name), by_metric[name]
        if metric_info.kind == "counter" or all(_is_constant(parts[""]) for parts in lines.values()):
            lasts = [(decoding, *parts[""][-1]) for decoding, parts in lines.items()]
            constants += [Constant(metric_info, decoding, value, step) for decoding, step, value in lasts]
            continue
        grouped[metric_info.group].append(_panel(metric_info, lines))
    return {group: found for group, found in grouped.items() if found}, constants


def panel(stage: StageMetrics, name: str) -> Panel | None:
    """The panel of one metric, even if it never changed."""
    lines = _by_metric(stage).get(name)
    return None if lines is None else _panel(lookup(name), lines)


def _by_metric(stage: StageMetrics) -> dict[str, dict[str, dict[str, Points]]]:
    """Metric -> decoding -> "" or the bound of an interval -> points."""
    found: dict[str, dict[str, dict[str, Points]]] = {}
    for name, points in stage.series.items():
        metric, decoding, bound = split_name(name)
        if bound and name.removesuffix(f"_{bound}") not in stage.series:
            metric, decoding, bound = name, "", ""  # not the bound of another metric, but one of its own
        found.setdefault(metric, {}).setdefault(decoding, {})[bound] = points
    return found


def _rank(name: str) -> tuple[int, str]:
    known = list(METRICS)
    return (known.index(name) if name in METRICS else len(known), name)


def _is_constant(points: Points) -> bool:
    return len({value for _, value in points}) == 1


def _panel(metric: Metric, lines: dict[str, dict[str, Points]]) -> Panel:
    series, bands = [], set()
    order = ["", *DECODINGS]
    for decoding in sorted(lines, key=order.index):
        found, band = _series(decoding, lines[decoding], noisy=metric.kind != "setting")
        series.append(found)
        bands.add(band)
    return Panel(metric, tuple(series), "; ".join(sorted(bands - {""})))


def _series(decoding: str, parts: dict[str, Points], *, noisy: bool) -> tuple[Series, str]:
    points = parts[""]
    x, y = tuple(point[0] for point in points), tuple(point[1] for point in points)
    ends = dict(parts.get("lo", ())), dict(parts.get("hi", ()))
    if ends[0] and all(step in one for one in ends for step in x):
        return Series(decoding, x, y, *(tuple(one[step] for step in x) for one in ends)), "95% interval"
    if len(points) < SMOOTH_FROM or not noisy:
        return Series(decoding, *_thinned(x, y)), ""
    mean, spread = running(y)  # of all values: those of thinned ones would spread less
    lower = tuple(m - s for m, s in zip(mean, spread, strict=True))
    upper = tuple(m + s for m, s in zip(mean, spread, strict=True))
    drawn_x, raw = _thinned(x, y)
    drawn, low, high = (_thinned(x, values)[1] for values in (mean, lower, upper))
    return Series(decoding, drawn_x, drawn, low, high, raw_y=raw), SMOOTHED


def running(y: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Centred running mean and standard deviation over a twentieth of the values; fewer at the ends.

    From running sums: a long training has logged tens of thousands of values, and the windows grow with them.
    """
    half, middle = max(5, len(y) // 20) // 2, fmean(y)
    scale = max(abs(value - middle) for value in y) or 1.0
    apart = [(value - middle) / scale for value in y]
    sums = list(accumulate(apart, initial=0.0))
    squares = list(accumulate((value * value for value in apart), initial=0.0))
    means, spreads = [], []
    for index in range(len(y)):
        start, end = max(0, index - half), min(len(y), index + half + 1)
        mean = (sums[end] - sums[start]) / (end - start)
        variance = (squares[end] - squares[start]) / (end - start) - mean * mean
        means.append(middle + scale * mean)
        spreads.append(scale * sqrt(max(0.0, variance)))
    return tuple(means), tuple(spreads)


def _thinned(x: Sequence[float], y: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most _MOST_POINTS points, each the mean of its neighbours: more cannot be seen and would bloat the page."""
    if len(x) <= _MOST_POINTS:
        return tuple(x), tuple(y)
    size = -(-len(x) // _MOST_POINTS)
    starts = range(0, len(x), size)
    return tuple(fmean(x[i : i + size]) for i in starts), tuple(fmean(y[i : i + size]) for i in starts)
