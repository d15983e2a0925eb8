"""The losses, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grue.algos.losses import (
    branch_log_probs,
    clipped_surrogate,
    clipped_value_loss,
    node_entropies,
    node_kl,
    smoothed_nll,
)
from grue.config import PPOConfig

INF = float("inf")


def logs(*rows: tuple[float, ...]) -> torch.Tensor:
    """Log-probabilities of nodes given as probabilities; short rows are padded with -inf."""
    widest = max(map(len, rows))
    return torch.tensor([[math.log(p) if p else -INF for p in row] + [-INF] * (widest - len(row)) for row in rows])


def test_log_probs_are_over_the_children_and_tempered() -> None:
    logits = torch.tensor([[0.0, math.log(3), -INF]])
    assert branch_log_probs(logits, 1.0).exp()[0].tolist() == pytest.approx([0.25, 0.75, 0])
    # temperature 0.5 squares the odds: 1 to 9
    assert branch_log_probs(logits, 0.5).exp()[0].tolist() == pytest.approx([0.1, 0.9, 0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 1.0, -1.2),  # above 1 + 0.2: no more to gain
        (0.5, 1.0, -0.5),  # below 1 - 0.2, but in the wrong direction: not clipped
        (1.5, -1.0, 1.5),  # likewise
        (0.5, -1.0, 0.8),  # below 1 - 0.2: no more to gain
    ],
)
def test_the_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float) -> None:
    log_prob = torch.tensor([math.log(ratio) - 3.0], requires_grad=True)
    found = clipped_surrogate(log_prob + 3.0, torch.tensor([advantage]), (0.8, 1.2))
    assert found.item() == pytest.approx(loss)
    found.sum().backward()
    assert log_prob.grad is not None
    clipped = loss in (-1.2, 0.8)
    assert log_prob.grad.item() == pytest.approx(0 if clipped else -ratio * advantage)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.25, 1.0, -1.25),  # below 1 + 0.28: still to be gained
        (1.5, 1.0, -1.28),
        (0.5, -1.0, 0.8),  # downwards it is clipped as before
    ],
)
def test_the_ratio_may_rise_further_than_fall(ratio: float, advantage: float, loss: float) -> None:
    bounds = PPOConfig(clip=0.2, clip_high=0.28).ratio_bounds
    found = clipped_surrogate(torch.tensor([math.log(ratio)]), torch.tensor([advantage]), bounds)
    assert found.item() == pytest.approx(loss)
    assert PPOConfig(clip=0.2).ratio_bounds == (0.8, 1.2)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss"),
    [
        (1.0, 0.5, 0.0, 0.0, 0.5),  # half of 1
        (0.0, 0.5, 0.0, 0.0, 0.0),  # there, however far it has moved
        (1.0, 0.5, 0.0, 0.2, 0.5),  # the clipped value 0.7 is nearer to the target: the greater error counts
        (0.0, 0.5, 0.0, 0.2, 0.045),  # moved past the clip 0.3, whose error 0.09 counts
        (0.4, 0.5, 0.0, 0.2, 0.08),  # within the clip
    ],
)
def test_the_value_loss_by_hand(value: float, old: float, target: float, clip: float, loss: float) -> None:
    found = clipped_value_loss(torch.tensor([value]), torch.tensor([old]), torch.tensor([target]), clip)
    assert found.item() == pytest.approx(loss)


def test_entropies_by_hand() -> None:
    found = node_entropies(logs((0.5, 0.5), (1.0,), (0.25, 0.75), (0.25, 0.25, 0.25, 0.25)))
    # -(0.25 ln 0.25 + 0.75 ln 0.75) = 0.34657 + 0.21576
    assert found.tolist() == pytest.approx([math.log(2), 0, 0.56233, math.log(4)], abs=1e-5)


def test_kl_by_hand() -> None:
    # 0.5 ln(0.5/0.9) + 0.5 ln(0.5/0.1) = -0.29389 + 0.80472
    found = node_kl(logs((0.5, 0.5), (0.2, 0.3, 0.5)), logs((0.9, 0.1), (0.2, 0.3, 0.5)))
    assert found.tolist() == pytest.approx([0.51083, 0], abs=1e-5)


NODES = st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8)), min_size=2, max_size=6)


@given(NODES)
def test_kl_is_never_negative_and_0_between_equals(logits: list[tuple[float, float]]) -> None:
    """With one padded child, as in a batch with wider nodes."""
    ours, theirs = (torch.tensor([[*column, -INF]], dtype=torch.float64) for column in zip(*logits, strict=True))
    policy, reference = branch_log_probs(ours, 1.0), branch_log_probs(theirs, 1.0)
    assert node_kl(policy, reference).item() >= -1e-12
    assert node_kl(policy, policy).item() == 0
    expected = torch.nn.functional.kl_div(reference[:, :-1], policy[:, :-1], log_target=True, reduction="sum")
    assert node_kl(policy, reference).item() == pytest.approx(expected.item(), abs=1e-9)


# ln 0.7 = -0.356675, ln 0.2 = -1.609438, ln 0.1 = -2.302585; their mean is -1.422899
THREE = (0.7, 0.2, 0.1)


def test_smoothed_nll_by_hand() -> None:
    chosen = torch.tensor([0, 1])
    log_probs = logs(THREE, (0.5, 0.5))
    # 0.9 * 0.356675 + 0.1 * 1.422899 = 0.463297; ln 2 whatever the smoothing, and the padded child has no share
    assert smoothed_nll(log_probs, chosen, 0.1).tolist() == pytest.approx([0.463297, math.log(2)], abs=1e-5)
    assert smoothed_nll(log_probs, chosen, 0.0).tolist() == pytest.approx([0.356675, math.log(2)], abs=1e-5)


@given(NODES, st.floats(0, 0.9))
def test_smoothed_nll_is_cross_entropy_against_a_target_that_sums_to_1(
    logits: list[tuple[float, float]], smoothing: float
) -> None:
    log_probs = torch.log_softmax(torch.tensor([score for score, _ in logits], dtype=torch.float64), 0)
    target = torch.full_like(log_probs, smoothing / len(logits))
    target[1] += 1 - smoothing
    assert target.sum().item() == pytest.approx(1)
    padded = torch.tensor([[*log_probs.tolist(), -INF]], dtype=torch.float64)
    found = smoothed_nll(padded, torch.tensor([1]), smoothing)
    assert found.item() == pytest.approx(-(target * log_probs).sum().item(), abs=1e-9)


def test_padded_children_give_finite_gradients() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.5, 40.0, 0.0]], requires_grad=True)
    padded = scores.masked_fill(torch.tensor([[False, False, True], [False, False, False]]), -INF)
    log_probs = branch_log_probs(padded, 1.0)
    reference = logs((0.5, 0.5), THREE)
    chosen = torch.tensor([0, 1])
    losses = node_entropies(log_probs) + node_kl(log_probs, reference) + smoothed_nll(log_probs, chosen, 0.1)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 2] == 0


def test_a_ratio_that_no_number_holds_is_no_nan() -> None:
    """As of a long text; an advantage of 0 is common where plays of one game are compared."""
    log_probs_T, old_T = torch.tensor([0.0, 0.0, -200.0], requires_grad=True), torch.tensor([-200.0, -200.0, 0.0])
    loss_T = clipped_surrogate(log_probs_T - old_T, torch.tensor([0.0, 1.0, 1.0]), (0.8, 1.2))
    assert loss_T.tolist() == pytest.approx([0, -1.2, 0], abs=1e-6)
    loss_T.sum().backward()
    assert log_probs_T.grad is not None and log_probs_T.grad.isfinite().all()
