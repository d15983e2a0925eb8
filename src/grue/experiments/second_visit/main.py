"""`grue experiment second-visit RUN`: first visits, trainings with and without notes about them, second visits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import orjson

from grue.config import Config
from grue.errors import ConfigError, DataError, needs
from grue.evaluate.evaluate import evaluate
from grue.evaluate.summary import with_problems
from grue.experiments.cells import Cell, Cells, digest, from_episodes
from grue.experiments.examined import examined_config
from grue.experiments.second_visit.players import Follower, Training, telling, training_config
from grue.experiments.second_visit.settings import Settings
from grue.experiments.second_visit.table import by_note, difference, markdown, rate
from grue.experiments.second_visit.visits import OF_ANOTHER, first_visits, lessons, notes_told
from grue.games import Game
from grue.games.play import play
from grue.games.training import check_training
from grue.hardware import hardware, versions
from grue.models.learned import copy_of_learned, load_weights
from grue.policy.decision import Decoding
from grue.progress import Progress
from grue.retrieval.memory import Memories, remembered
from grue.stages.session import Session, open_session
from grue.storage.files import explained, lock_folder, write_atomic
from grue.storage.run import Run
from grue.storage.settled import used_settings
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
    config = examined_config(folder, size.policy)
    needs("bm25s", feature="an experiment with a memory")
    check_training(config.game.name, config.game.params, config.ppo.rename)
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


@dataclass
class _Second:
    """The run whose policy comes a second time, with its weights in the session's model."""

    session: Session
    size: Settings
    out: Path
    start: dict[str, Any] = field(init=False)  # weights of the policy
    configs: list[Config] = field(init=False)  # of the trainings
    measured: list[Task] = field(init=False)
    train: list[Episode] = field(init=False)  # first visits to train games
    first: list[Episode] = field(init=False)  # ... and to those that are measured
    memories: Memories = field(init=False)  # of the games that are trained on, and of the dev games that choose
    of_measured: Memories = field(init=False)

    def __post_init__(self) -> None:
        self.start = copy_of_learned(self.session.model)
        self.configs = [training_config(self.session.config, self.size, seed) for seed in range(self.size.seeds)]
        self.measured = self.session.tasks(self.size.fold, self.size.games)
        self._cells = Cells(self.out / "cells")

    def measure(self) -> dict[str, Any]:
        """Everything that is not on file yet."""
        session, size = self.session, self.size
        self._visit()
        taught = self._lessons()
        rows = self._rows(taught)
        (posed,) = rows[BEFORE, DECODINGS[0]]  # its games look as they are
        told = self._told()
        differences = [
            difference(
                NOTES, b, how, rows[NOTES, how], rows[b, "scripted" if b == FOLLOW else how], posed, size.bootstrap
            )
            for how in DECODINGS
            for b in (CONTROL, OTHER, FOLLOW, BEFORE)
        ]
        return {
            "settings": size.model_dump(),
            "limit": session.config.game.limit,
            "visit_limit": self._visit_limit,
            "lessons": len(taught),
            "first_visits": {
                "games": len(self.first),
                "success": round(sum(visit.won for visit in self.first) / len(self.first), 6),
                "found": round(sum(kind != OF_ANOTHER for kind in told.values()) / len(told), 6),
            },
            "rows": [rate(name, how, cells, posed) for (name, how), cells in rows.items()],
            "by_note": by_note(told, {name: cells for (name, how), cells in rows.items() if how != "sampled"}, posed),
            "differences": differences,
            "hardware": hardware(),
            "versions": versions(),
        }

    @property
    def _visit_limit(self) -> int:
        return self.size.visit_limit or int(2.5 * self.session.config.game.limit)

    @cached_property  # hashing weights takes a while
    def _made(self) -> dict[str, Any]:
        """What decides how the policy plays, and first visits go."""
        config = self.session.config
        used = {
            key: value
            for key, value in used_settings(config).items()
            if key == "seed" or key.startswith(("game.", "model.", "policy."))
        }
        played = {"weights": digest(self.start), "visit_limit": self._visit_limit}
        # a cell names its game by this
        return {"game": {"name": config.game.name}, "used": used, "temperature": config.sampling_temperature, **played}

    @property
    def _made_with_notes(self) -> dict[str, Any]:
        """What decides which notes a measured game is told."""
        size, seeds = self.size, [task.seed for task in self.measured]
        return self._made | {"fold": size.fold, "seeds": seeds, "places": size.places, "notes": size.notes}

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
        found = lessons(game, self.train, limit, session.interrupt)
        if not found:
            raise DataError(
                f"no first visit to a train game shows a way to win within {limit} steps",
                hint="lessons=0 trains without such games; a longer visit_limit may find some",
            )
        session.say(f"{len(found)} lessons of {len(self.train)} first visits to train games")
        return found

    def _told(self) -> dict[int, str]:
        """What the notes of the measured games say."""
        (game,), limit = self.session.games(1), self.session.config.game.limit
        return notes_told(game, self.first, self.of_measured, self.size.notes, limit, self.session.interrupt)

    def _rows(self, taught: Sequence[Episode]) -> dict[tuple[str, str], list[Cell]]:
        """(who comes a second time, decoding) -> the games of each training."""
        rows: dict[tuple[str, str], list[Cell]] = {}
        rows[FOLLOW, "scripted"] = [self._cells.get("follow", self._made_with_notes, self._follow)]
        for how in DECODINGS:
            rows[BEFORE, how] = [self._cell("before", how, self.start)]
        with_notes = [remembered(lesson, self.memories, self.size.notes) for lesson in taught]
        for config in self.configs:
            weights = self._training(config, taught, None).train_or_load()
            for how in DECODINGS:
                rows.setdefault((CONTROL, how), []).append(self._cell("control", how, weights))
            weights = self._training(config, with_notes, self.memories).train_or_load()
            for how in DECODINGS:
                for name, own in ((NOTES, True), (OTHER, False)):
                    seats = partial(telling, memories=self.of_measured, notes=self.size.notes, own=own)
                    cell = self._cell("notes" if own else "other-notes", how, weights, seats)
                    rows.setdefault((name, how), []).append(cell)
        return rows

    def _training(self, config: Config, taught: Sequence[Episode], memories: Memories | None) -> Training:
        """A training in a folder that is named by all that decides how it goes."""
        size = self.size
        made: dict[str, Any] = {"used": used_settings(config), "start": self._made["weights"]}
        made |= {"tasks": [visit.task.seed for visit in self.train]}
        if size.lessons:
            made |= {"visit_limit": self._visit_limit}  # which decides the lessons
        if memories is not None:
            made |= {"visit_limit": self._visit_limit, "places": size.places, "notes": size.notes}
        name = f"{'control' if memories is None else 'notes'}-{config.seed}"
        place = self._cells.path(name, made).with_suffix("")
        tasks = [replace(visit.task, limit=config.game.limit) for visit in self.train]
        return Training(self.session, config, size.notes, place, self.start, tasks, taught, memories)

    def _cell(self, name: str, how: str, weights: dict[str, Any], seats: Seats | None = None) -> Cell:
        """The measured games played with `weights`, in `seats` made of games."""
        session = self.session
        session.interrupt.check()

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

        made = self._made_with_notes | {"player": digest(weights), "decoding": how, "cell": name}
        return self._cells.get(f"{name}-{how}", made, played)

    def _follow(self) -> Cell:
        (game,) = self.session.games(1)
        player = Follower(self.of_measured)
        played = []
        for task in self.measured:
            self.session.interrupt.check()
            played.append(play(game, task, player))
        return from_episodes("follow", self._named(played))

    def _named(self, played: Sequence[Episode]) -> Sequence[Episode]:
        return with_problems(played, self.session.problems(self.measured))
