"""Prints docs/settings.md: every setting with its meaning, what each preset sets, and the sizes of experiments."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isfunction
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from grue.config.base import is_local, is_section
from grue.config.keys import flat
from grue.config.presets import PRESETS
from grue.config.stages import Config
from grue.experiments.eval_gap import settings as eval_gap
from grue.experiments.second_visit import settings as second_visit

_HEAD = """# Settings

Made by `python -m grue.cli.reference > docs/settings.md`; do not edit it by hand.

Settings are given as `key=value` after a verb (`grue run ppo.iterations=40`), or in a YAML file with `--config`. A run
keeps all of its settings in `config.yaml`. Those marked *local* concern only how this machine does the work: they may
be changed when a run is resumed.
"""


def page() -> str:
    """The whole document."""
    alone = {name: field for name, field in Config.model_fields.items() if not is_section(field)}
    parts = [_HEAD, "## The run as a whole\n", _table("", alone)]
    for name, field in Config.model_fields.items():
        if is_section(field):
            section: Any = field.annotation
            parts += [
                f"## `{name}`\n",
                f"{(section.__doc__ or '').strip()}\n",
                _table(f"{name}.", section.model_fields),
            ]
    parts += ["## What the presets set\n", "Settings that a preset does not name have their default.\n", *_presets()]
    for experiment, sizes in (("eval-gap", eval_gap.Settings), ("second-visit", second_visit.Settings)):
        parts += [
            f"## Sizes of `grue experiment {experiment}`\n",
            f"{sizes.__doc__}\n",
            _table("", sizes.model_fields),
        ]
    return "\n".join(parts)


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        meaning = (field.description or "").replace("|", "\\|") + (" (*local*)" if is_local(field) else "")
        default = _written(field.get_default(call_default_factory=True))
        shown = f"`{default}`" if default else "empty"
        rows.append(f"| `{prefix}{name}` | {shown} | {_values(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _written(value: object) -> str:
    """As it would be written after `key=`."""
    if isinstance(value, dict):
        return ",".join(f"{key}={number}" for key, number in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _values(field: FieldInfo) -> str:
    """The values allowed: the choices, or the kind and range of a number."""
    kinds = _kinds(field.annotation)
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if bool in kinds:
        return "`true`, `false`"
    word = "whole number" if int in kinds else "number" if float in kinds else "text"
    if word == "text" or any(get_origin(kind) is dict for kind in kinds):
        return "text"
    return ", ".join([word, *_bounds(field)])


def _kinds(annotation: Any) -> list[Any]:
    """The alternatives of a union, the elements of a tuple, or the type alone."""
    if get_origin(annotation) in (Union, UnionType, tuple):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [annotation]


def _bounds(field: FieldInfo) -> Iterator[str]:
    for limit in field.metadata:
        if isinstance(limit, annotated_types.Ge):
            yield f"≥ {limit.ge}"
        elif isinstance(limit, annotated_types.Gt):
            yield f"> {limit.gt}"
        elif isinstance(limit, annotated_types.Le):
            yield f"≤ {limit.le}"
        elif isinstance(limit, annotated_types.Lt):
            yield f"< {limit.lt}"


def _presets() -> Iterator[str]:
    defaults = flat(Config())
    for name, make in PRESETS.items():
        config = make()
        changed = {key: value for key, value in flat(config).items() if value != defaults[key] and key != "preset"}
        words = (make.__doc__ or "").strip().splitlines() if isfunction(make) else []
        settings = ", ".join(f"`{key}={_written(value)}`" for key, value in changed.items())
        yield f"**`{name}`** {words[0] if words else ''} {settings}\n".replace("  ", " ")


if __name__ == "__main__":
    print(page(), end="")
