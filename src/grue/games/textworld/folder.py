"""A folder of TextWorld games of one's own (`tw-make`), with a part for each fold: which game a seed selects.

Plain files: the engine is not needed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import orjson

from grue.errors import ConfigError
from grue.games.base import fold_range, own_path
from grue.names import RUN_FOLDS
from grue.types import Task

_PARTS = {"train": ("train",), "pretrain": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
_STORIES = {f".z{version}" for version in range(1, 9)} | {".ulx"}


def names_folder(game: str) -> bool:
    """Does "textworld:PATH" name a folder? One can tell by the name, as a story file ends in .z8."""
    name, _, path = game.partition(":")
    return name == "textworld" and bool(path) and Path(path).suffix.lower() not in _STORIES


def story_file(task: Task) -> Path:
    """The story of a task: the n-th of its part of the folder for the n-th seed of its fold. ConfigError if none is."""
    files, first = story_files(task.game, task.fold), fold_range(task.fold).start
    if task.seed - first >= len(files):
        raise ConfigError(
            f"seed {task.seed}: the folder has {len(files)} games for {task.fold!r}",
            hint=f"its seeds are {first} to {first + len(files) - 1} here",
        )
    return files[task.seed - first]


def story_count(game: str, fold: str) -> int:
    """How many games the folder has for a fold; no more than the fold has seeds."""
    return min(len(story_files(game, fold)), len(fold_range(fold)))


def layout(task: Task) -> bytes:
    """A digest of rooms, things, where they are, and the goal: equal for tasks that are the same game.

    The files themselves differ where they were made on another day. One that cannot be read is like no other.
    """
    return _layout_of(story_file(task).with_suffix(".json"))


@cache  # lists of tasks are asked for several times in a command, and a thousand files take seconds
def _layout_of(about: Path) -> bytes:
    try:
        made = orjson.loads(about.read_bytes())
        names = {key: info["name"] or key for key, info in made["infos"]}
        facts = sorted([fact["name"], *(names[of["name"]] for of in fact["arguments"])] for fact in made["world"])
        return sha256(orjson.dumps([facts, made.get("objective")])).digest()
    except (OSError, ValueError, KeyError, TypeError):  # playing it tells what is wrong
        return sha256(str(about).encode()).digest()


def fingerprints(game: str) -> dict[str, str]:
    """For each fold that has games, a digest of their names and sizes.

    It changes when games are added, taken away, renamed or replaced: seeds then select others. Stories are often of one
    size, their descriptions seldom.
    """
    found: dict[str, str] = {}
    for fold in RUN_FOLDS:
        with suppress(ConfigError):
            stories = _stories(game, fold)
            sizes = [(name, _size(file), _size(file.with_suffix(".json"))) for name, file in stories.items()]
            found[fold] = sha256(repr(sizes).encode()).hexdigest()
    return found


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it has gone since it was found
        return -1


def story_files(game: str, fold: str) -> tuple[Path, ...]:
    """The .z8 files of a fold that have their .json beside them, in an order that is the same wherever the folder is.

    The order is that of a hash of the path inside the part: by name, all of a kind would come together. ConfigError if
    there is none.
    """
    return tuple(_stories(game, fold).values())


def _stories(game: str, fold: str) -> Mapping[str, Path]:
    return _stories_of(own_path(game), fold)


@cache
def _stories_of(folder: Path, fold: str) -> Mapping[str, Path]:
    """Path inside the part -> file, in order."""
    wanted = " or ".join(_PARTS[fold])
    hint = "a story file, or a folder with train, dev (or valid) and test, goes after the colon"
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}", hint=f"{hint}; the current folder is {Path.cwd()}")
    parts = [folder / name for name in _PARTS[fold] if (folder / name).is_dir()]
    if not parts:
        raise ConfigError(f"{folder} has no games for {fold!r}: there is no folder {wanted} in it", hint=hint)
    for part in parts:
        stories = {file.relative_to(part).as_posix(): file for file in _below(part) if _is_story(file)}
        if stories:
            return {path: stories[path] for path in sorted(stories, key=lambda path: sha256(path.encode()).digest())}
    raise ConfigError(
        f"there is no .z8 file with its .json beside it in {' or '.join(map(str, parts))}",
        hint="tw-make writes both; TextWorld 1.7 does not play .ulx: make such games again with --format z8",
    )


def without_description(game: str, fold: str) -> int:
    """How many stories of a fold are left out, as their .json is missing."""
    parts = (own_path(game) / name for name in _PARTS[fold])
    part = next((part for part in parts if part.is_dir()), None)
    found = [] if part is None else _below(part)
    return sum(_is_z8(file) and not _is_story(file) for file in found)


def _below(folder: Path) -> list[Path]:
    """The files at any depth, also behind links to folders, but none behind a link to where one has been."""
    found, seen = list[Path](), set[Path]()
    for where, inside, names in os.walk(folder, followlinks=True):
        here = Path(where).resolve()
        if here in seen:
            inside.clear()
            continue
        seen.add(here)
        inside.sort()
        found += [Path(where) / name for name in names]
    return found


def _is_z8(file: Path) -> bool:
    return file.suffix == ".z8" and not file.name.startswith(".") and file.is_file()


def _is_story(file: Path) -> bool:
    return _is_z8(file) and file.with_suffix(".json").is_file()
