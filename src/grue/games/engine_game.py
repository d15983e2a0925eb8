"""What the adapters of other engines share: the order of calls, counting steps, reward as change of the score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from grue.errors import ConfigError
from grue.games.base import check_open, check_seed, running
from grue.games.guard import clean_action, refusal
from grue.games.params import canonical
from grue.games.play import rehearse_in
from grue.types import Observation, Outcome, Task


@dataclass(frozen=True, slots=True)
class State:
    """What an engine says after a move."""

    text: str
    goal: str
    inventory: str
    actions: tuple[str, ...] | None
    score: float  # normalised; 1 exactly when won
    won: bool
    lost: bool


class EngineGame(ABC):
    """A game of another engine behind the contract, in this process. An adapter adds `_begin`, `_act` and `_end`."""

    commas = False  # whether an action may hold a comma: orders to a character, in old adventures

    def __init__(self, game: str, params: str = "") -> None:
        self.game, self.params = game, canonical(game, params)
        self._task: Task | None = None
        self._state: State | None = None
        self._steps = 0
        self._outcome: Outcome | None = None
        self._closed = False

    @abstractmethod
    def _begin(self, task: Task) -> State:
        """Start a task from nothing."""

    @abstractmethod
    def _act(self, action: str) -> State:
        """Do one clean, harmless action."""

    @abstractmethod
    def _end(self) -> None:
        """Release the engine. Called once."""

    def reset(self, task: Task) -> Observation:
        """Start `task`. ConfigError for one that cannot exist, GameError when the engine fails."""
        check_open(self._closed)
        check_seed(task)
        if task.game != self.game:
            raise ConfigError(f"a game of {self.game!r} cannot play {task.game!r}", hint="use games.make(task.game)")
        self.params = canonical(task.game, task.params)
        self._task = None
        self._state = self._begin(task)
        self._task, self._steps, self._outcome = task, 0, None
        return _observation(self._state)

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        """Do one action. What is not a move (quit, restart, two commands in one) is answered here and costs a step."""
        task, before = self._running()
        refused = ""
        if action not in (before.actions or ()):  # whatever the game lists is a move, however it looks
            action = clean_action(action)
            refused = refusal(action, commas=self.commas)
        self._state = _with_text(before, refused) if refused else self._act(action)
        self._steps += 1
        self._outcome = self._outcome_of(self._state, task)
        return _observation(self._state), self._state.score - before.score, self._outcome

    def close(self) -> None:
        """Release the engine."""
        if not self._closed:
            self._closed, self._task = True, None
            self._end()

    def rehearse(self, actions: Sequence[str]) -> list[tuple[bool, bool]]:
        """For each action (the game listed it, the game was won), without touching the live game or its step limit."""
        task, _ = self._running(over=True)
        return rehearse_in(type(self)(self.game, self.params), task, actions)

    def _running(self, *, over: bool = False) -> tuple[Task, State]:
        """The task and what was seen last; with `over` also after the end."""
        task = running(self._task, None if over else self._outcome)
        assert self._state is not None
        return task, self._state

    def _outcome_of(self, state: State, task: Task) -> Outcome | None:
        if state.won:
            return Outcome.WON
        if state.lost:
            return Outcome.LOST
        return Outcome.LIMIT if self._steps >= task.limit else None


def normalised(points: float, most: float, *, won: bool) -> float:
    """`points` as a share of `most`, at least -1; 1 exactly when won."""
    if won:
        return 1.0
    return max(-1.0, min(points / most, 0.999)) if most > 0 else 0.0


def _with_text(state: State, text: str) -> State:
    return State(text, state.goal, state.inventory, state.actions, state.score, won=False, lost=False)


def _observation(state: State) -> Observation:
    actions = None if state.actions is None else tuple(sorted(set(state.actions)))
    return Observation(state.text, state.goal, state.inventory, actions, state.score)
