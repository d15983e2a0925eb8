"""BabyAI (Chevalier-Boisvert et al. 2019) as a text game: minigrid's levels and bot, and a describer of our own.

The player stands in a grid world and sees a 7 by 7 field ahead. Runs in this process: it is pure Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from grue.games.engine_game import EngineGame, State
from grue.games.params import values
from grue.types import Task

# In the order of the parameter `level`, easier ones first.
LEVELS = (
    "GoToRedBallNoDists",
    "GoToRedBallGrey",
    "GoToObj",
    "GoToLocal",
    "OpenDoor",
    "Pickup",
    "PutNextLocal",
    "UnlockLocal",
    "GoToObjMaze",
    "GoTo",
    "Open",
    "GoToSeq",
    "Synth",
    "BossLevel",
)
_ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")  # numbered as in minigrid
_MAX_PLAN = 2000  # steps after which the bot counts as lost
_NEVER = 10**9  # the engine's own step limit, which is not used: steps are counted by EngineGame


class BabyAIGame(EngineGame):
    """Params: level, an index into LEVELS."""

    def __init__(self, game: str, params: str = "") -> None:
        super().__init__(game, params)
        self._level = LEVELS[values(self.game, self.params)["level"]]
        self._env: Any = None
        self._done: list[int] = []
        self._ahead: list[str] = []  # the rest of the last plan, as long as it is followed: the bot would plan it again

    def gold(self) -> list[str]:
        """The bot's way from the start of the task. The live game is not touched."""
        task, _ = self._running(over=True)
        return self._solution(task, [])

    def plan(self) -> list[str]:
        """The bot's way from the current state; it has seen what the player has seen."""
        task, _ = self._running()
        self._ahead = self._ahead or self._solution(task, self._done)
        return list(self._ahead)

    def _begin(self, task: Task) -> State:
        self._level = LEVELS[values(task.game, task.params)["level"]]
        self._env, self._done, self._ahead = _start(self._level, task.seed), [], []
        return self._shown(describe(self._env))

    def _act(self, action: str) -> State:
        env = self._env
        if action not in _ACTIONS:
            return self._shown("That is not something you can do here.")
        number = _ACTIONS.index(action)
        self._ahead = self._ahead[1:] if self._ahead[:1] == [action] else []
        before = _signature(env)
        _, reward, terminated, _, _ = env.step(number)
        self._done.append(number)
        text = describe(env)
        if _signature(env) == before and not terminated:
            text = f"Nothing happens. {text}"
        return self._shown(text, won=reward > 0, lost=terminated and not reward > 0)

    def _end(self) -> None:
        self._env = None

    def _shown(self, text: str, *, won: bool = False, lost: bool = False) -> State:
        env = self._env
        held = _name(env.carrying) if env.carrying else "nothing"
        return State(text, f"Your task: {env.mission}.", f"You carry {held}.", _possible(env), float(won), won, lost)

    def _solution(self, task: Task, done: Sequence[int]) -> list[str]:
        """The bot's actions after `done`, tried in a world beside the live one; [] when they do not win."""
        # a bot that has seen everything gives up where a box was opened; one that begins here may not
        return self._way(task, done, remembers=True) or (self._way(task, done, remembers=False) if done else [])

    def _way(self, task: Task, done: Sequence[int], *, remembers: bool) -> list[str]:
        from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

        env = _start(self._level, task.seed)
        bot, path = BabyAIBot(env), list[str]()
        last: int | None = None
        try:
            for number in done:
                if remembers:
                    bot.replan(last)
                    last = number
                if env.step(number)[2]:
                    return []
            if not remembers:
                bot = BabyAIBot(env)
            while len(path) < _MAX_PLAN:
                last = int(bot.replan(last))
                if last >= len(_ACTIONS):  # "done": the bot considers the mission accomplished
                    return []
                path.append(_ACTIONS[last])
                _, reward, terminated, _, _ = env.step(last)
                if terminated:
                    return path if reward > 0 else []
        except (AssertionError, DisappearedBoxError):  # it gives up
            pass
        return []


def _start(level: str, seed: int) -> Any:
    import contextlib
    import io

    import gymnasium
    import minigrid  # noqa: F401 - registers the levels

    with contextlib.redirect_stdout(io.StringIO()):  # the generator prints what it rejects
        env: Any = gymnasium.make(f"BabyAI-{level}-v0", disable_env_checker=True).unwrapped
        env.reset(seed=seed)
    env.fixed_max_steps, env.max_steps = True, _NEVER
    return env


@lru_cache(maxsize=1)  # a game is looked at several times in a row
def world(task: Task) -> tuple[object, ...]:
    """What the seed drew, turned so that the player faces one way: equal for games that look the same throughout."""
    import numpy as np

    env = _start(LEVELS[values(task.game, task.params)["level"]], task.seed)
    turned = np.rot90(env.grid.encode(), -env.agent_dir)  # both count quarter turns, in opposite senses
    here = np.zeros((env.grid.width, env.grid.height), dtype=bool)
    here[tuple(env.agent_pos)] = True
    return env.mission, turned.shape, turned.tobytes(), np.rot90(here, -env.agent_dir).tobytes()


def describe(env: Any) -> str:
    """What the player sees, as text: things by distance ahead and to the side, then walls."""
    grid, visible = env.gen_obs_grid()
    middle, bottom = grid.width // 2, grid.height - 1
    things = []
    for row in range(bottom, -1, -1):
        for column in sorted(range(grid.width), key=lambda column: (abs(column - middle), column)):
            cell = grid.get(column, row)
            if not visible[column, row] or (column, row) == (middle, bottom) or cell is None:
                continue
            if cell.type not in ("wall", "floor"):
                things.append(f"{_article(_name(cell))} {_where(bottom - row, column - middle)}")
    seen = f"You see {', '.join(things)}." if things else "You see nothing of interest."
    return f"{seen} {_wall(grid, middle, bottom)}"


def _wall(grid: Any, middle: int, bottom: int) -> str:
    for ahead in range(1, bottom + 1):
        cell = grid.get(middle, bottom - ahead)
        if cell is not None and cell.type == "wall":
            return f"A wall is {_steps(ahead)} ahead."
        if cell is not None and not cell.can_overlap():
            return f"{_article(_name(cell)).capitalize()} is in the way, {_steps(ahead)} ahead."
    return "The way ahead is free."


def _where(ahead: int, aside: int) -> str:
    parts = [f"{_steps(ahead)} ahead"] if ahead else []
    parts += [f"{_steps(abs(aside))} to the {'left' if aside < 0 else 'right'}"] if aside else []
    return " and ".join(parts)


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _name(cell: Any) -> str:
    if cell.type != "door":
        return f"{cell.color} {cell.type}"
    state = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
    return f"{state} {cell.color} door"


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _possible(env: Any) -> tuple[str, ...]:
    """The actions that would do something now."""
    ahead = env.grid.get(*env.front_pos)
    listed = ["turn left", "turn right"]
    listed += ["go forward"] if ahead is None or ahead.can_overlap() else []
    listed += ["pick up"] if ahead is not None and ahead.can_pickup() and env.carrying is None else []
    listed += ["drop"] if ahead is None and env.carrying is not None else []
    listed += ["toggle"] if ahead is not None and ahead.type in ("door", "box") else []
    return tuple(listed)


def _signature(env: Any) -> tuple[object, ...]:
    return (tuple(env.agent_pos), int(env.agent_dir), env.grid.encode().tobytes(), env.carrying)
