"""`grue experiment second-visit RUN`: first visits, trainings with and without notes about them, second visits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from grue.config import Config
from grue.errors import ConfigError, DataError, needs
from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import with_problems
from grue.experiments.cells import Cell, Cells, digest, from_episodes
from grue.experiments.second_visit.players import Follower, Training, told
from grue.experiments.second_visit.settings import Settings
from grue.experiments.second_visit.table import difference, markdown, rate
from grue.experiments.second_visit.visits import first_visits, lessons, share_found
from grue.games import Game
from grue.games.play import play
from grue.hardware import hardware, versions
from grue.models.learned import copy_of_learned, load_weights
from grue.policy.decision import Decoding
from grue.progress import Progress
from grue.retrieval.memory import Memories
from grue.stages.session import Session, open_session
from grue.storage.contents import read_run_config
from grue.storage.files import explained, lock_folder, write_atomic
from grue.storage.run import Run
from grue.types import Episode, Task

Seats = Callable[[Sequence[Game]], Sequence[Game]]

DECODINGS = ("greedy", "sampled")
# who comes a second time
BEFORE, FOLLOW, CONTROL = "the run's policy, no note", "follows the note, learns nothing", "trained on, no note"
NOTES, OTHER = "trained with notes", "the same, a note of another game"


def run(folder: Path, size: Settings, *, out: Path | None, say: Progress) -> dict[str, Any]:
    """Measure what notes are worth to the policy of a run. Returns the result, which is also written to `out`.

    What is on file there is not played or trained again, so the same command goes on where it stopped.
    """
    config = _examined(folder, size.policy)
    needs("bm25s", feature="an experiment with a memory")
    out = out or folder / "experiments" / "second-visit"
    with explained(f"open {out}", ConfigError):
        lock_folder(out)
    with open_session(Run(folder, config, leads=False), config, say) as session:
        session.load(size.policy)
        result = _Second(session, size, out).measure()
    result = {"experiment": "second-visit", "run": folder.name, **result}
    for name, data in (
        ("second-visit.json", orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)),
        ("second-visit.md", markdown(result).encode()),
    ):
        with explained(f"write {out / name}"):
            write_atomic(out / name, data)
    say(markdown(result))
    say(f"table: {out / 'second-visit.md'}")
    return result


def _examined(folder: Path, policy: str) -> Config:
    """The configuration of a run. ConfigError if it does not train `policy`."""
    config = read_run_config(folder)
    left = ["base", *(stage for stage, length in config.lengths.items() if length)]
    if policy not in left:
        raise ConfigError(
            f"{folder} has no {policy} weights: its settings skip that stage",
            hint=f"policy={' or policy='.join(left)}",
        )
    return config


@dataclass
class _Second:
    """The run whose policy comes a second time, with its weights in the session's model."""

    session: Session
    size: Settings
    out: Path
    start: dict[str, Any] = field(init=False)  # weights of the policy
    measured: list[Task] = field(init=False)
    train: list[Episode] = field(init=False)  # first visits to train games
    first: list[Episode] = field(init=False)  # ... and to those that are measured
    memories: Memories = field(init=False)  # of the games that are trained on, and of the dev games that choose
    of_measured: Memories = field(init=False)

    def __post_init__(self) -> None:
        self.start = copy_of_learned(self.session.model)
        self.measured = self.session.tasks(self.size.fold, self.size.games)
        self._cells = Cells(self.out / "cells")

    def measure(self) -> dict[str, Any]:
        """Everything that is not on file yet."""
        session, size = self.session, self.size
        self._visit()
        taught = self._lessons()
        rows = self._rows(taught)
        differences = [
            difference(a, b, how, rows[a, how], rows[b, "scripted" if b == FOLLOW else how], size.bootstrap)
            for how in DECODINGS
            for a, b in ((NOTES, CONTROL), (NOTES, OTHER), (NOTES, FOLLOW), (CONTROL, BEFORE))
        ]
        first = self.first
        return {
            "settings": size.model_dump(),
            "limit": session.config.game.limit,
            "visit_limit": self._visit_limit,
            "lessons": len(taught),
            "first_visits": {
                "games": len(first),
                "success": round(sum(visit.won for visit in first) / len(first), 6),
                "found": round(share_found(first, self.of_measured, size.notes), 6),
            },
            "rows": [rate(name, how, cells) for (name, how), cells in rows.items()],
            "differences": differences,
            "hardware": hardware(),
            "versions": versions(),
        }

    @property
    def _visit_limit(self) -> int:
        return self.size.visit_limit or int(2.5 * self.session.config.game.limit)

    @property
    def _made(self) -> dict[str, Any]:
        """What decides how first visits go."""
        config = self.session.config
        game = config.game.model_dump(exclude={"java"})
        return {"game": game, "seed": config.seed, "weights": digest(self.start), "visit_limit": self._visit_limit}

    @property
    def _told(self) -> dict[str, Any]:
        """What decides which notes a measured game is told."""
        size = self.size
        return self._made | {"fold": size.fold, "games": size.games, "places": size.places, "notes": size.notes}

    def _visit(self) -> None:
        """Make the first visits, and memories of them."""
        session, size = self.session, self.size
        self.train = self._first_visits("train", session.tasks("train", size.train_games or None))
        dev = self._first_visits("dev", session.tasks("dev", size.dev_games))
        self.memories = Memories([*self.train, *dev], size.places)
        # what is measured is visited by itself, so that trainings do not depend on it
        self.first = self._first_visits(size.fold, self.measured)
        self.of_measured = Memories(self.first, size.places)

    def _first_visits(self, fold: str, tasks: Sequence[Task]) -> list[Episode]:
        made = self._made | {"seeds": [task.seed for task in tasks]}
        file = self._cells.path(f"visits-{fold}", made).with_suffix(".jsonl")
        return first_visits(self.session, file, fold, tasks, self._visit_limit)

    def _lessons(self) -> list[Episode]:
        session, size, limit = self.session, self.size, self.session.config.game.limit
        if not size.lessons:
            return []
        (game,) = session.games(1)
        taught = lessons(game, self.train, limit, self.memories, size.notes)
        if not taught:
            raise DataError(
                f"no first visit to a train game shows a way to win within {limit} steps",
                hint="lessons=0 trains without such games; a longer visit_limit may find some",
            )
        session.say(f"{len(taught)} lessons of {len(self.train)} first visits to train games")
        return taught

    def _rows(self, taught: Sequence[Episode]) -> dict[tuple[str, str], list[Cell]]:
        """(who comes a second time, decoding) -> the games of each training."""
        rows: dict[tuple[str, str], list[Cell]] = {}
        rows[FOLLOW, "scripted"] = [self._cells.get("follow", self._told, self._follow)]
        for how in DECODINGS:
            rows[BEFORE, how] = [self._cell("before", how, self.start)]
        for seed in range(self.size.seeds):
            control = self._training(seed)
            notes = self._training(seed, memories=self.memories, taught=taught)
            weights = control.train_or_load()
            for how in DECODINGS:
                rows.setdefault((CONTROL, how), []).append(self._cell("control", how, weights))
            weights = notes.train_or_load()
            for how in DECODINGS:
                for name, own in ((NOTES, True), (OTHER, False)):
                    seats = partial(told, memories=self.of_measured, notes=self.size.notes, own=own)
                    cell = self._cell("notes" if own else "other-notes", how, weights, seats)
                    rows.setdefault((name, how), []).append(cell)
        return rows

    def _training(self, seed: int, **notes: Any) -> Training:
        """A training in a folder that is named by all that decides how it goes."""
        config = self.session.config
        sizes = self.size.model_dump(exclude={"fold", "games", "seeds", "bootstrap"})
        made = self._made | {"sizes": sizes, "ppo": config.ppo.model_dump(), "sft": config.sft.model_dump()}
        place = self._cells.path(f"{'notes' if notes else 'control'}-{seed}", made).with_suffix("")
        tasks = [replace(visit.task, limit=config.game.limit) for visit in self.train]
        return Training(self.session, self.size, place, seed, self.start, tasks, **notes)

    def _cell(self, name: str, how: str, weights: dict[str, Any], seats: Seats | None = None) -> Cell:
        """The measured games played with `weights`, in `seats` made of games."""
        session = self.session

        def played() -> Cell:
            load_weights(session.model, weights)
            games = session.games(min(session.config.eval.slots, len(self.measured)))
            found = evaluate(
                session.policy(),
                games if seats is None else seats(games),
                self.measured,
                Decoding(how == "greedy", session.config.sampling_temperature),
                context=session.config.model.context,
            )
            return from_episodes(name, self._named(found))

        made = self._told | {"player": digest(weights), "decoding": how, "cell": name}
        return self._cells.get(f"{name}-{how}", made, played)

    def _follow(self) -> Cell:
        (game,) = self.session.games(1)
        player = Follower(self.of_measured, self.size.notes)
        return from_episodes("follow", self._named([play(game, task, player) for task in self.measured]))

    def _named(self, played: Sequence[Episode]) -> Sequence[Episode]:
        return with_problems(played, self.session.problems(self.measured))
