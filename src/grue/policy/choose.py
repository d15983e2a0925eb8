"""The `choose` policy: the model picks among the game's valid actions, node by node down the token trie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from grue.engine.engine import Engine
from grue.engine.tree import state_places
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decision, Decoding, Lesson, Query, draw, feed
from grue.policy.trie import TrieCache, joined, path_branches
from grue.policy.weigh import CachedText, action_probabilities
from grue.prompts.tokens import Encoder
from grue.types import Branch, Turn


class ChoosePolicy:
    """Batched decisions over a PolicyModel used for inference. `encoder` and the tries are shared by all episodes."""

    needs_actions = True  # the game must list its valid actions
    looks_ahead = True  # if the engine does; not where each choice needs a `decide` of its own (experiments)

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder
        self.tries = TrieCache(encoder.action)

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest valid action: kept free, so that a decision never has to stop half way.

        AlikeError if two cannot be told apart: raised here, it concerns one game and not the whole batch.
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
            # a node after a forced token needs that token fed first; the others begin at the state
            at_state = [place for place, decision in enumerate(decisions) if len(decision.node.tokens) > 1]
            if at_state:
                self.decide([decisions[place] for place in at_state], hidden_BH[at_state], decoding)
        self._walk(engine, decisions, decoding)
        for decision, value in zip(decisions, self.model.values(hidden_BH), strict=True):
            decision.value = value
        return decisions

    def act_behind(self, engine: Engine, decisions: Sequence[Decision], decoding: Decoding) -> None:
        """Finish decisions that have already taken some ids, the last of which are unread."""
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
        """Walk each trie down to an action, with one pass for each depth at which they branch."""
        undecided = list(decisions)
        while undecided := [decision for decision in undecided if not decision.follow_forced()]:
            self.decide(undecided, feed(engine, undecided), decoding)

    @torch.inference_mode()
    def _decide_ahead(
        self, engine: Engine, decisions: Sequence[Decision], ids: Sequence[Sequence[int]], decoding: Decoding
    ) -> torch.Tensor:
        """Feed ids[i] to the row of decisions[i], and decide as far as the look-ahead reaches.

        One pass, one product with the output layer, then draws from the result. Returns the states (B, hidden) after
        `ids`.
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
            self.draw_nodes([decision for decision, _, _ in undecided], logits_KC[places], decoding)
        return hidden_NH[torch.tensor(states, device=hidden_NH.device)]

    @torch.inference_mode()
    def decide(self, decisions: Sequence[Decision], hidden_BH: torch.Tensor, decoding: Decoding) -> None:
        """One branching node for each decision, whose state is in hidden_BH: draw a child, step down.

        Not called where the engine looks ahead.
        """
        widest = max(len(d.node.tokens) for d in decisions)
        children = [list(d.node.tokens) + [-1] * (widest - len(d.node.tokens)) for d in decisions]
        self.draw_nodes(
            decisions, self.model.logits(hidden_BH, torch.tensor(children, device=hidden_BH.device)), decoding
        )

    def draw_nodes(self, decisions: Sequence[Decision], logits_BC: torch.Tensor, decoding: Decoding) -> None:
        """Draw a child of the node of each decision, record the branch, and step down.

        Every draw goes through this, with look-ahead and without: what explores in another way overrides it, with
        other logits (B, C) of the children; -inf pads.
        """
        counts = [len(d.node.tokens) for d in decisions]
        drawn = draw(logits_BC, counts, [d.query.rng for d in decisions], decoding)
        for decision, pick, log_prob, entropy in zip(decisions, *drawn, strict=True):
            decision.branches.append(Branch(decision.position, decision.node.tokens, pick))
            decision.log_prob += log_prob
            decision.entropy += entropy
            decision.taken.append(decision.node.tokens[pick])
            decision.node = decision.node.child(pick)

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """The branches on the way to a teacher's action after the id at `state_position`."""
        ids = self.encoder.action(action)
        found = path_branches(self.tries(actions), ids)
        return Lesson(
            ids, tuple(Branch(state_position + offset, children, chosen) for offset, children, chosen in found)
        )

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """pi of each valid action at a turn of the segment `ids`, likeliest first."""
        before = ids[: turn.state_position + 1 + turn.thought_ids]
        return action_probabilities(self.model, self.tries(turn.observation.actions or ()), before, temperature, text)
