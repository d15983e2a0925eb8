"""The `aligned` policy: what the model would write, given that it is a valid action.

pi(a|s) is p(a|s) over the sum of p over the valid actions, with p the probability of a text over the whole vocabulary.
Going down the trie token by token (`choose`) distorts that: a model that means "dice the carrot", but has no carrot,
says "dice", and then the potato in its hand is the only way to go on (Park et al. 2024, "Grammar-Aligned Decoding").
Here the trees of all likely actions are read ahead in one pass, and one action is drawn as a whole. PPO reads the same
trees, so its gradient is exact; demonstrations are learned as plain text, the chosen action alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from grue.engine.engine import Engine
from grue.models.policy_model import PolicyModel
from grue.models.scores import token_log_probs
from grue.policy.decision import Decision, Decoding, Lesson, Query, draw, read
from grue.policy.menu import Menu, Menus, likely_parts
from grue.policy.trie import TrieCache, path_branches
from grue.policy.weigh import CachedText, candidate_weights
from grue.prompts.tokens import Encoder
from grue.types import Branch, Candidate, Turn


class AlignedPolicy:
    """Draws a whole action among those that are likely enough (min-p, Nguyen et al. 2024).

    An action counts if its first token, and then the whole action, has at least `policy.min_p` times the probability of
    the likeliest one, which keeps the trees small; of large ones only the likely part is read (`likely_parts`).
    """

    needs_actions = True

    def __init__(self, model: PolicyModel, encoder: Encoder) -> None:
        self.model, self.encoder = model, encoder
        self.tries, self._kept = TrieCache(encoder.action), Menus(encoder)
        least = encoder.prompt.min_p
        self._least = math.log(least) if least > 0 else -math.inf

    def room(self, actions: Sequence[str]) -> int:
        """Tokens of the longest valid action; the trees are not part of the sequence. AlikeError as in `choose`."""
        return self.tries.longest(tuple(actions))

    @torch.inference_mode()
    def act(self, engine: Engine, queries: Sequence[Query], decoding: Decoding) -> list[Decision]:
        """A finished decision for each query."""
        hidden_BH, decisions = read(self.model, engine, queries)
        log_probs_BV = torch.log_softmax(self.model.vocabulary_logits(hidden_BH), -1)
        menus = self._menus(log_probs_BV, [query.actions for query in queries])
        self._decide(engine, decisions, menus, log_probs_BV, decoding)
        return decisions

    def _decide(
        self,
        engine: Engine,
        decisions: Sequence[Decision],
        menus: Sequence[Menu],
        log_probs_BV: torch.Tensor,
        decoding: Decoding,
    ) -> None:
        """Draw an action for each decision."""
        rows = [decision.query.row for decision in decisions]
        log_probs_P = self._read(engine, rows, menus, log_probs_BV, self.model.vocabulary_logits)
        scores_BC = self._scores(menus, log_probs_P)
        counts, rngs = [len(menu.actions) for menu in menus], [decision.query.rng for decision in decisions]
        self._record(decisions, menus, scores_BC, *draw(scores_BC, counts, rngs, decoding))

    def _menus(self, log_probs_BV: torch.Tensor, actions: Sequence[tuple[str, ...]]) -> list[Menu]:
        """The menu of each row: the valid actions whose first token is likely enough compared with the likeliest."""
        roots = [self.tries(listed).tokens for listed in actions]
        widest = max(map(len, roots))
        tokens_BC = torch.tensor([[*root, *[-1] * (widest - len(root))] for root in roots], device=log_probs_BV.device)
        first_BC = log_probs_BV.gather(1, tokens_BC.clamp(min=0)).masked_fill(tokens_BC < 0, -math.inf)
        # not >=: where numbers overflowed it would keep nothing. Such a decision is found later, by `is_finite`
        kept_BC = (~(first_BC < first_BC.max(-1, keepdim=True).values + self._least)).tolist()
        return [
            self._kept.menu(listed, frozenset(token for token, keep in zip(root, kept, strict=False) if keep))
            for listed, root, kept in zip(actions, roots, kept_BC, strict=True)
        ]

    def _read(
        self,
        engine: Engine,
        rows: Sequence[int],
        menus: Sequence[Menu],
        log_probs_BV: torch.Tensor,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> NDArray[np.float64]:
        """log p over the whole vocabulary of every token of every menu, one after the other; -inf if it is not needed.

        log_probs_BV are those of the tokens after the states of `rows`; deeper states have the logits of `logits_of`.
        """
        counts = np.array([len(menu.token_P) for menu in menus])
        starts, token_P = np.cumsum(counts) - counts, np.concatenate([menu.token_P for menu in menus])
        found_P = np.full(len(token_P), -np.inf)

        def on_device(indices: NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(indices).to(log_probs_BV.device)

        first_I = np.flatnonzero(np.concatenate([menu.read_P for menu in menus]) == 0)
        rows_I = np.repeat(np.arange(len(menus)), counts)[first_I]
        found_P[first_I] = log_probs_BV[on_device(rows_I), on_device(token_P[first_I])].double().cpu().numpy()
        views = np.split(found_P, starts[1:])  # what is found is seen there when the next parts are chosen
        asked = [likely_parts(menu, view_P, self._least) for menu, view_P in zip(menus, views, strict=True)]
        while parts := {place: part for place, more in enumerate(asked) if (part := next(more, None))}:
            trees = [part.tree for part in parts.values()]
            ahead_NH = engine.look_ahead([rows[place] for place in parts], [()] * len(parts), trees)
            held = accumulate((len(tree.tokens) for tree in trees), initial=0)
            read_I = np.concatenate([part.state_I + before for part, before in zip(parts.values(), held, strict=False)])
            found_I = np.concatenate([part.token_I + starts[place] for place, part in parts.items()])
            log_probs_I = token_log_probs(logits_of, ahead_NH, on_device(read_I), on_device(token_P[found_I]))
            found_P[found_I] = log_probs_I.double().cpu().numpy()
        return found_P

    def _scores(self, menus: Sequence[Menu], log_probs_P: NDArray[np.float64]) -> torch.Tensor:
        """log p of each action, (B, C); -inf for those that are not likely enough, and as padding."""
        widest = max(len(menu.actions) for menu in menus)
        scores_BC = np.full((len(menus), widest), -np.inf)
        parts = np.split(log_probs_P, np.cumsum([len(menu.read_P) for menu in menus])[:-1])
        for row, (menu, part) in enumerate(zip(menus, parts, strict=True)):
            scores_BC[row, : len(menu.actions)] = np.bincount(menu.action_P, part, len(menu.actions))
        scores_BC[scores_BC < scores_BC.max(-1, keepdims=True) + self._least] = -np.inf
        return torch.from_numpy(scores_BC)

    def _record(
        self,
        decisions: Sequence[Decision],
        menus: Sequence[Menu],
        scores_BC: torch.Tensor,
        picks: Sequence[int],
        log_probs: Sequence[float],
        entropies: Sequence[float],
    ) -> None:
        """Write what was picked among the `scores_BC` into each decision."""
        rows = zip(decisions, menus, scores_BC.tolist(), picks, log_probs, entropies, strict=True)
        for decision, menu, scores, pick, log_prob, entropy in rows:
            decision.log_prob, decision.entropy = log_prob, entropy
            left = [number for number, score in enumerate(scores) if score != -math.inf]
            if len(left) > 1:
                decision.candidates = tuple(menu.candidates[number] for number in left)
                decision.branches = [Branch(decision.position, tuple(range(len(left))), left.index(pick))]
            decision.action = menu.actions[pick]
            decision.taken = list(self.encoder.action(decision.action))

    def lesson(self, actions: tuple[str, ...], action: str, state_position: int) -> Lesson:
        """Every token of a teacher's action except a forced ending, after the id at `state_position`."""
        chosen = dict(self._kept.shortened(actions))[action].ids
        found = path_branches(self.tries(actions), chosen, forced=True)
        branches = tuple(Branch(state_position + offset, children, pick) for offset, children, pick in found)
        return Lesson(self.encoder.action(action), branches, over_vocabulary=True)

    def weigh(
        self, turn: Turn, ids: Sequence[int], temperature: float, text: CachedText | None = None
    ) -> list[tuple[str, float]]:
        """pi of each valid action at a turn of the segment `ids`, likeliest first; 0 for those left out.

        Where the turn says what was weighed when it was played, these are what is left: rounding may decide otherwise.
        """
        actions, prefix = turn.observation.actions or (), ids[: turn.state_position + 1]
        candidates = [candidate for _, candidate in self._kept.shortened(actions)]
        text = text or CachedText(self.model)
        scores_K = candidate_weights(self.model, candidates, prefix, text).cpu()
        left = turn.candidates or self._left(candidates, scores_K, prefix, text)
        out_K = torch.tensor([candidate not in left for candidate in candidates])
        probabilities = torch.softmax(scores_K.masked_fill(out_K, -math.inf) / temperature, -1).tolist()
        return sorted(zip(actions, probabilities, strict=True), key=lambda pair: -pair[1])

    def _left(
        self, candidates: Sequence[Candidate], scores_K: torch.Tensor, prefix: Sequence[int], text: CachedText
    ) -> Sequence[Candidate]:
        """Those that min-p leaves of the candidates: by their first tokens, then as whole actions."""
        firsts = tuple(dict.fromkeys(candidate.ids[0] for candidate in candidates))
        first_K = candidate_weights(self.model, [Candidate((token,), 1.0) for token in firsts], prefix, text)
        kept = {t for t, s in zip(firsts, first_K.tolist(), strict=True) if s >= float(first_K.max()) + self._least}
        likely = [(c, score) for c, score in zip(candidates, scores_K.tolist(), strict=True) if c.ids[0] in kept]
        most = max(score for _, score in likely)
        return [candidate for candidate, score in likely if score >= most + self._least]
