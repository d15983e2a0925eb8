"""Files of settings. A safe loader, which also refuses duplicate keys and anchors; no value can name code to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from grue.config.stages import Config
from grue.errors import ConfigError

MAX_CONFIG_BYTES = 1_000_000


def dump_config(config: Config) -> str:
    """YAML with every value filled in, each followed by its meaning; `read_config` gives the Config back."""
    lines: list[str] = []
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            lines += ["", f"{name}:  # {(type(value).__doc__ or '').strip()}"]
            lines += [_line(key, getattr(value, key), inner, 2) for key, inner in type(value).model_fields.items()]
        else:
            lines.append(_line(name, value, field, 0))
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, field: Any, indent: int) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(
        {key: plain}, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    ).strip()
    return f"{' ' * indent}{text[1:-1]}  # {field.description}"


class _Loader(yaml.SafeLoader):
    """The safe loader, without duplicate keys and without anchors (which can make a small file huge).

    It also does not read 010 as 8 and 1:30 as 90, as YAML 1.1 does.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  as in its base class
        letter: [
            (tag, re.compile(r"[-+]?(0|[1-9][0-9]*)$") if tag.endswith(":int") else pattern)
            for tag, pattern in resolvers
        ]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("anchors and aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, (key, (key_node, _)) in enumerate(zip(keys, node.value, strict=True)):
            if not isinstance(key, str):
                raise yaml.YAMLError(f"key {key!r} is not a name (line {key_node.start_mark.line + 1})")
            if key in keys[:place]:
                raise yaml.YAMLError(f"key {key!r} is given twice (line {key_node.start_mark.line + 1})")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def read_yaml(file: Path) -> dict[str, Any]:
    """The settings in a file. ConfigError for a file that cannot be read or holds none."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", hint="check the path after --config") from error
    return settings_in(data, str(file))


def settings_in(data: bytes, name: str) -> dict[str, Any]:
    """The settings in what the file `name` holds. ConfigError if there are none."""
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{name} has more than {MAX_CONFIG_BYTES} bytes, too many for a configuration")
    try:
        loader = _Loader(data.decode())
        try:
            found = loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        restore = ", or restore the file as the run wrote it" if name.endswith("config.yaml") else ""
        raise ConfigError(
            f"{name} is not a YAML file of settings: {_briefly(error)}", hint=f"fix that line{restore}"
        ) from error
    if not isinstance(found or {}, dict):
        raise ConfigError(
            f"{name} holds {type(found).__name__}, not sections of settings",
            hint="write it as the config.yaml of a run is written: ppo:, and below it, indented, iterations: 40",
        )
    return found or {}


def _briefly(error: Exception) -> str:
    """What is wrong and in which line, without the excerpts that YAML's errors show below each other."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"{getattr(error, 'problem', None) or 'it cannot be read'} (line {mark.line + 1})"
