"""A language-model policy as a player of one game at a time, for use from Python."""

from __future__ import annotations

import random

from grue.engine.engine import Engine
from grue.errors import ModelError
from grue.policy.decision import Decision, Decoding, Query, not_finite
from grue.policy.policy import Policy, decide
from grue.prompts.history import History
from grue.types import Observation, Segment, Task, Turn


class PolicyPlayer:
    """Names an action for each observation: call `act` at every step, and `reset` before another game.

    It keeps the transcript and its key-value cache, so each call reads only what is new. It is also a player in the
    sense of `grue.games.play`.
    """

    def __init__(
        self, policy: Policy, *, name: str, context: int, limit: int, decoding: Decoding, seed: int | str = 0
    ) -> None:
        self.policy, self.name = policy, name
        self._context, self._limit, self._decoding, self._seed = context, limit, decoding, seed
        self._engine = Engine(policy.model.base_lm(), 1, context)
        self._games = 0
        self._history: History | None = None
        self._unanswered: Observation | None = None  # shown by a call that then failed
        self._answered: Observation | None = None  # by the last action
        self._rng = random.Random()
        self.value = 0.0  # the critic's estimate at the last observation
        self.decision: Decision | None = None  # the last one, with its log-probability, entropy and branches
        self._told = False  # has `decided` been asked about it?

    def reset(self) -> None:
        """Forget the game: the next observation is the first of another one."""
        self._history = self._unanswered = self._answered = None

    def start(self, task: Task, observation: Observation) -> None:
        """Begin a game whose number of steps is known. `act` begins one by itself, with the limit of the training."""
        self._rng = random.Random(f"{self._seed}/{self._games}")
        self._games += 1
        self._history = History(self.policy.encoder, observation.goal, task.limit, self._context)
        self._unanswered = self._answered = None
        self.policy.model.eval()  # a loop of one's own may have left dropout on

    def act(self, observation: Observation) -> str:
        """The action for what is seen now.

        ModelError where the game lists no actions and the policy needs them, or where the model gives no finite number.
        """
        if not isinstance(observation, Observation):
            raise ModelError(
                f"act takes an Observation, not {type(observation).__name__}",
                hint="game.reset(task) and game.step(action) return them (docs/python.md)",
            )
        if self._history is None:
            self.start(Task("", "", "", 0, self._limit), observation)
        history, actions = self._history, tuple(observation.actions or ())
        assert history is not None
        if self.policy.needs_actions and not actions:
            raise ModelError(
                "the observation lists no valid actions to choose from", hint="policy.kind=write needs none"
            )
        self._answered = None  # the last action is behind; whoever interrupts this call finds none to replace
        if observation != self._unanswered:
            history.show(observation, self.policy.room(actions))
        self._unanswered = observation
        if history.seen == 0:
            self._engine.reset(0)
        query = Query(0, actions, len(history.ids), self._rng, history.ids[history.seen :])
        try:
            (self.decision,) = decide(self.policy, self._engine, [query], self._decoding)
            if not self.decision.is_finite:
                raise not_finite()
        except BaseException:  # Ctrl-C in a notebook, too: who calls again has everything read again
            history.seen = 0
            raise
        history.seen, self._unanswered, self._answered = len(history.ids), None, observation
        self.value = self.decision.value
        history.act(self.decision.taken, self.decision.fed)
        self._told = False
        return self.decision.action

    def played(self, action: str) -> None:
        """Say that `action` was played instead of the one that `act` has just named; the transcript then holds it.

        ModelError where there is nothing that it could replace.
        """
        history, observation = self._history, self._answered
        if history is None or observation is None or self.decision is None:
            raise ModelError("no action has been named that could be replaced", hint="call act(observation) first")
        if action == self.decision.action:
            return
        actions, policy = tuple(observation.actions or ()), self.policy
        history.take_back()
        possible = action in actions or not policy.needs_actions  # for this policy
        state = len(history.ids) - 1
        ids = policy.lesson(actions, action, state).ids if possible else policy.encoder.unlearnt(action)
        if history.seen > len(history.ids):  # the engine has read some of what is taken back
            history.seen = 0
        history.act(ids)
        self.decision, self._answered = None, None

    def probabilities(self) -> list[tuple[str, float]]:
        """The probability of each valid action where `act` has just named one, likeliest first.

        Takes a pass of its own. With `write` they are those of writing each action, and need not sum to 1.
        """
        decision, history, observation = self.decision, self._history, self._answered
        if decision is None or history is None or observation is None:
            raise ModelError("no action has been named", hint="call act(observation) first")
        turn = decision.recorded_in(Turn(observation, decision.action, 0.0), history.segment)
        return self.policy.weigh(turn, history.ids, self._decoding.temperature)

    @property
    def transcript(self) -> str:
        """What the model has read and written since the segment began, as text."""
        ids = self._history.ids if self._history is not None else []
        return str(self.policy.encoder.tokenizer.decode(ids))

    def decided(self, turn: Turn) -> Turn | None:
        """`turn` with how its action was decided; None if it is not what `act` has just returned.

        A class that builds on this one may act by itself at times: it then says so with `played`.
        """
        decision, history = self.decision, self._history
        if decision is None or history is None or self._told or decision.action != turn.action:
            return None
        self._told = True
        return decision.recorded_in(turn, history.segment)

    def segments(self) -> tuple[Segment, ...]:
        """What has been read and written since the game began."""
        return self._history.segments() if self._history is not None else ()
