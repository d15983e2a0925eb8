"""Tasks played by players without a model, one after the other or several at a time."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from grue import games
from grue.errors import TeacherError
from grue.games import restarts
from grue.games.each import AHEAD, play_each
from grue.games.native import games_at_once
from grue.games.play import Player, play
from grue.games.teachers import teacher
from grue.games.worker.game import WorkerGame
from grue.games.worker.process import WorkerSettings
from grue.types import Episode, Observation, Task

TASKS = games.tasks("toy", "", "train", limit=12, count=40)
Seat = tuple[games.Game, Player]


def played(seat: Seat, task: Task) -> Episode:
    return play(seat[0], task, seat[1])


def seats(count: int) -> list[Seat]:
    return [(game, teacher("random", game)) for game in (games.make("toy") for _ in range(count))]


def test_several_seats_play_what_one_does_in_the_order_of_the_tasks() -> None:
    alone = list(play_each(seats(1), TASKS, played))
    assert [episode.task for episode in alone] == TASKS
    assert len({episode.steps for episode in alone}) > 1
    assert list(play_each(seats(4), TASKS, played)) == alone
    assert list(play_each(seats(4), TASKS[:2], played)) == alone[:2]
    assert list(play_each(seats(4), [], played)) == []


def test_seats_play_at_the_same_time_and_each_has_one_task() -> None:
    """Three meet at a barrier, which one after the other never could."""
    barrier, busy = threading.Barrier(3), set[int]()

    def meet(seat: int, task: Task) -> int:
        assert seat not in busy
        busy.add(seat)
        barrier.wait(timeout=60)
        busy.remove(seat)
        return task.seed

    assert list(play_each(range(3), TASKS[:12], meet)) == [task.seed for task in TASKS[:12]]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_comes_at_its_place_and_ends_the_others(count: int) -> None:
    begun: list[Task] = []

    def fails_at_the_fifth(seat: int, task: Task) -> int:
        begun.append(task)
        if task == TASKS[4]:
            raise TeacherError("it knows no such game")
        return task.seed

    found: list[int] = []
    with pytest.raises(TeacherError, match="no such game"):
        found.extend(play_each(range(count), TASKS * 50, fails_at_the_fifth))
    assert found == [task.seed for task in TASKS[:4]]
    assert len(begun) < len(TASKS) * 50


@pytest.mark.parametrize("count", [1, 3])
def test_whoever_stops_early_waits_for_what_has_begun_alone(count: int) -> None:
    begun, ended = list[Task](), list[Task]()

    def slow(seat: int, task: Task) -> int:
        begun.append(task)
        threading.Event().wait(0.02)
        ended.append(task)
        return task.seed

    with closing(play_each(range(count), TASKS, slow)) as found:
        assert next(found) == TASKS[0].seed
    assert sorted(ended, key=TASKS.index) == sorted(begun, key=TASKS.index)
    assert len(begun) <= 2 * count + 1


DYING = """
import os
from grue.games import toy
reset, step = toy.ToyGame.reset, toy.ToyGame.step
def begins(self, task):
    self.left = 2 if task.seed % 5 == 4 else 1000
    return reset(self, task)
def steps(self, action):
    self.left -= 1
    return step(self, action) if self.left else os._exit(3)
toy.ToyGame.reset, toy.ToyGame.step = begins, steps
"""


class Striking:
    """Plays like another player, and kills the process of its game before every second action of some tasks."""

    def __init__(self, game: WorkerGame, player: Player) -> None:
        self._game, self._player, self._strikes, self._acts = game, player, False, 0
        self.name = player.name

    def start(self, task: Task, observation: Observation) -> None:
        self._strikes, self._acts = task.seed % 4 == 0, 0
        self._player.start(task, observation)

    def act(self, observation: Observation) -> str:
        self._acts += 1
        if self._strikes and self._acts % 2 and (pid := self._game.pid):
            with suppress(ProcessLookupError):  # the other game of that process did the same
                os.kill(pid, signal.SIGKILL)
        return self._player.act(observation)


def test_a_slow_game_holds_up_few_others() -> None:
    """What is played behind it is kept until its turn comes, and would be lost by a stop."""
    first, begun = threading.Event(), list[int]()

    def play_one(seat: int, task: Task) -> int:
        begun.append(task.seed)
        if task == TASKS[0]:
            first.wait(60)
        return task.seed

    with closing(play_each(range(2), TASKS, play_one)) as found:
        waiting = threading.Timer(0.5, first.set)
        waiting.start()
        assert next(found) == TASKS[0].seed
        assert len(begun) <= 2 * AHEAD + 1


def test_processes_that_are_killed_meanwhile_change_nothing() -> None:
    """Threads that lose their process start another one, while others start theirs and read from them."""
    hosted = [WorkerGame("toy", settings=WorkerSettings(seats=2, spread=6)) for _ in range(6)]
    striking: list[Seat] = [(game, Striking(game, teacher("random", game))) for game in hosted]
    before = restarts._restarts["a process of game engines"]
    tasks = TASKS[:20]
    with closing(play_each(striking, tasks, played)) as found:
        episodes = list(found)
    for game in hosted:
        game.close()
    assert restarts._restarts["a process of game engines"] - before > 5
    pairs = zip(episodes, play_each(seats(1), tasks, played), strict=True)
    assert all(episode == alone for episode, alone in pairs if not episode.failed)
    assert (
        sum(episode.failed for episode in episodes) <= len(tasks) / 4
    )  # killed twice within one call, by its neighbour


def test_a_game_that_always_dies_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Games that share its process begin again in the next one, which it ends as well."""
    (tmp_path / "sitecustomize.py").write_text(DYING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    hosted = [WorkerGame("toy", settings=WorkerSettings(spread=2)) for _ in range(4)]
    tasks = TASKS[:12]
    with closing(play_each([(game, teacher("random", game)) for game in hosted], tasks, played)) as found:
        episodes = list(found)
    for game in hosted:
        game.close()
    assert [episode.task.seed for episode in episodes if episode.failed] == [4, 9]
    pairs = zip(episodes, play_each(seats(1), tasks, played), strict=True)
    assert all(episode == alone for episode, alone in pairs if not episode.failed)


def test_only_games_that_compute_apart_are_played_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.games.native.physical_cores", lambda: 4)
    monkeypatch.setattr("grue.games.native.memory_gib", lambda: 15.5)
    assert [games_at_once(name) for name in ("toy", "cookingworld", "babyai", "scienceworld")] == [1] * 4
    monkeypatch.setattr("grue.games.native.memory_gib", lambda: 24.0)
    apart = ("textworld-cooking", "textworld:some.z8", "jericho:a.z5", "alfworld", "scienceworld")
    assert [games_at_once(name) for name in apart] == [8, 8, 8, 8, 6]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [games_at_once(name) for name in apart] == [4, 4, 4, 4, 1]
    monkeypatch.setattr("grue.games.native.physical_cores", lambda: 1)
    assert {games_at_once(name) for name in apart} == {1}
