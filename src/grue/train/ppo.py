"""Proximal policy optimisation on whole games, with credit per turn (Schulman et al. 2016, 2017)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from grue import heap
from grue.config import Config
from grue.errors import TrainingError
from grue.evaluate.failures import failures_told
from grue.games.training import training_games
from grue.games.twx.told import Starts
from grue.parallel import Processes
from grue.policy.actor import Actor
from grue.policy.decision import Decoding
from grue.policy.policy import make_policy
from grue.rollout.collect import collect
from grue.storage.contents import read_metrics
from grue.storage.run import Run
from grue.train.context import StageContext
from grue.train.health import Health
from grue.train.learner import Learner
from grue.train.ppo_update import Updater, rollout_metrics
from grue.train.reference import Reference
from grue.train.save_points import SavePoints
from grue.train.schedule import policy_rate_factor
from grue.train.selection import Selection
from grue.types import Episode, Task


def train_ppo(context: StageContext, demo_steps: Mapping[int, int] | None = None) -> dict[str, float]:
    """Play, learn, hand over the weights; repeat. The learner ends with the weights that did best on the dev fold.

    `demo_steps`: seed of a train game -> steps of its demonstration, for `ppo.game_baseline`.
    """
    run, config, learner, say = context.run, context.config, context.learner, context.say
    cfg, processes = config.ppo, context.processes
    train_tasks, games = context.train_tasks, context.games
    reference = Reference(learner.policy_model)
    updater = Updater.of(config, learner, demo_steps)
    selection = Selection(context, "ppo", unit="iteration")
    stored = selection.resume({"iteration": 0, "env_steps": 0})
    if stored is not None:
        updater.load_state(stored.tensors, stored.state)
        del stored  # as large as the weights and their moments
    progress = selection.progress
    done = int(progress["iteration"])
    actor = Actor(learner.policy_model, config.model.dtype)
    policy = make_policy(actor.model, context.encoder)
    if cfg.dev_every and done == 0:
        selection.watch(0, policy)
    starts: Starts | None = {} if cfg.hidden_state else None
    play = _play(config, processes)
    points = SavePoints(cfg.save_every_s, processes, context.interrupt)
    health = Health(config, say, read_metrics(run.out, "ppo"))
    bar_of = say.bar("PPO", cfg.iterations, done=done, unit="iterations")
    with heap.frozen(), failures_told("PPO", say) as failures, bar_of as bar:
        for iteration in range(done, cfg.iterations):
            start = time.monotonic()
            actor.sync()
            tasks = draw_tasks(
                train_tasks, cfg.episodes_per_iteration, cfg.plays_per_game, f"{config.seed}/ppo/{iteration}/tasks"
            )
            renamed = training_games(games, cfg.rename, f"{config.seed}/ppo/{iteration}/names", starts)
            episodes = play(policy, renamed, tasks, seed=f"{config.seed}/ppo/{iteration}/play")
            played = time.monotonic()
            metrics = rollout_metrics(episodes, played - start, cfg, updater.divisor)
            rate = policy_rate_factor(cfg.schedule, iteration, cfg.iterations, cfg.warmup)
            update = updater.update(episodes, iteration, rate, reference)
            learnt = time.monotonic()
            failures.add(episodes)
            health.look(update, episodes, metrics)
            progress["iteration"] = iteration + 1
            progress["env_steps"] += sum(episode.steps for episode in episodes)
            metrics |= update.metrics | {
                "update_s": learnt - played,
                "turns_per_s": update.turns / (learnt - played),
                "env_steps_trained": progress["env_steps"],
                "seconds": time.monotonic() - start,
            }
            run.log("ppo", iteration + 1, metrics)
            heap.trim()
            last = iteration + 1 == cfg.iterations
            if cfg.dev_every and ((iteration + 1) % cfg.dev_every == 0 or last):
                actor.sync()
                selection.watch(iteration + 1, policy)
            bar.advance(note=_note(metrics))
            if last or points.due():
                _save(run, learner, updater, progress)
                if not last:
                    points.passed()
    selection.end()
    return progress


def _play(config: Config, processes: Processes) -> Callable[..., list[Episode]]:
    """`collect` with the settings of training."""
    return partial(
        collect,
        decoding=Decoding(temperature=config.ppo.temperature),
        context=config.model.context,
        player=config.policy.kind,
        processes=processes,
        values_limit=config.ppo.bootstrap_at_limit,
    )


def _note(metrics: Mapping[str, float]) -> str:
    """What the bar shows of an iteration."""
    reached = f"success {metrics['success']:.2f}" if metrics["success"] else f"score {metrics['score']:.3f}"
    failed = f" {metrics['failed']} failed" if metrics["failed"] else ""
    return f"{reached} entropy {metrics['entropy']:.2f}{failed}"


def draw_tasks(tasks: Sequence[Task], count: int, plays: int, seed: str) -> list[Task]:
    """`plays` plays of each of `count // plays` games, drawn by `seed`; a game is drawn again if there are too few."""
    if not tasks:
        raise TrainingError("there are no train games to draw from", hint="game.params decides which there are")
    rng, different = random.Random(seed), max(1, count // plays)
    chosen: list[Task] = []
    while len(chosen) < different:
        chosen += rng.sample(list(tasks), min(len(tasks), different - len(chosen)))
    return [task for task in chosen for _ in range(plays)]


def _save(run: Run, learner: Learner, updater: Updater, progress: dict[str, float]) -> None:
    (tensors, state), (more, updater_state) = learner.state(), updater.state()
    step = int(progress["iteration"])
    run.save("ppo", step, tensors | more, {**state, **updater_state, "progress": progress})
