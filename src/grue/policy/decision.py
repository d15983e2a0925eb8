"""What all policies share: the query of a seat that is to act, the decision that answers it, and the draw."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

import torch

from grue.engine.engine import Engine
from grue.errors import ConfigError, ModelError
from grue.models.policy_model import PolicyModel
from grue.policy.trie import Node
from grue.types import Branch, Candidate, Turn


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an action is drawn. Greedy takes the likeliest child at every branching node."""

    greedy: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.greedy, bool):  # any text would be true
            raise ConfigError(
                f"greedy={self.greedy!r} is no bool",
                hint="Decoding(greedy=True), or Decoding(temperature=1.0) to sample",
            )
        if not isinstance(self.temperature, Real) or isinstance(self.temperature, bool):
            raise ConfigError(f"temperature={self.temperature!r} is not a number", hint="1.0 changes nothing")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(
                f"a temperature of {self.temperature} cannot be used for drawing",
                hint="it is above 0; Decoding(greedy=True) takes the likeliest action",
            )


def not_finite() -> ModelError:
    """What is said of a decision that is not `is_finite`."""
    return ModelError(
        "the model gave a number that is not finite",
        hint="in float16 numbers overflow: set model.dtype to bfloat16 or float32. In these the weights have diverged: "
        "lower the learning rate",
    )


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
    """The decisions by which a policy would do what a teacher did. `ids` are appended to the segment."""

    ids: tuple[int, ...]
    branches: tuple[Branch, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    thought_ids: int = 0
    over_vocabulary: bool = False  # as in Turn


@dataclass(slots=True)
class Decision:
    """The answer to a query, while it is being made and afterwards."""

    query: Query
    value: float = 0.0  # the critic's estimate at the state
    action: str = ""  # what was decided on
    taken: list[int] = field(default_factory=list)  # ids after those of the query
    fed: int = 0  # how many of `taken` the engine has seen
    log_prob: float = 0.0
    entropy: float = 0.0
    branches: list[Branch] = field(default_factory=list)
    candidates: tuple[Candidate, ...] = ()
    valid: bool = True
    thought: str = ""
    thought_ids: int = 0
    node: Node = field(default_factory=Node)  # its current place in a trie, for policies that walk one

    @property
    def is_finite(self) -> bool:
        """False where the model gave something else than numbers: in float16 they may overflow."""
        return math.isfinite(self.value) and math.isfinite(self.log_prob)

    @property
    def position(self) -> int:
        """Index in the segment of the last id so far, whose logits decide what comes next."""
        return self.query.offset + len(self.taken) - 1

    def unread(self) -> list[int]:
        return self.taken[self.fed :]

    def recorded_in(self, turn: Turn, segment: int) -> Turn:
        """`turn` with how its action was decided, in the segment of this number."""
        return replace(
            turn,
            valid=self.valid,
            log_prob=self.log_prob,
            entropy=self.entropy,
            value=self.value,
            segment=segment,
            state_position=self.query.offset - 1,
            branches=tuple(self.branches),
            candidates=self.candidates,
            thought=self.thought,
            thought_ids=self.thought_ids,
        )

    def follow_forced(self) -> bool:
        """Walk down while there is no choice. True when an action has been reached."""
        while len(self.node.tokens) == 1 and self.node.only is None:
            self.taken.append(self.node.tokens[0])
            self.node = self.node.child(0)
        if self.node.only is None:
            return False
        rest, self.action = self.node.only
        self.taken += rest
        self.node = Node([((), self.action)])  # the end of the walk
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
        # not <, with which a draw of exactly 0 would take a first child of probability 0
        picks = (cumulative <= draws * cumulative[:, -1:]).sum(-1)
        picks = torch.minimum(picks, torch.tensor(counts, device=logits_BC.device) - 1)
    return picks.tolist(), log_probs_BC.gather(1, picks[:, None]).squeeze(1).tolist(), entropies


def read(model: PolicyModel, engine: Engine, queries: Sequence[Query]) -> tuple[torch.Tensor, list[Decision]]:
    """Feed what is unread; returns the states (B, hidden) and decisions that have yet to be made."""
    hidden_BH = engine.feed([query.row for query in queries], [query.unread for query in queries])
    return hidden_BH, [Decision(query, value) for query, value in zip(queries, model.values(hidden_BH), strict=True)]


def feed(engine: Engine, decisions: Sequence[Decision]) -> torch.Tensor:
    """Feed what decisions have taken so far; returns the states (B, hidden) in which they go on."""
    hidden_BH = engine.feed([decision.query.row for decision in decisions], [one.unread() for one in decisions])
    for decision in decisions:
        decision.fed = len(decision.taken)
    return hidden_BH
