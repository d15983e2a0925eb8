"""The run that an experiment examines."""

from __future__ import annotations

from pathlib import Path

from grue.config import Config
from grue.errors import ConfigError
from grue.storage.contents import read_run_config


def examined_config(folder: Path, policy: str) -> Config:
    """The configuration of a run. ConfigError if it does not train `policy`."""
    config = read_run_config(folder)
    left = ["base", *(stage for stage, length in config.lengths.items() if length)]
    if policy not in left:
        raise ConfigError(
            f"{folder} has no {policy} weights: its settings skip that stage",
            hint=f"policy={' or policy='.join(left)}",
        )
    return config
