"""The baseline that knows the game: it tells hard games from easy ones, never by their own play, and is restored."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from grue.config import PPOConfig
from grue.train.game_baseline import PLAYS, GameBaseline
from grue.types import Episode, Observation, Outcome, Task, Turn

GAMMA = 0.9


def episode(seed: int, reward: float, steps: int = 3) -> Episode:
    """A play of game `seed` that is rewarded at its last turn; the critic says 0.5 everywhere."""
    seen = Observation("a room", "find it", "", ("go",), 0.0)
    turns = tuple(Turn(seen, "go", reward if i == steps - 1 else 0.0, value=0.5) for i in range(steps))
    task = Task("toy", "", "train", seed, 16)
    return Episode(task, "choose", turns, Outcome.WON if reward else Outcome.LIMIT, seen)


def baseline(demo_steps: dict[int, int] | None = None) -> GameBaseline:
    return GameBaseline(demo_steps or {}, PPOConfig(gamma=GAMMA, value_passes=20, value_learning_rate=3e-3), "0")


def targets(plays: list[Episode]) -> list[np.ndarray]:
    return [np.array([play.turns[-1].reward * GAMMA**k for k in reversed(range(play.steps))]) for play in plays]


def test_before_it_has_learnt_it_is_the_critic() -> None:
    (values,) = baseline().values([episode(1, 1.0)])
    assert values.tolist() == [0.5, 0.5, 0.5]


def test_earlier_plays_tell_hard_games_from_easy_ones() -> None:
    found = baseline()
    plays = [episode(seed, float(seed % 2)) for seed in range(40)]
    for _ in range(8):
        found.learn(plays, targets(plays))
    hard, easy = found.values([episode(2, 0.0), episode(3, 0.0)])
    assert easy[0] > 0.6 > 0.2 > hard[0]
    assert found.values([episode(2, 1.0)])[0].tolist() == hard.tolist(), "a play must not move its own baseline"


def test_a_game_never_played_is_judged_by_its_demonstration() -> None:
    found = baseline({seed: 10 if seed % 2 else 22 for seed in range(100)})
    plays = [episode(seed, float(seed % 2)) for seed in range(40)]
    for _ in range(8):
        found.learn(plays, targets(plays))
    hard, easy = found.values([episode(98, 0.0), episode(99, 0.0)])
    assert easy[0] > hard[0] + 0.2


def test_it_tells_a_lost_chance_when_it_is_told_the_steps_to_a_win() -> None:
    def told(seed: int, reward: float, to_go: int | None) -> Episode:
        play = episode(seed, reward)
        turns = tuple(replace(turn, observation=replace(turn.observation, to_go=to_go)) for turn in play.turns)
        return replace(play, turns=turns)

    found = baseline()
    plays = [told(seed, float(seed % 2), 4 if seed % 2 else 20) for seed in range(40)]
    for _ in range(8):
        found.learn(plays, targets(plays))
    near, far, unknown = found.values([told(98, 0.0, 4), told(99, 0.0, 20), told(98, 0.0, None)])
    assert near[0] > 0.6 > 0.2 > far[0]
    assert unknown[0] not in (near[0], far[0])


def test_the_hidden_state_needs_a_baseline_to_be_told_to() -> None:
    with pytest.raises(ValueError, match="set game_baseline to true"):
        PPOConfig(hidden_state=True)


def test_a_restored_baseline_goes_on_as_the_first_one() -> None:
    plays = [episode(seed, float(seed % 2)) for seed in range(20)]
    one, other = baseline(), baseline()
    one.learn(plays, targets(plays))
    other.load_state(*deepcopy(one.state()))
    for found in (one, other):
        found.learn(plays, targets(plays))
    assert [v.tolist() for v in one.values(plays)] == [v.tolist() for v in other.values(plays)]


def test_old_plays_of_a_game_fade() -> None:
    found = baseline()
    for rewards, times in (((1.0, 0.0), 4 * PLAYS), ((0.0, 1.0), PLAYS)):
        for _ in range(times):
            plays = [episode(seed, reward) for seed, reward in enumerate(rewards)]
            found.remember(plays, targets(plays))
        if rewards[0]:
            assert found.plays[0][1] > 0
    assert found.plays[0][1] < 0
    assert found.plays[0][0] == 5 * PLAYS


def test_what_is_told_of_a_win_counts_the_steps_that_are_left() -> None:
    play = episode(1, 0.0)  # three turns of at most 16
    told = replace(play, turns=tuple(replace(t, observation=replace(t.observation, to_go=15)) for t in play.turns))
    rows = baseline()._features(told)
    assert rows[:, 9].tolist() == [0.25, 0.0, -0.25]  # steps to spare, by four
    assert rows[:, 10].tolist() == [1.0, 1.0, 0.0]  # can it still be won?
