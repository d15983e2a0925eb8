"""Named configurations. A preset is a function, so it can build on another one; what it does not set is a default."""

from __future__ import annotations

from collections.abc import Callable

from grue.config.families import FAMILY_PRESETS
from grue.config.learning import PPOConfig, SFTConfig
from grue.config.stages import Config, DemosConfig, EvalConfig, GameConfig, ModelConfig, PolicyConfig


def cooking16() -> Config:
    """CookingWorld in three rooms with doors, two ingredients and two distractors, 16 steps."""
    kitchen = {"numLocations": 3, "includeDoors": 1, "numDistractorItems": 2, "numIngredients": 2}
    return Config(
        preset="cooking16",
        game=GameConfig(name="cookingworld", params=kitchen, limit=16),
        # an action that is left out is never tried: with 0.01, PPO grew sure of habits before it had seen better ones
        policy=PolicyConfig(kind="aligned", min_p=0.001),
        # a clone that must guess what the cookbook says stops reading it
        demos=DemosConfig(teacher="gold", games=900, replays=2, omission=0.2, omission_keeps="read"),
        sft=SFTConfig(epochs=1, learning_rate=3e-4, smoothing=0.02, rename=0.8),
        ppo=PPOConfig(
            iterations=80,
            episodes_per_iteration=128,
            learning_rate=2e-4,
            schedule="linear",
            epochs=1,
            minibatches=6,
            warmup_iterations=2,
            dev_every=16,
            dev_games=300,
            rename=0.8,
            gamma=0.96,
            # the baseline knows what a step has changed, so looking far ahead gains little
            lam=0.8,
            game_baseline=True,
            hidden_state=True,
            win_bonus=1.0,
            entropy_coef=0.05,
            kl_coef=0.0,
            target_kl=0.0,
            value_learning_rate=3e-3,
            value_passes=10,
        ),
    )


def smoke() -> Config:
    """The main job cut down to some five minutes: proof that everything works and learns, not a result."""
    full = cooking16()
    return full.model_copy(
        update={
            "preset": "smoke",
            "ppo": full.ppo.model_copy(update={"iterations": 20, "dev_games": 100}),
            "eval": EvalConfig(games=200, side_games=0, bootstrap=500),
        }
    )


def toy() -> Config:
    """The pure Python game, in about a minute: for tests and for reading along."""
    return Config(
        preset="toy",
        game=GameConfig(name="toy", limit=16),
        demos=DemosConfig(games=64),
        ppo=PPOConfig(
            iterations=3,
            episodes_per_iteration=16,
            slots=16,
            warmup_iterations=1,
            dev_every=2,
            dev_games=16,
            minibatches=2,
        ),
        eval=EvalConfig(games=32, slots=32, bootstrap=200),
    )


def other() -> Config:
    """A game that the base has never read, chosen with game.name: longer SFT, and PPO in small steps."""
    return Config(
        preset="other",
        game=GameConfig(name="toy", limit=30),
        policy=PolicyConfig(kind="aligned", min_p=0.01),
        demos=DemosConfig(teacher="gold", games=300),
        # many steps of small batches: what is missing in the end is the last hundredths of accuracy
        sft=SFTConfig(epochs=12, episodes_per_batch=8, learning_rate=1e-3),
        ppo=PPOConfig(
            iterations=20,
            episodes_per_iteration=128,
            # engines of this kind are slow, and their processes take 100 MB each
            slots=16,
            learning_rate=1e-4,
            rate_warmup=12,
            entropy_coef=0.02,
            epochs=1,
            minibatches=6,
            warmup_iterations=2,
            dev_every=5,
            dev_games=100,
            game_baseline=True,
            win_bonus=1.0,
            kl_coef=0.0,
            target_kl=0.0,
            value_learning_rate=3e-3,
            value_passes=10,
        ),
        eval=EvalConfig(games=100, side_games=0, slots=16),
    )


def textworld_cooking() -> Config:
    """TextWorld's cooking games in one room, two ingredients to be found, cut and cooked; needs the extra textworld."""
    kitchen = {"recipe": 2, "take": 2, "open": 1, "cook": 1, "cut": 1}
    full = other()
    return full.model_copy(
        update={
            "preset": "textworld-cooking",
            "game": GameConfig(name="textworld-cooking", params=kitchen, limit=25),
            "policy": PolicyConfig(kind="aligned", min_p=0.001),
            "demos": DemosConfig(teacher="gold", games=900),
            # with their own names, foods of the train games are learnt by heart, and dev games have others
            "sft": full.sft.model_copy(update={"epochs": 8, "rename": 0.8}),
            "ppo": full.ppo.model_copy(update={"entropy_coef": 0.05, "rename": 0.8}),
        }
    )


def twc_lora() -> Config:
    """`twc` for a downloaded model: what SmolLM2 (135 M parameters) learnt it with, and more dev games to choose by."""
    full = FAMILY_PRESETS["twc"]()
    ppo = {"iterations": 32, "episodes_per_iteration": 32, "minibatches": 2, "slots": 32, "dev_every": 8}
    return full.model_copy(
        update={
            "preset": "twc-lora",
            # a tokenizer that was not made for these games needs several times as many tokens
            "model": ModelConfig(adapter="lora", context=2048),
            "demos": DemosConfig(teacher="gold", games=200),
            # it knows what the things are that other names would make strange to it
            "sft": full.sft.model_copy(update={"epochs": 2, "episodes_per_batch": 8, "rename": 0.0}),
            "ppo": full.ppo.model_copy(update={**ppo, "dev_games": 100, "rename": 0.0}),
            "eval": EvalConfig(games=200, side_games=0, slots=32),
        }
    )


def kitchen_lora() -> Config:
    """CookingWorld in one room for a downloaded model: SmolLM2 surpassed its teacher with each of three seeds."""
    kitchen = {"numLocations": 1, "includeDoors": 0, "numDistractorItems": 1, "numIngredients": 2}
    full = twc_lora()
    # a mistake ends these games, and the policy learns to avoid it sooner if the baseline is told of a lost chance
    ppo = {
        "iterations": 36,
        "learning_rate": 4e-4,
        "minibatches": 4,
        "hidden_state": True,
        "dev_every": 12,
        "dev_games": 200,
    }
    return full.model_copy(
        update={
            "preset": "kitchen-lora",
            "game": GameConfig(name="cookingworld", params=kitchen, limit=13),
            "ppo": full.ppo.model_copy(update=ppo),
        }
    )


PRESETS: dict[str, Callable[[], Config]] = {
    "cooking16": cooking16,
    "smoke": smoke,
    "toy": toy,
    "other": other,
    **FAMILY_PRESETS,
    "textworld-cooking": textworld_cooking,
    "twc-lora": twc_lora,
    "kitchen-lora": kitchen_lora,
}


def preset_for(game: str) -> str:
    """The preset that a run on `game` starts from when none is named: the first one for the game, or `other`."""
    return next((name for name, make in PRESETS.items() if make().game.name == game), "other")
