"""What DAgger and PPO, the trainings that play games, both work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grue.config import Config
from grue.games import Game
from grue.interrupt import Interrupt
from grue.parallel import Processes
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.storage.run import Run
from grue.train.learner import Learner
from grue.types import Task


@dataclass(frozen=True, slots=True)
class StageContext:
    """The run and its settings, the model that learns, and the games that are played."""

    run: Run
    config: Config
    learner: Learner
    encoder: Encoder
    games: Sequence[Game]  # that are played at once
    train_tasks: Sequence[Task]
    dev_tasks: Sequence[Task]  # by which the best weights are chosen
    say: Progress
    interrupt: Interrupt
    dev_problems: Mapping[Task, str] = field(default_factory=dict)  # for `Episode.problem`

    @property
    def processes(self) -> Processes:
        return self.learner.processes
