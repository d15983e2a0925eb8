"""The `write` policy: free text up to a newline. A reply that is not a valid action is a turn too, marked invalid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from grue.engine.engine import Engine
from grue.games.guard import as_played
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decision, Decoding, Lesson, Query, draw, feed, read
from grue.policy.weigh import CachedText, candidate_weights
from grue.prompts.tokens import Encoder
from grue.types import Branch, Candidate, Turn


class WritePolicy:
    """Like ChoosePolicy, but every token is drawn from the whole vocabulary, or from its top-p part."""

    needs_actions = False

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest reply, and of what closes it."""
        return self.encoder.prompt.reply_tokens + len(self.encoder.closing(()))

    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query."""
        hidden_BH, decisions = read(self.model, engine, queries)
        write_lines(self.model, self.encoder, engine, decisions, hidden_BH, decoding, self.encoder.prompt.reply_tokens)
        for decision, query in zip(decisions, queries, strict=True):
            decision.action = as_played(self.encoder.text(decision.taken), query.actions)
            decision.valid = decision.action in query.actions if query.actions else bool(decision.action)
            decision.taken += self.encoder.closing(decision.taken)
        return decisions

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """Every token of a teacher's action, chosen from the whole vocabulary."""
        ids = self.encoder.action(action)
        return Lesson(ids, vocabulary_branches(self.model, ids, state_position))

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """The probability that the text of each valid action is written, likeliest first; they need not sum to 1.

        Over the whole vocabulary, at temperature 1: a product over tokens has no temperature of its own.
        """
        actions = turn.observation.actions or ()
        if not actions:
            return []
        encoded = {action: self.encoder.action(action) for action in actions}
        most = self.encoder.prompt.reply_tokens  # what is longer is never written
        short = {action: Candidate(found, 1.0) for action, found in encoded.items() if len(found) <= most}
        found = dict.fromkeys(actions, 0.0)
        if short:
            scores_K = candidate_weights(self.model, [*short.values()], ids[: turn.state_position + 1], text)
            found |= zip(short, scores_K.exp().tolist(), strict=True)
        return sorted(found.items(), key=lambda pair: -pair[1])


def vocabulary_branches(model: PolicyModel, ids: Sequence[int], state_position: int) -> tuple[Branch, ...]:
    """A branch over the whole vocabulary for each of `ids`, which follow the id at `state_position`."""
    everything = range(model.vocabulary)
    return tuple(Branch(state_position + place, everything, token) for place, token in enumerate(ids))


def write_lines(
    model: PolicyModel,
    encoder: Encoder,
    engine: Engine,
    decisions: Sequence[Decision],
    hidden_BH: torch.Tensor,
    decoding: Decoding,
    most: int,
) -> None:
    """Draw tokens for each decision until one ends its line, at most `most`. The last token of each is not fed."""
    writing = list(decisions)
    for count in range(1, most + 1):
        _write_token(model, writing, hidden_BH, decoding, encoder.prompt.top_p)
        writing = [decision for decision in writing if not encoder.ends(decision.taken[-1])]
        if not writing or count == most:
            return
        hidden_BH = feed(engine, writing)


@torch.inference_mode()
def _write_token(
    model: PolicyModel, decisions: Sequence[Decision], hidden_BH: torch.Tensor, decoding: Decoding, top_p: float
) -> None:
    """One token for each decision, with the set that it was drawn from: training renormalises over the same set."""
    logits_BV = model.vocabulary_logits(hidden_BH)
    count = logits_BV.shape[1]
    kept_BV = None
    if top_p < 1 and not decoding.greedy:  # the likeliest token is in every nucleus, and sorting all takes long
        kept_BV = nucleus(logits_BV / decoding.temperature, top_p)
        logits_BV = logits_BV.masked_fill(~kept_BV, float("-inf"))
    drawn = draw(logits_BV, [count] * len(decisions), [decision.query.rng for decision in decisions], decoding)
    for place, (decision, token, log_prob, entropy) in enumerate(zip(decisions, *drawn, strict=True)):
        children: Sequence[int] = range(count)
        if kept_BV is not None:
            known = _ids(count)
            children = tuple(known[token] for token in kept_BV[place].nonzero()[:, 0].tolist())
        if len(children) > 1:
            decision.branches.append(Branch(decision.position, children, children.index(token)))
        decision.log_prob += log_prob
        decision.entropy += entropy
        decision.taken.append(token)


@lru_cache(maxsize=1)
def _ids(vocabulary: int) -> tuple[int, ...]:
    """The ids, to be shared by all nuclei: an int of one's own takes four times as much memory as its place."""
    return tuple(range(vocabulary))


def nucleus(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Bool (B, V): the fewest likeliest tokens whose mass reaches top_p (Holtzman et al. 2020), at least one."""
    sorted_BV, order_BV = torch.softmax(logits_BV, -1).sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    keep_BV = before_BV < top_p
    keep_BV[:, 0] = True
    return torch.zeros_like(keep_BV).scatter(1, order_BV, keep_BV)
