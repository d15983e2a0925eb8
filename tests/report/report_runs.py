"""Run directories as a run would leave them, made of invented numbers, for the tests of the report."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import yaml

from grue.evaluate.summary import compare, summarise
from grue.report.shown import ShownEpisode, ShownTurn, append_shown
from grue.types import Episode, Observation, Outcome, Task, Turn

GOAL = (
    "You are hungry! Let's cook a delicious meal. Check the cookbook in the kitchen for the recipe. "
    "Once done, enjoy your meal! You have 16 steps."
)
PARAMS = "numLocations=1,numIngredients=2,numDistractorItems=3,includeDoors=0,limitInventorySize=0"

KITCHEN = (
    "You are in the kitchen. In one part of the room you see a stove. There is also an oven. You also see a fridge "
    "that is closed. In another part of the room you see a counter that has a raw purple potato, and a cookbook on "
    "it. There is also a cutlery drawer that is closed. \nTo the South you see the backyard."
)
RECIPE = (
    "Gather all following ingredients and follow the directions to prepare this tasty meal.\n\nIngredients:\n  "
    "purple potato\n  white onion\n\nDirections:\n  dice the purple potato\n  grill the purple potato\n  chop the "
    "white onion\n  prepare meal\n"
)
BACKYARD = (
    "You are in the backyard. In one part of the room you see a barbeque. There is also a workbench, that has "
    "nothing on it. \nTo the North you see the kitchen."
)

# (observation, action, reward, other actions)
SCRIPT: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (
    (KITCHEN, "read cookbook", 0.0, ("take cookbook", "open fridge", "take purple potato", "open cutlery drawer",
                                     "look around", "move south", "examine counter")),
    (RECIPE, "take purple potato", 1 / 7, ("open cutlery drawer", "open fridge", "move south", "read cookbook")),
    ("You take the purple potato.", "open cutlery drawer", 0.0, ("open fridge", "move south", "eat purple potato")),
    ("You open the cutlery drawer. The cutlery drawer contains a knife.", "take knife", 0.0, ("open fridge",)),
    ("You take the knife.", "dice purple potato", 1 / 7, ("chop purple potato", "slice purple potato", "open fridge")),
    ("You dice the purple potato.", "open fridge", 0.0, ("move south", "close cutlery drawer")),
    ("You open the fridge. The fridge contains a white onion.", "take white onion", 1 / 7, ("close fridge",)),
    ("You take the white onion.", "chop white onion", 1 / 7, ("dice white onion", "slice white onion", "move south")),
    ("You chop the white onion.", "move south", 0.0, ("cook purple potato in oven", "look around")),
    (BACKYARD, "cook purple potato in barbeque", 1 / 7, ("move north", "cook white onion in barbeque", "look around")),
    ("You grill the purple potato with the barbeque.", "move north", 0.0, ("prepare meal", "look around")),
    ("You are in the kitchen. You see a stove, an oven and an open fridge, that is empty.", "prepare meal", 1 / 7,
     ("eat white onion", "look around")),
    ("Adding the meal to your inventory.", "eat meal", 1 / 7, ("look around",)),
)  # fmt: skip


def shown(
    policy: str, decoding: str, title: str, sharpness: float, steps: int = 13, tokens: bool = False
) -> ShownEpisode:
    """The first `steps` turns of the script, with probabilities that are sharper for a better policy."""
    rng = np.random.default_rng(len(policy) + steps)
    turns, score = [], 0.0
    for number, (observation, action, reward, others) in enumerate(SCRIPT[:steps]):
        score += reward
        if not sharpness:
            turns.append(ShownTurn(observation, action, reward))
            continue
        weights = rng.dirichlet([sharpness, *[0.5] * len(others)])
        pairs = sorted(zip((action, *others), weights.tolist(), strict=True), key=lambda pair: -pair[1])
        value = 0.4 + 0.6 * number / len(SCRIPT) + float(rng.normal(0, 0.03)) - 0.3 * score
        turns.append(ShownTurn(observation, action, reward, value, log(dict(pairs)[action]), tuple(pairs)))
    pieces = [("You are in the kitchen.\n>", "read"), (" read", "branch"), (" cook", "forced"), ("book\n", "forced")]
    done = steps == len(SCRIPT)
    return ShownEpisode(
        policy=policy,
        decoding=decoding,
        title=title,
        task=Task("cookingworld", PARAMS, "dev", 10003, 16),
        outcome="won" if done else "limit",
        score=round(score, 6),
        task_text=GOAL,
        turns=tuple(turns),
        final="You eat the meal. It is delicious." if done else "You chop the white onion.",
        tokens=tuple(pieces * 8 if tokens else ()),
    )


def played(fold: str, games: int, success: float, lost: float, failed: int, seed: int) -> list[Episode]:
    """Games with these shares of outcomes; the same seeds for every policy."""
    rng = np.random.default_rng(seed)
    first = {"train": 0, "dev": 10000, "test": 20000}[fold]
    difficulty = np.random.default_rng(99).random(games)
    episodes = []
    for number in range(games):
        luck = 0.7 * difficulty[number] + 0.3 * rng.random()
        quantile = float(np.clip((luck - 0.15) / 0.7, 0, 1))
        outcome = Outcome.WON if quantile < success else Outcome.LOST if rng.random() < lost else Outcome.LIMIT
        outcome = Outcome.FAILED if number < failed else outcome
        score = 1.0 if outcome is Outcome.WON else round(float(rng.integers(0, 6)) / 7, 4)
        steps = int(rng.integers(11, 16)) if outcome is Outcome.WON else 16
        verbs = (
            "look around",
            "take onion",
            "open fridge",
            "cook potato",
            "read cookbook",
            "move south",
            "dice potato",
        )
        actions = [verbs[index] for index in rng.integers(0, len(verbs), steps)]
        seen = Observation("", "", "", None, 0.0)
        turns = tuple(Turn(seen, action, score / steps) for action in actions)
        final = None if outcome is Outcome.FAILED else Observation("", "", "", None, score)
        episodes.append(
            Episode(Task("cookingworld", PARAMS, fold, first + number, 16), "choose", turns, outcome, final)
        )
    return episodes


# policy, decoding, success on train, dev, test, share lost of what is not won
POLICIES = (
    ("random", "scripted", 0.0, 0.0, 0.0, 0.3),
    ("gold", "scripted", 0.80, 0.71, 0.67, 0.0),
    ("base", "greedy", 0.05, 0.04, 0.03, 0.4),
    ("base", "sampled", 0.03, 0.03, 0.02, 0.5),
    ("sft", "greedy", 0.41, 0.33, 0.30, 0.3),
    ("sft", "sampled", 0.36, 0.29, 0.26, 0.35),
    ("ppo", "greedy", 0.96, 0.94, 0.93, 0.6),
    ("ppo", "sampled", 0.95, 0.92, 0.91, 0.6),
)


def results(games: int, *, failed: int = 0, other_folds: bool = True) -> dict[str, Any]:
    """A results.json."""
    found: dict[str, Any] = {"schema": 1, "preset": "cooking16", "wall_s": 1452.7}
    test: dict[str, list[Episode]] = {}
    for index, fold in enumerate(("train", "dev", "test")):
        policies: dict[str, Any] = {}
        for policy, decoding, *shares, lost in POLICIES:
            episodes = played(fold, games, shares[index], lost, failed if policy == "gold" else 0, len(policies) + 7)
            trained = 61440 if policy == "ppo" else 0
            row = {**summarise(episodes, fold=fold, bootstrap=300), "env_steps_trained": trained}
            policies.setdefault(policy, {"decoding": {}})["decoding"][decoding] = row
            test[policy + decoding] = episodes
        found["policies" if fold == "test" else fold] = policies
    found["policies"]["ppo"]["decoding"]["greedy"]["verbs"] = {"take": 4 * games, "read": games, "open": 2 * games}
    if not other_folds:
        del found["train"], found["dev"]
    pairs = (("ppo", "sft", "greedy"), ("ppo", "sft", "sampled"), ("ppo", "gold", "greedy"), ("sft", "base", "greedy"))
    found["paired"] = [
        {
            "a": a,
            "b": b,
            "decoding": d,
            **compare(test[a + d], test[b + ("scripted" if b == "gold" else d)], bootstrap=300),
        }
        for a, b, d in pairs
    ]
    return found | {
        "command": "grue run cooking16 --out runs/cooking16 --seed 0 ppo.iterations=40",
        "stages": {"demos": 14.2, "sft": 291.5, "ppo": 968.0, "eval": 161.3, "report": 4.1},
        "hardware": {"processor": "AMD EPYC 9555", "cores": 2, "memory_gib": 15.6, "gpus": []},
        "versions": {"grue": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0"},
    }


CONFIG: dict[str, Any] = {
    "preset": "cooking16",
    "seed": 0,
    "game": {"name": "cookingworld", "params": PARAMS, "limit": 16},
    "model": {"name": "embedded", "quantize": None, "lora": {"rank": 16, "alpha": 32, "targets": ["q_proj", "v_proj"]}},
    "demos": {"teacher": "gold-pruned", "games": 1000},
    "sft": {"passes": 3, "batch": 32, "learning_rate": 0.0003, "smoothing": 0.1},
    "dagger": {"rounds": 0},
    "ppo": {"iterations": 40, "episodes_per_iteration": 128, "gamma": 0.95, "lam": 0.95, "clip": 0.2, "entropy": 0.005,
            "learning_rate": 0.0001, "critic_only": 3},
    "eval": {"games": 1000, "decoding": ["greedy", "sampled"]},
}  # fmt: skip


def metrics(iterations: int = 40, sft_steps: int = 120) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl."""
    rng = np.random.default_rng(3)
    lines: list[dict[str, Any]] = []
    for step in range(1, sft_steps + 1):
        part = step / sft_steps
        loss = 0.15 + 2.1 * exp(-5 * part) + rng.normal(0, 0.05)
        lines.append(
            {
                "stage": "sft", "step": step, "time_s": 2.4 * step, "loss": loss + 0.1, "nll": loss,
                "node_entropy": loss * 0.4 + 0.3, "accuracy": 1 - 0.35 * loss + rng.normal(0, 0.005),
                "learning_rate": 3e-4 * (1 - part), "grad_norm": 1.2 + abs(rng.normal(0, 0.4)),
            }
        )  # fmt: skip
    for step in range(iterations + 1):
        rise = 0.3 + 0.63 / (1 + exp(-(step - 16) / 4)) - 0.012
        if step % 4 == 0:
            lines.append(_dev_line(step, rise))
        if step:
            lines.append(_ppo_line(step, rise, rng))
    return lines


def _dev_line(step: int, rise: float) -> dict[str, Any]:
    line: dict[str, Any] = {"stage": "dev", "step": step, "time_s": 320 + 24.0 * step, "games": 200}
    for decoding, share in (("greedy", rise + 0.02), ("sampled", rise - 0.03)):
        line |= {
            f"success_{decoding}": share, f"success_{decoding}_lo": share - 0.06,
            f"success_{decoding}_hi": min(1, share + 0.05),
            f"score_{decoding}": 0.4 + 0.58 * share, f"steps_mean_{decoding}": 15.9 - 3 * share,
        }  # fmt: skip
    return line


def _ppo_line(step: int, rise: float, rng: np.random.Generator) -> dict[str, Any]:
    noise = lambda size: float(rng.normal(0, size))  # noqa: E731
    return {
        "stage": "ppo", "step": step, "time_s": 24.0 * step,
        "success": min(1.0, max(0.0, rise - 0.03 + noise(0.035))), "score": 0.4 + 0.58 * rise + noise(0.02),
        "lost": abs(noise(0.02)),
        "steps_mean": 15.9 - 3 * rise + noise(0.15), "entropy": 0.55 * exp(-step / 18) + 0.05 + abs(noise(0.015)),
        "kl_ref": 0.9 * (1 - exp(-step / 15)) + abs(noise(0.02)), "kl_old": 0.012 + abs(noise(0.004)),
        "clip_fraction": 0.09 + abs(noise(0.02)), "policy_loss": -0.01 + noise(0.004),
        "value_loss": 0.09 * exp(-step / 8) + 0.01 + abs(noise(0.003)),
        "explained_variance": 0.86 - 0.95 * exp(-step / 4) + noise(0.03), "grad_norm": 0.7 + abs(noise(0.25)),
        "learning_rate": 1e-4, "episodes": 128, "env_steps_trained": 1536 * step, "engine_gap": 2e-6 + abs(noise(5e-7)),
        "env_steps_per_s": 402 + noise(12), "turns_per_s": 166 + noise(6), "seconds": 23.8 + noise(0.5),
    }  # fmt: skip


EPISODES = (
    shown("base", "greedy", "before training", 0.8, steps=8),
    shown("gold", "scripted", "the teacher", 0.0),
    shown("sft", "greedy", "after imitation", 2.0, steps=9),
    shown("ppo", "greedy", "after PPO", 30.0, tokens=True),
)


def write_run(
    folder: Path, *, games: int = 60, failed: int = 0, parts: str = "config metrics results episodes"
) -> Path:
    """A run directory with these parts."""
    folder.mkdir(parents=True, exist_ok=True)
    if "config" in parts:
        (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    if "metrics" in parts:
        write_metrics(folder, metrics())
    if "results" in parts:
        (folder / "results.json").write_bytes(orjson.dumps(results(games, failed=failed), option=orjson.OPT_INDENT_2))
    if "episodes" in parts:
        for episode in EPISODES:
            append_shown(folder / "episodes" / "shown.jsonl", episode)
    return folder


def write_metrics(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
