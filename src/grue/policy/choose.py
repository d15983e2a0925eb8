"""The `choose` policy: the model picks among the game's valid actions, node by node down the token trie.

Also what all policies share: the query of a seat that is to act, the decision that answers it, and the draw.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from grue.errors import ConfigError
from grue.models.policy_model import PolicyModel
from grue.policy.engine import Engine
from grue.policy.tree import state_places
from grue.policy.trie import Node, TrieCache, joined, path_branches
from grue.policy.weigh import action_probabilities
from grue.prompts.tokens import Encoder
from grue.types import Branch, Candidate, Turn


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
    """A seat that is to act: its row in the engine, the valid actions, and how long its segment is.

    `unread` are the last ids of the segment, which the engine has not been fed; at least one.
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
        while len(self.node.tokens) == 1 and self.node.only is None:
            self.taken.append(self.node.tokens[0])
            self.node = self.node.child(0)
        if self.node.only is None:
            return False
        rest, self.action = self.node.only
        self.taken += rest
        self.node = Node([((), self.action)])  # there is no further to go
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
    return hidden_BH, [Decision(query, value) for query, value in zip(queries, model.values(hidden_BH), strict=True)]


class ChoosePolicy:
    """Batched decisions over a PolicyModel used for inference. `encoder` and the tries are shared by all episodes."""

    needs_actions = True  # the game must list its valid actions
    looks_ahead = True  # where the engine does

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder
        self.tries = TrieCache(encoder.action)

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest valid action: kept free, so that a decision never has to stop half way.

        AlikeError where two cannot be told apart, which is said here of one game and not amid all of them.
        """
        return self.tries.longest(tuple(actions))

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query."""
        decisions, ids = [Decision(query) for query in queries], [query.unread for query in queries]
        if engine.looks_ahead and self.looks_ahead:
            hidden_BH = self._decide_ahead(engine, decisions, ids, decoding)
        else:
            hidden_BH = engine.feed([query.row for query in queries], ids)
            self._begin(decisions)
            # a node that follows a forced token has to be fed it first; the others begin at the state
            at_state = [place for place, decision in enumerate(decisions) if len(decision.node.tokens) > 1]
            if at_state:
                self.decide([decisions[place] for place in at_state], hidden_BH[at_state], decoding)
        self._walk(engine, decisions, decoding)
        for decision, value in zip(decisions, self.model.values(hidden_BH), strict=True):
            decision.value = value
        return decisions

    def act_behind(self, engine: Engine, decisions: Sequence[Decision], decoding: Decoding) -> None:
        """Finish decisions of which something has been taken already, the last of it unread."""
        if engine.looks_ahead and self.looks_ahead:
            unread = [decision.unread() for decision in decisions]
            for decision in decisions:
                decision.fed = len(decision.taken)
            self._decide_ahead(engine, decisions, unread, decoding)
        else:
            self._begin(decisions)
        self._walk(engine, decisions, decoding)

    def _begin(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            decision.node = self.tries(decision.query.actions)

    def _walk(self, engine: Engine, decisions: Sequence[Decision], decoding: Decoding) -> None:
        """Walk the tries down to an action each, one pass a depth at which they branch."""
        undecided = list(decisions)
        while undecided := [decision for decision in undecided if not decision.follow_forced()]:
            hidden_BH = engine.feed([d.query.row for d in undecided], [d.unread() for d in undecided])
            for decision in undecided:
                decision.fed = len(decision.taken)
            self.decide(undecided, hidden_BH, decoding)

    @torch.inference_mode()
    def _decide_ahead(
        self, engine: Engine, decisions: Sequence[Decision], ids: Sequence[Sequence[int]], decoding: Decoding
    ) -> torch.Tensor:
        """Feed ids[i] to the row of decisions[i], and decide as far as a look ahead tells.

        One pass, one product with the output layer, and draws from what came of it. Returns the states (B, hidden)
        behind `ids`.
        """
        known = [self.tries.choices(decision.query.actions) for decision in decisions]
        rows, trees = [decision.query.row for decision in decisions], [found.tree for found in known]
        hidden_NH = engine.look_ahead(rows, ids, trees)
        states = state_places(trees)
        firsts = list(accumulate((len(found.nodes) for found in known[:-1]), initial=0))
        read_K, children_KC = joined(known, states)
        logits_KC = self.model.logits(
            hidden_NH[torch.from_numpy(read_K).to(hidden_NH.device)],
            torch.from_numpy(children_KC).to(hidden_NH.device),
        ).cpu()
        for decision, found in zip(decisions, known, strict=True):
            decision.node = found.root
        undecided = list(zip(decisions, known, firsts, strict=True))
        while undecided := [
            (decision, found, first)
            for decision, found, first in undecided
            if not decision.follow_forced() and decision.node in found.nodes
        ]:
            places = [first + found.nodes[decision.node] for decision, found, first in undecided]
            self._draw([decision for decision, _, _ in undecided], logits_KC[places], decoding)
        return hidden_NH[torch.tensor(states, device=hidden_NH.device)]

    @torch.inference_mode()
    def decide(self, decisions: Sequence[Decision], hidden_BH: torch.Tensor, decoding: Decoding) -> None:
        """One branching node for each decision, whose state is in hidden_BH: draw a child, step down."""
        widest = max(len(d.node.tokens) for d in decisions)
        children = [list(d.node.tokens) + [-1] * (widest - len(d.node.tokens)) for d in decisions]
        self._draw(decisions, self.model.logits(hidden_BH, torch.tensor(children, device=hidden_BH.device)), decoding)

    def _draw(self, decisions: Sequence[Decision], logits_BC: torch.Tensor, decoding: Decoding) -> None:
        """Draw a child of the node of each decision, record the branch, and step down."""
        counts = [len(d.node.tokens) for d in decisions]
        drawn = draw(logits_BC, counts, [d.query.rng for d in decisions], decoding)
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
