"""What imitation learns from: recorded games as a policy would have played them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import lru_cache

from grue.errors import DataError, GameError, ModelError
from grue.games.training import renamer
from grue.policy.policy import make_policy
from grue.prompts.tokens import Encoder
from grue.rollout.pack import Sample, samples, tokenise
from grue.stages.session import Session
from grue.storage import episodes
from grue.types import Episode


def check_demonstrations(session: Session) -> None:
    """DataError if there are none, or not all that were recorded. With demos.games=0 there are to be none."""
    if not session.config.demos.games:
        return
    file = session.run.episodes("demos")
    if not file.exists():
        raise DataError(f"there are no demonstrations in {file}", hint=f"record them: grue demos {session.run.out}")
    if session.run.is_broken_off("demos"):
        raise DataError(f"the demonstrations in {file} are incomplete", hint=f"go on with grue demos {session.run.out}")
    recorded = session.run.facts("demos").get("episodes")
    for kind, times in (("demos", 1), ("replays", session.config.demos.replays)):
        file = session.run.episodes(kind)
        there = sum(1 for _ in episodes.read(file, missing_ok=True))
        if recorded is None or there == recorded * times:
            continue
        raise DataError(
            f"{file} holds {there} of the {recorded * times} games that were recorded",
            hint=f"delete it, then record the same games again: grue demos {session.run.out}",
        )


def lessons(session: Session, names: str, rename: float, *kinds: str, corrected: bool = False) -> list[Sample]:
    """The games in some `kinds` of the run's files; with `corrected`, as the teacher that watched would have played."""
    read = (episode for kind in kinds for episode in episodes.read(session.run.episodes(kind), missing_ok=True))
    return lessons_of(session, read, names, rename, corrected=corrected)


def each_pass(made: Callable[[int], list[Sample]], rename: float) -> Callable[[int], list[Sample]]:
    """`made` by the number of a pass or round, one kept at a time; without renaming all read the first."""
    kept = lru_cache(maxsize=1)(made)
    return lambda number: kept(number if rename else 0)


def lessons_of(
    session: Session, played: Iterable[Episode], names: str, rename: float, *, corrected: bool = False
) -> list[Sample]:
    """The games that were `played`, as the session's policy reads them.

    In a share `rename` of the games things are renamed, with names drawn from the seed `names`. A game that the policy
    could not play, since a text exceeds the context or two actions cannot be told apart, is left out with a warning.
    ModelError if all are such.
    """
    rng = random.Random(names)
    policy, context = make_policy(session.model, session.encoder), session.config.model.context
    longest, unreadable, first = 0, 0, None
    other_names = renamer(session.config.game.name, session.config.game.params) if rename else None
    unnamed, no_name = 0, None
    packed = []
    for episode in played:
        if other_names is not None and rng.random() < rename:
            try:
                episode = other_names(episode, rng)
            except GameError as error:  # a game of another package may fail at any draw
                unnamed, no_name = unnamed + 1, no_name or error
        if episode.failed:  # it may have failed because it is one of those
            continue
        if session.config.policy.kind == "write":
            longest = max([longest, *(_line(session.encoder, turn.action) for turn in episode.turns)])
        try:
            found = tokenise(episode, policy, context, advised=corrected)
        except ModelError as error:
            unreadable, first = unreadable + 1, first or error
            continue
        packed += [sample.without_texts() for sample in samples([found])]
    if first is not None:
        if not packed:
            raise first
        session.say.warn(f"{unreadable} games to learn from are left out, the first because {first.message}")
    if no_name is not None:
        session.say.warn(f"{unnamed} games to learn from keep their names, the first because {no_name.message}")
    if longest > session.config.policy.reply_tokens:
        session.say.warn(
            f"an action of the teacher has {longest} tokens, but the policy may write only "
            f"policy.reply_tokens={session.config.policy.reply_tokens}"
        )
    return packed


def _line(encoder: Encoder, action: str) -> int:
    """How many tokens a policy writes to do `action`, with the one that ends the line."""
    ids = encoder.action(action)
    return next((count for count, token in enumerate(ids, 1) if encoder.ends(token)), len(ids))
