"""The ranked table: JSON for programs, Markdown for people."""

from __future__ import annotations

from collections.abc import Sequence

from grue.experiments.eval_gap.contrasts import Contrast, Side


def ranked(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Costs first, the largest on top; then what widens the result; then the gaps between folds."""
    order = {"cost": 0, "chance": 1, "gap": 2}
    return sorted(contrasts, key=lambda contrast: (order[contrast["kind"]], -abs(contrast["points"])))


def markdown(contrasts: Sequence[Contrast], heading: str) -> str:
    """The table, with a line on how to read it."""
    rows = [
        f"# {heading}",
        "",
        "Points are percentage points of success. A cost is the repaired pipeline less the same with one defect: if it",
        "is negative, the defect flatters. `±` is half the range of 95 of 100 draws. Intervals are 95 %.",
        "",
        "| what | repaired | with the defect | points | 95 % interval | how it was compared |",
        "|---|---:|---:|---:|---|---|",
    ]
    rows += [_row(contrast) for contrast in ranked(contrasts) if contrast["kind"] != "gap"]
    gaps = [contrast for contrast in ranked(contrasts) if contrast["kind"] == "gap"]
    if gaps:
        rows += ["", "In the repaired pipeline, first minus second:", ""]
        rows += [
            "| gap | first | second | points | 95 % interval | how it was compared |",
            "|---|---:|---:|---:|---|---|",
        ]
        rows += [_row(contrast) for contrast in gaps]
    return "\n".join(rows) + "\n"


def _row(contrast: Contrast) -> str:
    low, high = contrast["ci95"]
    points = f"± {contrast['points']:.1f}" if contrast["kind"] == "chance" else f"{contrast['points']:+z.1f}"
    interval = f"{low:+z.1f} to {high:+z.1f}"
    significant = "**" if contrast["kind"] == "cost" and (low > 0 or high < 0) else ""
    return " | ".join(
        [
            f"| {significant}{contrast['name']}{significant}: {contrast['question']}",
            _percent(contrast["repaired"]),
            _percent(contrast["defect"]),
            points,
            interval,
            f"{contrast['pairing']}{_by_seed(contrast)} |",
        ]
    )


def _by_seed(contrast: Contrast) -> str:
    """The points of each training, of which the mean alone would tell too little."""
    points = contrast["details"].get("by_seed", ())
    return f": {', '.join(f'{value:+z.1f}' for value in points)}" if points else ""


def _percent(side: Side) -> str:
    return f"{side['success']:.1%}"
