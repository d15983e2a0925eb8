"""Trackers are sent what a run measures, once, and can do the run no harm. What they store is read back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from grue.config import load_config
from grue.errors import ConfigError, DataError
from grue.progress import Progress
from grue.storage import jsonl
from grue.storage.run import Run
from grue.tracking import beside, follow
from grue.tracking.beside import Trackers
from grue.tracking.follow import send_rest
from test_storage_run import RESULT

tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None,
    reason="the extra [tensorboard] is not installed",
)


HANGS = """
import time
def init(**settings):
    print("begins", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "a run", load_config("toy"))
    run.begin("sft")
    for step in (1, 2):
        run.log("sft", step, {"loss": 1 / step, "kl": float("nan"), "name": "no number"})
    return run


def _scalars(out: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by name, of all runs that TensorBoard finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = {}
    for folder in (out / "tensorboard").iterdir():
        events = EventAccumulator(str(folder)).Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, []).extend((event.step, event.value) for event in events.Scalars(name))
    return found


def _measured(run: Run, success: float) -> None:
    result = RESULT | {"success": success}
    jsonl.append(run.evaluation_file, [{"row": "eval-sft-test-greedy", "result": result}])


def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str = "wandb") -> None:
    """A tracker's package that the processes beside a run import instead of the real one."""
    (tmp_path / "fake").mkdir(exist_ok=True)
    (tmp_path / "fake" / f"{name}.py").write_text(source)
    path = os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


@tensorboard
def test_what_was_sent_is_not_sent_again(run: Run) -> None:
    assert send_rest(run.out, "tensorboard") == 2
    assert send_rest(run.out, "tensorboard") == 0
    run.rewind("sft", 1)  # the run goes on from a checkpoint, and does the second step again
    run.log("sft", 2, {"loss": 0.5})
    run.log("sft", 3, {"loss": 0.25})
    _measured(run, 0.75)
    assert send_rest(run.out, "tensorboard") == 2
    found = _scalars(run.out)
    assert found.pop("sft/time_s")
    assert found.pop("sft/loss") == [(1, 1.0), (2, 0.5), (3, 0.25)]
    assert found.pop("eval/sft-test-greedy/success") == [(0, 0.75)]
    assert set(found) == {f"eval/sft-test-greedy/{name}" for name in ("score", "failed")}  # no text, no list, no NaN


def test_what_arrived_before_a_tracker_failed_is_not_sent_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[int] = []

    class Failing:
        def __init__(self, *_: object) -> None: ...

        def log(self, stage: str, step: int, values: object) -> None:
            if step == 2 and 2 not in arrived and len(arrived) == 1:
                arrived.append(-1)
                raise RuntimeError("no")
            arrived.append(step)

        def close(self) -> None: ...

    monkeypatch.setitem(follow.TRACKERS, "wandb", Failing)
    sender = follow.Sender(run.out, "wandb")
    with pytest.raises(RuntimeError):
        sender.send()
    again = follow._read(sender._file)
    assert again["steps"] == {"sft": 1}
    assert sender.send() == 1
    assert arrived == [1, -1, 2]


@tensorboard
def test_a_result_that_is_measured_again_is_sent_again(run: Run) -> None:
    for success in (0.5, 0.5, 0.625):
        run.evaluation_file.unlink(missing_ok=True)
        _measured(run, success)
        send_rest(run.out, "tensorboard")
    assert [value for _, value in _scalars(run.out)["eval/sft-test-greedy/success"]] == [0.5, 0.625]


@tensorboard
def test_a_stage_that_starts_over_is_another_run_of_the_tracker(run: Run) -> None:
    send_rest(run.out, "tensorboard")
    again = Run(run.out, run.config, again="sft")
    again.begin("sft")
    again.log("sft", 1, {"loss": 8.0})
    assert send_rest(run.out, "tensorboard") == 1
    assert len(list((run.out / "tensorboard").iterdir())) == 2
    assert sorted(_scalars(run.out)["sft/loss"]) == [(1, 1.0), (1, 8.0), (2, 0.5)]


@tensorboard
def test_a_process_beside_the_run_sends_rows_as_they_come(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = Trackers(("tensorboard",), run.out, Progress())
    trackers.start()
    trackers.start()  # of the next stage: the same process
    sent = run.out / "tracking" / "tensorboard.json"
    until = time.monotonic() + 60
    while not (sent.exists() and orjson.loads(sent.read_bytes())["steps"] == {"sft": 2}):
        assert time.monotonic() < until
        time.sleep(0.1)
    with pytest.raises(ConfigError, match="another process is sending"):
        send_rest(run.out, "tensorboard")
    run.log("sft", 3, {"loss": 0.25})
    trackers.finish()
    assert _scalars(run.out)["sft/loss"] == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_a_tracker_that_refuses_is_named_at_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake(tmp_path, monkeypatch, "def init(**settings):\n    raise RuntimeError('no account\\nand more')")
    trackers = Trackers(("wandb",), run.out, Progress(quiet=True))
    trackers.start()
    trackers._watchers[0].join(60)
    said = capsys.readouterr().out
    assert "wandb is no longer written to: wandb: RuntimeError: no account (" in said
    assert f"grue track {run.out} wandb sends the rest" in said
    trackers.finish()
    assert capsys.readouterr().out == ""


def test_a_tracker_that_hangs_is_waited_for_so_long_and_no_longer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake(
        tmp_path,
        monkeypatch,
        "import time\ndef init(**settings):\n    print('begins', flush=True)\n    time.sleep(3600)",
    )
    monkeypatch.setattr(beside, "PATIENCE_S", 1.0)
    trackers = Trackers(("wandb",), run.out, Progress(quiet=True))
    trackers.start()
    process = trackers._started["wandb"]
    until = time.monotonic() + 60
    while "begins" not in (run.out / "tracking" / "wandb.log").read_text():
        assert time.monotonic() < until
        time.sleep(0.1)
    trackers.finish()
    assert process.poll() is not None
    said = capsys.readouterr().out
    assert "wandb has not sent everything after 1 seconds" in said and "any more" not in said
    assert f"grue track {run.out} wandb sends all of it to a new run" in said
    assert not (run.out / "tracking" / "wandb.json").exists()


def test_an_interrupt_ends_every_tracker_that_is_waited_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = "import time\ndef init(*project, **settings):\n    print('begins', flush=True)\n    time.sleep(3600)"
    for name in ("wandb", "trackio"):
        _fake(tmp_path, monkeypatch, hangs, name)
    trackers = Trackers(("wandb", "trackio"), run.out, Progress(quiet=True))
    trackers.start()
    until = time.monotonic() + 60
    while not all("begins" in (run.out / "tracking" / f"{name}.log").read_text() for name in ("wandb", "trackio")):
        assert time.monotonic() < until
        time.sleep(0.1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes of pytest-xdist ignore it
    try:
        threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt):
            trackers.finish()
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(process.wait(10) for process in trackers._started.values())


@tensorboard
def test_a_run_that_is_killed_leaves_no_process_behind(run: Run) -> None:
    program = f"""
import os, pathlib, signal
from grue.progress import Progress
from grue.tracking.beside import Trackers
trackers = Trackers(("tensorboard",), pathlib.Path({str(run.out)!r}), Progress())
trackers.start()
print(trackers._started["tensorboard"].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    psutil.wait_procs([psutil.Process(int(done.stdout))] if psutil.pid_exists(int(done.stdout)) else [], timeout=60)
    assert not psutil.pid_exists(int(done.stdout))
    assert _scalars(run.out)["sft/loss"] == [(1, 1.0), (2, 0.5)]  # what there was has been sent


def test_a_damaged_list_of_what_was_sent_is_one_error(run: Run) -> None:
    (run.out / "tracking").mkdir()
    (run.out / "tracking" / "tensorboard.json").write_text("[]")
    with pytest.raises(DataError, match=r"tensorboard\.json cannot be read.*"):
        send_rest(run.out, "tensorboard")


def test_a_place_that_cannot_be_written_to_is_one_error(run: Run) -> None:
    (run.out / "tracking").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write to .*tracking"):
        send_rest(run.out, "tensorboard")


@tensorboard
def test_a_whole_run_is_followed(tiny_folder: Path, tmp_path: Path) -> None:
    small = ["demos.games=4", "ppo.iterations=1", "ppo.dev_games=2", "eval.games=2", "eval.side_games=0", "threads=1"]
    small += [f"model.name={tiny_folder}", "sft.epochs=1", "ppo.episodes_per_iteration=8"]
    command = [sys.executable, "-m", "grue", "run", "toy", "--out", "r", *small, "track=tensorboard"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = [row for _, row in jsonl.read(tmp_path / "r" / "metrics.jsonl")]
    found = _scalars(tmp_path / "r")
    for row in rows:
        for key, value in row.items():
            if isinstance(value, int | float) and key != "step":
                (sent,) = [v for step, v in found[f"{row['stage']}/{key}"] if step == row["step"]]
                assert sent == pytest.approx(value, rel=1e-6)
    assert {name.split("/")[0] for name in found} == {"sft", "ppo", "dev", "eval"}


def test_trackio_has_what_was_sent(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="the extra [trackio] is not installed")
    assert _sent_by_command(run, "trackio", TRACKIO_DIR=str(tmp_path / "store")) == 2
    program = (
        "from trackio.sqlite_storage import SQLiteStorage as S; import json; (name,) = S.get_runs('grue');"
        "print(json.dumps([name, S.get_logs('grue', name)], default=str))"
    )
    name, logs = orjson.loads(_python(["-c", program], TRACKIO_DIR=str(tmp_path / "store")).splitlines()[-1])
    assert name.startswith("a run-")
    assert [(row["step"], row["sft/loss"]) for row in logs] == [(1, 1.0), (2, 0.5)]


def test_wandb_has_what_was_sent(run: Run) -> None:
    pytest.importorskip("wandb", reason="the extra [wandb] is not installed")
    assert _sent_by_command(run, "wandb", WANDB_MODE="offline") == 2
    (file,) = (run.out / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"sft/loss" in file.read_bytes()


def _sent_by_command(run: Run, name: str, **variables: str) -> Any:
    said = _python(["-m", "grue", "track", str(run.out), name, "--json"], **variables)
    return orjson.loads(said)["rows"]  # nothing else is on stdout


def _python(arguments: list[str], **variables: str) -> str:
    environment = os.environ | variables
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@tensorboard
def test_a_run_that_was_moved_goes_on_in_the_same_place(run: Run, tmp_path: Path) -> None:
    assert send_rest(run.out, "tensorboard") == 2
    moved = run.out.rename(tmp_path / "elsewhere")
    jsonl.append(moved / "metrics.jsonl", [{"stage": "sft", "step": 3, "time_s": 1.0, "loss": 0.25}])
    assert send_rest(moved, "tensorboard") == 1
    assert len(list((moved / "tensorboard").iterdir())) == 1
    assert _scalars(moved)["sft/loss"] == [(1, 1.0), (2, 0.5), (3, 0.25)]
