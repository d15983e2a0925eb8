"""A game in a process of its own: the process dies, hangs, loses its parent; nothing of it may spoil an episode."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import psutil
import pytest

from grue.errors import ConfigError, GameError
from grue.games import restarts
from grue.games.check import check_game
from grue.games.engine_game import EngineGame, State
from grue.games.guard import NO_MOVE, refusal
from grue.games.play import play
from grue.games.teachers import teacher
from grue.games.toy import ToyGame
from grue.games.worker.game import WorkerGame, WorkerGoldGame
from grue.games.worker.process import Worker, WorkerSettings, shutdown, take_seat
from grue.types import Observation, Outcome, Task

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are hosted on Linux and macOS")
TASK = Task("toy", "rooms=4", "train", 7, 40)
SETTINGS = WorkerSettings(read_timeout_s=2.0)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    shutdown()


def hosted(seats: int = 8) -> WorkerGoldGame:
    return WorkerGoldGame("toy", "rooms=4", settings=WorkerSettings(read_timeout_s=2.0, slow=60.0, seats=seats))


def solve(game: WorkerGoldGame | ToyGame, disturb: Callable[[], None] = lambda: None) -> list[Observation]:
    """What is seen on the gold path; `disturb` is called before its third step."""
    seen = [game.reset(TASK)]
    for number, action in enumerate(game.gold()):
        if number == 2:
            disturb()
        seen.append(game.step(action)[0])
    return seen


def test_a_hosted_game_keeps_the_contract_and_shows_what_it_shows_at_home() -> None:
    check_game(hosted, TASK)
    game = hosted()
    assert solve(game) == solve(ToyGame("rooms=4"))
    assert game.rehearse(game.gold())[-1] == (True, True)
    game.close()


@pytest.mark.parametrize("seats", [1, 8])
def test_games_side_by_side_stay_apart(seats: int) -> None:
    games = [hosted(seats) for _ in range(3)]
    tasks = [Task("toy", "rooms=4", "train", seed, 40) for seed in range(3)]
    first = [game.reset(task) for game, task in zip(games, tasks, strict=True)]
    assert len({game.pid for game in games}) == (3 if seats == 1 else 1)
    for game, task, seen in zip(games, tasks, first, strict=True):
        assert play(game, task, teacher("gold", game)).turns[0].observation == seen
    for game in games:
        game.close()


def test_dead_processes_are_said_the_first_time_and_when_their_number_has_doubled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_restarts", Counter())
    game = hosted()
    game.reset(TASK)
    for _ in range(5):
        assert game.pid is not None
        os.kill(game.pid, signal.SIGKILL)
        game.step("look")
    game.close()
    assert [re.findall(r"once|\d+ times", message) for message in caplog.messages] == [
        ["once"],
        ["2 times"],
        ["4 times"],
    ]


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_is_replaced_and_the_episode_goes_on(blow: int) -> None:
    game, other = hosted(), hosted()
    other.reset(TASK)
    other.step("look")
    pids = []

    def strike() -> None:
        assert game.pid is not None
        pids.append(game.pid)
        os.kill(game.pid, blow)

    assert solve(game, strike) == solve(ToyGame("rooms=4"))
    assert game.pid not in pids
    assert not alive(pids[0])
    assert other.step("look")[0].text.startswith("You are in")  # it lived in the same process
    assert other.history == ("look", "look")
    game.close()
    other.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_saved_point_can_be_gone_back_to(killed: bool) -> None:
    game, other = hosted(), hosted()
    game.reset(TASK)
    first, *rest = game.gold()
    game.step(first)
    saved = game.save()
    ways = [[game.step(action) for action in rest]]
    assert ways[0][-1][2] is Outcome.WON
    if killed:
        assert game.pid is not None
        os.kill(game.pid, signal.SIGKILL)
    for player in (game, other):
        assert player.restore(saved) == saved.seen
        assert player.history == (first,)
        ways.append([player.step(action) for action in rest])
    assert ways[0] == ways[1] == ways[2]
    with pytest.raises(ConfigError, match="cannot continue"):
        other.restore(saved._replace(task=replace(TASK, game="coin")))
    game.close()
    other.close()
    with pytest.raises(ConfigError, match="closed"):
        game.restore(saved)


def at_once(seats: int, disturb: Callable[[int], None] = lambda pid: None) -> list[Observation]:
    """Six games on their gold paths, all steps begun before any is fetched; `disturb` strikes in between, once."""
    games = [hosted(seats) for _ in range(6)]
    seen = [game.reset(TASK) for game in games]
    for number, action in enumerate(games[0].gold()[:4]):
        for game in games:
            game.begin_step(action)
        if number == 2:
            assert games[1].pid is not None
            disturb(games[1].pid)
        # not in the order in which they were begun: answers are told apart
        seen += [game.step(action)[0] for game in reversed(games)]
    for game in games:
        game.close()
    return seen


@pytest.mark.parametrize("seats", [1, 3])
def test_steps_that_were_begun_are_done_once_whatever_happens_before_they_are_fetched(seats: int) -> None:
    home = [ToyGame("rooms=4") for _ in range(6)]
    calm = [game.reset(TASK) for game in home]
    for action in home[0].gold()[:4]:
        calm += [game.step(action)[0] for game in home]
    assert at_once(seats) == calm
    assert at_once(seats, lambda pid: os.kill(pid, signal.SIGKILL)) == calm
    assert at_once(seats, lambda pid: os.kill(pid, signal.SIGSTOP)) == calm


@pytest.mark.parametrize("seats", [1, 3])
@pytest.mark.parametrize("blow", [None, signal.SIGKILL])
def test_resets_that_were_begun_are_those_of_a_game_at_home(seats: int, blow: signal.Signals | None) -> None:
    games, home = [hosted(seats) for _ in range(4)], ToyGame("rooms=4")
    for round_ in range(2):
        tasks = [Task("toy", "rooms=4", "train", 10 * round_ + place, 40) for place in range(4)]
        for game, task in zip(games, tasks, strict=True):
            game.begin_reset(task)
        if blow is not None:
            assert games[1].pid is not None
            os.kill(games[1].pid, blow)
        for game, task in zip(reversed(games), reversed(tasks), strict=True):
            assert game.reset(task) == home.reset(task)
            assert game.step("look") == home.step("look")
    games[0].begin_reset(TASK)  # and then another one is wanted
    assert games[0].reset(tasks[0]) == home.reset(tasks[0])
    games[0].begin_reset(Task("toy", "rooms=4", "train", 10_000, 40))  # of another fold: `reset` says so
    with pytest.raises(ConfigError, match="outside fold"):
        games[0].reset(Task("toy", "rooms=4", "train", 10_000, 40))
    for game in games:
        game.close()


@pytest.mark.parametrize(("spread", "shared"), [(1, [3, 2]), (2, [3, 2]), (3, [2, 2, 1])])
def test_games_are_spread_over_processes_two_at_first(spread: int, shared: list[int]) -> None:
    settings = WorkerSettings(read_timeout_s=2.0, slow=60.0, seats=3, spread=spread)
    games = [WorkerGoldGame("toy", "rooms=4", settings=settings) for _ in range(5)]
    for game in games:
        game.reset(TASK)
    assert list(Counter(game.pid for game in games).values()) == shared
    assert len({game.pid for game in games[:2]}) == 1
    for game in games:
        game.close()


def test_a_process_that_the_kernel_has_ended_is_not_given_out_again() -> None:
    game, other = hosted(1), hosted(1)
    for seat in (game, other):
        seat.reset(TASK)
        assert seat.pid is not None
        os.kill(seat.pid, signal.SIGKILL)
        seat.begin_step("look")  # to somebody who is dead, or will be in a moment
    assert game.step("look") == other.step("look")
    game.close()
    other.close()


def test_a_step_that_was_begun_may_be_forgotten() -> None:
    game, other, calm = hosted(), hosted(), ToyGame("rooms=4")
    for seat in (game, other, calm):
        seat.reset(TASK)
    gold = calm.gold()
    game.begin_step("look")
    assert game.step(gold[0]) == calm.step(gold[0])
    game.begin_step("look")
    assert game.gold() == gold
    assert game.step(gold[1]) == calm.step(gold[1])
    game.begin_step("look")
    other.step("look")  # through the same process
    assert game.reset(TASK) == calm.reset(TASK)
    game.begin_step("look")
    game.close()
    game.begin_step("look")
    other.close()


def test_what_kills_every_process_fails_the_episode_and_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    game = hosted()
    game.reset(TASK)
    real = WorkerGame._revive

    def revive_and_strike(self: WorkerGame) -> None:
        real(self)
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(WorkerGame, "_revive", revive_and_strike)
        with pytest.raises(GameError, match="died or hung 2 times in a row at toy train seed 7 step 0"):
            game.step("look")
    with pytest.raises(GameError, match="before reset"):
        game.step("look")
    assert game.reset(TASK).actions
    episode = play(game, TASK, teacher("gold", game))
    assert episode.outcome is Outcome.WON
    game.close()


def test_errors_keep_their_kind_and_hint_over_the_pipe() -> None:
    game = WorkerGame("toy", "rooms=99")
    with pytest.raises(ConfigError, match="2 to 6"):
        game.reset(TASK)
    game.close()
    game.close()
    with pytest.raises(ConfigError, match="closed"):
        game.reset(TASK)


def test_an_exception_inside_the_engine_is_a_failed_game_and_the_seat_recovers() -> None:
    game = hosted()
    game.reset(TASK)
    with pytest.raises(GameError, match=r"the engine failed: AttributeError: .*'advice'"):
        game._ask({"call": "advice"})
    assert game.reset(TASK) == ToyGame().reset(TASK)
    game.close()


def test_the_last_seat_ends_the_process_also_when_it_is_forgotten() -> None:
    game, other = hosted(), hosted()
    game.reset(TASK)
    other.reset(TASK)
    pid = game.pid
    assert pid is not None and pid == other.pid
    game.close()
    assert alive(pid)
    del other
    wait_until(lambda: not alive(pid))


PARENT = """
import os, sys, time
from grue.games.worker.game import WorkerGame
from grue.types import Task
game = WorkerGame("toy", "rooms=4")
game.reset(Task("toy", "rooms=4", "train", 7, 40))
{fork}
print(game.pid, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("fork", "end"),
    [
        ("", "os.kill(os.getpid(), 9)"),
        ("", "os._exit(3)"),
        ("", "sys.exit(0)"),
        ("", "raise RuntimeError"),
        ("", "os.kill(game.pid, 19); os.kill(os.getpid(), 9)"),  # a hung child must not outlive it either
        ("if os.fork() == 0: time.sleep(20); os._exit(0)", "os.kill(os.getpid(), 9)"),
    ],
)
def test_no_process_outlives_its_parent(fork: str, end: str) -> None:
    script = PARENT.format(fork=fork, end=end)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait(timeout=30)
    wait_until(lambda: not alive(pid))
    parent.stdout.close()


def test_a_forked_child_plays_in_a_process_of_its_own() -> None:
    game = hosted()
    game.reset(TASK)
    game.step("look")
    pid = game.pid
    child = os.fork()
    if child == 0:
        status = 1
        try:
            game.step("look")
            status = 0 if game.pid != pid and game.history == ("look", "look") else 2
        finally:
            shutdown()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert game.pid == pid
    assert game.step("look")[2] is None
    game.close()


def test_a_process_that_cannot_start_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(GameError, match="did not start"):
        take_seat(0, SETTINGS)


def test_nobody_is_given_a_seat_in_a_process_that_is_left_by_its_last() -> None:
    for number in range(20):
        worker, both = take_seat(0, SETTINGS), threading.Barrier(2)

        def leave(worker: Worker = worker, both: threading.Barrier = both) -> None:
            both.wait()
            worker.leave(0)

        leaving = threading.Thread(target=leave)
        leaving.start()
        both.wait()
        time.sleep(number / 10_000)
        taken = take_seat(1, SETTINGS)
        assert taken.call({"call": "hello", "seat": 1}, 60.0)
        leaving.join()
        assert taken.alive
        taken.leave(1)


def test_pipes_stay_open_while_a_thread_reads_from_them() -> None:
    """Closed by another thread, their numbers could soon be those of another process's pipes."""
    worker = take_seat(0, SETTINGS)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with worker.lock:
            held.set()
            done.wait(60)

    reader = threading.Thread(target=hold)
    reader.start()
    held.wait(60)
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not alive(worker.pid))
    worker.reap()
    assert worker.alive
    done.set()
    reader.join()
    worker.reap()
    assert not worker.alive


def alive(pid: int) -> bool:
    """True while the process runs (a zombie that nobody reaps does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_a_game_lists_is_played_as_it_is_listed() -> None:
    """ScienceWorld lists actions of more than a hundred characters."""
    long = "mix " + ", then ".join(["paint"] * 20)

    class Listing(EngineGame):
        def _begin(self, task: Task) -> State:
            return State("a text", "a goal", "", (long, "quit"), 0.0, won=False, lost=False)

        def _act(self, action: str) -> State:
            return State(action, "a goal", "", (long, "quit"), 0.0, won=False, lost=False)

        def _end(self) -> None:
            pass

    game = Listing("babyai")
    game.reset(Task("babyai", "", "train", 0, 9))
    assert game.step(long)[0].text == long
    assert game.step("quit")[0].text == "quit"
    assert game.step("restart")[0].text == NO_MOVE
    assert refusal("die") == NO_MOVE == refusal("quit, please", commas=True)
