"""Which settings of a run may still change: not those of stages that have begun, or of games that were paid for."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from grue.config import PRESETS, Config, differences
from grue.errors import ConfigError
from grue.storage.left import STAGES

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


def check_settled(out: Path, stored: Config, asked: Config, begun: Collection[str]) -> None:
    """ConfigError if `asked` differs from what the run in `out` has used in its stages so far, `begun`."""
    changed = differences(stored, asked)
    paid = {key for key in changed if key.partition(".")[0] in ("game", "seed")}
    if paid and any((out / "api").glob("*.jsonl")):
        raise ConfigError(
            f"{out} holds games of a chat model, which were played with another {min(paid)}",
            hint="another --out starts over; they were paid for, so --again does not delete them",
        )
    settled = {
        key: values
        for key, values in changed.items()
        if _has_begun(key.partition(".")[0], begun) and not (key == "model.name" and _has_moved(*values))
    }
    if not settled:
        return
    settled.pop("preset", None)
    listing = ", ".join(f"{key} ({old} there, {new} now)" for key, (old, new) in [*settled.items()][:_LISTED])
    listing += f" and {len(settled) - _LISTED} more" if len(settled) > _LISTED else ""
    if stored.preset != asked.preset:
        raise ConfigError(
            f"{out} was begun with preset {stored.preset}, not {asked.preset}: {listing}",
            hint=f"grue run --out {out} goes on with what is there; another --out starts over",
        )
    raise SettledError(
        f"{out} was begun with other settings: {listing}",
        hint="the old settings go on with it, another --out starts over, and grue "
        f"{_changed_from(settled)} {out} --again with these settings deletes what that stage and all "
        "later ones left there, and repeats it",
    )


def _changed_from(changed: Collection[str]) -> str:
    """The first stage that these settings change."""
    sections = {key.partition(".")[0] for key in changed}
    return next((name for name in STAGES if name in sections), "demos") if sections <= {*STAGES} else "demos"


def _has_begun(section: str, begun: Collection[str]) -> bool:
    """Has the stage of these settings begun, or one that builds on it? For settings of all stages: has any?"""
    later = STAGES[STAGES.index(section) :] if section in STAGES else STAGES
    return any(stage in begun for stage in later)


def _has_moved(old: str, new: str) -> bool:
    """Is a model's folder gone, and another given in its place? Recorded facts tell whether the models differ."""
    return Path(old).is_absolute() and not Path(old).exists() and Path(new).is_dir()
