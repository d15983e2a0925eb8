"""Which settings of a run may still change: not those of stages that have begun, or of games that were paid for."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import orjson

from grue.config import PRESETS, Config, flat
from grue.errors import ConfigError
from grue.names import STAGES, SWITCHES
from grue.storage.contents import read_json

SETTINGS = "settings.json"  # what `used_settings` gave when a stage last began
Changes = dict[str, tuple[Any, Any]]  # dotted key -> (the value that was used, the new one)
_LISTED = 8  # how many of the differing settings are listed


class SettledError(ConfigError):
    """A command asks for other settings than those that a run has used."""


def default_out(config: Config) -> Path:
    """A run's default folder, named after its preset, its game if that is not the preset's, and its seed."""
    name, game = config.preset, config.game.name
    if name in PRESETS and PRESETS[name]().game.name != game:
        kind, _, file = game.partition(":")
        name = f"{name}-{kind}-{Path(file).stem}" if file else f"{name}-{kind}"
    return Path("runs") / f"{name}-seed{config.seed}"


def used_settings(config: Config) -> dict[str, Any]:
    """Dotted key -> value, as it is once read from JSON, of the settings that can change results."""
    text = json.dumps(flat(config, local=False))  # orjson would not write an integer of more than 64 bits
    values: dict[str, Any] = orjson.loads(text)
    return values


def check_settled(out: Path, stored: Config, asked: Config, begun: Collection[str]) -> None:
    """ConfigError if `asked` differs from what the run in `out` has used in its stages so far, `begun`.

    `stored`, of config.yaml, may have been edited since: it counts only where settings.json says nothing.
    """
    in_file, now = used_settings(stored), used_settings(asked)
    used = in_file | (read_json(out / SETTINGS) or {})
    changed = _changes(used, now)
    paid = {key for key in changed if key.partition(".")[0] in ("game", "seed")}
    if paid and any((out / "api").glob("*.jsonl")):
        raise ConfigError(
            f"{out} holds games of a chat model, which were played with another {min(paid)}",
            hint="another --out starts over; they were paid for, so --again does not delete them",
        )
    settled = _settled(changed, begun)
    if not settled:
        return
    is_other_preset = "preset" in settled and in_file["preset"] != now["preset"]
    if is_other_preset:
        del settled["preset"]
    listing = _listing(settled)
    if is_other_preset:
        raise ConfigError(
            f"{out} was begun with preset {used['preset']}, not {now['preset']}: {listing}",
            hint=f"grue run --out {out} goes on with what is there; another --out starts over",
        )
    is_edited = any(in_file[key] != used[key] for key in settled)
    put_back = f", put back into {out / 'config.yaml'}," if is_edited else ""
    raise SettledError(
        f"{out} was begun with other settings: {listing}",
        hint=f"the old settings{put_back} go on with it, another --out starts over, and grue "
        f"{_to_repeat(settled)} {out} --again with these settings deletes what that stage and all "
        "later ones left there, and repeats it",
    )


def _to_repeat(changed: Changes) -> str:
    """The first stage that these settings change; of one that is left out now, the stage before it."""
    sections = {key.partition(".")[0] for key in changed}
    first = next((name for name in STAGES if name in sections), "demos") if sections <= {*STAGES} else "demos"
    left_out = first == "dagger" and changed.get("dagger.rounds", (0, 1))[1] == 0
    return "sft" if left_out else first


def check_unedited(out: Path, config: Config, begun: Collection[str]) -> None:
    """ConfigError if `config`, of config.yaml, says other things than what the stages so far, `begun`, have used."""
    if edited := edits(read_json(out / SETTINGS) or {}, config, begun):
        raise ConfigError(
            f"{out / 'config.yaml'} was edited after the run had used it: {edited}",
            hint="put the old values back; a run's results are those of the settings that made them",
        )


def edits(used: Mapping[str, Any], config: Config, begun: Collection[str]) -> str:
    """What `config`, of config.yaml, says otherwise than `used`, of settings.json, for the stages so far, `begun`.

    "" if nothing.
    """
    now = used_settings(config)
    return _listing(_settled(_changes({**now, **used}, now), begun))


def adopted(before: Config, asked: Config) -> str:
    """What `asked`, which `check_settled` allows, changes in a run's settings; "" if nothing."""
    return _listing(_changes(used_settings(before), used_settings(asked)))


def _changes(used: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """The settings that differ; those of a stage that is left out, then and now, have no effect."""
    switches = {stage: f"{stage}.{setting}" for stage, setting in SWITCHES.items()}
    skipped = {stage for stage, key in switches.items() if used[key] == now[key] == 0}
    return {
        key: (used[key], value)
        for key, value in now.items()
        if used[key] != value and key.partition(".")[0] not in skipped
    }


def _settled(changed: Changes, begun: Collection[str]) -> Changes:
    """Those of the changes that the stages `begun` no longer allow."""
    return {
        key: values
        for key, values in changed.items()
        if _has_begun(key.partition(".")[0], begun) and not _is_same_model(key, *values)
    }


def _listing(changed: Changes) -> str:
    listing = ", ".join(
        f"{key} ({_said(old)} there, {_said(new)} now)" for key, (old, new) in [*changed.items()][:_LISTED]
    )
    return listing + (f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else "")


def _said(value: Any) -> Any:
    return "nothing" if value == "" else value


def _has_begun(section: str, begun: Collection[str]) -> bool:
    """Has the stage of these settings begun, or one that builds on it? For settings of all stages: has any?"""
    later = STAGES[STAGES.index(section) :] if section in STAGES else STAGES
    return any(stage in begun for stage in later)


def _is_same_model(key: str, old: Any, new: Any) -> bool:
    """May it be the same model, at a new place or with its commit named? Recorded facts tell whether it is."""
    return (key == "model.name" and _has_moved(str(old), str(new))) or (key == "model.revision" and old is None)


def _has_moved(old: str, new: str) -> bool:
    """Is a model's folder gone, and another given in its place? Recorded facts tell whether the models differ."""
    try:
        return Path(old).is_absolute() and not Path(old).exists() and Path(new).is_dir()
    except OSError:  # it cannot be looked for, so it may be there
        return False
