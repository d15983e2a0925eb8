"""The run in one sentence, the numbers around it, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from grue.games.native import is_one_game
from grue.report.metrics import policy_title
from grue.report.runfiles import RunFiles
from grue.report.tables import Row, by_policy, rows
from grue.report.text import as_number, duration, interval_text, number, percent

TRAINED = ("ppo", "dagger", "sft")  # the last stage first


class Headline(NamedTuple):
    """What a reader should take away, and the numbers that put it in proportion."""

    sentence: str
    context: str


def headline(run: RunFiles) -> Headline:
    """What the run found; for a run without results, how far it is."""
    found = by_policy([row for row in rows(run.results or {}) if row.success is not None])
    hero = next((found[name] for name in TRAINED if name in found), None)
    if hero is None and "base" in found:
        base = found["base"]
        return Headline(
            f"Without any training the model won {percent(base.success)} of {_games(base, run)}.",
            _context(base, base, found),
        )
    if hero is None:
        return Headline(_progress(run), "")
    seconds = total_seconds(run.results or {})
    sentence = f"In {duration(seconds)}, " if seconds is not None else ""
    before, words = _before(hero, found)
    if not hero.success and not (before and before.success) and hero.score is not None:
        return Headline(sentence + _scored(hero, before, words, run), _score_context(hero, found))
    sentence += f"{policy_title(hero.policy)} came to win {percent(hero.success)} of {_games(hero, run)}"
    if before is not None:
        verb = "up from" if (hero.success or 0.0) > (before.success or 0.0) else "against"
        sentence += f", {verb} {percent(before.success)} {words}"
    return Headline(sentence + ".", _context(hero, before, found))


def _scored(hero: Row, before: Row | None, words: str, run: RunFiles) -> str:
    """Where nobody has won, which is common in adventures, the score tells what was learnt."""
    score = hero.score or 0.0
    sentence = f"{policy_title(hero.policy)} won none of {_games(hero, run)}, and came to a mean score of {score:.3f}"
    if before is not None and before.score is not None:
        sentence += f", {'up from' if score > before.score else 'against'} {before.score:.3f} {words}"
    return sentence + "; 1 would be a win."


def _score_context(hero: Row, found: dict[str, Row]) -> str:
    parts = [f"The 95% interval is {interval_text(hero.score_ci95, scale=1, decimals=3)}."] if hero.score_ci95 else []
    names = (("base", "The base scores"), ("gold", "The gold player scores"), ("random", "Random play scores"))
    others = [(words, found[name].score) for name, words in names if name in found]
    return " ".join([*parts, *(f"{words} {score:.3f}." for words, score in others if score is not None)])


def total_seconds(results: Mapping[str, Any]) -> float | None:
    """How long the run took. The command that ended a resumed run took less than its stages together."""
    stages = results.get("stages")
    parts = [as_number(seconds) or 0.0 for seconds in stages.values()] if isinstance(stages, dict) else []
    wall_s = as_number(results.get("wall_s"))
    return max(wall_s or 0.0, sum(parts)) if wall_s is not None or parts else None


def _games(row: Row, run: RunFiles) -> str:
    games = f"{number(row.games)} {row.fold} games" if row.games is not None else f"the {row.fold} games"
    game = (run.config or {}).get("game")
    if isinstance(game, dict) and is_one_game(str(game.get("name"))):
        games += ", all of the story that it trained on"
    elif row.fold == "test":
        games += " that it had never seen"
    return f"{games}, with sampled actions" if row.decoding == "sampled" else games


def _before(hero: Row, found: dict[str, Row]) -> tuple[Row | None, str]:
    if hero.policy != "sft" and "sft" in found:
        return found["sft"], "after imitation"
    return found.get("base"), "before training"


def _context(hero: Row, before: Row | None, found: dict[str, Row]) -> str:
    parts = []
    if hero.success_ci95 is not None:
        parts.append(f"The 95% interval is {interval_text(hero.success_ci95)}.")
    if "base" in found and found["base"] is not before:
        parts.append(f"Before SFT the model won {percent(found['base'].success)}.")
    players = [
        f"{words} {'wins' if index == 0 else ''} {percent(found[name].success)}".replace("  ", " ")
        for index, (name, words) in enumerate(
            (name, words) for name, words in (("gold", "the gold player"), ("random", "random play")) if name in found
        )
    ]
    if players:
        joined = ", ".join(players)
        parts.append(f"{joined[:1].upper()}{joined[1:]}.")
    return " ".join(parts)


def _progress(run: RunFiles) -> str:
    for stage in TRAINED:
        if stage in run.stages and run.stages[stage].lines:
            logged = run.stages[stage]
            success = logged.series.get("success")
            reached = f"; at last it won {percent(success[-1][1])} of its training games" if success else ""
            what = {"ppo": "iteration", "dagger": "round"}.get(stage, "step")
            what += "" if logged.lines == 1 else "s"
            so_far = f"{policy_title(stage)} has logged {logged.lines} {what}{reached}."
            return f"This run has not been evaluated yet. {so_far}"
    return "This run has neither trained nor been evaluated yet."


def missing(run: RunFiles) -> list[str]:
    """One sentence for every part of the page that should be there and cannot be filled."""
    notes, skipped = [], _skipped(run)
    if run.config is None:
        notes.append("config.yaml is absent or unreadable: the settings are not known.")
    if run.results is None:
        notes.append("results.json is absent or unreadable: the evaluation has not finished.")
    else:
        present = {row.policy for row in rows(run.results)}
        wanted = [name for name in ("random", "gold", "base", "sft", "dagger", "ppo") if name not in skipped]
        absent = [policy_title(name) for name in wanted if name not in present]
        if absent:
            notes.append(f"No test result for {', '.join(absent)}.")
    if not run.stages:
        notes.append("metrics.jsonl is absent or empty: there are no training curves.")
    elif "ppo" not in run.stages and "ppo" not in skipped:
        notes.append("No PPO iteration has been logged.")
    if not run.episodes:
        notes.append("No played episode has been kept.")
    return notes


def _skipped(run: RunFiles) -> set[str]:
    """The policies that the settings ask not to train."""
    lengths = {"sft": "epochs", "dagger": "rounds", "ppo": "iterations"}
    asked = {"dagger": {"rounds": 0}} | (run.config or {})  # a run of an earlier version knows nothing of DAgger
    return {
        name
        for name, length in lengths.items()
        if isinstance(section := asked.get(name), dict) and section.get(length) == 0
    }
