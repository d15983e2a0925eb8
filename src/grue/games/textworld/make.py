"""Generates TextWorld games (Côté et al. 2018) offline, into a cache folder from which they are reused.

The Inform 7 compiler is inside the `textworld` wheel. A game takes seconds to make and is then two files: SEED.z8,
which is played, and SEED.json, which the engine's own expert and action list need.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson

from grue.errors import GameError, first_line
from grue.games.params import values
from grue.types import Task

ATTEMPTS = 10  # seeds tried for one game: for some the generator finds no quest
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
_ABANDONED = 3600.0  # seconds after which a game in the making counts as abandoned
_ANOTHER = 10_000_000  # added to the seed per attempt; no fold has seeds this large
_CHALLENGES = {
    "textworld-coin": "tw-coin_collector",
    "textworld-treasure": "tw-treasure_hunter",
    "textworld-cooking": "tw-cooking",
}
# The cooking games have lists of foods and preparations for each split; the base model may know only those of train.
_SPLITS = {"train": "train", "pretrain": "train", "dev": "valid", "test": "test"}


def cache_folder() -> Path:
    """Where generated games are kept: $GRUE_CACHE, or grue below $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("GRUE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "grue"


def game_file(task: Task) -> Path:
    """The task's .z8 file with its .json beside it, generated if it is not in the cache yet (seconds).

    GameError when the generator cannot make a game with these parameters, or the cache cannot be written.
    """
    split = f"-{_SPLITS[task.fold]}" if task.game == "textworld-cooking" else ""
    settings = "-".join(f"{key}{value}" for key, value in values(task.game, task.params).items())
    folder = cache_folder() / f"textworld-{version('textworld')}" / f"{task.game}-{settings}{split}"
    story = folder / f"{task.seed}.z8"
    if not _is_whole(story):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as made_in:
                made = _generate(task, Path(made_in))
                # Two processes may make the same game at once: each moves complete files into place, the story last.
                made.with_suffix(".json").replace(story.with_suffix(".json"))
                made.replace(story)
        except OSError as error:
            raise GameError(
                f"TextWorld's games cannot be kept in {folder}: {error.strerror or error}",
                hint="set GRUE_CACHE to a folder that can be written",
            ) from error
    return story


def _is_whole(story: Path) -> bool:
    """Are both files there, the story as long as its header says? A full disk may have cut them."""
    with suppress(OSError), story.open("rb") as game, story.with_suffix(".json").open("rb") as about:
        length = 8 * int.from_bytes(game.read(28)[26:], "big")
        about.seek(-1, os.SEEK_END)
        return story.stat().st_size >= length > 0 and about.read() == b"}"
    return False


def coin_map(task: Task) -> frozenset[tuple[str, ...]]:
    """What the seed of a textworld-coin task draws: room names and connections, where the player and the coin are.

    To write its goal the generator compiles the game and plays it through. That takes seconds and draws nothing, so it
    is left out here, and some ten milliseconds remain.
    """
    from textworld.generator import GameMaker

    with patch.object(GameMaker, "set_walkthrough"), _rules_read_once():
        made = _make(task, _options(task.seed))
    names = {key: info.name or key for key, info in made.infos.items()}
    return frozenset((fact.name, *(names[of.name] for of in fact.arguments)) for fact in made.world.facts)


@contextmanager
def _rules_read_once() -> Iterator[None]:
    """The generator parses the rules of a family anew for each game, up to a third of the time that one takes."""
    from textworld.generator.data import KnowledgeBase

    with patch.object(KnowledgeBase, "load", _rules()):
        yield


@cache
def _rules() -> Any:
    from textworld.generator.data import KnowledgeBase

    return cache(KnowledgeBase.load)


def _options(seed: int) -> Any:
    """What the generator is given: the seed, also for the draws that it makes without its options."""
    import textworld

    textworld.g_rng.set_seed(seed)
    options = textworld.GameOptions()
    options.seeds = seed
    return options


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind while making a game."""
    for left in folder.glob(".making-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)


def _generate(task: Task, folder: Path) -> Path:
    """A game made in `folder`: the path of its story file."""
    from textworld.generator import compile_game

    problems = []
    for attempt in range(ATTEMPTS):
        options = _options(task.seed + attempt * _ANOTHER)
        options.path = str(folder / f"{attempt}.z8")
        options.force_recompile = True
        try:
            with warnings.catch_warnings(), _rules_read_once():
                warnings.simplefilter("ignore")  # from its libraries, about each other
                story = Path(compile_game(_make(task, options), options))
                if _understands(story):
                    return story
            problems.append("its solution is not understood by the game")
        except Exception as error:  # the generator raises many kinds for a seed that does not work out
            if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
                raise
            problems.append(f"{type(error).__name__}: {first_line(error)}")
    raise GameError(
        f"TextWorld made no {task.game} with {task.params or 'its defaults'} for seed {task.seed}: {problems[-1]}",
        hint="more rooms and objects make room for longer quests",
    )


def walkthrough(story: Path) -> list[str]:
    """The solution that the generator wrote down."""
    made = orjson.loads(story.with_suffix(".json").read_bytes())
    return [str(action) for action in made.get("metadata", {}).get("walkthrough") or ()]


def _understands(story: Path) -> bool:
    """Whether a game can be won with the words that it lists.

    Next to a "type 0 locker" a plain "locker" has no words of its own: "take key from locker" only gets a question.
    """
    import textworld

    env = textworld.start(str(story), textworld.EnvInfos(won=True, policy_commands=True))
    try:
        state = env.reset()
        for action in state["policy_commands"] or walkthrough(story):
            state, _, _ = env.step(action)
        return bool(state["won"])
    finally:
        env.close()


def _make(task: Task, options: Any) -> Any:
    """The generator's game object for `task`."""
    import textworld
    from textworld.challenges import CHALLENGES

    settings: dict[str, Any] = dict(values(task.game, task.params))
    if task.game == "textworld":
        options.nb_rooms = settings["rooms"]
        options.nb_objects = settings["objects"]
        options.quest_length = settings["questLength"]
        options.quest_breadth = settings["questBreadth"]
        return textworld.generator.make_game(options)
    if task.game == "textworld-cooking":
        settings |= {key: bool(settings[key]) for key in ("open", "cook", "cut", "drop")}
        settings |= {"split": _SPLITS[task.fold], "recipe_seed": 0}
    _, make, _ = CHALLENGES[_CHALLENGES[task.game]]
    return make(settings, options)
