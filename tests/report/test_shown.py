"""The file of shown episodes: what is written is read again, and what is broken costs one line at most."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import EPISODES, shown

from grue.errors import DataError
from grue.progress import Progress
from grue.report.played_section import played_section
from grue.report.shown import append_shown, from_episode, parse_shown, read_shown
from grue.stages.show import print_episode
from grue.storage import episodes as storage
from grue.types import Episode, Observation, Outcome, Task, Turn


def played(outcome: Outcome = Outcome.WON) -> Episode:
    first, last = Observation("A room.", "Win.", "", ("a", "b"), 0.0), Observation("Done.", "Win.", "", None, 1.0)
    turns = (Turn(first, "a", 0.25, log_prob=-0.5, value=0.4), Turn(first, "b", 0.75, log_prob=-0.1, value=0.6))
    return Episode(Task("toy", "", "dev", 10001, 8), "choose", turns, outcome, last)


def test_written_episodes_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes" / "shown.jsonl"
    for episode in EPISODES:
        append_shown(path, episode)
    assert read_shown(path) == (list(EPISODES), [])


def test_the_terminal_shows_what_each_action_gained_or_lost(capsys: pytest.CaptureFixture[str]) -> None:
    episode = shown("ppo", "greedy", "t", 0.8, steps=3)
    turns = [replace(turn, action=f"act {at}", reward=(0.5, -0.5, 0.0)[at]) for at, turn in enumerate(episode.turns)]
    print_episode(Progress(), replace(episode, turns=tuple(turns)))
    actions = [line.strip() for line in capsys.readouterr().out.splitlines() if "> act" in line]
    assert actions == ["1> act 0  +0.50", "2> act 1  -0.50", "3> act 2"]


def test_the_terminal_shows_a_long_text_once_while_it_stays_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    episode = shown("base", "greedy", "t", 0.8, steps=5)
    texts = ("You are in the kitchen.", "You are in the kitchen.", "Taken.", "Taken.", "You are in the kitchen.")
    turns = [replace(turn, observation=text) for turn, text in zip(episode.turns, texts, strict=True)]
    print_episode(Progress(), replace(episode, turns=tuple(turns), final="You wait."))
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith((" ", "---"))]
    assert printed[-6:-1] == [texts[0], "(the same text)", "Taken.", "Taken.", texts[4]]


def test_the_terminal_shows_what_is_done_again_and_again_once(capsys: pytest.CaptureFixture[str]) -> None:
    episode = shown("base", "greedy", "t", 0.8, steps=8)
    actions = ("look", "wait", "wait", "wait", "wait", "look", "look", "wait")
    alike = [replace(episode.turns[0], observation="A room.", action=action, reward=0.0) for action in actions]
    print_episode(Progress(), replace(episode, turns=tuple(alike)))
    printed = [line.strip() for line in capsys.readouterr().out.splitlines() if "> " in line]
    assert printed[:3] == ["1> look", "2> wait", "3-5> wait  (the same again)"]
    assert printed[3:] == ["6> look", "7> look  (the same again)", "8> wait"]


def test_the_terminal_shows_how_likely_the_played_action_was(capsys: pytest.CaptureFixture[str]) -> None:
    episode = shown("ppo", "sampled", "t", 0.8, steps=1)
    turn = replace(episode.turns[0], considered=(("a", 0.6), ("b", 0.3), ("c", 0.09), ("d", 0.004)))
    for action, said in (("d", "a 60%  b 30%  c 9%  d <1%"), ("b", "a 60%  b 30%  c 9%")):
        print_episode(Progress(), replace(episode, turns=(replace(turn, action=action),)))
        assert f"     {said}  (critic" in capsys.readouterr().out


def test_a_reply_that_is_no_action_is_shown_at_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """What is written freely may be likelier than all listed actions; it was not chosen against one of them."""
    taken = played()
    turn = replace(taken.turns[0], action="fly", valid=False, log_prob=math.log(0.41))
    episode = from_episode(
        replace(taken, turns=(turn, *taken.turns[1:])),
        policy="ppo",
        decoding="greedy",
        title="t",
        considered=[[("look", 0.1), ("wait", 0.05)], [("b", 1.0)]],
    )
    assert [turn.has_likelier for turn in episode.turns] == [False, False]
    print_episode(Progress(), episode)
    printed = capsys.readouterr().out
    assert "1> fly" in printed and printed.count("(invalid)") == 1
    assert "fly 41%  look 10%  wait 5%" in printed and "token by token" not in printed
    assert ">invalid<" in str(played_section([episode]))
    assert parse_shown(json.loads(json.dumps(asdict(episode)))) == episode


def test_a_reply_without_words_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A policy that writes may end its line at once."""
    episode = from_episode(played(), policy="ppo", decoding="greedy", title="t")
    turn = replace(episode.turns[0], action="", considered=(("look", 0.6), ("wait", 0.1)), log_prob=math.log(0.07))
    episode = replace(episode, turns=(turn,))
    print_episode(Progress(), episode)
    printed = capsys.readouterr().out
    assert "1> (nothing)" in printed and "wait 10%  (nothing) 7%" in printed
    assert str(played_section([episode])).count("(nothing)") == 2


def test_a_played_episode_is_shown_with_what_was_weighed() -> None:
    found = from_episode(
        played(), policy="ppo", decoding="greedy", title="t", considered=[[("b", 0.4), ("a", 0.6)], [("b", 1.0)]]
    )
    assert found.turns[0].considered == (("a", 0.6), ("b", 0.4))
    assert (found.turns[0].value, found.turns[0].log_prob) == (0.4, -0.5)
    assert (found.task_text, found.final, found.score, found.outcome) == ("Win.", "Done.", 1.0, "won")


def test_a_scripted_player_has_no_values() -> None:
    found = from_episode(played(), policy="gold", decoding="scripted", title="")
    assert all(turn.value is None and turn.log_prob is None and not turn.considered for turn in found.turns)


def test_a_thought_is_shown_apart_from_the_probability_of_the_action() -> None:
    first, *others = played().turns
    episode = replace(played(), turns=(replace(first, thought="hm", thought_ids=3, log_prob=-20.5), *others))
    found = from_episode(
        episode, policy="ppo", decoding="greedy", title="", considered=[[("b", 0.6), ("a", 0.4)], [("b", 1.0)]]
    )
    assert (found.turns[0].thought, found.turns[0].log_prob) == ("hm", pytest.approx(math.log(0.4)))
    assert [turn.has_likelier for turn in found.turns] == [True, False]
    assert parse_shown(json.loads(json.dumps(asdict(found)))) == found


def test_only_the_likeliest_actions_are_kept() -> None:
    weighed = [(f"action {number}", 0.05) for number in range(20)]
    found = from_episode(played(), policy="p", decoding="greedy", title="", considered=[weighed, weighed])
    assert [len(turn.considered) for turn in found.turns] == [8, 8]


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(DataError, match="observations has 1 turns, the episode has 2"):
        from_episode(played(), policy="p", decoding="greedy", title="", observations=["only one"])


def test_ordinary_episode_files_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    storage.append(path, [played(), played(Outcome.FAILED)])
    found, problems = read_shown(path)
    assert problems == []
    assert [episode.outcome for episode in found] == ["won", "failed"]
    assert (found[0].policy, found[0].task_text, found[0].final, found[0].score) == ("choose", "Win.", "Done.", 1.0)
    assert [turn.observation for turn in found[0].turns] == ["A room.", "A room."]
    assert found[0].turns[0].value == 0.4


def test_a_torn_or_wrong_line_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    append_shown(path, EPISODES[0])
    with path.open("ab") as file:
        file.write(b'not json\n{"turns": 3}\n[]\n\xff\xfe\n' + b"[" * 100_000 + b'\n\n{"turns": [{"observation": "x"')
    found, problems = read_shown(path)
    assert found == [EPISODES[0]]
    assert len(problems) == 6
    assert all("was left out" in problem for problem in problems)


def test_reading_stops_at_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shown.jsonl"
    for _ in range(4):
        append_shown(path, EPISODES[1])
    assert len(read_shown(path, most=2)[0]) == 2
    monkeypatch.setattr("grue.storage.jsonl.MAX_LINE_BYTES", 100)
    found, problems = read_shown(path)
    assert found == []
    assert "reading stopped" in problems[0]


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    append_shown(path, EPISODES[0])
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    for other in (link, tmp_path / "pipe.jsonl", tmp_path, tmp_path / "absent.jsonl"):
        found, problems = read_shown(other)
        assert found == []
        assert "not an ordinary file" in problems[0]


def test_sparse_and_odd_values_are_tolerated() -> None:
    found = parse_shown(
        {
            "turns": [
                {"action": 7, "reward": "x", "considered": [["a", 2.0], ["b", None], "c", [1, 2, 3], [None, 0.5]]}
            ],
            "task": {"seed": 1e400, "limit": True},
            "outcome": "conquered",
            "extra": {"x": 1},
        }
    )
    turn = found.turns[0]
    assert (turn.action, turn.reward, turn.considered) == ("7", 0.0, (("a", 1.0), ("", 0.5)))
    assert (found.outcome, found.policy, found.task) == ("unknown", "unnamed", Task("", "", "", 0, 0))


leaves = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
json_values = (
    leaves
    | st.lists(leaves | st.lists(leaves, max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=5), leaves, max_size=3)
)
keys = st.sampled_from(["turns", "task", "final", "considered", "tokens", "score", "outcome", "observation", "policy"])
objects = st.dictionaries(keys, json_values | st.lists(st.dictionaries(keys, json_values, max_size=4), max_size=3))


@settings(deadline=None, max_examples=150)
@given(objects)
def test_any_json_is_an_episode_or_refused(data: dict[str, object]) -> None:
    turns = data.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        with pytest.raises(DataError):
            parse_shown(data)
        return
    found = parse_shown(data)
    assert len(found.turns) == len(turns)
    shares = [share for turn in found.turns for _, share in turn.considered]
    assert all(0 <= share <= 1 for share in shares)
    numbers = [found.score, *(number for turn in found.turns for number in (turn.reward, turn.value, turn.log_prob))]
    assert all(number is None or math.isfinite(number) for number in numbers)
    texts = [found.policy, found.final, *(text for turn in found.turns for text in (turn.action, turn.observation))]
    assert all(isinstance(text, str) for text in texts)


def test_the_example_in_the_docstring_is_valid() -> None:
    import grue.report.shown as module

    text = (module.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0].replace("...", '"x"', 1)
    example = json.loads(text.replace('"params": ...', '"params": ""').replace('"fold": ...', '"fold": "dev"'))
    found = parse_shown(example)
    assert found.turns[0].considered == (("open fridge", 0.98), ("look around", 0.01))
    assert found.tokens[1] == (" open", "branch")
    assert shown("ppo", "greedy", "t", 1.0).decoding == "greedy"


def test_an_episode_that_is_too_long_to_show_keeps_its_length() -> None:
    data = asdict(shown("ppo", "greedy", "t", 0.0))
    data |= {"turns": [{"observation": "x", "action": "look"}] * 1234, "tokens": [["x", "read"]] * 20_005}
    found = parse_shown(data)
    assert (found.steps, len(found.turns), found.more_turns, found.more_tokens) == (1234, 500, 734, 5)
    assert parse_shown(json.loads(json.dumps(asdict(shown("ppo", "greedy", "t", 0.0, steps=9))))).steps == 9
