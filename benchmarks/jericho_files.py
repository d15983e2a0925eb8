"""Story files that Jericho knows: is its walkthrough won here, and do our valid actions hold what it does?

    python benchmarks/jericho_files.py [steps=60] FILE.z5 ...        # needs grue[jericho]

For each file the whole walkthrough is played. Of the first `steps` actions of it that change the world, those count as
listed for which one of our valid actions leads to the same world: the walkthrough says "n" where we list "north". One
line a file, as Markdown.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

from grue.games import tasks
from grue.games.jericho import JerichoGame
from grue.games.play import play
from grue.games.teachers import teacher
from grue.types import Outcome, Task

LIMIT = 1000  # steps; walkthroughs have fewer


def made(file: str, params: str) -> tuple[JerichoGame, Task]:
    """The game and its task. In this process: these files are known not to hang."""
    game = JerichoGame(f"jericho:{file}", params)
    (task,) = tasks(game.game, params, "train", LIMIT, 1)
    return game, task


def played(file: str) -> tuple[int, int, Outcome, float]:
    """(actions of the walkthrough, those it took, how that ended, score)."""
    game, task = made(file, "validActions=0")
    episode = play(game, task, teacher("gold", game))
    path = game.gold()
    game.close()
    return len(path), episode.steps, episode.outcome, episode.score


def listed(file: str, steps: int) -> tuple[int, int, float, float]:
    """(actions with a listed equivalent, actions that change the world, valid actions a step, seconds a step)."""
    game, task = made(file, "")
    observation = game.reset(task)
    engine: Any = game._env
    found = changing = done = actions = 0
    seconds = 0.0
    for action in game.gold()[:steps]:
        state, before = engine.get_state(), engine.get_world_state_hash()

        def after(what: str, state: Any = state) -> str:
            engine.step(what)
            world = str(engine.get_world_state_hash())
            engine.set_state(state)
            return world

        wanted = after(action)
        if wanted != before:
            changing += 1
            found += any(after(other) == wanted for other in observation.actions or ())
        done, actions = done + 1, actions + len(observation.actions or ())
        begun = time.perf_counter()
        observation, _, outcome = game.step(action)
        seconds += time.perf_counter() - begun
        if outcome is not None:
            break
    game.close()
    return found, changing, actions / done, seconds / done


def main() -> None:
    warnings.simplefilter("ignore")  # what Jericho says of its own templates
    arguments = sys.argv[1:]
    steps = next((int(each.partition("=")[2]) for each in arguments if each.startswith("steps=")), 60)
    print("| file | walkthrough | played | end | score | listed | valid actions | s a step |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    for file in (each for each in arguments if not each.startswith("steps=")):
        whole, taken, outcome, score = played(file)
        found, changing, actions, seconds = listed(file, steps)
        name = file.rpartition("/")[2]
        cells = f"{whole} | {taken} | {outcome} | {score:.2f} | {found} of {changing} | {actions:.0f} | {seconds:.2f}"
        print(f"| `{name}` | {cells} |", flush=True)


if __name__ == "__main__":
    main()
