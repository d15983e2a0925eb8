"""Reading a Config from a preset, a YAML file and `key=value` texts, and writing it back.

YAML is read by a safe loader that also refuses duplicate keys and anchors; no value can name code to run.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from grue import __version__
from grue.config.base import is_local, is_section
from grue.config.presets import PRESETS, preset_for
from grue.config.stages import Config
from grue.errors import ConfigError

DEFAULT_GAME = "cookingworld"
MAX_CONFIG_BYTES = 1_000_000
_ALWAYS_STORED = ("preset", "game", "model", "policy", "demos", "sft", "ppo", "eval")  # the others were added later
# what a preset sets for its own game and another game may not support
_OF_ONE_GAME = (("game", "params"), ("sft", "rename"), ("dagger", "rename"), ("ppo", "rename"), ("ppo", "hidden_state"))


def load_config(
    preset: str | None = None, overrides: Iterable[str] = (), file: Path | None = None, seed: int | None = None
) -> Config:
    """The configuration of a new run. `preset` defaults to the one that `file` names, or else to one for the game."""
    layer = {} if file is None else _read_yaml(file)
    named = layer.get("preset")
    if preset is not None and named is not None and preset != named:
        raise ConfigError(f"{file} uses preset {named}, not {preset}", hint="leave the preset out")
    overrides, section = list(overrides), layer.get("game")
    in_file = section.get("name") if isinstance(section, dict) else None
    in_settings = [value for key, value in map(_parse, overrides) if key == "game.name"]
    game = str((in_settings or [in_file or DEFAULT_GAME])[-1])
    _check_seed(overrides, seed)
    data = preset_config(str(preset or named or preset_for(game))).model_dump(exclude_unset=True)
    _drop_settings_of_another_game(data, in_file)
    model = layer.get("model")
    if isinstance(model, dict) and "name" in model:
        layer = layer | {"model": model | {"name": _placed(model["name"])}}
    _merge(data, layer)
    return _build(data, overrides, seed, where="" if file is None else f" in {file}")


def override(config: Config, overrides: Iterable[str] = (), seed: int | None = None) -> Config:
    """`config` with some settings changed by `key=value` texts."""
    overrides = list(overrides)
    _check_seed(overrides, seed)
    return _build(config.model_dump(), overrides, seed)


def read_config(file: Path) -> Config:
    """The configuration that `dump_config` stored in `file`: nothing comes from a preset, which may have changed since.

    A file that was cut off is refused: its missing settings would be the defaults, of another game perhaps.
    """
    data = _read_yaml(file)
    lost = [name for name in _ALWAYS_STORED if not data.get(name)]
    if lost:
        raise ConfigError(
            f"{file} has no {lost[0]}: was it cut off?", hint="put it back as it was: it holds every setting of the run"
        )
    ppo = data.get("ppo")
    # a setting that no longer exists, in the file of an older run that did not use it
    if isinstance(ppo, dict) and ppo.get("imitation_coef") == 0:
        del ppo["imitation_coef"]
    newer = f"was it written by a newer grue? this is {__version__}"
    return _build(data, (), None, where=f" in {file}", strange=newer)


def preset_config(name: str) -> Config:
    """The preset called `name`."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        raise ConfigError(
            f"there is no preset {name!r}",
            hint=f"did you mean {near[0]}?" if near else f"presets: {', '.join(PRESETS)}",
        )
    return PRESETS[name]()


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


def config_hash(config: Config) -> str:
    """16 hex digits that are equal exactly when every setting that can change a result is equal."""
    text = json.dumps(flat(config, local=False), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(stored: Config, wanted: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (stored, wanted) for each setting that differs, settings of this machine left out."""
    old, new = flat(stored, local=False), flat(wanted, local=False)
    return {key: (old[key], new[key]) for key in old if old[key] != new[key]}


def known_keys() -> list[str]:
    """Every setting as a dotted key."""
    return [key for key, _ in _leaves(Config) if key != "preset"]


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted key, is it a setting of this machine) for every setting below `model`."""
    for name, field in model.model_fields.items():
        if is_section(field):
            section: Any = field.annotation
            yield from _leaves(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", is_local(field)


def _line(key: str, value: Any, field: Any, indent: int) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(
        {key: plain}, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    ).strip()
    return f"{' ' * indent}{text[1:-1]}  # {field.description}"


def _build(
    data: dict[str, Any], overrides: Iterable[str], seed: int | None, *, where: str = "", strange: str = ""
) -> Config:
    """Lay overrides over `data` and validate. `where` says, in errors, where `data` came from.

    `strange` is the hint for an unknown setting that resembles no other; by default the names of the sections.
    """
    settings = [_parse(text) for text in overrides]
    if any(key == "preset" for key, _ in settings):
        raise ConfigError("preset is not a setting", hint="name the preset itself: grue run smoke")
    # The game comes first, so that parameters given beside it stay.
    for key, value in sorted(settings, key=lambda setting: setting[0] != "game.name"):
        _put(data, key, _placed(value) if key == "model.name" else value)
    if seed is not None:
        data["seed"] = seed
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise _explain(error, [key for key, _ in settings], where, strange) from None


def _check_seed(overrides: Iterable[str], seed: int | None) -> None:
    """ConfigError where a command gives two seeds."""
    for key, value in map(_parse, overrides):
        if key == "seed" and seed is not None and str(value) != str(seed):
            raise ConfigError(f"two seeds are given: seed={value} and --seed {seed}", hint="leave out one")


def _placed(name: Any) -> Any:
    """A model's folder as an absolute path, since a run may be resumed, and its adapter loaded, from elsewhere."""
    path = Path(os.path.expanduser(name)) if isinstance(name, str) and name else None  # noqa: PTH111  Path's own one can fail
    return str(path.absolute()) if path and path.is_dir() else name


def _merge(data: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lay `layer` over `data`, in place, key by key."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        else:
            data[key] = value


def _drop_settings_of_another_game(data: dict[str, Any], name: Any) -> None:
    """When another game is named, drop what `data` holds for its own: parameters, and what not all games support."""
    game = data.get("game")
    if isinstance(game, dict) and name is not None and game.get("name") != name:
        for section, key in _OF_ONE_GAME:
            if isinstance(data.get(section), dict):
                data[section].pop(key, None)


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key of nested `data`, in place."""
    if key == "game.name":
        _drop_settings_of_another_game(data, value)
    *path, leaf = key.split(".")
    for part in path:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[leaf] = value


def _parse(text: str) -> tuple[str, Any]:
    """`key=value` -> (dotted key, value in a form from which the setting's type can be made)."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{text!r} is not of the form key=value", hint="for example ppo.iterations=40")
    field = _field(key)
    return key, _typed(field.annotation, value.strip()) if field else value


def _field(key: str) -> FieldInfo | None:
    """The declaration of a setting or section; None for one that does not exist."""
    model: Any = Config
    field = None
    for part in key.split("."):
        field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        if field is None:
            return None
        model = field.annotation
    return field


def _typed(annotation: Any, text: str) -> Any:
    if NoneType in get_args(annotation) and text in ("", "null"):
        return None
    if get_origin(annotation) is dict:
        values: dict[str, Any] = {}
        for key, value in (_parse(part) for part in text.strip("{}").split(",") if part.strip()):
            if key in values:
                raise ConfigError(f"{key!r} is given twice in {text}", hint="leave out one")
            values[key] = value
        return values
    return text  # pydantic reads numbers and switches from text, `stages` lists


def _explain(error: ValidationError, given: list[str], where: str, strange: str) -> ConfigError:
    """The first error, as what, where, value and hint."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if isinstance(part, str))  # without the index in a list
    place = "" if key in given else where
    if first["type"] == "extra_forbidden":
        if "." in str(first["loc"][-1]):
            section, _, name = key.partition(".")
            return ConfigError(
                f"unknown setting {key}{place}", hint=f"write {section}: and, indented under it, {name}:"
            )
        # A section that does not exist is reported as the setting that was meant to be in it.
        key = next((one for one in given if one.startswith(key + ".")), key)
        return ConfigError(f"unknown setting {key}{place}", hint=_nearest(key, strange))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":  # one of our own, whose text has the settings and values
        return ConfigError(f"{key}{place}: {message}" if key else f"{message}{place}")
    value = repr(first["input"])
    value = value if len(value) <= 60 else value[:57] + "..."
    return ConfigError(f"{key}={value}{place}: {message[:1].lower()}{message[1:]}", hint=_meaning(key))


def _nearest(key: str, strange: str) -> str:
    """What may have been meant; `strange` or the sections where nothing resembles it."""
    keys = known_keys()
    same_leaf = [known for known in keys if known.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same_leaf or _short_for(key, keys) or difflib.get_close_matches(key, keys, n=1, cutoff=0.7)
    section = key.rpartition(".")[0]
    beside = [known for known in keys if section and known.startswith(f"{section}.")]
    near = near or _near_leaf(key, beside or keys)
    if near:
        return f"did you mean {' or '.join(near[:3])}?"
    if beside and not strange:
        return f"settings of {section}: {', '.join(known.removeprefix(f'{section}.') for known in beside)}"
    return strange or f"sections: {', '.join(name for name in Config.model_fields if name != 'preset')}"


def _short_for(key: str, keys: list[str]) -> list[str]:
    """Settings of the same section whose words begin with the letters of `key`: lr, bs, gae."""
    section, _, short = key.rpartition(".")
    names = [known for known in keys if known.rpartition(".")[0] == section]
    initials = {known: "".join(word[0] for word in known.rpartition(".")[2].split("_")) for known in names}
    return [known for known in names if len(short) > 1 and initials[known] == short]


def _near_leaf(key: str, keys: list[str]) -> list[str]:
    leaves = {known.rpartition(".")[2]: known for known in keys}
    return [leaves[leaf] for leaf in difflib.get_close_matches(key.rpartition(".")[2], leaves, n=1)]


def _meaning(key: str) -> str:
    field = _field(key)
    if field is None or not field.description:
        return ""
    return f"{key}: {field.description} (default {field.get_default(call_default_factory=True)})"


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
        for key, (key_node, _) in zip(keys, node.value, strict=True):
            if not isinstance(key, str):
                raise yaml.YAMLError(f"key {key!r} is not a name (line {key_node.start_mark.line + 1})")
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"key {key!r} is given twice (line {key_node.start_mark.line + 1})")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} has more than {MAX_CONFIG_BYTES} bytes, too many for a configuration")
        loader = _Loader(file.read_text(encoding="utf-8"))
        try:
            data = loader.get_single_data()
        finally:
            loader.dispose()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", hint="check the path after --config") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{file} is not a YAML file of settings: {' '.join(str(error).split())}",
            hint="fix that line, or restore the file as the run wrote it; otherwise start over in another folder",
        ) from error
    if not isinstance(data or {}, dict):
        raise ConfigError(f"{file} holds {type(data).__name__}, not sections of settings")
    return data or {}
