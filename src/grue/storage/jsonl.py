"""Files of one JSON object per line. A process killed while writing can tear the last line: only that one is dropped.

Lines are appended whole and flushed. Numbers that are not finite become null (JSON cannot express them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from grue.errors import DataError
from grue.storage.files import explained, make_folder, write_atomic

MAX_LINE_BYTES = 64_000_000

Form = Callable[[str, Mapping[str, Any]], None]  # given "file:line" and a row, raises DataError if it is damaged


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append `rows`, after repairing a last line that a kill has torn."""
    data = b"".join(_encode(row, path) + b"\n" for row in rows)
    with explained(f"write {path}"):
        make_folder(path.parent)
        with path.open("ab") as file:
            _mend(path, file.tell())
            file.write(data)
            file.flush()


def read(path: Path, form: Form | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file:line", object) for each line; nothing if there is no file. DataError for anything but a torn end.

    Objects are checked against a `form` if there is one.
    """
    if not path.exists():
        return
    with explained(f"read {path}"), path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            where = f"{path}:{number}"
            whole = line.endswith(b"\n")
            if not whole and len(line) == MAX_LINE_BYTES:
                raise DataError(f"{where} is longer than {MAX_LINE_BYTES} bytes", hint="this is not a file from grue")
            row = _decode(line)
            if row is not None:
                if form is not None:
                    form(where, row)
                yield where, row
            elif whole:
                raise DataError(
                    f"{where} is not a JSON object: {line[:60]!r}",
                    hint="restore the file, or delete that line",
                )


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool], form: Form | None = None) -> None:
    """Rewrite the file with only the rows that are `wanted`, atomically; nothing is written if all are."""
    rows = [row for _, row in read(path, form)]
    kept = [row for row in rows if wanted(row)]
    if len(kept) < len(rows):
        with explained(f"write {path}"):
            write_atomic(path, b"".join(_encode(row, path) + b"\n" for row in kept))


def keep_first(path: Path, count: int) -> None:
    """Rewrite the file with only its first `count` rows."""
    left = iter(range(count))
    keep(path, lambda _: next(left, None) is not None)


def _encode(row: Mapping[str, Any], path: Path) -> bytes:
    try:
        line = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:  # a lone surrogate, a type that JSON lacks, an integer above 64 bits
        raise DataError(f"a row for {path} cannot be written as JSON: {error}") from error
    if len(line) >= MAX_LINE_BYTES:  # which `read` would refuse
        raise DataError(
            f"a row for {path} has {len(line)} bytes, more than {MAX_LINE_BYTES}",
            hint="use shorter games, or policy.top_p=1, which keeps no list of tokens",
        )
    return line


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def _mend(path: Path, size: int) -> None:
    """End the file with a newline: add one after a complete object, else cut the torn line off."""
    if size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        start = max(0, size - MAX_LINE_BYTES)
        file.seek(start)
        tail = file.read()
        begin = tail.rfind(b"\n") + 1
        if _decode(tail[begin:]) is not None:
            file.write(b"\n")
        else:
            file.truncate(start + begin)
