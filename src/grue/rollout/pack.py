"""Episodes laid out for training: each segment is read once, and logits are taken only where an action branches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from grue.policy.trie import TrieCache, path_branches
from grue.prompts.tokens import Encoder
from grue.types import Branch, Episode, Observation, Outcome, Segment, Turn


@dataclass(frozen=True, slots=True)
class Sample:
    """One segment with its turns and what training needs to know of each turn (parallel to `turns`)."""

    ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    advantages: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    imitate: bool = False  # learned by imitation only: no policy-gradient or value loss
    reference: torch.Tensor | None = None  # (nodes, children) log-probabilities of the reference policy


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one forward pass: B segments of L ids, N branching nodes of at most C children, T turns."""

    ids_BL: torch.Tensor
    node_row_N: torch.Tensor
    node_position_N: torch.Tensor
    node_turn_N: torch.Tensor
    children_NC: torch.Tensor  # -1 pads
    chosen_N: torch.Tensor
    turn_row_T: torch.Tensor
    turn_position_T: torch.Tensor
    old_log_probs_T: torch.Tensor
    old_values_T: torch.Tensor
    advantages_T: torch.Tensor
    returns_T: torch.Tensor
    imitate_T: torch.Tensor  # bool
    reference_NC: torch.Tensor | None = None  # log-probabilities of the reference policy, -inf pads

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What PolicyModel.forward takes."""
        return (
            self.ids_BL,
            self.node_row_N,
            self.node_position_N,
            self.children_NC,
            self.turn_row_T,
            self.turn_position_T,
        )


def samples(
    episodes: Sequence[Episode],
    advantages: Sequence[np.ndarray] | None = None,
    returns: Sequence[np.ndarray] | None = None,
    *,
    imitate: bool = False,
) -> list[Sample]:
    """One sample a segment. Failed episodes are left out; `advantages` and `returns` are parallel to `episodes`."""
    packed = []
    for number, episode in enumerate(episodes):
        if episode.outcome is Outcome.FAILED:
            continue
        for place, segment in enumerate(episode.segments):
            chosen = [i for i, turn in enumerate(episode.turns) if turn.segment == place and turn.valid]
            if not chosen:
                continue
            last = max(episode.turns[i].branches[-1].position if episode.turns[i].branches else 0 for i in chosen)
            last = max(last, max(episode.turns[i].state_position for i in chosen))
            packed.append(
                Sample(
                    # what comes after the last decision teaches nothing
                    segment.ids[: last + 1],
                    tuple(episode.turns[i] for i in chosen),
                    tuple(float(advantages[number][i]) for i in chosen)
                    if advantages is not None
                    else (0.0,) * len(chosen),
                    tuple(float(returns[number][i]) for i in chosen) if returns is not None else (0.0,) * len(chosen),
                    imitate,
                )
            )
    return packed


def tokenise(episode: Episode, encoder: Encoder, tries: TrieCache) -> Episode:
    """A scripted player's episode with the ids, positions and branches that a choosing policy would have had."""
    if not episode.turns:
        return episode
    ids = list(encoder.task(episode.turns[0].observation.goal, episode.task.limit))
    turns = []
    for turn in episode.turns:
        ids += encoder.observation(turn.observation.text)
        state_position = len(ids) - 1
        action_ids = encoder.action(turn.action)
        branches: tuple[Branch, ...] = ()
        if turn.valid and turn.observation.actions:
            root = tries(turn.observation.actions)
            branches = tuple(
                Branch(state_position + offset, children, chosen)
                for offset, children, chosen in path_branches(root, action_ids)
            )
        turns.append(
            Turn(
                turn.observation,
                turn.action,
                turn.reward,
                valid=turn.valid,
                state_position=state_position,
                branches=branches,
            )
        )
        ids += action_ids
    return Episode(episode.task, episode.player, tuple(turns), episode.outcome, episode.final, (Segment(tuple(ids)),))


def minibatches(items: Sequence[Sample], count: int, rng: random.Random) -> Iterator[list[Sample]]:
    """`items` in random order, cut into `count` parts of nearly equal size."""
    order = list(items)
    rng.shuffle(order)
    for part in range(count):
        chosen = order[part * len(order) // count : (part + 1) * len(order) // count]
        if chosen:
            yield chosen


def micro_batches(items: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Groups of similar length whose padded size is at most `max_tokens` (one long sample may exceed it)."""
    groups: list[list[Sample]] = []
    for item in sorted(items, key=lambda s: len(s.ids), reverse=True):
        if groups and (len(groups[-1]) + 1) * len(groups[-1][0].ids) <= max_tokens:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def collate(items: Sequence[Sample]) -> Batch:
    """One Batch from samples of similar length."""
    length = max(len(item.ids) for item in items)
    ids = np.zeros((len(items), length), dtype=np.int64)
    nodes: list[tuple[int, int, int, int]] = []  # row, position, turn, chosen
    children: list[tuple[int, ...]] = []
    turn_rows: list[int] = []
    positions: list[int] = []
    for row, item in enumerate(items):
        ids[row, : len(item.ids)] = item.ids
        for turn in item.turns:
            number = len(turn_rows)
            turn_rows.append(row)
            positions.append(turn.state_position)
            for branch in turn.branches:
                nodes.append((row, branch.position, number, branch.chosen))
                children.append(branch.children)
    padded = np.full((len(children), max(map(len, children), default=1)), -1, dtype=np.int64)
    for i, tokens in enumerate(children):
        padded[i, : len(tokens)] = tokens
    reference = None
    if any(item.reference is not None for item in items):
        # 0 where a sample has none (one to imitate): finite, and never part of a mean
        reference = torch.zeros(padded.shape).masked_fill_(torch.from_numpy(padded < 0), float("-inf"))
        first = 0
        for item in items:
            count = sum(len(turn.branches) for turn in item.turns)
            if item.reference is not None:
                width = min(item.reference.shape[1], padded.shape[1])
                reference[first : first + count, :width] = item.reference[:, :width]
            first += count
    node_NX = torch.tensor(nodes, dtype=torch.long).reshape(-1, 4)
    turns = [turn for item in items for turn in item.turns]
    return Batch(
        ids_BL=torch.from_numpy(ids),
        node_row_N=node_NX[:, 0],
        node_position_N=node_NX[:, 1],
        node_turn_N=node_NX[:, 2],
        children_NC=torch.from_numpy(padded),
        chosen_N=node_NX[:, 3],
        turn_row_T=torch.tensor(turn_rows),
        turn_position_T=torch.tensor(positions),
        old_log_probs_T=torch.tensor([turn.log_prob for turn in turns]),
        old_values_T=torch.tensor([turn.value for turn in turns]),
        advantages_T=torch.tensor([a for item in items for a in item.advantages]),
        returns_T=torch.tensor([r for item in items for r in item.returns]),
        imitate_T=torch.tensor([item.imitate for item in items for _ in item.turns]),
        reference_NC=reference,
    )


def sample_to_dict(sample: Sample) -> dict[str, Any]:
    """A sample to imitate as JSON: what training reads of it, and no texts."""
    turns = [
        [turn.state_position, [[b.position, list(b.children), b.chosen] for b in turn.branches]]
        for turn in sample.turns
    ]
    return {"ids": list(sample.ids), "turns": turns}


def sample_from_dict(data: dict[str, Any]) -> Sample:
    """Inverse of `sample_to_dict`."""
    nothing = Observation("", "", "", None, 0.0)
    turns = tuple(
        Turn(
            nothing,
            "",
            0.0,
            state_position=position,
            branches=tuple(Branch(place, tuple(children), chosen) for place, children, chosen in branches),
        )
        for position, branches in data["turns"]
    )
    zeros = (0.0,) * len(turns)
    return Sample(tuple(data["ids"]), turns, zeros, zeros, imitate=True)
