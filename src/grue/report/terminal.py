"""What a run has found, as text in the terminal: the table, and how the last policy did against the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grue.progress import Progress
from grue.report.metrics import policy_title
from grue.report.tables import interval, main_fold, none_won, rows
from grue.report.text import as_number, fixed, interval_text, number, percent, signed


def show_results(results: Mapping[str, Any], say: Progress) -> None:
    """The rows of the main fold, and the paired differences."""
    found = rows(results)
    counts = sorted({row.games for row in found if row.games is not None})
    columns = ["policy", "decoding", "success", "95% interval", "score", "steps", "at the limit", "lost"]
    lines = [
        [
            policy_title(row.policy),
            row.decoding,
            percent(row.success),
            interval_text(row.success_ci95),
            fixed(row.score, 3),
            fixed(row.steps_mean, 1),
            percent(row.limit),
            percent(row.lost),
        ]
        for row in found
    ]
    if any(row.tales is not None for row in found):
        columns.append("TALES")
        lines = [[*line, fixed(row.tales, 3)] for line, row in zip(lines, found, strict=True)]
    if any(row.failed for row in found):
        columns.append("failed")
        lines = [[*line, number(row.failed)] for line, row in zip(lines, found, strict=True)]
    games = " and ".join(f"{count:,}" for count in counts) if len(counts) < 3 else f"{counts[0]:,} to {counts[-1]:,}"
    say.table(columns, lines, title=f"{games} {main_fold(results)} games", left=2)
    pairs = results.get("paired")
    for pair in pairs if isinstance(pairs, list) else []:
        a, b = str(pair.get("a")), str(pair.get("b"))
        pair_of = f"{policy_title(a)} - {policy_title(b)}"
        ends, points = interval(pair.get("ci95")), as_number(pair.get("difference"))
        score_ends, scores = interval(pair.get("score_ci95")), as_number(pair.get("score_difference"))
        if none_won(found, a, b) and score_ends is not None and scores is not None:
            between = interval_text(score_ends, scale=1, decimals=3)
            reach = f" ({between})" if between else ""
            say(f"{pair_of}: {signed(scores, 3)} of score{reach} on the same games, of which neither won any")
        elif ends is not None and points is not None:
            say(f"{pair_of}: {signed(100 * points)} points of success ({interval_text(ends)}) on the same games")
