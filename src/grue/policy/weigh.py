"""pi(a|s) of every valid action, exact, for people to look at: read as a tree of tokens, in one pass or few."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from grue.engine.engine import Engine
from grue.engine.tree import TokenTree, candidate_tree, flat_paths
from grue.models.architecture import is_recurrent
from grue.models.policy_model import PolicyModel
from grue.models.scores import candidate_scores
from grue.policy.trie import Node, choices
from grue.types import Candidate

UNBOUNDED = 2**30


class CachedText:
    """A text that grows from turn to turn: what was read of it before is not read again."""

    def __init__(self, model: PolicyModel) -> None:
        self._model, self._ids = model, list[int]()

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self._model.base_lm(), 1, self._model.positions or UNBOUNDED)

    def read(self, prefix: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """States (1 + n, H): of the last id of `prefix`, then of the n tokens of `tree` after it."""
        pairs = enumerate(zip(self._ids, prefix[:-1], strict=False))
        same = next((place for place, (one, other) in pairs if one != other), min(len(self._ids), len(prefix) - 1))
        self._engine.reset(0, same)
        self._ids = self._ids[:same]  # all that is known if the pass fails
        states_SH = self._engine.look_ahead([0], [prefix[same:]], [tree])
        # what overflowed, with all that was read beside it, is read anew
        self._ids = [*prefix] if states_SH.isfinite().all() else []
        return states_SH


@torch.inference_mode()
def action_probabilities(
    model: PolicyModel, root: Node, prefix: Sequence[int], temperature: float = 1.0, text: CachedText | None = None
) -> list[tuple[str, float]]:
    """(action, probability) of all actions of the trie after the ids of `prefix`; the probabilities sum to 1."""
    every = choices(root, most=UNBOUNDED)
    log_probs: list[list[float]] = []
    if every.nodes:
        states_SH = _states(model, prefix, every.tree, text)
        read_K, children_KC = (torch.from_numpy(one).to(states_SH.device) for one in (every.read_K, every.children_KC))
        logits_KC = model.logits(states_SH[read_K], children_KC)
        log_probs = torch.log_softmax(logits_KC / temperature, -1).tolist()
    found: list[tuple[str, float]] = []
    pending: list[tuple[Node, float]] = [(root, 0.0)]
    while pending:
        node, log_prob = pending.pop()
        if node.only is not None:  # the rest is forced
            found.append((node.only[1], float(torch.tensor(log_prob).exp())))
        elif node.tokens:
            steps = log_probs[every.nodes[node]] if node in every.nodes else [0.0]
            pending += [(child, log_prob + step) for child, step in zip(node.nodes, steps, strict=False)]
    return sorted(found, key=lambda pair: -pair[1])


@torch.inference_mode()
def candidate_weights(
    model: PolicyModel, candidates: Sequence[Candidate], prefix: Sequence[int], text: CachedText | None = None
) -> torch.Tensor:
    """Scores (K,) of whole actions after the ids of `prefix`, before any softmax over them."""
    states_SH = _states(model, prefix, candidate_tree(candidates), text)
    paths = flat_paths([candidates]).to(states_SH.device)
    scores_K: torch.Tensor = candidate_scores(model.vocabulary_logits, states_SH, paths, (1, len(candidates)))[0]
    return scores_K


def _states(model: PolicyModel, prefix: Sequence[int], tree: TokenTree, text: CachedText | None) -> torch.Tensor:
    """As `CachedText.read`, of any model: recurrent ones cannot read trees, nor go back."""
    if is_recurrent(model.lm.config.get_text_config()):
        return _in_rows(model, prefix, tree)
    return (text or CachedText(model)).read(prefix, tree)


def _in_rows(model: PolicyModel, prefix: Sequence[int], tree: TokenTree) -> torch.Tensor:
    """The same with a row of its own for each way through the tree."""
    inner = set(tree.parents)
    leaves = [line for place, line in enumerate(tree.lines()) if place not in inner] or [()]
    longest = max(map(len, leaves))
    rows = [[*prefix, *(tree.tokens[place] for place in way), *[0] * (longest - len(way))] for way in leaves]
    decoder = model.base_lm().get_decoder()
    ids_BL = torch.tensor(rows, device=next(model.parameters()).device)
    states_BLH = decoder(input_ids=ids_BL, use_cache=False).last_hidden_state
    at = {place: (row, depth) for row, way in enumerate(leaves) for depth, place in enumerate(way)}
    reads = [(0, len(prefix) - 1), *((at[place][0], len(prefix) + at[place][1]) for place in range(len(tree.tokens)))]
    row_S, place_S = torch.tensor(reads, device=ids_BL.device).T
    states_SH: torch.Tensor = states_BLH[row_S, place_S]
    return states_SH
