"""Games as Gymnasium environments. Importing this module registers `grue/Toy-v0`, `grue/CookingWorld-v0`, and so on.

    import gymnasium, grue.wrappers.gym
    env = gymnasium.make("grue/Coin-v0", fold="dev")
    envs = gymnasium.make_vec("grue/Coin-v0", num_envs=64)  # one Java process serves them all

An id means the game of a preset: `grue/Coin-v0` is what `grue run coin` trains on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

from grue.config.presets import PRESETS
from grue.errors import ConfigError, GameError, whole_number
from grue.games import canonical_params, known_games, make, tasks
from grue.games.base import Game, fold_range
from grue.games.guard import MAX_ACTION, as_played
from grue.games.params import Params
from grue.names import RUN_FOLDS
from grue.prompts.transcript import render_task
from grue.types import Observation, Outcome, Task

MAX_TEXT = 100_000  # characters of an observation
NO_SUCH_ACTION = "(no such action)"  # played for an index that stands for no action

# Name of the environment -> preset whose game it is. Another game under the same name needs a new version.
IDS = {
    "Toy": "toy",
    "CookingWorld": "cooking16",
    "CookingWorldOneRoom": "cooking1",
    "TWC": "twc",
    "Coin": "coin",
    "MapReader": "mapreader",
    "Arithmetic": "arithmetic",
    "Sorting": "sorting",
    "SimonSays": "simonsays",
    "SimonSaysMemory": "simonsays-memory",
    "PeckingOrder": "peckingorder",
}


class AnyText(spaces.Text):
    """Every str of up to MAX_TEXT characters: games print what they like. Samples are printable ASCII of `max_length`.

    `spaces.Text` has a fixed alphabet, by default one without a space.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        printable = "".join(map(chr, range(32, 127)))
        super().__init__(max_length, min_length=0, charset=printable, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= MAX_TEXT

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


@create_shared_memory.register(AnyText)
def _no_shared_memory(space: AnyText, n: int = 1, ctx: Any = None) -> Any:
    """Refuses what would fail at the first character outside of the alphabet: Gymnasium then names the way out."""
    raise CustomSpaceError("shared memory cannot hold arbitrary text: use shared_memory=False")


class GrueEnv(gymnasium.Env[str, Any]):
    """One game. An episode is one task of `fold`, drawn by the environment's own generator.

    Observation: what the game prints, as a str; the first one begins with the goal and the step limit.
    Action: with action="text" any str, as a player would type it; with action="index" the number of one of the valid
    actions, `info["valid_actions"][i]`. `info["action_mask"]` then says which numbers stand for an action; any other
    costs a step and does nothing. (Where the episode has ended there may be none, and the first one is marked: some
    agents ask for an action that is then ignored.) Either way every action costs a step.
    Reward: the change of the score; a score of 1 is a win, and in some games a mistake scores -1.
    `terminated`: won or lost. `truncated`: the step limit. A game that crashes raises GameError.

    `reset(seed=N)` seeds the generator that draws the games; `reset(options={"game_seed": N})` plays the game with that
    seed of the fold. `info` holds goal, inventory, valid_actions, score, steps, valid (the last action was listed),
    outcome ("" while the game runs), fold and game_seed. `wrap` makes another game of each that is made, for example
    `lambda game: Remembering(game, memory)`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  # as in gymnasium.Env

    def __init__(
        self,
        game: str = "toy",
        params: Params = "",
        *,
        fold: str = "train",
        limit: int = 16,
        action: str = "text",
        max_actions: int = 64,
        java: str | None = None,
        render_mode: str | None = None,
        wrap: Callable[[Game], Game] | None = None,
    ) -> None:
        if action not in ("text", "index"):
            raise ConfigError(f"action={action!r} of the environment is unknown", hint="use 'text' or 'index'")
        max_actions = whole_number("max_actions", max_actions, least=1, hint="64 is the default")
        limit = whole_number("limit", limit, least=1, hint="16 is the default")
        if not isinstance(fold, str):
            raise ConfigError(f"fold={fold!r} is not a name", hint="folds are train, dev and test")
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode={render_mode!r} is unknown", hint="use None or 'ansi'")
        _check_is_game(game)
        self.render_mode = render_mode
        self.observation_space = AnyText(MAX_TEXT)
        self.action_space = AnyText(MAX_ACTION) if action == "text" else spaces.Discrete(max_actions)
        self._by_index, self._max_actions = action == "index", max_actions
        self._tasks = _tasks(game, canonical_params(game, params), fold, limit, java)
        self._task = self._tasks[0]
        self._game = make(game, params, java) if wrap is None else wrap(make(game, params, java))
        self._seen = Observation("", "", "", None, 0.0)
        self._steps = 0
        self._plays, self._closed = False, False

    @property
    def observation(self) -> Observation:
        """What the game showed last, as grue's own players take it: `policy.act(env.unwrapped.observation)`."""
        return self._seen

    @property
    def task(self) -> Task:
        """The game under way, as grue's own players take it: `policy.start(env.unwrapped.task, observation)`."""
        return self._task

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All games that the environment draws from; `options={"game_seed": task.seed}` plays one of them."""
        return self._tasks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game; the class describes `seed` and `options`."""
        super().reset(seed=seed)
        self._check_open()
        task = self._draw({} if options is None else options)
        try:
            self._seen = self._game.reset(task)  # if it refuses, the game before it goes on
        except GameError:  # it has crashed, and with it the game before
            self._plays = False
            raise
        self._task, self._steps, self._plays = task, 0, True
        return render_task(self._seen.goal, self._task.limit) + self._seen.text, self._info(None, valid=True)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action: a str or an index, depending on the environment's `action`."""
        self._check_open()
        if not self._plays:
            raise GameError("there is no game under way", hint="call reset() first")
        text = self._text_of(action) if self._by_index else self._typed(action)
        valid = self._seen.actions is None or text in self._seen.actions
        self._seen, reward, outcome = self._game.step(text)
        self._steps += 1
        terminated = outcome in (Outcome.WON, Outcome.LOST)
        truncated = outcome is Outcome.LIMIT
        self._plays = outcome is None
        return self._seen.text, float(reward), terminated, truncated, self._info(outcome, valid=valid)

    def render(self) -> str | None:
        """What the game showed last, for render_mode="ansi"."""
        return self._seen.text if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Release the game. Calling it twice is fine."""
        self._closed = True
        self._game.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this environment is closed", hint="make another one")

    def _draw(self, options: dict[str, Any]) -> Task:
        if not isinstance(options, Mapping):
            raise ConfigError(f"reset options {options!r} are not a dict", hint='for example {"game_seed": 7}')
        unknown = [name for name in options if name != "game_seed"]
        if unknown:
            raise ConfigError(f"unknown reset option {unknown[0]!r}", hint="the only option is 'game_seed'")
        if "game_seed" not in options:
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        known, seed = self._tasks[0], options["game_seed"]
        seed = int(seed) if isinstance(seed, np.integer) else seed
        task = Task(known.game, known.params, known.fold, seed, known.limit)
        if seed in fold_range(known.fold) and task not in self._tasks:
            raise ConfigError(
                f"game_seed={seed} is not among the {len(self._tasks)} {known.fold} games of {known.game} here: there "
                "is no such game, nobody can win it, or it is reserved for a later fold",
                hint="choose another, or let reset draw one",
            )
        return task

    def _text_of(self, index: Any) -> str:
        place = number_of(index, "an index", hint="make the environment with action='text' to pass texts")
        actions = self._seen.actions or ()
        return actions[place] if 0 <= place < len(actions) else NO_SUCH_ACTION

    def _typed(self, action: Any) -> str:
        if not isinstance(action, str):  # a number as text would cost a step and do nothing, at every step
            raise ConfigError(
                f"an action of this environment is a str, not {action!r} of type {type(action).__name__}",
                hint="make the environment with action='index' to pass indices into info['valid_actions']",
            )
        return as_played(action, self._seen.actions)

    def _info(self, outcome: Outcome | None, *, valid: bool) -> dict[str, Any]:
        seen = self._seen
        info: dict[str, Any] = {
            "goal": seen.goal,
            "inventory": seen.inventory,
            "valid_actions": seen.actions,
            "score": float(seen.score),
            "steps": self._steps,
            "valid": valid,
            "outcome": "" if outcome is None else str(outcome),
            "fold": self._task.fold,
            "game_seed": self._task.seed,
        }
        if self._by_index:
            nothing_listed = outcome is not None and not seen.actions
            info["action_mask"] = self._mask(("",) if nothing_listed else seen.actions)
        return info

    def _mask(self, actions: tuple[str, ...] | None) -> np.ndarray[Any, np.dtype[np.int8]]:
        """1 for each index that stands for an action, as `Discrete.sample` takes it; shape (max_actions,)."""
        if actions is None:
            raise ConfigError(f"{self._task.game} does not list its valid actions", hint="use action='text'")
        if len(actions) > self._max_actions:
            raise ConfigError(
                f"{self._task.game} lists {len(actions)} actions, more than max_actions={self._max_actions}",
                hint=f"make the environment with max_actions={2 * len(actions)}",
            )
        mask = np.zeros(self._max_actions, dtype=np.int8)
        mask[: len(actions)] = 1
        return mask


def number_of(action: Any, kind: str, *, hint: str) -> int:
    """`action` as an int. ConfigError if it is not a number; `kind` says what it should be."""
    try:
        return operator.index(action)
    except TypeError as error:
        raise ConfigError(
            f"an action of this environment is {kind}, not {action!r} of type {type(action).__name__}", hint=hint
        ) from error


def _check_is_game(game: str) -> None:
    """ConfigError for the id of an environment, or the name of a preset that is not also a game."""
    meant = next((name for name, preset in IDS.items() if game in (preset, f"grue/{name}-v0")), None)
    if game in known_games():
        return
    if meant is not None:
        raise ConfigError(f"{game!r} is not a game", hint=f'use gymnasium.make("grue/{meant}-v0")')
    if isinstance(game, str) and game in PRESETS:
        asked = PRESETS[game]().game
        raise ConfigError(
            f"{game!r} is a preset, not a game",
            hint=f"its game is GrueEnv({asked.name!r}, {dict(asked.params)}, limit={asked.limit})",
        )


@lru_cache(maxsize=32)
def _tasks(game: str, params: str, fold: str, limit: int, java: str | None) -> tuple[Task, ...]:
    """The games of a fold, shared by all environments that play them."""
    return tuple(replace(task, limit=limit) for task in _of_fold(game, params, fold, java))


@lru_cache(maxsize=32)
def _of_fold(game: str, params: str, fold: str, java: str | None) -> tuple[Task, ...]:
    """Its games, with some step limit. Cached: finding out which a later fold does not have takes seconds."""
    if fold not in RUN_FOLDS:
        why = "is for training the embedded base" if fold == "pretrain" else "is unknown"
        raise ConfigError(f"fold={fold!r} {why}", hint="folds are train, dev and test")
    return tuple(tasks(game, params, fold, java=java))


def register() -> None:
    """Register the ids above with Gymnasium."""
    for name, preset in IDS.items():
        game = PRESETS[preset]().game
        settings = {"game": game.name, "params": dict(game.params), "limit": game.limit}
        gymnasium.register(f"grue/{name}-v0", entry_point="grue.wrappers.gym:GrueEnv", kwargs=settings)


register()
