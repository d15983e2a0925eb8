"""Who comes a second time: policies trained with notes and without, and a player that does what its note says."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grue.config import Config
from grue.errors import CheckpointError
from grue.experiments.second_visit.settings import Settings
from grue.games import Game
from grue.models.learned import copy_of_learned, load_weights
from grue.retrieval.memory import Memories, Remembering
from grue.rollout.pack import Sample
from grue.stages.demos import demo_steps
from grue.stages.lessons import each_pass, lessons_of
from grue.stages.trained import check_weights
from grue.storage.run import Run
from grue.train.ppo import train_ppo
from grue.train.sft import train_sft
from grue.types import Episode, Observation, Task

if TYPE_CHECKING:
    from torch import Tensor

    from grue.stages.session import Session

DEV_EVERY = 10  # iterations


def telling(games: Sequence[Game], memories: Memories | None, notes: int, *, own: bool = True) -> Sequence[Game]:
    """`games` that tell their notes, if there are memories. own=False: only notes about other games."""
    return games if memories is None else [Remembering(game, memories, notes, own=own) for game in games]


def training_config(config: Config, size: Settings, seed: int) -> Config:
    """The run's own settings at the sizes of the experiment."""
    data = config.model_dump()
    data["seed"] = seed
    data["dagger"]["rounds"] = 0
    if size.lessons:  # they take the place of demonstrations, without which SFT is refused
        data["demos"]["games"] = max(1, config.demos.games)
    data["sft"] |= {"epochs": size.lessons, "learning_rate": size.lesson_rate, "episodes_per_batch": 16}
    data["sft"]["rename"] = config.ppo.rename  # lessons are games like those that PPO plays
    data["ppo"] |= {
        "iterations": size.iterations,
        "episodes_per_iteration": size.episodes,
        "minibatches": min(config.ppo.minibatches, size.episodes),
        "plays_per_game": 1,
        "group_weight": 0.0,
        "warmup_iterations": min(config.ppo.warmup_iterations, size.iterations // 4),
        "hidden_state": False,
        "dev_every": min(DEV_EVERY, size.iterations),
        "dev_games": size.dev_games,
    }
    return Config.model_validate(data)


@dataclass(frozen=True, slots=True)
class Training:
    """One training on second visits in a run directory of its own, which goes on where it stopped.

    It learns from the `lessons` first, and its games tell their notes if there are `memories`.
    """

    session: Session
    config: Config
    notes: int
    out: Path
    start: Mapping[str, Tensor]
    tasks: Sequence[Task]  # train games, which were visited
    lessons: Sequence[Episode]
    memories: Memories | None = None

    def train_or_load(self) -> dict[str, Tensor]:
        """The weights that did best on dev games."""
        session, config = self.session, self.config
        what = "no note" if self.memories is None else "notes"
        session.interrupt.check()
        session.say(f"training {config.seed}, {what}: {self.out}", style="bold")
        run = Run(self.out, config)
        run.keep_prompt(session.encoder.fingerprint)
        if run.is_done("ppo"):
            self._load(run, "ppo")
            return copy_of_learned(session.model)
        load_weights(session.model, self.start)
        if self.lessons and not run.is_done("sft"):
            self._learn_lessons(run)
        elif self.lessons:
            self._load(run, "sft")
        cfg = config.ppo
        learner = session.learner(cfg, value_learning_rate=cfg.value_rate_in_loss)
        context = session.context(cfg, learner)
        context = replace(context, run=run, config=config, train_tasks=self.tasks)
        context = replace(context, games=telling(context.games, self.memories, self.notes))
        run.begin("ppo")
        facts = train_ppo(context, demo_steps(session) if cfg.game_baseline else None)
        session.tell_skipped(learner)
        run.done("ppo", **facts)
        return copy_of_learned(session.model)

    def _learn_lessons(self, run: Run) -> None:
        session, config = self.session, self.config
        run.begin("sft")
        cfg, names = config.sft, f"{config.seed}/lessons/names"

        def read(number: int) -> list[Sample]:
            return lessons_of(session, self.lessons, f"{names}/{number}", cfg.rename)

        learner = session.learner(cfg, dropout=True)
        count = train_sft(run, config, learner, each_pass(read, cfg.rename), session.say, session.interrupt)
        session.tell_skipped(learner)
        run.done("sft", samples=count)

    def _load(self, run: Run, stage: str) -> None:
        try:
            path = check_weights(run.out, stage)
        except CheckpointError as error:
            hint = f"put it back, or delete {run.out}: it is trained again"
            raise CheckpointError(error.message, hint=hint) from error
        load_weights(self.session.model, run.load(path).tensors["model"])


class Follower:
    """Does what its note says, action by action; where there is none, or it can do no more, it acts at random.

    What retrieval alone is worth: nothing has been learnt.
    """

    name = "follow"

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self._left: list[str] = []
        self._rng = random.Random()

    def start(self, task: Task, observation: Observation) -> None:
        notes = self._memories.told(task, observation.text, 1, own=True)
        self._left = [action for note in notes for action in note.actions]
        self._rng = random.Random(f"{task.fold}/{task.seed}")

    def act(self, observation: Observation) -> str:
        listed = observation.actions
        while self._left:
            action = self._left.pop(0)
            if listed is None or action in listed:
                return action
        return self._rng.choice(listed) if listed else "look"
