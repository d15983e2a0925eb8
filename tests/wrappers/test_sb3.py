"""Token ids and masks for Stable-Baselines3, on the toy; and that MaskablePPO learns it, where it is installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from grue.errors import ConfigError, GameError
from grue.wrappers import sb3
from grue.wrappers.gym import GrueEnv


def toy(**settings: object) -> sb3.ActionList:
    return sb3.environment("grue/Toy-v0", columns=48, **settings)


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_the_wrapped_environment_passes_the_checker_of_gymnasium() -> None:
    check_env(toy())


def test_the_list_holds_every_action_that_a_game_can_list() -> None:
    boxes = {f"open {box}" for box in ("basket", "cupboard", "drawer", "sack", "chest")}
    steps = {"drink potion", "go east", "go west", "look", "take gem", "take key", "unlock chest"}
    env = gymnasium.make("grue/Toy-v0", limit=100)
    assert set(sb3.known_actions(env, episodes=300)) == boxes | steps


def test_indices_that_mean_another_action_at_each_step_are_refused() -> None:
    with pytest.raises(ConfigError, match="action='index' does not work with Stable-Baselines3"):
        toy(action="index")


def test_a_game_without_an_id_is_named_as_it_is() -> None:
    env = sb3.environment("toy", columns=48, limit=3, fold="dev")
    assert set(env.actions) < set(toy().actions)  # what three steps reach
    _, info = env.reset(seed=0)
    assert info["fold"] == "dev"
    look = env.actions.index("look")
    assert [env.step(look)[3] for _ in range(3)] == [False, False, True]
    with pytest.raises(ConfigError, match="unknown game 'tooy'"):
        sb3.environment("tooy")
    with pytest.raises(ConfigError, match="'guess:Guess' is neither an id of Gymnasium nor the name of a game"):
        sb3.environment("guess:Guess")


def test_the_mask_is_what_the_game_lists() -> None:
    env = toy()
    _, info = env.reset(seed=4)
    draw = np.random.default_rng(0)
    for _ in range(20):
        listed = {action for action, allowed in zip(env.actions, env.action_masks(), strict=True) if allowed}
        assert listed == set(info["valid_actions"])
        number = int(draw.choice(np.flatnonzero(env.action_masks())))
        _, _, terminated, truncated, info = env.step(number)
        assert info["valid"]
        if terminated or truncated:
            _, info = env.reset()


def test_a_list_without_any_valid_action_is_an_error_that_says_so() -> None:
    env = toy(actions=["dance"])
    env.reset(seed=0)
    with pytest.raises(GameError, match="none of the valid actions"):
        env.action_masks()


class _DeadEnd(gymnasium.Wrapper[str, str, str, str]):
    """No action is valid after a step."""

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated, truncated, info | {"valid_actions": ()}


def test_a_state_without_valid_actions_is_not_a_game_without_them() -> None:
    env = _DeadEnd(GrueEnv("toy"))
    with pytest.raises(GameError, match=r"train game .* has no valid action at step 1"):
        sb3.known_actions(env)
    listed = sb3.ActionList(sb3.TokenIds(env, 16), ["look"])
    listed.reset(seed=0)
    listed.step(0)
    with pytest.raises(GameError, match="has listed no valid actions\nhint: a policy of one list"):
        listed.action_masks()


def test_valid_actions_that_are_not_on_the_list_are_warned_of_once() -> None:
    env = toy(actions=["look"])
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="cannot be chosen"):
        env.action_masks()
    env.action_masks()  # a second warning would be an error here


def test_observations_are_the_newest_tokens_of_the_transcript() -> None:
    words: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        return [words.setdefault(word, len(words) + 1) for word in text.split()]

    env = sb3.TokenIds(gymnasium.make("grue/Toy-v0"), columns=200, encode=encode, vocabulary=300)
    first, _ = env.reset(seed=1)
    second, *_ = env.step("look")
    text = {number: word for word, number in words.items()}
    assert first.shape == second.shape == (200,)
    assert first in env.observation_space
    before, after = first[first > 0], second[second > 0]
    assert (after[: len(before)] == before).all()  # append-only
    assert [text[number] for number in after[len(before) :]][:2] == [">", "look"]
    kept: dict[str, list[int]] = {}  # an `encode` that keeps what it returns, and must find it unchanged
    keeping = sb3.TokenIds(
        gymnasium.make("grue/Toy-v0"), 200, lambda text: kept.setdefault(text, encode(text)), vocabulary=300
    )
    first, _ = keeping.reset(seed=0)
    keeping.step("look")
    np.testing.assert_array_equal(keeping.reset(seed=0)[0], first)
    narrow = sb3.TokenIds(gymnasium.make("grue/Toy-v0"), columns=5, encode=encode, vocabulary=300)
    narrow.reset(seed=1)
    assert (narrow.step("look")[0] == second[-5:]).all()


def test_features_tell_where_a_token_stands() -> None:
    torch.manual_seed(0)
    features = sb3.TokenFeatures(gymnasium.spaces.Box(0, 50, (40,), np.int64))
    ids = torch.zeros(2, 40)
    ids[0, 5], ids[1, 35] = 7, 7  # the same token, long ago and just now
    old, new = features(ids)
    assert features.features_dim == len(old) == 128
    assert not torch.allclose(old, new)


@pytest.mark.slow
def test_maskable_ppo_learns_the_toy() -> None:
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.evaluation import evaluate_policy

    env, dev = toy(), toy(fold="dev")
    torch.manual_seed(0)
    model = sb3.maskable_ppo(env, seed=0, n_steps=512, batch_size=128, learning_rate=1e-3, device="cpu")
    before, _ = evaluate_policy(model, dev, n_eval_episodes=100, deterministic=False, warn=False)
    model.learn(8_000)
    after, _ = evaluate_policy(model, dev, n_eval_episodes=100, deterministic=False, warn=False)
    assert after > before + 0.2


def test_lists_and_encoders_that_cannot_be_are_refused() -> None:
    env = gymnasium.make("grue/Toy-v0")
    with pytest.raises(ConfigError, match="encode and vocabulary"):
        sb3.TokenIds(env, 16, encode=lambda text: [4000])
    for actions in ((), ("look", "look")):
        with pytest.raises(ConfigError, match="cannot be numbered"):
            sb3.ActionList(env, actions)
    for columns in (0, 2.5):
        with pytest.raises(ConfigError, match=f"columns={columns} is not a whole number from 1 up"):
            sb3.TokenIds(env, columns)  # type: ignore[arg-type]
    for wrong in ("fly", [1, 2]):
        with pytest.raises(ConfigError, match="the actions are a list of texts"):
            sb3.ActionList(env, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 99])
def test_numbers_outside_the_list_are_refused(number: int) -> None:
    env = toy()
    with pytest.raises(GameError, match="reset the environment first"):
        env.action_masks()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=f"there is no action {number}: the list has"):
        env.step(number)


@pytest.mark.parametrize("action", ["look", 1.7, None])
def test_an_action_is_a_whole_number(action: object) -> None:
    env = toy()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="is the number of a text"):
        env.step(action)
    look = env.actions.index("look")
    assert env.step(np.array(look)) and env.step(np.int64(look))
