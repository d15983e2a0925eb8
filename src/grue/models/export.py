"""A trained model as files that others can load: an adapter beside its base, or one model with the adapter merged in.

An adapter is never merged into weights in 4 or 8 bits: they are first dequantised to the numbers that the adapter was
trained on, and the result is an ordinary model that says what the policy said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grue.config import ModelConfig
from grue.errors import ConfigError, ModelError
from grue.models.adapter import quiet_peft, with_adapter
from grue.models.casting import cast
from grue.models.load import default_device, load_base
from grue.models.quantization import is_quantised
from grue.models.skeleton import skeleton
from grue.models.stored import is_packed, unpacked
from grue.models.tokenizer import load_tokenizer
from grue.models.value import ValueHead, state_width

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VALUE_HEAD = "value_head.safetensors"
LM = "lm."  # prefix of the language model's weights in a checkpoint
HEAD = "value_head."


def save_adapter(lm: PreTrainedModel, config: ModelConfig, folder: Path) -> None:
    """adapter_model.safetensors and adapter_config.json, which names the base as `model.name` does."""
    if config.adapter != "lora":
        raise ConfigError("all weights of this run were trained, so there is no adapter", hint="--what merged")
    adapters: Any = lm.peft_config
    for settings in adapters.values():
        settings.base_model_name_or_path, settings.revision = config.name, config.revision
        settings.inference_mode = True
    # embeddings do not learn; to find that out by itself peft would ask the hub
    lm.save_pretrained(folder, save_embedding_layers=False)


def save_merged(config: ModelConfig, weights: Mapping[str, torch.Tensor], folder: Path, dtype: torch.dtype) -> None:
    """config.json and model.safetensors in `dtype`. `weights` are those that a checkpoint holds."""
    model = _plain_base(config)
    own = {name.removeprefix(LM): value for name, value in weights.items() if name.startswith(LM)}
    if config.adapter == "lora":
        adapted = with_adapter(model, config)
        _fill(adapted, own)
        model = adapted.merge_and_unload(safe_merge=True)  # type: ignore[operator]
    else:
        _fill(model, own)
    _restore_layers(model, config)
    cast(model, dtype)
    model.save_pretrained(folder)


def save_value_head(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """The critic; the model works without it."""
    head = {name.removeprefix(HEAD): value.contiguous() for name, value in weights.items() if name.startswith(HEAD)}
    save_file(head, folder / VALUE_HEAD)


def load_artefact(
    folder: Path, what: str, config: ModelConfig
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, ValueHead]:
    """(model, tokenizer, critic) of an exported folder, loaded as an outsider would, by transformers and peft."""
    merged = config.model_copy(update={"name": str(folder), "revision": None, "adapter": "none", "quantize": "none"})
    if what == "merged":
        lm, tokenizer = load_base(merged)
    else:
        from peft import PeftModel

        _check_adapter(folder)
        base, _ = load_base(config)
        tokenizer = load_tokenizer(merged)
        try:
            with quiet_peft():
                lm = PeftModel.from_pretrained(base, str(folder), use_safetensors=True)  # type: ignore[assignment]
        except (OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
            raise ModelError(f"the adapter in {folder} does not fit {config.name!r}: {error}") from error
    head = ValueHead(state_width(lm))
    try:
        head.load_state_dict(load_file(folder / VALUE_HEAD))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot read {folder / VALUE_HEAD}: {error}", hint="export the run again") from error
    return lm, tokenizer, head.to(default_device())


def _check_adapter(folder: Path) -> None:
    """ModelError where peft would read a pickle, ask a hub, or import a module that the folder names."""
    if not (folder / "adapter_model.safetensors").is_file():
        raise ModelError(f"{folder} holds no adapter_model.safetensors", hint="export the run again")
    file = folder / "adapter_config.json"
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        odd = about["peft_type"] != "LORA" or about.get("megatron_config") or about.get("auto_mapping")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"cannot read {file}: {error}", hint="export the run again") from error
    if odd:
        raise ModelError(f"{file} is not of an adapter that grue has made", hint="export the run again")


def _plain_base(config: ModelConfig) -> PreTrainedModel:
    """The base in float32 with the numbers that the adapter was trained on: rounded ones where it was quantised."""
    base, _ = load_base(config)
    if is_quantised(base):
        packed = any(map(is_packed, base.modules()))
        base = unpacked(base) if packed else base.dequantize()
    plain: PreTrainedModel = base.float()
    return plain


@torch.no_grad()
def _restore_layers(model: PreTrainedModel, config: ModelConfig) -> None:
    """Restore GPT-2's layers, which hold their weights transposed: quantising turned them into ordinary ones."""
    from transformers.pytorch_utils import Conv1D

    for name, layer in skeleton(config).named_modules():
        found = model.get_submodule(name)
        if isinstance(layer, Conv1D) and isinstance(found, torch.nn.Linear):
            turned = Conv1D(found.out_features, found.in_features)
            turned.weight, turned.bias = torch.nn.Parameter(found.weight.T.contiguous()), found.bias
            model.set_submodule(name, turned)


@torch.no_grad()
def _fill(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    parameters: dict[str, Any] = dict(model.named_parameters())
    if odd := sorted(set(weights) - set(parameters)):
        raise ModelError(
            f"the checkpoint is of another model: it has no weight {odd[0]}", hint="check model.* settings"
        )
    for name, value in weights.items():
        parameters[name].copy_(value)
