"""The Gymnasium environments: its own checker, both kinds of action, seeds, and many games in one Java process."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import grue.wrappers.gym
import tiny
from grue.config.presets import PRESETS
from grue.errors import ConfigError, GameError
from grue.games import Game, make, tasks
from grue.games.teachers import teacher
from grue.games.twx import jvm
from grue.policy.decision import Decoding
from grue.rollout.player import PolicyPlayer
from grue.types import Observation, Outcome, Task
from grue.wrappers.gym import IDS, AnyText

JAVA = [name for name in IDS if name != "Toy"]


@pytest.mark.parametrize("action", ["text", "index"])
def test_the_checker_of_gymnasium_finds_nothing(action: str) -> None:
    check_env(gymnasium.make("grue/Toy-v0", action=action).unwrapped)


@pytest.mark.parametrize("name", JAVA)
def test_every_family_passes_the_checker_with_text_and_with_indices(name: str) -> None:
    for action in ("text", "index"):
        check_env(gymnasium.make(f"grue/{name}-v0", action=action, fold="test").unwrapped)


def test_an_id_plays_the_game_of_its_preset() -> None:
    registered = {name for name in gymnasium.registry if name.startswith("grue/")}
    assert registered == {f"grue/{name}-v0" for name in IDS}
    for name, preset in IDS.items():
        settings = gymnasium.spec(f"grue/{name}-v0").kwargs
        game = PRESETS[preset]().game
        assert settings == {"game": game.name, "params": game.params, "limit": game.limit}


@pytest.mark.parametrize("family", JAVA)
def test_spaces_hold_all_that_a_solved_game_prints(family: str) -> None:
    settings = gymnasium.spec(f"grue/{family}-v0").kwargs
    env = gymnasium.make(f"grue/{family}-v0", limit=100)
    text, info = env.reset(options={"game_seed": 5})
    game = make(settings["game"], settings["params"])
    game.reset(next(task for task in tasks(settings["game"], settings["params"], "train", 100) if task.seed == 5))
    assert info["goal"].split()[0] in text  # the goal is part of the first observation
    over, total = False, 0.0
    for action in game.gold():
        assert text in env.observation_space
        assert action in env.action_space
        text, reward, over, _, info = env.step(action)
        total += reward
        if over:
            break
    game.close()
    env.close()
    assert over
    assert info["outcome"] == "won"
    assert total == pytest.approx(1.0)


def test_any_text_holds_what_the_stock_space_refuses() -> None:
    space = AnyText(10)
    assert "a b\n" in space
    assert "über" in space
    assert "" in space
    assert "x" * 11 in space  # of samples alone are no longer than that
    assert "x" * 100_001 not in space
    assert 7 not in space
    assert space.sample() in space


def test_indices_number_the_valid_actions() -> None:
    by_text, by_index = gymnasium.make("grue/Toy-v0"), gymnasium.make("grue/Toy-v0", action="index", max_actions=9)
    _, info = by_index.reset(seed=3)
    by_text.reset(seed=3)
    assert info["action_mask"].sum() == len(info["valid_actions"])
    for _ in range(10):
        number = int(by_index.action_space.sample(mask=info["action_mask"]))
        action = info["valid_actions"][number]
        text, reward, *_, info = by_index.step(number)
        other, other_reward, terminated, truncated, _ = by_text.step(action)
        assert (text, reward) == (other, other_reward)
        assert info["valid"]
        if terminated or truncated:
            break


def test_an_index_without_an_action_costs_a_step_and_does_nothing() -> None:
    env = gymnasium.make("grue/Toy-v0", action="index", limit=1)
    _, before = env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(63)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["valid"], info["outcome"], info["steps"]) == (False, "limit", 1)
    assert info["valid_actions"] == before["valid_actions"]
    assert info["action_mask"].tolist() == before["action_mask"].tolist()  # a masked agent still asks for an action


def test_more_actions_than_numbers_is_an_error_that_says_what_to_set() -> None:
    env = gymnasium.make("grue/Toy-v0", action="index", max_actions=1)
    with pytest.raises(ConfigError, match="max_actions"):
        env.reset(seed=0)


def test_a_seed_draws_the_same_games_and_an_option_names_one() -> None:
    env = gymnasium.make("grue/Toy-v0", fold="dev")
    first = [env.reset(seed=11)[1]["game_seed"], env.reset()[1]["game_seed"], env.reset()[1]["game_seed"]]
    again = [env.reset(seed=11)[1]["game_seed"], env.reset()[1]["game_seed"], env.reset()[1]["game_seed"]]
    assert first == again
    assert len(set(first)) > 1
    assert all(10_000 <= seed < 11_000 for seed in first)
    assert env.reset(options={"game_seed": 10_007})[1]["game_seed"] == 10_007
    with pytest.raises(ConfigError, match="are not a dict"):
        env.reset(options=5)  # type: ignore[arg-type]
    assert env.reset(options={"game_seed": np.int64(10_007)})[1]["game_seed"] == 10_007
    with pytest.raises(ConfigError, match="outside fold"):
        env.reset(options={"game_seed": 7})
    assert env.step("look")[4]["game_seed"] == 10_007  # the game that was being played goes on under its own number
    with pytest.raises(ConfigError, match="game_seed"):
        env.reset(options={"seed": 7})


def test_poison_terminates_and_the_limit_truncates() -> None:
    env = gymnasium.make("grue/Toy-v0", limit=3)
    ends = set()
    for seed in range(40):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            drink = "drink potion" in info["valid_actions"]
            _, _, terminated, truncated, info = env.step("drink potion" if drink else "look")
            over = terminated or truncated
        ends.add((info["outcome"], terminated, truncated))
    assert ends == {("lost", True, False), ("limit", False, True)}


def test_many_games_of_a_vector_environment_share_one_java() -> None:
    jvm.shutdown()
    envs = gymnasium.make_vec(
        "grue/Coin-v0",
        num_envs=16,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    assert isinstance(envs, SyncVectorEnv)
    texts, infos = envs.reset(seed=0)
    assert len(set(infos["game_seed"])) > 8
    finished = 0
    for step in range(60):
        actions = tuple(listed[step % len(listed)] for listed in infos["valid_actions"])
        texts, rewards, terminated, truncated, infos = envs.step(actions)
        finished += int((terminated | truncated).sum())
        assert all(text in space for text, space in zip(texts, envs.observation_space.spaces, strict=True))
    assert rewards.shape == (16,)
    assert finished >= 16
    assert len(jvm._running) == 1
    envs.close()


@pytest.mark.parametrize("action", [5, None, b"look", np.int64(1)])
def test_what_is_no_text_is_refused_where_text_is_played(action: object) -> None:
    env = grue.wrappers.gym.GrueEnv()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="action of this environment is a str"):
        env.step(action)
    assert env.step(np.str_("look"))[4]["steps"] == 1


def test_white_space_around_an_action_is_none_of_it() -> None:
    env = grue.wrappers.gym.GrueEnv()
    env.reset(seed=0)
    assert env.step("  look ")[4]["valid"]


@pytest.mark.parametrize(
    ("game", "params", "said"),
    [
        (None, "", "None is not the name of a game"),
        ([], "", "is not the name of a game"),
        ("toy", None, "neither a text nor a dict"),
        ("coin", 3, "parameters 3"),
    ],
)
def test_no_game_and_no_parameters_are_refused_by_name(game: Any, params: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        grue.wrappers.gym.GrueEnv(game, params)


@pytest.mark.parametrize(("name", "made"), [("grue/Coin-v0", "Coin"), ("cooking16", "CookingWorld")])
def test_an_id_or_a_preset_in_place_of_a_game_is_an_error_that_says_how_to_make_it(name: str, made: str) -> None:
    with pytest.raises(ConfigError, match=rf'gymnasium\.make\("grue/{made}-v0"\)'):
        grue.wrappers.gym.GrueEnv(name)


def test_a_fold_that_does_not_exist_is_refused_with_those_that_may_be_played() -> None:
    with pytest.raises(ConfigError, match=r"folds are train, dev and test$"):
        grue.wrappers.gym.GrueEnv("toy", fold="valid")


def test_arguments_of_the_wrong_kind_are_refused() -> None:
    wrong: Any
    for wrong in (0, 2.5, "5"):
        with pytest.raises(ConfigError, match=f"max_actions={wrong!r} is not a whole number from 1 up"):
            grue.wrappers.gym.GrueEnv(action="index", max_actions=wrong)
    env = grue.wrappers.gym.GrueEnv(action="index", max_actions=np.int64(8), limit=np.int64(5))
    assert env.action_space == spaces.Discrete(8) and "You have 5 steps." in env.reset()[0]
    wrong = ["train"]
    with pytest.raises(ConfigError, match=r"fold=\['train'\] is not a name"):
        grue.wrappers.gym.GrueEnv(fold=wrong)
    with pytest.raises(ConfigError, match="unknown reset option 1"):
        grue.wrappers.gym.GrueEnv().reset(options={1: 2, "a": 3})


def test_an_unknown_kind_of_action_is_refused() -> None:
    with pytest.raises(ConfigError, match="'text' or 'index'"):
        grue.wrappers.gym.GrueEnv(action="number")


def test_gold_of_the_toy_wins_in_the_environment() -> None:
    env = gymnasium.make("grue/Toy-v0")
    _, info = env.reset(seed=2)
    game = make("toy")
    player = teacher("gold", game)
    task = next(task for task in tasks("toy", "", "train", 16) if task.seed == info["game_seed"])
    player.start(task, game.reset(task))
    terminated = False
    while not terminated:
        _, _, terminated, truncated, info = env.step(player.act(game.reset(task)))
        assert not truncated
    assert info["score"] == 1.0


def test_games_that_measure_are_not_played_by_their_seeds_either() -> None:
    """Of the toy's train seeds a few make a house of a later fold."""
    left_out = sorted({*range(1000)} - {task.seed for task in tasks("toy", "", "train", 16)})
    env = gymnasium.make("grue/Toy-v0")
    with pytest.raises(ConfigError, match=f"game_seed={left_out[0]} is not among the 999 train games of toy"):
        env.reset(options={"game_seed": left_out[0]})
    with pytest.raises(ConfigError, match="folds are train, dev and test"):
        gymnasium.make("grue/Toy-v0", fold="pretrain")


def test_errors_say_what_to_call_in_gymnasium() -> None:
    env = grue.wrappers.gym.GrueEnv("toy", limit=1)
    with pytest.raises(GameError, match=r"no game under way\nhint: call reset\(\) first"):
        env.step("look")
    env.reset(seed=0)
    assert env.step("look")[3]
    with pytest.raises(GameError, match=r"call reset\(\) first"):
        env.step("look")
    env.close()
    for call in (env.reset, lambda: env.step("look")):
        with pytest.raises(ConfigError, match="this environment is closed"):
            call()


def test_a_game_that_crashes_as_it_begins_does_not_go_on_as_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    env = grue.wrappers.gym.GrueEnv("toy")
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="5000"):  # refused: the game before goes on
        env.reset(options={"game_seed": 5000})
    env.step("look")

    def crash(task: Task) -> Observation:
        raise GameError("boom")

    monkeypatch.setattr(env._game, "reset", crash)
    with pytest.raises(GameError, match="boom"):
        env.reset()
    with pytest.raises(GameError, match="no game under way"):
        env.step("look")
    with pytest.raises(ConfigError, match="are not a dict"):
        env.reset(options=[])  # type: ignore[arg-type]


def test_a_preset_is_told_from_a_game() -> None:
    for preset, game in (("tales-coin", "coin"), ("smoke", "cookingworld")):
        with pytest.raises(
            ConfigError, match=rf"'{preset}' is a preset, not a game\nhint: its game is GrueEnv\('{game}'"
        ):
            grue.wrappers.gym.GrueEnv(preset)


@pytest.mark.parametrize("settings", [{"limit": [1]}, {"limit": "5"}, {"limit": 0}, {"max_actions": True}])
def test_numbers_are_numbers(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}=.* is not a whole number from 1 up"):
        grue.wrappers.gym.GrueEnv("toy", action="index", **settings)


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_an_agent_that_samples_with_the_mask_always_can(mode: AutoresetMode) -> None:
    make = {"num_envs": 3, "vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}}
    envs = gymnasium.make_vec("grue/Toy-v0", action="index", limit=5, **make)
    _, info = envs.reset(seed=0)
    for _ in range(30):
        assert all(info["action_mask"].sum(axis=1) >= 1)
        _, _, _, _, info = envs.step(info["action_mask"].argmax(axis=1))
    envs.close()


def test_at_the_end_an_index_is_marked_though_nothing_is_listed() -> None:
    env = grue.wrappers.gym.GrueEnv("twc", {"numLocations": 1, "numItemsToPutAway": 1}, action="index")
    env.reset(seed=0)
    assert env._mask(()).sum() == 0 and env._info(Outcome.WON, valid=True)["action_mask"].sum() >= 1
    env._seen = replace(env._seen, actions=())
    assert env._info(Outcome.WON, valid=True)["action_mask"].tolist() == [1] + [0] * 63
    env.close()


def test_all_games_are_there_to_be_gone_through() -> None:
    env = grue.wrappers.gym.GrueEnv("toy", fold="dev")
    assert env.tasks == tuple(tasks("toy", "", "dev", 16))
    for task in env.tasks[:3]:
        _, info = env.reset(options={"game_seed": task.seed})
        assert env.task == task and info["game_seed"] == task.seed


def test_a_game_may_be_wrapped() -> None:
    class Kind:
        def __init__(self, inner: Game) -> None:
            self.inner, self.close = inner, inner.close

        def reset(self, task: Task) -> Observation:
            return replace(self.inner.reset(task), goal="Be kind.")

        def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
            return self.inner.step(action)

    env = gymnasium.make("grue/Toy-v0", wrap=Kind)
    text, info = env.reset(seed=0)
    assert text.startswith("Be kind.") and info["goal"] == "Be kind."


@pytest.mark.filterwarnings("ignore")
def test_shared_memory_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="you can disable this feature with `shared_memory=False`"):
        gymnasium.make_vec("grue/Toy-v0", num_envs=1, vectorization_mode="async")


@pytest.mark.filterwarnings("ignore")
def test_an_error_in_another_process_can_be_read() -> None:
    """Gymnasium makes a second error of the first one, and its text was then an error, too."""
    make = {"num_envs": 1, "vectorization_mode": "async", "vector_kwargs": {"shared_memory": False}}
    envs = gymnasium.make_vec("grue/Toy-v0", **make)
    envs.reset(seed=0)
    with pytest.raises(ConfigError) as error:
        envs.reset(options={"game_seed": 5000})
    assert "5000" in str(error.value) and "hint" in str(error.value) and error.value.hint
    envs.close(terminate=True)


def test_a_policy_plays_what_the_environment_shows() -> None:
    env = grue.wrappers.gym.GrueEnv("toy")
    text, info = env.reset(seed=1)
    shown = env.observation
    assert text.endswith(shown.text) and text != shown.text
    assert (shown.goal, shown.actions) == (info["goal"], info["valid_actions"])
    player = PolicyPlayer(tiny.policy(), name="x", context=512, limit=16, decoding=Decoding(greedy=True))
    while not info["outcome"]:
        *_, info = env.step(player.act(env.observation))
        assert info["valid"]


def test_what_leads_to_an_engine_is_not_copied() -> None:
    env = grue.wrappers.gym.GrueEnv("coin")
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="a TwxGame cannot be copied or pickled"):
            copy_of(env._game)
    with pytest.raises(ConfigError, match="cannot be copied"):
        copy.deepcopy(env)
    env.close()
