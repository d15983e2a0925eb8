"""Story files that Jericho knows: is its walkthrough won here, in its own words and in those of our valid actions?

    python benchmarks/jericho_files.py [steps=60] FILE.z5 ...        # needs grue[jericho]

For each file the whole walkthrough is played as it is. Then its first `steps` actions are played in listed words,
where `equivalent` finds them: the walkthrough says "n" where we list "north". One line per file, as Markdown.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

from arguments import read_arguments, run

from grue.errors import ConfigError, needs
from grue.games import tasks
from grue.games.jericho.game import JerichoGame
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


def listed(file: str, steps: int) -> tuple[int, int, str, float, float, float]:
    """(steps in listed words, steps, how that ended, score, valid actions a step, seconds a step)."""
    game, task = made(file, "")
    observation = game.reset(task)
    found = done = actions = 0
    end, seconds = "goes on", 0.0
    path = game.gold()
    for step, action in enumerate(path[:steps], 1):
        begun = time.perf_counter()
        said = game.equivalent(action, path[step:])
        found += said in (observation.actions or ())
        done, actions = done + 1, actions + len(observation.actions or ())
        observation, _, outcome = game.step(said)
        seconds += time.perf_counter() - begun
        if outcome is not None:
            end = str(outcome)
            break
    game.close()
    return found, done, end, observation.score, actions / done, seconds / done


def main() -> None:
    files, sizes = read_arguments(__doc__, {"steps": 60}, names=None)
    needs("jericho", feature="playing a Z-machine file")
    if missing := [file for file in files or [""] if not Path(file).is_file()]:
        raise ConfigError(f"there is no file {missing[0]!r}", hint="name story files: FILE.z5")
    warnings.simplefilter("ignore")  # Jericho warns about its own templates
    print("| file | walkthrough | played | end | score | in listed words | end | score | valid actions | s a step |")
    print("|---|---:|---:|---|---:|---:|---|---:|---:|---:|")
    for file in files:
        whole, taken, outcome, score = played(file)
        found, done, end, reached, actions, seconds = listed(file, sizes["steps"])
        name = file.rpartition("/")[2]
        own = f"{whole} | {taken} | {outcome} | {score:.2f}"
        ours = f"{found} of {done} | {end} | {reached:.2f}"
        print(f"| `{name}` | {own} | {ours} | {actions:.0f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    run(main)
