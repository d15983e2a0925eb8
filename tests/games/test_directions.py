"""Mazes of coin with their directions exchanged: on the real game."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from grue.config import load_config
from grue.errors import ConfigError
from grue.games import tasks
from grue.games.base import fold_range
from grue.games.faults import Guarded
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.training import check_training, renamer, training_games
from grue.games.twx.directions import can_turn, draw_directions, turn
from grue.games.twx.game import TwxGame
from grue.games.twx.renamed import RenamedTwx, renamed_episode
from grue.progress import Progress
from grue.stages.checks import check_games
from grue.types import Observation, Outcome, Task

MAZE = {"numLocations": 11, "includeDoors": 1}
WAYS = ("north", "south", "east", "west")
SYMMETRIES = {
    order
    for order in permutations(WAYS)
    if set(order[:2]) in ({"north", "south"}, {"east", "west"})  # opposites stay opposites
}
CROSSED = {"north": "west", "west": "north", "North": "West", "West": "North"}


@pytest.fixture(scope="module")
def game() -> Iterator[TwxGame]:
    twx = TwxGame("coin", MAZE)
    yield twx
    twx.close()


def exits(text: str) -> list[str]:
    return re.findall(r"[Tt]o the (North|South|East|West) you", text)


def test_the_exits_are_named_in_the_games_order() -> None:
    text = "You are in a hall.\nThrough an open wood door, to the North you see a den. To the West you see the attic."
    crossed = (
        "You are in a hall.\nTo the North you see the attic. Through an open wood door, to the West you see a den."
    )
    assert turn(text, CROSSED) == crossed
    assert turn("open door to north", CROSSED) == "open door to west"
    assert turn("Westwards lies the northern hall.", CROSSED) == "Westwards lies the northern hall."
    drawn = [draw_directions(random.Random(seed)) for seed in range(200)]
    assert {tuple(names[way] for way in WAYS) for names in drawn} == SYMMETRIES
    assert all(names[way.title()] == names[way].title() for names in drawn for way in WAYS)


def test_a_turned_maze_is_won_by_the_turned_way(game: TwxGame) -> None:
    """It looks as the game would show it: exits in their order, actions sorted and listed."""
    turned = 0
    for task in tasks("coin", MAZE, "train", 50, 8):
        game.reset(task)
        gold = game.gold()
        plain = play(game, task, teacher("explore", game))
        renamed = RenamedTwx(game, "salt", share=1.0)
        observation, outcome = renamed.reset(task), None
        there = renamed.names.there
        turned += any(there[way] != way for way in WAYS)
        for action in gold:
            shown = exits(observation.text)
            assert shown == sorted(shown, key=[way.title() for way in WAYS].index)
            assert observation.actions == tuple(sorted(observation.actions or ()))
            step = turn(action, there)
            assert step in (observation.actions or ()) and renamed.meant(step) == action
            observation, _, outcome = renamed.step(step)
        assert outcome is Outcome.WON
        # who knows no more than what is shown finds the coin in it as well
        again = play(renamed, task, teacher("explore", renamed))
        assert again.won and plain.won
    assert turned >= 6


def test_a_recorded_way_is_turned_as_a_whole(game: TwxGame) -> None:
    (task,) = tasks("coin", MAZE, "train", 50, 1)
    episode = play(game, task, teacher("explore", game))
    for seed in range(5):
        other = renamed_episode(episode, random.Random(seed))
        names = draw_directions(random.Random(seed))
        assert [step.action for step in other.turns] == [turn(step.action, names) for step in episode.turns]
        assert all(step.valid for step in other.turns)
    assert renamer("coin", MAZE) is not None


def test_a_memorys_notes_are_turned_along(game: TwxGame) -> None:
    pytest.importorskip("bm25s", reason="the extra [retrieval] is not installed")
    from grue.retrieval.memory import Memory, Remembering, remembered

    maze = MAZE | {"includeDoors": 0}
    played = [play(game, task, teacher("explore", game)) for task in tasks("coin", maze, "train", 50, 4)]
    memory = Memory(played)
    for visit in played:
        (seat,) = training_games([Remembering(game, memory)], 1.0, "salt")
        told = seat.reset(visit.task)
        assert isinstance(seat, RenamedTwx)
        (note,) = memory.told(visit.task, visit.turns[0].observation.text, 1, own=True)
        assert note.task == visit.task and note.text in remembered(visit, memory).turns[0].observation.goal
        assert told.goal.endswith("\n" + turn(note.text, seat.names.there))
        outcome = None
        for action in note.actions:  # what the note says leads to the coin in the turned maze
            told, _, outcome = seat.step(turn(action, seat.names.there))
        assert outcome is Outcome.WON


class Wrapped:
    """A class of one's own around a game."""

    def __init__(self, inner: TwxGame) -> None:
        self.inner = inner

    def reset(self, task: Task) -> Observation:
        return replace(self.inner.reset(task), goal="Go north, if you can.")

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        observation, reward, outcome = self.inner.step(action)
        return observation, reward - 0.01, outcome

    def close(self) -> None:
        self.inner.close()


class Hiding(Wrapped):
    """The same, which holds its game under another name."""

    def __init__(self, inner: TwxGame) -> None:
        self.game = inner

    reset = close = step = None  # type: ignore[assignment]


def test_what_wraps_a_game_is_turned_as_a_whole(game: TwxGame) -> None:
    (task,) = tasks("coin", MAZE, "train", 50, 1)
    (seat,) = training_games([Wrapped(game)], 1.0, "a salt")
    shown = seat.reset(task)
    assert isinstance(seat, RenamedTwx) and seat.names.there["north"] != "north"
    assert shown.goal == f"Go {seat.names.there['north']}, if you can."
    assert seat.step((shown.actions or ())[-1])[1] == -0.01
    (twice,) = training_games([Guarded(Wrapped(Wrapped(game)))], 1.0, "a salt")  # type: ignore[arg-type]
    assert isinstance(twice, RenamedTwx) and twice.reset(task) == shown
    with pytest.raises(ConfigError, match="this is another game") as found:
        training_games([Hiding(game)], 1.0, "a salt")
    assert "holds it as `inner`" in found.value.hint


class Own(Wrapped):
    """A class around a game that renames things in a way of its own."""

    @staticmethod
    def renaming(first: Observation, rng: random.Random) -> dict[str, str]:
        return {"kitchen": "scullery"}


def test_a_renaming_of_ones_own_comes_first(game: TwxGame) -> None:
    (task,) = tasks("coin", MAZE, "train", 50, 1)
    for own in (Own(game), Wrapped(Own(game))):  # type: ignore[arg-type]
        (seat,) = training_games([own], 1.0, "salt")
        text = seat.reset(task).text
        assert "scullery" in text and "kitchen" not in text.replace("kitchen cupboard", "")


@pytest.mark.parametrize("stage", ["sft", "ppo"])
def test_small_mazes_are_refused_before_a_stage_begins(stage: str, tmp_path: Path) -> None:
    small = ("game.params=numLocations=5", f"{stage}.rename=0.5", "demos.games=2")
    with pytest.raises(ConfigError, match=rf"{stage}\.rename is for .* this is coin"):
        check_games(stage, load_config("coin", small), Progress(quiet=True))
    check_games(stage, load_config("coin", ("game.params=numLocations=10", *small[1:])), Progress(quiet=True))


def test_small_mazes_stay_as_they_are() -> None:
    """Turned, their train games would be dev and test games."""
    small = TwxGame("coin", {"numLocations": 9})
    with pytest.raises(ConfigError, match=r"ppo\.rename is for .*coin with ten rooms or more.*; this is coin"):
        training_games([small], 0.5, "salt")
    with pytest.raises(ConfigError, match=r"sft\.rename is for"):
        check_training("coin", "numLocations=9", 0.5, stage="sft")
    check_training("coin", "numLocations=10", 0.5)
    assert renamer("coin", {"numLocations": 5}) is None and renamer("coin", "") is not None
    (task,) = tasks("coin", "numLocations=5", "train", 25, 1)
    episode = play(small, task, teacher("explore", small))
    assert renamed_episode(episode, random.Random(1)) == episode
    assert RenamedTwx(small, "salt", share=1.0).reset(task) == episode.turns[0].observation
    small.close()


@pytest.mark.slow
@pytest.mark.parametrize(("rooms", "copies"), [(9, range(1, 20)), (10, range(1)), (11, range(1))])
def test_no_turned_train_game_is_a_later_one_where_mazes_are_turned(rooms: int, copies: Sequence[int]) -> None:
    params = f"numLocations={rooms},includeDoors=0"
    maze = TwxGame("coin", params)
    shown = {
        fold: [maze.rooms(Task("coin", maze.params, fold, seed, 50)) for seed in fold_range(fold)]
        for fold in ("train", "dev", "test")
    }
    maze.close()
    later = {_unordered(rooms, {}) for fold in ("dev", "test") for rooms in shown[fold]}
    ways = [dict(zip(WAYS, order, strict=True)) for order in SYMMETRIES]
    ways = [names | {old.title(): new.title() for old, new in names.items()} for names in ways]
    found = sum(any(_unordered(rooms, names) in later for names in ways) for rooms in shown["train"])
    assert found in copies and (found == 0) == can_turn(params)


def _unordered(rooms: Sequence[str], names: dict[str, str]) -> tuple[str, ...]:
    first, *others = (turn(text.strip(), names) for text in rooms)
    return (first, *sorted(others))
