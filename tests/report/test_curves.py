"""From logged lines to panels, and from panels to figures that contain the data."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import metrics, write_metrics

from grue.report.curves import Panel, Series, panels, running
from grue.report.metrics import GROUP_TITLES, METRICS, lookup, split_name
from grue.report.plots import LARGE, Reference, compact, panel_svg, spread
from grue.report.runfiles import StageMetrics, read_run


def stage(**series: list[float]) -> StageMetrics:
    points = {name: [(float(step), value) for step, value in enumerate(values)] for name, values in series.items()}
    return StageMetrics(points, {}, None, max(map(len, series.values())))


def only_panel(logged: StageMetrics) -> Panel:
    (panel,) = [panel for group in panels(logged)[0].values() for panel in group]
    return panel


# The table of metrics


def test_every_metric_is_explained_in_one_sentence() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.meaning.endswith(".")
        assert metric.meaning.count(". ") == 0
        assert metric.title
        assert metric.group in GROUP_TITLES


def test_everything_that_training_logs_is_in_the_table() -> None:
    logged = {name for line in metrics(4, 4) for name in line} - {"stage", "step", "time_s"}
    assert {split_name(name)[0] for name in logged} <= set(METRICS)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("success", ("success", "", "")),
        ("success_greedy", ("success", "greedy", "")),
        ("success_greedy_lo", ("success", "greedy", "lo")),
        ("steps_mean_sampled", ("steps_mean", "sampled", "")),
        ("kl_ref", ("kl_ref", "", "")),
    ],
)
def test_names_are_taken_apart(name: str, parts: tuple[str, str, str]) -> None:
    assert split_name(name) == parts


def test_an_unknown_metric_keeps_its_name() -> None:
    assert (lookup("my_metric").title, lookup("my_metric").group) == ("my metric", "other")


# Panels


def test_decodings_share_a_panel_and_bounds_become_its_band() -> None:
    panel = only_panel(
        stage(
            success_sampled=[0.1, 0.2],
            success_greedy=[0.2, 0.4],
            success_greedy_lo=[0.1, 0.3],
            success_greedy_hi=[0.3, 0.5],
        )
    )
    assert panel.band == "95% interval"
    greedy, sampled = panel.series
    assert greedy == Series("greedy", (0.0, 1.0), (0.2, 0.4), (0.1, 0.3), (0.3, 0.5))
    assert sampled == Series("sampled", (0.0, 1.0), (0.1, 0.2))


def test_a_bound_of_nothing_is_a_metric_of_its_own() -> None:
    assert only_panel(stage(humidity_lo=[1.0, 2.0])).metric.name == "humidity_lo"


def test_a_share_of_games_alone_has_no_interval() -> None:
    """Several of them may be plays of one game, which are not independent: who measured knows, the page does not."""
    panel = only_panel(stage(success=[0.25, 0.5], episodes=[8, 8]))
    assert (panel.series, panel.band) == ((Series("", (0.0, 1.0), (0.25, 0.5)),), "")


def test_long_noisy_series_are_smoothed_and_keep_their_raw_values() -> None:
    values = [float(step % 2) for step in range(100)]
    (series,) = only_panel(stage(grad_norm=values)).series
    assert series.raw_y == tuple(values)
    assert all(0.3 < value < 0.7 for value in series.y[3:-3])
    assert all(low <= mean <= high for low, mean, high in zip(series.low, series.y, series.high, strict=True))


def test_a_schedule_is_drawn_as_it_was_set() -> None:
    (series,) = only_panel(stage(learning_rate=[0.5 ** (step // 10) for step in range(50)])).series
    assert series.y[9:11] == (1.0, 0.5) and not series.low and not series.raw_y


def test_very_long_series_are_thinned_without_moving() -> None:
    (series,) = only_panel(stage(loss=[float(step) for step in range(5000)])).series
    assert len(series.x) <= 600
    assert series.x == pytest.approx(series.raw_y)


def test_the_band_of_a_long_series_is_that_of_its_values() -> None:
    """It was that of values already averaged, so a curve of 3,000 steps had less than half of it."""
    rng = random.Random(0)
    (series,) = only_panel(stage(loss=[rng.gauss(0, 1) for _ in range(3000)])).series
    middle = len(series.x) // 2
    assert (series.high[middle] - series.low[middle]) / 2 == pytest.approx(1, abs=0.15)


def test_running_means_are_those_of_the_windows() -> None:
    rng = random.Random(0)
    y = [1e6 + rng.gauss(0, 1) for _ in range(237)]
    means, spreads = running(y)
    for index in (0, 3, 100, 236):
        near = y[max(0, index - 5) : index + 6]
        assert means[index] == pytest.approx(fmean(near), rel=1e-12)
        assert spreads[index] == pytest.approx(pstdev(near), rel=1e-6)
    assert running([2.5] * 40) == ((2.5,) * 40, (0.0,) * 40)


def test_counters_and_constants_are_stated_and_not_drawn() -> None:
    drawn, constants = panels(stage(env_steps_trained=[10.0, 20.0], learning_rate=[0.1, 0.1], entropy=[1.0, 0.5]))
    assert [panel.metric.name for group in drawn.values() for panel in group] == ["entropy"]
    assert {constant.metric.name: constant.value for constant in constants} == {
        "env_steps_trained": 20.0,
        "learning_rate": 0.1,
    }
    assert {constant.step for constant in constants} == {1.0}


# Reading metrics.jsonl


def test_lines_are_ordered_repeated_steps_replaced_and_odd_values_counted(tmp_path: Path) -> None:
    lines = [
        {"stage": "ppo", "step": 2, "time_s": 4.0, "success": 0.5},
        {"stage": "ppo", "step": 1, "time_s": 2.0, "success": 0.1, "policy_loss": None, "note": "text"},
        {"stage": "ppo", "step": 2, "time_s": 5.0, "success": 0.75, "explained_variance": None, "invalid": None},
    ]
    write_metrics(tmp_path, lines)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "ppo", "step": 3, "success": NaN, "big": 1' + "0" * 400 + ', "loss": -1e308}\n')
        file.write('[1]\n{"stage": "pp')
    run = read_run(tmp_path)
    ppo = run.stages["ppo"]
    assert ppo.series == {"success": [(1.0, 0.1), (2.0, 0.75)]}
    assert ppo.not_finite == {"policy_loss": 1, "success": 1, "loss": 1}  # an axis from -1e308 to 1e308 has no length
    assert (ppo.lines, ppo.seconds) == (3, 5.0)
    assert any("2 unreadable" in problem for problem in run.problems)
    assert any("more than once" in problem for problem in run.problems)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_without_a_step_replaces_no_other(place: int, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"stage": "ppo", "step": n, "time_s": 1.0, "success": 0.25 * n} for n in (1, 2)]
    lines.insert(place, {"stage": "ppo", "time_s": 1.0, "success": 0.9})
    write_metrics(tmp_path, lines)
    run = read_run(tmp_path)
    assert run.stages["ppo"].series == {"success": [(1.0, 0.25), (2.0, 0.5)]}
    assert run.problems == ["metrics.jsonl: 1 line(s) were left out, as the step is absent or not a number"]


# Figures


class Paths(HTMLParser):
    """The vertices of every path, by the id of the group around it, and all text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.group, self.vertices, self.texts = "", {}, []  # type: ignore[var-annotated]
        self.feed(source)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if name == "g" and found.get("id"):
            self.group = str(found["id"])
        if name in ("path", "use") and found.get("d"):
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", str(found["d"]))]
            self.vertices.setdefault(self.group, list(zip(numbers[::2], numbers[1::2], strict=True)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def is_linear(drawn: list[float], data: list[float]) -> bool:
    """Whether drawn = a * data + b with one a and b."""
    scale = (drawn[-1] - drawn[0]) / (data[-1] - data[0])
    return drawn == pytest.approx([drawn[0] + scale * (value - data[0]) for value in data], abs=1e-3)


def test_the_figure_contains_the_data() -> None:
    x, y = [0.0, 4.0, 8.0, 12.0], [0.30, 0.45, 0.20, 0.90]
    series = Series("greedy", tuple(x), tuple(y), tuple(v - 0.1 for v in y), tuple(v + 0.1 for v in y))
    found = Paths(panel_svg(Panel(METRICS["success"], (series,), "95% interval"), "k"))
    line = found.vertices["k-data-0"]
    assert len(line) == 4
    assert is_linear([vertex[0] for vertex in line], x)
    assert is_linear([vertex[1] for vertex in line], y)
    assert line[3][1] < line[0][1]  # up is up
    assert "k-band-0" in found.vertices
    assert "4 points over steps 0 to 12, from 30.0% to 90.0%" in " ".join(found.texts)


def test_counts_have_whole_ticks() -> None:
    panel = only_panel(stage(failed=[0.0, 1.0, 2.0]))
    ticks = [text for text in Paths(panel_svg(panel, "k")).texts if text.replace(".", "").isdigit()]
    assert ticks and all("." not in text for text in ticks)


def test_references_and_lines_are_named() -> None:
    series = Series("greedy", (0.0, 1.0), (0.5, 0.6))
    panel = Panel(METRICS["success"], (series,), "")
    svg = panel_svg(panel, "k", LARGE, [Reference("gold", 0.58), Reference("$x^2$ <b>", 0.0)])
    texts = " ".join(Paths(svg).texts)
    assert "gold  58%" in texts
    assert "greedy  60%" in texts
    assert "$x^2$ <b>  0%" in texts
    assert "<b>" not in svg


def test_colours_follow_the_theme_and_names_are_unique() -> None:
    panel = Panel(METRICS["success"], tuple(Series(str(i), (0.0, 1.0), (0.1 * i, 0.5)) for i in range(3)), "")
    one, two = panel_svg(panel, "one"), panel_svg(panel, "two")
    assert "#0072b2" not in one
    assert "var(--c0)" in one
    assert not set(re.findall(r'id="([^"]+)"', one)) & set(re.findall(r'id="([^"]+)"', two))
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', one):
        assert f'id="{reference}"' in one
    assert one == panel_svg(panel, "one")


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=30))
def test_any_finite_numbers_make_a_figure(values: list[float]) -> None:
    for group in panels(stage(policy_loss=values))[0].values():
        for panel in group:
            assert panel_svg(panel, "k").startswith("<svg")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (12, "12"), (61440, "61.44k"), (1.5e6, "1.5M"), (2e-4, "2e−4"), (-3.5e-7, "−3.5e−7"),
     (1e15, "1e15"), (-20, "−20")],
)  # fmt: skip
def test_tick_labels_are_short(value: float, text: str) -> None:
    assert compact(value) == text


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted))
def test_names_do_not_overlap_and_keep_their_order(heights: list[float]) -> None:
    placed = spread(heights, gap=0.05, low=0.0, high=1.0)
    assert all(later - earlier >= 0.05 - 1e-6 for earlier, later in pairwise(placed))
    assert max(placed) <= 1.0 + 1e-9


def test_names_far_apart_do_not_move() -> None:
    assert spread([0.1, 0.5, 0.9], gap=0.05, low=0.0, high=1.0) == [0.1, 0.5, 0.9]
