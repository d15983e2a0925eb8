"""Episodes as tensors: positions by hand, and cuts that change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from grue.config import PPOConfig, SFTConfig
from grue.errors import DataError
from grue.models.policy_model import WHOLE, PolicyModel, Reading
from grue.rollout.pack import (
    Batch,
    Sample,
    collate,
    micro_batches,
    minibatches,
    piles,
    samples,
    tokenise,
)
from grue.train.ppo_update import ppo_loss
from grue.train.sft import sft_loss
from grue.types import Branch, Episode, Observation, Outcome, Segment, Task, Turn

NOTHING = Observation("", "", "", None, 0.0)
LossFunction = Callable[[Reading, Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]]


def turn(state: int, *branches: tuple[int, tuple[int, ...], int], segment: int = 0, valid: bool = True) -> Turn:
    """A turn that is seen up to position `state` and decided at `branches`."""
    return Turn(
        NOTHING,
        "",
        0.0,
        valid=valid,
        log_prob=-float(state),
        value=state / 10,
        segment=segment,
        state_position=state,
        branches=tuple(Branch(*branch) for branch in branches),
    )


def episode(turns: Sequence[Turn], *lengths: int, outcome: Outcome = Outcome.WON) -> Episode:
    segments = tuple(Segment(tuple(range(100 * place, 100 * place + n))) for place, n in enumerate(lengths))
    return Episode(Task("toy", "", "train", 1, 12), "choose", tuple(turns), outcome, NOTHING, segments)


def test_samples_by_hand() -> None:
    """Two segments; a teacher's invalid turn teaches nothing; ids after the last decision are cut off."""
    turns = [
        turn(3, (3, (7, 8), 0), (5, (1, 2, 3), 2)),
        turn(9, valid=False),
        turn(4, segment=1),  # nothing to decide, but a state to value
    ]
    played = episode(turns, 14, 8)
    failed = replace(played, outcome=Outcome.FAILED)
    first, second = samples([failed, played])
    assert first.ids == tuple(range(6))  # up to position 5, where the last choice was made
    assert first.turns == (turns[0],)
    assert second.ids == tuple(range(100, 105))  # up to the state
    # of a policy's own there is a value before it, and what it led to
    first, second = samples([failed, played], [[9, 9, 9], [1, 2, 3]], [[9, 9, 9], [4, 5, 6]])  # type: ignore[list-item]
    assert first.ids == tuple(range(10)) and first.turns == tuple(turns[:2])
    assert (first.advantages, first.returns) == ((1.0, 2.0), (4.0, 5.0))
    assert (second.advantages, second.returns) == ((3.0,), (6.0,))
    assert samples([episode([turns[1]], 14)]) == []


def test_a_teachers_invalid_turn_is_read_and_not_learnt() -> None:
    original = tiny.scripted("gold")[0]
    odd = replace(original, turns=(replace(original.turns[0], valid=False), *original.turns[1:]))
    found = tokenise(odd, tiny.policy(), 512)
    assert [turn.valid for turn in found.turns] == [False] + [True] * (len(odd.turns) - 1)
    (item,) = samples([found])
    assert not any(turn.branches for turn in item.turns if turn.action == odd.turns[0].action and not turn.valid)
    assert len(item.turns) < len(samples([tokenise(original, tiny.policy(), 512)])[0].turns)


def test_what_is_tokenised_again_was_not_drawn_and_keeps_what_it_poses() -> None:
    (game,) = tiny.rollouts(tiny.policy_model(), tiny.tasks(1))
    again = tokenise(replace(game, last_value=0.5, problem="x"), tiny.policy(), 512)
    assert again.problem == "x" and again.last_value == 0 and again.segments == game.segments
    assert [turn.branches for turn in again.turns] == [turn.branches for turn in game.turns]
    assert {(turn.log_prob, turn.value) for turn in again.turns} == {(0.0, 0.0)}


def test_a_policy_learns_from_its_own_invalid_turns() -> None:
    """Unlike a teacher's, they were decided: they have branches."""
    turns = [turn(3, (3, (7, 8), 0)), turn(9, (9, (7, 8), 1), valid=False)]
    (learnt,) = samples([episode(turns, 14)])
    assert learnt.turns == tuple(turns)


def test_a_batch_by_hand() -> None:
    one = Sample((5, 6, 7, 8), (turn(1, (1, (7, 9), 0), (2, (8, 3, 4), 1)), turn(3)), (0.5, 0.25), (1.0, 2.0))
    two = Sample((9, 8), (turn(0, (1, (2, 1), 1)),), (-1.0,), (3.0,))
    batch = collate([one, two])
    assert batch.ids_BL.tolist() == [[5, 6, 7, 8], [9, 8, 0, 0]]
    assert batch.node_row_N.tolist() == [0, 0, 1]
    assert batch.node_position_N.tolist() == [1, 2, 1]
    assert batch.node_turn_N.tolist() == [0, 0, 2]
    assert batch.children_NC.tolist() == [[7, 9, -1], [8, 3, 4], [2, 1, -1]]
    assert batch.chosen_N.tolist() == [0, 1, 1]
    assert batch.turn_row_T.tolist() == [0, 0, 1]
    assert batch.turn_position_T.tolist() == [1, 3, 0]
    assert batch.old_log_probs_T.tolist() == [-1, -3, 0]
    assert batch.old_values_T.tolist() == pytest.approx([0.1, 0.3, 0.0])
    assert batch.advantages_T.tolist() == [0.5, 0.25, -1]
    assert batch.returns_T.tolist() == [1, 2, 3]
    assert batch.reference_NC is None


def test_a_reference_stands_beside_its_nodes() -> None:
    inf = float("inf")
    one = Sample((5, 6, 7), (turn(1, (1, (7, 9), 0), (2, (8, 3, 4), 1)),), (0.0,), (0.0,))
    two = Sample((9, 8), (turn(0, (1, (2, 1), 1)),), (0.0,), (0.0,))
    # the reference of `one` was read in a batch whose widest node had 4 children
    one = replace(one, reference=torch.tensor([[-1.0, -2, -inf, -inf], [-3, -4, -5, -inf]]))
    two = replace(two, reference=torch.tensor([[-6.0, -7]]))
    found = collate([one, two]).reference_NC
    assert found is not None
    assert found.tolist() == [[-1, -2, -inf], [-3, -4, -5], [-6, -7, -inf]]


def test_a_vocabulary_is_not_written_out() -> None:
    """Half a million ids a node would take more room than all that is learnt from them."""
    free = Branch(1, range(500_000), 3)
    one = Sample((5, 6, 7), (replace(turn(1, (2, (7, 9), 0)), branches=(free, Branch(2, (7, 9), 0))),), (0.0,), (0.0,))
    inf = float("inf")
    wide = torch.zeros(2, 500_000)
    wide[1, 2:] = -inf
    batch = collate([replace(one, reference=wide)])
    assert batch.children_NC.tolist() == [[WHOLE, -1], [7, 9]]
    assert batch.chosen_N.tolist() == [3, 0]
    assert batch.reference_NC is not None
    assert torch.equal(batch.reference_NC, wide)


def test_a_sample_without_choices_can_be_read() -> None:
    batch = collate([Sample((5, 6), (turn(1),), (0.0,), (0.0,))])
    reading = tiny.policy_model()(*batch.inputs)
    assert reading.logits_NC.shape[0] == 0
    assert reading.values_T.shape == (1,)


def test_padding_does_not_reach_what_is_read() -> None:
    model = tiny.policy_model()
    packed = samples(tiny.rollouts(model, tiny.tasks(6)))
    with torch.no_grad():
        alone = [model(*collate([item]).inputs) for item in packed]
        together = model(*collate(packed).inputs)
    assert torch.allclose(torch.cat([r.values_T for r in alone]), together.values_T, atol=1e-6)
    first = 0
    for reading in alone:
        n, c = reading.logits_NC.shape
        part = together.logits_NC[first : first + n]
        assert torch.allclose(reading.logits_NC, part[:, :c], atol=1e-5)
        assert torch.isinf(part[:, c:]).all()
        first += n


def gradient(
    model: PolicyModel, items: Sequence[Sample], tokens: int, loss_of: LossFunction
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """(gradient by name, metrics) of `items` in micro-batches of at most `tokens`."""
    model.zero_grad()
    totals: dict[str, float] = {}
    for group in micro_batches(items, tokens):
        batch = collate(group)
        loss, metrics = loss_of(model(*batch.inputs), batch)
        loss.backward()
        for name, value in metrics.items():
            totals[name] = totals.get(name, 0.0) + value.item()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, totals


def assert_same_gradient(model: PolicyModel, items: Sequence[Sample], loss_of: LossFunction) -> None:
    whole, metrics = gradient(model, items, 10**6, loss_of)
    parts, other = gradient(model, items, 64, loss_of)
    assert len(micro_batches(items, 10**6)) == 1
    assert len(micro_batches(items, 64)) == len(items) > 3
    assert set(whole) == set(parts)
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-3
    for name, expected in whole.items():
        assert torch.allclose(parts[name], expected, atol=1e-6, rtol=1e-4), name
    assert other == pytest.approx(metrics, rel=1e-4, abs=1e-6)


def test_micro_batches_do_not_change_the_gradient_of_fine_tuning() -> None:
    model = tiny.policy_model()
    items = samples([tokenise(e, tiny.policy(model)) for e in tiny.scripted("gold")[:6]])
    nodes = sum(len(t.branches) for item in items for t in item.turns)
    cfg = SFTConfig(smoothing=0.1)
    assert_same_gradient(model, items, lambda r, b: sft_loss(r, b, cfg, nodes=nodes))


def with_noise(item: Sample, draw: random.Random) -> Sample:
    """As if the policy had moved since it played, and a reference were another model."""
    turns = tuple(replace(t, log_prob=t.log_prob + draw.gauss(0, 0.2), value=draw.gauss(0, 1)) for t in item.turns)
    scores = [tuple(draw.gauss(0, 1) for _ in turns) for _ in range(2)]
    widest = max(len(b.children) for t in turns for b in t.branches)
    rows = [
        [draw.gauss(0, 1) for _ in b.children] + [float("-inf")] * (widest - len(b.children))
        for t in turns
        for b in t.branches
    ]
    reference = torch.log_softmax(torch.tensor(rows), -1)
    return replace(item, turns=turns, advantages=scores[0], returns=scores[1], reference=reference)


def test_micro_batches_do_not_change_the_gradient_of_ppo() -> None:
    model, draw = tiny.policy_model(), random.Random(0)
    items = [with_noise(item, draw) for item in samples(tiny.rollouts(model, tiny.tasks(6)))]
    turns = sum(len(item.turns) for item in items)
    cfg = PPOConfig(value_passes=0, kl_coef=0.5)
    assert_same_gradient(model, items, lambda r, b: ppo_loss(r, b, cfg, turns, 0.1, policy=True))


SAMPLES = st.lists(st.integers(1, 40), min_size=1, max_size=20).map(
    lambda lengths: [Sample((0,) * n, (turn(0),), (0.0,), (float(i),)) for i, n in enumerate(lengths)]
)


@given(SAMPLES, st.integers(8, 100))
def test_micro_batches_hold_every_sample_once_and_keep_to_their_size(items: list[Sample], most: int) -> None:
    groups = micro_batches(items, most)
    assert sorted(s.returns for group in groups for s in group) == sorted(s.returns for s in items)
    for group in groups:
        assert len(group) == 1 or len(group) * max(len(s.ids) for s in group) <= most


@given(SAMPLES, st.integers(1, 4))
def test_piles_hold_every_sample_once_and_differ_by_one_sample_at_most(items: list[Sample], count: int) -> None:
    dealt = piles(items, count)
    assert sorted(s.returns for pile in dealt for s in pile) == sorted(s.returns for s in items)
    sizes = [sum(item.size for item in pile) for pile in dealt]
    assert max(sizes) - min(sizes) <= max(item.size for item in items)


@given(SAMPLES, st.integers(1, 8), st.integers(0, 99))
def test_minibatches_are_a_partition_that_the_seed_decides(items: list[Sample], count: int, seed: int) -> None:
    parts = list(minibatches(items, count, random.Random(seed)))
    assert sorted(s.returns for part in parts for s in part) == sorted(s.returns for s in items)
    sizes = [len(part) for part in parts]
    assert len(parts) == min(count, len(items))
    assert max(sizes) - min(sizes) <= 1
    assert parts == list(minibatches(items, count, random.Random(seed)))


def test_numbers_that_belong_to_other_turns_are_refused() -> None:
    episodes = tiny.rollouts(tiny.policy_model(), tiny.tasks(2))
    right = [np.zeros(episode.steps) for episode in episodes]
    assert samples(episodes, right, right)
    for wrong, said in (
        (right[:1], "1 arrays of advantages for 2 episodes"),
        ([*right, right[0]], "3 arrays of advantages for 2 episodes"),
        ([right[0], np.zeros(50)], r"advantages of episode 1, which has \d+ turns, have the shape \(50,\)"),
        ([right[0], np.array(1.0)], r"have the shape \(\)"),
    ):
        with pytest.raises(DataError, match=said):
            samples(episodes, wrong)
        with pytest.raises(DataError, match=said.replace("advantages", "returns")):
            samples(episodes, right, wrong)


def test_games_that_no_policy_has_read_are_refused() -> None:
    gold = tiny.scripted("gold", 1)[0]
    with pytest.raises(DataError, match=r"episode 0 holds no token ids: gold played it[^\0]*tokenise"):
        samples([gold])
    assert samples([tokenise(gold, tiny.policy())])
    assert samples([replace(gold, turns=(), outcome=Outcome.LIMIT)]) == []
