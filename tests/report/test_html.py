"""The page: complete, safe whatever the files hold, and made of whatever is there."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from report_runs import CONFIG, EPISODES, SCRIPT, metrics, results, write_metrics, write_run

from grue.config import dump_config, load_config, override
from grue.errors import DataError
from grue.names import LENGTHS
from grue.report.html import render
from grue.report.played_section import _turn
from grue.report.shown import ShownTurn
from grue.report.text import visible
from grue.storage.settled import used_settings

# fmt: off
TAGS = frozenset({
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer", "nav", "p", "b", "small",
    "span", "a", "h1", "h2", "h3", "h4", "ul", "ol", "li", "div", "pre", "dl", "dt", "dd", "table", "thead", "tbody",
    "tr", "th", "td", "details", "summary", "figure", "figcaption", "svg", "g", "defs", "path", "use", "text",
    "clippath", "rect", "line", "circle", "polyline",
})
ATTRIBUTES = frozenset({
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "title", "scope", "colspan", "open",
    "role", "tabindex", "style", "viewbox", "d", "x", "y", "width", "height", "transform", "clip-path", "cx", "cy", "r",
    "x1", "x2", "y1", "y2", "points", "stroke-dasharray", "aria-label", "aria-hidden",
})
# fmt: on
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><desc>",
    "\" onmouseover='alert(1)' x=\"",
    "javascript:alert(1)",
    "<!-- --><![CDATA[ ]]> &lt;b&gt; &#x27;",
    "</title></textarea></noscript><iframe src=//example.org>",
    "\x00\x1b[2J\x1b]52;c;aGk=\x07\x9b\r",
    "\u202egpj.exe\u2066\u200b\ufeff",
    "שלום <b dir=rtl>",
    "{{7*7}} ${7*7} $\\alpha$ %s {0}",
    "<base href='//example.org'><meta http-equiv=refresh content=0>",
)


class Page(HTMLParser):
    """Every tag, attribute and text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.other: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, {key: value or "" for key, value in attributes}))
        if name != "meta":
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, {key: value or "" for key, value in attributes}))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.other.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def parsed(run_dir: Path) -> Page:
    """The rendered page, after the checks that every page must pass."""
    source = render(run_dir).read_text(encoding="utf-8")
    page = Page(source)
    assert page.open == []
    assert page.other == ["DOCTYPE html"]
    assert {name for name, _ in page.tags} <= TAGS
    assert {key for _, attributes in page.tags for key in attributes} <= ATTRIBUTES
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        assert attributes.get("href", "#").startswith("#")
        assert "url(" not in attributes.get("style", "")
    assert [name for name, _ in page.tags].count("style") == 1
    (policy,) = [a["content"] for n, a in page.tags if n == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert not {chr(code) for code in range(32)} - {"\n", "\t"} & set(source)
    assert not set("\x7f\u202e\u2066\u200b\ufeff") & set(source)
    return page


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "cooking16", failed=2)


def test_a_whole_run(whole: Path) -> None:
    page = parsed(whole)
    found = json.loads((whole / "results.json").read_text())
    ppo = found["policies"]["ppo"]["decoding"]["greedy"]
    assert f"PPO learnt to win {100 * ppo['success']:.1f}% of 60 test games that it had never seen" in page.text
    assert "In 24 min 13 s" in page.text
    assert "What is missing or odd" not in page.text
    for policy in ("random", "gold", "base", "SFT", "PPO"):
        assert policy in page.text
    for heading in ("Results", "Train, dev and test side by side", "On the same games", "Training", "Command"):
        assert heading in page.text
    assert "Glossary" in page.text
    assert "counted as losses, success would be" in page.text  # two games of gold crashed


def test_every_number_of_the_main_table_is_on_the_page(whole: Path) -> None:
    text = parsed(whole).text
    found = json.loads((whole / "results.json").read_text())
    for entry in found["policies"].values():
        for row in entry["decoding"].values():
            assert f"{100 * row['success']:.1f}%" in text
            assert f"{row['score']:.3f}" in text
            assert f"{row['steps_mean']:.1f}" in text


def test_episodes_stand_on_the_page_as_they_were_played(whole: Path) -> None:
    page = parsed(whole)
    for observation, action, _, _ in SCRIPT:
        assert observation in page.text
        assert action in page.text
    widths = [
        float(a["style"].removeprefix("width:").removesuffix("%")) for n, a in page.tags if a.get("class") == "fill"
    ]
    drawn = {round(width, 1) for width in widths}
    for episode in EPISODES:
        for turn in episode.turns:
            for _, probability in turn.considered:
                assert round(100 * probability, 1) in drawn
    chosen = [a for n, a in page.tags if n == "li" and a.get("class") == "chosen"]
    assert len(chosen) == sum(len(episode.turns) for episode in EPISODES if episode.policy != "gold")


def test_an_action_has_one_probability() -> None:
    """Play and the pass that weighs all actions round differently."""
    weighed = (("look", 0.502), ("wait", 0.498))
    assert "50.2%" in str(_turn(ShownTurn("", "look", log_prob=math.log(0.488), considered=weighed), greedy=True))
    assert "48.8%" in str(_turn(ShownTurn("", "look", log_prob=math.log(0.488)), greedy=True))


def test_settings_and_meanings_are_on_the_page(whole: Path) -> None:
    text = parsed(whole).text
    for words in ("entropy", "0.005", "explained_variance", "1 is perfect", "transformers", "5.23.0", "gold-pruned"):
        assert words in text


def test_games_that_pose_the_same_problem_are_said_to(whole: Path, tmp_path: Path) -> None:
    said = "They pose 30 different problems, so intervals are over problems, not games."
    assert "different problems" not in parsed(whole).text
    assert "With 60 games each, two policies" in parsed(whole).text
    shutil.copytree(whole, tmp_path / "run")
    found = json.loads((whole / "results.json").read_text())
    for entry in found["policies"].values():
        for row in entry["decoding"].values():
            row["problems"] = 30
    (tmp_path / "run" / "results.json").write_text(json.dumps(found))
    text = parsed(tmp_path / "run").text
    assert said in text
    assert "With 30 problems each, two policies" in text


def test_the_same_files_give_the_same_page(whole: Path) -> None:
    assert render(whole).read_bytes() == render(whole).read_bytes()


def hostile_copy(data: Any, text: str) -> Any:
    """The same structure with `text` for every string and added to every key that is free text."""
    if isinstance(data, dict):
        return {key: hostile_copy(value, text) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [hostile_copy(value, text) for value in data]
    return text if isinstance(data, str) else data


@pytest.fixture(scope="module")
def small_results() -> dict[str, Any]:
    return results(6)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_files_is_shown_and_never_obeyed(tmp_path: Path, small_results: dict[str, Any], text: str) -> None:
    run = tmp_path / "run"
    write_run(run, parts="config episodes")
    found = hostile_copy(small_results, text)
    for fold in ("policies", "dev", "train"):
        for entry in found[fold].values():
            for row in entry["decoding"].values():
                row["verbs"] = {text: 3}
        found[fold][text] = {"decoding": {text: found[fold]["ppo"]["decoding"]["greedy"]}}
    for table in ("stages", "hardware", "versions"):
        found[table][text] = 1.5
    found["paired"].append({"a": text, "b": text, "decoding": text, "difference": 0.5, "ci95": [0.1, 0.9]})
    (run / "results.json").write_bytes(orjson.dumps(found))
    (run / "config.yaml").write_text(yaml.safe_dump({**hostile_copy(CONFIG, text), text: {text: text}}))
    line = {"time_s": 1.0, f"metric {text}": 0.5, f"success_{text}": 0.5}
    write_metrics(
        run, [{"stage": name, "step": step, **line, "x": step} for name in (text, "ppo") for step in range(3)]
    )
    shown = run / "episodes" / "shown.jsonl"
    lines = [hostile_copy(json.loads(line), text) for line in shown.read_text().splitlines()]
    shown.write_bytes(b"".join(orjson.dumps(episode) + b"\n" for episode in lines))

    page = parsed(run)
    assert visible(text) in page.text


def test_the_name_of_the_folder_is_text(tmp_path: Path) -> None:
    run = tmp_path / "<b onclick=x>&amp;"
    assert "<b onclick=x>&amp;" in parsed(write_run(run, parts="config")).text


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ("config", ("the run is not finished",)),
        ("metrics", ("config.yaml is absent", "the run is not finished")),
        ("results", ("config.yaml is absent", "there are no training curves")),
        ("config metrics episodes", ("the run is not finished",)),
        ("config metrics results", ("No played episode",)),
    ],
)
def test_partial_runs_say_what_is_missing(tmp_path: Path, parts: str, missing: tuple[str, ...]) -> None:
    text = parsed(write_run(tmp_path / "run", games=8, parts=parts)).text
    for words in missing:
        assert words in text


def test_a_run_before_ppo(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    write_metrics(run, [line for line in metrics(0, 30) if line["stage"] == "sft"])
    (run / "stages.json").write_text(
        '{"demos": {"seconds": 14.0, "state": "done"}, "sft": {"seconds": 60, "state": "x"}}'
    )
    text = parsed(run).text
    assert "SFT has logged 30 logged steps" not in text
    assert "This run has not been evaluated yet. SFT has logged 30 steps" in text
    assert "the run is not finished. grue run with this folder" in text
    for alarm in ("No PPO iteration", "unreadable", "No played episode has"):  # what is still to come is not missing
        assert alarm not in text
    assert "1 min 14 s in all" in text


def test_a_run_in_the_middle_of_ppo(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    write_metrics(run, [{"stage": "ppo", "step": 1, "time_s": 24.0, "success": 0.125, "policy_loss": None}])
    text = parsed(run).text
    so_far = "PPO has logged 1 of 40 iterations; most recently it won 12.5% of its training games"
    assert f"This run has not been evaluated yet. {so_far}" in text
    (run / "stages.json").write_text('{"sft": {"state": "done"}, "ppo": {"state": "begun"}}')
    assert f"This run is not finished: {so_far}" in parsed(run).text
    assert "Not finite: policy_loss 1 time" in text


def test_results_without_ppo_tell_of_sft(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    del found["policies"]["ppo"]
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "SFT learnt to win" in text
    assert "No test result for PPO" in text
    # where the settings ask for none, nothing is missing
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["ppo"]["iterations"] = 0
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    text = parsed(run).text
    assert "PPO iteration" not in text
    assert "No test result" not in text


def test_how_far_apart_policies_must_be_is_said_of_the_runs_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    (run / "results.json").write_bytes(orjson.dumps(found))
    (before,) = re.findall(r"With 20 games each, two policies near \d+%", parsed(run).text)
    row = found["policies"]["ppo"]["decoding"]["greedy"] | {"success": 0.0, "games": 32}
    found["policies"]["api:x"] = {"decoding": {"greedy": row}}
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert before in text
    assert "Every policy of this run played 20 games" in text


def test_dev_games_that_chose_nothing_are_not_said_to_flatter(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    text = parsed(run).text
    assert "flatter it" in text
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["ppo"]["dev_every"] = 0
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    text = parsed(run).text
    assert "flatter it" not in text and "on games that were not" in text


def test_every_row_names_its_policy_to_a_screen_reader(whole: Path) -> None:
    page = render(whole).read_text(encoding="utf-8")
    assert re.findall(r'<th scope="row"><span class="unseen">PPO</span></th>', page)
    assert not re.findall(r'<th scope="row"></th>', page)


def test_a_screen_reader_reads_words_apart_and_numbers_once(whole: Path) -> None:
    page = parsed(whole)
    assert "PPO greedy after PPO won score 1.00, 13 steps" in page.text
    assert re.search(r"value 0\.\d\d reward \+0\.14 probability \d", page.text)
    marks = [attributes for _, attributes in page.tags if attributes.get("class") == "mark"]
    assert marks and all(mark.get("aria-hidden") == "true" and "aria-label" not in mark for mark in marks)


def test_the_glossary_names_numbers_as_figures_and_files_do(whole: Path) -> None:
    assert "Explained variance explained_variance" in parsed(whole).text


def test_the_weights_that_were_kept_are_ringed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    write_metrics(run, [line for line in metrics(8, 0) if line["stage"] == "dev"])
    ppo = {"state": "done", "seconds": 1.0, "best_merit": 0.4, "best_iteration": 4}
    for merit, ringed in ((0.4, True), (-1.0, False)):  # where no dev games chose them, it is below 0
        (run / "stages.json").write_text(json.dumps({"ppo": ppo | {"best_merit": merit}}))
        page = parsed(run)
        assert ("Kept (ring): the weights of iteration 4 (34%)." in page.text) == ringed
        assert any(attributes.get("id") == "main-ring" for _, attributes in page.tags) == ringed


def test_games_as_they_were_played_name_no_home(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    shown = (run / "episodes" / "shown.jsonl").read_text().splitlines()
    first = json.loads(shown[0])
    first["task"]["game"] = "textworld:/home/alice/secret/story.z8"
    first["final"] = "cannot read /home/alice/secret/story.z8"
    (run / "episodes" / "shown.jsonl").write_text("\n".join([json.dumps(first), *shown[1:]]) + "\n")
    text = parsed(run).text
    assert "~/secret/story.z8" in text and "alice" not in text


def test_a_run_that_trains_nothing_misses_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    for name in ("sft", "dagger", "ppo", "gold"):  # gold where a game cannot solve itself
        for fold in ("policies", "train", "dev"):
            found[fold].pop(name, None)
    (run / "results.json").write_bytes(orjson.dumps(found))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    for stage, setting in LENGTHS.items():
        settings.setdefault(stage, {})[setting] = 0
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    text = parsed(run).text
    assert "This run trains nothing." in text
    for words in ("no training curves", "No test result", "logged yet", "A policy that drops", "that were trained on"):
        assert words not in text


def test_a_policy_that_got_worse_is_not_praised(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    found["policies"]["ppo"], found["policies"]["sft"] = found["policies"]["sft"], found["policies"]["ppo"]
    (run / "results.json").write_bytes(orjson.dumps(found))
    assert "% after imitation" in parsed(run).text
    assert "up from" not in parsed(run).text


def test_weights_that_no_update_improved_are_not_called_learnt(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config results")

    def text_of(**facts: float) -> str:
        stages = {"ppo": {"seconds": 1.0, "state": "done", "best_merit": 0.5, "best_iteration": 0} | facts}
        (run / "stages.json").write_bytes(orjson.dumps(stages))
        return parsed(run).text

    assert "PPO found nothing better on dev games than the weights that it began with, and these win" in text_of()
    assert "PPO learnt to win" in text_of(best_iteration=2)
    assert "PPO learnt to win" in text_of(best_merit=-1.0)  # no dev games were played


def test_games_that_failed_are_in_the_headline(tmp_path: Path) -> None:
    """ "100.0% of 2 test games" was said of 32 games, of which 30 had failed."""
    run = write_run(tmp_path / "run", parts="config")

    def text_of(**rows: dict[str, Any]) -> str:
        found = results(20)
        for policy, changes in rows.items():
            for row in found["policies"][policy]["decoding"].values():
                row |= changes
        (run / "results.json").write_bytes(orjson.dumps(found))
        return parsed(run).text

    nothing = {"games": 0, "failed": 20, "success": None, "success_ci95": None, "score": None, "score_ci95": None}
    few = {"games": 2, "failed": 18, "success": 1.0}
    said = "PPO learnt to win 100.0% of 2 test games that it had never seen (18 more failed), up from"
    assert said in text_of(ppo=few)
    without = text_of(ppo=nothing)
    assert "SFT learnt to win" in without and "No game of PPO was finished: all failed. The 95% " in without
    learnt = text_of(**dict.fromkeys(("base", "sft", "ppo"), nothing))
    assert "No game of base and SFT and PPO was finished: all failed." in learnt
    assert "has not been evaluated" not in learnt
    found = results(20)  # greedy play failed, sampled play did not
    found["policies"]["ppo"]["decoding"]["greedy"] |= nothing
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "with sampled actions" in text and "was finished: all" not in text
    sampled = found["policies"]["sft"]["decoding"]["sampled"]["success"]
    greedy = found["policies"]["sft"]["decoding"]["greedy"]["success"]
    assert sampled != greedy and f"up from {100 * sampled:.1f}% after imitation" in text


def test_what_the_games_do_not_tell_apart_is_no_rise(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    found["paired"][0]["ci95"] = [-0.031, 0.344]
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "% after imitation (these games do not tell the two apart)." in text and "up from" not in text


def test_a_score_that_rose_alike_in_all_games_is_no_certain_rise(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(1)
    for name, entry in found["policies"].items():
        for row in entry["decoding"].values():
            row |= {"success": 0.0, "score": 0.5 if name == "ppo" else 0.25}
    for ends, verdict in (([0.25, 0.25], "inconclusive"), ([0.2, 0.3], "better"), ([-0.1, 0.3], "inconclusive")):
        found["paired"] = [found["paired"][0] | {"score_difference": 0.25, "score_ci95": ends}]
        (run / "results.json").write_bytes(orjson.dumps(found))
        text = parsed(run).text
        assert ("(these games do not tell the two apart)" in text) == (verdict == "inconclusive")
        shown = text[text.index("On the same games") :]
        assert "score +0.250" in shown and verdict in shown and "Where neither won a game, difference of score" in shown


def test_results_of_weights_that_are_not_final_are_said_to_be_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    (run / "results.json").write_bytes(orjson.dumps(results(20)))
    (run / "stages.json").write_text('{"sft": {"state": "done"}, "ppo": {"state": "begun"}}')
    assert "PPO is not finished: what is shown are its weights so far." in parsed(run).text
    (run / "stages.json").write_text('{"sft": {"state": "done"}, "ppo": {"state": "done"}}')
    assert "is not finished" not in parsed(run).text


def test_settings_that_were_not_used_are_said_to_be_so(tmp_path: Path) -> None:
    run, config = tmp_path / "run", load_config("toy")
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    (run / "stages.json").write_text('{"sft": {"state": "done"}}')
    (run / "settings.json").write_text(json.dumps(used_settings(config)))
    assert "was edited" not in parsed(run).text
    (run / "config.yaml").write_text(dump_config(override(config, ["sft.learning_rate=0.5", "ppo.clip=0.1"])))
    text = parsed(run).text
    assert "config.yaml was edited after the run had used it: sft.learning_rate" in text
    assert "ppo.clip (" not in text  # PPO has not begun


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes", "episodes/shown.jsonl"])
def test_what_may_not_be_read_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", parts="config metrics episodes")
    closed, read_bytes = run / name, Path.read_bytes

    def read(path: Path) -> bytes:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)  # modes say nothing to root
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != closed)
    assert f"{closed.name} could not be read" in parsed(run).text


def test_a_single_game_is_one_and_bounds_no_score(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(1)
    for entry in found["policies"].values():
        for row in entry["decoding"].values():
            row |= {"success": 0.0, "score": 0.5, "score_ci95": [0.5, 0.5]}
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "PPO won none of 1 test game that it had never seen" in text
    assert "Every policy played 1 game of the test fold" in text and "With 1 game each" in text
    assert "1 games" not in text and "0.500 to 0.500" not in text


def test_whatever_scrolls_sideways_does_so_with_the_keyboard(whole: Path) -> None:
    boxes = [attributes for _, attributes in parsed(whole).tags if attributes.get("class") == "wide"]
    assert len(boxes) == 5
    assert all(box["tabindex"] == "0" and box["role"] == "region" and box["aria-label"] for box in boxes)


def test_lines_beside_the_curve_say_of_which_games_they_are(tmp_path: Path) -> None:
    """With SFT on other games than the curve, SFT stood at 62 % and the curve, which begins with it, at 75 %."""

    run = write_run(tmp_path / "run")  # 60 dev games in the table, 200 on the curve
    text = parsed(run).text
    assert re.search(r"Dotted lines: gold \d+%, base \d+%, random 0%; on 60 dev games, the curve on 200\.", text)
    assert "gold  " in text and "SFT  " not in text  # names of lines in the figure, with their level
    found = json.loads((run / "results.json").read_text())
    for entry in found["dev"].values():
        for row in entry["decoding"].values():
            row |= {"games": 199, "failed": 1}
    (run / "results.json").write_text(json.dumps(found))
    text = parsed(run).text
    assert re.search(r"random 0%; on the same games\.", text) and "SFT  " in text


@pytest.mark.parametrize(
    ("dev", "train", "drawn"),
    [
        ((0.0, 0.0, 0.0), (0.1, 0.5, 0.9), "Score on dev games"),  # and not the success that training games show
        ((0.5, 0.5, 0.5), (0.1, 0.5, 0.9), "Success on dev games"),
        ((0.0,), (0.1, 0.5, 0.9), "Success on training games"),
        ((), (0.0, 0.0, 0.0), "Score on training games"),
    ],
)
def test_the_main_curve_is_that_of_dev_games_even_if_nothing_happens_there(
    dev: tuple[float, ...], train: tuple[float, ...], drawn: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", parts="config")
    lines: list[dict[str, Any]] = [
        {"stage": "dev", "step": step, "time_s": 1.0, "success_greedy": won, "score_greedy": 0.1 * step, "games": 9}
        for step, won in enumerate(dev)
    ]
    lines += [
        {"stage": "ppo", "step": step, "time_s": 1.0, "success": won, "score": 0.1 * step}
        for step, won in enumerate(train)
    ]
    write_metrics(run, lines)
    page = parsed(run)
    assert f"{drawn} over the iterations" in page.text
    assert sum(attributes.get("class") == "main" for _, attributes in page.tags) == 1


def test_where_nobody_wins_the_score_tells(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    for policy, score in (("base", 0.01), ("sft", 0.131), ("ppo", 0.18)):
        found["policies"][policy]["decoding"]["greedy"] |= {"success": 0.0, "score": score, "score_ci95": [0.17, 0.19]}
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "PPO won none of 20 test games that it had never seen, and reached a mean score of 0.180" in text
    assert "up from 0.131 after imitation" in text
    assert "The 95% interval is 0.170 to 0.190. The base scores 0.010." in text
    del found["policies"]["sft"]
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "up from 0.010 before training; 1 would be a win." in text
    assert "The base scores" not in text  # which has just been said
    assert "kL" not in text  # KL is no word that begins with a capital


def test_where_the_policy_wins_nothing_it_is_said_who_wins(tmp_path: Path) -> None:
    """In games where a mistake costs a point, doing nothing may score more than trying."""
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    for policy, won, score in (("base", 0.3, -0.4), ("sft", 0.0, -0.833), ("ppo", 0.0, 0.167)):
        found["policies"][policy]["decoding"]["greedy"] |= {"success": won, "score": score}
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "reached a mean score of 0.167, up from −0.833 after imitation" in text
    assert "The base scores −0.400 and wins 30.0%." in text


def test_where_only_sampled_actions_were_measured_they_tell(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config")
    found = results(20)
    for entry in found["policies"].values():
        entry["decoding"].pop("greedy", None)
    (run / "results.json").write_bytes(orjson.dumps(found))
    text = parsed(run).text
    assert "has not been evaluated" not in text
    assert "of 20 test games that it had never seen, with sampled actions, " in text


def _text_of_game(name: str, folder: Path) -> str:
    """The page of a run of another game."""
    run = write_run(folder)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"game": {"name": name}}))
    return parsed(run).text


def test_a_story_that_was_trained_on_is_not_called_unseen(tmp_path: Path) -> None:
    text = _text_of_game("jericho:zork1.z5", tmp_path / "run")
    assert "60 test games, all of the story that it trained on" in text
    assert "never seen" not in text
    assert "other games" not in text and "must differ by" not in text
    assert "plays of the one game" in text
    for title in ("Train, dev and test side by side", "On the same games"):
        assert title not in text and title in _text_of_game("cookingworld", tmp_path / "other")


def test_games_of_a_package_may_be_alike_whatever_the_seed(tmp_path: Path) -> None:
    text = _text_of_game("guess", tmp_path / "run")
    assert "60 test games, with seeds that it was not trained on" in text
    assert "never seen" not in text


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("results.json", "{", "results.json could not be read"),
        ("results.json", "{", "results.json is unreadable"),
        ("results.json", "[1]", "results.json does not hold a JSON object"),
        ("results.json", "[" * 100_000, "results.json could not be read"),
        ("results.json", '{"schema": 99}', "schema that this version does not know"),
        ("config.yaml", "a: [", "config.yaml is not a YAML file of settings"),
        ("config.yaml", "a: !!python/object/apply:os.system ['true']", "config.yaml is not a YAML file of settings"),
        ("config.yaml", "a: &x [1]\nb: [*x, *x]", "anchors and aliases are not allowed"),
        ("config.yaml", "[" * 200_000, "config.yaml is not a YAML file of settings"),
        ("config.yaml", "seed: 1\nseed: 2\n", "key 'seed' is given twice (line 2)"),
        ("metrics.jsonl", "\x00\n{\n", "2 unreadable line(s)"),
        (
            "metrics.jsonl",
            '{"stage": "ppo", "step": "x", "time_s": 1}\n{"stage": "ppo", "time_s": 1}\n',
            "2 line(s) were left out, as the step",
        ),
        ("metrics.jsonl", '{"stage": "ppo", "step": 1, "time_s": "x"}\n', "in 1 line(s) the time"),
        ("stages.json", '{"sft": {"state": "done", "seconds": "x"}}', "the seconds of sft are not a number"),
        ("stages.json", '{"sft": []}', "the seconds of sft are not a number"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    run = write_run(tmp_path / "run", parts="config")
    (run / file).write_text(content)
    assert words in parsed(run).text


def test_links_out_of_the_run_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: swordfish")
    run = write_run(tmp_path / "run", parts="metrics")
    (run / "config.yaml").symlink_to(secret)
    (run / "settings.json").symlink_to(secret)
    (run / "episodes").symlink_to(tmp_path)
    target = tmp_path / "target.html"
    target.write_text("untouched")
    (run / "report.html").symlink_to(target)
    text = parsed(run).text
    assert "swordfish" not in text
    assert "config.yaml is not an ordinary file" in text and "settings.json is not an ordinary file" in text
    assert target.read_text() == "untouched"


def test_secrets_in_commands_and_settings_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="metrics")
    (run / "config.yaml").write_text("model: {name: /home/anna/models/x, hub: hf_abcdefghijklmnopqrst}")
    (run / "results.json").write_text(json.dumps({"command": "grue run --out /home/anna/runs/a"}))
    source = render(run).read_text()
    assert "anna" not in source
    assert "hf_abc" not in source
    assert "grue run --out ~/runs/a" in source


def test_without_shown_episodes_some_played_ones_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="config episodes")
    (run / "episodes" / "shown.jsonl").rename(run / "episodes" / "demos.jsonl")
    assert SCRIPT[0][0] in parsed(run).text


def test_a_game_that_was_shown_again_is_shown_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", parts="episodes")
    once = len([name for name, _ in parsed(run).tags if name == "details"])
    write_run(run, parts="episodes")
    assert len([name for name, _ in parsed(run).tags if name == "details"]) == once


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        render(tmp_path)
    with pytest.raises(DataError, match="no run directory"):
        render(tmp_path / "absent")
    assert not (tmp_path / "report.html").exists()
