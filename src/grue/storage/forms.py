"""What the files of a run directory hold, checked where each is read. DataError says where a value is damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from grue.errors import DataError
from grue.names import FORMATS, PLAYED_IN, RUN_FOLDS

_LINE = "restore the file, or delete that line"
_FILE = "restore the file as it was written"


def stages(where: str, data: Mapping[str, Any]) -> None:
    """stages.json: stage -> {"state": "begun", "done" or "deleting", "seconds": once it has ended, facts}."""
    for name, entry in data.items():
        if not isinstance(entry, dict):
            raise DataError(f"{where} holds {entry!r} for {name}, not an object", hint=_FILE)
        with _naming(f"{where}: {name}", _FILE):
            if entry["state"] not in ("begun", "done", "deleting"):
                raise TypeError(f"state is {entry['state']!r}")
            if entry["state"] == "done" or "seconds" in entry:
                _number(entry, "seconds")
            for fact in ("episodes", "env_steps", "best_iteration", "best_round"):
                if fact in entry:
                    _whole(entry, fact)
            if entry.get(PLAYED_IN, FORMATS[0]) not in FORMATS:
                raise TypeError(f"{PLAYED_IN} is {entry[PLAYED_IN]!r}")
            if "best_merit" in entry:
                _number(entry, "best_merit")


def metrics_row(where: str, row: Mapping[str, Any]) -> None:
    """A line of metrics.jsonl. Of what a stage logged, only what a resumed run relies on is checked."""
    with _naming(where, _LINE):
        _text(row, "stage")
        _whole(row, "step")
        _number(row, "time_s")
        if "env_steps_trained" in row:
            _number(row, "env_steps_trained")


def evaluation_row(where: str, row: Mapping[str, Any]) -> None:
    """A line of evaluation.jsonl: a row's name and its result; for a chat model also who played what."""
    with _naming(where, _LINE):
        _text(row, "row")
        _result(_object(row, "result"))
        if "api" in row:
            key = _object(row, "api")
            _text(key, "policy")
            _text(key, "decoding")
            _fold(key)


def spent_row(where: str, row: Mapping[str, Any]) -> None:
    """A line of a file in api/: the options of requests to a chat model, or the usage and cost of some of them."""
    with _naming(where, _LINE):
        if "asked" in row:
            asked = _object(row, "asked")
            _number(asked, "temperature")
            _whole(asked, "max_tokens")
            return
        for count in ("requests", *(key for key in ("retries", "empty", "cut") if key in row)):
            _whole(row, count)
        if "seconds" in row:
            _number(row, "seconds")
        for known in ("prompt_tokens", "completion_tokens", "cost"):
            if row[known] is not None:
                _number(row, known)


def results(where: str, data: Mapping[str, Any]) -> None:
    """results.json, as far as it is read by other code than the report, which takes what it finds."""
    with _naming(where, "delete it, and grue eval makes it again"):
        policies = _object(data, "policies")
        for name in policies:
            decodings = _object(_object(policies, name), "decoding")
            for decoding in decodings:
                _result(_object(decodings, decoding))


@contextmanager
def _naming(where: str, hint: str) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise DataError(f"{where} lacks {error}", hint=hint) from error
    except TypeError as error:
        raise DataError(f"{where}: {error}", hint=hint) from error


def _result(row: Mapping[str, Any]) -> None:
    """What `evaluate.summary` made of the games of one policy. Shares are None where no game was finished."""
    _fold(row)
    _whole(row, "games")
    _whole(row, "failed")
    _pair(row, "seeds", _is_whole)
    for share in ("success", "score"):
        if row[share] is not None:
            _number(row, share)
    if row["success"] is not None:
        _pair(row, "success_ci95", _is_number)
        _number(row, "score")


def _fold(data: Mapping[str, Any]) -> None:
    if data["fold"] not in RUN_FOLDS:
        raise TypeError(f"fold is {data['fold']!r}")


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data[key]
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def _text(data: Mapping[str, Any], key: str) -> None:
    if not isinstance(data[key], str):
        raise _wrong(key, data[key], "a string")


def _whole(data: Mapping[str, Any], key: str) -> None:
    if not _is_whole(data[key]):
        raise _wrong(key, data[key], "a whole number")


def _number(data: Mapping[str, Any], key: str) -> None:
    if not _is_number(data[key]):
        raise _wrong(key, data[key], "a number")


def _pair(data: Mapping[str, Any], key: str, is_one: Callable[[Any], bool]) -> None:
    value = data[key]
    if not (isinstance(value, list) and len(value) == 2 and all(is_one(end) for end in value)):
        raise _wrong(key, value, "two numbers")


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _wrong(key: str, value: Any, belongs: str) -> TypeError:
    return TypeError(f"{key} is {value!r:.60}, not {belongs}")
