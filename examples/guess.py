"""A game of your own: guess a number. `cd examples; grue check-game guess:Guess` checks it."""

from random import Random

from grue.errors import GameError
from grue.games.base import check_seed
from grue.types import Observation, Outcome, Task


class Guess:
    """A number from 0 to 9, drawn by the seed. The answer to a guess is "Higher." or "Lower."."""

    def __init__(self, params: str = "") -> None:
        self.task: Task | None = None

    def reset(self, task: Task) -> Observation:
        check_seed(task)
        self.task, self.steps, self.number = task, 0, Random(task.seed).randrange(10)
        return self.show("I think of a number.")

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        if self.task is None:
            raise GameError("no game is running", hint="call reset(task)")
        self.steps += 1
        won = action == str(self.number)
        outcome = Outcome.WON if won else Outcome.LIMIT if self.steps == self.task.limit else None
        self.task = self.task if outcome is None else None
        text = "Right." if won else "Higher." if action < str(self.number) else "Lower."
        return self.show(text, float(won)), float(won), outcome

    def show(self, text: str, score: float = 0.0) -> Observation:
        return Observation(text, "Guess my number, 0 to 9.", "", tuple("0123456789"), score)

    def close(self) -> None:
        self.task = None
