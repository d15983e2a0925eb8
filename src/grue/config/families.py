"""Presets of the other families of TextWorldExpress, and the tasks of the TALES benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from grue.config.stages import Config, DemosConfig, EvalConfig, GameConfig, PolicyConfig, PPOConfig, SFTConfig

# preset: (game, parameters, step limit). Limits leave room above the teacher's usual length. In simonsays, arithmetic,
# sorting and peckingorder one mistake loses, so their solutions have no spare step.
_FAMILIES: dict[str, tuple[str, dict[str, int], int]] = {
    "cooking1": (
        "cookingworld",
        {"numLocations": 1, "numIngredients": 2, "numDistractorItems": 2, "includeDoors": 0},
        16,
    ),
    "coin": ("coin", {"numLocations": 5, "numDistractorItems": 0, "includeDoors": 1}, 25),
    "twc": ("twc", {"numLocations": 1, "numItemsToPutAway": 2}, 12),
    "mapreader": (
        "mapreader",
        {"numLocations": 8, "maxDistanceApart": 3, "maxDistractorItemsPerLocation": 1},
        16,
    ),
    "arithmetic": ("arithmetic", {}, 8),
    "sorting": ("sorting", {}, 15),
    "simonsays": ("simonsays", {"gameLength": 5, "numDistractors": 3}, 8),
    "simonsays-memory": (
        "simonsays",
        {"gameLength": 5, "numDistractors": 3, "memorization": 1, "verbose": 0},
        8,
    ),
    "peckingorder": ("peckingorder", {}, 12),
}


def _family(name: str) -> Config:
    """As cooking16, shorter, and without replays: the teacher nearly always wins within the limit."""
    game, params, limit = _FAMILIES[name]
    kitchen = game == "cookingworld"
    rename = 0.0 if game in ("coin", "mapreader") else 0.8  # their folds have the same names
    # the base has seen kitchens only: elsewhere it has a language to learn, which its tokenizer cuts into many pieces,
    # so games are fewer. What a random walker does next cannot be learnt twice.
    elsewhere = SFTConfig(epochs=1 if name == "coin" else 4, episodes_per_batch=16, learning_rate=1e-3, rename=rename)
    return Config(
        preset=name,
        game=GameConfig(name=game, params=params, limit=limit),
        policy=PolicyConfig(kind="aligned", min_p=0.01),
        demos=DemosConfig(teacher="gold", games=900 if kitchen else 600),
        sft=SFTConfig(rename=rename) if kitchen else elsewhere,
        ppo=PPOConfig(
            iterations=20 if kitchen else 15,
            episodes_per_iteration=128 if kitchen else 64,
            learning_rate=2e-4,
            epochs=1,
            minibatches=6 if kitchen else 3,
            warmup_iterations=2,
            dev_every=5,
            rename=rename,
            gamma=0.96,
            lam=0.8,
            game_baseline=True,
            hidden_state=kitchen,
            win_bonus=1.0,
            entropy_coef=0.02,
            kl_coef=0.0,
            target_kl=0.1,
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
    """Measure a model as it is on a TALES task: no training, unless sft.epochs and ppo.iterations are raised."""
    game, params = TALES[name]
    return Config(
        preset=f"tales-{name}",
        game=GameConfig(name=game, params=params, limit=TALES_STEPS),
        demos=DemosConfig(games=1, record_limit=TALES_STEPS),
        sft=SFTConfig(epochs=0),
        ppo=PPOConfig(iterations=0),
        eval=EvalConfig(games=200, side_games=0),
    )


def _named(make: Callable[[str], Config], names: Iterable[str], prefix: str = "") -> dict[str, Callable[[], Config]]:
    return {f"{prefix}{name}": partial(make, name) for name in names}


FAMILY_PRESETS: dict[str, Callable[[], Config]] = _named(_family, _FAMILIES) | _named(_tales, TALES, "tales-")
