"""What play, training and evaluation ask of a policy, and the policy that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grue.engine.engine import Engine
from grue.errors import ModelError
from grue.models.policy_model import PolicyModel
from grue.policy.aligned import AlignedPolicy
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decision, Decoding, Lesson, Query
from grue.policy.score import ScorePolicy
from grue.policy.think import ThinkPolicy
from grue.policy.weigh import CachedText
from grue.policy.write import WritePolicy
from grue.prompts.tokens import Encoder
from grue.types import Turn


class Policy(Protocol):
    """A language model that acts. Training recomputes the same log-probs from the branches of its decisions."""

    model: PolicyModel
    encoder: Encoder
    needs_actions: bool  # the game must list its valid actions

    def room(self, actions: Sequence[str]) -> int:
        """Tokens that a decision may need after the observation."""

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query, after its unread ids have been fed.

        Of the ids that a decision has `taken` the engine has been fed the first `fed`, and nothing after them
        (`Engine.reset` takes back what was fed too much). Greedy decoding, too, reports log-probabilities at the
        temperature of `decoding`.
        """

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """The decisions by which the policy would do what a teacher did."""

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """The probability of each valid action at a turn of the segment `ids`, likeliest first.

        A `text` that is given again for the next turn spares reading again what came before.
        """


def decide(policy: Policy, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
    """`policy.act`, with what it gives held against its contract. ModelError where a class breaks that.

    A row of the engine that holds other ids than the transcript would make all later turns of its game wrong.
    """
    decisions, kind = policy.act(engine, queries, decoding), type(policy).__name__
    if len(decisions) != len(queries) or not all(isinstance(one, Decision) for one in decisions):
        raise ModelError(f"act of {kind} gave no list of {len(queries)} Decisions", hint="one for each query, in order")
    for query, decision in zip(queries, decisions, strict=True):
        if not decision.taken:
            raise ModelError(f"act of {kind} gave a Decision without ids", hint="Decision.taken: those of its action")
        held, due = engine.lengths[query.row], query.offset + decision.fed
        if held != due:
            raise ModelError(
                f"act of {kind} left {held} ids in a row of the engine that should hold {due}",
                hint="feed the unread ids of every query (grue.policy.decision.read); Decision.fed is how many of its "
                "own ids the engine has read, and engine.reset(query.row, length) takes back the others",
            )
        if not _leads_to_what_was_taken(decision):
            raise ModelError(
                f"act of {kind} decided on {decision.action!r}, but its branches lead elsewhere",
                hint="training makes the branches likelier: Branch.chosen is what Decision.taken holds there",
            )
    return decisions


def _leads_to_what_was_taken(decision: Decision) -> bool:
    """Do the branches choose the ids that were taken?"""
    for branch in decision.branches:
        place, child = branch.position + 1 - decision.query.offset, branch.children[branch.chosen]
        chosen = decision.candidates[child].ids if decision.candidates else (child,)
        if tuple(decision.taken[place : place + len(chosen)]) != tuple(chosen):
            return False
    return True


def make_policy(model: PolicyModel, encoder: Encoder) -> Policy:
    """The policy that the encoder's settings (`policy.kind`) name."""
    match encoder.prompt.kind:
        case "choose":
            return ChoosePolicy(model, encoder)
        case "aligned":
            return AlignedPolicy(model, encoder)
        case "score":
            return ScorePolicy(model, encoder)
        case "write":
            return WritePolicy(model, encoder)
        case "think":
            return ThinkPolicy(model, encoder)
