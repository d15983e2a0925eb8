"""A baseline that knows the game: the critic's estimate, corrected by what the transcript cannot tell.

Most of the spread of returns lies between games: one needs eight steps, another twenty. The policy must not know which
one it plays, but a baseline may, as long as it does not depend on the action (asymmetric actor-critic: Pinto et al.
2018; several plays of a game as a baseline: GRPO, Shao et al. 2024, here spread over iterations). What it is told: how
long the teacher needed, how earlier plays of the game went, and with `ppo.hidden_state` how many steps a win still
takes. It is used for advantages and for the targets of the critic, which itself reads the transcript alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grue.config import PPOConfig
from grue.train.credit import discounted_return
from grue.train.critic import Critic
from grue.train.seeds import hash_seed
from grue.types import Episode

Array = NDArray[np.float64]

FEATURES = 12
WIDTH = 64
PLAYS = 6  # about as many earlier plays of a game as its mean covers, since the policy changes


class _Correction(nn.Module):
    """(T, FEATURES) -> (T,): the first feature, the critic's value, plus a correction that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.outer = nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, features_TF: torch.Tensor) -> torch.Tensor:
        correction: torch.Tensor = self.outer(self.inner(features_TF)).squeeze(-1)
        return features_TF[:, 0] + correction


def _hidden(to_go: int | None, left: int) -> tuple[float, float, float, float]:
    """Features of the game's hidden state, if it is told: steps to a win, and how many there are to spare."""
    if to_go is None:
        return (0.0, 0.0, 0.0, 0.0)
    spare = left - to_go
    return (to_go / 8, float(np.clip(spare / 4, -2, 2)), float(spare >= 0), float(spare >= 2))


class GameBaseline:
    """Values per turn for GAE, for the train tasks of one game, which are told apart by their seeds.

    `demo_steps`: seed of a train game -> steps of its demonstration (may be empty).
    """

    def __init__(self, demo_steps: Mapping[int, int], cfg: PPOConfig, seed: str) -> None:
        self._demo_steps, self._cfg = demo_steps, cfg
        self._mean_steps = float(np.mean(list(demo_steps.values()))) if demo_steps else 0.0
        with torch.random.fork_rng(devices=[]):  # what ran before in this process must not matter
            torch.manual_seed(hash_seed(f"{seed}/baseline/start"))
            self.head = _Correction()
        self.critic = Critic(self.head, cfg.value_learning_rate, cfg.value_passes, cfg.value_memory, f"{seed}/baseline")
        self.plays: dict[int, tuple[int, float]] = {}  # seed -> (plays, mean return above the other games')

    @torch.no_grad()
    def values(self, episodes: Sequence[Episode]) -> list[Array]:
        """Values of each episode's turns."""
        return [self.head(self._features(episode)).double().numpy() for episode in episodes]

    def learn(self, episodes: Sequence[Episode], targets: Sequence[Array]) -> float:
        """`remember` and fit; returns the loss."""
        self.remember(episodes, targets)
        return self.critic.fit()

    def remember(self, episodes: Sequence[Episode], targets: Sequence[Array], divisor: float = 1.0) -> None:
        """Keep `targets` per turn to be fitted to, and how the games went; call it after `values` of these episodes.

        Both are of rewards divided by `divisor`.
        """
        features = [self._features(episode) for episode in episodes]
        self.critic.remember(torch.cat(features), torch.from_numpy(np.concatenate(targets)))
        returns = [discounted_return(episode, self._cfg, divisor) for episode in episodes]
        middle = float(np.mean(returns))
        for episode, value in zip(episodes, returns, strict=True):
            count, mean = self.plays.get(episode.task.seed, (0, 0.0))
            count += 1
            self.plays[episode.task.seed] = (count, mean + (value - middle - mean) / min(count, PLAYS))

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """(tensors, JSON) for a checkpoint."""
        tensors, state = self.critic.state()
        tensors |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        return tensors, {**state, "plays": {str(seed): list(entry) for seed, entry in self.plays.items()}}

    def load_state(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self.head.load_state_dict(
            {name.removeprefix("head."): value for name, value in tensors.items() if name.startswith("head.")}
        )
        self.critic.load_state({n: v for n, v in tensors.items() if not n.startswith("head.")}, state)
        self.plays = {int(seed): (int(count), float(mean)) for seed, (count, mean) in state["plays"].items()}

    def _features(self, episode: Episode) -> torch.Tensor:
        """(T, FEATURES) float32, each of about unit size."""
        seed, limit, turns = episode.task.seed, episode.task.limit, episode.turns
        count, mean = self.plays.get(seed, (0, 0.0))
        steps = self._demo_steps.get(seed, self._mean_steps)
        score = np.cumsum([0.0, *[turn.reward for turn in turns[:-1]]])[: len(turns)]
        place = np.arange(len(turns)) / limit
        rows = np.empty((len(turns), FEATURES), dtype=np.float32)
        rows[:, 0] = [turn.value for turn in turns]
        rows[:, 1], rows[:, 2], rows[:, 3] = place, score, place * score
        rows[:, 4] = 5 * (steps - self._mean_steps) / limit
        rows[:, 5] = seed in self._demo_steps
        rows[:, 6] = 5 * mean * count / (count + 2)
        rows[:, 7] = count / (count + 2)
        rows[:, 8:] = [_hidden(turn.observation.to_go, limit - place) for place, turn in enumerate(turns)]
        return torch.from_numpy(rows)
