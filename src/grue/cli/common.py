"""What the verbs share: their options, and the configuration and run directory that their arguments refer to."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grue.errors import ConfigError, GrueError

if TYPE_CHECKING:
    from grue.config import Config

PresetAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PRESET|RUN|KEY=VALUE",
        help="a preset of the list below, default: cooking16; or a run to continue; settings such as ppo.iterations=40",
    ),
]
RunAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="a run directory, default: runs/cooking16-seed0, or as given by --preset and --seed; settings such as "
        "ppo.iterations=40",
    ),
]
RunFolder = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="a run directory; default: the one in runs/ that was last written to"),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML file of settings")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="run directory; default: runs/PRESET-seedN")]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="seed of all random choices in training; default: 0, or the run's own"),
]
PresetName = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="preset of a new run, as grue run --help lists; default: cooking16"),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="repeat a finished stage; its results and those of all later stages are deleted first"
    ),
]
ProcessCount = Annotated[
    int,
    typer.Option(
        "--processes",
        min=1,
        max=1024,
        metavar="N",
        help="work on the run in N processes on this machine; without a GPU we advise at most one per core",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout, messages on stderr")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="show only warnings and errors")]


class UsageError(Exception):
    """A GrueError caused by the arguments: exit code 2."""

    def __init__(self, error: GrueError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def reading_arguments() -> Iterator[None]:
    """Errors inside are blamed on the command line."""
    try:
        yield
    except GrueError as error:
        raise UsageError(error) from error


def split(arguments: Iterable[str] | None, what: str) -> tuple[str | None, list[str]]:
    """(the one argument that is not a setting, the settings). `what` names that argument in errors."""
    from grue.config import PRESETS

    names, settings = split_many(arguments)
    if len(names) > 1:
        if {*names} <= {*PRESETS}:
            raise ConfigError(f"two presets are given: {names[0]} and {names[1]}", hint="leave out one")
        others = [name for name in names if name not in PRESETS]
        if what == "a preset" and len(others) < len(names):
            preset, other = next(name for name in names if name in PRESETS), others[0]
            if os.path.isdir(other) or os.sep in other:  # noqa: PTH112  Path's own one can fail
                raise ConfigError(
                    f"a preset and a folder are given: {preset} and {other}",
                    hint=f"a new run gets its folder by --out {other}; one that exists goes on without the preset",
                )
        raise ConfigError(f"{names[1]!r} is neither a setting nor {what}", hint="settings are given as key=value")
    return (names[0] if names else None), settings


def split_many(arguments: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """(the arguments that are not settings, the settings)."""
    given = list(arguments or ())
    settings = [text for text in given if _is_setting(text)]
    return [text for text in given if text not in settings], settings


def _is_setting(text: str) -> bool:
    """`key=value`, but not a folder such as runs/lr=0.1."""
    key, equals, _ = text.partition("=")
    return bool(equals) and os.sep not in key and not os.path.isdir(text)  # noqa: PTH112  Path's own one can fail


def preset_or_run(name: str | None, out: Path | None) -> tuple[str | None, Path | None]:
    """(preset, run directory) of `grue run NAME`: naming a run directory means continuing it."""
    from grue.config import PRESETS
    from grue.games import is_known

    if name is None or name in PRESETS:
        return name, out
    if (Path(name) / "config.yaml").exists():
        return None, run_folder(name, out)
    _check_whole(Path(name))
    if os.sep in name and not is_known(name):  # a game may be named with its file, and is no preset either
        raise ConfigError(f"there is no run in {name}", hint=f"grue run --out {name} starts one")
    return name, out


def _check_whole(folder: Path) -> None:
    """ConfigError for a run that has lost its settings: a new one cannot begin there."""
    if (folder / "stages.json").exists():
        raise ConfigError(
            f"{folder} holds a run, but its config.yaml is missing", hint="restore it, or start over in another folder"
        )


def settle(
    preset: str | None, settings: list[str], file: Path | None, seed: int | None, out: Path | None
) -> tuple[Config, Path]:
    """The configuration and the run directory that the arguments refer to.

    An existing run directory is the basis unless a preset or file is named: its folder alone is enough to resume a run.
    """
    from grue.config import PRESETS, load_config, override
    from grue.games import canonical_params, is_known
    from grue.storage.contents import read_run_config
    from grue.storage.settled import default_out

    if out is not None and preset is None and file is None and (out / "config.yaml").exists():
        return override(read_run_config(out), settings, seed), out
    if preset is not None and preset not in PRESETS and is_known(preset):
        raise ConfigError(f"{preset} is a game, not a preset", hint=f"game.name={preset} plays it")
    config = load_config(preset, settings, file, seed)
    canonical_params(config.game.name, config.game.params)  # refuse wrong ones before making a folder
    return config, out or default_out(config)


def named_run(
    arguments: list[str] | None, preset: str | None, file: Path | None, seed: int | None, out: Path | None
) -> tuple[Config, Path]:
    """The configuration and the run directory of a verb that does one stage."""
    name, settings = split(arguments, "a run directory")
    return settle(preset, settings, file, seed, run_folder(name, out))


def begun_run(
    arguments: list[str] | None, preset: str | None, file: Path | None, seed: int | None, out: Path | None
) -> tuple[Config, Path]:
    """The same for a stage that builds on another one. ConfigError where no stage has begun."""
    config, folder = named_run(arguments, preset, file, seed, out)
    if not (folder / "config.yaml").exists():
        _check_whole(folder)
        chosen = f" --preset {preset}" if preset else f" --config {file}" if file else ""
        raise ConfigError(f"there is no run in {folder}", hint=f"start one with grue demos {folder}{chosen}")
    return config, folder


def run_folder(name: str | None, out: Path | None) -> Path | None:
    """The run directory that RUN or --out names."""
    from grue.config import PRESETS
    from grue.games import is_known

    if name is None:
        return out
    if name in PRESETS and not Path(name).exists():
        raise ConfigError(f"{name} is a preset, not a run directory", hint=f"a new run begins with --preset {name}")
    if not Path(name).exists() and is_known(name):
        hint = f"a new run of it begins with game.name={name}, in the folder that --out names"
        raise ConfigError(f"{name} is a game, not a run directory", hint=hint)
    if out is not None:
        raise ConfigError(f"two run directories are given: {name} and {out}", hint="leave out one")
    return Path(name)


def required(value: str | None, option: str, what: str) -> str:
    """`value`, or ConfigError where the option was left out."""
    if not value:
        raise ConfigError(f"{option} is missing: {what}", hint=f"add {option} NAME")
    return value


def prices(text: str) -> tuple[float, float]:
    """ "0.15,0.6" as two numbers."""
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--api-prices {text} is not two numbers", hint="for example 0.15,0.6") from error
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise ConfigError(f"--api-prices {text}: prices are numbers from 0 on")
    return prompt, completion


def existing_run(folder: Path | None) -> Path:
    """`folder`, or the run in runs/ that was last written to. ConfigError if there is none."""
    from grue.storage.contents import LISTED, newest_runs

    if folder is not None:
        if folder.is_file():
            raise ConfigError(f"{folder} is a file, not a run directory", hint="name the folder that grue run wrote")
        if not folder.is_dir():
            others = ", ".join(map(str, newest_runs()[:LISTED]))
            raise ConfigError(
                f"there is no run directory {folder}",
                hint=f"last written to: {others}" if others else "grue run --out DIR makes one",
            )
        return folder
    found = newest_runs()
    if not found:
        raise ConfigError("there is no run in runs/", hint="name a run directory, or make one with grue run")
    return found[0]
