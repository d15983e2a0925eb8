"""results.json as rows."""

from __future__ import annotations

from typing import Any

import pytest
from report_runs import results

from grue.report.tables import folds, interval, main_fold, rows


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


def test_intervals() -> None:
    assert interval([0.9, 0.1]) == (0.1, 0.9)
    assert interval([0.1, None]) is None
    assert interval("ab") is None
