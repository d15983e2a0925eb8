"""A Config as dotted keys (`ppo.clip`) and plain values: to compare two of them, to hash one, to find a setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grue.config.base import is_local, is_section
from grue.config.stages import Config


def flat(config: Config, *, local: bool = True) -> dict[str, Any]:
    """Dotted key -> plain value, without the settings of this machine unless `local`."""
    values: dict[str, Any] = {}
    for key, here in _leaves(Config):
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if local or not here:
            values[key] = list(value) if isinstance(value, tuple) else value
    return values


def differences(stored: Config, wanted: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (stored, wanted) for each setting that differs, settings of this machine left out."""
    old, new = flat(stored, local=False), flat(wanted, local=False)
    return {key: (old[key], new[key]) for key in old if old[key] != new[key]}


def known_keys() -> list[str]:
    """Every setting as a dotted key."""
    return [key for key, _ in _leaves(Config) if key != "preset"]


def declaration(key: str) -> FieldInfo | None:
    """The declaration of a setting or section; None for one that does not exist."""
    model: Any = Config
    field = None
    for part in key.split("."):
        field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        if field is None:
            return None
        model = field.annotation
    return field


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted key, is it a setting of this machine) for every setting below `model`."""
    for name, field in model.model_fields.items():
        if is_section(field):
            section: Any = field.annotation
            yield from _leaves(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", is_local(field)
