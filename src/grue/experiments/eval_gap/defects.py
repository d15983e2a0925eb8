"""The notebook's defects as small parts that replace the library's: credit, sampling, and one step too many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from grue.engine.engine import Engine
from grue.games import Game, begin_reset, begin_step
from grue.models.policy_model import PolicyModel
from grue.policy.aligned import AlignedPolicy
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decision, Decoding, draw
from grue.policy.menu import Menu
from grue.policy.policy import Policy
from grue.prompts.tokens import Encoder
from grue.types import Branch, Episode, Observation, Outcome, Task, Turn

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arm:
    """A PPO training. The default is the repaired pipeline; each switch brings one defect back."""

    name: str = "repaired"
    bootstrap: bool = True  # False: V(s_t+1) is taken as 0 in every delta
    leak: bool = False  # True: advantages leak from one episode into the one before it
    kl: str = "none"  # "reference" or "old": what the KL term is measured against
    adapter: bool = False  # LoRA instead of all weights
    dropout: bool = False  # on while updating, off while playing (needs the adapter)
    top_k: bool = False  # play samples from the top k tokens only; log-probabilities ignore the cut


def advantages_with(
    rewards: Sequence[Array], values: Sequence[Array], gamma: float, lam: float, *, bootstrap: bool, leak: bool
) -> list[Array]:
    """GAE over episodes in the order of play, with the defects that are switched on.

    bootstrap=True and leak=False is `turn_gae` with V = 0 after the last turn.
    """
    found: list[Array] = []
    running = 0.0
    for rewards_T, values_T in zip(reversed(rewards), reversed(values), strict=True):
        following = 0.0
        running = running if leak else 0.0
        advantages_T = np.zeros_like(values_T)
        for t in range(len(rewards_T) - 1, -1, -1):
            running = rewards_T[t] + gamma * following - values_T[t] + gamma * lam * running
            advantages_T[t] = running
            following = values_T[t] if bootstrap else 0.0
        found.append(advantages_T)
    return found[::-1]


class ExtraStep:
    """`game` as the stock wrapper plays it: one step more than the task allows and the prompt says."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def begin_reset(self, task: Task) -> None:
        begin_reset(self._game, replace(task, limit=task.limit + 1))

    def reset(self, task: Task) -> Observation:
        return self._game.reset(replace(task, limit=task.limit + 1))

    def begin_step(self, action: str) -> None:
        begin_step(self._game, action)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        return self._game.step(action)

    def close(self) -> None:
        self._game.close()


def top_k_policy(model: PolicyModel, encoder: Encoder, top_k: int) -> Policy:
    """Samples only tokens that are in the top k of the whole vocabulary, and does not record that.

    The recorded log-probabilities are those of the full distribution: the policy learnt from is not the one that
    played. If nothing is left to choose among, the likeliest is taken. Greedy play is never cut.
    """
    return (TopKAligned if encoder.prompt.kind == "aligned" else TopKChoose)(model, encoder, top_k)


class TopKChoose(ChoosePolicy):
    """`choose` with children of the top k only."""

    looks_ahead = False

    def __init__(self, model: PolicyModel, encoder: Encoder, top_k: int) -> None:
        super().__init__(model, encoder)
        self.top_k = top_k

    @torch.inference_mode()
    def decide(self, decisions: Sequence[Decision], hidden_BH: torch.Tensor, decoding: Decoding) -> None:
        if decoding.greedy:  # the likeliest token is never cut off
            return super().decide(decisions, hidden_BH, decoding)
        logits_BV = self.model.vocabulary_logits(hidden_BH).float() / decoding.temperature
        lowest_B = logits_BV.topk(min(self.top_k, logits_BV.shape[-1])).values[:, -1]
        for decision, logits_V, lowest in zip(decisions, logits_BV, lowest_B, strict=True):
            logits_C = logits_V[list(decision.node.tokens)].double()
            log_probs_C = torch.log_softmax(logits_C, -1)
            kept_C = (logits_C >= lowest.double()) | (logits_C == logits_C.max())
            weights = torch.where(kept_C, log_probs_C.exp(), 0.0).tolist()
            pick = decision.query.rng.choices(range(len(weights)), weights)[0]
            decision.branches.append(Branch(decision.position, decision.node.tokens, pick))
            decision.log_prob += float(log_probs_C[pick])
            decision.entropy += float(-(log_probs_C.exp() * log_probs_C.clamp(min=-1e9)).sum())
            decision.taken.append(decision.node.tokens[pick])
            decision.node = decision.node.child(pick)
        return None


class TopKAligned(AlignedPolicy):
    """`aligned` with actions all of whose tokens are in the top k."""

    def __init__(self, model: PolicyModel, encoder: Encoder, top_k: int) -> None:
        super().__init__(model, encoder)
        self.top_k = top_k

    def _decide(
        self,
        engine: Engine,
        decisions: Sequence[Decision],
        menus: Sequence[Menu],
        log_probs_BV: torch.Tensor,
        decoding: Decoding,
    ) -> None:
        if decoding.greedy:
            return super()._decide(engine, decisions, menus, log_probs_BV, decoding)
        rows, logits_of = [decision.query.row for decision in decisions], self.model.vocabulary_logits
        whole_BC = self._scores(menus, self._read(engine, rows, menus, log_probs_BV, logits_of))
        cut_BV = self._cut(log_probs_BV).log_softmax(-1)
        cut_BC = self._scores(menus, self._read(engine, rows, menus, cut_BV, lambda h_NH: self._cut(logits_of(h_NH))))
        best_BC = torch.where(whole_BC == whole_BC.amax(-1, keepdim=True), 0.0, -math.inf)
        cut_BC = cut_BC.masked_fill(whole_BC.isinf(), -math.inf)
        cut_BC = torch.where(cut_BC.isinf().all(-1, keepdim=True), best_BC, cut_BC)
        counts, rngs = [len(menu.actions) for menu in menus], [decision.query.rng for decision in decisions]
        picks, _, _ = draw(cut_BC, counts, rngs, decoding)
        log_probs_BC = (whole_BC / decoding.temperature).log_softmax(-1)
        entropies = torch.special.entr(log_probs_BC.exp()).sum(-1).tolist()
        log_probs = [float(log_probs_BC[row, pick]) for row, pick in enumerate(picks)]
        self._record(decisions, menus, whole_BC, picks, log_probs, entropies)
        return None

    def _cut(self, logits_NV: torch.Tensor) -> torch.Tensor:
        lowest_N1 = logits_NV.topk(min(self.top_k, logits_NV.shape[-1])).values[:, -1:]
        return logits_NV.masked_fill(logits_NV < lowest_N1, -math.inf)


def cut_at_limit(episode: Episode) -> Episode:
    """A demonstration without the turns beyond the task's limit, as a player under the limit would have recorded it."""
    turns: tuple[Turn, ...] = episode.turns[: episode.task.limit]
    cut = len(turns) < len(episode.turns)
    return replace(episode, turns=turns, outcome=Outcome.LIMIT if cut else episode.outcome)
