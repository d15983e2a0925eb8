"""The `score` policy: a softmax over the model's scores of whole valid actions (GLAM, TWOSOME).

The score of an action is the log-probability of its text over the whole vocabulary: summed (Carta et al. 2023, GLAM),
or the mean per token or per word (Tan et al. 2024, TWOSOME), since sums favour short actions. All actions of a state
form one tree that shares the cache of the prefix and is read in one pass, a large one in several.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grue.engine.engine import Engine
from grue.engine.tree import candidate_tree, flat_paths, state_places
from grue.models.policy_model import PolicyModel
from grue.models.scores import candidate_scores
from grue.policy.decision import Decision, Decoding, Lesson, Query, draw
from grue.policy.trie import build_trie
from grue.policy.weigh import CachedText, candidate_weights
from grue.prompts.tokens import Encoder
from grue.types import Branch, Candidate, Turn

LOOK_TOKENS = 8192  # of all rows in one pass


class ScorePolicy:
    """Like ChoosePolicy, with whole actions in place of tokens."""

    needs_actions = True

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest valid action; the trees are not part of the sequence. AlikeError if two are equal."""
        encoded = [ids for _, ids in self._encoded(actions)]
        if len(set(encoded)) < len(encoded):
            build_trie(actions, self.encoder.action)  # says which
        return max(map(len, encoded), default=0)

    def candidates(self, actions: Sequence[str]) -> tuple[Candidate, ...]:
        """The actions with what their scores are divided by."""
        return tuple(Candidate(ids, self._divisor(action, ids)) for action, ids in self._encoded(actions))

    @torch.inference_mode()
    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query."""
        decisions = [Decision(query, candidates=self.candidates(query.actions)) for query in queries]
        for part in _parts(decisions):
            hidden_BH, scores_BC = self.scores(engine, part)
            counts = [len(decision.candidates) for decision in part]
            drawn = draw(scores_BC, counts, [decision.query.rng for decision in part], decoding)
            found = zip(part, self.model.values(hidden_BH), *drawn, strict=True)
            for decision, value, pick, log_prob, entropy in found:
                decision.value, chosen = value, decision.candidates[pick]
                if len(decision.candidates) > 1:
                    decision.log_prob, decision.entropy = log_prob, entropy
                    decision.branches = [Branch(decision.position, tuple(range(len(decision.candidates))), pick)]
                else:
                    decision.candidates = ()  # there was nothing to choose
                decision.action, decision.taken = decision.query.actions[pick], list(chosen.ids)
        return decisions

    @torch.inference_mode()
    def scores(self, engine: Engine, decisions: Sequence[Decision]) -> tuple[torch.Tensor, torch.Tensor]:
        """States (B, hidden), and scores (B, C) of the candidates of each decision, -inf where it has fewer."""
        queries, trees = [d.query for d in decisions], [candidate_tree(d.candidates) for d in decisions]
        rows = [query.row for query in queries]
        hidden_NH = engine.look_ahead(rows, [query.unread for query in queries], trees)
        paths = flat_paths([decision.candidates for decision in decisions]).to(hidden_NH.device)
        widest = max(len(decision.candidates) for decision in decisions)
        scores_BC = candidate_scores(self.model.vocabulary_logits, hidden_NH, paths, (len(decisions), widest))
        return hidden_NH[torch.tensor(state_places(trees), device=hidden_NH.device)], scores_BC

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """The one branch, among all valid actions, that a teacher took after the id at `state_position`."""
        if len(actions) == 1:
            return Lesson(self.encoder.action(action))
        branch = Branch(state_position, tuple(range(len(actions))), actions.index(action))
        return Lesson(self.encoder.action(action), (branch,), self.candidates(actions))

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """pi of each valid action at a turn of the segment `ids`, likeliest first."""
        actions = turn.observation.actions or ()
        scores_K = candidate_weights(self.model, self.candidates(actions), ids[: turn.state_position + 1], text)
        probabilities = torch.softmax(scores_K / temperature, -1).tolist()
        return sorted(zip(actions, probabilities, strict=True), key=lambda pair: -pair[1])

    def _encoded(self, actions: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
        return [(action, self.encoder.action(action)) for action in actions]

    def _divisor(self, action: str, ids: tuple[int, ...]) -> float:
        normalise = self.encoder.prompt.normalise
        return {"sum": 1.0, "token": float(len(ids)), "word": float(max(1, len(action.split())))}[normalise]


def _parts(decisions: Sequence[Decision]) -> list[list[Decision]]:
    """The decisions in parts that read similar numbers of tokens, each small enough for one pass."""
    sizes = [len(d.query.unread) + len(candidate_tree(d.candidates).tokens) for d in decisions]
    parts: list[list[Decision]] = []
    widest = 0
    for size, decision in sorted(zip(sizes, decisions, strict=True), key=lambda pair: -pair[0]):
        if parts and (len(parts[-1]) + 1) * widest <= LOOK_TOKENS:
            parts[-1].append(decision)
        else:
            parts.append([decision])
            widest = size
    return parts
