"""One slot of a batch of games: the game, the token sequence so far, and the turns already played."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from grue.errors import GameError, ModelError
from grue.games import Game, begin_step
from grue.games.known import no_list_hint
from grue.games.teachers import Adviser
from grue.policy.decision import Decision, Query, not_finite
from grue.policy.policy import Policy
from grue.prompts.history import History
from grue.types import Episode, Observation, Outcome, Task, Turn


@dataclass(slots=True)
class Seat:
    """Plays one task after another in `game`. What the engine has not been fed yet is `unread()`.

    An `adviser` watches, and is asked before every move what it would do. With `values_limit`, a game that reached its
    limit stays `at_limit` until its last observation has been read: `close` takes the critic's value of that.
    """

    row: int
    game: Game
    policy: Policy
    player: str
    context: int
    adviser: Adviser | None = None
    values_limit: bool = False
    at_limit: bool = False
    task: Task | None = None
    rng: random.Random = field(default_factory=random.Random)
    observation: Observation | None = None
    history: History | None = None
    turns: list[Turn] = field(default_factory=list)
    decision: Decision | None = None
    advice: str = ""

    def start(self, task: Task, rng: random.Random) -> Episode | None:
        """Reset the game to `task`. Returns an episode only when the game fails to start.

        ModelError where the policy cannot begin: the game lists no actions, or shows more than fits. See `give_up`.
        """
        self.task, self.rng, self.turns = task, rng, []
        self.observation = self.history = None
        try:
            self.observation = self.game.reset(task)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        self.history = History(self.policy.encoder, self.observation.goal, task.limit, self.context)
        if self.adviser is not None:
            self.adviser.start(task, self.observation)
        if self.policy.needs_actions and not self.observation.actions:
            raise ModelError(
                f"{task.game} (seed {task.seed}) lists no valid actions after 0 steps",
                hint=no_list_hint(task.game),
            )
        self._show()
        return None

    def give_up(self, error: ModelError) -> Episode:
        """The episode of a game that the model cannot read: the others go on."""
        return self._end(Outcome.FAILED, f"{error.message}; {error.hint}")

    def unread(self) -> list[int]:
        assert self.history is not None
        return self.history.ids[self.history.seen :]

    @property
    def is_new(self) -> bool:
        """Has the engine seen nothing of this segment yet?"""
        assert self.history is not None
        return self.history.seen == 0

    def query(self) -> Query:
        """The query for the policy, with all ids still to be fed."""
        assert self.history is not None and self.observation is not None
        unread, self.history.seen = self.unread(), len(self.history.ids)
        if self.adviser is not None:  # here, where no game is in the middle of a step
            self.advice = self.adviser.advice(self.observation)
        return Query(self.row, self.observation.actions or (), len(self.history.ids), self.rng, unread)

    def begin(self) -> None:
        """Let the game start on the decided action: the games of all seats then work at the same time."""
        assert self.decision is not None
        begin_step(self.game, self.decision.action)

    def play(self) -> Episode | None:
        """Send the decided action to the game and append what it shows. Returns the episode if that completed it."""
        decision, before, history = self.decision, self.observation, self.history
        assert decision is not None and before is not None and history is not None
        try:
            self.observation, reward, ended = self.game.step(decision.action)
        except GameError as error:
            # If asking the teacher crashed the engine, the next step fails; report the teacher's error as the cause.
            asked = self.adviser.trouble if self.adviser is not None else ""
            return self._end(Outcome.FAILED, f"{error.message} (the teacher: {asked})" if asked else error.message)
        if not decision.is_finite:  # a single NaN in training would spoil the critic and the advantages of all games
            return self.give_up(not_finite())
        turn = Turn(before, decision.action, reward, advice=self.advice)
        self.turns.append(decision.recorded_in(turn, history.segment))
        history.act(decision.taken, decision.fed)
        if self.adviser is not None:
            self.adviser.saw(decision.action)
        outcome = None if ended is None else Outcome(ended)  # a game may give the plain text
        self.at_limit = self.values_limit and outcome is Outcome.LIMIT
        if outcome is not None and not self.at_limit:
            return self._end(outcome)
        if self.policy.needs_actions and not self.observation.actions and not self.at_limit:
            return self._end(Outcome.FAILED, f"the game lists no valid actions after {len(self.turns)} steps")
        try:
            self._show()
        except ModelError as error:  # this game's text became too long
            if self.at_limit:  # the game is over all the same; the nearest value known is that before the last step
                return self.close(self.turns[-1].value)
            return self.give_up(error)
        return None

    def close(self, value: float) -> Episode:
        """The episode of a game at its limit, where `value` is the critic's estimate at its last observation."""
        if not math.isfinite(value):
            return self.give_up(not_finite())
        return replace(self._end(Outcome.LIMIT), last_value=value)

    def _show(self) -> None:
        assert self.history is not None and self.observation is not None
        room = 0 if self.at_limit else self.policy.room(self.observation.actions or ())
        self.history.show(self.observation, room)

    def _end(self, outcome: Outcome, error: str = "") -> Episode:
        assert self.task is not None
        segments = self.history.segments() if self.history is not None else ()
        episode = Episode(self.task, self.player, tuple(self.turns), outcome, self.observation, segments, error)
        self.task, self.history, self.at_limit = None, None, False
        return episode
