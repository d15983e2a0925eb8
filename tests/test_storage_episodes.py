"""Episodes and JSONL files: what is written is what is read, and a kill costs at most one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from grue.errors import DataError
from grue.storage import episodes, jsonl
from grue.types import Branch, Episode, Observation, Outcome, Segment, Task, Turn

_texts = st.text(max_size=20)
_numbers = st.floats(allow_nan=False, allow_infinity=False)
_ids = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
_observations = st.builds(
    Observation,
    text=_texts,
    goal=st.sampled_from(["cook", "eat", ""]),
    inventory=_texts,
    actions=st.none() | st.lists(_texts, max_size=4).map(tuple),
    score=_numbers,
)
_turns = st.builds(
    Turn,
    observation=_observations,
    action=_texts,
    reward=_numbers,
    valid=st.booleans(),
    log_prob=_numbers,
    entropy=_numbers,
    value=_numbers,
    segment=st.integers(0, 3),
    state_position=st.integers(0, 5000),
    branches=st.lists(st.builds(Branch, st.integers(0, 5000), _ids, st.integers(0, 5)), max_size=3).map(tuple),
)
_episodes = st.builds(
    Episode,
    task=st.builds(Task, _texts, _texts, _texts, st.integers(0, 2**40), st.integers(1, 50)),
    player=_texts,
    turns=st.lists(_turns, max_size=4).map(tuple),
    outcome=st.sampled_from(Outcome),
    final=st.none() | _observations,
    segments=st.lists(st.builds(Segment, _ids), max_size=2).map(tuple),
    error=_texts,
    last_value=_numbers,
)

START = Observation("A kitchen.", "Cook.", "Nothing.", ("look around", "open fridge"), 0.0)
EPISODE = Episode(
    task=Task("toy", "", "train", 3, 16),
    player="gold",
    turns=(Turn(START, "open fridge", 0.5),),
    outcome=Outcome.LIMIT,
    final=Observation("An open fridge.", "Cook.", "", None, 0.5),
)


@given(_episodes)
def test_an_episode_survives_json(episode: Episode) -> None:
    assert episodes.from_dict(orjson.loads(orjson.dumps(episodes.to_dict(episode)))) == episode


@given(st.lists(_episodes, max_size=3))
def test_episodes_survive_a_file(tmp_path_factory: pytest.TempPathFactory, played: list[Episode]) -> None:
    file = tmp_path_factory.mktemp("episodes") / "games" / "played.jsonl"
    episodes.append(file, played[:1])
    episodes.append(file, played[1:])
    assert list(episodes.read(file)) == played


def test_a_scripted_episode_is_stored_without_policy_fields_and_with_one_goal() -> None:
    assert episodes.to_dict(EPISODE) == {
        "task": {"game": "toy", "params": "", "fold": "train", "seed": 3, "limit": 16},
        "player": "gold",
        "outcome": "limit",
        "goal": "Cook.",
        "turns": [
            {
                "text": "A kitchen.",
                "inventory": "Nothing.",
                "actions": ["look around", "open fridge"],
                "score": 0.0,
                "action": "open fridge",
                "reward": 0.5,
            }
        ],
        "final": {"text": "An open fridge.", "score": 0.5},
    }


@pytest.mark.parametrize("torn", [1, 20, 100])
def test_a_torn_last_line_is_dropped_and_mended_by_the_next_append(tmp_path: Path, torn: int) -> None:
    file = tmp_path / "played.jsonl"
    episodes.append(file, [EPISODE, EPISODE])
    data = file.read_bytes()
    file.write_bytes(data[:-torn])
    whole = 2 if torn == 1 else 1  # without its newline a line is still whole
    assert list(episodes.read(file)) == [EPISODE] * whole
    episodes.append(file, [EPISODE])
    assert list(episodes.read(file)) == [EPISODE] * (whole + 1)


@pytest.mark.parametrize(
    "line",
    [
        b"{not json}",
        b"[1]",
        b"{}",
        b'{"task": 3}',
        b"\xff\xfe",
        b"",
        orjson.dumps({**episodes.to_dict(EPISODE), "outcome": "drawn"}),
        orjson.dumps({**episodes.to_dict(EPISODE), "goal": 3}),
        orjson.dumps({**episodes.to_dict(EPISODE), "turns": [{"text": "A kitchen."}]}),
        orjson.dumps({**episodes.to_dict(EPISODE), "segments": [["a"]]}),
        orjson.dumps({**episodes.to_dict(EPISODE), "final": {"text": "x", "score": None}}),
        orjson.dumps({**episodes.to_dict(EPISODE), "final": {"text": "x", "score": True}}),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "played.jsonl"
    good = orjson.dumps(episodes.to_dict(EPISODE))
    file.write_bytes(b"\n".join([good, line, good]) + b"\n")
    reader = episodes.read(file)
    assert next(reader) == EPISODE
    with pytest.raises(DataError, match=r"played\.jsonl:2"):
        list(reader)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_stored(tmp_path: Path, value: float) -> None:
    broken = Episode(EPISODE.task, "choose", (Turn(START, "look around", value),), Outcome.WON, None)
    with pytest.raises(DataError, match="reward"):
        episodes.append(tmp_path / "played.jsonl", [broken])
    assert not (tmp_path / "played.jsonl").exists()


def test_text_that_is_not_text_is_named(tmp_path: Path) -> None:
    broken = Episode(EPISODE.task, "choose", (), Outcome.FAILED, None, error="lone surrogate \ud800")
    with pytest.raises(DataError, match=r"played\.jsonl"):
        episodes.append(tmp_path / "played.jsonl", [broken])


def test_rows_can_be_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    jsonl.append(file, ({"step": step} for step in range(5)))
    jsonl.keep_first(file, 4)
    jsonl.keep(file, lambda row: row["step"] != 1)
    assert [row for _, row in jsonl.read(file)] == [{"step": 0}, {"step": 2}, {"step": 3}]
    jsonl.keep_first(file, 10)
    assert [where for where, _ in jsonl.read(file)] == [f"{file}:1", f"{file}:2", f"{file}:3"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder is needed")
    with pytest.raises(DataError, match="blocked"):
        episodes.append(tmp_path / "blocked" / "played.jsonl", [EPISODE])
    with pytest.raises(DataError, match="cannot read"):
        list(jsonl.read(tmp_path))


@pytest.mark.parametrize("name", ["value", "log_prob", "entropy"])
def test_a_number_that_could_not_be_read_again_is_not_written(name: str) -> None:
    episode = tiny.scripted("gold", 1)[0]
    turn = replace(episode.turns[0], **{name: float("nan")})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"not finite|is nan"):
        episodes.to_dict(replace(episode, turns=(turn,)))


def test_a_file_that_is_not_there_is_an_error_unless_it_may_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*typo\.jsonl"):
        episodes.read(tmp_path / "typo.jsonl")
    assert list(episodes.read(tmp_path / "typo.jsonl", missing_ok=True)) == []
