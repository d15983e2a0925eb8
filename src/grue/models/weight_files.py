"""The files that hold a model's weights: are all of them there, and whole? Reads their headers, not the weights."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from grue.config import ModelConfig
from grue.errors import ModelError, first_line
from grue.models.sources import source_of

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HINT = "copy or download it again"


def check_weight_files(config: ModelConfig) -> None:
    """ModelError where a file of weights in the folder `model.name` is missing or damaged. Hub names are not asked."""
    folder = Path(source_of(config))
    if not folder.is_dir():
        return
    files = _files(folder)
    if not files:
        raise ModelError(f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there", hint=_way_out(folder))
    for file in files:
        if not file.exists():
            raise ModelError(f"{folder} is incomplete: {file.name} is missing, which {INDEX} names", hint=HINT)
        try:
            with safe_open(file, framework="pt"):  # compares the header with the length of the file
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} is damaged or incomplete: {first_line(error)}",
                hint=f"{HINT}; where git fetched it, git lfs pull does so",
            ) from error


def _way_out(folder: Path) -> str:
    """How to come from the weights that lie there to those that are read."""
    if any(folder.glob("*.gguf")):
        return "GGUF files are not read: transformers unpacks them once (docs/models.md#weights-in-gguf)"
    if any(folder.glob("*.bin")):
        return "pickled weights are refused; if you trust them, load them with transformers and save_pretrained"
    return HINT


def _files(folder: Path) -> list[Path]:
    """Those that transformers will read: one file or, where that is not there, what the index lists."""
    single, index = folder / SINGLE, folder / INDEX
    if single.exists() or not index.exists():
        return [single] if single.exists() else []
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / name for name in sorted({*names})]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is damaged: {first_line(error)}", hint=HINT) from error
