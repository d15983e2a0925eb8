"""The `choose` policy: the model picks among the game's valid actions, node by node down the token trie.

Also what all policies share: the query of a seat that is to act, the decision that answers it, and the draw.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import torch

from grue.errors import ConfigError
from grue.models.policy_model import PolicyModel
from grue.policy.engine import Engine
from grue.policy.trie import Node, TrieCache, choices, path_branches
from grue.policy.weigh import action_probabilities
from grue.prompts.tokens import Encoder
from grue.types import Branch, Candidate, Turn


LOOK = 32  # tokens of a trie that are read ahead; what lies beyond takes another pass


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an action is drawn. Greedy takes the likeliest child at every branching node."""

    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0  # of text that is written; a choice among valid actions is always among all of them

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(
                f"a temperature of {self.temperature} cannot be drawn with",
                hint="it is above 0; Decoding(greedy=True) takes the likeliest action",
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p} keeps no share of the tokens", hint="it is above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Query:
    """A seat that is to act: its row in the engine, the valid actions, and its segment: len(ids), and the last ones.

    `unread` are those that the engine has not been fed, at least one.
    """

    row: int
    actions: tuple[str, ...]
    offset: int
    rng: random.Random
    unread: Sequence[int]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a policy would have to decide to do what a teacher did. `ids` are appended to the segment."""

    ids: tuple[int, ...]
    branches: tuple[Branch, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    thought_ids: int = 0
    whole: bool = False


@dataclass(slots=True)
class Decision:
    """The answer to a query, while it is found and after."""

    query: Query
    value: float = 0.0  # what the critic makes of the state
    action: str = ""  # what was decided on
    taken: list[int] = field(default_factory=list)  # ids behind those of the query
    fed: int = 0  # how many of `taken` the engine has seen
    log_prob: float = 0.0
    entropy: float = 0.0
    branches: list[Branch] = field(default_factory=list)
    candidates: tuple[Candidate, ...] = ()
    valid: bool = True
    thought: str = ""
    thought_ids: int = 0
    node: Node = field(default_factory=Node)  # where it stands in a trie, for policies that walk one

    @property
    def position(self) -> int:
        """Index in the segment of the last id so far, whose logits decide what comes next."""
        return self.query.offset + len(self.taken) - 1

    def unread(self) -> list[int]:
        return self.taken[self.fed :]

    def follow_forced(self) -> bool:
        """Walk down while there is no choice. True when an action has been reached."""
        while len(self.node.tokens) == 1:
            self.taken.append(self.node.tokens[0])
            self.node = self.node.child(0)
        if self.node.action is None:
            return False
        self.action = self.node.action
        return True


def draw(
    logits_BC: torch.Tensor, counts: Sequence[int], rngs: Sequence[random.Random], decoding: Decoding
) -> tuple[list[int], list[float], list[float]]:
    """(index drawn, its log-probability, entropy) of each row; -inf pads, and row b has counts[b] children."""
    log_probs_BC = torch.log_softmax(logits_BC / decoding.temperature, -1).double()
    probs_BC = log_probs_BC.exp()
    entropies = (-(probs_BC * log_probs_BC.masked_fill(probs_BC == 0, 0.0)).sum(-1)).tolist()
    if decoding.greedy:
        picks = logits_BC.argmax(-1)
    else:
        # inverse CDF with a random number of the episode's own: what is drawn does not depend on its neighbours
        draws = torch.tensor([[rng.random()] for rng in rngs], dtype=torch.float64, device=logits_BC.device)
        cumulative = probs_BC.cumsum(-1)
        picks = (cumulative < draws * cumulative[:, -1:]).sum(-1)
        picks = torch.minimum(picks, torch.tensor(counts, device=logits_BC.device) - 1)
    return picks.tolist(), log_probs_BC.gather(1, picks[:, None]).squeeze(1).tolist(), entropies


def read(model: PolicyModel, engine: Engine, queries: Sequence[Query]) -> tuple[torch.Tensor, list[Decision]]:
    """Feed what is unread: the states (B, hidden), and decisions that have yet to be found."""
    hidden_BH = engine.feed([query.row for query in queries], [query.unread for query in queries])
    return hidden_BH, [
        Decision(query, value) for query, value in zip(queries, model.values(hidden_BH), strict=True)
    ]


def longest(encoder: Encoder, actions: Sequence[str]) -> int:
    """Tokens of the longest of `actions`."""
    return max((len(encoder.action(action)) for action in actions), default=0)


class ChoosePolicy:
    """Batched decisions over a PolicyModel used for inference. `encoder` and the tries are shared by all episodes."""

    needs_actions = True  # the game must list its valid actions

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder
        self.tries = tries = TrieCache(encoder.action)
        # by way of a variable: a cache that held this policy would keep its model
        self._choices = lru_cache(maxsize=4_000)(lambda actions, most: choices(tries(actions), most))

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest valid action: kept free, so that a decision never has to stop half way.

        AlikeError where two cannot be told apart, which is said here of one game and not amid all of them.
        """
        self.tries(tuple(actions))
        return longest(self.encoder, actions)

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query."""
        decisions = [Decision(query) for query in queries]
        hidden_BH = self.walk(engine, decisions, [query.unread for query in queries], decoding)
        for decision, value in zip(decisions, self.model.values(hidden_BH), strict=True):
            decision.value = value
        return decisions

    def walk(
        self, engine: Engine, decisions: Sequence[Decision], ids: Sequence[Sequence[int]], decoding: Decoding
    ) -> torch.Tensor:
        """Feed ids[i] to the row of decisions[i], and walk the tries down to an action each.

        Returns the states (B, hidden) behind `ids`. What is chosen behind these takes another pass for each depth at
        which tries branch, unless the engine looks ahead: then it is known already, but for what lies too far.
        """
        rows = [decision.query.row for decision in decisions]
        known = [self._choices(decision.query.actions, LOOK if engine.looks_ahead else 0) for decision in decisions]
        if engine.looks_ahead:
            hidden_NH = engine.look_ahead(rows, ids, [found.tree for found in known])
        else:
            hidden_NH = engine.feed(rows, ids)
        for decision, found in zip(decisions, known, strict=True):
            decision.node = found.root
        states = list(accumulate((1 + len(found.tree.tokens) for found in known[:-1]), initial=0))
        undecided = list(zip(decisions, known, states, strict=True))
        while undecided := [each for each in undecided if not each[0].follow_forced()]:
            read = [(d, state + found.places[d.node]) for d, found, state in undecided if d.node in found.places]
            if read:
                here_BH = hidden_NH[torch.tensor([place for _, place in read], device=hidden_NH.device)]
                self.decide([decision for decision, _ in read], here_BH, decoding)
                continue
            left = [decision for decision, _, _ in undecided]
            here_BH = engine.feed([decision.query.row for decision in left], [decision.unread() for decision in left])
            for decision in left:
                decision.fed = len(decision.taken)
            self.decide(left, here_BH, decoding)
        return hidden_NH[torch.tensor(states, device=hidden_NH.device)]

    @torch.inference_mode()
    def decide(self, decisions: Sequence[Decision], hidden_BH: torch.Tensor, decoding: Decoding) -> None:
        """One branching node for each decision: draw a child, record the branch, step down and along forced tokens."""
        widest = max(len(d.node.tokens) for d in decisions)
        children = [list(d.node.tokens) + [-1] * (widest - len(d.node.tokens)) for d in decisions]
        logits = self.model.logits(hidden_BH, torch.tensor(children, device=hidden_BH.device))
        counts = [len(d.node.tokens) for d in decisions]
        drawn = draw(logits, counts, [d.query.rng for d in decisions], decoding)
        for decision, pick, log_prob, entropy in zip(decisions, *drawn, strict=True):
            decision.branches.append(Branch(decision.position, decision.node.tokens, pick))
            decision.log_prob += log_prob
            decision.entropy += entropy
            decision.taken.append(decision.node.tokens[pick])
            decision.node = decision.node.child(pick)

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """The branches on the way to a teacher's action behind the id at `state_position`."""
        ids = self.encoder.action(action)
        found = path_branches(self.tries(actions), ids)
        return Lesson(
            ids, tuple(Branch(state_position + offset, children, chosen) for offset, children, chosen in found)
        )

    def weigh(self, turn: Turn, ids: Sequence[int], temperature: float) -> list[tuple[str, float]]:
        """pi of each valid action at a turn of the segment `ids`, likeliest first."""
        before = ids[: turn.state_position + 1 + turn.thought_ids]
        return action_probabilities(self.model, self.tries(turn.observation.actions or ()), before, temperature)
