"""The weights that a stage ends with: those that did best on the dev fold, greedy. DAgger and PPO both choose so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from grue.errors import CheckpointError
from grue.models.learned import load_weights
from grue.names import DEV_ROWS
from grue.policy.policy import Policy
from grue.storage import checkpoint
from grue.storage.checkpoint import Checkpoint
from grue.storage.contents import UNMEASURED, read_metrics
from grue.train.context import StageContext
from grue.train.measures import dev_metrics, merit_of


@dataclass(slots=True)
class Selection:
    """Measures on the dev fold what a stage has learnt, and keeps the weights that do best in its best checkpoint.

    `progress` is what the stage counts and stores with its checkpoints, with the best merit so far and when that was.
    """

    context: StageContext
    stage: str
    unit: str  # what is counted: "iteration", "round"
    steps: int = 1  # how much the number of a checkpoint grows in one of them
    progress: dict[str, Any] = field(init=False)

    @property
    def rows(self) -> str:
        """Under which measurements are logged."""
        return DEV_ROWS[self.stage]

    def resume(self, counters: dict[str, Any]) -> Checkpoint | None:
        """Load the last checkpoint, if any, into the learner and `progress` and return it; else use `counters`."""
        run, learner = self.context.run, self.context.learner
        folder = run.checkpoints(self.stage)
        path, place = checkpoint.to_resume(folder), checkpoint.best_valid(folder)
        stored = None if path is None else run.load(path)
        best = None if place is None else run.load(place)
        # no process writes before all have read
        read = [tensor for found in (stored, best) if found is not None for tensor in found.tensors["model"].values()]
        self.context.processes.check_read(str(folder), read)
        if stored is None:
            run.rewind(self.stage, 0)
            run.rewind(self.rows, -1)  # the first measurement is number 0
            self.progress = counters | self._best(UNMEASURED, 0)
            return None
        if "progress" not in stored.state:
            raise CheckpointError(
                f"{path} was not saved by grue's own {self.stage}, which cannot go on with it",
                hint="go on with the program that began it, or begin another run",
            )
        learner.load_state(stored.tensors, stored.state)
        for rows in (self.stage, self.rows):
            run.rewind(rows, stored.step // self.steps)
        self.progress = stored.state["progress"]
        if best is not None and best.step > stored.step:
            # saved just before a kill, in place of the one before it. Keep its merit: the repeated iterations may
            # round differently and never reach it again
            merit = merit_of(best.state)
            self.progress |= self._best(merit, best.step // self.steps)
        if best is None and self.progress["best_merit"] > UNMEASURED:
            number = int(self.progress[f"best_{self.unit}"])
            self.context.say.warn(
                f"the best weights, of {self.unit} {number}, are gone: the best from here on will count"
            )
            self.progress |= self._best(UNMEASURED, 0)
        return stored

    def watch(self, number: int, policy: Policy) -> None:
        """Measure after `number` iterations or rounds; keep the weights where none before were better."""
        start, context = time.monotonic(), self.context
        row, words = dev_metrics(
            context.config, policy, context.games, context.dev_tasks, context.processes, context.dev_problems
        )
        context.run.log(self.rows, number, {**row, "seconds": time.monotonic() - start})
        context.say(f"{self.unit} {number}: {words}")
        merit = merit_of(row)
        if merit >= self.progress["best_merit"]:  # of equals the latest, which have learnt from more games
            self.progress |= self._best(merit, number)
            weights = {"model": context.learner.state()[0]["model"]}
            context.run.save(self.stage, number * self.steps, weights, row, best=True)

    def end(self) -> None:
        """Give the learner the best weights, and say which these are."""
        run, processes = self.context.run, self.context.processes
        processes.wait()  # the leader writes, and all read the same
        path = checkpoint.best_valid(run.checkpoints(self.stage))
        best = None if path is None else run.load(path)
        weights = {} if best is None else best.tensors["model"]
        processes.check_read(str(path), weights.values())
        if best is None:
            return
        load_weights(self.context.learner.policy_model, weights)
        number = best.step // self.steps
        which = f"{self.unit} {number}" if number else f"{self.unit} 0, before the first update"
        first = next(iter(read_metrics(run.out, self.rows)), None)
        if number and first is not None and merit_of(first) == self.progress["best_merit"]:
            which += f", no better than {self.unit} {first['step']}"  # of equals the latest is kept
        self.context.say(f"best on dev games and kept: the weights of {which}")

    def _best(self, merit: float, number: int) -> dict[str, Any]:
        return {"best_merit": merit, f"best_{self.unit}": number}
