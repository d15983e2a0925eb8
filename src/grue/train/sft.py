"""Supervised fine-tuning: make the teacher's actions likely, in the form in which the policy learns them (`lesson`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import torch

from grue import heap
from grue.algos.losses import branch_log_probs, node_entropies, smoothed_nll
from grue.config import Config, ImitationConfig
from grue.errors import TrainingError
from grue.interrupt import Interrupt
from grue.models.policy_model import Reading
from grue.progress import Progress
from grue.rollout.pack import Batch, Sample, minibatches
from grue.storage import checkpoint
from grue.storage.run import Run
from grue.train.learner import Learner
from grue.train.save_points import SavePoints
from grue.train.schedule import learning_rate_factor
from grue.train.seeds import hash_seed

TRIM_EVERY = 8  # steps


def sft_loss(
    reading: Reading, batch: Batch, cfg: ImitationConfig, *, nodes: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A micro-batch's share of the mean loss over the `nodes` branching nodes of the whole batch."""
    log_probs_NC = reading.logits_NC if batch.over_vocabulary else branch_log_probs(reading.logits_NC, 1.0)
    loss = smoothed_nll(log_probs_NC, batch.chosen_N, cfg.smoothing).sum() / nodes
    with torch.no_grad():
        right = (log_probs_NC.argmax(-1) == batch.chosen_N).float().sum() / nodes
        nll = smoothed_nll(log_probs_NC, batch.chosen_N, 0.0).sum() / nodes
        entropy = node_entropies(branch_log_probs(reading.logits_NC, 1.0)).sum() / nodes
    return loss, {"nll": nll, "accuracy": right, "node_entropy": entropy}


def smoothing_of(config: Config, cfg: ImitationConfig) -> float:
    """Label smoothing is for choices among valid actions: over a whole vocabulary it would teach random text."""
    return 0.0 if config.policy.kind == "write" else cfg.smoothing


def imitation_step(
    learner: Learner, part: Sequence[Sample], cfg: ImitationConfig, rate: float, dropout: str
) -> dict[str, float]:
    """One optimiser step on the samples of `part`; `dropout` seeds its dropout, differently in each process.

    `cfg.smoothing` is taken as it is: for free text give it a `cfg` with that of `smoothing_of`.
    """
    nodes = max(1, sum(len(turn.branches) for item in part for turn in item.turns))
    if learner.dropout:
        number = learner.processes.rank
        torch.manual_seed(hash_seed(f"{dropout}/{number}" if number else dropout))
    return learner.step(part, partial(sft_loss, cfg=cfg, nodes=nodes), rate)


def train_sft(
    run: Run,
    config: Config,
    learner: Learner,
    items_of: Callable[[int], Sequence[Sample]],
    say: Progress,
    interrupt: Interrupt,
) -> int:
    """`config.sft.epochs` passes, from the last checkpoint on if there is one. Saves as it goes.

    `items_of` makes the samples of an epoch from its number alone, as many each time. Returns how many.
    """
    cfg = config.sft.model_copy(update={"smoothing": smoothing_of(config, config.sft)})
    folder = run.checkpoints("sft")
    items, made = items_of(0) if cfg.epochs else (), 0
    if not items and cfg.epochs:
        raise TrainingError("there are no demonstrations to learn from", hint="record some with: grue demos")
    per_epoch = max(1, len(items) // cfg.episodes_per_batch)
    total = per_epoch * cfg.epochs
    resume = checkpoint.to_resume(folder)
    stored = None if resume is None else run.load(resume)
    # no process writes before all have read
    learner.processes.check_read(str(folder), stored.tensors["model"].values() if stored else ())
    if stored is not None:
        learner.load_state(stored.tensors, stored.state)
        del stored  # as large as the weights and their moments
    run.rewind("sft", learner.step_count)
    points = SavePoints(cfg.save_every_s, learner.processes, interrupt)
    with say.bar("SFT", total, done=learner.step_count, unit="steps") as bar:
        while learner.step_count < total:
            epoch, place = divmod(learner.step_count, per_epoch)
            if epoch != made:
                items, made = items_of(epoch), epoch
            # the order of an epoch comes from its number alone, so a resumed run goes on in the same order
            parts = list(minibatches(items, per_epoch, random.Random(f"{config.seed}/sft/{epoch}")))
            if len(parts) <= place:
                raise TrainingError(
                    f"pass {epoch} over the demonstrations has {len(parts)} batches, the first had {per_epoch}",
                    hint="sft.rename cuts episodes into fewer segments there; set sft.episodes_per_batch higher",
                )
            for part in parts[place:]:
                rate = learning_rate_factor(cfg.schedule, learner.step_count, total, cfg.warmup_steps)
                # as with the order: dropout of a step comes from its number alone
                metrics = imitation_step(learner, part, cfg, rate, f"{config.seed}/sft/dropout/{learner.step_count}")
                run.log("sft", learner.step_count, {**metrics, "learning_rate": rate * cfg.learning_rate})
                if learner.step_count % TRIM_EVERY == 0:
                    heap.trim()
                bar.advance(note=f"loss {metrics['loss']:.3f} accuracy {metrics['accuracy']:.3f}")
                if points.due():
                    run.save("sft", learner.step_count, *learner.state())
                    points.passed()
    run.save("sft", learner.step_count, *learner.state(), keep=1)
    return len(items)
