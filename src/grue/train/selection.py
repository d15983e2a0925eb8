"""The weights that a stage ends with: those that did best on the dev fold, greedy. DAgger and PPO choose alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grue.config import Config
from grue.games import Game
from grue.policy.policy import Policy
from grue.progress import Progress
from grue.storage import checkpoint
from grue.storage.checkpoint import Checkpoint
from grue.storage.run import Run
from grue.train.learner import Learner, load_weights
from grue.train.measures import UNMEASURED, dev_metrics, merit_of
from grue.types import Task


@dataclass(slots=True)
class Selection:
    """Measures on the dev fold what a stage has learnt, and keeps the weights that do best in its best checkpoint.

    `progress` is what the stage counts and stores with its checkpoints, with the best merit so far and when that was.
    """

    run: Run
    config: Config
    learner: Learner
    games: Sequence[Game]
    tasks: Sequence[Task]  # of the dev fold
    say: Progress
    stage: str
    rows: str  # under which measurements are logged
    unit: str  # what is counted: "iteration", "round"
    steps: int = 1  # by which the number of a checkpoint grows in one of them
    progress: dict[str, Any] = field(init=False)

    def resume(self, counters: dict[str, Any]) -> Checkpoint | None:
        """The last checkpoint if there is one, whose state the learner and `progress` then have; else `counters`."""
        folder = self.run.checkpoints(self.stage)
        path, place = checkpoint.to_resume(folder), checkpoint.best_valid(folder)
        stored = None if path is None else self.run.load(path)
        best = None if place is None else self.run.load(place)
        # nobody writes before all have read
        self.learner.processes.check_read(str(folder), stored.tensors["model"].values() if stored else ())
        if stored is None:
            self.run.rewind(self.stage, 0)
            self.run.rewind(self.rows, -1)  # the first measurement is number 0
            self.progress = counters | self._best(UNMEASURED, 0)
            return None
        self.learner.load_state(stored.tensors, stored.state)
        for rows in (self.stage, self.rows):
            self.run.rewind(rows, stored.step // self.steps)
        self.progress = stored.state["progress"]
        if best is not None and best.step > stored.step:
            # saved just before a kill, in place of the one before it. Keep its merit: the repeated iterations may
            # round differently and never reach it again
            merit = merit_of(best.state)
            self.progress |= self._best(merit, best.step // self.steps)
        if best is None and self.progress["best_merit"] > UNMEASURED:
            number = int(self.progress[f"best_{self.unit}"])
            self.say.warn(f"the best weights, of {self.unit} {number}, are gone: the best from here on count")
            self.progress |= self._best(UNMEASURED, 0)
        return stored

    def watch(self, number: int, policy: Policy) -> None:
        """Measure after `number` iterations or rounds; keep the weights where they are the best so far."""
        start = time.monotonic()
        row, words = dev_metrics(self.config, policy, self.games, self.tasks, self.learner.processes)
        self.run.log(self.rows, number, {**row, "seconds": time.monotonic() - start})
        self.say(f"{self.unit} {number}: {words}")
        merit = merit_of(row)
        if merit > self.progress["best_merit"]:
            self.progress |= self._best(merit, number)
            weights = {"model": self.learner.state()[0]["model"]}
            self.run.save(self.stage, number * self.steps, weights, row, best=True)

    def end(self) -> None:
        """Give the learner the best weights."""
        self.learner.processes.wait()  # the leader writes, and all read the same
        best = checkpoint.best_valid(self.run.checkpoints(self.stage))
        weights = {} if best is None else self.run.load(best).tensors["model"]
        self.learner.processes.check_read(str(best), weights.values())
        if weights:
            load_weights(self.learner.policy_model, weights)

    def _best(self, merit: float, number: int) -> dict[str, Any]:
        return {"best_merit": merit, f"best_{self.unit}": number}
