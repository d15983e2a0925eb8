"""The `choose` policy: the model picks among the game's valid actions, node by node down the token trie."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from grue.models.policy_model import PolicyModel
from grue.policy.engine import Engine
from grue.policy.trie import Node, TrieCache
from grue.prompts.tokens import Encoder
from grue.types import Branch


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an action is drawn. Greedy takes the likeliest child at every branching node."""

    greedy: bool = False
    temperature: float = 1.0


@dataclass(slots=True)
class Decision:
    """One action being chosen. `fed` are ids the engine has not seen yet."""

    node: Node
    offset: int  # len(ids of the segment) when the decision began
    rng: random.Random
    taken: list[int] = field(default_factory=list)
    fed: int = 0  # how many of `taken` the engine has seen
    log_prob: float = 0.0
    entropy: float = 0.0
    branches: list[Branch] = field(default_factory=list)

    def unread(self) -> list[int]:
        return self.taken[self.fed :]

    def follow_forced(self) -> bool:
        """Walk down while there is no choice. True when an action has been reached."""
        while len(self.node.tokens) == 1:
            self.taken.append(self.node.tokens[0])
            self.node = self.node.nodes[0]
        return self.node.action is not None


class ChoosePolicy:
    """Batched decisions over a PolicyModel used for inference. `encoder` and the tries are shared by all episodes."""

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder
        self.tries = TrieCache(encoder.action)

    def engine(self, slots: int, columns: int) -> Engine:
        return Engine(self.model.base_lm(), slots, columns)

    @torch.inference_mode()
    def values(self, hidden_BH: torch.Tensor) -> list[float]:
        values: list[float] = self.model.value_head(hidden_BH).tolist()
        return values

    @torch.inference_mode()
    def decide(self, decisions: Sequence[Decision], hidden_BH: torch.Tensor, decoding: Decoding) -> None:
        """One branching node for each decision: draw a child, record the branch, step down and along forced tokens."""
        widest = max(len(d.node.tokens) for d in decisions)
        children = [list(d.node.tokens) + [-1] * (widest - len(d.node.tokens)) for d in decisions]
        logits = self.model.logits(hidden_BH, torch.tensor(children, device=hidden_BH.device))
        log_probs_BC = torch.log_softmax(logits / decoding.temperature, -1).double()
        probs_BC = log_probs_BC.exp()
        entropies = (-(probs_BC * log_probs_BC.masked_fill(probs_BC == 0, 0.0)).sum(-1)).tolist()
        if decoding.greedy:
            picks = logits.argmax(-1)
        else:
            # inverse CDF with a random number of the episode's own: what is drawn does not depend on its neighbours
            draws = torch.tensor([[d.rng.random()] for d in decisions], dtype=torch.float64, device=logits.device)
            cumulative = probs_BC.cumsum(-1)
            picks = (cumulative < draws * cumulative[:, -1:]).sum(-1)
            counts = torch.tensor([len(d.node.tokens) for d in decisions], device=logits.device)
            picks = torch.minimum(picks, counts - 1)
        chosen_log_probs = log_probs_BC.gather(1, picks[:, None]).squeeze(1).tolist()
        for decision, pick, log_prob, entropy in zip(
            decisions, picks.tolist(), chosen_log_probs, entropies, strict=True
        ):
            position = decision.offset + len(decision.taken) - 1
            decision.branches.append(Branch(position, decision.node.tokens, pick))
            decision.log_prob += log_prob
            decision.entropy += entropy
            decision.taken.append(decision.node.tokens[pick])
            decision.node = decision.node.nodes[pick]
