"""Record episodes step by step; play one with a scripted player; report on demonstrations made this way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from grue.errors import ConfigError, GameError, GrueError, TeacherError
from grue.games.base import Game
from grue.games.guard import as_played
from grue.types import Episode, Observation, Outcome, Segment, Task, Turn


@dataclass(slots=True)
class Recorder:
    """Steps a game, and takes down what happens. A GameError passes through: whoever plays ends the episode then."""

    game: Game
    task: Task
    player: str
    turns: list[Turn] = field(default_factory=list)
    final: Observation | None = None

    @property
    def observation(self) -> Observation:
        """What the game shows now."""
        assert self.final is not None, "the game has not been reset"
        return self.final

    def reset(self, task: Task) -> Observation:
        """Start the game. `task` may have a later limit than the one that is recorded."""
        self.final = self.game.reset(task)
        return self.final

    def step(self, reply: str) -> Outcome | None:
        """Play what a player replied. Returns how the game ended, if it did.

        An action that the game did not list is played all the same and flagged by `Turn.valid`.
        """
        before = self.observation
        action = as_played(reply, before.actions)
        valid = before.actions is None or action in before.actions
        self.final, reward, outcome = self.game.step(action)
        self.turns.append(Turn(observation=before, action=action, reward=reward, valid=valid))
        return None if outcome is None else Outcome(outcome)  # a game may give the plain text

    def begin(self, task: Task) -> Episode | None:
        """`reset`; returns an episode only if that fails."""
        try:
            self.reset(task)
        except GameError as error:
            return self.failed(error)
        return None

    def play(self, reply: str) -> Episode | None:
        """`step`; returns the episode if that ended it."""
        try:
            outcome = self.step(reply)
        except GameError as error:
            return self.failed(error)
        return None if outcome is None else self.end(outcome)

    def failed(self, error: GrueError) -> Episode:
        """The episode so far, as one that failed."""
        return self.end(Outcome.FAILED, error.message)

    def end(self, outcome: Outcome, error: str = "", segments: tuple[Segment, ...] = ()) -> Episode:
        """The episode so far, as one that ended like this. `segments` are what a policy has read and written."""
        return Episode(self.task, self.player, tuple(self.turns), outcome, self.final, segments, error)


class Player(Protocol):
    """A player: told the task and the first observation once, then asked for one action after another."""

    @property
    def name(self) -> str: ...

    def start(self, task: Task, observation: Observation) -> None: ...

    def act(self, observation: Observation) -> str: ...


@runtime_checkable
class Decides(Protocol):
    """A player that keeps how it came to its actions, as a policy does."""

    def decided(self, turn: Turn) -> Turn | None:
        """`turn` with how its action was decided; None if it is not what was decided last."""
        ...

    def segments(self) -> tuple[Segment, ...]:
        """What it has read and written in this game."""
        ...


def play(game: Game, task: Task, player: Player, *, record_limit: int | None = None) -> Episode:
    """One episode of `task`. A game that crashes gives Outcome.FAILED with the turns played before.

    With `record_limit` play goes on to that many steps (for recording a gold path that is longer than the
    task allows); `Episode.task` keeps the task's own limit, so `steps > task.limit` shows a late end.
    Of a policy that decided every turn the episode holds what training needs, as those of `collect` do.

    Raises ConfigError for what is no player or gives an action that is not a str, TeacherError for a teacher that does
    not know such games.
    """
    _check_player(player)
    longer = task if record_limit is None else replace(task, limit=max(record_limit, task.limit))
    recorder = Recorder(game, task, player.name)
    policy = player if isinstance(player, Decides) else None
    decided: list[Turn | None] = []
    outcome: Outcome | None = None
    trouble = ""
    try:
        player.start(longer, recorder.reset(longer))
        while outcome is None:
            reply = player.act(recorder.observation)
            if not isinstance(reply, str):  # a mistake of the player's code, which is no crash of the game
                raise ConfigError(
                    f"the player {player.name!r} returned {reply!r} ({type(reply).__name__}), and an action is a str",
                    hint="decode the model's output first",
                )
            outcome = recorder.step(reply)
            if policy is not None:
                decided.append(policy.decided(recorder.turns[-1]))
    except TeacherError:  # it does not know such games, which is no crash of this one
        raise
    except GameError as error:
        outcome, trouble = Outcome.FAILED, error.message
    known = [turn for turn in decided if turn is not None]
    if policy is None or not known or len(known) < len(recorder.turns):
        return recorder.end(outcome, trouble)
    recorder.turns = known
    return recorder.end(outcome, trouble, policy.segments())


def rehearse_in(other: Game, task: Task, actions: Sequence[str]) -> list[tuple[bool, bool]]:
    """(the game listed the action, the game was won) for each, played from the start of `task` without its step limit.

    `other` is a game beside the live one, and is closed at the end.
    """
    played: list[tuple[bool, bool]] = []
    try:
        observation = other.reset(replace(task, limit=len(actions) + 1))
        for action in actions:
            listed = action in (observation.actions or ())
            observation, _, outcome = other.step(action)
            played.append((listed, outcome is Outcome.WON))
            if outcome is not None:
                break
    finally:
        other.close()
    return played


def _check_player(player: object) -> None:
    """ConfigError where a method is missing: a function or a class may have been meant."""
    missing = [part for part in ("name", "start", "act") if not hasattr(player, part)]
    if missing or isinstance(player, type):
        what = getattr(player, "__name__", type(player).__name__)
        lack = f"it has no {' and no '.join(missing)}" if missing else "it is a class, and play takes an object of it"
        raise ConfigError(
            f"{what} is not a player: {lack}",
            hint="a player has a name, start(task, observation) and act(observation) (docs/python.md)",
        )


def demo_report(episodes: Iterable[Episode]) -> dict[str, int]:
    """Counts over demonstrations."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        counts["episodes"] += 1
        counts["steps"] += episode.steps
        counts["invalid_steps"] += sum(not turn.valid for turn in episode.turns)
        late = episode.steps > episode.task.limit
        counts["won_past_limit" if episode.won and late else str(episode.outcome)] += 1
    names = ("episodes", "won", "won_past_limit", "lost", "limit", "failed", "steps", "invalid_steps")
    return {name: counts[name] for name in names}
