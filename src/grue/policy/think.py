"""The `think` policy: one bounded line of free text, then `choose`. The thought is part of what was decided."""

from __future__ import annotations

from collections.abc import Sequence

from grue.engine.engine import Engine
from grue.models.policy_model import PolicyModel
from grue.policy.choose import ChoosePolicy
from grue.policy.decision import Decision, Decoding, Lesson, Query, read
from grue.policy.weigh import CachedText
from grue.policy.write import write_lines
from grue.prompts.tokens import Encoder
from grue.types import Turn


class ThinkPolicy:
    """A thought, a marker, and an action that is chosen from the trie of valid ones."""

    needs_actions = True

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder
        self._choose = ChoosePolicy(model, encoder)

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest thought, of the marker, and of the longest action."""
        marker = len(self.encoder.after_thought(()))
        return self.encoder.prompt.thought_tokens + marker + self._choose.room(actions)

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query."""
        hidden_BH, decisions = read(self.model, engine, queries)
        most = self.encoder.prompt.thought_tokens
        write_lines(self.model, self.encoder, engine, decisions, hidden_BH, decoding, most)
        for decision in decisions:
            decision.thought = self.encoder.text(decision.taken)
            decision.taken += self.encoder.after_thought(decision.taken)
            decision.thought_ids = len(decision.taken)
        self._choose.act_behind(engine, decisions, decoding)
        return decisions

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """A teacher gives no thoughts: an empty one is context, and only the action is learnt."""
        silence = self.encoder.after_thought(())
        found = self._choose.lesson(actions, action, state_position + len(silence))
        return Lesson(silence + found.ids, found.branches, thought_ids=len(silence))

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """pi of each valid action after the thought of a turn, likeliest first."""
        return self._choose.weigh(turn, ids, temperature, text)
