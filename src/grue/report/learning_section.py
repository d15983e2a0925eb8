"""The training part of the page: success on dev games, then every logged number as a small figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grue.names import FURTHEST_FIRST, TRAINING
from grue.report.curves import SMOOTHED, Constant, Panel, panel, panels
from grue.report.markup import Html, join, tag, wide
from grue.report.metrics import GROUP_TITLES, Metric, policy_title
from grue.report.plots import LARGE, Reference, panel_svg
from grue.report.runfiles import StageMetrics
from grue.report.svg import key_line
from grue.report.tables import by_policy, rows
from grue.report.text import duration, number, percent, short_percent

_STAGE_TITLES = {
    "sft": "Imitation (SFT)",
    "ppo": "Reinforcement learning (PPO)",
    "dagger": "Corrected imitation (DAgger)",
    "dagger_dev": "Games of the dev fold, during DAgger",
    "dev": "Games of the dev fold",
}
_AXES = {"sft": "optimiser steps", "ppo": "iterations", "dagger": "rounds", "dagger_dev": "rounds", "dev": "iterations"}
_STAGE_ORDER = ("ppo", "dev", "dagger", "dagger_dev", "sft")
_CURVES = (("dev", "dev"), ("ppo", "training"), ("dagger_dev", "dev"), ("dagger", "training"))  # stage, its games


def learning_section(
    stages: Mapping[str, StageMetrics],
    results: Mapping[str, Any] | None,
    *,
    kept: Mapping[str, float],
    trains: bool,
) -> Html:
    """The curves; `kept` says after how many iterations or rounds stages had the weights that they kept."""
    if not stages:
        note = tag("p", "Nothing has been logged yet." if trains else "This run trains nothing.", class_="absent")
        return tag("section", tag("h2", "Training"), note, id="training")
    order = sorted(stages, key=lambda name: (_STAGE_ORDER.index(name) if name in _STAGE_ORDER else 99, name))
    opened = next((name for name in FURTHEST_FIRST if name in stages), order[0])
    parts: list[Html | None] = [_main_figure(stages, results, kept)]
    for position, name in enumerate(order):
        parts.append(_stage(name, stages[name], position, opened=name == opened))
    return tag("section", tag("h2", "Training"), *parts, id="training")


def _main_figure(
    stages: Mapping[str, StageMetrics], results: Mapping[str, Any] | None, kept: Mapping[str, float]
) -> Html | None:
    """Success over the iterations, or the score if no game was won: on dev games if they were played twice or more."""
    for stage, games in _CURVES:
        found = _success_or_score(stages[stage]) if stage in stages else None
        if found is None or max(len(series.x) for series in found.series) < 2:
            continue
        caption = f"{found.metric.title} on {games} games over the {_AXES[stage]}."
        if found.band:
            caption += f" Bands: {found.band}."
        references: list[Reference] = []
        ring, drawn = None, "ppo" if stage == "dev" else "dagger"
        if games == "dev":
            ring, words = _ring(found.metric, stages[stage], kept.get(drawn), _AXES[stage])
            caption += words
            if found.metric.name == "success":
                references, words = _references(results, drawn, stages[stage])
                caption += words
        figure = panel_svg(found, "main", LARGE, references, ring=ring, axis=_AXES[stage])
        return tag("figure", wide(figure, found.metric.title), tag("figcaption", caption), class_="main")
    return None


def _success_or_score(stage: StageMetrics) -> Panel | None:
    """The panel of success, be it constant; that of the score if success is always 0."""
    success = panel(stage, "success")
    won = success is not None and any(value for series in success.series for value in (series.raw_y or series.y))
    return success if won else panel(stage, "score") or success


def _ring(metric: Metric, stage: StageMetrics, kept: float | None, axis: str) -> tuple[tuple[float, float] | None, str]:
    """The point of the kept weights, which need not be the last ones; and words for the caption."""
    measured = dict(stage.series.get(f"{metric.name}_greedy", ()))
    if kept is None or kept not in measured:
        return None, ""
    value = measured[kept]
    words = short_percent(value) if metric.unit == "share" else number(value)
    return (kept, value), f" Kept (ring): the weights of {axis.removesuffix('s')} {number(kept)} ({words})."


def _references(results: Mapping[str, Any] | None, drawn: str, stage: StageMetrics) -> tuple[list[Reference], str]:
    """What other players reach on the dev fold, greedy like the curve of the policy `drawn`; and words for the caption.

    The evaluation may have played other dev games than training did: then the words say how many, and trained policies
    are left out, as the curve begins with one of them.
    """
    others = [
        row
        for policy, row in by_policy(rows(results or {}, "dev")).items()
        if policy != drawn and row.decoding != "sampled" and row.success is not None
    ]
    curve = sum(points[-1][1] for name in ("games", "failed") if (points := stage.series.get(name)))
    table = {(row.games or 0) + (row.failed or 0) for row in others}
    games = "the same games"
    if table != {curve}:
        others = [row for row in others if row.policy not in TRAINING]
        games = f"{number(max(table, default=0))} dev games" + (f", the curve on {number(curve)}" if curve else "")
    lines = [Reference(policy_title(row.policy), row.success or 0.0) for row in others[:6]]
    downwards = sorted(lines, key=lambda line: -line.value)
    words = ", ".join(f"{line.name} {short_percent(line.value)}" for line in downwards)
    return lines, f" Dotted lines: {words}; on {games}." if lines else ""


def _stage(name: str, stage: StageMetrics, position: int, *, opened: bool) -> Html:
    grouped, constants = panels(stage)
    parts: list[Html | None] = []
    drawn, axis = [panel for members in grouped.values() for panel in members], _AXES.get(name, "steps")
    if drawn:
        note = f"Horizontal axis: {axis}."
        if any(panel.band == SMOOTHED for panel in drawn):
            note += " Faint lines are the logged values, strong lines their running mean, bands one standard deviation."
        parts.append(tag("p", note, class_="caption"))
        figures = [_figure(panel, f"s{position}-{index}", axis) for index, panel in enumerate(drawn)]
        parts.append(tag("div", *figures, class_="grid"))
    last = max((points[-1][0] for points in stage.series.values() if points), default=0)
    parts.append(_constants(constants, last, axis))
    parts.append(_not_finite(stage))
    lines = f"{stage.lines:,} logged step{'s' if stage.lines != 1 else ''}"
    # the dev fold is measured between iterations, on the clock of that stage
    took = f" in {duration(stage.seconds)}" if stage.seconds is not None and not name.endswith("dev") else ""
    title = tag("summary", tag("h3", _STAGE_TITLES.get(name, name)), " ", tag("small", lines + took))
    return tag("details", title, *parts, open=opened, class_="stage")


def _figure(panel: Panel, key: str, axis: str) -> Html:
    legend: list[Html] = []
    if len(panel.series) > 1:
        legend = [
            tag("span", key_line(index), " ", series.name or panel.metric.title, class_="legend")
            for index, series in enumerate(panel.series)
        ]
    band = f"Band: {panel.band}." if panel.band not in ("", SMOOTHED) else None
    caption = tag(
        "figcaption",
        tag("span", GROUP_TITLES[panel.metric.group], class_="group"),
        tag("b", panel.metric.title),
        tag("small", f" {panel.metric.unit}") if panel.metric.unit in ("nats", "seconds") else None,
        tag("span", join(legend, " "), class_="legends") if legend else None,
        tag("span", panel.metric.meaning, class_="meaning") if panel.metric.meaning else None,
        tag("span", band, class_="band") if band else None,
    )
    return tag("figure", caption, panel_svg(panel, key, axis=axis))


def _constants(constants: list[Constant], last: float, axis: str) -> Html | None:
    """Numbers without a curve, as a sentence; those that the `last` step did not measure say when they were."""
    if not constants:
        return None
    words = []
    for constant in constants:
        value = percent(constant.value) if constant.metric.unit == "share" else number(constant.value)
        title = constant.metric.title
        title = title[:1].lower() + title[1:] if title[1:2].islower() else title  # not KL
        notes = [constant.decoding] if constant.decoding else []
        notes += [f"after {constant.step:g} {axis}"] if constant.step < last else []
        words.append(" ".join([title, *([f"({', '.join(notes)})"] if notes else []), value]))
    return tag("p", f"At the last step: {', '.join(words)}.", class_="caption")


def _not_finite(stage: StageMetrics) -> Html | None:
    if not stage.not_finite:
        return None
    words = ", ".join(f"{name} {count} time{'s' if count != 1 else ''}" for name, count in stage.not_finite.items())
    return tag("p", tag("b", "Not finite: "), f"{words}. These points are missing from the figures.", class_="warning")
