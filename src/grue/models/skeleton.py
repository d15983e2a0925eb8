"""A model's shapes without its data: what can be known of it, and refused, before any weights are read."""

from __future__ import annotations

import logging
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

import torch

from grue.config import ModelConfig, PolicyConfig
from grue.errors import ConfigError, GrueError
from grue.models.adapter import adapted_matrices
from grue.models.architecture import check_architecture, check_decoder, check_reads_trees, freeze_towers
from grue.models.checkpointing import check_recomputing
from grue.models.quantization import check_quantisable
from grue.models.sources import UNREADABLE, cannot_be_built, read_config_json, safe_options, source_of
from grue.models.stored import check_stored, stored_bytes, stored_method
from grue.models.tokenizer import check_context, check_prompt, check_tokenizer, load_tokenizer
from grue.models.weight_files import check_weight_files
from grue.prompts.tokens import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TREE_KINDS = ("score", "aligned")  # policies that weigh whole actions
# the package that has it, and the oldest generation of GPUs that it runs on: Ampere, Hopper
FLASH = {"flash_attention_2": ("flash-attn", 8), "flash_attention_4": ("flash-attn-4", 9)}


def skeleton(config: ModelConfig) -> PreTrainedModel:
    """The model on the "meta" device. ModelError as in loading, and for an architecture that grue cannot drive."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if not torch.cuda.is_available():
        logging.getLogger("transformers.integrations.hub_kernels").addFilter(_is_no_advice)
    raw = read_config_json(config)
    check_stored(config, raw)
    try:
        architecture = AutoConfig.from_pretrained(source_of(config), **safe_options(config))
        check_decoder(architecture)  # before transformers says that it knows no causal model of this kind
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(architecture, trust_remote_code=False)
    except GrueError:
        raise
    except UNREADABLE as error:
        raise cannot_be_built(config.name, error) from error
    check_architecture(model)
    stored = stored_method(raw)
    check_quantisable(config.name, model.config.model_type, stored if config.quantize == "none" else config.quantize)
    freeze_towers(model)
    model.config.grue_stored_method, model.config.grue_stored_bytes = stored, stored_bytes(raw)
    return model


def check_model(config: ModelConfig, prompt: PolicyConfig) -> None:
    """Refuse before the first game what would otherwise fail after the last demonstration. Reads no weights."""
    check_attention(config.attention, prompt.kind)
    model, tokenizer = skeleton(config), load_tokenizer(config)
    check_weight_files(config)
    check_tokenizer(config.name, tokenizer, model)
    check_context(config.name, model, config.context)
    check_prompt(config.name, Encoder(tokenizer, prompt), model)
    if prompt.kind in TREE_KINDS:
        check_reads_trees(model.config.get_text_config(), f"policy.kind={prompt.kind}")
    if config.gradient_checkpointing:
        check_recomputing(model)
    if config.adapter == "lora":
        adapted_matrices(model, config.lora_targets)


def check_attention(name: str, kind: str = "") -> None:
    """ConfigError where flash attention is asked for and cannot be had, or cannot train policies of this `kind`."""
    if name not in FLASH:
        return
    if kind in TREE_KINDS:
        raise ConfigError(
            f"policy.kind={kind} trains on trees of actions, whose masks model.attention={name} cannot take",
            hint="set model.attention=sdpa",
        )
    if not torch.cuda.is_available():
        raise ConfigError(f"model.attention={name} needs a GPU, and torch finds none", hint="use sdpa")
    package, generation = FLASH[name]
    # both have a module flash_attn, and transformers would look for a missing one on the hub
    if package not in {found.replace("_", "-") for found in packages_distributions().get("flash_attn", ())}:
        raise ConfigError(
            f"model.attention={name} needs {package}, which is not installed", hint=f"pip install {package}"
        )
    major, minor = torch.cuda.get_device_capability()
    if major < generation:
        raise ConfigError(
            f"model.attention={name} needs a GPU of compute capability {generation}.0; this one has {major}.{minor}",
            hint="use sdpa",
        )


def plain_attention(model: PreTrainedModel, config: ModelConfig) -> str:
    """The attention that a model is loaded with: some architectures, such as Gemma 2 and GPT-OSS, have no SDPA.

    Flash attention cannot take masks like the engine's; the learner switches it on for its own passes.
    """
    # up to 5.20 transformers gives Gemma 2 an SDPA that silently leaves out its caps
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    return "eager" if config.attention == "eager" or capped or not model._supports_sdpa else "sdpa"


def _is_no_advice(record: logging.LogRecord) -> bool:
    """False for advice to install a package with kernels for recurrent layers: none has one for a CPU."""
    return "falling back to its reference" not in record.getMessage()
