"""Our TextWorldExpress adapter against the stock wrapper: steps and resets per second, memory, start-up.

    python benchmarks/twx.py [games=64] [rounds=3] [steps=16]

Prints one JSON object. Both sides play the same CookingWorld games with the same random actions, all games in turn,
in one Python process; in each round ours goes first. Choosing the action is not timed. The stock wrapper starts a Java
process for each environment, ours one for all.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
from arguments import read_arguments, run
from textworld_express import TextWorldExpressEnv

from grue.games import canonical_params, make, tasks
from grue.types import Task

PARAMS = {"numLocations": 3, "includeDoors": 1, "numDistractorItems": 2, "numIngredients": 2}


class Ours:
    """`games` seats in one Java process."""

    def __init__(self, games: int) -> None:
        self.seats = [make("cookingworld", PARAMS, read_timeout_s=120.0) for _ in range(games)]

    def reset(self, seat: int, task: Task) -> list[str]:
        return list(self.seats[seat].reset(task).actions or ())

    def step(self, seat: int, action: str) -> list[str] | None:
        observation, _, outcome = self.seats[seat].step(action)
        return list(observation.actions or ()) if outcome is None else None

    def close(self) -> None:
        for game in self.seats:
            game.close()


class Stock:
    """`games` environments of the package itself, used as in its documentation."""

    def __init__(self, games: int) -> None:
        self.seats = [TextWorldExpressEnv(envStepLimit=1000) for _ in range(games)]
        for env in self.seats:
            env.load(gameName="cookingworld", gameParams=canonical_params("cookingworld", PARAMS))

    def reset(self, seat: int, task: Task) -> list[str]:
        return list(self.seats[seat].reset(seed=task.seed, gameFold=task.fold)[1]["validActions"])

    def step(self, seat: int, action: str) -> list[str] | None:
        _, _, done, info = self.seats[seat].step(action)
        return None if done else list(info["validActions"])

    def close(self) -> None:
        for env in self.seats:
            env.close()


def play(side: Ours | Stock, chosen: list[Task], steps: int) -> tuple[float, float, int]:
    """One game on each seat, advancing together: (seconds in reset, seconds in step, steps)."""
    listed: list[list[str] | None] = []
    start = time.perf_counter()
    for seat, task in enumerate(chosen):
        listed.append(side.reset(seat, task))
    reset_s, step_s, count = time.perf_counter() - start, 0.0, 0
    draws = [random.Random(task.seed) for task in chosen]
    for _ in range(steps):
        for seat, valid in enumerate(listed):
            if not valid:
                continue
            action = draws[seat].choice(sorted(valid))
            start = time.perf_counter()
            listed[seat] = side.step(seat, action)
            step_s += time.perf_counter() - start
            count += 1
    return reset_s, step_s, count


def open_side(kind: Callable[[int], Any], games: int) -> tuple[Any, dict[str, float]]:
    """A side with its Java running, and what it took to start."""
    start = time.perf_counter()
    side = kind(games)
    side.reset(0, Task("cookingworld", canonical_params("cookingworld", PARAMS), "dev", 10_000, 16))
    return side, {"start_s": round(time.perf_counter() - start, 2)}


def java_memory(known: set[int]) -> tuple[set[int], float]:
    """(ids of the Java processes that are not in `known`, their resident memory in MB)."""
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in known]
    java = [child for child in children if "java" in child.name()]
    return {child.pid for child in java}, sum(child.memory_info().rss for child in java) / 1e6


def main() -> None:
    _, sizes = read_arguments(__doc__, {"games": 64, "rounds": 3, "steps": 16})
    games, rounds, steps = sizes["games"], sizes["rounds"], sizes["steps"]
    params = canonical_params("cookingworld", PARAMS)
    dev = [Task("cookingworld", params, "dev", 10_000 + i % 1000, steps) for i in range(games * rounds)]
    assert tasks("cookingworld", PARAMS, "test", steps, 1)  # the package works before anything is timed

    ours, ours_facts = open_side(Ours, games)
    our_java, _ = java_memory(set())
    stock, stock_facts = open_side(Stock, games)
    times: dict[str, list[tuple[float, float, int]]] = {"ours": [], "baseline": []}
    play(ours, dev[:games], 2), play(stock, dev[:games], 2)  # warm up
    for i in range(rounds):
        for name, side in (("ours", ours), ("baseline", stock)):
            times[name].append(play(side, dev[i * games : (i + 1) * games], steps))
            reset_s, step_s, count = times[name][-1]
            print(f"{name}: {games / reset_s:.0f} resets/s, {count / step_s:.0f} steps/s", file=sys.stderr, flush=True)
    stock_java, stock_memory = java_memory(our_java)
    memory = {
        "ours": sum(psutil.Process(pid).memory_info().rss for pid in our_java) / 1e6,
        "baseline": stock_memory,
    }
    facts = {"ours": ours_facts, "baseline": stock_facts}
    for name, timed in times.items():
        facts[name]["steps_per_s"] = round(statistics.median(count / step_s for _, step_s, count in timed), 1)
        facts[name]["resets_per_s"] = round(statistics.median(games / reset_s for reset_s, _, _ in timed), 1)
        facts[name]["java_processes"] = len(our_java if name == "ours" else stock_java)
        facts[name]["java_memory_mb"] = round(memory[name])
    ratio = {key: round(facts["ours"][key] / facts["baseline"][key], 2) for key in ("steps_per_s", "resets_per_s")}
    ratio["memory"] = round(memory["baseline"] / memory["ours"], 1)
    same = f"{games} CookingWorld games at once, {rounds} rounds of {steps} random steps, one Python process"
    print(json.dumps({"bench": "textworld_express", "ratio": ratio, **facts, "same": same}))
    ours.close()
    stock.close()


if __name__ == "__main__":
    run(main)
