"""What PPO warns of: play and training disagree, rounding alone clips, the policy drifts, or nothing is rewarded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from grue.config import Config
from grue.evaluate.probe import limit_of, tolerance
from grue.names import FREE_TEXT
from grue.progress import Progress
from grue.train.ppo_update import Update
from grue.types import Episode

MOST_FIRST_CLIPPED = 0.02  # share of the turns with a choice
MOST_ALIKE = 5  # iterations
MOST_GROWTH, LEAST_GROWTH = 2.0, 2.0  # entropy that has more than doubled, and by more than so many nats a turn


@dataclass(slots=True)
class Health:
    """Looks at each iteration of one command, and says each thing once. `earlier` are rows of commands before it."""

    config: Config
    say: Progress
    earlier: InitVar[Iterable[Mapping[str, Any]]] = ()
    entropy: float | None = None  # of the first iteration of the training
    looked: bool = False
    drifted: bool = False
    alike: int = 0  # iterations in a row whose games all returned the same
    games: int = 0  # played in them
    told_alike: bool = False

    def __post_init__(self, earlier: Iterable[Mapping[str, Any]]) -> None:
        for row in earlier:
            if self.entropy is None:
                self.entropy = row.get("entropy")
            self._count_alike(row)

    def look(self, update: Update, episodes: Sequence[Episode], played: Mapping[str, float]) -> None:
        """`played`: what `rollout_metrics` says of `episodes`."""
        # turns that left no choice show nothing
        if not self.looked and (decided := 1 - played["forced"]) > 0:
            self._check_gap(update.metrics["engine_gap"] / decided, episodes)
            self._check_clip(update.first_clipped / decided)
        self.looked = True
        if self._count_alike(played):
            self.say.warn(
                f"{self.games} games in a row were not won and returned the same, so there is nothing for PPO to learn "
                "from. Longer games (game.limit) or bolder play (ppo.temperature) may find a reward; demonstrations "
                "(demos.games, sft.epochs) show one"
            )
        entropy = update.metrics["entropy"]
        if math.isfinite(entropy):  # else all steps were skipped in float16
            self.entropy = entropy if self.entropy is None else self.entropy
            self._check_entropy(entropy, self.entropy)

    def _check_gap(self, gap: float, episodes: Sequence[Episode]) -> None:
        """Play and training may differ by rounding, which a low temperature magnifies, and by more for long texts."""
        limit = limit_of(episodes, tolerance(self.config.model)) / min(1.0, self.config.ppo.temperature)
        if gap > 3 * limit:
            self.say.warn(
                f"a turn's log-probabilities in play and in training differ by {gap:.2g} nats on average, more than "
                f"rounding ({limit:.2g}): is this an architecture that grue cannot drive?"
            )

    def _check_clip(self, share: float) -> None:
        """Bounds may be so tight, or turns so long, that rounding crosses them; such turns may teach nothing."""
        if share > MOST_FIRST_CLIPPED:
            cfg = self.config.ppo
            low, high = cfg.ratio_bounds
            self.say.warn(
                f"{share:.0%} of the turns with a choice are outside of the clip bounds ({low:.6g} to {high:.6g}) "
                "before anything was learnt, by rounding alone, and about half of them teach nothing: set a larger "
                "ppo.clip, or model.dtype=float32" + (", or ppo.ratio=decision" if cfg.ratio == "turn" else "")
            )

    def _count_alike(self, row: Mapping[str, Any]) -> bool:
        """Is this the last of so many iterations in a row without a difference to learn from, for the first time?"""
        explained = row.get("explained_variance")  # which equal returns do not have
        if row.get("success") != 0 or (explained is not None and math.isfinite(explained)):
            self.alike = self.games = 0
            return False
        self.alike, self.games = self.alike + 1, self.games + int(row["episodes"] - row["failed"])
        first = self.alike == MOST_ALIKE and not self.told_alike
        self.told_alike = self.told_alike or first
        return first

    def _check_entropy(self, entropy: float, first: float) -> None:
        """A bonus that outweighs the game: over a whole vocabulary, one odd token leads to others, and all get it."""
        cfg = self.config.ppo
        if not cfg.entropy_coef or cfg.entropy_target or self.drifted:
            return
        if entropy > MOST_GROWTH * first and entropy > first + LEAST_GROWTH:
            self.drifted = True
            longer = "unless it has only learnt to write more, " if self.config.policy.kind in FREE_TEXT else ""
            self.say.warn(
                f"entropy has grown from {first:.2g} to {entropy:.2g} nats a turn: {longer}the bonus for it draws the "
                f"policy towards chance. Set a smaller ppo.entropy_coef than {cfg.entropy_coef:g}, or 0"
            )
