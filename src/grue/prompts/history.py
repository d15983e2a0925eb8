"""The token sequence of one episode: what the policy has been shown and has done, cut into segments.

Ids are only ever appended. If the next observation cannot continue the sequence (it no longer fits, or a window, in
which only the current step lists its actions, moves on), a new segment begins. The task and the current observation are
always whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from grue.errors import ModelError
from grue.prompts.tokens import Encoder
from grue.types import Observation, Segment


class History:
    """`ids` is the segment that is being written; `ids[seen:]` is what the engine has not been fed yet."""

    def __init__(self, encoder: Encoder, goal: str, limit: int, context: int | None = None) -> None:
        self.ids: list[int] = []
        self.seen = 0
        self._encoder, self._context = encoder, context
        self._task = encoder.task(goal, limit)
        self._finished: list[Segment] = []
        self._past: list[tuple[Observation, tuple[int, ...]]] = []  # what was shown, and what was done about it
        self._now: Observation | None = None

    @property
    def segment(self) -> int:
        """Index of the segment that is being written."""
        return len(self._finished)

    def segments(self) -> tuple[Segment, ...]:
        """All segments so far."""
        return (*self._finished, Segment(tuple(self.ids)))

    def show(self, observation: Observation, room: int = 0) -> None:
        """Append an observation, so that `room` more tokens fit. ModelError if it cannot be shown whole."""
        self._now = observation
        if window := self._encoder.prompt.history:
            past = self._past[-window:]
            whole = self._render(past)
            while past and self._over(len(whole) + room):
                past = past[1:]
                whole = self._render(past)
            if self.ids and whole[: len(self.ids)] == self.ids and not self._over(len(whole) + room):
                self.ids = whole
                return
        else:
            shown = self._piece(observation, first=False)
            if self.ids and not self._over(len(self.ids) + len(shown) + room):
                self.ids += shown
                return
            whole = self._render(())
        self._begin(whole, room)

    def act(self, ids: Sequence[int], fed: int = 0) -> None:
        """Append the ids of what the policy did; the engine has already seen the first `fed` of them."""
        assert self._now is not None
        self.ids += ids
        self.seen += fed
        self._past.append((self._now, tuple(ids)))

    def take_back(self) -> None:
        """Remove what the policy did last; `seen` stays, and may then be too large."""
        _, done = self._past.pop()
        del self.ids[len(self.ids) - len(done) :]

    def _begin(self, whole: list[int], room: int) -> None:
        if self.ids:
            self._finished.append(Segment(tuple(self.ids)))
        self.ids, self.seen = whole, 0
        if self._over(len(whole) + room):
            raise ModelError(
                f"task, observation and action need {len(whole) + room} tokens, more than the context of "
                f"{self._context}",
                hint="raise model.context",
            )

    def _render(self, past: Sequence[tuple[Observation, tuple[int, ...]]]) -> list[int]:
        """The task, past steps, and the current observation."""
        assert self._now is not None
        ids = list(self._task)
        for number, (observation, done) in enumerate(past):
            ids += self._encoder.observation(observation.text, None, number == 0)
            ids += done
        return ids + list(self._piece(self._now, first=not past))

    def _piece(self, observation: Observation, *, first: bool) -> tuple[int, ...]:
        actions = observation.actions if self._encoder.prompt.list_actions else None
        return self._encoder.observation(observation.text, actions, first)

    def _over(self, needed: int) -> bool:
        return self._context is not None and needed > self._context
