"""Games for Stable-Baselines3: token ids as observations, a fixed list of actions with a mask, a small text reader.

    env = sb3.environment("grue/Coin-v0")
    model = sb3.maskable_ppo(env, verbose=1)  # sb3_contrib.MaskablePPO
    model.learn(50_000)

Stable-Baselines3 needs arrays of fixed shapes. So the actions are a fixed list, gathered from train games, and those
that the game does not allow now are masked out. An action that never occurred there cannot be chosen, which a warning
says.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from grue.errors import ConfigError, GameError, needs, whole_number
from grue.games import is_known
from grue.models.load import embedded_folder
from grue.wrappers.gym import GrueEnv, number_of  # whose module registers the ids

Ids = NDArray[np.int64]


class TokenIds(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """The newest `columns` tokens of the transcript so far; shape (columns,), newest last, padded with 0.

    `encode` maps a text to ids from 1 to `vocabulary`. The default is the tokenizer of the embedded base, shifted by 1.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        columns: int = 128,
        encode: Callable[[str], list[int]] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, columns=columns, encode=encode, vocabulary=vocabulary)
        super().__init__(env)
        columns = whole_number("columns", columns, least=1, hint="how many tokens are seen, 128 by default")
        if (encode is None) != (vocabulary is None):
            raise ConfigError("encode and vocabulary, the largest id that it returns, go together", hint="give both")
        self._encode = encode or _embedded_ids
        high = vocabulary or _embedded_tokenizer().get_vocab_size()
        self.observation_space = spaces.Box(0, high, (columns,), np.int64)
        self._ids: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Ids, dict[str, Any]]:
        text, info = self.env.reset(seed=seed, options=options)
        self._ids = list(self._encode(text))  # its own: `encode` may keep what it returns
        return self._newest(), info

    def step(self, action: str) -> tuple[Ids, Any, bool, bool, dict[str, Any]]:
        text, reward, terminated, truncated, info = self.env.step(action)
        self._ids += self._encode(f"\n> {action}\n{text}")
        return self._newest(), reward, terminated, truncated, info

    def _newest(self) -> Ids:
        shape = self.observation_space.shape
        assert shape is not None
        found = np.zeros(shape, dtype=np.int64)
        newest = self._ids[-len(found) :]
        found[len(found) - len(newest) :] = newest
        return found


class ActionList(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """An action is the number of a text in `actions`; `action_masks()` says which of them the game lists now."""

    def __init__(self, env: gymnasium.Env[Ids, str], actions: Sequence[str]) -> None:
        RecordConstructorArgs.__init__(self, actions=actions)
        super().__init__(env)
        self.actions = tuple(actions)
        if isinstance(actions, str) or not all(isinstance(action, str) for action in self.actions):
            raise ConfigError(
                f"the actions are a list of texts, not {actions!r:.60}", hint='such as ["look", "take key"]'
            )
        if not self.actions or len({*self.actions}) < len(self.actions):
            raise ConfigError(
                f"a list of {len(self.actions)} actions, {len({*self.actions})} of them distinct, cannot be numbered",
                hint="known_actions(env) makes a list of distinct ones",
            )
        self.action_space = spaces.Discrete(len(self.actions))
        self._number = {action: i for i, action in enumerate(self.actions)}
        self._valid: tuple[str, ...] | None = None  # before the first reset
        self._told = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Ids, dict[str, Any]]:
        ids, info = self.env.reset(seed=seed, options=options)
        self._valid = info["valid_actions"]
        return ids, info

    def step(self, action: Any) -> tuple[Ids, Any, bool, bool, dict[str, Any]]:
        number = number_of(action, "the number of a text", hint="env.actions.index(text) is the number of a text")
        if not 0 <= number < len(self.actions):
            raise ConfigError(
                f"there is no action {number}: the list has {len(self.actions)}", hint="numbers begin with 0"
            )
        result = self.env.step(self.actions[number])
        self._valid = result[4]["valid_actions"]
        return result

    def action_masks(self) -> NDArray[np.bool_]:
        """True for each action that is valid now; shape (actions,). sb3-contrib expects this name."""
        if not self._valid:
            hint = (
                "reset the environment first" if self._valid is None else "a policy of one list of actions needs some"
            )
            raise GameError("the game has listed no valid actions", hint=hint)
        mask = np.zeros(len(self.actions), dtype=np.bool_)
        mask[[self._number[action] for action in self._valid if action in self._number]] = True
        if not mask.any():
            raise GameError(
                f"none of the valid actions is on the list of {len(self.actions)}: {self._valid[:3]}",
                hint="gather the list over more games: known_actions(env, episodes=...)",
            )
        if mask.sum() < len(self._valid) and not self._told:
            self._told = True
            warnings.warn(  # a fixed text, so that environments of one process say it once
                "the game lists actions that are not on the list of this environment: they cannot be chosen, and the "
                "game may be impossible to win. known_actions(env, episodes=...) gathers more",
                stacklevel=2,
            )
        return mask


def known_actions(env: gymnasium.Env[str, str], episodes: int = 200, seed: int = 0) -> tuple[str, ...]:
    """Every action listed in `episodes` games played at random; sorted."""
    draw, found = random.Random(seed), set[str]()
    _, info = env.reset(seed=seed)
    for _ in range(episodes):
        over = False
        while not over:
            if info["valid_actions"] is None:
                raise GameError("this game does not list its valid actions", hint="a fixed list of actions needs them")
            if not info["valid_actions"]:
                where = f"{info['fold']} game {info['game_seed']} has no valid action at step {info['steps']}"
                raise GameError(where, hint="pass actions=[...] yourself, or let the game end there")
            found.update(info["valid_actions"])
            _, _, terminated, truncated, info = env.step(draw.choice(info["valid_actions"]))
            over = terminated or truncated
        _, info = env.reset()
    return tuple(sorted(found))


def environment(
    name: str = "grue/Coin-v0", *, actions: Sequence[str] | None = None, columns: int = 128, **settings: Any
) -> ActionList:
    """A game as Stable-Baselines3 expects it. `actions` is gathered if not given.

    `settings` go to `gymnasium.make` for an id of Gymnasium, to `GrueEnv` for the name of a game, such as one's own.
    """
    if settings.get("action", "text") != "text":
        raise ConfigError(
            f"action={settings['action']!r} does not work with Stable-Baselines3: its policies choose from one list",
            hint="leave it out, or use gymnasium.make directly",
        )
    is_id = name in gymnasium.registry or (not is_known(name) and any(mark in name for mark in "/:"))
    make = partial(gymnasium.make, name) if is_id else partial(GrueEnv, name)
    try:
        env: gymnasium.Env[str, str] = make(**settings)
    except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:  # the module of MODULE:ID
        if name in gymnasium.registry:
            raise
        raise ConfigError(
            f"{name!r} is neither an id of Gymnasium nor the name of a game",
            hint='such as "grue/Coin-v0" or "coin"; a game of your own gets its name from its package\'s entry point '
            "grue.games (docs/games.md)",
        ) from error
    if actions is None:
        rehearsal = make(**{**settings, "fold": "train"})
        actions = known_actions(rehearsal)
        rehearsal.close()
    return ActionList(TokenIds(env, columns), actions)


class TokenFeatures(torch.nn.Module):
    """Embedding, convolution over five tokens, maximum over the window and over its newest quarter.

    Passed as `features_extractor_class`. In: ids (B, columns). Out: features (B, 2 * hidden).
    """

    def __init__(self, observation_space: spaces.Box, embedding: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.features_dim = 2 * hidden
        self._newest = max(1, observation_space.shape[0] // 4)
        self._embed = torch.nn.Embedding(int(observation_space.high.max()) + 1, embedding, padding_idx=0)
        self._read = torch.nn.Conv1d(embedding, hidden, kernel_size=5, padding=2)

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        read_BHL = F.relu(self._read(self._embed(ids_BL.long()).transpose(1, 2)))
        return torch.cat([read_BHL.amax(-1), read_BHL[..., -self._newest :].amax(-1)], dim=-1)


def maskable_ppo(env: Any, **settings: Any) -> Any:
    """A `sb3_contrib.MaskablePPO` that reads with TokenFeatures; `settings` go to it and override the defaults here."""
    needs("sb3_contrib", feature="MaskablePPO")
    from sb3_contrib import MaskablePPO

    policy = {
        "features_extractor_class": TokenFeatures,
        "net_arch": [64],
        **(settings.pop("policy_kwargs", None) or {}),
    }
    return MaskablePPO(settings.pop("policy", "MlpPolicy"), env, policy_kwargs=policy, **settings)


@cache
def _embedded_tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(embedded_folder() / "tokenizer.json"))


def _embedded_ids(text: str) -> list[int]:
    return [i + 1 for i in _embedded_tokenizer().encode(text, add_special_tokens=False).ids]
