"""Rates and differences over games and trainings, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np

from grue.evaluate.bootstrap import paired_wins
from grue.evaluate.stats import Interval, not_surer
from grue.evaluate.summary import success_interval
from grue.experiments.cells import Cell
from grue.experiments.second_visit.visits import KINDS
from grue.experiments.trainings import crossed_interval, interval_over_trainings, shared_games


def rate(name: str, decoding: str, cells: Sequence[Cell], posed: Cell) -> dict[str, Any]:
    """A row: success over the trainings (or of one player), its interval over trainings and games, steps of wins.

    `posed` says which games pose the same problem: games that tell notes all look different.
    """
    games = shared_games(name, cells)
    wins_SG = np.stack([cell.wins(games) for cell in cells])
    problems = posed.problems(games)
    if len(cells) == 1:
        interval = success_interval([bool(won) for won in wins_SG[0]], problems)
    else:
        interval = not_surer(interval_over_trainings(wins_SG, problems), len(set(problems or games)))
    steps = [cell.steps[seed] for cell in cells for seed in games if cell.won[seed]]
    assert interval is not None
    return {
        "player": name,
        "decoding": decoding,
        "success": round(float(wins_SG.mean()), 6),
        "success_ci95": [round(max(0.0, interval.low), 6), round(min(1.0, interval.high), 6)],
        "by_training": [round(float(row.mean()), 6) for row in wins_SG],
        "steps_of_wins": round(float(np.mean(steps)), 3) if steps else None,
        "games": len(games),
        "failed": sum(cell.failed for cell in cells),
    }


def by_note(told: Mapping[int, str], players: Mapping[str, Sequence[Cell]], posed: Cell) -> list[dict[str, Any]]:
    """Rows of `rate` for the games that were `told` the same kind of note: players that do not sample, on those games.

    A player that reads no note is in it, too: what it wins there says how hard these games are.
    """
    shared = shared_games("notes", [cell for cells in players.values() for cell in cells])
    found = []
    for note in sorted(set(told.values()), key=KINDS.index):
        if seeds := [seed for seed in shared if told[seed] == note]:
            rows = [
                rate(name, "greedy", [_among(cell, seeds) for cell in cells], posed) for name, cells in players.items()
            ]
            found.append({"note": note, "games": len(seeds), "rows": rows})
    return found


def _among(cell: Cell, seeds: Sequence[int]) -> Cell:
    """The cell with these games alone."""
    won, score, steps = cell.won, cell.score, cell.steps
    return replace(
        cell,
        won={seed: won[seed] for seed in seeds},
        score={seed: score[seed] for seed in seeds},
        steps={seed: steps[seed] for seed in seeds},
    )


def difference(
    a: str, b: str, decoding: str, of_a: Sequence[Cell], of_b: Sequence[Cell], posed: Cell, resamples: int
) -> dict[str, Any]:
    """a less b in points of success, on the same games; trainings are paired by seed."""
    count = max(len(of_a), len(of_b))
    firsts, seconds = ([*cells] * (count if len(cells) == 1 else 1) for cells in (of_a, of_b))
    games = shared_games(f"{a} - {b}", [*firsts, *seconds])
    apart_SG = np.stack([x.wins(games) - y.wins(games) for x, y in zip(firsts, seconds, strict=True)])
    problems = posed.problems(games)
    if count == 1:
        found = paired_wins(of_a[0].wins(games), of_b[0].wins(games), resamples, clusters=problems)
        interval = Interval(found.low, found.high)
    else:
        interval = crossed_interval(apart_SG, problems)
    low, high = (round(100 * min(1.0, max(-1.0, end)), 3) for end in interval)
    return {
        "a": a,
        "b": b,
        "decoding": decoding,
        "points": round(100 * float(apart_SG.mean()), 3),
        "ci95": [low, high],
        "by_training": [round(100 * float(row.mean()), 3) for row in apart_SG],
    }


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    size, visits = result["settings"], result["first_visits"]
    over = f"games and {size['seeds']} trainings" if size["seeds"] > 1 else "games; one training"
    text = (
        f"A first visit has {result['visit_limit']} steps, the second {result['limit']}. In {visits['games']} "
        f"{size['fold']} games the first visit won {visits['success']:.1%}, and the note that is found is about the "
        f"very game in {visits['found']:.1%}. Intervals are 95 %, over {over}."
        + (" Dev games also chose the weights." if size["fold"] == "dev" else "")
    )
    lines = [f"# Does a note about the first visit help? {result['run']}, {size['fold']} fold", ""]
    lines += [*wrap(text, 120), ""]
    lines += ["| second visit | decoding | success | 95 % interval | by training | steps of wins |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    for row in result["rows"]:
        low, high = row["success_ci95"]
        each = [f"{share:.1%}" for share in row["by_training"]]
        steps = "" if row["steps_of_wins"] is None else f"{row['steps_of_wins']:.1f}"
        rate_of = [f"{row['success']:.1%}", f"{low:.1%} to {high:.1%}"]
        cells = [row["player"], row["decoding"], *rate_of, _several(each), steps]
        lines.append(f"| {' | '.join(cells)} |")
    lines += _by_note(result["by_note"])
    lines += ["", "| difference | decoding | points | 95 % interval | by training |", "|---|---|---:|---:|---:|"]
    for row in result["differences"]:
        low, high = row["ci95"]
        clear = "**" if low > 0 or high < 0 else ""
        each = [f"{points:+z.1f}" for points in row["by_training"]]
        what = f"{clear}{row['a']} - {row['b']}{clear}"
        cells = [what, row["decoding"], f"{row['points']:+z.1f}", f"{low:+z.1f} to {high:+z.1f}", _several(each)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_note(found: Sequence[dict[str, Any]]) -> list[str]:
    """How the players do by what the game was told; those that sample are left out."""
    players = [row["player"] for row in found[0]["rows"]]
    lines = ["", "The same games by what the note says, greedy:", ""]
    lines += [f"| the note | games | {' | '.join(players)} |", f"|---|---:|{'---:|' * len(players)}"]
    for kind in found:
        rates = [f"{row['success']:.1%}" for row in kind["rows"]]
        lines.append(f"| {kind['note']} | {kind['games']} | {' | '.join(rates)} |")
    return lines


def _several(texts: Sequence[str]) -> str:
    """What each training gave, if there are several."""
    return ", ".join(texts) if len(texts) > 1 else ""
