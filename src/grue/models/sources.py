"""Where a model comes from, and what its config.json must not ask for, checked before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from grue.config import ModelConfig
from grue.errors import ModelError, first_line

EMBEDDED = "embedded"
EMBEDDED_POSITIONS = 4096  # as in its config.json, for code that has not read that
# what transformers may raise for a config.json with values that do not fit
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, AssertionError),
    *(ArithmeticError, StrictDataclassError),
)
HINT = "model.name is 'embedded', a folder with config.json and *.safetensors, or a hub name"


def embedded_folder() -> Path:
    """The folder of the base that ships with the package; plain transformers loads it too."""
    return Path(str(files("grue.models"))) / EMBEDDED


def source_of(config: ModelConfig) -> str:
    """Hub name or folder of `model.name`. ModelError where this installation has no embedded base."""
    if config.name != EMBEDDED:
        return config.name
    if not (embedded_folder() / "model.safetensors").exists():
        raise ModelError("this installation has no embedded base", hint="make one with: grue pretrain")
    return str(embedded_folder())


def safe_options(config: ModelConfig) -> dict[str, Any]:
    """What every `from_pretrained` is given: a model's own code is never run."""
    return {"trust_remote_code": False, "revision": config.revision}


def read_config_json(config: ModelConfig) -> dict[str, Any]:
    """config.json of the model as it stands. ModelError where there is none, or where it asks to run code."""
    from transformers import PreTrainedConfig

    if config.name != EMBEDDED and Path(config.name).is_file():
        raise ModelError(f"model.name={config.name} is a file; name its folder", hint=HINT)
    if not Path(config.name).is_dir() and (config.name.startswith((".", "/", "~")) or config.name.count("/") > 1):
        raise ModelError(
            f"there is no folder {config.name!r}, which model.name names",
            hint=f"{HINT}. Was it moved? Put its new place into model.name (for a run in its config.yaml, for an "
            "exported adapter in its grue.yaml), or give load_policy base=PLACE",
        )
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt; we report the failure once
    try:
        found: dict[str, Any] = PreTrainedConfig.get_config_dict(source_of(config), revision=config.revision)[0]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # JSON of any shape
        raise cannot_load(config.name, error) from error
    if not isinstance(found, dict):
        raise ModelError(f"cannot load the model {config.name!r}: its config.json holds a {type(found).__name__}")
    if not found:
        raise ModelError(f"cannot load the model {config.name!r}: it has no config.json", hint=_hint(config.name))
    _check_no_adapter(config)
    refuse_code(config.name, found)
    return found


def _check_no_adapter(config: ModelConfig) -> None:
    """ModelError where an adapter lies beside the weights: transformers would load it, and ours would replace it."""
    from transformers.utils.peft_utils import find_adapter_config_file

    if config.name == EMBEDDED:
        return
    try:
        found = find_adapter_config_file(config.name, revision=config.revision)
    except (OSError, ValueError):
        return
    if found is not None:
        raise ModelError(
            f"{config.name!r} holds an adapter (adapter_config.json) beside its weights",
            hint="merge it into them, or keep it in another folder",
        )


def is_local(name: str) -> bool:
    """Is `model.name` a folder, on this system or another? Then others do not have it."""
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()
    return name != EMBEDDED and (absolute or Path(name).is_dir())


def cannot_load(name: str, error: Exception) -> ModelError:
    """`error` of transformers as one line with a hint."""
    return ModelError(f"cannot load the model {name!r}: {first_line(error)}", hint=_hint(name))


def cannot_be_built(name: str, error: Exception) -> ModelError:
    """`cannot_load`, where what config.json says may be the reason."""
    if isinstance(error, (OSError, ImportError)):
        return cannot_load(name, error)
    said = first_line(error)
    if isinstance(error, KeyError):
        said = str(error.args[0]) if " " in str(error.args[0]) else f"it knows no {said}"
    elif isinstance(error, StrictDataclassError) and error.__cause__:  # which names the value too
        said = first_line(error.__cause__)
    return ModelError(
        f"cannot load the model {name!r}: transformers {version('transformers')} refuses its config.json: {said}",
        hint="is that value right? Or is it a model of another kind, with code of its own, or newer than this version?",
    )


def _hint(name: str) -> str:
    folder = Path(name)
    if any((folder / file).exists() for file in ("adapter_config.json", "stages.json")):
        return "that is an adapter or a run; give the folder that grue export RUN --what merged makes"
    if folder.is_dir() or name == EMBEDDED:
        return HINT
    return f"there is no folder {name} here, and the hub cannot be reached or has no such model; {HINT}"


def refuse_code(name: str, config: Mapping[str, Any], path: str = "") -> None:
    """ModelError where a config.json would make transformers fetch and run code, at whatever depth.

    `trust_remote_code=False` did not cover these keys in several releases (CVE-2026-4372, CVE-2026-5241).
    """
    for key, value in config.items():
        kernel = "attn_implementation" in key and isinstance(value, str) and "/" in value
        if key in ("_attn_implementation_internal", "trust_remote_code") or kernel:
            raise ModelError(
                f"config.json of {name!r} holds {path}{key}={value!r}, by which it could run code of its own",
                hint="remove the key if you trust the model, or choose another one",
            )
        if isinstance(value, Mapping):
            refuse_code(name, value, f"{path}{key}.")
