"""Building a Config from a preset, a YAML file and `key=value` texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from grue.config.base import is_section
from grue.config.keys import declaration
from grue.config.mistakes import as_config_error
from grue.config.presets import PRESETS, preset_for
from grue.config.stages import Config
from grue.config.yaml_file import read_yaml
from grue.errors import ConfigError, did_you_mean
from grue.version import __version__

DEFAULT_GAME = "cookingworld"
_ALWAYS_STORED = ("preset", "game", "model", "policy", "demos", "sft", "dagger", "ppo", "eval")
_GONE = (("ppo", "plays_kept", 0),)  # settings of older versions, with the value that did nothing
# what a preset sets for its own game and another game may not support
_OF_ONE_GAME = (("game", "params"), ("sft", "rename"), ("dagger", "rename"), ("ppo", "rename"), ("ppo", "hidden_state"))


def load_config(
    preset: str | None = None, overrides: Iterable[str] = (), file: Path | None = None, seed: int | None = None
) -> Config:
    """The configuration of a new run. `preset` defaults to the one that `file` names, or else to one for the game."""
    if isinstance(overrides, str):
        raise ConfigError(f"settings={overrides!r} is one text, not a list", hint=f"[{overrides!r}]")
    layer = {} if file is None else read_yaml(file)
    named = layer.get("preset")
    if preset is not None and named is not None and preset != named:
        raise ConfigError(f"{file} uses preset {named}, not {preset}", hint="leave the preset out")
    overrides, section = list(overrides), layer.get("game")
    in_file = section.get("name") if isinstance(section, dict) else None
    in_settings = [value for key, value in map(_parse, overrides) if key == "game.name"]
    game = str((in_settings or [in_file or DEFAULT_GAME])[-1])
    _check_seed(overrides, seed)
    chosen = next((name for name in (preset, named) if name is not None), preset_for(game))  # "" is no preset
    data = preset_config(str(chosen)).model_dump(exclude_unset=True)
    _drop_settings_of_another_game(data, in_file)
    if isinstance(section, dict) and "params" in section:
        layer = layer | {"game": section | {"params": _params(section["params"])}}
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
    data = read_yaml(file)
    lost = [name for name in _ALWAYS_STORED if not data.get(name)]
    if lost:
        raise ConfigError(
            f"{file} has no {lost[0]}: was it cut off?", hint="put it back as it was: it holds every setting of the run"
        )
    for section, name, nothing in _GONE:
        if isinstance(data.get(section), dict) and data[section].get(name) == nothing:
            del data[section][name]
    other = f"was it written by another version of grue? this is {__version__}"
    return _build(data, (), None, where=f" in {file}", strange=other)


def preset_config(name: str) -> Config:
    """The preset called `name`."""
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}", hint=did_you_mean(name, PRESETS))
    return PRESETS[name]()


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
        raise as_config_error(error, [key for key, _ in settings], where, strange) from None


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
    """Lay `layer` over `data`, in place, setting by setting: the parameters of a game are one setting."""
    for key, value in layer.items():
        field = declaration(str(key))
        if field is not None and is_section(field) and isinstance(value, Mapping) and isinstance(data.get(key), dict):
            data[key] |= value
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
    field = declaration(key)
    return key, _typed(field.annotation, value.strip()) if field else value


def _typed(annotation: Any, text: str) -> Any:
    if NoneType in get_args(annotation) and text in ("", "null"):
        return None
    if get_origin(annotation) is dict:
        return _params(text)
    return text  # pydantic reads numbers and switches from text, `stages` lists


def _params(value: Any) -> Any:
    """The parameters of a game, a=1,b=2, as a dictionary; anything but text as it is."""
    if not isinstance(value, str):
        return value
    values: dict[str, str] = {}
    for part in filter(str.strip, value.strip("{} ").split(",")):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise ConfigError(f"{part.strip()!r} is not of the form name=value", hint="for example numLocations=3")
        if name in values:
            raise ConfigError(f"{name!r} is given twice in {value}", hint="leave out one")
        values[name] = number
    return values
