"""What random, the engine's own solution and the teacher reach in the families' presets: the tables of docs/results.md.

    python benchmarks/families.py [games=200] [fold=test] [PRESET ...]

Games are spread evenly over the fold. For the tasks of TALES its metric is printed beside our score: the best score in
100 steps, the game restarting after each end. One line per preset and player, as Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence

from arguments import read_arguments, run

from grue.config import PRESETS
from grue.config.families import FAMILY_PRESETS
from grue.evaluate.summary import Result, summarise
from grue.evaluate.tales import mean_score, tales_scores
from grue.games import Game, make, tasks
from grue.games.play import play
from grue.games.spread import spread
from grue.games.teachers import teacher
from grue.types import Episode, Task


def measure(preset: str, fold: str, games: int) -> None:
    """Print the lines of a preset."""
    whole = PRESETS[preset]()
    config = whole.game
    chosen = spread(tasks(config.name, config.params, fold, config.limit), games)
    game = make(config.name, config.params, read_timeout_s=120.0)
    for name in dict.fromkeys(("random", "gold", whole.demos.teacher)):
        player = teacher(name, game)
        result = summarise([play(game, task, player) for task in chosen], fold=fold)
        tales = _tales(game, name, chosen) if preset.startswith("tales-") else None
        print(_line(preset, config.limit, name, result, tales), flush=True)
    game.close()


def _tales(game: Game, name: str, chosen: Sequence[Task]) -> float:
    """The mean TALES score; at each attempt the random player draws anew."""

    def attempt(some: Sequence[Task], number: int) -> list[Episode]:
        player = teacher(name, game, seed=number)
        return [play(game, task, player) for task in some]

    return mean_score(tales_scores(attempt, chosen)) or 0.0


def _line(preset: str, limit: int, name: str, result: Result, tales: float | None) -> str:
    assert result["success_ci95"] is not None
    assert result["score"] is not None
    low, high = result["success_ci95"]
    cells = [
        f"`{preset}`",
        str(limit),
        name,
        f"{result['success']:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{result['score']:.3f}",
        f"{result['steps_mean']:.1f}",
        f"{result['limit']:.1%}",
        f"{result['lost']:.1%}",
        str(result["failed"]),
    ]
    cells += [f"{tales:.3f}"] if tales is not None else []
    return f"| {' | '.join(cells)} |"


def main() -> None:
    presets, settings = read_arguments(__doc__, {"games": 200, "fold": "test"}, names=PRESETS)
    for preset in presets or FAMILY_PRESETS:
        measure(preset, settings["fold"], settings["games"])


if __name__ == "__main__":
    run(main)
