"""The table that a run ends with in the terminal."""

from __future__ import annotations

import pytest
from report_runs import results

from grue.progress import Progress
from grue.report.terminal import show_results


def test_the_table_holds_the_numbers_of_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(60)
    show_results(found, Progress())
    title, columns, *lines = capsys.readouterr().out.splitlines()
    assert title == "60 test games"
    assert columns.split()[:3] == ["policy", "decoding", "success"] and "failed" not in columns
    for policy, name in (("random", "random"), ("ppo", "PPO")):
        for decoding, row in found["policies"][policy]["decoding"].items():
            (line,) = [line.split() for line in lines if line.split()[:2] == [name, decoding]]
            low, high = row["success_ci95"]
            assert line[2:6] == [f"{100 * row['success']:.1f}%", f"{100 * low:.1f}", "to", f"{100 * high:.1f}"]
            assert line[6:8] == [f"{row['score']:.3f}", f"{row['steps_mean']:.1f}"]
    pair = found["paired"][0]
    assert any(f"{100 * pair['difference']:+.1f} points" in line and "on the same games" in line for line in lines)
    assert len({len(line) for line in [columns, *lines[: -len(found["paired"])]]}) == 1


def test_games_that_failed_have_a_column_and_what_was_not_measured_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(60)
    nothing = {"games": 0, "failed": 60, "success": None, "success_ci95": None, "score": None, "limit": None}
    found["policies"]["ppo"]["decoding"]["greedy"] |= nothing
    show_results(found, Progress())
    columns, *lines = capsys.readouterr().out.splitlines()[1:]
    assert columns.split()[-1] == "failed"
    (line,) = [line.split() for line in lines if line.split()[:2] == ["PPO", "greedy"]]
    assert line[2:4] == ["–", "–"] and line[-1] == "60"
    found["policies"]["sft"]["decoding"]["greedy"]["games"] = 31
    show_results(found, Progress())
    assert capsys.readouterr().out.splitlines()[0].strip() == "0 to 60 test games"


def test_the_metric_of_tales_has_a_column_where_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(60)
    found["policies"]["ppo"]["decoding"]["greedy"]["tales"] = 0.25
    show_results(found, Progress())
    columns, *lines = capsys.readouterr().out.splitlines()[1:]
    assert columns.split()[-1] == "TALES"
    assert {line.split()[-1] for line in lines if line.split()[:2] == ["PPO", "greedy"]} == {"0.250"}
    assert {line.split()[-1] for line in lines if line.split()[:2] == ["PPO", "sampled"]} == {"–"}


def test_where_neither_won_a_game_scores_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(60)
    for name in ("ppo", "sft"):
        for row in found["policies"][name]["decoding"].values():
            row["success"] = 0.0
    for ends, said in (([-0.4, -0.2], " (−0.400 to −0.200)"), ([-0.3, -0.3], "")):
        found["paired"][0] |= {"score_difference": -0.3, "score_ci95": ends}
        show_results(found, Progress())
        printed = capsys.readouterr().out
        assert f"PPO - SFT: −0.300 of score{said} on the same games, of which neither won any" in printed
        assert "PPO - gold:" in printed and "points of success" in printed  # gold wins some


def test_results_of_another_make_do_not_end_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    show_results({"policies": {"ppo": 3}, "paired": [{"a": "ppo"}]}, Progress())
    assert "policy" in capsys.readouterr().out
