"""First visits: played once with ample steps, kept in a file, and turned into memories and lessons."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grue.errors import DataError, GameError
from grue.evaluate.failures import failures_of
from grue.games import Game, what_checks
from grue.games.omission import replay_with_omissions
from grue.interrupt import Interrupt
from grue.policy.decision import Decoding
from grue.retrieval.memory import Memories, direct
from grue.rollout.collect import collect
from grue.storage import episodes
from grue.storage.files import explained
from grue.types import Episode, Outcome, Task

if TYPE_CHECKING:
    from grue.stages.session import Session


RIGHT = "shows a way to win in time"
OF_THE_GAME = "is of this game, but shows none"
OF_ANOTHER = "is of another game"
KINDS = (RIGHT, OF_THE_GAME, OF_ANOTHER)


def first_visits(session: Session, file: Path, fold: str, tasks: Sequence[Task], limit: int) -> list[Episode]:
    """One sampled game of the session's policy for each of `tasks`, with `limit` steps; from `file` if it is there."""
    session.interrupt.check()
    if file.exists():
        known = list(episodes.read(file))
        if [visit.task.seed for visit in known] == [task.seed for task in tasks]:
            return known
        raise DataError(f"{file} holds other games than these", hint="delete it: they are played again")
    config = session.config
    with session.say.bar(f"first visits, {fold}", len(tasks), unit="games") as bar:
        played = collect(
            session.policy(),
            session.games(min(config.eval.slots, len(tasks))),
            [replace(task, limit=limit) for task in tasks],
            Decoding(temperature=config.sampling_temperature),
            seed=f"{config.seed}/first visit/{fold}",
            context=config.model.context,
            player="first-visit",
            on_episode=lambda _: bar.advance(),
        )
    found = failures_of(played)
    if found.all:
        raise DataError(f"all {found.games} first visits failed: {found.error}", hint=what_checks(config.game.name))
    found.warn(f"first visits, {fold}", session.say)
    with explained(f"write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")  # a file that is there is whole
        part.unlink(missing_ok=True)
        episodes.append(part, [replace(visit, segments=()) for visit in played])
        part.replace(file)
    return list(episodes.read(file))


def lessons(game: Game, visits: Iterable[Episode], limit: int, interrupt: Interrupt | None = None) -> list[Episode]:
    """The way of each visit that won, gone again without its detours: only those that win within `limit` steps."""
    found = []
    for visit in visits:
        if interrupt is not None:
            interrupt.check()
        if not visit.won:
            continue
        way = replace(visit, task=replace(visit.task, limit=limit), turns=tuple(direct(visit.turns)))
        again = replay_with_omissions(game, way, 0.0, random.Random(0))
        if again.won and again.steps <= limit:
            found.append(replace(again, player="lesson", task=way.task))
    return found


def notes_told(
    game: Game,
    visits: Iterable[Episode],
    memories: Memories,
    notes: int,
    limit: int,
    interrupt: Interrupt | None = None,
) -> dict[int, str]:
    """Seed of a visited game -> what its player is told: one of KINDS. Actions of notes of the game are tried out."""
    found = {}
    for visit in visits:
        if interrupt is not None:
            interrupt.check()
        begins = visit.first.text if visit.first is not None else ""
        told = memories.told(visit.task, begins, notes, own=True)
        mine = next((note for note in told if note.task == visit.task), None)
        task = replace(visit.task, limit=limit)
        found[visit.task.seed] = (
            OF_ANOTHER if mine is None else RIGHT if _wins(game, task, mine.actions) else OF_THE_GAME
        )
    return found


def _wins(game: Game, task: Task, actions: Iterable[str]) -> bool:
    """Do these actions win the task?"""
    outcome = None
    with suppress(GameError):
        game.reset(task)
        for action in actions:
            if outcome is None:
                _, _, outcome = game.step(action)
    return outcome is Outcome.WON
