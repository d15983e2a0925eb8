"""Credit for turns: by hand, by brute force, and what each switch of the configuration does to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.algos.advantages import discounted_returns, normalise, turn_gae
from grue.config import PPOConfig
from grue.train.credit import RunningScale, against_group, against_state, credit, turn_returns, turn_rewards
from grue.train.ppo_update import explained_variance
from grue.types import Episode, Observation, Outcome, Task, Turn


def episode(
    rewards: Sequence[float], values: Sequence[float], outcome: Outcome = Outcome.WON, seed: int = 0
) -> Episode:
    seen = Observation("", "", "", None, 0.0)
    turns = tuple(Turn(seen, "", reward, value=value) for reward, value in zip(rewards, values, strict=True))
    return Episode(Task("toy", "", "train", seed, 16), "choose", turns, outcome, seen)


def settings(**changes: object) -> PPOConfig:
    plain = {"gamma": 0.9, "lam": 0.8, "normalise_advantages": False, **changes}
    return PPOConfig.model_validate(plain)


# r = 0, 0, 1; V = 0.5, 0.4, 0.6; gamma 0.9, lambda 0.8, so gamma lambda = 0.72; nothing after the end
#   delta_2 = 1 - 0.6              =  0.4     A_2 = 0.4
#   delta_1 = 0.9 * 0.6 - 0.4      =  0.14    A_1 = 0.14 + 0.72 * 0.4     = 0.428
#   delta_0 = 0.9 * 0.4 - 0.5      = -0.14    A_0 = -0.14 + 0.72 * 0.428  = 0.16816
REWARDS, VALUES = (0.0, 0.0, 1.0), (0.5, 0.4, 0.6)
ADVANTAGES = (0.16816, 0.428, 0.4)
# cut off instead, with 0.6 still to come: delta_2 = 1 + 0.54 - 0.6 = 0.94, A_1 = 0.8168, A_0 = 0.448096
BOOTSTRAPPED = (0.448096, 0.8168, 0.94)


def test_gae_by_hand() -> None:
    advantages, returns = turn_gae(np.array(REWARDS), np.array(VALUES), 0.0, 0.9, 0.8)
    assert advantages == pytest.approx(ADVANTAGES)
    assert returns == pytest.approx([0.66816, 0.828, 1.0])  # advantages + values
    advantages, _ = turn_gae(np.array(REWARDS), np.array(VALUES), 0.6, 0.9, 0.8)
    assert advantages == pytest.approx(BOOTSTRAPPED)


NUMBERS = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=12)
UNIT = st.floats(0, 1)


@given(NUMBERS, st.floats(-2, 2), UNIT, UNIT)
def test_gae_equals_its_definition(pairs: list[tuple[float, float]], last: float, gamma: float, lam: float) -> None:
    rewards, values = np.array(pairs).T
    following = [*values[1:], last]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    expected = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]
    advantages, returns = turn_gae(rewards, values, last, gamma, lam)
    assert advantages == pytest.approx(expected, abs=1e-9)
    assert returns == pytest.approx(np.array(expected) + values, abs=1e-9)


@given(NUMBERS, UNIT)
def test_with_lambda_1_the_target_is_the_discounted_return(pairs: list[tuple[float, float]], gamma: float) -> None:
    rewards, values = np.array(pairs).T
    _, returns = turn_gae(rewards, values, 0.0, gamma, 1.0)
    assert returns == pytest.approx(discounted_returns(rewards, gamma), abs=1e-9)


def test_discounted_returns_by_hand() -> None:
    # 4; 2 + 0.5 * 4; 1 + 0.5 * 4
    assert discounted_returns(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3, 4, 4]
    assert discounted_returns(np.array([]), 0.5).tolist() == []


def test_whole_numbers_are_not_cut_off() -> None:
    zeros, last = np.array([0, 0, 0]), np.array([0, 0, 1])
    assert turn_gae(last, zeros, 0.0, 0.9, 0.9)[0] == pytest.approx([0.6561, 0.81, 1.0])
    assert discounted_returns(last, 0.9) == pytest.approx([0.81, 0.9, 1.0])


def test_normalised_values_have_mean_0_and_deviation_1() -> None:
    found = normalise(np.array([1.0, 2.0, 3.0, 6.0]))  # mean 3, deviation sqrt((4 + 1 + 0 + 9) / 4)
    assert found == pytest.approx(np.array([-2, -1, 0, 3]) / 3.5**0.5)
    assert normalise(np.array([2.0, 2.0])).tolist() == [0, 0]
    assert normalise(np.array([0.1 + 0.2, 0.3])).tolist() == [0, 0]  # rounding is no difference
    assert normalise(np.array([0.3, 0.3 + 1e-8])).tolist() == [0, 0]  # nor is that of float32
    assert normalise(np.array([1.0, 3.0]), centre=False) == pytest.approx([1, 3])


def test_a_game_that_was_cut_off_is_followed_by_the_value_of_what_it_showed_last() -> None:
    played = episode(REWARDS, VALUES, Outcome.LIMIT)
    for last, expected in ((0.0, ADVANTAGES), (0.6, BOOTSTRAPPED)):
        ((advantages,), (targets,)) = credit([replace(played, last_value=last)], settings())
        assert advantages == pytest.approx(expected)
        assert targets == pytest.approx(advantages + VALUES)


def test_returns_of_a_game_that_was_cut_off_hold_what_would_have_come() -> None:
    """Two plays of one game, cut off after rewards of 0; what one showed last is worth 0.6 of the divided reward."""
    plays = [episode((0.0, 0.0), VALUES[:2], Outcome.LIMIT, seed=1) for _ in range(2)]
    plays[1] = replace(plays[1], last_value=0.6)
    assert turn_returns(plays[1], settings(gamma=0.5), 2.0).tolist() == [0.15, 0.3]
    assert [a.tolist() for a in against_group(plays, settings(gamma=0.5), 2.0)] == [[-0.075] * 2, [0.075] * 2]
    foreseen = [replace(plays[0], turns=tuple(replace(turn, value=0.0) for turn in plays[0].turns))]
    foreseen += [replace(plays[1], turns=tuple(map(lambda t, v: replace(t, value=v), plays[1].turns, (0.15, 0.3))))]
    assert explained_variance(foreseen, settings(gamma=0.5), divisor=2.0) == pytest.approx(1)


def test_losing_costs_its_penalty_on_the_turn_that_lost() -> None:
    """With gamma lambda = 0.72 the turns before bear 0.72 and 0.72^2 of it; games that are not lost bear nothing."""
    lost, won = episode(REWARDS, VALUES, Outcome.LOST), episode(REWARDS, VALUES)
    (advantages, others), _ = credit([lost, won], settings(lost_penalty=0.5))
    assert advantages == pytest.approx(np.array(ADVANTAGES) - 0.5 * np.array([0.72**2, 0.72, 1]))
    assert others == pytest.approx(ADVANTAGES)
    assert [turn.reward for turn in lost.turns] == list(REWARDS)


def test_no_advantage_leaks_from_one_episode_into_another() -> None:
    one, two = episode(REWARDS, VALUES), episode((5.0,), (0.0,))
    apart = [credit([e], settings())[0][0].tolist() for e in (one, two)]
    assert [a.tolist() for a in credit([one, two], settings())[0]] == apart
    assert apart[0] == pytest.approx(ADVANTAGES)


def test_advantages_are_normalised_over_all_turns_of_an_iteration_not_within_an_episode() -> None:
    played = [episode((1.0, 1.0), (0.0, 0.0)), episode((0.0,), (0.0,))]
    # gamma 0: the advantages are the rewards 1, 1, 0 (mean 2/3, deviation sqrt(2)/3)
    found, _ = credit(played, settings(gamma=0.0, normalise_advantages=True))
    assert np.concatenate(found) == pytest.approx([2**-0.5, 2**-0.5, -(2**0.5)])


def test_targets_of_the_critic_are_not_normalised() -> None:
    _, targets = credit([episode(REWARDS, VALUES)], settings(normalise_advantages=True))
    assert targets[0] == pytest.approx([0.66816, 0.828, 1.0])


def test_the_win_bonus_comes_with_the_turn_that_wins() -> None:
    won, limit = episode(REWARDS, VALUES), episode(REWARDS, VALUES, Outcome.LIMIT)
    assert turn_rewards(won, settings(win_bonus=0.5)).tolist() == [*REWARDS[:-1], REWARDS[-1] + 0.5]
    assert turn_rewards(limit, settings(win_bonus=0.5)).tolist() == list(REWARDS)


def plays_of_two_games() -> list[Episode]:
    """With gamma 0.9 the plays return 0.81 and 0 of one game, 0.9 and 0.9 of another."""
    return [
        episode((0.0, 0.0, 1.0), VALUES, seed=1),
        episode((0.0, 1.0), VALUES[:2], seed=2),
        episode((0.0, 0.0), VALUES[:2], Outcome.LIMIT, seed=1),
        episode((0.0, 1.0), VALUES[1:], seed=2),
    ]


def test_a_group_is_its_own_baseline() -> None:
    """Less the means of the games, 0.405 and 0.9."""
    found = against_group(plays_of_two_games(), settings(gamma=0.9))
    assert [a.tolist() for a in found] == [
        pytest.approx([0.405] * 3),
        pytest.approx([0, 0]),
        pytest.approx([-0.405] * 2),
        pytest.approx([0, 0]),
    ]


def test_games_of_two_kinds_with_one_seed_are_two_games() -> None:
    plays = [episode((reward,), (0.0,), seed=5) for reward in (1.0, 1.0, 0.0, 0.0)]
    plays = [replace(play, task=replace(play.task, game=game)) for play, game in zip(plays, "aabb", strict=True)]
    assert [a.tolist() for a in against_group(plays, settings())] == [[0.0]] * 4


def test_turns_are_compared_where_plays_of_a_game_were_in_the_same_state() -> None:
    """Two plays begin alike. One comes back to where it began, later; the other goes on with other things in hand."""
    a = Observation("a", "", "", ("go",), 0.0, to_go=4)
    b, c = replace(a, score=0.5), replace(a, inventory="a lamp")
    later = replace(a, to_go=2, actions=("stay",))  # still the same
    back = episode((0.0, 0.0, 1.0), (0.0,) * 3)
    back = replace(back, turns=tuple(replace(t, observation=o) for t, o in zip(back.turns, (a, b, later), strict=True)))
    on = episode((0.0, 0.5), (0.0,) * 2, Outcome.LIMIT)
    on = replace(on, turns=tuple(replace(t, observation=o) for t, o in zip(on.turns, (a, c), strict=True)))
    other = episode((1.0,), (0.0,), seed=1)
    other = replace(other, turns=(replace(other.turns[0], observation=a),))  # another game
    cfg = settings(gamma=0.9)
    mean = (0.81 + 1.0 + 0.45) / 3
    found = against_state([back, on, other], cfg)
    assert [turns.tolist() for turns in found] == [
        pytest.approx([0.81 - mean, 0, 1.0 - mean]),
        pytest.approx([0.45 - mean, 0]),
        pytest.approx([0]),
    ]
    assert np.concatenate(against_state([back, on, other], cfg, divisor=2.0)) == pytest.approx(
        np.concatenate(found) / 2
    )
    both = np.concatenate(against_group([back, on, other], cfg)) + 2 * np.concatenate(found)
    mixed, _ = credit([back, on, other], settings(gamma=0.9, group_weight=1.0, plays_per_game=2, state_weight=2.0))
    assert np.concatenate(mixed) == pytest.approx(both / both.std(), abs=1e-6)


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_group_and_critic_are_mixed_at_deviation_1(weight: float) -> None:
    plays = plays_of_two_games()
    own = np.concatenate([turn_gae(_rewards(e), _values(e), 0.0, 0.9, 0.8)[0] for e in plays])
    group = np.concatenate(against_group(plays, settings(gamma=0.9)))
    advantages, targets = credit(plays, settings(group_weight=weight, plays_per_game=2))
    expected = (1 - weight) * own / own.std() + weight * group / group.std()
    assert np.concatenate(advantages) == pytest.approx(expected, abs=1e-6)
    assert targets[0] == pytest.approx([0.66816, 0.828, 1.0])  # the critic still learns the ordinary target


def test_what_would_have_come_counts_in_a_group_in_the_units_it_was_said_in() -> None:
    """Returns of 20, 5 + 10 times 1, and 0 of one game, while rewards are divided by 10."""
    cut = replace(episode((5.0,), (0.0,), Outcome.LIMIT), last_value=1.0)
    plays = [episode((20.0,), (0.0,)), cut, episode((0.0,), (0.0,))]
    cfg = settings(gamma=1.0, group_weight=1.0, plays_per_game=2, bootstrap_at_limit=True)
    advantages, _ = credit(plays, cfg, divisor=10.0)
    group = np.array([20, 15, 0]) - 35 / 3
    assert np.concatenate(advantages) == pytest.approx(group / group.std(), abs=1e-4)


def _rewards(played: Episode) -> np.ndarray:
    return np.array([turn.reward for turn in played.turns])


def _values(played: Episode) -> np.ndarray:
    return np.array([turn.value for turn in played.turns])


def test_rewards_are_divided() -> None:
    """With gamma 1 the returns are 2, and 4 and 3. A critic of rewards so divided leaves no advantage."""
    cfg, lengths = settings(gamma=1.0, lam=1.0), ((2.0,), (1.0, 3.0))
    _, targets = credit([episode(rewards, (0.0,) * len(rewards)) for rewards in lengths], cfg, divisor=4.0)
    assert [t.tolist() for t in targets] == [[0.5], [1.0, 0.75]]
    right = [episode((2.0,), (0.5,)), episode((1.0, 3.0), (1.0, 0.75))]
    advantages, _ = credit(right, cfg, divisor=4.0)
    assert np.concatenate(advantages) == pytest.approx(0, abs=1e-12)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_the_running_deviation_is_the_deviation(values: list[float]) -> None:
    scale = RunningScale()
    scale.add(np.array(values[:1]))
    scale.add(np.array(values[1:]))
    expected = float(np.std(values))
    if expected > 1e-6:
        assert scale.deviation == pytest.approx(expected, rel=1e-6)


def test_returns_that_are_all_equal_have_no_variance_to_explain() -> None:
    """It was -4e9 of values that differ, and 1 of values that are right."""
    alike = [episode((0.0, 0.0), (0.0, 0.3)), episode((0.0, 0.0), (0.1, 0.0))]
    assert math.isnan(explained_variance(alike, settings(gamma=1.0)))


def test_actions_that_the_game_did_not_list_cost_what_is_asked() -> None:
    played = episode((0.5, 0.0, 1.0), (0.0, 0.0, 0.0))
    turns = (played.turns[0], replace(played.turns[1], valid=False), played.turns[2])
    cfg = settings(invalid_penalty=0.1, win_bonus=2.0)
    assert turn_rewards(replace(played, turns=turns), cfg).tolist() == [0.5, -0.1, 3.0]
    assert turn_rewards(played, cfg).tolist() == [0.5, 0.0, 3.0]


def test_explained_variance_by_hand() -> None:
    """Rewards 0, 0, 1 with gamma 1: G = 1, 1, 1 and, lost, 0, 0, 0; Var(G) = 1/4."""
    won, lost = (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)
    perfect = [episode(won, (1, 1, 1)), episode(lost, (0, 0, 0), Outcome.LOST)]
    blind = [episode(won, (0.5, 0.5, 0.5)), episode(lost, (0.5, 0.5, 0.5), Outcome.LOST)]
    half = [episode(won, (0.5, 0.5, 0.5)), episode(lost, (0, 0, 0), Outcome.LOST)]
    assert explained_variance(perfect, settings(gamma=1.0)) == pytest.approx(1)
    assert explained_variance(blind, settings(gamma=1.0)) == pytest.approx(0, abs=1e-9)
    assert explained_variance(half, settings(gamma=1.0)) == pytest.approx(
        1 - 0.0625 / 0.25
    )  # what is left varies by 0, 0.5
    # a critic that has learnt rewards over 0.5 says twice as much
    scaled = [episode(won, (2, 2, 2)), episode(lost, (0, 0, 0), Outcome.LOST)]
    assert explained_variance(scaled, settings(gamma=1.0), divisor=0.5) == pytest.approx(1)
    broken = episode((9.0,), (0.0,), Outcome.FAILED)
    assert explained_variance([*half, broken], settings(gamma=1.0)) == explained_variance(half, settings(gamma=1.0))


def test_returns_that_are_alike_but_for_rounding_have_no_scale() -> None:
    scale = RunningScale()
    scale.add(np.array([1.0, 1.0 - 1e-16, 0.1 + 0.9, 0.3 + 0.7, 0.7 + 0.1 + 0.2]))
    assert scale.deviation == 1.0
