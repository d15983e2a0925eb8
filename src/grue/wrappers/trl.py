"""Games for TRL's GRPOTrainer, through its `environment_factory`: the model plays by calling the tool `act`.

    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        train_dataset=trl.dataset("coin", {"numLocations": 5}, limit=25),
        environment_factory=trl.environment("coin", {"numLocations": 5}, limit=25),
        args=GRPOConfig(max_tool_calling_iterations=25, max_completion_length=4096, ...),
    )

TRL needs a chat template with tool calls, takes one reward per episode, and calls this interface experimental.
grue's own PPO needs neither template nor tools and assigns credit per turn; this is for comparison, and for those
who already have a TRL setup.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from grue.errors import GameError, needs, whole_number
from grue.games import canonical_params, make, tasks
from grue.games.guard import as_played
from grue.games.params import Params
from grue.prompts.transcript import render_task
from grue.types import Observation, Outcome, Task

PROMPT = "You play a text game. Do one action at a time with the tool `act` until the game is over.\n\n"


class GameEnvironment:
    """One game at a time, as TRL expects it: every public method but `reset` and `get_reward` is a tool."""

    def __init__(self, game: str, params: Params = "", *, limit: int = 16, list_actions: bool = True) -> None:
        self._game = make(game, params)
        self._named = Task(game, canonical_params(game, params), "train", 0, limit)
        self._list_actions = list_actions
        self._outcome: Outcome | None = None
        self._score = 0.0
        self._listed: tuple[str, ...] | None = None

    def reset(self, game_seed: int = 0, fold: str = "train", **row: Any) -> str:
        """Start the game of a row of `dataset`; returns what the player sees first. Other columns are ignored."""
        task = Task(self._named.game, self._named.params, fold, int(game_seed), self._named.limit)
        try:
            observation = self._game.reset(task)
        except GameError as error:
            self._outcome = Outcome.FAILED
            return f"The game has crashed: {error.message}"
        self._outcome, self._score, self._listed = None, observation.score, observation.actions
        return render_task(observation.goal, task.limit) + self._shown(observation)

    def act(self, action: str) -> str:
        """Do one action in the game and see what happens.

        Args:
            action: The action in the words of the game, such as "open fridge".

        Returns:
            What the game says.
        """
        if self._outcome is not None:
            return "The game is over."
        try:
            # a call with something other than text costs a step, like any action that the game does not know
            observation, _, self._outcome = self._game.step(as_played(str(action), self._listed))
        except GameError:
            self._outcome = Outcome.FAILED
            raise
        self._score, self._listed = observation.score, observation.actions
        if self._outcome is not None:
            return f"{observation.text}\nThe game is over: {self._outcome}."
        return self._shown(observation)

    def get_reward(self) -> float | None:
        """The score at the end, where 1 is a win; None for a game that crashed, which TRL leaves out."""
        return None if self._outcome is Outcome.FAILED else self._score

    def _shown(self, observation: Observation) -> str:
        if not self._list_actions or observation.actions is None:
            return observation.text
        return f"{observation.text}\nValid actions: {', '.join(observation.actions)}"


def environment(
    game: str, params: Params = "", *, limit: int = 16, list_actions: bool = True
) -> Callable[[], GameEnvironment]:
    """The `environment_factory` for GRPOTrainer. `list_actions` shows the valid actions after each step.

    ConfigError at once for a game or parameters that do not exist.
    """
    canonical_params(game, params)
    limit = whole_number("limit", limit, least=1, hint="16 is the default")
    return partial(GameEnvironment, game, params, limit=limit, list_actions=list_actions)


def dataset(game: str, params: Params = "", *, limit: int = 16, fold: str = "train", count: int | None = None) -> Any:
    """A `datasets.Dataset` of games: a prompt to which `reset` adds the first observation, and the game to play.

    The plays of a GRPO group share a row, hence the game.
    """
    needs("datasets", feature="a TRL dataset of games")
    from datasets import Dataset

    chosen = tasks(game, params, fold, limit, count)
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": PROMPT}], "game_seed": task.seed, "fold": task.fold}
            for task in chosen
        ]
    )
