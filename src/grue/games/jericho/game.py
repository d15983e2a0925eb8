"""Any Z-machine story file through Jericho (Hausknecht et al. 2020), behind the contract of `base.Game`.

Hosted by a worker process (`native.make_native`): the interpreter is C code that some commands hang or crash. Jericho
itself knows score, moves and a walkthrough of some fifty files by their checksum. For any other file, such as the
Zorks released under the MIT licence in 2025, the score is read from memory (versions 1 to 3) or from the reply to
"score", a command that is then undone; and valid actions are found by trial (`actions`).

A story file is one game, in every fold; the seed only sets the interpreter's random numbers, and not even these where
Jericho has a walkthrough. So episodes reach the same states again, and what was found by trial there is cached under
the interpreter's whole state: the same state has the same future, random numbers included.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from grue.errors import ConfigError, TeacherError
from grue.games.base import own_path
from grue.games.engine_game import EngineGame, State, normalised
from grue.games.guard import refusal
from grue.games.jericho.actions import Trial, Words, valid_actions, words
from grue.games.jericho.memory import Layout, layout, points_and_moves, world
from grue.games.params import values
from grue.games.textworld.game import check_story, tidy
from grue.types import Task

_FIRST_SEED = 1000  # below this the interpreter's numbers count up instead of being random; 0 means the clock
_ASKS_TO_RESTART = re.compile(r"\brestart\b.{0,60}\brestore\b.{0,120}\b(quit|end)\b", re.IGNORECASE | re.DOTALL)
_HAS_WON = re.compile(r"\*{2,}\s*(you have won|the end)\s*\*{2,}", re.IGNORECASE)
_POINTS = re.compile(r"(?:score is|scored) (-?\d+)", re.IGNORECASE)
# how a story that ends sums it up: "you scored 5 out of a possible 10", "your score is 5 (total of 10 points)"
_FINAL = re.compile(r"(?:score is|scored)\s+(-?\d+)(?:\s+points?)?\W+(?:out |total )?of\b", re.IGNORECASE)
_OUT_OF = re.compile(r"(?:total of|out of(?: a)?(?: possible)?(?: total of)?) (\d+)", re.IGNORECASE)

Value = TypeVar("Value")

_MOST_KNOWN = 8_000  # places cached per process, 2 to 5 kB each
_found: dict[bytes, tuple[str, tuple[str, ...] | None]] = {}  # (what is carried, valid actions) by place
_said: dict[bytes, str] = {}  # the listed action by place, action and what follows


class JerichoGame(EngineGame):
    """One story file: game "jericho:PATH". Params: maxScore (0: ask the game), validActions (0: list none)."""

    commas = True

    def __init__(self, game: str, params: str = "") -> None:
        super().__init__(game, params)
        self._file = own_path(self.game)
        self._values = values(self.game, self.params)
        self._env: Any = None
        self._digest = b""  # of the story file
        self._here: tuple[Any, ...] = ()  # the interpreter's state, restored after every trial
        self._place = b""  # digest of story, state and what is shown
        self._words: Words | None = None
        self._layout: Layout | None = None
        self._points, self._most = 0, 0
        self._over = False

    @property
    def points_and_moves(self) -> tuple[int, int]:
        """The score in the game's own points, and its own count of moves (0 where only the story knows it)."""
        self._running(over=True)
        if self._env.is_fully_supported:
            return int(self._env.get_score()), int(self._env.get_moves())
        known = points_and_moves(self._here[0])
        return known if known is not None else (self._points, 0)

    def gold(self) -> list[str]:
        """Jericho's walkthrough. TeacherError for a file of which it has none."""
        self._running(over=True)
        if not self._env.is_fully_supported or not (path := self._env.get_walkthrough()):
            hint = "it has them for some fifty; demos.teacher=random needs none, demos.games=0 sft.epochs=0 no teacher"
            raise TeacherError(f"Jericho knows no walkthrough of {self._file.name}", hint=hint)
        return [str(action).lower() for action in path]

    def equivalent(self, action: str, then: Sequence[str] = ()) -> str:
        """The listed action that does here what `action` does; `action` itself if none is found.

        Walkthroughs say "n" and "get lamp" where "north" and "take lamp" are listed. Actions that change no object and
        no score are compared by their replies. As a story also keeps counters and flags that belong to no object,
        `then` must end the same after either.
        """
        _, state = self._running()
        if state.actions is None or action in state.actions or refusal(action, commas=self.commas):
            return action
        asked = blake2b(self._place + "\n".join((action, *then)).encode()).digest()
        if asked not in _said:
            _remember(_said, asked, self._equivalent(action, then, state.actions))
        return _said[asked]

    def _equivalent(self, action: str, then: Sequence[str], listed: Sequence[str]) -> str:
        wanted, idle = self._attempt(action), self._attempt("wait")
        alike = [(each, trial) for each in listed if (trial := self._attempt(each)).effect == wanted.effect]
        same = [each for each, trial in alike if trial.text == wanted.text]
        if wanted.effect != idle.effect:
            same += [each for each, _ in alike if each not in same]
        end = self._attempt(action, *then).effect if same else None
        return next((each for each in same if self._attempt(each, *then).effect == end), action)

    def _begin(self, task: Task) -> State:
        self._end()
        self._values = values(task.game, task.params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the file is not supported, which is why this module reads memory
            self._env = _load(self._file, _FIRST_SEED + task.seed)
            if self._env.is_fully_supported:
                self._env.seed(None)  # the seed of its walkthrough, which wins with no other
            text, _ = self._env.reset()
        self._digest = blake2b(self._file.read_bytes()).digest()
        self._here = self._env.get_state()
        memory = self._here[0]
        self._layout = layout(memory)
        entries = [(entry.word, bool(entry.is_noun)) for entry in self._env.get_dictionary()]
        self._words = words(entries, int(memory[0]))
        self._points, self._over = 0, False
        self._most = self._values["maxScore"] or self._max_score()
        return self._shown(text)

    def _act(self, action: str) -> State:
        text = self._env.step(action)[0]
        return self._shown(text)

    def _end(self) -> None:
        if self._env is not None:
            with suppress(Exception):
                self._env.close()
            self._env = None

    def _shown(self, text: str) -> State:
        """What the player sees. Every other command that this takes is undone."""
        env = self._env
        self._here = env.get_state()
        self._over = self._ends(text)
        if not self._over or env.is_fully_supported or points_and_moves(self._here[0]) is not None:
            self._points = self._count_points()
        elif said := _FINAL.findall(text):  # a story that is over answers no more questions
            self._points = int(said[-1])
        reached = self._most > 0 and self._points >= self._most
        won = bool(reached or env.victory() or (self._over and _HAS_WON.search(text)))
        carried, actions = "", None
        if not self._over and not won:
            carried, actions = self._found(text)
        return State(
            text=tidy(text) or "Nothing happens.",
            goal=f"Play the adventure and score as many points as you can, {self._most} at most."
            if self._most
            else "Play the adventure to its end.",
            inventory=carried,
            actions=actions if actions is not None or not self._values["validActions"] else (),
            score=normalised(self._points, self._most, won=won),
            won=won,
            lost=self._over and not won,
        )

    def _ends(self, text: str) -> bool:
        env = self._env
        return bool(env.game_over() or env.victory() or env._emulator_halted() or _ASKS_TO_RESTART.search(text))

    def _found(self, text: str) -> tuple[str, tuple[str, ...] | None]:
        """(what is carried, the valid actions): found by trial, or cached from the same state."""
        lists = bool(self._values["validActions"])
        place = blake2b(self._digest + repr((lists, text, *self._here[2:])).encode())
        for memory in self._here[:2]:
            place.update(memory)
        self._place = place.digest()
        if self._place not in _found:
            carried = tidy(self._attempt("inventory").text)
            _remember(_found, self._place, (carried, self._actions(text, carried) if lists else None))
        return _found[self._place]

    def _actions(self, text: str, carried: str) -> tuple[str, ...]:
        assert self._words is not None
        seen = f"{text}\n{self._attempt('look').text}"
        return valid_actions(seen, carried, self._words, self._attempt)

    def _attempt(self, *actions: str) -> Trial:
        """Do `actions`, stopping if the story ends, and undo them."""
        env = self._env
        assert self._layout is not None
        for action in actions:
            text = env.step(action)[0]
            halted = env._emulator_halted()
            if halted or self._ends(text):
                break
        memory = self._memory()
        known = (env.get_score(), 0) if env.is_fully_supported else points_and_moves(memory)
        trial = Trial(text, world(memory, self._layout), known[0] if known else 0, halted or self._ends(text))
        if halted:  # the interpreter must be restarted before a state can be restored
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                env.reset()
        env.set_state(self._here)
        return trial

    def _count_points(self) -> int:
        """The score now, in points."""
        if self._env.is_fully_supported:
            return int(self._env.get_score())
        known = points_and_moves(self._here[0])
        if known is not None:
            return known[0]
        found = _POINTS.search(self._attempt("score").text)
        return int(found[1]) if found else 0

    def _max_score(self) -> int:
        if self._env.is_fully_supported:
            return int(self._env.get_max_score())
        found = _OUT_OF.search(self._attempt("score").text)
        return int(found[1]) if found else 0

    def _memory(self) -> Any:
        """The dynamic memory of the story, as unsigned bytes."""
        return self._env.get_state()[0]


def _remember(known: dict[bytes, Value], key: bytes, value: Value) -> None:
    """Store `value` under `key`; if there are too many, drop the oldest."""
    if len(known) >= _MOST_KNOWN:
        del known[next(iter(known))]
    known[key] = value


def _load(file: Path, seed: int) -> Any:
    import jericho

    if not file.is_file():
        raise ConfigError(f"there is no file {str(file)!r}", hint="the path follows the colon")
    check_story(file)
    return jericho.FrotzEnv(str(file), seed=seed)
