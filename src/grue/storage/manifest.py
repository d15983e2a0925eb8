"""The manifest of a checkpoint: the size and hash of each file, so that a damaged one is told from a whole one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grue.errors import CheckpointError, first_line
from grue.storage.files import explained, sync_file, sync_folder

SCHEMA = 1
STATE, MANIFEST = "state.json", "manifest.json"
MAX_JSON_BYTES = 256_000_000

_HINT = "resume from an older checkpoint: delete this folder and run the same command again"


class UnreadableError(CheckpointError):
    """A checkpoint may well be intact, but cannot be read: here, now, or by this version. It is never skipped."""


def write_manifest(folder: Path, step: int, prompt: str | None) -> None:
    """Sync all files of a checkpoint and state their sizes and hashes, in a file that is written last."""
    files = {}
    for file in sorted(folder.iterdir()):
        sync_file(file)
        files[file.name] = {"bytes": file.stat().st_size, "sha256": _hash_file(file)}
    manifest: dict[str, Any] = {"schema": SCHEMA, "step": step, "files": files}
    if prompt is not None:
        manifest["prompt"] = prompt
    manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sync_file(folder / MANIFEST)
    sync_folder(folder)


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files all have the size and hash it states. CheckpointError otherwise."""
    try:
        manifest: dict[str, Any] = json.loads(read_small(path / MANIFEST))
        stated = manifest.pop("sha256")
        schema, files = manifest["schema"], dict(manifest["files"])
        listed = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
        whole = stated == digest_of(manifest) and isinstance(manifest["step"], int) and STATE in files
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        words = f"{type(error).__name__}: {first_line(error)}"[:200]
        raise CheckpointError(f"{path / MANIFEST} is damaged: {words}", hint=_HINT) from error
    if not whole:
        raise CheckpointError(f"{path / MANIFEST} is damaged: its hash does not match", hint=_HINT)
    if schema != SCHEMA:
        raise UnreadableError(
            f"{path} has checkpoint format {schema}; this version of grue reads {SCHEMA}",
            hint="use the version of grue that wrote it",
        )
    for name, (size, sha256) in listed.items():
        _verify_file(path, name, size, sha256)
    return manifest


def _verify_file(path: Path, name: str, size: int, sha256: str) -> None:
    file = path / name
    with explained(f"read {file}", UnreadableError):
        # A stranger's manifest must not lead out of its folder, nor to a device.
        if name != Path(name).name or file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file} is missing, or is not a file of this checkpoint", hint=_HINT)
        found = file.stat().st_size
        if found != size:
            raise CheckpointError(f"{file} has {found} bytes, not {size}", hint=_HINT)
        if _hash_file(file) != sha256:
            raise CheckpointError(f"{file} has changed since it was written (sha256 differs)", hint=_HINT)


def read_small(file: Path) -> bytes:
    """A JSON file of a checkpoint; CheckpointError if it is no file, or one too large to be read whole."""
    with explained(f"read {file}", UnreadableError):
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file} is missing", hint=_HINT)
        if file.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{file} has more than {MAX_JSON_BYTES} bytes")
        return file.read_bytes()


def _hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest, all of it but its own hash."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
