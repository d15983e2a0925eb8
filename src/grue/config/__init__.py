"""The settings of a run: `stages` holds them, `presets` names some, `load` builds them for
a command, `keys` compares them.

Values come from these sources, later ones win: the defaults, a preset, a YAML file, `key=value`, `--seed`. An unknown
key is an error that names the nearest known one. What a run stores is the whole Config, every value filled in.
"""

from grue.config.idle import idle_settings
from grue.config.keys import differences, flat, known_keys
from grue.config.learning import DaggerConfig, ImitationConfig, LearningConfig, PPOConfig, SFTConfig
from grue.config.load import load_config, override, preset_config, read_config
from grue.config.presets import PRESETS
from grue.config.stages import (
    Config,
    DemosConfig,
    EvalConfig,
    GameConfig,
    ModelConfig,
    PolicyConfig,
)
from grue.config.yaml_file import dump_config

__all__ = [
    "PRESETS",
    "Config",
    "DaggerConfig",
    "DemosConfig",
    "EvalConfig",
    "GameConfig",
    "ImitationConfig",
    "LearningConfig",
    "ModelConfig",
    "PPOConfig",
    "PolicyConfig",
    "SFTConfig",
    "differences",
    "dump_config",
    "flat",
    "idle_settings",
    "known_keys",
    "load_config",
    "override",
    "preset_config",
    "read_config",
]
