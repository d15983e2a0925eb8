"""Weights in shards: each process keeps one part of every parameter, its gradient and its moments (ZeRO-3, FSDP2).

torch gathers a layer when a pass reaches it (Rajbhandari et al. 2020, section 5.3). All processes must do so at once,
which suits training, where they read in step, but not play, where each goes as far as its games do. So beside the
shards every process keeps a whole copy that plays, in the number format of products.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grue.config import ModelConfig
from grue.errors import ConfigError, ModelError
from grue.models.casting import cast
from grue.models.checkpointing import decoder_layers
from grue.parallel import Processes, peers_explained

if TYPE_CHECKING:
    from grue.models.policy_model import PolicyModel


def wants_shards(config: ModelConfig, processes: Processes) -> bool:
    """Should the weights be sharded? A single process, which may load or measure such a run, holds them whole."""
    return config.sharding == "fsdp" and processes.count > 1


def check_sharding(config: ModelConfig, processes: Processes) -> None:
    """ConfigError where training has nothing to spread the weights over."""
    if config.sharding == "fsdp" and processes.count == 1:
        raise ConfigError(
            "model.sharding=fsdp spreads the weights over several processes, and this run has one",
            hint="grue run --processes 2 ..., or model.sharding=none",
        )


def shard(model: PolicyModel, processes: Processes, dtype: torch.dtype) -> None:
    """Spread the language model over all processes, layer by layer; `model.playing` then holds a whole copy in `dtype`.

    Call it in every process, on the same weights. Passes compute in `dtype`, gradients are summed in float32. The value
    head stays whole: it is small, and fitted apart. ModelError if the model has no layers to split it at.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    layers = decoder_layers(model)
    # a layer within a layer, as in Zamba 2, would be spread when its outer one has been
    nested = any(inner in layers for layer in layers for inner in layer.modules() if inner is not layer)
    if nested or not layers:
        raise ModelError(
            f"{model.lm.config.model_type} has no layers that could be spread over processes",
            hint="set model.sharding=none",
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    playing = deepcopy(model)
    cast(playing.lm, dtype)
    model.playing = (playing.to(device).eval(),)
    head = set(model.value_head.to(device).parameters())
    mesh = init_device_mesh(device, (processes.count,))
    reduced = dtype is not torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if reduced else MixedPrecisionPolicy()
    for module in (*layers, model):
        # the outermost too is split again after each pass, so that its parameters are shards between passes
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy, ignored_params=head)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)  # losses are shares of one whole, so gradients add up
        module.set_force_sum_reduction_for_comms(True)
    # about values changed in place, which we never do
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def is_sharded(model: nn.Module) -> bool:
    """Does this process hold only a part of some parameter?"""
    return any(is_shard(parameter) for parameter in model.parameters())


def is_shard(tensor: torch.Tensor) -> bool:
    """Is this process's tensor one part of a larger one?"""
    return hasattr(tensor, "full_tensor")  # a DTensor, without importing it


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part, in the same memory; an ordinary tensor is returned as it is."""
    part: torch.Tensor = tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return part


@torch.no_grad()
def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, gathered from all processes, all of which must call this; an ordinary tensor as it is."""
    if not is_shard(tensor):
        return tensor
    with peers_explained():
        full: torch.Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return full


def gathered(tensors: Mapping[str, torch.Tensor], *, keep: bool) -> dict[str, torch.Tensor]:
    """Whole tensors by name; shards are gathered one at a time, on the CPU. Empty in processes without `keep`."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if keep:
            found[name] = full.cpu() if is_shard(tensor) else full
    return found


def part_like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A whole `value` as this process's shard where `parameter` is one and has its shape; else `value` itself."""
    if not is_shard(parameter) or is_shard(value) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    placed: Any = parameter
    # every process has read the same file, so nothing has to be sent
    return distribute_tensor(value, placed.device_mesh, placed.placements, src_data_rank=None)


@torch.no_grad()
def assign(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a whole value, or a shard of the same kind, into a parameter."""
    local(parameter).copy_(local(part_like(value, parameter)))


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale gradients down to a total norm of at most `limit`; returns the norm before, the same in every process."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    shards = [local(gradient) for gradient in gradients if is_shard(gradient)]
    others = [gradient for gradient in gradients if not is_shard(gradient)]
    squares = torch.zeros((), device=local(gradients[0]).device)
    if shards:
        squares += torch.nn.utils.get_total_norm(shards) ** 2
        torch.distributed.all_reduce(squares)
    if others:
        squares += torch.nn.utils.get_total_norm(others) ** 2
    norm = squares.sqrt()
    torch._foreach_mul_([*shards, *others], float((limit / (norm + 1e-6)).clamp(max=1.0)))
    return float(norm)
