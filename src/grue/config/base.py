"""What all groups of settings are: frozen, and strict about what they take."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

# A setting of this machine, which changes rounding at most, and the draws of a dropout: it may change when a run is
# resumed, and is not hashed.
LOCAL: dict[str, Any] = {"local": True}


def parts(value: Any) -> Any:
    """`value`; of a text, on the command line or in a file, the parts between its commas."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.strip("[]()").split(",") if part.strip())


class Stage(BaseModel):
    """A group of settings: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_switches_as_numbers(cls, data: Any) -> Any:
        # Left alone, `iterations: yes` in a file would quietly mean one iteration.
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and field.annotation in (int, float, float | None):
                raise ValueError(f"{key} is a number, not a switch ({value})")
            numbers = field is not None and field.annotation == dict[str, int] and isinstance(value, dict)
            for name, inner in value.items() if numbers else ():
                if isinstance(inner, bool):
                    raise ValueError(f"{key}.{name} is a number, not a switch ({inner})")
        return data
