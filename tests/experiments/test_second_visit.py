"""Second visits: what is remembered of the first, who comes again, and what is made of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiny
from grue import games, load_policy
from grue.cli.main import app
from grue.config import load_config, read_config
from grue.errors import CheckpointError, ConfigError, DataError
from grue.experiments import prepare
from grue.experiments.cells import Cell
from grue.games.play import play
from grue.games.teachers import teacher
from grue.interrupt import Interrupt, Interrupted
from grue.progress import Progress
from grue.stages import run_all, run_stage
from grue.types import Observation, Outcome, Task, Turn

pytest.importorskip("bm25s", reason="the extra [retrieval] is not installed")

from grue.experiments.second_visit import main as second_visit
from grue.experiments.second_visit.players import Follower
from grue.experiments.second_visit.table import by_note, difference, rate
from grue.experiments.second_visit.visits import OF_ANOTHER, OF_THE_GAME, RIGHT, lessons, notes_told
from grue.retrieval.memory import Memories, direct, note_of

QUIET = Progress(quiet=True)


def went(*rooms: str, score: float = 0.0) -> list[Turn]:
    """Turns in which rooms were seen in this order; the action names where it was taken and how often."""
    return [
        Turn(Observation(room, "find it", "", ("look",), score), f"{room}{number}", 0.0)
        for number, room in enumerate(rooms)
    ]


@pytest.mark.parametrize(
    ("rooms", "kept"),
    [
        ("ab", ["a0", "b1"]),
        ("aba", ["a2"]),  # back where it was: what was done there last counts
        ("abcbd", ["a0", "b3", "d4"]),
        ("abcabd", ["a3", "b4", "d5"]),
        ("aabb", ["a1", "b3"]),
        ("", []),
    ],
)
def test_the_direct_way_leaves_out_what_led_back(rooms: str, kept: list[str]) -> None:
    assert [turn.action for turn in direct(went(*rooms))] == kept


def test_where_the_score_has_changed_it_is_another_place() -> None:
    turns = [*went("a", "b"), *went("a", score=0.5)]
    assert direct(turns) == turns


def test_a_note_names_the_direct_way() -> None:
    gold = tiny.scripted("gold", 1)[0]
    wandering = replace(gold, turns=(*gold.turns[:2], *gold.turns))
    note, straight = note_of(wandering), note_of(gold)
    assert note == straight and note is not None and note.actions == tuple(turn.action for turn in gold.turns)


def test_each_player_remembers_its_own_places() -> None:
    episodes = list(tiny.scripted("gold", 12))
    memories = Memories(episodes, places=4)
    for number, episode in enumerate(episodes):
        mine = {other.task.seed for other in episodes[number // 4 * 4 :][:4]}
        begins, later = episode.turns[0].observation.text, replace(episode.task, limit=99)
        told = memories.told(later, begins, 12, own=True)
        assert {note.task.seed for note in told} == mine
        assert {note.task.seed for note in memories.told(later, begins, 12, own=False)} == mine - {episode.task.seed}
    stranger = tiny.tasks(1, start=30)[0]
    assert memories.told(stranger, "a hall", 1, own=True) == []
    with pytest.raises(ConfigError, match="places=0"):
        Memories(episodes, places=0)


def test_lessons_follow_the_first_visit_without_its_detours() -> None:
    """A visit that looked around twice, and had more steps than the second one has."""
    game, gold = games.make("toy"), tiny.scripted("gold", 6)
    visits = []
    for episode in gold:
        task = replace(episode.task, limit=60)
        visits.append(play(game, task, Detour(teacher("gold", game))))
    assert all(visit.won and visit.steps > episode.steps for visit, episode in zip(visits, gold, strict=True))
    interrupt = Interrupt()
    taught = lessons(game, visits, tiny.LIMIT, interrupt)
    short = [episode for episode in gold if episode.steps <= tiny.LIMIT]
    assert short and [each.task.seed for each in taught] == [episode.task.seed for episode in short]
    for lesson, episode in zip(taught, short, strict=True):
        assert [turn.action for turn in lesson.turns] == [turn.action for turn in episode.turns]
        assert lesson.task.limit == tiny.LIMIT
    lost = [replace(visit, outcome=Outcome.LIMIT) for visit in visits]
    assert lessons(game, lost, tiny.LIMIT, interrupt) == []
    unlisted = [replace(visit, turns=tuple(map(without_list, visit.turns))) for visit in visits]
    assert len(lessons(Unlisted(game), unlisted, tiny.LIMIT, interrupt)) == len(taught)
    with Interrupt() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            lessons(game, visits, tiny.LIMIT, asked)


def test_what_a_note_says_of_the_game() -> None:
    gold = list(tiny.scripted("gold", 6))
    limit = min(episode.steps for episode in gold)
    game = games.make("toy")
    told = notes_told(game, gold, Memories(gold, places=1), 1, limit)
    assert told == {episode.task.seed: RIGHT if episode.steps <= limit else OF_THE_GAME for episode in gold}
    assert len(set(told.values())) == 2
    part = [replace(episode, turns=episode.turns[:-1]) for episode in gold]  # a won visit whose note says too little
    assert set(notes_told(game, part, Memories(part, places=1), 1, tiny.LIMIT).values()) == {OF_THE_GAME}
    assert set(notes_told(game, gold, Memories(gold[:1], places=1), 1, tiny.LIMIT).values()) == {RIGHT, OF_ANOTHER}
    with Interrupt() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            notes_told(game, gold, Memories(gold, places=1), 1, limit, asked)


def test_players_by_what_the_note_says() -> None:
    told = {0: RIGHT, 1: OF_ANOTHER, 2: RIGHT, 3: RIGHT}
    posed, won = cell(True, True, True, True), [cell(True, False, True, False), cell(True, True, False, False)]
    partly = replace(cell(True, True, True, True), won={0: True, 1: False, 2: False}, failed=1)  # game 3 crashed
    right, other = by_note(told, {"a": won, "b": [partly]}, posed)
    assert (right["note"], right["games"], other["note"], other["games"]) == (RIGHT, 2, OF_ANOTHER, 1)
    assert [row["success"] for row in right["rows"]] == [0.75, 0.5]
    assert [row["success"] for row in other["rows"]] == [0.5, 0]
    assert right["rows"][0]["by_training"] == [1, 0.5]


def without_list(turn: Turn) -> Turn:
    return replace(turn, observation=replace(turn.observation, actions=None))


class Unlisted:
    """A game that does not list its actions."""

    def __init__(self, game: games.Game) -> None:
        self.game = game

    def reset(self, task: Task) -> Observation:
        return replace(self.game.reset(task), actions=None)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self.game.step(action)
        return replace(observation, actions=None), reward, outcome

    def close(self) -> None:
        self.game.close()


class Detour:
    """The teacher, who looks around before it begins."""

    name = "detour"

    def __init__(self, inner: Any) -> None:
        self.inner, self.looks = inner, 0

    def start(self, task: Any, observation: Observation) -> None:
        self.inner.start(task, observation)
        self.looks = 2

    def act(self, observation: Observation) -> str:
        self.looks -= 1
        return "look" if self.looks >= 0 else str(self.inner.act(observation))


def test_who_follows_a_note_of_the_game_does_what_was_done() -> None:
    game, gold = games.make("toy"), tiny.scripted("gold", 4)
    memories = Memories(gold, places=1)  # nothing to confuse
    for episode in gold:
        again = play(game, episode.task, Follower(memories))
        assert [turn.action for turn in again.turns] == [turn.action for turn in episode.turns]
    nothing = Memories(tiny.scripted("gold", 1), places=1)
    other = play(game, gold[3].task, Follower(nothing))  # no note: random valid actions, the same each time
    assert all(turn.valid for turn in other.turns)
    assert other == play(game, gold[3].task, Follower(nothing))


def cell(*won: bool) -> Cell:
    seeds = range(len(won))
    return Cell(
        "x", dict(zip(seeds, won, strict=True)), dict.fromkeys(seeds, 0.0), dict(zip(seeds, range(3, 99), strict=False))
    )


def test_rates_and_differences_by_hand() -> None:
    posed = cell(True, True, True, True)
    one = rate("a", "greedy", [cell(True, True, False, False)], posed)
    assert one["success"] == 0.5 and one["steps_of_wins"] == 3.5 and one["games"] == 4
    assert 0.1 < one["success_ci95"][0] < 0.5 < one["success_ci95"][1] < 0.9
    two = rate("a", "greedy", [cell(True, True, False, False), cell(True, True, True, False)], posed)
    assert two["success"] == 0.625 and two["by_training"] == [0.5, 0.75]
    paired = difference(
        "a", "b", "greedy", [cell(True, True, True, False)], [cell(True, False, False, False)], posed, 200
    )
    assert paired["points"] == 50 and paired["ci95"][0] <= 50 <= paired["ci95"][1]
    against_one = difference(
        "a", "b", "greedy", [cell(True, True), cell(True, False)], [cell(False, False)], posed, 200
    )
    assert against_one["points"] == 75 and against_one["by_training"] == [100, 50]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt a little in the toy game."""
    out = tmp_path_factory.mktemp("second") / "toy"
    small = ["demos.games=12", "sft.epochs=1", "ppo.iterations=1", "ppo.episodes_per_iteration=8", "ppo.minibatches=1"]
    small += ["ppo.dev_games=4", "eval.games=2", "eval.side_games=0", "threads=1"]
    run_all(load_config("toy", small), out, say=QUIET)
    return out


SMALL = ["seeds=2", "iterations=2", "episodes=8", "dev_games=4", "games=6", "train_games=8", "places=4", "lessons=1"]
SMALL += ["visit_limit=60", "bootstrap=100"]


def test_the_whole_experiment_goes_on_where_it_stopped(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file: file.read_bytes() for file in trained.iterdir() if file.is_file()}
    result = prepare("second-visit", [trained], SMALL)(QUIET)
    out = trained / "experiments" / "second-visit"
    assert {file: file.read_bytes() for file in before} == before  # the run is only read
    stored = json.loads((out / "second-visit.json").read_text())
    assert stored["rows"] == result["rows"] and stored["differences"] == result["differences"]
    assert len(result["rows"]) == 9 and len(result["differences"]) == 8
    assert all(row["games"] == 6 for row in result["rows"])
    assert {len(row["by_training"]) for row in result["rows"] if row["player"].startswith("trained")} == {2}
    text = (out / "second-visit.md").read_text()
    assert sum(kind["games"] for kind in result["by_note"]) == 6 and "\n| is of " in text
    assert "| trained with notes | greedy |" in text and "over games and 2 trainings" in text
    with_notes = sorted(path for path in (out / "cells").glob("notes-?-*") if path.is_dir())
    assert len(with_notes) == 2
    policy = load_policy(with_notes[0])  # a run directory like others
    task = games.tasks("toy", fold="dev", limit=16, count=1)[0]
    game = games.make("toy")
    assert policy.act(game.reset(task)) in (game.reset(task).actions or ())

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("all of this is on file")

    for name in ("evaluate", "play"):
        monkeypatch.setattr(second_visit, name, refuse)
    again = prepare("second-visit", [trained], SMALL)(QUIET)
    assert again["rows"] == result["rows"] and again["differences"] == result["differences"]

    monkeypatch.undo()
    trainings = [path for path in (out / "cells").glob("*") if path.is_dir()]
    prepare("second-visit", [trained], [*SMALL, "fold=test", "games=4"])(QUIET)  # trains nothing anew
    assert [path for path in (out / "cells").glob("*") if path.is_dir()] == trainings
    shutil.rmtree(with_notes[0] / "checkpoints" / "ppo")
    with pytest.raises(CheckpointError, match="though ppo is done") as found:
        prepare("second-visit", [trained], SMALL)(QUIET)
    assert "or delete" in found.value.hint


def test_a_run_without_demonstrations_is_examined_too(tmp_path: Path) -> None:
    out = tmp_path / "toy"
    small = ["demos.games=0", "sft.epochs=0", "ppo.iterations=1", "ppo.episodes_per_iteration=4", "ppo.minibatches=1"]
    run_all(load_config("toy", [*small, "ppo.dev_games=2", "eval.games=2", "eval.side_games=0"]), out, say=QUIET)
    sizes = ["seeds=1", "iterations=1", "episodes=4", "dev_games=2", "games=4", "train_games=40", "visit_limit=150"]
    result = prepare("second-visit", [out], [*sizes, "policy=base"])(QUIET)
    assert result["lessons"] > 0 and len(result["rows"]) == 9


MAZE = ["game.limit=6", "demos.games=4", "sft.epochs=0", "ppo.rename=1", "model.dtype=float32", "threads=1"]


def test_mazes_are_turned_in_lessons_and_ppo(tmp_path: Path) -> None:
    config = load_config("coin", ["game.params=numLocations=10,includeDoors=0", *MAZE])
    for stage in ("demos", "sft"):
        run_stage(stage, config, tmp_path / "maze", say=QUIET)
    sizes = ["seeds=1", "iterations=1", "episodes=4", "dev_games=2", "games=4", "train_games=12", "visit_limit=30"]
    result = prepare("second-visit", [tmp_path / "maze"], [*sizes, "lessons=1", "places=2", "policy=base"])(QUIET)
    assert result["lessons"] > 0 and sum(kind["games"] for kind in result["by_note"]) == 4
    for kind in ("notes", "control"):
        (made,) = (path for path in (tmp_path / "maze").rglob(f"{kind}-0-*") if path.is_dir())
        used = read_config(made / "config.yaml")
        assert (used.sft.rename, used.ppo.rename) == (1, 1)


def test_mazes_that_cannot_be_turned_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    config = load_config("coin", ["game.params=numLocations=5,includeDoors=0", *MAZE])
    for stage in ("demos", "sft"):
        run_stage(stage, config, tmp_path / "maze", say=QUIET)
    with pytest.raises(ConfigError, match=r"ppo\.rename is for"):
        prepare("second-visit", [tmp_path / "maze"], ["policy=base"])(QUIET)
    assert not (tmp_path / "maze" / "experiments").exists()


def test_visits_that_show_no_way_to_win_are_an_error(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shows a way to win within 16 steps") as found:
        prepare("second-visit", [trained], [*SMALL, "visit_limit=1"], out=tmp_path / "none")(QUIET)
    assert "lessons=0" in found.value.hint


def test_other_visits_under_its_name_are_refused(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "other"
    with pytest.raises(DataError, match="shows a way"):
        prepare("second-visit", [trained], [*SMALL, "visit_limit=1"], out=out)(QUIET)
    (file,) = (out / "cells").glob("visits-train-*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match="holds other games than these"):
        prepare("second-visit", [trained], [*SMALL, "visit_limit=1"], out=out)(QUIET)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-training"], "--only and --no-training are for eval-gap"),
        (["--only", "windows"], "--only and --no-training are for eval-gap"),
        (["game=3"], "'game=3' is not a setting of this experiment"),
        (["seeds=0"], "seeds=0: input should be greater than or equal to 1"),
        (["policy=dagger"], "has no dagger weights"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_played(
    arguments: list[str], said: str, trained: Path
) -> None:
    found = CliRunner().invoke(app, ["experiment", "second-visit", str(trained), *arguments])
    assert found.exit_code and said in f"{found.output}{found.exception}"


def test_several_runs_are_refused(trained: Path) -> None:
    with pytest.raises(ConfigError, match="examines one run, not 2"):
        prepare("second-visit", [trained, trained.parent])
