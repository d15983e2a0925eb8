"""What `grue compare` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grue.evaluate.runs import kind_letter
from grue.names import TRAINING
from grue.progress import Progress
from grue.report.text import counted, interval_text, percent, signed


def show(result: Mapping[str, Any], say: Progress) -> None:
    """A table of each kind of training, then the differences from the first."""
    decodings = list(result["games"])
    counts = " and ".join(f"{n:,}" for n in sorted(set(result["games"].values())))
    kinds = result["kinds"]
    say(f"{result['policy']}, {counts} {result['fold']} games that all of these runs finished", style="bold")
    if further := {run: policies[0] for run, policies in result["further"].items() if policies}:
        trained = ", ".join(f"{run} has {policy}" for run, policy in further.items())
        say.warn(f"{result['policy']} is the furthest-trained policy that all of these runs have measured: {trained}")
    if unfinished := result["unfinished"]:
        say.warn(
            f"{result['policy']} is not finished in {', '.join(unfinished)}: these are its weights so far, and "
            f"grue run {unfinished[0]} goes on"
        )
    if left_out := max(result["left_out"].values()):
        played = sorted({count for counts in result["played"].values() for count in counts})
        why = f": they finished {' and '.join(map(str, played))}" if len(played) > 1 else ""
        games = counted(left_out, "game") + (" is" if left_out == 1 else " are")
        say.warn(f"{games} left out, which not all of these runs finished{why}")
    for number, kind in enumerate(kinds):
        say("")
        if len(kinds) > 1:
            settings = " ".join(f"{name}={value}" for name, value in kind["settings"].items())
            say(f"{kind_letter(number)}  {settings}", style="bold")
        for decoding in decodings:
            _show_table(kind, decoding, say)
        if kind["repeated_seeds"]:
            seeds = ", ".join(map(str, kind["repeated_seeds"]))
            say.warn(f"seed {seeds} is given more than once: repeating a training adds no information")
    for other in result["differences"]:
        say("")
        for d in decodings:
            found = other[d]
            points, success = signed(100 * found["success"]), interval_text(found["success_ci95"])
            words = f"success {points} points" + (f" ({success})" if success else "")
            score = interval_text(found["score_ci95"], scale=1, decimals=3)
            words += f", score {signed(found['score'], 3)}" + (f" ({score})" if score else "")
            say(f"{kind_letter(other['a'])} - {kind_letter(other['b'])}  {d}: {words}")
    say("")
    sizes = [len(kind["runs"]) for kind in kinds]
    if any(kind[d]["over_seeds"] for kind in kinds for d in decodings):
        say("95 % intervals over training seeds and games.")
        if 2 in sizes:
            say("Of means of two trainings that differ by five points or more, 85 to 88 % hold the truth.")
    elif max(sizes) > 1 and all(kind[d]["agree"] for kind in kinds for d in decodings):
        say("The runs agree in every game: 95 % intervals over games, as for one run.")
    elif max(sizes) > 1:
        say("All of these games pose one problem, which says nothing about others: 95 % intervals as for one game.")
    if min(sizes) == 1 and result["policy"] in TRAINING:
        say.warn("with a single training the interval is over games alone, and says nothing about other seeds")


def _show_table(kind: Mapping[str, Any], decoding: str, say: Progress) -> None:
    lines = []
    for run in kind["runs"]:
        # the interval of a kind with a single run is that run's own
        found = (kind if len(kind["runs"]) == 1 else run)[decoding]
        lines.append((run["run"], str(run["seed"]), *_cells(found)))
    if len(kind["runs"]) > 1:
        lines.append((f"mean of {len(kind['runs'])}", "", *_cells(kind[decoding])))
    say.table([decoding, "seed", "success", "", "score", ""], lines)


def _cells(found: Mapping[str, Any]) -> tuple[str, str, str, str]:
    success, score = ("", "")
    if "success_ci95" in found:
        success = interval_text(found["success_ci95"])
        score = interval_text(found["score_ci95"], scale=1, decimals=3)
    return percent(found["success"]), success, f"{found['score']:.3f}", score
