"""Learning curves of several runs in one figure: a thin line for each training, a thick one for the mean of a kind.

Left: the games that a policy learns from, as it played them. Right: the dev games by which its checkpoint is chosen.
The x axis is environment steps, so that runs with iterations of different sizes can be compared.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grue.errors import ConfigError, DataError
from grue.evaluate.runs import kind_letter
from grue.names import DEV_ROWS
from grue.report.curves import SMOOTH_FROM, running
from grue.report.metrics import UNTRAINED, policy_title
from grue.report.plots import DASHES, compact, percent_tick, quiet_frame, spread
from grue.report.runfiles import RunFiles, read_run
from grue.report.svg import INK, MUTED, OKABE_ITO
from grue.report.tables import Row, by_policy, rows
from grue.report.text import counted, one_line, redact
from grue.storage.files import explained, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "png", "pdf")
_STAGES = {stage: (stage, rows) for stage, rows in DEV_ROWS.items()}  # policy -> its own games, dev games


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over the environment steps that a training had used."""

    steps: tuple[float, ...]  # the stage's own count: iterations or rounds
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """Trainings that differ only in the seed."""

    name: str
    played: tuple[Curve, ...]  # one for each training
    dev: tuple[Curve, ...]  # the same, or empty if one of them did not measure it


def check_figure_path(path: Path) -> None:
    """ConfigError unless the name ends in one of FORMATS."""
    if path.suffix[1:].lower() not in FORMATS:
        raise ConfigError(f"cannot draw a figure as {path}", hint=f"give a name that ends in .{', .'.join(FORMATS)}")


def draw_comparison(compared: Mapping[str, Any], path: Path) -> None:
    """Draw the curves of what `compare_runs` compared. DataError if a run logged none."""
    check_figure_path(path)
    policy = compared["policy"]
    if policy not in _STAGES:
        raise DataError(f"{policy} plays no games while it learns", hint="there are curves for --policy ppo and dagger")
    runs = [[read_run(Path(row["run"])) for row in kind["runs"]] for kind in compared["kinds"]]
    measure = "success" if any(_won(run, policy) for kind in runs for run in kind) else "score"
    alone = len(runs) == 1
    names = ["" if alone else _name(number, kind["settings"]) for number, kind in enumerate(compared["kinds"])]
    kinds = [_kind(name, members, policy, measure) for name, members in zip(names, runs, strict=True)]
    members = [run for kind in runs for run in kind]
    levels, counts = _levels_of([by_policy(rows(run.results or {}, "dev")) for run in members], measure)
    drawn = _dev_games(members, policy)
    played = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)})) if counts else ""
    note = f" (dotted: on {played} games)" if drawn and not counts <= drawn else ""
    with explained(f"write {path}"):
        write_atomic(path, _figure(_title(policy, runs), kinds, measure, levels, note, path.suffix[1:].lower()))


def _title(policy: str, kinds: Sequence[Sequence[RunFiles]]) -> str:
    """What the curves are of, as far as the runs agree: "PPO on cookingworld, preset cooking16, 5 seeds"."""
    configs = [run.config or {} for kind in kinds for run in kind]
    game = _agreed(part.get("name") if isinstance(part := config.get("game"), dict) else None for config in configs)
    preset = _agreed(config.get("preset") for config in configs)
    seeds = [{str((run.config or {}).get("seed", run.name)) for run in kind} for kind in kinds]
    title = policy_title(policy) + (f" on {game}" if game else "") + (f", preset {preset}" if preset else "")
    return f"{title}, {counted(len(seeds[0]), 'seed')}" if all(kind == seeds[0] for kind in seeds) else title


def _agreed(values: Iterable[object]) -> str:
    """The value that all runs have; empty if they differ or do not say."""
    found = {"" if value is None else redact(one_line(str(value), 60)) for value in values}
    return found.pop() if len(found) == 1 else ""


def _dev_games(runs: Sequence[RunFiles], policy: str) -> set[int]:
    """How many dev games the curves are drawn from, where runs say so."""
    stages = [stage for run in runs if (stage := run.stages.get(_STAGES[policy][1])) is not None]
    last = [[int(points[-1][1]) for name in ("games", "failed") if (points := s.series.get(name))] for s in stages]
    return {sum(found) for found in last if found}


def _levels_of(found: Sequence[Mapping[str, Row]], measure: str) -> tuple[dict[str, float], set[int]]:
    """What untrained players reach, averaged over runs; the base only if all runs measured the same one.

    And how many games they played.
    """
    levels: dict[str, float] = {}
    counts: set[int] = set()
    for policy in UNTRAINED:
        there = [here[policy] for here in found if policy in here and here[policy].decoding != "sampled"]
        values = [value for row in there if (value := getattr(row, measure)) is not None]
        if values and (policy != "base" or len({*values}) == 1):
            levels[policy_title(policy)] = fmean(values)
            counts |= {(row.games or 0) + (row.failed or 0) for row in there}
    return levels, counts


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over trainings, at the steps that all of them have."""
    tables = [dict(zip(curve.steps, zip(curve.x, curve.y, strict=True), strict=True)) for curve in curves]
    steps = tuple(step for step in curves[0].steps if all(step in table for table in tables))
    x, y = (tuple(fmean(table[step][which] for table in tables) for step in steps) for which in (0, 1))
    return Curve(steps, x, y)


def _won(run: RunFiles, policy: str) -> bool:
    """Whether any game was ever won: in adventures none may be, and then the score shows what was learnt."""
    logged = [run.stages[stage].series for stage in _STAGES[policy] if stage in run.stages]
    return any(
        value for series in logged for name in ("success", "success_greedy") for _, value in series.get(name, ())
    )


def _kind(name: str, runs: Sequence[RunFiles], policy: str, measure: str) -> Kind:
    played, dev = [], []
    for run in runs:
        own, held_out = (run.stages.get(stage) for stage in _STAGES[policy])
        if own is None or not own.series.get(measure) or not own.series.get("env_steps_trained"):
            raise DataError(f"{run.name} logged no games of {policy}", hint="is its metrics.jsonl complete?")
        used = {0.0: 0.0} | dict(own.series["env_steps_trained"])
        played.append(_curve(own.series[measure], used))
        if held_out is not None and (points := held_out.series.get(f"{measure}_greedy")):
            dev.append(_curve(points, used))
    title = f"mean of {len(runs)} trainings; thin lines: each of them" if len(runs) > 1 else "one training"
    return Kind(f"{name}: {title}" if name else title, tuple(played), tuple(dev) if len(dev) == len(runs) else ())


def _curve(points: Sequence[tuple[float, float]], used: Mapping[float, float]) -> Curve:
    known = [(step, used[step], value) for step, value in points if step in used]
    steps, x, y = zip(*known, strict=True) if known else ((), (), ())
    return Curve(steps, x, y)


def _name(number: int, settings: Mapping[str, Any]) -> str:
    return f"{kind_letter(number)}  {' '.join(f'{key}={value}' for key, value in settings.items())}"


def _figure(
    title: str, kinds: Sequence[Kind], measure: str, levels: Mapping[str, float], note: str, form: str
) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    held_out = any(kind.dev for kind in kinds)
    legend = 0.17 * (len(kinds) + 0.4)  # inches
    height = 3.1 + legend
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "grue", "text.parse_math": False, "font.size": 8}
    with rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a setting may hold a character that the font lacks
        figure = Figure(figsize=(7.8 if held_out else 4.6, height), facecolor="white")
        found = figure.subplots(1, 1 + held_out, sharex=True, sharey=True, squeeze=False)[0]
        left, low, top = 0.5 / figure.get_figwidth(), (0.44 + legend) / height, 1 - 0.5 / height
        figure.subplots_adjust(left=left, right=0.9, bottom=low, top=top, wspace=0.08)
        title = one_line(title, 100 if held_out else 60)
        figure.text(left, 1 - 0.1 / height, title, verticalalignment="top", fontsize=9, color=INK)
        _panel(found[0], "train games, sampled, as it learns", measure, [kind.played for kind in kinds], smooth=True)
        if held_out:
            _panel(found[1], f"dev games, greedy{note}", measure, [kind.dev for kind in kinds], smooth=False)
            _levels(found[1], levels)
        handles = [Line2D([], [], **_look(number)) for number in range(len(kinds))]
        names = [one_line(kind.name, 110 if held_out else 60) for kind in kinds]
        figure.legend(handles, names, loc="lower left", frameon=False, labelcolor=INK, ncols=1)
        buffer = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})  # equal runs give equal files
        named = {} if form == "png" else {"Title": title}
        figure.savefig(buffer, format=form, dpi=200, metadata={**undated, **named})
    return buffer.getvalue()


def _look(number: int) -> dict[str, Any]:
    return {"color": OKABE_ITO[number % len(OKABE_ITO)], "linestyle": DASHES[number % 4], "linewidth": 1.6}


def _panel(axes: Axes, title: str, measure: str, kinds: Sequence[Sequence[Curve]], *, smooth: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(f"{measure}, {title}", loc="left", fontsize=8, color=INK)
    for number, curves in enumerate(kinds):
        if not curves:
            continue
        look = _look(number)
        mean = mean_curve(curves)
        smoothed = smooth and len(mean.y) >= SMOOTH_FROM
        for curve in curves if len(curves) > 1 or smoothed else ():
            axes.plot(curve.x, curve.y, color=look["color"], linewidth=0.6, alpha=0.35)
        y = running(mean.y)[0] if smoothed else mean.y
        axes.plot(mean.x, y, marker="" if smoothed or len(mean.x) > 40 else "o", markersize=2.6, **look)
    quiet_frame(axes)
    axes.set_xlabel("environment steps", color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    if measure == "success":
        axes.set_ylim(-0.01, 1.02)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent_tick(value)))


def _levels(axes: Axes, levels: Mapping[str, float]) -> None:
    """What untrained players reach, named at the right."""
    low, high = axes.get_ylim()
    ordered = sorted(levels.items(), key=lambda item: item[1])
    heights = spread([value for _, value in ordered], gap=0.06 * (high - low), low=low, high=high)
    for (name, value), height in zip(ordered, heights, strict=True):
        axes.axhline(value, color=MUTED, linewidth=0.7, linestyle=(0, (1.5, 2.5)), zorder=1)
        axes.text(1.02, height, name, transform=axes.get_yaxis_transform(), color=MUTED, verticalalignment="center")
