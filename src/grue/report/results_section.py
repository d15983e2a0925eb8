"""The results part of the page: the main table, the folds side by side, paired differences, how far to trust them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grue.errors import DataError
from grue.evaluate.stats import smallest_detectable_difference
from grue.games.known import is_one_game
from grue.names import POLICIES, RUN_FOLDS, TRAINING
from grue.report.markup import Html, tag, wide
from grue.report.metrics import COLUMNS, policy_title
from grue.report.svg import interval_mark
from grue.report.tables import Row, chose_on_dev, folds, interval, none_won, rows
from grue.report.text import as_number, counted, fixed, interval_text, number, percent, signed

_HEADS = (
    ("policy", "Policy"),
    ("decoding", "Decoding"),
    ("success", "Success"),
    ("", ""),
    ("score", "Score"),
    ("steps", "Steps"),
    ("limit", "Limit"),
    ("lost", "Lost"),
    ("failed", "Failed"),
    ("invalid", "Invalid"),
    ("tales", "TALES"),
)

_SCALE = tag("th", tag("span", "0%"), tag("span", "100%"), class_="scale", aria_hidden="true")


def results_section(results: Mapping[str, Any] | None, config: Mapping[str, Any] | None = None) -> Html:
    """The tables of `results`; `config` says how the dev fold was used, and whether there is only one game."""
    found = rows(results) if results is not None else []
    if results is None or not (found or folds(results)):
        note = tag("p", "There are no results yet: the evaluation is the last stage of a run.", class_="absent")
        return tag("section", tag("h2", "Results"), note, id="results")
    one_game = _is_one_game(config)  # then folds are the same, and pairs hold one game many times
    return tag(
        "section",
        tag("h2", "Results"),
        _main_table(found) if found else tag("p", "The fold of this table has not been played yet.", class_="absent"),
        _notes(found, one_game=one_game) if found else None,
        None if one_game else _folds(results, config),
        None if one_game else _paired(results),
        _verbs(found),
        id="results",
    )


def _main_table(found: list[Row]) -> Html:
    tales = any(row.tales is not None for row in found)
    shown = _HEADS if tales else _HEADS[:-1]
    heads = [tag("th", title, scope="col", title=COLUMNS.get(key)) if key else _SCALE for key, title in shown]
    policies = [row.policy for row in found]
    body = [_table_row(row, first=row.policy not in policies[:index], tales=tales) for index, row in enumerate(found)]
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), class_="results")
    return wide(table, "Results")


def _table_row(row: Row, *, first: bool, tales: bool) -> Html:
    name = _row_head(row.policy, first=first)
    success = percent(row.success)
    mark = None if row.success is None else interval_mark(row.success, row.success_ci95, width=160)
    crashed = _crashed(row)
    kinds = [kind for kind, on in (("first", first), ("hero", row.policy == "ppo")) if on]
    score = tag("small", interval_text(row.score_ci95, scale=1, decimals=3))
    return tag(
        "tr",
        name,
        tag("td", row.decoding, class_="word"),
        tag("td", tag("b", success), " ", tag("small", interval_text(row.success_ci95)), class_="num"),
        tag("td", mark, class_="marked"),
        tag("td", fixed(row.score, 3), " ", score, class_="num"),
        tag("td", fixed(row.steps_mean, 1), class_="num"),
        tag("td", percent(row.limit), class_="num"),
        tag("td", percent(row.lost), class_="num"),
        tag("td", number(row.failed), class_="num crashed" if row.failed else "num", title=crashed),
        tag("td", percent(row.invalid), class_="num"),
        tag("td", fixed(row.tales, 3), class_="num") if tales else None,
        class_=" ".join(kinds) or None,
    )


def _row_head(policy: str, *, first: bool) -> Html:
    """The name of a row's policy; of its further rows only screen readers tell."""
    return tag("th", policy_title(policy) if first else tag("span", policy_title(policy), class_="unseen"), scope="row")


def _crashed(row: Row) -> str | None:
    if not row.failed or row.success_failed_as_loss is None:
        return None
    return f"counted as losses, success would be {percent(row.success_failed_as_loss)}"


def _is_one_game(config: Mapping[str, Any] | None) -> bool:
    game = (config or {}).get("game")
    return isinstance(game, dict) and is_one_game(str(game.get("name")))


def _notes(found: list[Row], *, one_game: bool) -> Html:
    """What was played, and how far the numbers can be trusted."""
    sentences = [_what_was_played(found), _what_was_asked(found)]
    games = [row.games for row in found if row.games]
    own = [row for row in found if row.policy in POLICIES]  # without chat models, which play other games
    hero = next((row for row in reversed(own or found) if row.games and row.success is not None), None)
    if games and hero is not None and hero.games and hero.success is not None and not one_game:
        # copies of one problem add no evidence
        count, thing = (hero.problems, "problem") if hero.problems else (hero.games, "game")
        try:
            gap = smallest_detectable_difference(count, hero.success)
            sentences.append(
                f"With {counted(count, thing)} each, two policies near {percent(hero.success, 0)} must differ by"
                f" about {100 * gap:.1f} points to be told apart four times out of five; less is enough if they"
                " play the same games."
            )
        except DataError:
            pass
    sentences.append(
        (
            "All of them are plays of the one game that was trained on: the intervals say how much results would change"
            " in other plays of it, at most, since plays without any chance are alike."
            if one_game
            else "The intervals say how much results would change with other games."
        )
        + " They say nothing about other training seeds: that takes several runs."
    )
    failed = [row for row in found if row.failed]
    if failed:
        words = [f"{policy_title(row.policy)} {row.decoding} {_crashed(row)}" for row in failed if _crashed(row)]
        sentences.append("Failed games are left out of every mean" + (f" ({'; '.join(words)})." if words else "."))
    return tag("p", " ".join(sentence for sentence in sentences if sentence), class_="caption")


def _what_was_played(found: list[Row]) -> str:
    seeds = {row.seeds for row in found if row.seeds is not None}
    limits = {row.step_limit for row in found if row.step_limit is not None}
    own = [row for row in found if not row.policy.startswith("api:")] or found  # chat models may play fewer
    games = sorted({row.games + (row.failed or 0) for row in own if row.games is not None})
    count = f"{number(games[0])} to " if len(games) > 1 else ""
    fold = found[0].fold
    text = (
        f"Every policy{' of this run' if len(own) < len(found) else ''} played {count}{counted(games[-1], 'game')}"
        if games
        else "Games"
    )
    text += f" of the {fold} fold"
    if len(seeds) == 1:
        first, last = seeds.pop()
        text += f" (seeds {first:.0f} to {last:.0f})"
    if len(limits) == 1:
        text += f" with at most {number(limits.pop())} steps"
    return text + "."


def _what_was_asked(found: list[Row]) -> str:
    """A sentence if some games pose the same problem, so that there are fewer of them than it seems."""
    problems = max((row.problems for row in found if row.problems), default=None)
    if problems is None:
        return ""
    return f"They pose {number(problems)} different problems, so intervals are over problems, not games."


def _folds(results: Mapping[str, Any], config: Mapping[str, Any] | None) -> Html | None:
    """Success on train, dev and test side by side: the gap between them is what was memorised."""
    present = folds(results)
    if len(present) < 2:
        return None
    by_key: dict[tuple[str, str], dict[str, Row]] = {}
    for fold in RUN_FOLDS:
        for row in rows(results, fold):
            by_key.setdefault((row.policy, row.decoding), {})[fold] = row
    order = [(row.policy, row.decoding) for row in rows(results)]
    keys = [key for key in [*order, *(key for key in by_key if key not in order)] if len(by_key[key]) > 1]
    if not keys:
        return None
    head = tag("tr", tag("th", "Policy", scope="col"), tag("th", "Decoding", scope="col"),
               *(tag("th", fold, tag("small", _games_of(results, fold)), scope="col", colspan="2") for fold in present),
               )  # fmt: skip
    body, previous = [], ""
    for policy, decoding in keys:
        cells = [cell for fold in present for cell in _fold_cells(by_key[policy, decoding].get(fold))]
        name = _row_head(policy, first=policy != previous)
        first = "first" if policy != previous else None
        body.append(tag("tr", name, tag("td", decoding, class_="word"), *cells, class_=first))
        previous = policy
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="results folds")
    caption = "Success on games of each fold."
    if any(policy in TRAINING for policy, _ in keys):
        if any(chose_on_dev(config, policy) for policy, _ in keys):
            caption = "Success on games that were trained on, games by which checkpoints were chosen, and games kept"
            caption += " for the end. The games that chose the checkpoint flatter it."
        else:
            caption = "Success on games that were trained on, and on games that were not."
        if any(policy == "gold" for policy, _ in keys):
            caption += " A policy that drops where the gold player, who learns nothing, does not has not generalised."
    title = "Train, dev and test side by side"
    return tag("div", tag("h3", title), wide(table, title), tag("p", caption, class_="caption"))


def _games_of(results: Mapping[str, Any], fold: str) -> str:
    games = {row.games for row in rows(results, fold) if row.games is not None}
    return f" {counted(max(games), 'game')}" if games else ""


def _fold_cells(row: Row | None) -> tuple[Html, Html]:
    if row is None or row.success is None:
        return tag("td", "–", class_="num"), tag("td")
    title = counted(row.games, "game")
    text = tag("td", tag("b", percent(row.success)), " ", tag("small", interval_text(row.success_ci95)), class_="num",
               title=title)  # fmt: skip
    return text, tag("td", interval_mark(row.success, row.success_ci95), class_="marked")


def _paired(results: Mapping[str, Any]) -> Html | None:
    """Differences on the same games."""
    listed, found, by_score = results.get("paired"), rows(results), False
    body = []
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        difference, ends = as_number(entry.get("difference")), interval(entry.get("ci95"))
        if difference is None:
            continue
        names = f"{policy_title(str(entry.get('a')))} − {policy_title(str(entry.get('b')))}"
        points, between = signed(100 * difference), interval_text(ends)
        reach = max(abs(number) for number in (1e-9, difference, *(ends or ())))
        scale = (-max(1.0, reach), max(1.0, reach))
        mark: Html | None = interval_mark(difference, ends, scale=scale)
        scores = as_number(entry.get("score_difference"))
        if scores is not None and none_won(found, str(entry.get("a")), str(entry.get("b"))):
            ends, by_score, mark = interval(entry.get("score_ci95")), True, None
            points, between = f"score {signed(scores, 3)}", interval_text(ends, scale=1, decimals=3)
        body.append(
            tag(
                "tr",
                tag("th", names, scope="row"),
                tag("td", str(entry.get("decoding") or ""), class_="word"),
                tag("td", tag("b", points), " ", tag("small", between), class_="num"),
                tag("td", mark, class_="marked"),
                tag("td", _verdict(ends), class_="word"),
                class_="first",
            )
        )
    if not body:
        return None
    head = tag("tr", *(tag("th", title, scope="col") for title in ("Difference", "Decoding", "Points", "", "")))
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="results paired")
    caption = "Difference of success in percentage points on the same games, with its 95% interval."
    if by_score:
        caption += " Where neither won a game, difference of score."
    title = "On the same games"
    return tag("div", tag("h3", title), wide(table, title), tag("p", caption, class_="caption"))


def _verdict(ends: tuple[float, float] | None) -> str:
    """An interval without width is of scores that all differ alike, which does not mean certainty."""
    if ends is None:
        return ""
    if ends[0] == ends[1]:
        return "inconclusive"
    if ends[0] > 0:
        return "better"
    return "worse" if ends[1] < 0 else "inconclusive"


def _verbs(found: list[Row]) -> Html | None:
    """How often each policy uses each verb per game."""
    counted = [row for row in found if row.verbs and row.games and row.steps_mean]
    if not counted:
        return None
    totals: dict[str, float] = {}
    for row in counted:
        for verb, count in row.verbs:
            totals[verb] = totals.get(verb, 0.0) + count / (row.games or 1)
    verbs = sorted(totals, key=lambda verb: (-totals[verb], verb))[:10]
    head = tag("tr", tag("th", "Policy", scope="col"), tag("th", "Decoding", scope="col"),
               *(tag("th", verb, scope="col") for verb in verbs))  # fmt: skip
    body, previous = [], ""
    for row in counted:
        per_game = {verb: count / (row.games or 1) for verb, count in row.verbs}
        cells = [tag("td", f"{per_game[verb]:.2f}" if verb in per_game else "·", class_="num") for verb in verbs]
        first = row.policy != previous
        name = _row_head(row.policy, first=first)
        body.append(tag("tr", name, tag("td", row.decoding, class_="word"), *cells, class_="first" if first else None))
        previous = row.policy
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="results verbs")
    caption = (
        "Average number of uses of each verb, the first word of the action, per game. A policy that endlessly looks"
        " around shows up here. A dot: not among those that it used most."
    )
    title = "What the policies do: actions by verb"
    return tag("details", tag("summary", title), wide(table, title), tag("p", caption, class_="caption"))
