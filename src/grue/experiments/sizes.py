"""Sizes of an experiment, given as `key=value`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from grue.config.base import Section
from grue.errors import ConfigError

S = TypeVar("S", bound=Section)


def read_sizes(kind: type[S], texts: Sequence[str]) -> S:
    """An experiment's settings from `key=value` texts. ConfigError names an unknown key or a value out of range."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key.strip() not in kind.model_fields:
            known = ", ".join(kind.model_fields)
            raise ConfigError(f"{text!r} is not a setting of this experiment", hint=f"settings: {known}")
        given[key.strip()] = value.strip()
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        hint = f"{key}: {kind.model_fields[key].description}"
        raise ConfigError(f"{key}={first['input']}: {first['msg'].lower()}", hint=hint) from error
