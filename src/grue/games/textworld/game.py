"""Microsoft TextWorld: generated games, or a game file of your own, behind the contract of `base.Game`.

Hosted by a worker process (`native.make_native`): the interpreter below it can hang. The engine lists the valid actions
and replans its own solution after every move.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from grue.errors import ConfigError, GameError
from grue.games.base import own_path
from grue.games.engine_game import EngineGame, State, normalised
from grue.games.textworld.cooking import reading
from grue.games.textworld.folder import names_folder, story_file
from grue.games.textworld.make import game_file, walkthrough
from grue.types import Task

# The status line of the interpreter's screen, with the prompt before it: ">    -= Kitchen =-3/7", and in the oldest
# stories "> Hall      Score: 5      Moves: 7" or "> Hall      Time: 9:05 am".
_STATUS_LINE = re.compile(
    r"^>?[ \t]*(-= [^\n]* =-[ \t]*-?\d+/\d+|[^\n]*  (Score: -?\d+ +Moves: -?\d+|Time: +\d+:\d\d( [ap]m)?))[ \t]*$",
    re.MULTILINE,
)
_PROMPT = re.compile(r"^>[ \t]*$", re.MULTILINE)
_HEADER = 64  # bytes of a story
# By version, the unit in bytes of the length in a story's header.
_UNITS = {1: 2, 2: 2, 3: 2, 4: 4, 5: 4, 6: 8, 7: 8, 8: 8}
_BLANK_LINES = re.compile(r"\n{3,}")


class TextWorldGame(EngineGame):
    """One TextWorld game at a time. "textworld:PATH" plays one file, whatever the seed, or the games of a folder."""

    def __init__(self, game: str, params: str = "") -> None:
        super().__init__(game, params)
        self._env: Any = None
        self._file = Path()
        self._actions: list[str] = []
        self._planner: _Planner | None = None  # of `plan`: follows the live game from call to call

    def gold(self) -> list[str]:
        """The engine's solution from the start of the task. The live game is not touched.

        Where its expert knows none (cooking games with drop=1), this is the walkthrough that the generator wrote down.
        In cooking games, either reads the cookbook before anything else.
        """
        self._running(over=True)
        planner = _Planner(self._file)
        try:
            path = planner.solution() or self._written()
        finally:
            planner.close()
        if not path:
            raise GameError(f"TextWorld knows no solution of {self._file.name}")
        return path

    def plan(self) -> list[str]:
        """The engine's solution from the current state; [] when it knows none, for example after a loss."""
        self._running()
        done = self._planner.done if self._planner is not None else []
        if self._planner is None or done != self._actions[: len(done)]:  # the last plan read the cookbook first
            self._drop_planner()
            self._planner, done = _Planner(self._file), []
        for action in self._actions[len(done) :]:
            self._planner.do(action)
        return self._planner.solution()

    def _begin(self, task: Task) -> State:
        self._end()
        if names_folder(task.game):
            self._file = story_file(task)
            self._check_one_of_many()
        elif ":" in task.game:
            self._file = own_path(task.game)
            check_file(self._file)
        else:
            self._file = game_file(task)
        self._actions = []
        self._env = _start(self._file)
        state = self._env.reset()
        # The opening text is a banner, the goal, which an observation holds separately, and this description.
        return _shown(state, state["description"])

    def _check_one_of_many(self) -> None:
        """GameError for a damaged file of a folder: this game fails, and the others go on."""
        try:
            check_file(self._file)
        except ConfigError as error:
            raise GameError(f"{error.message} ({self._file})", hint=error.hint) from error

    def _act(self, action: str) -> State:
        self._actions.append(action)
        state, _, _ = self._env.step(action)
        return _shown(state, state["feedback"])

    def _end(self) -> None:
        if self._env is not None:
            with suppress(Exception):
                self._env.close()
            self._env = None
        self._drop_planner()

    def _drop_planner(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _written(self) -> list[str]:
        """The generator's walkthrough without steps that do nothing (opening a door once more); [] if there is none."""
        path = walkthrough(self._file)
        tried = zip(path, self.rehearse(path), strict=False)
        listed = [action for action, (was_listed, _) in tried if was_listed and action != "inventory"]
        played = self.rehearse(listed)
        return listed if played and played[-1][1] else path


class _Planner:
    """A game beside the live one, in which the engine works out how to win after every move."""

    def __init__(self, file: Path) -> None:
        self._env = _start(file, expert=True)
        self._state = self._env.reset()
        self._shown: list[str] = []
        self.done: list[str] = []

    def do(self, action: str) -> None:
        self._state, _, _ = self._env.step(action)
        self._shown.append(str(self._state["feedback"]))
        self.done.append(action)

    def solution(self) -> list[str]:
        """The engine's way to win from here; [] when it knows none.

        Where the goal tells of a cookbook that has not been read, this comes first, and is done here to see what then.
        """
        first = reading(self._state["objective"] or "", self._state["facts"], self._shown)
        for action in first:
            self.do(action)
        way = list(self._state["policy_commands"] or [])
        return first + way if way else way

    def close(self) -> None:
        with suppress(Exception):
            self._env.close()


def _start(file: Path, *, expert: bool = False) -> Any:
    """The engine with `file` loaded. `expert` has it replan after every move, which halves its speed."""
    import textworld

    infos = textworld.EnvInfos(
        feedback=True,
        description=True,
        inventory=True,
        objective=True,
        admissible_commands=True,
        policy_commands=expert,
        facts=expert,
        score=True,
        max_score=True,
        won=True,
        lost=True,
    )
    return textworld.start(str(file), infos)


def _shown(state: Any, text: str) -> State:
    won, lost = bool(state["won"]), bool(state["lost"])
    return State(
        text=tidy(text) or "Nothing happens.",
        goal=tidy(state["objective"] or "") or "Win the game.",
        inventory=tidy(state["inventory"] or ""),
        actions=tuple(state["admissible_commands"] or ()),
        score=normalised(state["score"] or 0, state["max_score"] or 0, won=won),
        won=won,
        lost=lost,
    )


def tidy(text: str) -> str:
    """`text` without status lines, prompts, and white space that only fills a screen."""
    text = _PROMPT.sub("", _STATUS_LINE.sub("", text))
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", text).strip()


def check_file(file: Path) -> None:
    """ConfigError or GameError for a file that TextWorld did not make."""
    if not file.is_file():
        raise ConfigError(f"there is no file {str(file)!r}", hint="the path goes after the colon")
    if file.suffix == ".ulx":
        raise ConfigError(f"TextWorld 1.7 plays .z8 files, not {file.name}", hint="generate the game again as .z8")
    if not file.with_suffix(".json").is_file():
        raise GameError(
            f"{file.name} has no {file.with_suffix('.json').name} beside it, so TextWorld did not make it",
            hint=f"any other Z-machine file is played as game.name=jericho:{file}",
        )
    check_story(file)
    try:
        orjson.loads(file.with_suffix(".json").read_bytes())
    except ValueError as error:
        raise GameError(
            f"{file.with_suffix('.json')} is damaged: {error}", hint="get or make the game again"
        ) from error


def check_story(file: Path) -> None:
    """ConfigError for a file that would only crash the interpreter: not a Z-machine story, or not the whole of one."""
    story = file.read_bytes()
    if len(story) < _HEADER or story[0] not in _UNITS:
        raise ConfigError(f"{file.name} is not a Z-machine story file", hint="such files end in .z3, .z5 or .z8")
    length = int.from_bytes(story[26:28], "big") * _UNITS[story[0]]
    if length > len(story):
        raise ConfigError(
            f"{file.name} is cut short, or not a Z-machine story: it has {len(story)} bytes, {length} by its header",
            hint="get the file again",
        )
