"""The `score` policy: a softmax over whole valid actions of what the model thinks of each (GLAM, TWOSOME).

The score of an action is the log-probability of its text over the whole vocabulary: summed (Carta et al. 2023, GLAM),
or the mean per token or per word (Tan et al. 2024, TWOSOME), since sums favour short actions. All actions of a state
are one tree that shares the cache of the prefix, read in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grue.models.policy_model import PolicyModel
from grue.models.scores import candidate_scores
from grue.policy.choose import Decision, Decoding, Lesson, Query, draw, longest
from grue.policy.engine import Engine
from grue.policy.tree import candidate_tree, flat_paths
from grue.policy.weigh import candidate_weights
from grue.prompts.tokens import Encoder
from grue.types import Branch, Candidate, Turn

LOOK_TOKENS = 8192  # of all trees in one pass


class ScorePolicy:
    """Like ChoosePolicy, with whole actions in place of tokens."""

    needs_actions = True

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest valid action; the trees themselves are not part of the sequence."""
        return longest(self.encoder, actions)

    def candidates(self, actions: Sequence[str]) -> tuple[Candidate, ...]:
        """The actions with what their scores are divided by."""
        return tuple(Candidate(ids, self._divisor(action, ids)) for action, ids in self._encoded(actions))

    @torch.inference_mode()
    def act(
        self, engine: Engine, queries: Sequence[Query], hidden_BH: torch.Tensor, decoding: Decoding
    ) -> list[Decision]:
        """A finished decision for each query, whose state is in hidden_BH."""
        decisions = []
        open_places = []  # of queries with more than one action
        for place, query in enumerate(queries):
            decision = Decision(query, query.actions[0])
            if len(query.actions) > 1:
                decision.candidates = self.candidates(query.actions)
                open_places.append(place)
            else:
                decision.taken = list(self.encoder.action(query.actions[0]))
            decisions.append(decision)
        for part in self._parts(open_places, decisions):
            scores_BC = self.scores(engine, [decisions[place] for place in part], hidden_BH[part])
            counts = [len(decisions[place].candidates) for place in part]
            rngs = [queries[place].rng for place in part]
            for place, pick, log_prob, entropy in zip(part, *draw(scores_BC, counts, rngs, decoding), strict=True):
                decision, chosen = decisions[place], decisions[place].candidates[pick]
                decision.branches = [Branch(decision.position, tuple(range(len(decision.candidates))), pick)]
                decision.log_prob, decision.entropy = log_prob, entropy
                decision.action, decision.taken = queries[place].actions[pick], list(chosen.ids)
        return decisions

    @torch.inference_mode()
    def scores(self, engine: Engine, decisions: Sequence[Decision], hidden_BH: torch.Tensor) -> torch.Tensor:
        """Scores (B, C) of the candidates of each decision, -inf where it has fewer."""
        trees = [candidate_tree(decision.candidates) for decision in decisions]
        states = [hidden[None] for hidden in hidden_BH]
        deep = [place for place, tree in enumerate(trees) if tree.tokens]  # others: every action is one token
        if deep:
            ahead = engine.look_ahead([decisions[place].query.row for place in deep], [trees[place] for place in deep])
            for place, hidden_nH in zip(deep, ahead.split([len(trees[p].tokens) for p in deep]), strict=True):
                states[place] = torch.cat([states[place], hidden_nH])
        paths = flat_paths([decision.candidates for decision in decisions]).to(hidden_BH.device)
        widest = max(len(decision.candidates) for decision in decisions)
        return candidate_scores(self.model.vocabulary_logits, torch.cat(states), paths, (len(decisions), widest))

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """The one branch, among all valid actions, that a teacher took behind the id at `state_position`."""
        if len(actions) == 1:
            return Lesson(self.encoder.action(action))
        branch = Branch(state_position, tuple(range(len(actions))), actions.index(action))
        return Lesson(self.encoder.action(action), (branch,), self.candidates(actions))

    def weigh(self, turn: Turn, ids: Sequence[int], temperature: float) -> list[tuple[str, float]]:
        """pi of each valid action at a turn of the segment `ids`, likeliest first."""
        actions = turn.observation.actions or ()
        scores_K = candidate_weights(self.model, self.candidates(actions), ids[: turn.state_position + 1])
        probabilities = torch.softmax(scores_K / temperature, -1).tolist()
        return sorted(zip(actions, probabilities, strict=True), key=lambda pair: -pair[1])

    def _encoded(self, actions: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
        return [(action, self.encoder.action(action)) for action in actions]

    def _divisor(self, action: str, ids: tuple[int, ...]) -> float:
        normalise = self.encoder.prompt.normalise
        return {"sum": 1.0, "token": float(len(ids)), "word": float(max(1, len(action.split())))}[normalise]

    def _parts(self, places: Sequence[int], decisions: Sequence[Decision]) -> list[list[int]]:
        """Places with trees of similar size, few enough of them for one pass."""
        sizes = {place: len(candidate_tree(decisions[place].candidates).tokens) for place in places}
        parts: list[list[int]] = []
        for place in sorted(places, key=lambda place: -sizes[place]):
            if parts and (len(parts[-1]) + 1) * sizes[parts[-1][0]] <= LOOK_TOKENS:
                parts[-1].append(place)
            else:
                parts.append([place])
        return parts
