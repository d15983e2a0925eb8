"""Our adapters of the other engines against the engines' own Python interfaces: steps and resets per second, memory.

    python benchmarks/engines.py [textworld jericho scienceworld babyai alfworld] [steps=200] [resets=5] [games=64]

Prints one JSON object per engine. Each side plays one seat in the same run of this program, another game per reset:
ours draws valid actions at random, the engine then gets the very same actions and is asked for what ours shows (valid
actions too, except where it knows none). Ours is in a process of its own (except babyai), so each step crosses a pipe.
`memory` is for `games` open at once, each reset: how much this process and all that it has started grew, shared pages
divided among those that share them; name one engine at a time, as a second one finds modules loaded. No downloads:
games are generated, or made here.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from arguments import read_arguments, run

from grue.errors import needs
from grue.games import make, tasks
from grue.types import Task

ENGINES = {  # name -> (game, parameters)
    "textworld": ("textworld-cooking", "recipe=2,take=2,go=6,open=1,cook=1"),
    "jericho": ("jericho", "validActions=0"),
    "scienceworld": ("scienceworld", "task=0,easy=1,validActions=1"),
    "babyai": ("babyai", "level=9"),
    "alfworld": ("alfworld-micro", ""),
}
Side = tuple[Callable[[Task], object], Callable[[str], bool], Callable[[], None]]  # reset, step -> over, close


def stock_textworld(task: Task) -> Side:
    """`textworld.start`, with the facts that an observation of ours has."""
    import textworld

    from grue.games.textworld.make import game_file

    asked = ("feedback", "description", "inventory", "objective", "admissible_commands", "score", "max_score", "won")
    env = textworld.start(str(game_file(task)), textworld.EnvInfos(lost=True, **dict.fromkeys(asked, True)))
    return (
        lambda task: (env.load(str(game_file(task))), env.reset()),
        lambda action: bool(env.step(action)[2]),
        env.close,
    )


def stock_jericho(task: Task) -> Side:
    """`jericho.FrotzEnv`. It does not know the story, so it lists no actions; ours is asked for none."""
    import jericho

    env = jericho.FrotzEnv(task.game.partition(":")[2], seed=task.seed)
    return lambda task: (env.seed(task.seed), env.reset()), lambda action: bool(env.step(action)[2]), env.close


def stock_scienceworld(task: Task) -> Side:
    from scienceworld import ScienceWorldEnv

    env = ScienceWorldEnv("", envStepLimit=10**6)
    name = env.get_task_names()[0]
    env.load(name, 0, "easy")

    def reset(task: Task) -> None:
        variations = env.get_variations_train()
        env.load(name, variations[task.seed % len(variations)], "easy")
        env.reset()

    return reset, lambda action: bool(env.step(action)[2]), env.close


def stock_babyai(task: Task) -> Side:
    import gymnasium
    import minigrid  # noqa: F401 - registers the levels

    from grue.games.babyai import LEVELS

    env = gymnasium.make(f"BabyAI-{LEVELS[9]}-v0", disable_env_checker=True).unwrapped
    names = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
    return lambda task: env.reset(seed=task.seed), lambda action: bool(env.step(names.index(action))[2]), env.close


def stock_alfworld(task: Task) -> Side:
    """`textworld.start` with ALFWorld's wrappers, on the same homes written out as game files."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    from grue.games.alfworld.micro import home

    folder, domain = Path(tempfile.mkdtemp(prefix="grue-")), Path(ALFRED_PDDL_PATH).read_text()

    def file(task: Task) -> str:
        made, path = home(task), folder / f"{task.seed}.tw-pddl"
        grammar = Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", made.goal)
        path.write_text(json.dumps({"pddl_domain": domain, "grammar": grammar, "pddl_problem": made.problem}))
        return str(path)

    infos = textworld.EnvInfos(admissible_commands=True, won=True)
    env = textworld.start(file(task), infos, wrappers=[AlfredDemangler(), AlfredInfos])

    def reset(task: Task) -> None:
        env.load(file(task))
        env.reset()

    return reset, lambda action: bool(env.step(action)[2]), env.close


STOCK: dict[str, Callable[[Task], Side]] = {
    "textworld": stock_textworld,
    "jericho": stock_jericho,
    "scienceworld": stock_scienceworld,
    "babyai": stock_babyai,
    "alfworld": stock_alfworld,
}


def held_mb() -> float:
    """Memory of this process and of all its descendants."""
    here = psutil.Process()
    held = 0
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # a child of earlier games may just have ended
            held += process.memory_full_info().pss
    return held / 1e6


def memory(engine: str, chosen: list[Task]) -> dict[str, float]:
    """Of one open game for each task, on either side. What this process loads only once counts for neither."""
    _ours(chosen[:1])
    _stock(engine, chosen[:1])
    ours, stock = _ours(chosen), _stock(engine, chosen)
    return {"games": len(chosen), "ours_mb": round(ours), "baseline_mb": round(stock), "ratio": round(stock / ours, 2)}


def _ours(chosen: list[Task]) -> float:
    before = held_mb()
    games = [make(task.game, task.params, read_timeout_s=600.0) for task in chosen]
    for game, task in zip(games, chosen, strict=True):
        game.reset(task)
    held = held_mb() - before
    for game in games:
        game.close()
    return held


def _stock(engine: str, chosen: list[Task]) -> float:
    before = held_mb()
    sides = [STOCK[engine](task) for task in chosen]
    for (reset, _, _), task in zip(sides, chosen, strict=True):
        reset(task)
    held = held_mb() - before
    for _, _, close in sides:
        close()
    return held


def play_ours(chosen: list[Task], steps: int) -> tuple[dict[str, float], list[list[str]]]:
    """(what it took, the actions of each episode)."""
    start = time.perf_counter()
    game = make(chosen[0].game, chosen[0].params, read_timeout_s=600.0)
    game.reset(chosen[0])
    start_s, draw = time.perf_counter() - start, random.Random(0)
    played: list[list[str]] = []
    reset_s = step_s = 0.0
    for task in chosen:
        start = time.perf_counter()
        observation = game.reset(task)
        reset_s += time.perf_counter() - start
        played.append([])
        outcome = None
        while outcome is None and len(played[-1]) < steps // len(chosen):
            action = draw.choice(observation.actions or ("look", "inventory", "north", "wait"))
            start = time.perf_counter()
            observation, _, outcome = game.step(action)
            step_s += time.perf_counter() - start
            played[-1].append(action)
    game.close()
    return facts(start_s, reset_s, step_s, played), played


def play_stock(engine: str, chosen: list[Task], played: list[list[str]]) -> dict[str, float]:
    start = time.perf_counter()
    reset, step, close = STOCK[engine](chosen[0])
    reset(chosen[0])
    start_s, reset_s, step_s = time.perf_counter() - start, 0.0, 0.0
    for task, actions in zip(chosen, played, strict=True):
        start = time.perf_counter()
        reset(task)
        reset_s += time.perf_counter() - start
        start = time.perf_counter()
        for action in actions:
            step(action)
        step_s += time.perf_counter() - start
    close()
    return facts(start_s, reset_s, step_s, played)


def facts(start_s: float, reset_s: float, step_s: float, played: list[list[str]]) -> dict[str, float]:
    count = sum(len(actions) for actions in played)
    return {
        "steps": count,
        "start_s": round(start_s, 2),
        "steps_per_s": round(count / step_s, 1),
        "resets_per_s": round(len(played) / reset_s, 2),
    }


def measure(engine: str, steps: int, resets: int, games: int) -> dict[str, Any]:
    game, params = ENGINES[engine]
    for module in {"textworld": ("textworld",), "jericho": ("jericho", "textworld")}.get(engine, ()):
        needs(module, feature=f"the benchmark of {engine}")
    if engine == "jericho":  # any Z-machine file will do: one that TextWorld makes
        from grue.games.textworld.make import game_file

        game = f"jericho:{game_file(tasks(*ENGINES['textworld'], 'dev', 10**6, 1)[0])}"
    chosen = tasks(game, params, "train", 10**6, max(resets, games))
    if engine == "textworld":
        from grue.games.textworld.make import game_file

        for task in chosen:  # generating games is not what is measured
            game_file(task)
    held = memory(engine, chosen[:games])
    chosen = chosen[:resets]
    ours, played = play_ours(chosen, steps)
    stock = play_stock(engine, chosen, played)
    ratio = {key: round(ours[key] / stock[key], 2) for key in ("steps_per_s", "resets_per_s")}
    return {"bench": "engines", "engine": engine, "ratio": ratio, "ours": ours, "baseline": stock, "memory": held}


def main() -> None:
    engines, sizes = read_arguments(__doc__, {"steps": 200, "resets": 5, "games": 64}, names=ENGINES)
    for engine in engines or ENGINES:
        print(json.dumps(measure(engine, **sizes)), flush=True)


if __name__ == "__main__":
    run(main)
