"""A game whose folds have different words, and which can rename them. `cd examples; grue check-game market:Market`."""

from random import Random

from grue.errors import GameError
from grue.games.base import check_seed
from grue.games.made_up import made_up_names
from grue.types import Observation, Outcome, Task

GOODS = {
    "train": ("anchor", "basket", "candle", "drum", "envelope", "feather", "guitar", "hammer", "jar", "kettle"),
    "dev": ("mirror", "needle", "oar", "pillow", "quilt", "rope", "saddle", "trumpet", "umbrella", "vase"),
    "test": ("broom", "comb", "doll", "easel", "flute", "glove", "harp", "kite", "lantern", "net"),
}


class Market:
    """Buy the two things on your list, of six that are sold. Buying anything else loses."""

    def __init__(self, params: str = "") -> None:
        self.task: Task | None = None

    def reset(self, task: Task) -> Observation:
        check_seed(task)
        rng = Random(task.seed)
        self.task, self.steps, self.bought = task, 0, 0.0
        self.sold = set(rng.sample(GOODS[task.fold], 6))
        self.list = rng.sample(sorted(self.sold), 2)
        return self.show(f"You are at the market. They sell {', '.join(sorted(self.sold))}. You have a list.")

    def step(self, action: str) -> tuple[Observation, float, Outcome | None]:
        if self.task is None:
            raise GameError("no game is running", hint="call reset(task)")
        self.steps += 1
        text, reward, outcome = "You cannot do that.", 0.0, None
        thing = action.removeprefix("buy ")
        if action == "read list":
            text = f"It says: {', '.join(self.list)}."
        elif action.startswith("buy ") and thing in self.sold:
            self.sold.remove(thing)
            reward = 0.5 if thing in self.list else 0.0
            text, outcome = f"You buy the {thing}.", None if reward else Outcome.LOST
        self.bought += reward
        if self.bought == 1.0:
            outcome = Outcome.WON
        elif outcome is None and self.steps == self.task.limit:
            outcome = Outcome.LIMIT
        self.task = None if outcome else self.task
        return self.show(text), reward, outcome

    def show(self, text: str) -> Observation:
        actions = sorted(["read list", *(f"buy {thing}" for thing in self.sold)])
        return Observation(text, "Buy what is on your list, and nothing else.", "", tuple(actions), self.bought)

    def gold(self) -> list[str]:
        """A solution, for demonstrations."""
        return ["read list", *(f"buy {thing}" for thing in self.list)]

    @staticmethod
    def renaming(first: Observation, rng: Random) -> dict[str, str]:
        """Made-up words for all that is sold, where training renames things (`sft.rename`, `ppo.rename`)."""
        sold = [action.removeprefix("buy ") for action in first.actions or () if action.startswith("buy ")]
        return made_up_names(sold, first, rng)

    def close(self) -> None:
        self.task = None
