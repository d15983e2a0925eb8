"""Lists of tasks, with train and dev kept clear of what later folds measure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from grue.errors import ConfigError, whole_number
from grue.games.base import PROTECTED, check_seed, fold_range
from grue.games.copies import Fold, has_copies, is_copied, open_reader
from grue.games.known import is_native
from grue.games.native import native_seeds
from grue.games.params import Params, canonical
from grue.games.plugins import is_plugin, plugin_params
from grue.games.textworld.folder import names_folder
from grue.games.twx.jvm import JvmSettings
from grue.games.twx.recipes import is_shared, preparations
from grue.games.twx.unwinnable import is_unwinnable
from grue.types import Task


def tasks(
    game: str,
    params: Params = "",
    fold: str = "train",
    limit: int = 16,
    count: int | None = None,
    start: int = 0,
    *,
    java: str | None = None,
    read_timeout_s: float = 20.0,
) -> list[Task]:
    """`count` tasks of `fold`, in the order of their seeds, from the `start`-th seed of the fold on.

    count=None means all that remain. The rule that keeps the folds apart: layout seeds are disjoint by
    definition; recipes of cookingworld are not quite (about ten exist in more than one fold, all of them
    made of spices that need no preparation), so tasks of train and pretrain whose recipe could occur in dev
    or test are skipped, and tasks of dev whose recipe could occur in test. So are tasks of train and dev that
    are the same game as one of a later fold, where that happens (`copies`), and those that nobody can win. The
    test fold is never thinned: a task of it is never left out.

    Raises ConfigError when fewer than `count` tasks are left, or none.
    """
    seeds = fold_range(fold)
    usual = "for example limit=16, count=24"
    limit, start = whole_number("limit", limit, hint=usual), whole_number("start", start, hint=usual)
    count = None if count is None else whole_number("count", count, hint=usual)
    if start < 0 or (count is not None and count < 0):
        raise ConfigError(f"start={start} and count={count} must not be negative")
    if count is None and fold == "pretrain":
        raise ConfigError("the pretrain fold has a million games", hint="say how many with count=")
    known = canonical_params(game, params)
    if is_native(game):
        seeds = native_seeds(game, known, fold)
    every: Iterator[Task] = (Task(game, known, fold, seed, limit) for seed in seeds[start:])
    if PROTECTED[fold] and game == "cookingworld":
        every = _not_shared(every, fold, JvmSettings(java, read_timeout_s))
    elif fold in ("train", "dev") and has_copies(game, known):  # not pretrain: the base has read its games as they are
        every = _not_copied(every, game, known, fold, JvmSettings(java, read_timeout_s))
    chosen = list(islice((task for task in every if not is_unwinnable(task)), count))
    if chosen:
        check_seed(chosen[0])
    if not chosen and count != 0 and start == 0 and has_copies(game, known):
        others = " or ".join(PROTECTED[fold])
        with_these = "" if names_folder(game) else f" with {known or 'these parameters'}"
        raise ConfigError(
            f"{game}{with_these}: every game of {fold} is also one of {others}",
            hint="put other games there" if names_folder(game) else "choose parameters that allow more games",
        )
    if count is None and start > 0 and not chosen:
        raise ConfigError(f"fold {fold!r} of {game} has no tasks from start={start} on", hint="lower start")
    if count is not None and len(chosen) < count:
        raise ConfigError(
            f"fold {fold!r} of {game} has {len(chosen)} tasks from start={start} on, fewer than count={count}",
            hint="lower count or start",
        )
    return chosen


def canonical_params(game: str, params: Params) -> str:
    """The one spelling of `params` that goes into a Task."""
    return plugin_params(game, params) if is_plugin(game) else canonical(game, params)


# What has been read of the folds whose games others must not repeat, by game, parameters and fold.
_read: dict[tuple[str, str, str], Fold] = {}


def _not_copied(every: Iterator[Task], game: str, params: str, fold: str, settings: JvmSettings) -> Iterator[Task]:
    with closing(open_reader(game, params, settings)) as reader:
        later = []
        for other in PROTECTED[fold]:
            known = (game, params, other)
            later.append(_read.get(known) or _read.setdefault(known, Fold(*known, reader)))
        yield from (task for task in every if not is_copied(task, later, reader))


def _not_shared(every: Iterator[Task], fold: str, settings: JvmSettings) -> Iterator[Task]:
    from grue.games.twx.game import TwxGame

    with closing(TwxGame("cookingworld", settings=settings)) as reader:
        yield from (task for task in every if not is_shared(preparations(reader.recipe(task)), fold))
