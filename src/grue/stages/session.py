"""What the stages of one run share: the games, the model in memory, and where its weights come from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from grue import heap
from grue.config import Config, DaggerConfig, LearningConfig, PPOConfig
from grue.errors import GameError, GrueError, TeacherError, first_line
from grue.evaluate.probe import check_probe, tolerance
from grue.games import Game
from grue.games.alike import is_unknown, must_be_named, name_of, untold
from grue.games.configured import fold_tasks, open_game
from grue.games.native import games_at_once
from grue.games.spread import spread
from grue.games.teachers import HasGold
from grue.games.textworld.folder import fingerprints, names_folder, without_description
from grue.hardware import usual_threads
from grue.interrupt import Interrupt
from grue.launch import processes_here
from grue.models.learned import copy_of_learned, load_weights
from grue.models.load import EMBEDDED, compute_dtype, default_device, load_model
from grue.models.memory import estimate
from grue.models.out_of_memory import hints
from grue.models.policy_model import PolicyModel
from grue.models.sharding import shard, wants_shards
from grue.models.tokenizer import check_prompt
from grue.parallel import ALONE, Processes
from grue.policy.actor import Actor
from grue.policy.drivable import check_drivable
from grue.policy.policy import Policy, make_policy
from grue.progress import Progress
from grue.prompts.tokens import Encoder
from grue.stages.trained import check_weights, played_in, read_probe
from grue.storage import episodes
from grue.storage.run import Run
from grue.tracking.beside import Trackers
from grue.train.context import StageContext
from grue.train.learner import Learner
from grue.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIRST_GAMES = 3  # if none of so many can be begun, it is not the single game
MOST_SKIPPED = 0.1  # share of a stage's steps


@dataclass
class Session:
    """Everything that is made at most once in a command. Use as `with open_session(...) as session`."""

    run: Run
    config: Config
    say: Progress
    interrupt: Interrupt
    processes: Processes
    trackers: Trackers
    _games: list[Game] = field(default_factory=list)
    _looks: dict[Task, str] = field(default_factory=dict)  # "" for games that failed
    _short: set[tuple[str, int]] = field(default_factory=set)  # folds that a warning called smaller than asked for
    _told: set[str] = field(default_factory=set)  # folds of a folder whose stories without a description were counted

    def games(self, count: int) -> list[Game]:
        """At least `count` games that can be played at once; kept open for the next stage."""
        while len(self._games) < count:
            self._games.append(open_game(self.config.game))
        return self._games[:count]

    def scripted_games(self) -> list[Game]:
        """Games for players without a model: as many as keep all cores busy, but no more than eval.slots."""
        return self.games(min(games_at_once(self.config.game.name), self.slots(self.config.eval.slots)))

    def slots(self, count: int) -> int:
        """How many of `count` simultaneous games are this process's."""
        return -(-count // self.processes.count)

    @cached_property
    def lists_actions(self) -> bool:
        """Does the game list valid actions? If not, nobody can play who chooses among them.

        By its demonstrations, or else its first train games.
        """
        demos = episodes.read(self.run.episodes("demos"), missing_ok=True)
        seen = next((demo.first for demo in demos if demo.first is not None), None)
        if seen is not None:
            return bool(seen.actions)
        for task in self.tasks("train")[:FIRST_GAMES]:
            with suppress(GameError):  # of this one game, which is counted when it is played
                return bool(self.games(1)[0].reset(task).actions)
        return True

    @cached_property
    def solves_itself(self) -> bool:
        """Has the game solutions of its own? Some games can have them, but not for this file: says so, once."""
        (game,), tasks = self.games(1), self.tasks(self.config.eval.fold, 1)
        if not isinstance(game, HasGold):
            return False
        try:
            game.reset(tasks[0])
            game.gold()
        except TeacherError as error:
            self.say(f"no row of gold in the table: {error.message}")
            return False
        except GameError:  # of this one game, which is counted when it is played
            pass
        return True

    def problems(self, played: Sequence[Task]) -> dict[Task, str]:
        """A name for what each of the tasks poses, where it takes one to know which pose the same (`games.alike`)."""
        missing = [task for task in played if task not in self._looks] if must_be_named(played) else []
        if missing:
            self.say(f"looking which of {len(missing)} {missing[0].fold} games pose the same problem")
            self._looks |= dict(self.processes.gather([self._look(task) for task in self.processes.share(missing)]))
        looks = {task: self._looks[task] for task in played if task in self._looks}
        if is_unknown(played) and (same := untold([*looks.values()])):
            alike = [task for task, look in looks.items() if look == same]
            if missing:
                self.say.warn(
                    f"{len(alike)} of {len(looks)} {alike[0].fold} games look the same at first; they count as "
                    "different ones, so if they are not, intervals are too narrow (docs/games.md, Seeds)"
                )
            looks |= dict.fromkeys(alike, "")
        return looks

    def _look(self, task: Task) -> tuple[Task, str]:
        if self.processes.count == 1:
            self.interrupt.check()
        with suppress(GrueError):  # whoever plays it will meet the error
            return task, name_of(self.games(1)[0], task)
        return task, ""

    def _tell_of_stories(self, fold: str) -> None:
        missing = 0 if fold in self._told else without_description(self.config.game.name, fold)
        self._told.add(fold)
        if missing:
            self.say.warn(f"{missing} .z8 files for {fold!r} are left out: their .json is not beside them")

    def tasks(self, fold: str, count: int | None = None) -> list[Task]:
        """`count` tasks of a fold, spread over it (`games.spread`); all of them without a count."""
        every = fold_tasks(self.config.game, fold)
        if names_folder(self.config.game.name):
            self.run.keep_games(fingerprints(self.config.game.name))
            self._tell_of_stories(fold)
        if count is not None and count > len(every) and (fold, count) not in self._short:
            self._short.add((fold, count))
            name = self.config.game.name
            self.say.warn(f"{name} has {len(every)} {fold} games here, fewer than {count}: all are used")
        return every if count is None else spread(every, count)

    @cached_property
    def _loaded(self) -> tuple[PolicyModel, Encoder]:
        needed = estimate(self.config, self.processes)
        self.say(needed.line())
        if not needed.fits:
            self.say.warn(
                f"memory may run out; if so, try in this order: {'; '.join(hints(self.config, 'ppo')[:3])}, ..."
            )
        torch.manual_seed(self.config.seed)
        settings = self.config.model
        sharded = wants_shards(settings, self.processes)
        # what is spread over devices need not fit on one of them
        lm, tokenizer = load_model(settings, device="cpu" if sharded else None)
        model = PolicyModel(lm, value_shares_trunk=self.config.ppo.value_shares_trunk)
        self.processes.check_read(f"{settings.name}, {settings.revision or 'newest'}", model.parameters())
        if settings.name != EMBEDDED and not sharded:  # ... nor be read by one
            check_drivable(model)
        if sharded:
            shard(model, self.processes, compute_dtype(settings.dtype, default_device()))
        encoder = self._encoder(tokenizer)
        check_prompt(settings.name, encoder, lm)
        return model, encoder

    def _encoder(self, tokenizer: PreTrainedTokenizerBase) -> Encoder:
        """The tokenizer with the prompt format, which must stay what it was when the run's model was first loaded."""
        encoder = Encoder(tokenizer, self.config.policy)
        self.run.keep_prompt(encoder.fingerprint)
        return encoder

    @property
    def model(self) -> PolicyModel:
        return self._loaded[0]

    @property
    def encoder(self) -> Encoder:
        return self._loaded[1]

    @cached_property
    def _base_weights(self) -> dict[str, torch.Tensor]:
        return copy_of_learned(self.model)

    def learner(self, cfg: LearningConfig, **changes: Any) -> Learner:
        """What trains the model by a stage's settings; `changes` are keyword arguments of the constructor."""
        if self.config.model.compile:  # no bar moves meanwhile
            self.say("compiling layers during the first steps; on a CPU each may take minutes")
        return Learner.of(self.model, self.config.model, cfg, processes=self.processes, **changes)

    def tell_skipped(self, learner: Learner) -> None:
        """Warn if many steps of a training in float16 were skipped: it has learnt from so much less."""
        skipped, steps = 0 if learner.loss_scale is None else learner.loss_scale.skipped, learner.step_count
        if skipped > MOST_SKIPPED * steps:
            self.say.warn(
                f"{skipped} of {steps} optimiser steps overflowed in float16 and were skipped: use "
                "model.dtype=bfloat16 or float32, or train for more steps, since the first ones find the loss scale"
            )

    def context(self, cfg: DaggerConfig | PPOConfig, learner: Learner) -> StageContext:
        """What DAgger or PPO works with."""
        dev = self.tasks("dev", cfg.dev_games)
        return StageContext(
            run=self.run,
            config=self.config,
            learner=learner,
            encoder=self.encoder,
            games=self.games(self.slots(cfg.slots)),
            train_tasks=self.tasks("train"),
            dev_tasks=dev,
            say=self.say,
            interrupt=self.interrupt,
            dev_problems=self.problems(dev) if cfg.dev_every else {},
        )

    def load(self, policy: str) -> None:
        """Give the model the weights of "base", or of a training stage. CheckpointError if that has left none."""
        weights = self._base_weights  # copied before anything overwrites them
        if policy != "base":
            path = check_weights(self.run.out, policy)
            weights = self.run.load(path).tensors["model"]
            self.processes.check_read(str(path), weights.values())
        load_weights(self.model, weights)
        self._check_base(policy)

    def _check_base(self, policy: str) -> None:
        """ModelError if the base is not what it was when games of `policy` were recorded: a hub's newest may change.

        Weights of a stage that has trained all of them do not depend on it.
        """
        if policy != "base" and self.config.model.adapter != "lora":
            return
        probe = read_probe(self.run.out, policy)
        if probe:
            what = f"{policy} in {self.run.out}, on {self.config.model.name},"
            played = played_in(self.config, self.run.facts(policy))
            check_probe(self.model, probe, tolerance(self.config.model, played), what)
        self.processes.wait()  # nobody records another game before all have read this one

    @property
    def number_format(self) -> str:
        """That of matrix products on this machine, in which the policy plays: "bfloat16", say."""
        return str(compute_dtype(self.config.model.dtype, default_device())).removeprefix("torch.")

    def policy(self) -> Policy:
        """A policy that plays with the weights the model has now. All processes put shards together at once."""
        return make_policy(Actor(self.model, self.config.model.dtype).model, self.encoder)


def _threads(processes: Processes) -> int:
    """This process's threads if `threads` is not set: what the environment asks for, or its share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) and processes.count == 1:  # a launcher sets it to 1 for several processes
        return int(asked)
    return usual_threads(min(processes.count, processes_here()))


@contextmanager
def open_session(run: Run, config: Config, say: Progress, processes: Processes = ALONE) -> Iterator[Session]:
    """A session whose games are closed at the end, whatever happens."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    heap.keep_few_kernels()
    torch.set_num_threads(config.threads or _threads(processes))
    trackers = Trackers(config.track if run.leads else (), run.out, say)
    try:
        with Interrupt() as interrupt, heap.seldom_collected():
            session = Session(run, config, say, interrupt, processes, trackers)
            try:
                yield session
            finally:
                for game in session._games:
                    try:
                        game.close()
                    except (GrueError, OSError) as error:  # what it was wanted for is done
                        say.warn(f"a game did not close: {first_line(error)}")
    finally:
        trackers.finish()
