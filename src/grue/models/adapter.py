"""Low-rank adapters: LoRA, with DoRA and rsLoRA, over frozen weights of any number format."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grue.config import ModelConfig
from grue.errors import ConfigError, did_you_mean, first_line
from grue.models.stored import is_packed, quiet_gptqmodel

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence transformers' warning about a deprecated property that peft still reads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield


def with_adapter(model: PreTrainedModel, config: ModelConfig) -> PreTrainedModel:
    """The model with a fresh adapter that adds nothing yet. Its weights are float32 and the only ones that learn."""
    quiet_gptqmodel()  # peft imports it wherever it is installed
    from peft import get_peft_model

    shape, known = lora_config(model, config), _known(model)
    with quiet_peft():
        try:
            adapted: PreTrainedModel = get_peft_model(model, shape)  # type: ignore[assignment]
        except ValueError as error:
            raise ConfigError(
                f"model.lora_targets={config.lora_targets}: {first_line(error)}",
                hint=f"it may have {', '.join(known)}, or all-linear",
            ) from error
        except ImportError as error:  # of a package that is there, though this model may not need it
            raise ConfigError(
                f"peft makes no adapter: {first_line(error)}", hint="install what it asks for, or remove the package"
            ) from error
    return adapted


def lora_config(model: nn.Module, config: ModelConfig) -> LoraConfig:
    """The settings of the adapter. ConfigError where `model.lora_targets` names a module that is not there."""
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=_targets(model, config.lora_targets),
        use_dora=config.lora_dora,
        use_rslora=config.lora_rslora,
        # GPT-2 stores its matrices transposed, which the class of the layer shows
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
        task_type="CAUSAL_LM",
    )


def matrices(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Name -> (inputs, outputs) of each layer that can have an adapter; the output layer cannot."""
    head, found = _head(model), {}
    for name, module in model.named_modules():
        if module is head or not (hasattr(module, "weight") or is_packed(module)):
            continue
        if isinstance(module, nn.Linear) or is_packed(module):
            found[name] = (module.in_features, module.out_features)
        elif type(module).__name__ == "Conv1D":
            inputs, outputs = module.weight.shape
            found[name] = (inputs, outputs)
    return found


def _head(model: nn.Module) -> object:
    find_head: Any = getattr(model, "get_output_embeddings", None)
    return find_head() if find_head is not None else None


def _weight(module: object) -> object:
    """A module's weight, to be compared by identity; the module itself if it has none."""
    weight = getattr(module, "weight", None)
    return module if weight is None else weight


def _known(model: nn.Module) -> list[str]:
    """The names that `model.lora_targets` may take."""
    reading = _names_of_decoder(model)
    last_parts = {name.rpartition(".")[2] for name in matrices(model) if name in reading}
    return sorted(last for last in last_parts if not _is_taken_for_experts(model, last))


def adapted_matrices(model: nn.Module, targets: str) -> dict[str, tuple[int, int]]:
    """The part of `matrices` that `targets` names, and embeddings where it names them: (words, width).

    `model` must not be quantised. ConfigError if a named module is of a kind that cannot have an adapter.
    """
    wanted = _targets(model, targets)
    every = matrices(model)
    if isinstance(wanted, str):
        return every
    for name, module in model.named_modules():
        if not _is_named(name, wanted):
            continue
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Embedding):
            every[name] = (module.num_embeddings, module.embedding_dim)
        elif name not in every and isinstance(weight, torch.Tensor) and weight.ndim == 2:  # such as a router
            every[name] = (weight.shape[1], weight.shape[0])
        elif name not in every:
            raise ConfigError(
                f"model.lora_targets={targets}: {name} is a {type(module).__name__}, which cannot have an adapter",
                hint=f"it may have {', '.join(_known(model))}, or all-linear",
            )
    # whole names if we chose them, last parts if the user did
    return {name: shape for name, shape in every.items() if _is_named(name, wanted)}


def _is_named(name: str, wanted: list[str]) -> bool:
    return name in wanted or name.rpartition(".")[2] in wanted


def _targets(model: nn.Module, text: str) -> str | list[str]:
    """What peft is told to adapt: its own "all-linear", names that end a module's, or whole names."""
    if text == "all-linear":
        return _all_linear(model)
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    head, known = _head(model), _known(model)
    if not wanted:
        raise ConfigError(
            f"model.lora_targets={text} names no module", hint=f"say all-linear, or some of {', '.join(known)}"
        )
    if any(
        _weight(module) is _weight(head) and {name, name.rpartition(".")[2]} & set(wanted)
        for name, module in model.named_modules()
    ):
        raise ConfigError(
            f"model.lora_targets={text}: the output layer, or what shares its weights, cannot have an adapter",
            hint=f"it may have {', '.join(known)}",
        )
    if deaf := [name for name in matrices(model) if _read_past(model, name) and _is_named(name, wanted)]:
        raise ConfigError(
            f"model.lora_targets={text}: the weight of {deaf[0]} is read directly, bypassing any adapter",
            hint="say all-linear, which leaves such layers out",
        )
    # a quantised layer need not look like a linear one, so any module of that name will do
    reading = _names_of_decoder(model)
    named = [name for name, _ in model.named_modules() if _is_named(name, wanted)]
    for name in wanted:
        found = [one for one in named if _is_named(one, [name])]
        if found and not reading & set(found):
            raise ConfigError(
                f"model.lora_targets={text}: {found[0]} reads no text, and is not trained",
                hint=f"it may have {', '.join(known)}, or all-linear",
            )
        if not found:
            has = f"it has {', '.join(known)}, or say all-linear"
            raise ConfigError(
                f"model.lora_targets={text}: the model has no module {name!r}",
                hint=did_you_mean(name, known, otherwise=has),
            )
        if _is_taken_for_experts(model, name):
            raise ConfigError(
                f"model.lora_targets={text}: in this model peft takes {name} for a part of the experts",
                hint=f"it may have {', '.join(known)}, or all-linear",
            )
    chosen = [name for name in named if name in reading]
    return wanted if len(chosen) == len(named) else chosen


def _names_of_decoder(model: nn.Module) -> set[str]:
    """The names of the modules that read text: not those of a vision tower."""
    decoder: Any = getattr(model, "get_decoder", lambda: model)()
    text = {id(module) for module in decoder.modules()}
    return {name for name, module in model.named_modules() if id(module) in text}


def _is_taken_for_experts(model: nn.Module, name: str) -> bool:
    """Would peft adapt experts where a layer of this name is meant? They are one parameter, and once were such layers.

    It decides by the last part of a name, whatever layer has it: a dense one, a shared expert, a gate in attention.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    if not any(".experts." in parameter for parameter, _ in model.named_parameters()):
        return False
    last = name.rpartition(".")[2]
    config = LoraConfig(target_modules=[last])
    try:
        convert_peft_config_for_transformers(config, model, conversions=None)
    except ValueError:  # it is half of what was fused
        return True
    return bool(set(config.target_parameters or ()) - {f"{last}.weight"})  # a router's own weight is meant


def _read_past(model: nn.Module, name: str) -> bool:
    """Does Mamba read this projection's weight directly, at least in its kernels?"""
    parent, _, last = name.rpartition(".")
    mixer = model.get_submodule(parent)
    return last in ("out_proj", "dt_proj", "x_proj") and hasattr(mixer, "A_log") and hasattr(mixer, "D")


def _all_linear(model: nn.Module) -> str | list[str]:
    """What peft calls all-linear, without the parts that read images and layers where an adapter would have no effect.

    The experts of a layer are one parameter: peft adapts it by recomputing all of them in each pass, and mistakes other
    layers for experts by their names. A router returns more than a product. Mamba reads the weights of some of its
    projections directly, bypassing any adapter.
    """
    every, reading, known = matrices(model), _names_of_decoder(model), _known(model)
    inside = {name.partition(".experts.")[0] for name, _ in model.named_parameters() if ".experts." in name}
    # experts that lie in a layer itself have no block of their own
    blocks = tuple(f"{name}." for name in inside if not name.rpartition(".")[2].isdigit())
    named = [name for name in every if name in reading and name.rpartition(".")[2] in known]
    chosen = [name for name in named if not name.startswith(blocks) and not _read_past(model, name)]
    # peft's own "all-linear" would take experts and routers that are not layers, which `matrices` omits, and would not
    # take layers of gptqmodel
    ours = inside or len(chosen) < len(every) or any(map(is_packed, model.modules()))
    return chosen if ours else "all-linear"
