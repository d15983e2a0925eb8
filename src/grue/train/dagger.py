"""DAgger: the policy plays, a teacher says what it would have done at each state (Ross, Gordon & Bagnell 2011, 3).

What the policy does wrong leads to states that no demonstration shows. Here it is corrected at those states, and
learns from demonstrations and corrected games together. The teacher itself plays no steps: after SFT the policy plays
well enough to reach states worth a correction (the paper's beta is 0 from the first round on).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from grue import heap
from grue.config import Config, DaggerConfig
from grue.errors import DataError, TrainingError
from grue.evaluate.failures import failures_told
from grue.policy.actor import Actor
from grue.policy.decision import Decoding
from grue.policy.policy import Policy, make_policy
from grue.progress import Bar
from grue.rollout.collect import collect
from grue.rollout.pack import Sample
from grue.storage import episodes, jsonl
from grue.storage.files import sync_file
from grue.storage.run import Run
from grue.train.context import StageContext
from grue.train.learner import Learner
from grue.train.measures import mean, play_metrics
from grue.train.ppo import draw_tasks
from grue.train.save_points import SavePoints
from grue.train.schedule import learning_rate_factor
from grue.train.selection import Selection
from grue.train.sft import TRIM_EVERY, imitation_step, smoothing_of
from grue.types import Episode, Task


class Lessons(NamedTuple):
    """What a round learns from."""

    demos: Sequence[Sample]  # the demonstrations
    corrected: Sequence[Sample]  # all games so far that were corrected


def train_dagger(context: StageContext, items_of: Callable[[int], Lessons]) -> dict[str, float]:
    """Play, be corrected, learn; repeat. The learner ends with the weights that did best on the dev fold.

    `items_of` gives the samples of a round.
    """
    run, config, learner = context.run, context.config, context.learner
    cfg = config.dagger
    selection = Selection(context, "dagger", unit="round", steps=cfg.steps)
    selection.resume({"env_steps": 0, "play_s": 0.0, "sums": {}})
    progress = selection.progress
    actor = Actor(learner.policy_model, config.model.dtype)
    policy = make_policy(actor.model, context.encoder)
    if cfg.dev_every and not learner.step_count:
        selection.watch(0, policy)
    points = SavePoints(cfg.save_every_s, context.processes, context.interrupt)
    bar_of = context.say.bar("DAgger", cfg.rounds, done=learner.step_count // cfg.steps, unit="rounds")
    with failures_told("DAgger", context.say) as failures, bar_of as bar:
        for number in range(learner.step_count // cfg.steps, cfg.rounds):
            start = time.monotonic()
            actor.sync()
            played, seconds = _corrected_games(context, policy, number)
            failures.add(played)
            if not learner.step_count % cfg.steps:  # else an earlier command has counted this round
                progress["env_steps"] += sum(episode.steps for episode in played)
                progress["play_s"] = seconds
            metrics = play_metrics(played, progress["play_s"]) | _corrections(played, config)
            won = f"success {metrics['success']:.2f}"
            metrics |= _learn(context, items_of(number), progress, points, bar, won)
            metrics |= {"env_steps_trained": progress["env_steps"], "seconds": time.monotonic() - start}
            run.log("dagger", number + 1, metrics)
            if cfg.dev_every and ((number + 1) % cfg.dev_every == 0 or number + 1 == cfg.rounds):
                actor.sync()
                selection.watch(number + 1, policy)
            bar.advance(note=f"{won} corrected {metrics['corrected']:.2f}")
            _save(run, learner, progress)
            if number + 1 < cfg.rounds:
                points.passed()
    selection.end()
    return {name: progress[name] for name in ("env_steps", "best_merit", "best_round")}


def _corrected_games(context: StageContext, policy: Policy, number: int) -> tuple[list[Episode], float | None]:
    """(games of round `number` (from 0), seconds of play), with None for seconds if an earlier command played them."""
    run, config, learner, processes = context.run, context.config, context.learner, context.processes
    cfg = config.dagger
    file, first = run.episodes("dagger"), number * cfg.games_per_round
    rounds = [_tasks(context, earlier) for earlier in range(number + 1)]
    wanted = [task for tasks in rounds for task in tasks]
    way_out = f"put it back as it was, or start over: grue dagger {run.out} --again"
    try:
        known = list(episodes.read(file, missing_ok=True))
    except DataError as error:
        raise DataError(error.message, hint=way_out) from error
    there = episodes.leading(known, wanted)
    needed = first + (cfg.games_per_round if learner.step_count % cfg.steps else 0)  # steps of this round are done
    if there < needed:
        raise DataError(
            f"{file} holds {there} of the {needed} games that have been learnt from, in their order", hint=way_out
        )
    start, seconds = time.monotonic(), None
    if there < len(wanted):
        processes.wait()  # no process writes before all have read
        played = collect(
            policy,
            context.games,
            rounds[number],
            Decoding(),
            seed=f"{config.seed}/dagger/{number}/play",
            context=config.model.context,
            player="dagger",
            processes=processes,
            adviser=cfg.teacher,
        )
        seconds = time.monotonic() - start
        _corrections(played, config)  # an error here keeps useless games out of the file
        if run.leads:
            jsonl.keep_first(file, first)  # drop what a command left when it was killed while writing
            episodes.append(file, played)
            sync_file(file)  # as checkpoints are, which are useless without it
    elif len(known) > there and run.leads:  # resumed from an older checkpoint: other weights play from here
        jsonl.keep_first(file, there)
    processes.wait()
    return list(episodes.read(file))[first : first + cfg.games_per_round], seconds


def _tasks(context: StageContext, number: int) -> list[Task]:
    """The games of a round."""
    config = context.config
    return draw_tasks(context.train_tasks, config.dagger.games_per_round, 1, f"{config.seed}/dagger/{number}/tasks")


def _corrections(played: Sequence[Episode], config: Config) -> dict[str, float]:
    """Share of turns at which the teacher knew what to do, and share of those where it would have acted differently."""
    turns = [turn for e in played if not e.failed for turn in e.turns]
    advised = [turn for turn in turns if turn.advice]
    if not advised:
        again = "run the same command again, or grue dagger RUN --again with another dagger.teacher"
        if not turns:
            error = next((episode.error for episode in played if episode.error), "")
            raise TrainingError(f"all {len(played)} games of the round failed: {error}", hint=f"fix that, then {again}")
        raise TrainingError(
            f"the teacher {config.dagger.teacher} had no advice in any of {len(played)} games", hint=again
        )
    return {
        "advised": len(advised) / len(turns),
        "corrected": mean([turn.advice != turn.action for turn in advised]),
    }


def _learn(
    context: StageContext, items: Lessons, progress: dict[str, Any], points: SavePoints, bar: Bar, played: str
) -> dict[str, float]:
    """Take the optimiser steps of a round that are not done yet; returns means over all steps. Saves as it goes.

    `bar` shows how far it is, after how the round was `played`.
    """
    run, config, learner = context.run, context.config, context.learner
    cfg = config.dagger.model_copy(update={"smoothing": smoothing_of(config, config.dagger)})
    start = time.monotonic()
    first = learner.step_count - learner.step_count % cfg.steps
    sums, end = progress["sums"] if learner.step_count > first else {}, first + cfg.steps
    progress["sums"] = sums
    while learner.step_count < end:
        # what a step reads, and its dropout, depend on its number alone: a resumed run does the same
        step, name = learner.step_count, f"{config.seed}/dagger/{learner.step_count}"
        bar.advance(0, note=f"{played}, learning {step - first}/{cfg.steps} steps")
        part = _drawn(items, cfg, random.Random(name))
        rate = learning_rate_factor(cfg.schedule, step, cfg.rounds * cfg.steps, cfg.warmup_steps)
        metrics = imitation_step(learner, part, cfg, rate, f"{name}/dropout")
        for key, value in {**metrics, "learning_rate": rate * cfg.learning_rate}.items():
            if math.isfinite(value):  # a step that was skipped in float16 has no gradient norm
                total, count = sums.get(key, (0.0, 0))
                sums[key] = (total + value, count + 1)
        if learner.step_count % TRIM_EVERY == 0:
            heap.trim()
        if learner.step_count < end and points.due():
            _save(run, learner, progress)
            points.passed()
    progress["sums"] = {}
    return {name: total / count for name, (total, count) in sums.items()} | {"update_s": time.monotonic() - start}


def _drawn(items: Lessons, cfg: DaggerConfig, rng: random.Random) -> list[Sample]:
    """The episodes of one optimiser step. A fractional number of episodes is met on average over steps."""
    # with few corrected games the batch is smaller, so that `demo_share` holds; without any it is demonstrations
    size = min(cfg.episodes_per_batch, len(items.corrected) / (1 - cfg.demo_share) or cfg.episodes_per_batch)
    whole, rest = divmod(cfg.demo_share * size, 1)
    shown = min(len(items.demos), int(whole) + (rest > 0 and rng.random() < rest))
    corrected = min(len(items.corrected), cfg.episodes_per_batch - shown)
    return rng.sample(list(items.demos), shown) + rng.sample(list(items.corrected), corrected)


def _save(run: Run, learner: Learner, progress: dict[str, Any]) -> None:
    tensors, state = learner.state()
    run.save("dagger", learner.step_count, tensors, {**state, "progress": progress})
