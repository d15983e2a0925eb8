"""Presets of the other families of TextWorldExpress, and the tasks of the TALES benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from grue.config.learning import PPOConfig, SFTConfig
from grue.config.stages import Config, DemosConfig, EvalConfig, GameConfig, PolicyConfig


def _elsewhere(epochs: int, rename: float = 0.0, batch: int = 16, rate: float = 1e-3) -> SFTConfig:
    """SFT where the base has much to learn: most of what it has seen is kitchens."""
    return SFTConfig(epochs=epochs, episodes_per_batch=batch, learning_rate=rate, rename=rename)


@dataclass(frozen=True, slots=True)
class Training:
    """What was found to work for a family on its dev games."""

    policy: Literal["aligned", "choose"] = "aligned"
    teacher: Literal["gold", "explore"] = "gold"
    sft: SFTConfig = field(default_factory=lambda: _elsewhere(4))
    iterations: int = 15
    episodes: int = 64
    minibatches: int = 3
    learning_rate: float = 2e-4
    rate_warmup: int = 0
    dev_every: int = 5
    win_bonus: float = 1.0


# `choose` where things have names of their own in each fold: it decides where actions part, and a quantity or a verb
# parts them before the name. Where one mistake ends the game at -1, a win must be worth more than stopping halfway.
_NAMED = Training(policy="choose", sft=_elsewhere(4, rename=0.8))
_UNFORGIVING = replace(_NAMED, iterations=12, learning_rate=1e-4, dev_every=6, win_bonus=5.0)
# learning to compare and to calculate takes long, in large batches: for the first 200 steps play does not improve
_NUMBERS = SFTConfig(epochs=40, episodes_per_batch=32, learning_rate=1e-3, rename=0.8)
# learning to copy any word takes many steps and ever new words: train games are all won long before dev games are
_SIMON = replace(_UNFORGIVING, sft=_elsewhere(8, rename=1.0, batch=8, rate=7e-4), iterations=60, dev_every=10)

# preset: (game, parameters, step limit, training). Limits leave room above the teacher's usual length, except for games
# in which one mistake loses: their solutions have no spare step.
_FAMILIES: dict[str, tuple[str, dict[str, int], int, Training]] = {
    "cooking1": (
        "cookingworld",
        {"numLocations": 1, "numIngredients": 2, "numDistractorItems": 2, "includeDoors": 0},
        16,
        Training(sft=SFTConfig(rename=0.8), iterations=20, episodes=128, minibatches=6),
    ),
    "coin": (
        "coin",
        {"numLocations": 5, "numDistractorItems": 0, "includeDoors": 1},
        25,
        # gold walks at random, which cannot be learnt, only memorised; SFT alone learns to play as `explore` does
        Training(teacher="explore", episodes=128, minibatches=6),
    ),
    "twc": (
        "twc",
        {"numLocations": 1, "numItemsToPutAway": 1},
        16,
        # without a slow start, PPO's first steps can cost 15 points, which the later steps do not always win back
        replace(_NAMED, iterations=30, rate_warmup=12),
    ),
    "mapreader": (
        "mapreader",
        {"numLocations": 8, "maxDistanceApart": 3, "maxDistractorItemsPerLocation": 1},
        16,
        # gold knows the way, and its clone reads the map for nothing; PPO costs SFT some points before it adds to them
        Training(teacher="explore", iterations=80, episodes=96, dev_every=10),
    ),
    "arithmetic": ("arithmetic", {}, 8, replace(_UNFORGIVING, sft=_NUMBERS.model_copy(update={"epochs": 20}))),
    "sorting": ("sorting", {}, 15, replace(_UNFORGIVING, sft=_NUMBERS, iterations=20, episodes=96, dev_every=5)),
    "simonsays": ("simonsays", {"gameLength": 5, "numDistractors": 3}, 8, _SIMON),
    "simonsays-memory": (
        "simonsays",
        {"gameLength": 5, "numDistractors": 3, "memorization": 1, "verbose": 0},
        8,
        _SIMON,
    ),
    "peckingorder": ("peckingorder", {}, 12, replace(_UNFORGIVING, sft=_elsewhere(8, rename=1.0))),
}


def _family(name: str) -> Config:
    """As cooking16, shorter, and without replays: the teacher nearly always wins within the limit."""
    game, params, limit, own = _FAMILIES[name]
    return Config(
        preset=name,
        game=GameConfig(name=game, params=params, limit=limit),
        policy=PolicyConfig(kind=own.policy, min_p=0.01),
        demos=DemosConfig(teacher=own.teacher, games=900),
        sft=own.sft,
        ppo=PPOConfig(
            iterations=own.iterations,
            episodes_per_iteration=own.episodes,
            learning_rate=own.learning_rate,
            rate_warmup=own.rate_warmup,
            epochs=1,
            minibatches=own.minibatches,
            warmup_iterations=2,
            dev_every=own.dev_every,
            rename=own.sft.rename,
            gamma=0.96,
            lam=0.8,
            game_baseline=True,
            hidden_state=game == "cookingworld",
            win_bonus=own.win_bonus,
            entropy_coef=0.02,
            kl_coef=0.0,
            target_kl=0.0,
            value_learning_rate=3e-3,
            value_passes=10,
        ),
        eval=EvalConfig(games=200, side_games=0),
    )


# The TextWorldExpress tasks of TALES (Cui et al. 2025; tales/textworld_express/twx_data.py), every parameter as there.
_ONE_ROOM = {"numLocations": 1, "includeDoors": 0, "limitInventorySize": 0}
TALES: dict[str, tuple[str, dict[str, int]]] = {
    "cookingworld": ("cookingworld", {**_ONE_ROOM, "numIngredients": 2, "numDistractorItems": 5}),
    "twc": ("twc", {**_ONE_ROOM, "numItemsToPutAway": 1}),
    "coin": ("coin", {"numLocations": 1, "numDistractorItems": 5, "limitInventorySize": 0}),
    "arithmetic": ("arithmetic", {}),
    "mapreader": (
        "mapreader",
        {
            "numLocations": 2,
            "maxDistanceApart": 1,
            "maxDistractorItemsPerLocation": 2,
            "includeDoors": 0,
            "limitInventorySize": 0,
        },
    ),
    "sorting": ("sorting", {}),
    **{
        f"simonsays-{length}": ("simonsays", {"gameLength": length, "numDistractors": 4, "memorization": 0})
        for length in (10, 50, 100)
    },
    **{
        f"simonsays-memory-{length}{suffix}": (
            "simonsays",
            {"gameLength": length, "numDistractors": 4, "memorization": 1, "verbose": verbose},
        )
        for suffix, verbose in (("", 0), ("-verbose", 1))
        for length in (10, 50, 100)
    },
    "peckingorder": ("peckingorder", {}),
}
TALES_STEPS = 100


def _tales(name: str) -> Config:
    """Measure a model as it is on a TALES task. To train it, raise ppo.iterations, or demos.games and sft.epochs."""
    game, params = TALES[name]
    return Config(
        preset=f"tales-{name}",
        game=GameConfig(name=game, params=params, limit=TALES_STEPS),
        demos=DemosConfig(games=0),
        sft=SFTConfig(epochs=0),
        ppo=PPOConfig(iterations=0, dev_every=0),
        eval=EvalConfig(games=200, side_games=0, restarts=True),
    )


def _named(make: Callable[[str], Config], names: Iterable[str], prefix: str = "") -> dict[str, Callable[[], Config]]:
    return {f"{prefix}{name}": partial(make, name) for name in names}


FAMILY_PRESETS: dict[str, Callable[[], Config]] = _named(_family, _FAMILIES) | _named(_tales, TALES, "tales-")
