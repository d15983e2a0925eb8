"""What all groups of settings have in common: they are frozen, and strict about what they accept."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

# Marks a setting of this machine. It changes at most rounding and the draws of a dropout, so it may change when a run
# is resumed.
LOCAL: dict[str, Any] = {"local": True}


def is_local(field: FieldInfo) -> bool:
    """Is it declared as a setting of this machine?"""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("local"))


def is_section(field: FieldInfo) -> bool:
    """Is it a group of settings, and not one of them?"""
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def parts(value: Any) -> Any:
    """`value` itself; a text, from the command line or a file, is split at its commas."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.strip("[]()").split(",") if part.strip())


class Section(BaseModel):
    """A group of settings: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_switches_as_numbers(cls, data: Any) -> Any:
        # Otherwise `iterations: yes` in a file would silently mean one iteration.
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and field.annotation in (int, float, float | None):
                raise ValueError(f"{key} is a number, not a switch ({value})")
            numbers = field is not None and field.annotation == dict[str, int] and isinstance(value, dict)
            for name, inner in value.items() if numbers else ():
                if isinstance(inner, bool):
                    raise ValueError(f"{key}.{name} is a number, not a switch ({inner})")
        return data
