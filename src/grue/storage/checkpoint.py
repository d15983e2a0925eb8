"""Checkpoints: a folder with one safetensors file per group of tensors, state.json, and a manifest with their hashes.

    checkpoints/step-00000040/{model,optimizer,critic}.safetensors  state.json  manifest.json
    checkpoints/best-00000030/...

A checkpoint is written under a temporary name, synced, and renamed when whole; the manifest is its last file. So a kill
at any moment leaves the earlier checkpoints and at most a temporary folder, which the next save removes. An older
checkpoint is deleted only after a newer one is in place. Nothing is pickled: a stranger's checkpoint can hold no code.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grue.errors import CheckpointError
from grue.storage.files import explained, make_folder, readable_alike, sync_folder
from grue.storage.manifest import STATE, UnreadableError, read_small, verify, write_manifest

_LOOKS = 100  # more than a training replaces checkpoints while one is read
_NAME = re.compile(r"(step|best)-(\d{8})(\.old)?")
_GROUP = re.compile(r"[a-z][a-z0-9_]*")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `save` was given. Tensors are on the CPU."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]  # group -> name -> tensor
    state: dict[str, Any]
    prompt: str | None = None  # hash of the prompt format that the weights were trained with


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    best: bool = False,
    prompt: str | None = None,
) -> Path:
    """Write a checkpoint below `folder` and return its path; then delete all but the newest `keep` of its kind.

    `best` ones are a kind of their own, of which only the newest is kept. `prompt` is the hash of the prompt format.
    CheckpointError if it cannot be written; the earlier checkpoints are then as they were.
    """
    kind = "best" if best else "step"
    temporary = _temporary(folder)
    try:
        with explained(f"write a checkpoint in {folder}", CheckpointError):
            make_folder(folder)
            _remove_leftovers(folder)
            temporary.mkdir()
            _write(temporary, step, tensors, state, prompt)
            target = folder / f"{kind}-{step:08d}"
            _move_into_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _prune(folder, kind, step, 1 if best else keep)
    return target


def load(path: Path, *, prompt: str | None = None) -> Checkpoint:
    """Read a checkpoint, checking every byte against its manifest first. CheckpointError names the file at fault.

    With `prompt`, weights that were trained with another prompt format are refused.
    """
    manifest = verify(path)
    check_same_prompt(path, manifest.get("prompt"), prompt)
    state = json.loads(read_small(path / STATE))
    groups = [Path(name).stem for name in manifest["files"] if name != STATE]
    try:
        tensors = {group: load_file(path / f"{group}.safetensors", device="cpu") for group in groups}
    except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: from torch, where the file is gone
        raise CheckpointError(f"cannot read the tensors of {path}: {error}") from error
    return Checkpoint(path=path, step=manifest["step"], tensors=tensors, state=state, prompt=manifest.get("prompt"))


def check_same_prompt(path: Path, stored: str | None, wanted: str | None) -> None:
    """CheckpointError if both hashes of the prompt format are known and differ."""
    change = prompt_change(stored, wanted)
    if change:
        raise CheckpointError(
            f"{path} was trained with another prompt format: {change}",
            hint="give policy.template and model.revision, or the tokenizer's files in a folder, as they were when it "
            "was trained, or train again (an older grue may have made other prompts for this model)",
        )


def prompt_change(stored: str | None, wanted: str | None) -> str:
    """What has changed between two values of `Encoder.fingerprint`; "" if nothing, as far as both are known."""
    if stored is None or wanted is None:
        return ""
    parts = zip(str(stored).split("-"), wanted.split("-"), strict=False)  # older ones have fewer
    differing = [place for place, (before, now) in enumerate(parts) if before != now]
    if not differing:
        return ""
    return "the tokenizer cuts texts otherwise" if differing[0] else "template, vocabulary or settings differ"


def check_newest(folder: Path, wanted: str) -> None:
    """`check_same_prompt` for the checkpoints below `folder` that a run goes on with."""
    for path in (latest_valid(folder), best_valid(folder)):
        if path is not None:
            check_same_prompt(path, verify(path).get("prompt"), wanted)


def latest_valid(folder: Path) -> Path | None:
    """The newest intact checkpoint below `folder`, None if there is none. Warns of each broken one that it skips.

    UnreadableError if one that may be intact cannot be read: an older one in its place would change the training.
    """
    return _newest_valid(folder, "step")


def to_resume(folder: Path) -> Path | None:
    """`latest_valid`, for a stage that goes on from it: CheckpointError if there are checkpoints, but all broken."""
    newest, there = latest_valid(folder), list(_candidates(folder, "step"))
    if newest is None and there:
        raise CheckpointError(
            f"none of the {len(there)} checkpoints in {folder} is intact, so training cannot go on",
            hint="restore one, or train this stage from the start with --again",
        )
    return newest


def best_valid(folder: Path) -> Path | None:
    """The intact checkpoint that was last saved as the best one."""
    return _newest_valid(folder, "best")


def _write(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], prompt: str | None
) -> None:
    """Write all files of a checkpoint and sync them, the manifest last."""
    for group, named in tensors.items():
        if not _GROUP.fullmatch(group):
            raise CheckpointError(f"{group!r} is not a name for a group of tensors")
        with system_errors():
            save_file(_storable(named), folder / f"{group}.safetensors")
    try:
        # The standard module can be told to refuse NaN.
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the state of step {step} cannot be written as JSON: {error}") from error
    (folder / STATE).write_text(text, encoding="utf-8")
    readable_alike(folder, folder / STATE)
    write_manifest(folder, step, prompt)


@contextmanager
def system_errors() -> Iterator[None]:
    """safetensors wraps system errors such as a full disk when it writes: unwrap them for `files.explained`."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else 0, str(error)) from error


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors requires them: on the CPU, contiguous, and none sharing memory with another."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        if plain.untyped_storage().data_ptr() in seen and plain.numel():
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        stored[name] = plain
    return stored


def _move_into_place(temporary: Path, target: Path) -> None:
    """Rename; a checkpoint of the same step is moved aside first, and still found there after a kill in between."""
    aside = target.with_name(target.name + ".old")
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    temporary.rename(target)
    sync_folder(target.parent)
    _discard(aside)


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob("tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _prune(folder: Path, kind: str, step: int, keep: int) -> None:
    """Delete all of a kind but the newest `keep` up to `step`; later ones belong to a course that was abandoned.

    One that cannot be deleted is left where it is: that is no reason to stop training.
    """
    past = [path for path in _candidates(folder, kind) if _step(path) <= step]
    for path in set(_candidates(folder, kind)) - set(past[: max(1, keep)]):
        _discard(path)


def _discard(path: Path) -> None:
    """Delete a checkpoint, under another name: who reads it meanwhile finds it gone, and never a part of it."""
    doomed = _temporary(path.parent)
    with suppress(OSError):
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _temporary(folder: Path) -> Path:
    """A name that `_remove_leftovers` knows."""
    return folder / f"tmp-{uuid.uuid4().hex}"


def _candidates(folder: Path, kind: str) -> Iterator[Path]:
    """Folders named like checkpoints of a kind, newest first."""
    if not folder.is_dir():
        return
    paths = [path for path in folder.iterdir() if path.name.startswith(f"{kind}-") and _NAME.fullmatch(path.name)]
    # Of two with the same step, the one that was moved aside (".old") comes second.
    yield from sorted(paths, key=lambda path: (_step(path), path.suffix != ".old"), reverse=True)


def _step(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _newest_valid(folder: Path, kind: str) -> Path | None:
    for _ in range(_LOOKS):
        for path in _candidates(folder, kind):
            try:
                verify(path)
            except CheckpointError as error:
                if is_gone(path):  # a training goes on, and has put a newer one in its place: look again
                    break
                if isinstance(error, UnreadableError):
                    raise
                _log.warning("skipping a broken checkpoint: %s", error.message)
            else:
                return path
        else:
            return None
    raise UnreadableError(f"checkpoints in {folder} vanish before they can be read", hint="try again later")


def is_gone(path: Path) -> bool:
    """Is there nothing of that name any more? Not where it cannot be told."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
