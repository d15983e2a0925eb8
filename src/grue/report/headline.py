"""The run in one sentence, the numbers around it, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grue.games.known import is_one_game, ships
from grue.names import FURTHEST_FIRST, LENGTHS, POLICIES, TRAINING
from grue.report.metrics import policy_title
from grue.report.runfiles import RunFiles
from grue.report.tables import Row, by_policy, chose_on_dev, interval, main_fold, rows
from grue.report.text import as_number, counted, duration, fixed, interval_text, number, percent

# players without a model; besides gold and random play only the run's own teacher is measured
_PLAYERS = (
    ("gold", "the gold player"),
    ("gold-pruned", "the gold player without idle steps"),
    ("explore", "the explorer"),
    ("optimal", "the optimal player"),
    ("random", "random play"),
)


class Headline(NamedTuple):
    """What a reader should take away, and the numbers that put it in perspective."""

    sentence: str
    context: str


def headline(run: RunFiles) -> Headline:
    """What the run found; for a run without results, how far it is."""
    every = rows(run.results or {})
    found = by_policy([row for row in every if row.success is not None])
    hero = next((found[name] for name in FURTHEST_FIRST if name in found), None)
    crashed = _crashed(every, found, hero)
    if hero is not None and hero.decoding == "sampled":  # of what it is compared with, too
        found = by_policy([row for row in every if row.success is not None and row.decoding != "greedy"])
    if hero is None and "base" in found:
        base = found["base"]
        sentence = f"Without any training the model won {percent(base.success)} of {_games(base, run)}."
        if base.tales is not None:
            sentence += f" In the metric of TALES it scores {fixed(base.tales, 3)}."
        return Headline(sentence, f"{crashed} {_context(base, base, found)}".strip())
    if hero is None:
        return Headline(crashed or _progress(run), "")
    seconds = total_seconds(run.results or {})
    sentence = f"In {duration(seconds)}, " if seconds is not None else ""
    before, words = _before(hero, found)
    if not hero.success and not (before and before.success) and hero.score is not None:
        context = f"{crashed} {_score_context(hero, before, found)}".strip()
        return Headline(sentence + _scored(hero, before, words, run), context)
    if run.kept.get(hero.policy) == 0:  # weights from before the first update
        sentence += f"{policy_title(hero.policy)} found nothing better on dev games than the weights that it began "
        sentence += f"with, and these win {percent(hero.success)} of {_games(hero, run)}"
        return Headline(sentence + ".", f"{crashed} {_context(hero, before, found)}".strip())
    sentence += f"{policy_title(hero.policy)} learnt to win {percent(hero.success)} of {_games(hero, run)}"
    if before is not None:
        sentence += _against(percent(before.success), words, _apart(hero, before, run, "success"))
    return Headline(sentence + ".", f"{crashed} {_context(hero, before, found)}".strip())


def _crashed(every: Sequence[Row], found: Mapping[str, Row], hero: Row | None) -> str:
    """Which policies finished no game; with a `hero`, only those that were trained further than it."""
    lost = dict.fromkeys(row.policy for row in every if row.policy not in found and row.failed)
    if hero is not None:
        lost = {name: None for name in lost if name in FURTHEST_FIRST[: FURTHEST_FIRST.index(hero.policy)]}
    return f"No game of {' and '.join(map(policy_title, lost))} was finished: all failed." if lost else ""


def _apart(hero: Row, before: Row, run: RunFiles, what: str) -> int:
    """1 if the hero did better, -1 if worse, 0 if the games do not tell them apart."""
    mine, theirs = getattr(hero, what) or 0.0, getattr(before, what) or 0.0
    listed = (run.results or {}).get("paired")
    pair = (hero.policy, before.policy, hero.decoding)
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and (entry.get("a"), entry.get("b"), entry.get("decoding")) == pair:
            ends = interval(entry.get("ci95" if what == "success" else "score_ci95"))
            # an interval without width is of scores that all differ alike, which does not mean certainty
            if ends is not None and (ends[0] <= 0 <= ends[1] or ends[0] == ends[1]):
                return 0
    return int(mine > theirs) - int(mine < theirs)


def _against(before: str, words: str, apart: int) -> str:
    if apart > 0:
        return f", up from {before} {words}"
    return f", against {before} {words}" + ("" if apart else " (these games do not tell the two apart)")


def _scored(hero: Row, before: Row | None, words: str, run: RunFiles) -> str:
    """If nobody has won, which is common in adventures, the score shows what was learnt."""
    score = hero.score or 0.0
    sentence = (
        f"{policy_title(hero.policy)} won none of {_games(hero, run)}, and reached a mean score of {fixed(score, 3)}"
    )
    if before is not None and before.score is not None:
        sentence += _against(fixed(before.score, 3), words, _apart(hero, before, run, "score"))
    return sentence + "; 1 would be a win."


def _score_context(hero: Row, before: Row | None, found: dict[str, Row]) -> str:
    ends = interval_text(hero.score_ci95, scale=1, decimals=3)
    parts = [f"The 95% interval is {ends}."] if ends else []
    named = [(name, words) for name, words in (("base", "the base"), *_PLAYERS) if name in found]
    for name, words in named:
        row = found[name]
        if row is not before and row.score is not None:
            # where a loss scores less than nothing, who tries and wins some may score less than who does nothing
            wins = f" and wins {percent(row.success)}" if row.success else ""
            parts.append(f"{words[:1].upper()}{words[1:]} scores {fixed(row.score, 3)}{wins}.")
    return " ".join(parts)


def total_seconds(results: Mapping[str, Any]) -> float | None:
    """How long the run took. The last command of a resumed run took less time than all stages together."""
    stages = results.get("stages")
    parts = [as_number(seconds) or 0.0 for seconds in stages.values()] if isinstance(stages, dict) else []
    wall_s = as_number(results.get("wall_s"))
    return max(wall_s or 0.0, sum(parts)) if wall_s is not None or parts else None


def _games(row: Row, run: RunFiles) -> str:
    games = counted(row.games, f"{row.fold} game") if row.games is not None else f"the {row.fold} games"
    game = (run.config or {}).get("game")
    name = str(game.get("name")) if isinstance(game, dict) else ""
    if is_one_game(name):
        games += ", all of the story that it trained on"
    elif row.fold == "test":  # whether another package's games differ from seed to seed is not known here
        games += " that it had never seen" if ships(name) or not name else ", with seeds that it was not trained on"
    elif row.fold == "dev" and chose_on_dev(run.config, row.policy):
        games += ", some of which chose its weights"
    if row.failed:
        games += f" ({number(row.failed)} more failed)"
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
        for index, (name, words) in enumerate((name, words) for name, words in _PLAYERS if name in found)
    ]
    if players:
        joined = ", ".join(players)
        parts.append(f"{joined[:1].upper()}{joined[1:]}.")
    return " ".join(parts)


def _progress(run: RunFiles) -> str:
    for stage in FURTHEST_FIRST:
        if stage in run.stages and run.stages[stage].lines:
            success = run.stages[stage].series.get("success")
            reached = f"; most recently it won {percent(success[-1][1])} of its training games" if success else ""
            so_far = f"{policy_title(stage)} has logged {_logged(run, stage)}{reached}."
            begun = stage in run.unfinished
            return f"This run is not finished: {so_far}" if begun else f"This run has not been evaluated yet. {so_far}"
    return "This run has neither trained nor been evaluated yet."


def _logged(run: RunFiles, stage: str) -> str:
    """ "3 of 80 iterations"; how many steps SFT will have is not written down."""
    lines, unit = run.stages[stage].lines, {"ppo": "iteration", "dagger": "round"}.get(stage, "step")
    section = (run.config or {}).get(stage)
    planned = as_number(section.get(LENGTHS[stage])) if stage != "sft" and isinstance(section, dict) else None
    return f"{lines:,} of {counted(planned, unit)}" if planned else counted(lines, unit)


def missing(run: RunFiles) -> list[str]:
    """One sentence for every part of the page that should be there but cannot be filled."""
    notes, skipped = [], _skipped(run)
    if run.config is None:
        state = "unreadable" if _is_unreadable(run, "config.yaml") else "absent"
        notes.append(f"config.yaml is {state}: the settings are not known.")
    if run.results is None and not _is_unreadable(run, "results.json"):  # what else is missing is still to come
        return [*notes, "There are no results yet: the run is not finished. grue run with this folder goes on with it."]
    if run.results is None:
        notes.append("results.json is unreadable: there are no results to show.")
    else:
        present = {row.policy for row in rows(run.results)}
        # not every game lists actions, for random play, or can solve itself
        wanted = [name for name in POLICIES if name not in skipped | _unwanted(run)]
        absent = [policy_title(name) for name in wanted if name not in present]
        if absent:
            notes.append(f"No {main_fold(run.results)} result for {', '.join(absent)}.")
    if not run.stages and not trains_nothing(run):
        notes.append("metrics.jsonl is absent or empty: there are no training curves.")
    elif run.stages and "ppo" not in run.stages and "ppo" not in skipped:
        notes.append("No PPO iteration has been logged.")
    if run.results is not None:
        notes += [
            f"{policy_title(name)} is not finished: what is shown are its weights so far." for name in run.unfinished
        ]
    if not run.episodes:
        notes.append("No played episode has been kept.")
    return notes


def _unwanted(run: RunFiles) -> set[str]:
    """The base, if the settings leave it out of the table."""
    section = (run.config or {}).get("eval")
    left_out = isinstance(section, dict) and section.get("base") is False
    return {"base"} if left_out and not trains_nothing(run) else set()


def _is_unreadable(run: RunFiles, file: str) -> bool:
    """Was something wrong with a file that is there?"""
    return any(problem.startswith(file) for problem in run.problems)


def trains_nothing(run: RunFiles) -> bool:
    """Do the settings skip every training?"""
    return _skipped(run) == {*TRAINING}


def _skipped(run: RunFiles) -> set[str]:
    """The policies whose training the settings skip."""
    asked = run.config or {}
    return {
        name
        for name, length in LENGTHS.items()
        if isinstance(section := asked.get(name), dict) and section.get(length) == 0
    }
