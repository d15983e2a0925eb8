"""What is said while working, and stopping when asked."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.interrupt import Interrupt, Interrupted
from grue.progress import Bar, Progress, clean, duration

needs_terminals = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


def test_a_pipe_gets_plain_lines_with_times(capsys: pytest.CaptureFixture[str]) -> None:
    say = Progress(every_s=0)
    with say.bar("PPO", 4, done=2, unit="iterations") as bar:
        assert bar.eta_s() is None
        bar.advance(note="success 0.25")
        bar.advance()
    assert capsys.readouterr().out.splitlines() == [
        "PPO  3/4 iterations  0s elapsed, 0s left  success 0.25",
        "PPO  4/4 iterations  0s elapsed, 0s left  success 0.25",
        "PPO  4/4 iterations in 0s  success 0.25",
    ]


def test_lines_of_a_bar_are_rare(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().bar("SFT", 1000) as bar:
        for _ in range(1000):
            bar.advance()
    assert capsys.readouterr().out == "SFT  1000/1000 in 0s\n"


def test_a_bar_with_nothing_to_count_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """As of a stage that is skipped (sft.epochs=0)."""
    with Progress(every_s=0).bar("SFT", 0, unit="steps"):
        pass
    assert capsys.readouterr().out == ""


def test_the_eta_counts_only_what_this_command_did() -> None:
    with Progress(quiet=True).bar("PPO", 100, done=90) as bar:
        _pass_ten_seconds(bar)
        bar.advance(5)
        assert bar.eta_s() == pytest.approx(10, abs=0.5)


def test_work_of_another_pace_gives_no_eta() -> None:
    with Progress(quiet=True).bar("evaluation", 100) as bar:
        bar.pace(least=0)
        bar.advance(50)
        assert bar.eta_s() is None
        bar.pace(least=8)  # games at once: the first to end are no measure
        _pass_ten_seconds(bar)
        bar.advance(7)
        assert bar.eta_s() is None
        bar.advance(3)
        assert bar.eta_s() == pytest.approx(40, abs=2)


def _pass_ten_seconds(bar: Bar) -> None:
    assert bar._pace is not None
    since, before = bar._pace
    bar._pace = (since - 10, before)


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Progress().table(["policy", "success"], [["base", 0.1], ["ppo\x1b[2J", 12.25]], title="Results")
    assert capsys.readouterr().out.splitlines() == ["Results", "policy  success", "base        0.1", "ppo       12.25"]


def test_wide_letters_keep_columns_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Progress().table(["policy", "won"], [["api:模型", 1], ["base", 12]])
    assert capsys.readouterr().out.splitlines() == ["policy    won", "api:模型    1", "base       12"]


def test_quiet_leaves_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    say = Progress(quiet=True)
    say("nothing")
    say.table(["a"], [[1]])
    with say.bar("x", 1) as bar:
        bar.advance()
    say.warn("something")
    assert capsys.readouterr().out == "warning: something\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZXZpbA==\x07clip", "clip"),
        ("\x1b]0;title\x1b\\x", "x"),
        ("\x1b]8;;http://example.org\x07link\x1b]8;;\x07", "link"),
        ("\x1b[2J\x1bc\x9b31m", "31m"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("a\rb\x08c\x00d\x7f", "abcd"),
        ("right \u202eto left", "right to left"),
        ("lines\n\tand tabs stay", "lines\n\tand tabs stay"),
        ("[bold]not markup[/bold] :smile:", "[bold]not markup[/bold] :smile:"),
        ("half a sequence \x1b", "half a sequence "),
    ],
)
def test_text_cannot_drive_the_terminal(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text())
def test_cleaned_text_has_no_control_characters(text: str) -> None:
    assert not [sign for sign in clean(text) if sign not in "\n\t" and (ord(sign) < 32 or 127 <= ord(sign) < 160)]


@pytest.mark.parametrize(("seconds", "shown"), [(-1, "0s"), (59.4, "59s"), (61, "1m01s"), (7265, "2h01m")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


TERMINAL = """
    from grue.progress import Progress
    say = Progress()
    with say.bar("outer [bold]", 2) as outer:
        with say.bar("inner", 3) as inner:
            for _ in range(3):
                inner.advance(note="[red]x[/red] \\x1b]0;owned\\x07")
                say("message [link=x]y[/link] \\x1b]0;owned\\x07 end", style="bold")
        outer.advance()
    say("last")
"""


LONG_NOTE = """
    import time
    from grue.progress import Progress
    with Progress(every_s=0).bar("evaluation", 576, unit="games") as bar:
        bar.advance(12, note="ppo test sampled 52.0%; " * 9)
        bar.advance(12)
        time.sleep(0.5)  # a bar is drawn ten times a second
"""


@needs_terminals
def test_a_terminal_gets_bars_and_texts_stay_texts() -> None:
    text = on_a_terminal(TERMINAL, TERM="xterm", COLUMNS="120")
    assert "owned" not in text
    assert "message [link=x]y[/link]  end" in text
    assert "[red]x[/red]" in text
    assert "outer [bold]  1/2 in " in text
    assert text.rstrip().endswith("last")


@needs_terminals
@pytest.mark.parametrize("width", [40, 80])
def test_a_long_note_leaves_count_and_times_whole(width: int) -> None:
    drawn = clean(on_a_terminal(LONG_NOTE, TERM="xterm", COLUMNS=str(width)).replace("\r", "\n"))
    line = next(line for line in reversed(drawn.splitlines()) if "left" in line)
    assert re.search(r"^evaluation .*24/576 .*s elapsed, .*s left .*…$", line), drawn
    assert len(line) <= width


@needs_terminals
def test_a_terminal_without_a_cursor_gets_plain_lines() -> None:
    lines = on_a_terminal(LONG_NOTE, TERM="dumb", COLUMNS="80").splitlines()
    assert [line.split("  ")[1] for line in lines][:2] == ["12/576 games", "24/576 games"]
    assert all(" left  ppo test" in line for line in lines[:2])


def on_a_terminal(code: str, **environment: str) -> str:
    """What `code` writes to a terminal."""
    import pty

    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert child.stderr is not None
    errors = child.stderr.read()
    child.stderr.close()
    assert child.wait(60) == 0, errors
    return shown.decode()


def test_a_signal_is_kept_for_the_next_safe_point() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as stop:
        stop.check()
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(Interrupted) as caught:
            stop.check()
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_terminal_that_closes_is_a_reason_to_save_unless_nohup_says_otherwise() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, stops in ((signal.SIG_IGN, False), (signal.SIG_DFL, True)):
            signal.signal(signal.SIGHUP, handler)
            with Interrupt() as stop:
                os.kill(os.getpid(), signal.SIGHUP)
                assert stop.requested == stops
    finally:
        signal.signal(signal.SIGHUP, before)


def test_where_a_run_stops_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with Interrupt() as stop:
        stop.safe_point = "after this iteration"
        os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == "\nstopping after this iteration; interrupt again to stop at once\n"


def test_of_several_processes_one_says_that_it_stops(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for rank in ("1", "0"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with Interrupt() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.requested
        assert capfd.readouterr().err.count("stopping at the next safe point") == (rank == "0")


def test_who_stops_for_another_process_is_not_ended_by_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher sends SIGTERM to all of its machine when the first of them leaves, whoever was asked to stop."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with Interrupt() as stop:
            stop.adopt(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # the last words are still to be said
        assert stop.number == signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


STUBBORN = """
    import signal, sys, time
    from grue.interrupt import Interrupt
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, here too
    with Interrupt() as stop:
        print("ready", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        print("asked", flush=True)
        time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_second_signal_ends_it_at_once(number: str) -> None:
    asked = signal.Signals[number]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STUBBORN)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(asked)
        assert child.stdout.readline() == "asked\n"
        began = time.monotonic()
        child.send_signal(asked)
        said = child.communicate(timeout=20)[1]
        assert child.returncode == 128 + asked
        assert time.monotonic() - began < 10
        assert said.endswith("\nstopped at once; the same command goes on from the last save\n")


@pytest.mark.skipif(os.name != "posix", reason="pipes of Linux and macOS")
def test_work_outlives_whoever_reads_of_it(tmp_path: Path) -> None:
    program = f"""
import pathlib, sys
from grue.progress import Progress
say = Progress(every_s=0)
sys.stdin.readline()  # the reader has gone
with say.bar("PPO", 3) as bar:
    for step in range(3):
        say(f"step {{step}}")
        bar.advance()
pathlib.Path({str(tmp_path / "saved")!r}).touch()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as work:
        assert work.stdin and work.stdout and work.stderr
        work.stdout.close()
        work.stdin.write("\n")
        work.stdin.close()
        said = work.stderr.read()
    assert work.returncode == 0 and (tmp_path / "saved").exists()
    assert said == "warning: no more output (Broken pipe); the work goes on\n"


def test_without_work_a_lost_reader_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Lost())
    with pytest.raises(BrokenPipeError):
        Progress()("a line")
