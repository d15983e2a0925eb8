"""What a wrong setting was meant to be: pydantic's errors as one message with a hint."""

from __future__ import annotations

import difflib

from pydantic import ValidationError

from grue.config.keys import declaration, known_keys
from grue.config.stages import Config
from grue.errors import ConfigError


def as_config_error(error: ValidationError, given: list[str], where: str, strange: str) -> ConfigError:
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
        own = first["ctx"]["error"]
        message, hint = (own.message, own.hint) if isinstance(own, ConfigError) else (message, "")
        if any(one.rpartition(".")[2] in message for one in given):  # the file alone is not to blame
            place = ""
        return ConfigError(f"{key}{place}: {message}" if key else f"{message}{place}", hint=hint)
    if inside := [known for known in known_keys() if known.startswith(f"{key}.")]:
        names = ", ".join(known.removeprefix(f"{key}.") for known in inside)
        return ConfigError(f"{key}{place} is a section, not a setting", hint=f"settings of {key}: {names}")
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
    sections = f"sections: {', '.join(name for name in Config.model_fields if name != 'preset')}"
    return strange or (sections if section else f"{sections}; a parameter of the game is game.params.{key}")


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
    field = declaration(key)
    if field is None or not field.description:
        return ""
    return f"{key}: {field.description}"  # without a default: the preset may have another
