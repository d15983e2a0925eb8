"""ScienceWorld for real: a Java process below a worker process, its splits, its solutions, its way to lose."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

pytest.importorskip("scienceworld", reason="pip install -e '.[scienceworld]'")

from grue import games
from grue.games.check import check_game
from grue.games.play import play
from grue.games.scienceworld import ScienceWorldGame
from grue.games.teachers import teacher
from grue.games.worker.game import WorkerGoldGame
from grue.games.worker.process import shutdown
from grue.types import Outcome, Task

NON_LIVING = "task=12,easy=1,validActions=1"  # find-non-living-thing: the shortest


def first(params: str, fold: str = "train", limit: int = 30, start: int = 0) -> Task:
    return games.tasks("scienceworld", params, fold, limit, count=1, start=start)[0]


def opened(params: str) -> WorkerGoldGame:
    game = games.make("scienceworld", params, read_timeout_s=100.0)
    assert isinstance(game, WorkerGoldGame)
    return game


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    """A seat is kept, so that the process and its Java stay from test to test; all games share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grue.games.native.memory_gib", lambda: 8.0)
        warm = opened(NON_LIVING)
        warm.reset(first(NON_LIVING))
        yield
    warm.close()
    shutdown()


def test_a_task_keeps_the_contract_and_its_solution_wins() -> None:
    task = first(NON_LIVING)
    check_game(lambda: opened(NON_LIVING), task, steps=4)
    game = opened(NON_LIVING)
    episode = play(game, task, teacher("gold", game))
    game.close()
    assert (episode.outcome, episode.score) == (Outcome.WON, 1.0)
    assert "non-living" in episode.turns[0].observation.goal


def test_a_seed_is_the_same_game_however_often_it_is_played() -> None:
    """Java draws new hashes each time, by which the engine would order what it shows and does."""
    tasks = games.tasks("scienceworld", "", "train", 30, count=19)
    game = opened("")
    seen = []
    for _ in range(2):
        for seed in (5, 18):  # whose solution, and whose first room, were in another order each time
            observation = game.reset(tasks[seed])
            seen.append((observation.text, observation.inventory, tuple(game.gold() if seed == 5 else ())))
    game.close()
    assert seen[:2] == seen[2:]


@pytest.mark.parametrize("other", ["task=3,easy=1,validActions=1", "task=7,easy=1,validActions=1"])
def test_a_game_is_the_same_beside_another_in_the_same_java(other: str) -> None:
    """The engine draws names in its lists from one source of random numbers, and has one list of simplifications."""
    mine = "task=3,easy=1,validActions=1"
    game, neighbour = opened(mine), opened(other)

    def played(beside: bool) -> list[object]:
        seen: list[object] = [game.reset(first(mine, start=1))]
        if beside:
            neighbour.reset(first(other, start=1))
        for move in ("look around", "open door to hallway"):
            if beside:
                neighbour.step("look around")
            seen.append(game.step(move)[0])
        return seen

    alone = played(beside=False)
    assert neighbour.pid is None or neighbour.pid == game.pid
    assert played(beside=True) == alone
    assert neighbour.pid == game.pid
    game.restore(game.save())  # a replay that shows something else is refused
    game.close()
    neighbour.close()


def test_objects_made_during_a_game_are_numbered_as_if_it_were_alone() -> None:
    """A neighbour's reset sets the engine's counter back; two objects of one number are then taken for each other."""
    params, other = "task=24,easy=1,validActions=1", "task=12,easy=1"
    game, neighbour = ScienceWorldGame("scienceworld", params), ScienceWorldGame("scienceworld", other)
    game.reset(first(params))
    solution = game.gold()

    def played(beside: bool) -> list[object]:
        seen: list[object] = [game.reset(first(params))]
        for action in solution[:8]:
            if beside:
                neighbour.reset(first(other))
            seen.append(game.step(game.equivalent(action)))
        return seen

    assert played(beside=True) == played(beside=False)


def test_solutions_and_their_listed_words_do_not_depend_on_what_else_was_played() -> None:
    params, other = "task=9,easy=1,validActions=1", "task=3,easy=1,validActions=1"  # only the first knows electricity
    game, neighbour = ScienceWorldGame("scienceworld", params), ScienceWorldGame("scienceworld", other)
    game.reset(first(params))
    solution = game.gold()  # the first in this Java, which finds paths that later ones look up
    assert game.gold() == solution
    place = next(number for number, action in enumerate(solution) if action.startswith("connect battery anode"))
    for action in solution[:place]:
        game.step(game.equivalent(action))
    alone = game.equivalent(solution[place])
    assert alone.startswith("connect anode in battery")
    neighbour.reset(first(other))
    assert game.equivalent(solution[place]) == alone


def test_focusing_on_the_wrong_thing_loses_everything() -> None:
    params = "task=11,easy=1,validActions=1"  # find-living-thing
    game = opened(params)
    before = game.reset(first(params))
    assert "focus on picture" in (before.actions or ())
    observation, reward, outcome = game.step("focus on picture")
    game.close()
    assert (observation.score, outcome) == (-1.0, Outcome.LOST)
    assert reward == -1.0 - before.score


def test_the_solution_is_played_in_listed_words_where_they_name_the_same_objects() -> None:
    """SFT learns nothing of what is not listed."""
    params = "task=4,easy=1,validActions=1"  # use-thermometer
    game = opened(params)
    episode = play(game, first(params, "test"), teacher("gold", game))
    gold = game.gold()
    game.close()
    assert episode.outcome is Outcome.WON
    assert all(turn.valid for turn in episode.turns)
    played = {said: turn.action for said, turn in zip(gold, episode.turns, strict=False)}
    assert played["focus on thermometer in inventory"] == "focus on thermometer"


def test_the_solution_opens_no_open_doors() -> None:
    """Of the steps of ScienceWorld's own solutions with `easy=1`, a third opens a door that is open."""
    game = opened("task=12,easy=1")
    task = first("task=12,easy=1", start=1)
    episode = play(game, task, teacher("gold", game))
    assert episode.outcome is Outcome.WON and len(episode.turns) == 5
    assert not [turn.action for turn in episode.turns if turn.action.startswith("open")]
    game.close()
    closed = opened("task=12")  # here the doors are closed, and have to be opened
    closed.reset(replace(task, params="task=12"))
    assert sum(action.startswith("open door") for action in closed.gold()) >= 2
    closed.close()


def test_valid_actions_are_made_on_demand_only() -> None:
    game = opened("task=12")
    assert game.reset(first("task=12")).actions is None
    assert game.step("look around")[0].actions is None
    game.close()


def test_folds_are_the_official_splits() -> None:
    game = ScienceWorldGame("scienceworld", "task=12")
    first_seeds = {fold: first("task=12", fold) for fold in games.FOLDS}
    lists = {
        fold: {game._variation(replace(task, seed=task.seed + place))[1] for place in range(400)}
        for fold, task in first_seeds.items()
    }
    everything = ScienceWorldGame("scienceworld", "")
    names = {everything._variation(first("", "test", start=i))[0] for i in range(30)}
    game.close()
    assert lists["train"] == lists["pretrain"]
    assert not lists["train"] & lists["dev"] and not lists["train"] & lists["test"] and not lists["dev"] & lists["test"]
    assert min(len(variations) for variations in lists.values()) > 20
    assert len(names) == 30


def test_a_java_that_ends_takes_its_worker_with_it_and_episodes_go_on() -> None:
    """Also where an idle game would have kept the worker, whose later games all failed."""
    game, idle = opened(NON_LIVING), opened(NON_LIVING)
    task = first(NON_LIVING)
    for each in (game, idle):
        each.reset(task)
    assert game.pid == idle.pid is not None
    gold = game.gold()
    game.step(gold[0])
    (java,) = psutil.Process(game.pid).children(recursive=True)
    java.kill()
    assert [game.step(action)[2] for action in gold[1:]][-1] is Outcome.WON
    for each in (game, idle):
        each.reset(task)
        assert [each.step(action)[2] for action in gold][-1] is Outcome.WON
        each.close()


def test_java_ends_with_the_worker_and_the_episode_goes_on() -> None:
    game = opened(NON_LIVING)
    game.reset(first(NON_LIVING))
    gold = game.gold()
    game.step(gold[0])
    assert game.pid is not None
    java = [child.pid for child in psutil.Process(game.pid).children(recursive=True)]
    assert java
    os.kill(game.pid, signal.SIGKILL)
    outcomes = [game.step(action)[2] for action in gold[1:]]
    game.close()
    assert outcomes[-1] is Outcome.WON
    end = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in java):
        assert time.monotonic() < end
        time.sleep(0.05)
