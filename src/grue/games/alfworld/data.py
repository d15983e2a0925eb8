"""Where ALFWorld's games are, which one a seed selects, and reading one. Plain files: the engine is not needed here.

The official data (`alfworld-download`) has a folder `json_2.1.1` with the splits `train`, `valid_seen` and
`valid_unseen`; a game is a folder with `game.tw-pddl` and `traj_data.json`. Nothing is downloaded by this module.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from shlex import quote

import orjson

from grue.errors import ConfigError, GameError
from grue.games.base import fold_range, own_path
from grue.types import Task

SPLITS = {"train": "train", "pretrain": "train", "dev": "valid_seen", "test": "valid_unseen"}
OFFICIAL = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}  # games, according to ALFWorld's data/README.md
# The numbers of the parameter `task`, from 1, are those of ALFWorld's own configuration.
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_TARGETS = ("object_target", "parent_target", "toggle_target", "mrecep_target")
_GOAL = re.compile(r"Your task is to: ([^\"\n]+)\"")
_SOLVABLE = re.compile(rb'"solvable":\s*true')


@dataclass(frozen=True, slots=True)
class Household:
    """One game as data."""

    problem: str  # PDDL: the things, where they are, the goal
    goal: str  # "put a hot potato in countertop"
    task_type: str  # one of TASK_TYPES
    targets: dict[str, str]  # what the expert looks for: object_target, parent_target, ...; lower case


def game_file(task: Task) -> Path:
    """The `game.tw-pddl` that a task selects: the n-th of its split for the n-th seed of its fold.

    ConfigError if the split has no such game, or the data is missing.
    """
    kind = _kind(task.params)
    files = game_files(task.game, kind, task.fold)
    place = task.seed - fold_range(task.fold).start
    if place >= len(files):
        first = fold_range(task.fold).start
        raise ConfigError(
            f"seed {task.seed}: {SPLITS[task.fold]} has {len(files)} games" + (f" of task {kind}" if kind else ""),
            hint=f"seeds of {task.fold!r} are {first} to {first + len(files) - 1} here",
        )
    return files[place]


def game_count(game: str, params: str, fold: str) -> int:
    """How many games the data has for a fold; no more than the fold has seeds."""
    return min(len(game_files(game, _kind(params), fold)), len(fold_range(fold)))


def game_files(game: str, kind: int, fold: str) -> tuple[Path, ...]:
    """The games of a fold, of one type of task or (0) all, in an order that is the same wherever the data is.

    The order is that of a hash of the path inside the split: by name, all of a type would come together. ConfigError
    if games are missing.
    """
    folder, where = _data_folder(game)
    split = SPLITS[fold]
    files = _games_of(folder, split, where)
    wanted = OFFICIAL[split]
    if ":" not in game and len(files) != wanted:
        raise ConfigError(
            f"{split} of ALFWorld's data in {folder} ({where}) has {len(files)} games, not {wanted}: it is incomplete",
            hint=f"{_download(folder)}; to play what is there: game.name=alfworld:{folder}",
        )
    if not kind:
        return files
    return tuple(file for file in files if _task_type(file.parents[1].name) == TASK_TYPES[kind - 1])


def load(file: Path) -> Household:
    """Read a game. The texts that it holds for the engine are not read: see docs/decisions.md."""
    try:
        made, trajectory = orjson.loads(file.read_bytes()), orjson.loads(file.with_name("traj_data.json").read_bytes())
        goal = _GOAL.search(made["grammar"])
        params = trajectory["pddl_params"]
        if goal is None:
            raise ValueError("it names no task")
        return Household(
            problem=str(made["pddl_problem"]),
            goal=goal[1].strip().rstrip("."),
            task_type=str(trajectory["task_type"]),
            targets={key: str(params.get(key) or "").lower() for key in _TARGETS},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GameError(
            f"{file} is not an ALFWorld game: {type(error).__name__}: {error}", hint=_download(file.parents[3])
        ) from error


def _kind(params: str) -> int:
    from grue.games.params import values

    return values("alfworld", params)["task"]


def _data_folder(game: str) -> tuple[Path, str]:
    """(the folder with the data, where its name came from)."""
    named, given = game.partition(":")[2], os.environ.get("ALFWORLD_DATA")
    if named:
        return own_path(game), "named after the colon"
    return (Path(given), "ALFWORLD_DATA") if given else (Path("~/.cache/alfworld").expanduser(), "the default")


@cache
def _games_of(folder: Path, split: str, where: str) -> tuple[Path, ...]:
    """The games of a split that the engine supports, as its own loader chooses them."""
    roots = [folder, *sorted(folder.glob("json_*"), reverse=True)]
    below = next((root / split for root in roots if (root / split).is_dir()), None)
    found = []
    for file in below.rglob("game.tw-pddl") if below is not None else ():
        name = file.relative_to(below or folder).as_posix()
        if "movable" in name or "Sliced" in name or _task_type(file.parents[1].name) not in TASK_TYPES:
            continue
        if file.with_name("traj_data.json").is_file() and _SOLVABLE.search(file.read_bytes()):
            found.append((sha256(name.encode()).digest(), file))
    if not found:
        missing = f"no folder {split} or json_*/{split}" if below is None else f"no games in {below}"
        raise ConfigError(
            f"ALFWorld's games were not found: {missing} in {folder} ({where})",
            hint=f"{_download(folder)}; or name another folder: ALFWORLD_DATA=FOLDER, game.name=alfworld:FOLDER",
        )
    return tuple(file for _, file in sorted(found))


def _task_type(folder: str) -> str:
    """The part before the first dash: pick_heat_then_place_in_recep-Egg-None-Fridge-13 is a folder of the data."""
    return folder.partition("-")[0]


def _download(folder: Path) -> str:
    return f"get them with: alfworld-download --data-dir {quote(str(folder))}"
