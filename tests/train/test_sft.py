"""The loop of supervised fine-tuning: what is read when, in which order, with which dropout and smoothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import tiny
from grue.interrupt import Interrupt
from grue.progress import Progress
from grue.rollout.pack import Sample, samples
from grue.storage.run import Run
from grue.train.learner import Learner
from grue.train.sft import smoothing_of, train_sft


class Watched:
    """A training of a tiny model, one game to a step, and what its steps were given."""

    def __init__(self, out: Path, epochs: int, games: int) -> None:
        self.config = tiny.config(Path("none"), f"sft.epochs={epochs}", "sft.episodes_per_batch=1")
        model = tiny.policy_model()
        self.learner = Learner.of(model, self.config.model, self.config.sft, dropout=True)
        self.items = samples(tiny.rollouts(model, tiny.tasks(games)))
        self.read: list[int] = []  # places in `items`
        self.seeds: list[int] = []
        self._out, self._step = out, self.learner.step
        self.learner.step = self._watched  # type: ignore[method-assign]

    def _watched(self, part: Sequence[Sample], *more: object) -> dict[str, float]:
        self.read += [self.items.index(item) for item in part]
        self.seeds.append(torch.initial_seed())
        return self._step(part, *more)  # type: ignore[arg-type]

    def train(self, items_of: Callable[[int], Sequence[Sample]] | None = None) -> None:
        run, quiet = Run(self._out, self.config), Progress(quiet=True)
        train_sft(run, self.config, self.learner, items_of or (lambda _: self.items), quiet, Interrupt())


def test_every_pass_reads_every_game_in_an_order_of_its_own(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run", epochs=2, games=8)
    watched.train()
    first, second = watched.read[:8], watched.read[8:]
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second


def test_every_step_has_a_dropout_of_its_own(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run", epochs=2, games=3)
    watched.train()
    assert len(set(watched.seeds)) == len(watched.seeds) == 6


def test_what_a_pass_reads_is_made_once_for_it(tmp_path: Path) -> None:
    """With names of its own, if things are renamed."""
    watched, asked = Watched(tmp_path / "run", epochs=3, games=2), []
    watched.train(lambda epoch: (asked.append(epoch), watched.items)[1])
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("kind", ["choose", "aligned", "score", "think", "write"])
def test_only_choices_are_smoothed(kind: str) -> None:
    """Over the whole vocabulary it would teach random text."""
    config = tiny.config(Path("none"), f"policy.kind={kind}", "sft.smoothing=0.1")
    assert smoothing_of(config, config.sft) == (0 if kind == "write" else 0.1)
