"""A folder of TextWorld games of one's own (`tw-make`), with a part for each fold: which game a seed selects.

Plain files: the engine is not needed here.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

import orjson

from grue.errors import ConfigError
from grue.games.base import fold_range
from grue.types import Task

PARTS = {"train": ("train",), "pretrain": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
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


def layout(task: Task) -> bytes:
    """A digest of rooms, things, where they are, and the goal: equal for tasks that are the same game.

    The files themselves differ where they were made on another day. One that cannot be read is like no other.
    """
    about = story_file(task).with_suffix(".json").read_bytes()
    try:
        made = orjson.loads(about)
        names = {key: info["name"] or key for key, info in made["infos"]}
        facts = sorted([fact["name"], *(names[of["name"]] for of in fact["arguments"])] for fact in made["world"])
        about = orjson.dumps([facts, made.get("objective")])
    except (ValueError, KeyError, TypeError):  # playing it tells what is wrong
        pass
    return sha256(about).digest()


def story_count(game: str, fold: str) -> int:
    """How many games the folder has for a fold; no more than the fold has seeds."""
    return min(len(story_files(game, fold)), len(fold_range(fold)))


def story_files(game: str, fold: str) -> tuple[Path, ...]:
    """The .z8 files of a fold that have their .json beside them, in an order that is the same wherever the folder is.

    The order is that of a hash of the path inside the part: by name, all of a kind would come together. ConfigError if
    there is none.
    """
    return _stories_of(Path(game.partition(":")[2]).expanduser(), fold)


@cache
def _stories_of(folder: Path, fold: str) -> tuple[Path, ...]:
    wanted = " or ".join(PARTS[fold])
    hint = f"a story file, or a folder with train, dev (or valid) and test, goes after the colon, not {str(folder)!r}"
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}", hint=hint)
    part = next((folder / name for name in PARTS[fold] if (folder / name).is_dir()), None)
    if part is None:
        raise ConfigError(f"{folder} has no games for {fold!r}: there is no folder {wanted} in it", hint=hint)
    stories = [file for file in part.rglob("*.z8") if file.with_suffix(".json").is_file()]
    if not stories:
        raise ConfigError(
            f"{part} holds no .z8 file with its .json beside it",
            hint="tw-make writes both; TextWorld 1.7 does not play .ulx: make such games again with --format z8",
        )
    return tuple(sorted(stories, key=lambda file: sha256(file.relative_to(part).as_posix().encode()).digest()))
