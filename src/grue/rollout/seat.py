"""One slot of a batch of games: the game, the token sequence so far, and the turns already played."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from grue.errors import GameError, ModelError
from grue.games import Game
from grue.policy.choose import Decision
from grue.prompts.tokens import Encoder
from grue.types import Episode, Observation, Outcome, Segment, Task, Turn


@dataclass(slots=True)
class Seat:
    """Plays one task after another in `game`. `ids[seen:]` is what the engine has not been fed yet."""

    row: int
    game: Game
    encoder: Encoder
    player: str
    columns: int
    task: Task | None = None
    rng: random.Random = field(default_factory=random.Random)
    observation: Observation | None = None
    ids: list[int] = field(default_factory=list)
    seen: int = 0
    turns: list[Turn] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    decision: Decision | None = None
    value: float = 0.0

    def start(self, task: Task, rng: random.Random) -> Episode | None:
        """Reset the game to `task`. Returns an episode only when the game fails to start."""
        self.task, self.rng = task, rng
        self.turns, self.segments = [], []
        self.observation = None
        try:
            self.observation = self.game.reset(task)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        self._open_segment()
        return None

    def unread(self) -> list[int]:
        return self.ids[self.seen :]

    def actions(self) -> tuple[str, ...]:
        """The valid actions now; ModelError where the game lists none."""
        assert self.observation is not None and self.task is not None
        if not self.observation.actions:
            raise ModelError(
                f"{self.task.game} (seed {self.task.seed}) lists no valid actions after {len(self.turns)} steps",
                hint="the choose policy needs them",
            )
        return self.observation.actions

    def play(self) -> Episode | None:
        """Send the decided action to the game and append what it shows. Returns the episode if that ended it."""
        decision, before = self.decision, self.observation
        assert decision is not None and before is not None and self.task is not None
        action = decision.node.action
        assert action is not None
        state_position = len(self.ids) - 1
        try:
            self.observation, reward, outcome = self.game.step(action)
        except GameError as error:
            return self._end(Outcome.FAILED, error.message)
        self.turns.append(
            Turn(
                observation=before,
                action=action,
                reward=reward,
                log_prob=decision.log_prob,
                entropy=decision.entropy,
                value=self.value,
                segment=len(self.segments),
                state_position=state_position,
                branches=tuple(decision.branches),
            )
        )
        self.ids += decision.taken
        self.seen += decision.fed
        if outcome is not None:
            return self._end(outcome)
        shown = self.encoder.observation(self.observation.text)
        if len(self.ids) + len(shown) + self._room() > self.columns:
            self.segments.append(Segment(tuple(self.ids)))
            self._open_segment()
        else:
            self.ids += shown
        return None

    def _open_segment(self) -> None:
        assert self.observation is not None and self.task is not None
        self.ids = list(self.encoder.task(self.observation.goal, self.task.limit))
        self.ids += self.encoder.observation(self.observation.text)
        self.seen = 0
        needed = len(self.ids) + self._room()
        if needed > self.columns:
            raise ModelError(
                f"task, observation and action need {needed} tokens, more than the context of {self.columns}",
                hint="raise model.context",
            )

    def _room(self) -> int:
        """Tokens of the longest valid action: kept free, so that a decision never has to stop half way."""
        assert self.observation is not None
        return max((len(self.encoder.action(action)) for action in self.observation.actions or ()), default=0)

    def _end(self, outcome: Outcome, error: str = "") -> Episode:
        assert self.task is not None
        segments = (*self.segments, Segment(tuple(self.ids))) if self.ids else ()
        episode = Episode(self.task, self.player, tuple(self.turns), outcome, self.observation, segments, error)
        self.task, self.ids, self.seen = None, [], 0
        return episode
