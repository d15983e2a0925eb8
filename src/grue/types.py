"""The nouns of grue: task, observation, turn, segment, episode, outcome. Frozen, and free of torch.

Everything else in the package speaks these types. Text is for people; `Segment.ids` is what a model
reads and is trained on, and ids are only ever appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How an episode ended."""

    WON = "won"
    LOST = "lost"
    LIMIT = "limit"  # the step limit was reached: part of the task, so no bootstrap by default
    FAILED = "failed"  # the game crashed: counted and shown, left out of every loss and mean


@dataclass(frozen=True, slots=True)
class Task:
    """One game to play. Equal tasks give equal texts."""

    game: str  # "cookingworld", "coin", ..., "toy"
    params: str  # canonical "key=value,key=value", keys in the engine's own order; may be empty
    fold: str  # train | dev | test | pretrain
    seed: int
    limit: int  # steps the player may take


@dataclass(frozen=True, slots=True)
class Observation:
    """What a game shows before an action."""

    text: str
    goal: str  # the task text; constant in an episode
    inventory: str
    actions: tuple[str, ...] | None  # sorted valid actions; None where the engine cannot list them
    score: float  # normalised: 1.0 is a win
    to_go: int | None = None  # steps that a win still takes, for critics only; None: unknown, or not asked for

    @property
    def texts(self) -> tuple[str, ...]:
        """All that can be read in it."""
        return (self.text, self.goal, self.inventory, *(self.actions or ()))


@dataclass(frozen=True, slots=True)
class Branch:
    """A point on the way to an action where it could have gone elsewhere: in `choose`, a node of the action trie."""

    position: int  # index in Segment.ids of the token whose logits decide here
    children: Sequence[int]  # token ids among which the policy chose; a range is the whole vocabulary (free text)
    chosen: int  # index into children


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole action that `score` or `aligned` weighed; its branch then chooses among candidates, not among tokens."""

    ids: tuple[int, ...]
    divisor: float  # the summed log-probability is divided by this: 1, the number of tokens, or the number of words


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision: what was seen, what was done, what came of it. The policy fields are 0 for scripted players."""

    observation: Observation
    action: str
    reward: float  # change of the normalised score
    valid: bool = True  # False: the game did not list this action, or a written reply was not an action
    log_prob: float = 0.0  # of all choices, under the distribution they were drawn from (nats)
    entropy: float = 0.0  # summed over the branches (nats)
    value: float = 0.0  # the critic's estimate before the action
    segment: int = 0  # index into Episode.segments
    state_position: int = 0  # index in Segment.ids of the last token before the action
    branches: tuple[Branch, ...] = ()
    candidates: tuple[Candidate, ...] = ()  # `score` and `aligned` only
    over_vocabulary: bool = False  # a teacher's turn: its log-probabilities are over the whole vocabulary
    thought: str = ""  # `think` only: what was written before the action
    thought_ids: int = 0  # ids between the state and the action
    advice: str = ""  # what a watching teacher would have done; "": none was asked, or it had none

    @property
    def is_context(self) -> bool:
        """True for a teacher's invalid action: it stays in the transcript, and nothing is learnt from it."""
        return not self.valid and not self.branches


@dataclass(frozen=True, slots=True)
class Segment:
    """One append-only token sequence: task, (observation, action)*, observation."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """One game played by one player, from reset to an outcome."""

    task: Task
    player: str  # "gold", "random", "choose", ...
    turns: tuple[Turn, ...]
    outcome: Outcome
    final: Observation | None  # what the game showed last; None when it failed before showing anything
    segments: tuple[Segment, ...] = ()
    error: str = ""  # why it failed, for Outcome.FAILED
    last_value: float = 0.0  # the critic's value of `final` for a game at its limit, if `collect` was asked for it
    problem: str = ""  # what the game poses, where others may pose the same (`games.alike`); "" where nobody looked

    @property
    def first(self) -> Observation | None:
        """What the game showed first; None if it failed before that."""
        return self.turns[0].observation if self.turns else self.final

    @property
    def score(self) -> float:
        return self.final.score if self.final is not None else 0.0

    @property
    def steps(self) -> int:
        return len(self.turns)

    @property
    def won(self) -> bool:
        return self.outcome is Outcome.WON

    @property
    def failed(self) -> bool:
        return self.outcome is Outcome.FAILED
