"""Checkpoints: a kill, a damaged file or a full disk never costs more than the checkpoint being written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grue.errors import CheckpointError
from grue.storage import checkpoint
from grue.storage.manifest import MANIFEST, UnreadableError, digest_of


def _save(folder: Path, step: int, **options: Any) -> Path:
    tensors = {
        "model": {"weight": torch.full((3, 5), float(step)), "bias": torch.arange(4, dtype=torch.bfloat16)},
        "optimizer": {"weight.step": torch.tensor(float(step)), "weight.exp_avg": torch.zeros(0, 3)},
    }
    return checkpoint.save(folder, step, tensors, {"step": step, "cursor": [1, 2**70, "x"]}, **options)


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    shared = torch.randn(6)
    tensors = {"model": {"tied": shared, "again": shared, "view": shared[2:4], "turned": torch.randn(2, 3).T}}
    state = {"rate": 0.1 + 0.2, "big": 2**100, "text": "grün", "none": None}
    loaded = checkpoint.load(checkpoint.save(tmp_path, 7, tensors, state))
    assert loaded.step == 7
    assert loaded.state == state
    for name, tensor in tensors["model"].items():
        assert torch.equal(loaded.tensors["model"][name], tensor), name


def test_whoever_may_read_the_manifest_may_read_the_weights(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {"model": {"w": torch.ones(2)}}, {})
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1


def test_the_newest_are_kept_and_the_best_one_apart(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        _save(tmp_path, step, keep=2)
        if step in (1, 2):
            _save(tmp_path, step, best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00000002", "step-00000003", "step-00000004"]
    latest, best = checkpoint.latest_valid(tmp_path), checkpoint.best_valid(tmp_path)
    assert latest is not None
    assert best is not None
    assert (checkpoint.load(latest).step, checkpoint.load(best).step) == (4, 2)


def test_a_step_can_be_saved_again_and_later_ones_are_then_given_up(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _save(tmp_path, step, keep=3)
    path = checkpoint.save(tmp_path, 2, {"model": {"weight": torch.tensor(9.0)}}, {}, keep=3)
    assert checkpoint.load(path).tensors["model"]["weight"] == 9
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest_valid(tmp_path) is None
    assert checkpoint.latest_valid(tmp_path / "none") is None


def _flip_a_bit(file: Path, at: float = 0.9) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * at)] ^= 1
    file.write_bytes(data)


def _set_manifest(path: Path, **changes: Any) -> None:
    """Change a manifest as somebody would who knows its hash."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest.update(changes)
    manifest.pop("sha256")
    manifest["sha256"] = digest_of(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit flip in tensors": (lambda path: _flip_a_bit(path / "model.safetensors"), "model.safetensors"),
    "bit flip in state": (lambda path: _flip_a_bit(path / "state.json"), "state.json"),
    "bit flip in manifest": (lambda path: _flip_a_bit(path / "manifest.json"), "manifest.json"),
    "bit flip early in manifest": (lambda path: _flip_a_bit(path / "manifest.json", 0.1), "manifest.json"),
    "truncation": (
        lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1]),
        "model.safetensors",
    ),
    "empty manifest": (lambda path: (path / "manifest.json").write_bytes(b""), "manifest.json"),
    "manifest is a list": (lambda path: (path / "manifest.json").write_bytes(b"[]"), "manifest.json"),
    "missing tensors": (lambda path: (path / "optimizer.safetensors").unlink(), "optimizer.safetensors"),
    "missing state": (lambda path: (path / "state.json").unlink(), "state.json"),
    "missing manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
    "empty folder": (lambda path: [file.unlink() for file in path.iterdir()], "manifest.json"),
    "way out of the folder": (
        lambda path: _set_manifest(path, files={"state.json": {"bytes": 0, "sha256": ""}, "../x": {}}),
        "manifest.json",
    ),
    "path to another file": (
        lambda path: _set_manifest(
            path,
            files={"../step-00000001/state.json": {"bytes": 1, "sha256": ""}, "state.json": {"bytes": 0, "sha256": ""}},
        ),
        "step-00000001",
    ),
    "link": (
        lambda path: (
            (path / "state.json").unlink(),
            (path / "state.json").symlink_to(path.parent / "step-00000001" / "state.json"),
        ),
        "state.json",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_passed_over(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = _save(tmp_path, 1), _save(tmp_path, 2)
    do_damage, named = DAMAGES[damage]
    do_damage(newer)
    with pytest.raises(CheckpointError, match=named):
        checkpoint.load(newer)
    assert checkpoint.latest_valid(tmp_path) == older
    assert "skipping a broken checkpoint" in caplog.text
    assert checkpoint.load(_save(tmp_path, 2)).step == 2  # the run goes on over the broken one


@pytest.mark.parametrize("content", ["[" * 100_000, '{"files": {"state.json": {"bytes": 1e999}}}', "\\xff" * 3000])
def test_a_manifest_of_any_content_is_passed_over_in_a_line(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = _save(tmp_path, 1), _save(tmp_path, 2)
    (newer / "manifest.json").write_bytes(content.encode("latin-1").replace(b"\\xff", b"\xff"))
    assert checkpoint.latest_valid(tmp_path) == older
    assert len(caplog.text) < 1000


def test_what_may_be_whole_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older checkpoint in its place would be another training, whose saves delete the newer one."""
    _save(tmp_path, 1)
    newer = _save(tmp_path, 2)
    with monkeypatch.context() as broken:

        def away(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(hashlib, "file_digest", away)
        with pytest.raises(UnreadableError, match="Input/output error"):
            checkpoint.latest_valid(tmp_path)
    assert checkpoint.latest_valid(tmp_path) == newer
    _set_manifest(newer, schema=99)
    for read in (checkpoint.latest_valid, checkpoint.to_resume, lambda _: checkpoint.load(newer)):
        with pytest.raises(UnreadableError, match="format 99"):
            read(tmp_path)


def test_where_all_are_broken_nothing_begins_anew(tmp_path: Path) -> None:
    assert checkpoint.to_resume(tmp_path) is None
    only = _save(tmp_path, 1)
    assert checkpoint.to_resume(tmp_path) == only
    (only / "state.json").write_text("{}")
    assert checkpoint.latest_valid(tmp_path) is None
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints") as caught:
        checkpoint.to_resume(tmp_path)
    assert "--again" in caught.value.hint


def test_state_without_a_form_in_json_is_refused_before_anything_is_lost(tmp_path: Path) -> None:
    older = _save(tmp_path, 1)
    for state in ({"loss": float("nan")}, {"x": object()}, {"w": torch.zeros(2)}):
        with pytest.raises(CheckpointError, match="step 2"):
            checkpoint.save(tmp_path, 2, {}, state)
    with pytest.raises(CheckpointError, match="not a name"):
        checkpoint.save(tmp_path, 2, {"../x": {}}, {})
    assert [path.name for path in tmp_path.iterdir()] == [older.name]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder is needed")
    for folder in (tmp_path / "blocked", tmp_path / "blocked" / "below"):
        with pytest.raises(CheckpointError, match=f"cannot write a checkpoint in .*{folder.name}") as caught:
            _save(folder, 1)
        assert "choose another folder" in caught.value.hint


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    try:
        (folder / "probe").touch()
    except PermissionError:
        with pytest.raises(CheckpointError, match="locked"):
            _save(folder, 1)
    else:
        pytest.skip("this user may write to read-only folders")


# One child imports torch; each kill then hits a fork of it, which takes milliseconds instead of seconds.
KILLS = """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from grue.storage import checkpoint

    torch.set_num_threads(1)
    folder, dice = Path(sys.argv[1]), random.Random(0)

    def save_for_ever(start, done):
        for step in range(start, start + 100_000):
            weights = {"model": {"weight": torch.full((200_000,), float(step))}, "optimizer": {"m": torch.ones(1000)}}
            if step % 3 == 0:
                checkpoint.save(folder, step, weights, {"step": step}, best=True)
            checkpoint.save(folder, step, weights, {"step": step})
            os.write(done, step.to_bytes(4, "big"))

    finished = step = rounds = 0
    while rounds < 10 or not finished:  # a busy machine may finish nothing in the time of ten
        rounds += 1
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            save_for_ever(step + 1, writing)
        os.close(writing)
        time.sleep(dice.uniform(0.01, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        told = b"".join(iter(lambda: os.read(reading, 65536), b""))
        os.close(reading)
        if told:
            finished = int.from_bytes(told[-4:], "big")
        latest = checkpoint.latest_valid(folder)
        if latest is not None:
            loaded = checkpoint.load(latest)
            step = loaded.step
            assert loaded.state == {"step": step}
            assert bool((loaded.tensors["model"]["weight"] == step).all())
        assert step >= finished, (step, finished)
    best = checkpoint.best_valid(folder)
    assert step < 3 or (best is not None and checkpoint.load(best).step >= step // 3 * 3)
    checkpoint.save(folder, step + 1, {}, {})
    print(step, [path.name for path in folder.iterdir() if path.name.startswith("tmp-")])
"""

FULL_DISK = """
    import resource, sys
    from pathlib import Path
    import torch
    from grue.errors import CheckpointError
    from grue.storage import checkpoint

    folder = Path(sys.argv[1])
    first = checkpoint.save(folder, 1, {"model": {"weight": torch.ones(10)}}, {"step": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    for tensors, state in (({"model": {"weight": torch.ones(100_000)}}, {}), ({}, {"text": "x" * 200_000})):
        try:
            checkpoint.save(folder, 2, tensors, state)
        except CheckpointError as error:
            assert "cannot write a checkpoint" in error.message and "limit" in error.hint, error
        else:
            raise AssertionError("saved past the limit")
    assert checkpoint.load(checkpoint.latest_valid(folder)).state == {"step": 1}
    print([path.name for path in folder.iterdir()])
"""


def _run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_kill_at_any_moment_leaves_the_last_finished_checkpoint(tmp_path: Path) -> None:
    said = _run(KILLS, tmp_path)
    assert said.endswith("[]")
    assert int(said.split()[0]) >= 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    assert _run(FULL_DISK, tmp_path) == "['step-00000001']"


BUSY = """
    import sys, torch
    from pathlib import Path
    from grue.storage import checkpoint
    for step in range(1, 10**6):
        checkpoint.save(Path(sys.argv[1]), step, {"model": {"w": torch.full((10**6,), float(step))}}, {}, best=True)
"""


def test_who_reads_while_a_training_saves_gets_the_newest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that vanished between looking and reading is not a broken one."""
    _save(tmp_path, 0, best=True)
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(BUSY), str(tmp_path)]) as busy:
        try:
            steps = [0]
            last = time.monotonic() + 300
            while steps[-1] < 8 and busy.poll() is None and time.monotonic() < last:
                steps.append(int(str(checkpoint.best_valid(tmp_path))[-8:]))
        finally:
            busy.kill()
    assert steps == sorted(steps)
    assert steps[-1] >= 8
    assert not caplog.records


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to become another user")
def test_a_folder_that_may_only_be_listed_is_unreadable_not_gone() -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own are closed to other users, further up
        _save(Path(place), 1)
        Path(place).chmod(0o744)
        code = f"""
            import os, pathlib
            from grue.storage import checkpoint
            os.seteuid(65534)
            checkpoint.latest_valid(pathlib.Path({place!r}))
        """
        call = [sys.executable, "-c", textwrap.dedent(code)]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=100)
    assert "UnreadableError" in ended.stderr
    assert "Permission denied" in ended.stderr
