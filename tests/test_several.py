"""`--processes N`: the same command in N processes, without a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grue.cli import several
from grue.errors import ConfigError
from grue.launch import STARTED_HERE
from grue.storage import episodes
from grue.storage.contents import is_done

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")


def grue(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grue", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "GRUE_DEBUG": ""})


def python(code: str) -> subprocess.Popen[bytes]:
    """A child, once it has begun: a signal before that would end it."""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as said:
        assert said.readline() == b"begun\n"
    return child


SLEEP = "import time; print('begun', flush=True); time.sleep(600)"
FAIL = "print('begun', flush=True); raise SystemExit(3)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
WORDS = "import time; print('begun', flush=True); time.sleep(0.3); raise SystemExit(1)"


def test_two_processes_record_what_one_records(tmp_path: Path) -> None:
    for count in (1, 2):
        more = ("demos", str(tmp_path / str(count)), "--preset", "toy", "demos.games=5", "--processes", str(count))
        ended = grue(*more)
        assert ended.returncode == 0, ended.stderr
    one, two = (list(episodes.read(tmp_path / str(count) / "episodes" / "demos.jsonl")) for count in (1, 2))
    assert one == two != []


def test_two_processes_start_a_stage_over(tmp_path: Path) -> None:
    """All of them must know that it does: they load and compare what they are about to delete."""
    run, small = str(tmp_path / "run"), ("demos.games=4", "demos.replays=0", "sft.epochs=1")
    for command in (
        ("demos", run, "--preset", "toy", *small),
        ("sft", run),
        ("sft", run, "--again", "--processes", "2"),
    ):
        ended = grue(*command)
        assert ended.returncode == 0, ended.stderr
    assert "what sft left in" in ended.stdout
    assert is_done(tmp_path / "run", "sft")


def test_a_mistake_is_said_once(tmp_path: Path) -> None:
    ended = grue("run", "toy", "ppo.iteration=3", "--processes", "2", "--out", str(tmp_path / "run"))
    assert ended.returncode == 2
    assert ended.stderr.count("error: ") == 1
    assert "ppo.iteration" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_an_early_interrupt_ends_all_without_a_traceback(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all of them, and the first one passes it on: that may raise twice, anywhere."""
    command = [sys.executable, "-m", "grue", "run", "toy", "--processes", "2", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    until = time.monotonic() + 60
    while len(psutil.Process(process.pid).children()) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines() in (["interrupted"], [])  # nothing where the first one was not yet ready to speak


def test_who_loses_the_first_one_to_an_interruption_has_not_failed() -> None:
    children = [python("print('begun', flush=True); raise SystemExit(130)"), python(WORDS)]
    several._wait(children)
    assert several._exit_code(children, interrupted=True) == 130
    assert several._exit_code(children) == 1


def test_one_process_starts_no_other() -> None:
    assert several.start(1) is None


def test_a_launcher_and_processes_are_not_for_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert several.start(1) is None  # the launcher's
    for count in (2, 3):
        with pytest.raises(ConfigError, match=f"--processes {count} under a launcher that has started 3"):
            several.start(count)
    monkeypatch.setenv(STARTED_HERE, "1")
    assert several.start(3) is None  # one of those that were started


def test_when_one_fails_the_others_have_time_to_say_so() -> None:
    children = [python(WORDS), python(FAIL)]
    several._wait(children)
    assert [child.returncode for child in children] == [1, 3]
    assert several._exit_code(children) == 1


def test_who_goes_on_is_asked_to_stop_and_then_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "WORDS_S", 0.5)
    monkeypatch.setattr(several, "SAVING_S", 8.0)
    children = [python(SLEEP), python(FAIL), python(STUBBORN)]
    late = several._wait(children)
    assert [child.returncode for child in children] == [-signal.SIGTERM, 3, -signal.SIGKILL]
    assert late == {2}
    assert several._exit_code(children, late) == 3


def test_who_is_interrupted_and_does_not_stop_in_time_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(several, "WORDS_S", 0.2)
    monkeypatch.setattr(several, "SAVING_S", 0.5)
    children = [python(STUBBORN), python("print('begun', flush=True); raise SystemExit(130)")]
    late = several._wait(children)
    assert several._exit_code(children, late) == 130
    assert capsys.readouterr().err == "process 0 did not stop in time, and was killed\n"


def test_a_signal_reaches_all() -> None:
    children = [python(SLEEP), python(SLEEP)]
    before = signal.getsignal(signal.SIGTERM)
    with several._passing_on_signals(children):
        os.kill(os.getpid(), signal.SIGTERM)
        several._wait(children)
    assert [child.returncode for child in children] == [-signal.SIGTERM] * 2
    assert several._exit_code(children) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_who_was_killed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    children = [python(SLEEP), python(SLEEP)]
    children[1].kill()
    children[0].terminate()
    several._wait(children)
    assert several._exit_code(children) == 1  # nobody interrupted the command
    said, hint = capsys.readouterr().err.splitlines()
    assert said == "process 1 was ended by SIGKILL"
    assert hint.startswith("hint: did memory run out?")


def test_who_was_only_asked_to_stop_after_a_failure_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "WORDS_S", 0.5)
    saves = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); {SLEEP}"
    children = [python(saves), python(FAIL)]
    several._wait(children)
    assert [child.returncode for child in children] == [143, 3]
    assert several._exit_code(children) == 3
