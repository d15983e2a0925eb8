"""What play, training and evaluation ask of a policy, and the policy that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grue.engine.engine import Engine
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

        Greedy decoding, too, reports log-probabilities at the temperature of `decoding`.
        """

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """The decisions by which the policy would do what a teacher did."""

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """The probability of each valid action at a turn of the segment `ids`, likeliest first.

        A `text` that is given again for the next turn spares reading again what came before.
        """


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
