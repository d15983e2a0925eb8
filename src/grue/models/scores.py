"""Scores of whole actions in training: the tokens of all candidates are laid out as trees beside the text they answer.

A token of a tree sees the text up to its state and its ancestors in the tree, at the position that it would
have there, so one forward pass reads every candidate of every turn of a segment, with gradients and without copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 512  # states whose logits over the whole vocabulary are in memory at once


@dataclass(frozen=True, slots=True)
class Paths:
    """P tokens of K candidates, ordered by the state that predicts them."""

    read_P: torch.Tensor  # ascending: index of the state that predicts this token
    token_P: torch.Tensor
    candidate_P: torch.Tensor
    divisor_K: torch.Tensor
    node_K: torch.Tensor  # where a candidate's score goes in logits_NC
    place_K: torch.Tensor

    def to(self, device: torch.device | str) -> Paths:
        """The same paths on `device`."""
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


@dataclass(frozen=True, slots=True)
class Trees:
    """B rows of L ids (text, then trees), R states that predict the tokens of `paths`."""

    places_BL: torch.Tensor  # position of each token in its text
    seen_BLL: torch.Tensor  # bool
    read_row_R: torch.Tensor
    read_column_R: torch.Tensor
    paths: Paths

    def to(self, device: torch.device | str) -> Trees:
        """The same trees on `device`."""
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def token_log_probs(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden_RH: torch.Tensor,
    path_read_P: torch.Tensor,
    path_token_P: torch.Tensor,
) -> torch.Tensor:
    """log p(token) over the whole vocabulary, (P,), where token P is predicted by state path_read_P (ascending).

    `logits_of` maps (n, H) to (n, V). Logits of CHUNK states exist at a time; the backward pass recomputes them.
    """

    def part(hidden_nH: torch.Tensor, read_p: torch.Tensor, token_p: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits_of(hidden_nH), -1)[read_p, token_p]

    cuts = torch.arange(0, len(hidden_RH) + CHUNK, CHUNK, device=path_read_P.device)
    edges = torch.searchsorted(path_read_P, cuts).tolist()
    found = []
    for number, start in enumerate(range(0, len(hidden_RH), CHUNK)):
        inside = slice(edges[number], edges[number + 1])
        arguments = (hidden_RH[start : start + CHUNK], path_read_P[inside] - start, path_token_P[inside])
        if torch.is_grad_enabled():
            found.append(checkpoint(part, *arguments, use_reentrant=False))
        else:
            found.append(part(*arguments))
    return torch.cat(found) if found else hidden_RH.new_zeros(0)


def log_normalisers(logits_of: Callable[[torch.Tensor], torch.Tensor], hidden_NH: torch.Tensor) -> torch.Tensor:
    """log of the sum of exp(logits) over the whole vocabulary at each state, (N,); CHUNK states at a time."""

    def part(hidden_nH: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(logits_of(hidden_nH), -1)

    parts = hidden_NH.split(CHUNK)
    if torch.is_grad_enabled():
        found = [checkpoint(part, hidden_nH, use_reentrant=False) for hidden_nH in parts]
    else:
        found = [part(hidden_nH) for hidden_nH in parts]
    return torch.cat(found) if found else hidden_NH.new_zeros(0)


def candidate_scores(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden_RH: torch.Tensor, paths: Paths, shape: tuple[int, ...]
) -> torch.Tensor:
    """Scores (N, C) of the candidates of N turns, -inf where a turn has fewer: ready for a softmax over actions."""
    log_probs_P = token_log_probs(logits_of, hidden_RH, paths.read_P, paths.token_P)
    scores_K = log_probs_P.new_zeros(len(paths.divisor_K)).index_add(0, paths.candidate_P, log_probs_P)
    scores_NC = log_probs_P.new_full(shape, float("-inf"))
    return scores_NC.index_put((paths.node_K, paths.place_K), scores_K / paths.divisor_K)
