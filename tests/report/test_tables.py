"""results.json as rows and tables."""

from __future__ import annotations

import io
from typing import Any

import pytest
from report_runs import results
from rich.console import Console

from grue.report.tables import folds, interval, main_fold, markdown_table, rows, terminal_table


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return results(40, failed=2)


def test_rows_come_in_the_order_of_learning(found: dict[str, Any]) -> None:
    assert [(row.policy, row.decoding) for row in rows(found)] == [
        ("random", "scripted"),
        ("gold", "scripted"),
        ("base", "greedy"),
        ("base", "sampled"),
        ("sft", "greedy"),
        ("sft", "sampled"),
        ("ppo", "greedy"),
        ("ppo", "sampled"),
    ]


def test_a_row_holds_the_numbers_of_the_file(found: dict[str, Any]) -> None:
    stored = found["policies"]["gold"]["decoding"]["scripted"]
    row = rows(found)[1]
    assert (row.games, row.failed, row.success, row.score) == (38, 2, stored["success"], stored["score"])
    assert row.success_ci95 == tuple(stored["success_ci95"])
    assert row.seeds == (20000.0, 20039.0)


def test_folds_stand_beside_each_other(found: dict[str, Any]) -> None:
    assert folds(found) == ["train", "dev", "test"]
    assert {row.fold for row in rows(found, "dev")} == {"dev"}


def test_a_run_evaluated_on_dev_says_so(found: dict[str, Any]) -> None:
    on_dev = {"policies": found["dev"], "test": found["policies"]}
    assert main_fold(on_dev) == "dev"
    assert rows(on_dev) == rows(found, "dev")
    assert rows(on_dev, "test") == rows(found, "test")


def test_a_fold_may_be_nested_like_the_whole_file(found: dict[str, Any]) -> None:
    assert rows({"dev": {"policies": found["dev"]}}, "dev") == rows(found, "dev")


def test_markdown(found: dict[str, Any]) -> None:
    lines = markdown_table(found).splitlines()
    assert len(lines) == 2 + 8
    assert lines[0].startswith("| policy | decoding | success | 95% interval | score |")
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    ppo = next(line for line in lines if line.startswith("| PPO | greedy"))
    assert f"{100 * found['policies']['ppo']['decoding']['greedy']['success']:.1f}%" in ppo


def test_markdown_names_cannot_leave_their_cell() -> None:
    hostile = {"policies": {"a|b<script>\n`x`*": {"decoding": {"gr|eedy": {"success": 0.5, "games": 2}}}}}
    table = markdown_table(hostile)
    assert len(table.splitlines()) == 3
    assert "<script>" not in table
    assert "a\\|b&lt;script&gt; \\`x\\`\\*" in table


def terminal(data: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=140, force_terminal=True, color_system=None)
    console.print(terminal_table(data))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_terminal(found: dict[str, Any]) -> None:
    text = terminal(found)
    assert "test fold" in text
    assert text.count("PPO") == 1
    assert "38" in text


def test_terminal_names_hold_no_codes_and_no_markup() -> None:
    hostile = {"policies": {"\x1b]52;c;x\x07[red]name[/red]": {"decoding": {"[link=x]y": {"games": 1}}}}}
    text = terminal(hostile)
    assert "\x1b]52" not in text
    assert "\x07" not in text
    assert "[red]name[/red]" in text


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"policies": None},
        {"policies": []},
        {"policies": {"a": 3, "b": {"decoding": []}, "c": {"decoding": {"greedy": None}}}},
        {"policies": {"a": {"decoding": {"greedy": {"success": "x", "success_ci95": [1], "games": None, "verbs": 3}}}}},
    ],
)
def test_odd_results_are_tolerated(odd: dict[str, Any]) -> None:
    assert len(rows(odd)) <= 1
    assert markdown_table(odd)


def test_intervals() -> None:
    assert interval([0.9, 0.1]) == (0.1, 0.9)
    assert interval([0.1, None]) is None
    assert interval("ab") is None
