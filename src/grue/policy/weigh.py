"""pi(a|s) of every valid action, exact, for people to look at: one row for each branching node, read in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from grue.models.architecture import is_recurrent
from grue.models.policy_model import PolicyModel
from grue.policy.tree import lay_out
from grue.policy.trie import Node
from grue.types import Candidate


def action_probabilities(
    model: PolicyModel, root: Node, prefix: Sequence[int], temperature: float = 1.0
) -> list[tuple[str, float]]:
    """(action, probability) of all actions of the trie after the ids of `prefix`; the probabilities sum to 1."""
    nodes = _branching(root)
    log_probs = _node_log_probs(model, nodes, prefix, temperature) if nodes else {}
    found: list[tuple[str, float]] = []
    pending: list[tuple[Node, tuple[int, ...], float]] = [(root, (), 0.0)]
    while pending:
        node, path, log_prob = pending.pop()
        if node.action is not None:
            found.append((node.action, float(torch.tensor(log_prob).exp())))
        steps = log_probs.get(path, [0.0] * len(node.tokens))
        pending += [(n, (*path, t), log_prob + s) for t, n, s in zip(node.tokens, node.nodes, steps, strict=True)]
    return sorted(found, key=lambda pair: -pair[1])


@torch.inference_mode()
def candidate_weights(model: PolicyModel, candidates: Sequence[Candidate], prefix: Sequence[int]) -> torch.Tensor:
    """Scores (K,) of whole actions after the ids of `prefix`, before any softmax over them."""
    device = next(model.parameters()).device
    if is_recurrent(model.lm.config.get_text_config()):
        return _one_by_one(model, candidates, prefix)
    ids, trees = lay_out([(prefix, [(len(prefix) - 1, tuple(candidates))])])
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    children = torch.zeros(1, len(candidates), dtype=torch.long, device=device)
    reading = model(torch.from_numpy(ids).to(device), nothing, nothing, children, nothing, nothing, trees.to(device))
    scores_K: torch.Tensor = reading.logits_NC[0]
    return scores_K


def _one_by_one(model: PolicyModel, candidates: Sequence[Candidate], prefix: Sequence[int]) -> torch.Tensor:
    """The same with a row of its own for each action, for models that cannot read trees."""
    device = next(model.parameters()).device
    tokens = [(row, place, token) for row, one in enumerate(candidates) for place, token in enumerate(one.ids)]
    row_P, place_P, token_P = torch.tensor(tokens, device=device).T
    longest = max(len(one.ids) for one in candidates)
    ids = torch.tensor([[*prefix, *one.ids, *[0] * (longest - len(one.ids))] for one in candidates], device=device)
    nothing = row_P[:0]
    reading = model(ids, row_P, len(prefix) - 1 + place_P, token_P[:, None], nothing, nothing, whole=True)
    logits_NC: torch.Tensor = reading.logits_NC
    scores_K = logits_NC.new_zeros(len(candidates)).index_add(0, row_P, logits_NC[:, 0])
    return scores_K / torch.tensor([one.divisor for one in candidates], device=device)


def _branching(root: Node) -> list[tuple[tuple[int, ...], Node]]:
    """(path, node) of each node with several children."""
    found: list[tuple[tuple[int, ...], Node]] = []
    pending: list[tuple[tuple[int, ...], Node]] = [((), root)]  # not recursive: an action may have hundreds of tokens
    while pending:
        path, node = pending.pop()
        if len(node.tokens) > 1:
            found.append((path, node))
        pending += [((*path, token), child) for token, child in zip(node.tokens, node.nodes, strict=True)]
    return found


@torch.inference_mode()
def _node_log_probs(
    model: PolicyModel, nodes: list[tuple[tuple[int, ...], Node]], prefix: Sequence[int], temperature: float
) -> dict[tuple[int, ...], list[float]]:
    device = next(model.parameters()).device
    length = len(prefix) + max(len(path) for path, _ in nodes)
    widest = max(len(node.tokens) for _, node in nodes)
    ids = torch.tensor(
        [[*prefix, *path] + [0] * (length - len(prefix) - len(path)) for path, _ in nodes], device=device
    )
    children = torch.tensor([[*node.tokens] + [-1] * (widest - len(node.tokens)) for _, node in nodes], device=device)
    rows = torch.arange(len(nodes), device=device)
    places = torch.tensor([len(prefix) + len(path) - 1 for path, _ in nodes], device=device)
    logits = model(ids, rows, places, children, rows[:1], places[:1]).logits_NC
    log_probs = torch.log_softmax(logits / temperature, -1).tolist()
    return {path: log_probs[i][: len(node.tokens)] for i, (path, node) in enumerate(nodes)}
