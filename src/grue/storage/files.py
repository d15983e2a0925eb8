"""Writing files so that a kill, a full disk or a power cut never leaves half of one under its final name."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grue.errors import ConfigError, DataError, GrueError

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, then run the same command again (without --again)",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again (without --again)",
    errno.EFBIG: "a file size limit was reached (ulimit -f)",
    errno.EACCES: "choose a folder you may write to, or copy the run to one",
    errno.EPERM: "choose a folder you may write to, or copy the run to one",
    errno.EROFS: "the disk is read-only: choose another folder, or copy the run to one",
    errno.ENOTDIR: "there is a file where a folder is needed: choose another folder",
    errno.EEXIST: "there is a file where a folder is needed: choose another folder",
    errno.ENOLCK: "the drive of this folder does not lock files: mount it with locks, or choose another folder",
    errno.EOPNOTSUPP: "the drive of this folder does not lock files: mount it with locks, or choose another folder",
    errno.ENOTSUP: "the drive of this folder does not lock files: mount it with locks, or choose another folder",
    errno.ENOSYS: "the drive of this folder does not lock files: mount it with locks, or choose another folder",
    errno.ENOENT: "has the folder been moved or deleted?",
}
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_LEFT_S = 60.0  # no write takes as long
_WRITTEN_S = 900.0  # nor the checks between two files of a large model

_locks: dict[Path, int] = {}  # file -> its descriptor, held until this process ends


@contextmanager
def explained(doing: str, kind: type[GrueError] = DataError, *, missing: str = "") -> Iterator[None]:
    """Turn an OSError into `kind`: what was being done, why it failed, what to try.

    `missing` is the hint where there is no such file or folder and none need have been there.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = missing if missing and error.errno == errno.ENOENT else _HINTS.get(error.errno or 0, "")
        if doing.startswith("read") and error.errno in (errno.EACCES, errno.EPERM):
            hint = "ls -ld shows who may read it"
        raise kind(f"cannot {doing}: {reason}", hint=hint) from error


def readable_alike(folder: Path, like: Path) -> None:
    """Give all files of `folder` the permissions of `like`: safetensors lets only the owner read what it writes."""
    with suppress(OSError):  # some drives have none
        mode = like.stat().st_mode
        for file in filter(Path.is_file, folder.iterdir()):
            file.chmod(mode)


def files_below(folder: Path) -> list[str]:
    """The paths of all files in and below `folder`, from there on; sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, sync it, and rename it over `path`: readers see the old file or the new one."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Delete what kills within `write_atomic` have left; what is younger may be being written by another command."""
    for path in folder.glob(".*.????????.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_S:
                path.unlink()


def is_fresh(folder: Path) -> bool:
    """May another command be writing into `folder`? Something in it, or it itself, was changed a short while ago."""
    try:
        changed = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:  # what was there a moment ago has gone: somebody is at work
        return True
    return time.time() - changed < _WRITTEN_S


def sync_file(path: Path) -> None:
    """Have the system write a file's content to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the system write a folder's list of names to the disk, where it can (Windows cannot)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:  # shared folders of virtual machines and some network drives
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder for something to be written, and those above it.

    FileNotFoundError if it is, or lies in, a folder that this process works on and that has been moved or deleted
    since: what is written would begin a second one, without what the first one holds.
    """
    place = folder.resolve()
    for file, descriptor in _locks.items():
        if (file.parent == place or file.parent in place.parents) and not _is_still(file, descriptor):
            raise FileNotFoundError(errno.ENOENT, f"{file} is no longer the file that this command has locked")
    folder.mkdir(parents=True, exist_ok=True)


def lock_folder(folder: Path) -> None:
    """Make a folder that one process works on, and `lock` it."""
    place = folder.resolve()
    for file in [file for file, descriptor in _locks.items() if not _is_still(file, descriptor)]:
        if file.parent == place or file.parent in place.parents:  # of a folder that was moved away from here
            del _locks[file]  # and not closed: that would free every lock that this process has on the same file
    folder.mkdir(parents=True, exist_ok=True)
    hint = "wait for it, or choose another folder with --out"
    lock(folder / ".lock", f"another process is working on {folder}", hint)


def lock(file: Path, busy: str, hint: str) -> None:
    """Lock `file` until this process ends: ConfigError if another one has. Does nothing on Windows.

    The system frees the lock however the process ends.
    """
    try:
        import fcntl
    except ImportError:
        return
    path = file.resolve()
    if path in _locks and _is_still(path, _locks[path]):
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # less what the umask takes
    except PermissionError as error:
        ours = "choose a folder you may write to, or copy the run to one"
        shared = f"whoever shares the folder with you has to let you write to it: chmod g+w {path}"
        raise ConfigError(
            f"cannot lock {path}: {error.strerror}",
            hint=shared if path.exists() and os.access(path.parent, os.W_OK) else ours,
        ) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # a network drive without locks, or an unreachable server
            raise
        raise ConfigError(busy, hint=hint) from error
    _locks[path] = descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    """Is the file at `path` the one that was opened as `descriptor`?"""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
