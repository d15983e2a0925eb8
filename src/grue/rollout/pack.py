"""Episodes laid out for training: each segment is read once, and logits are taken only where an action branches."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grue.engine.tree import candidate_tree, lay_out
from grue.errors import DataError
from grue.hardware import free_bytes
from grue.models.policy_model import WHOLE
from grue.models.scores import Trees
from grue.policy.decision import Lesson
from grue.policy.policy import Policy
from grue.prompts.history import History
from grue.types import Episode, Observation, Turn

_SEEN = 8  # bytes for each pair of tokens, while the mask is made that says which of them see each other
_NO_TEXT = Observation("", "", "", None, 0.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One segment with its turns and what training needs to know of each turn (parallel to `turns`)."""

    ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    advantages: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    reference: torch.Tensor | None = None  # (nodes, children) log-probabilities of the reference policy

    def without_texts(self) -> Sample:
        """The same without observations, in a tenth of the memory: training needs only the ids."""
        return replace(self, turns=tuple(replace(turn, observation=_NO_TEXT) for turn in self.turns))

    @property
    def size(self) -> int:
        """Tokens of a forward pass: the segment, and the trees of whole actions beside it."""
        return len(self.ids) + sum(map(_tree_size, self.turns))

    def parts(self, most: int, width: int) -> list[Sample]:
        """The sample cut into some of at most `most` tokens, or fewer where that is faster, for its trees' sake.

        Each part reads the segment of L tokens again, as far as its own turns need it. A pass over S tokens with a mask
        costs about 24 width² + 4 width S operations for each of them and each layer of a model that is `width` wide,
        thus (6 width + S) S / (S - L) for a token of a tree, which is least at S = L + √(L² + 6 width L). So that the
        segment is not most of the work, a part may have 2 L tokens in any case; and it has at least one turn.
        """
        segment = len(self.ids)
        fastest = segment + math.isqrt(segment**2 + 6 * width * segment)
        room = max(2 * segment, min(most, fastest))
        if self.size <= room:
            return [self]
        starts, held = [0], segment
        for place, turn in enumerate(self.turns):
            tree = _tree_size(turn)
            if held + tree > room and place > starts[-1]:
                starts.append(place)
                held = segment
            held += tree
        return [self._part(first, end) for first, end in zip(starts, [*starts[1:], len(self.turns)], strict=True)]

    def _part(self, first: int, end: int) -> Sample:
        turns, nodes = self.turns[first:end], [len(turn.branches) for turn in self.turns]
        rows = slice(sum(nodes[:first]), sum(nodes[:end]))
        return Sample(
            self.ids[: _last_read(turns) + 1],
            turns,
            self.advantages[first:end],
            self.returns[first:end],
            None if self.reference is None else self.reference[rows],
        )

    @property
    def form(self) -> tuple[bool, bool] | None:
        """What is read at its nodes: (whole actions, log-probabilities over the vocabulary). None without any node."""
        return next(((bool(t.candidates), t.over_vocabulary) for t in self.turns if t.branches), None)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one forward pass: B segments of L ids, N branching nodes of at most C children, T turns.

    With `trees`, a node chooses among whole actions, and its children are the indices of these.
    """

    ids_BL: torch.Tensor
    sizes: tuple[int, ...]  # lengths of the B rows; the rest is padding
    node_row_N: torch.Tensor
    node_position_N: torch.Tensor
    node_turn_N: torch.Tensor
    children_NC: torch.Tensor  # -1 pads; WHOLE alone: the whole vocabulary
    chosen_N: torch.Tensor
    turn_row_T: torch.Tensor
    turn_position_T: torch.Tensor
    old_log_probs_T: torch.Tensor
    old_values_T: torch.Tensor
    advantages_T: torch.Tensor
    returns_T: torch.Tensor
    reference_NC: torch.Tensor | None = None  # log-probabilities of the reference policy, -inf pads
    trees: Trees | None = None
    over_vocabulary: bool = False  # logits are log-probabilities over the whole vocabulary
    counts: bool = True  # False: read only to keep in step with other processes, with a loss of 0

    def per_turn(self, values_N: torch.Tensor) -> torch.Tensor:
        """(T,): the sum of `values_N` over the nodes of each turn."""
        return values_N.new_zeros(len(self.turn_row_T)).index_add(0, self.node_turn_N, values_N)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {n: t.to(device) for n, t in tensors.items() if isinstance(t, torch.Tensor | Trees)}
        return replace(self, **moved)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What PolicyModel.forward takes."""
        return (
            self.ids_BL,
            self.node_row_N,
            self.node_position_N,
            self.children_NC,
            self.turn_row_T,
            self.turn_position_T,
            self.trees,
            self.over_vocabulary,
            self.sizes,
        )


def samples(
    episodes: Sequence[Episode],
    advantages: Sequence[np.ndarray] | None = None,
    returns: Sequence[np.ndarray] | None = None,
) -> list[Sample]:
    """One sample per segment. Failed episodes are left out; `advantages` and `returns` are parallel to `episodes`.

    A teacher's invalid actions are skipped too. Pass `advantages` only for the policy's own games: then every turn
    counts; in those that `tokenise` made, `old_log_probs_T` and `old_values_T` are 0, as nothing was drawn. DataError
    for numbers that do not belong to these turns, and for games that no policy has read.
    """
    _check_parallel(episodes, advantages, "advantages")
    _check_parallel(episodes, returns, "returns")
    packed = []
    for number, episode in enumerate(episodes):
        if episode.failed:
            continue
        if episode.turns and not episode.segments:
            raise DataError(
                f"episode {number} holds no token ids: {episode.player} played it, not a policy",
                hint="tokenise(episode, policy) gives it the ids that the policy would have read",
            )
        for place, segment in enumerate(episode.segments):
            inside = [(i, turn) for i, turn in enumerate(episode.turns) if turn.segment == place]
            chosen = [i for i, turn in inside if advantages is not None or not turn.is_context]
            if not chosen:
                continue
            turns = tuple(episode.turns[i] for i in chosen)
            packed.append(
                Sample(
                    segment.ids[: _last_read(turns) + 1],
                    turns,
                    tuple(float(advantages[number][i]) for i in chosen)
                    if advantages is not None
                    else (0.0,) * len(chosen),
                    tuple(float(returns[number][i]) for i in chosen) if returns is not None else (0.0,) * len(chosen),
                )
            )
    return packed


def _tree_size(turn: Turn) -> int:
    """Tokens of the tree of whole actions beside a turn."""
    return len(candidate_tree(turn.candidates).tokens) if turn.candidates else 0


def _last_read(turns: Sequence[Turn]) -> int:
    """The last position at which `turns` read anything: what comes after the last decision teaches nothing."""
    return max(max([turn.state_position, *(branch.position for branch in turn.branches)]) for turn in turns)


def _check_parallel(episodes: Sequence[Episode], numbers: Sequence[np.ndarray] | None, what: str) -> None:
    """DataError unless there is a number for each turn of each episode."""
    if numbers is None:
        return
    if len(numbers) != len(episodes):
        raise DataError(f"{len(numbers)} arrays of {what} for {len(episodes)} episodes", hint="one for each, in order")
    for place, (episode, given) in enumerate(zip(episodes, numbers, strict=True)):
        if np.shape(given) != (episode.steps,):
            raise DataError(
                f"the {what} of episode {place}, which has {episode.steps} turns, have the shape {np.shape(given)}",
                hint="one number for each turn",
            )


def tokenise(episode: Episode, policy: Policy, context: int | None = None, *, advised: bool = False) -> Episode:
    """An episode with the ids, positions and branches that `policy` would have had, whoever played it.

    As nothing was drawn, and no state judged, log-probabilities and values are 0.

    With `advised` the branches lead to what the teacher advised at each turn, whatever was done.
    """
    if not episode.turns:
        return episode
    history = History(policy.encoder, episode.turns[0].observation.goal, episode.task.limit, context)
    turns = []
    for turn in episode.turns:
        actions = turn.observation.actions or ()
        # what was done may be longer than what the policy may write
        room = max(policy.room(actions), len(policy.encoder.unlearnt(turn.action))) if context is not None else 0
        history.show(turn.observation, room)
        state = len(history.ids) - 1
        if turn.valid and (actions or not policy.needs_actions):
            lesson = policy.lesson(actions, turn.action, state)
        else:
            lesson = Lesson(policy.encoder.unlearnt(turn.action))
        if advised:
            lesson = _advised(turn, lesson, policy, state)
        turns.append(
            Turn(
                turn.observation,
                turn.action,
                turn.reward,
                valid=turn.valid,
                segment=history.segment,
                state_position=state,
                branches=lesson.branches,
                candidates=lesson.candidates,
                over_vocabulary=lesson.over_vocabulary,
                thought_ids=lesson.thought_ids,
            )
        )
        history.act(lesson.ids)
    return replace(episode, turns=tuple(turns), segments=history.segments(), last_value=0.0)


def _advised(turn: Turn, done: Lesson, policy: Policy, state: int) -> Lesson:
    """`done` with the branches that lead to the advised action instead; with none if no advice was given.

    The segment continues with the action that was taken, so the branches end where the two actions diverge.
    """
    if not turn.advice:
        return Lesson(done.ids, thought_ids=done.thought_ids)
    lesson = policy.lesson(turn.observation.actions or (), turn.advice, state)
    pairs = enumerate(zip(lesson.ids, done.ids, strict=False))
    parting = next((place for place, (one, other) in pairs if one != other), len(lesson.ids))
    branches = tuple(branch for branch in lesson.branches if branch.position <= state + parting)
    return replace(lesson, ids=done.ids, branches=branches)


def minibatches(items: Sequence[Sample], count: int, rng: random.Random) -> Iterator[list[Sample]]:
    """`items` in random order, cut into `count` parts of nearly equal size."""
    order = list(items)
    rng.shuffle(order)
    for part in range(count):
        chosen = order[part * len(order) // count : (part + 1) * len(order) // count]
        if chosen:
            yield chosen


def piles(items: Sequence[Sample], count: int) -> list[list[Sample]]:
    """`items` dealt out into `count` piles with about as many tokens each, the longest first."""
    dealt: list[list[Sample]] = [[] for _ in range(count)]
    sizes = [0] * count
    for item in sorted(items, key=lambda s: s.size, reverse=True):
        least = sizes.index(min(sizes))
        dealt[least].append(item)
        sizes[least] += item.size
    return dealt


def micro_batches(items: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Groups of similar length and one form whose padded size is at most `max_tokens` (a long sample may exceed it)."""
    forms = sorted({item.form for item in items if item.form is not None})
    if len(forms) > 1:  # what was played and what a teacher did, for example
        of_form = {form: [item for item in items if (item.form or forms[0]) == form] for form in forms}
        return [group for form in forms for group in micro_batches(of_form[form], max_tokens)]
    groups: list[list[Sample]] = []
    for item in sorted(items, key=lambda s: s.size, reverse=True):
        if groups and (len(groups[-1]) + 1) * groups[-1][0].size <= max_tokens:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def collate(items: Sequence[Sample]) -> Batch:
    """One Batch from samples of similar length."""
    ids, trees = _ids(items)
    nodes: list[tuple[int, int, int, int]] = []  # row, position, turn, chosen
    children: list[Sequence[int]] = []
    turn_rows: list[int] = []
    positions: list[int] = []
    for row, item in enumerate(items):
        for turn in item.turns:
            number = len(turn_rows)
            turn_rows.append(row)
            positions.append(turn.state_position)
            for branch in turn.branches:
                nodes.append((row, branch.position, number, branch.chosen))
                children.append(branch.children)
    # a whole vocabulary is not listed: its ids would take twice the memory of its logits
    ids_of = [(WHOLE,) if isinstance(tokens, range) else tokens for tokens in children]
    padded = np.full((len(children), max(map(len, ids_of), default=1)), -1, dtype=np.int64)
    for i, tokens in enumerate(ids_of):
        padded[i, : len(tokens)] = tokens
    node_NX = torch.tensor(nodes, dtype=torch.long).reshape(-1, 4)
    turns = [turn for item in items for turn in item.turns]
    return Batch(
        ids_BL=torch.from_numpy(ids),
        sizes=tuple(item.size for item in items),
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
        reference_NC=_reference(items, children),
        trees=trees,
        over_vocabulary=any(turn.over_vocabulary for turn in turns),
    )


def _reference(items: Sequence[Sample], children: Sequence[Sequence[int]]) -> torch.Tensor | None:
    """The log-probabilities of the reference policy over the `children` of all nodes, if it was read."""
    rows = [item.reference for item in items if item.reference is not None]
    if not rows:
        return None
    if len(rows) < len(items):
        raise DataError(
            f"{len(rows)} of {len(items)} samples have log-probabilities of the reference", hint="all of them, or none"
        )
    reference_NC = torch.full((len(children), max(map(len, children), default=1)), float("-inf"))
    first = 0
    for found in rows:
        width = min(found.shape[1], reference_NC.shape[1])  # the columns beyond are padding
        reference_NC[first : first + len(found), :width] = found[:, :width]
        first += len(found)
    return reference_NC


def _check_room(rows: int, tokens: int) -> None:
    """MemoryError where `rows` of so many tokens, which see each other under a mask, do not fit into the machine.

    Without it the system would end this process, or another one, and say nothing.
    """
    needed = rows * tokens**2 * _SEEN
    if needed > 2**30 and needed > free_bytes():
        raise MemoryError(
            f"{tokens:,} tokens of a segment and of what its turns list are read at once, and their mask takes "
            f"{needed / 2**30:.1f} GiB; {free_bytes() / 2**30:.1f} are free"
        )


def _ids(items: Sequence[Sample]) -> tuple[NDArray[np.int64], Trees | None]:
    """(ids (B, L), 0 pads, and the trees of whole actions beside the segments if there are any)."""
    answered = [[(t.state_position, t.candidates) for t in item.turns if t.candidates] for item in items]
    if any(answered):
        _check_room(len(items), max(item.size for item in items))
        return lay_out([(item.ids, turns) for item, turns in zip(items, answered, strict=True)])
    ids = np.zeros((len(items), max(len(item.ids) for item in items)), dtype=np.int64)
    for row, item in enumerate(items):
        ids[row, : len(item.ids)] = item.ids
    return ids, None
