"""A GPU that is not there: tensors that say they are on "cuda", lie in main memory, and refuse to meet a CPU's tensors.

Within `pretended()` torch says that there is a GPU. What is made on it, or moved to it, is an `OnGpu`: an operation on
tensors of both kinds fails as CUDA's do, and so does NumPy on one of them. Torch's C++ still sees a CPU. A GPU's speed,
memory, kernels, number formats and bitsandbytes are not what this shows; which tensor is where, and how often the
Python side would wait for the GPU, is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::_unique2", "aten::masked_select")


@dataclass(slots=True)
class Gpu:
    """`waits`: how often numbers, or a size that depends on them, were asked of the GPU."""

    waits: int = 0


_gpu = Gpu()


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU; `inner` holds its numbers."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    # the next two let `Module.to` put one of these in the place of a plain parameter
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> OnGpu:
        return OnGpu(inner["inner"])

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name
        _check_devices(name, args, kwargs)
        _gpu.waits += name in WAITING or (name in INDEXING and any(_is_mask(index) for index in args[1]))
        inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
        if "device" in inner_kwargs:
            inner_kwargs["device"] = CPU
        out = func(*inner_args, **inner_kwargs)
        if name == "aten::copy_":  # to or from the CPU
            return args[0]
        return return_and_correct_aliasing(func, args, kwargs, tree_map(_on_gpu, out))


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnGpu) else value


def _on_gpu(value: Any) -> Any:
    return OnGpu(value) if isinstance(value, torch.Tensor) and not isinstance(value, OnGpu) else value


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype is torch.bool


def _check_devices(name: str, args: Any, kwargs: Any) -> None:
    """RuntimeError as CUDA gives it. A CPU's single number may come along, and its indices."""
    if name == "aten::copy_" or torch._C._current_graph_task_id() != -1:
        return  # in a backward pass C++ makes zeros of its own, on what it takes for the device
    taken = (args[0], *args[2:]) if name in INDEXING else (args, kwargs)
    tensors = [value for value in tree_leaves(taken) if isinstance(value, torch.Tensor)]
    strangers = [tuple(tensor.shape) for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.dim()]
    if strangers:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {strangers} on the CPU")


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return OnGpu(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _inner(gradient)


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _inner(tensor).detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return OnGpu(gradient)


class _Calls(TorchFunctionMode):
    """What is decided before C++ sees a tensor, whose device it would get wrong."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, first = dict(kwargs or {}), args[0] if args else None
        if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
            return _moved(func, *args, **kwargs)
        if isinstance(first, OnGpu):
            if func in (torch.Tensor.numpy, torch.Tensor.__array__):
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
            if func in (torch.Tensor.tolist, torch.Tensor.untyped_storage, torch.Tensor.data_ptr):
                _gpu.waits += func is torch.Tensor.tolist
                return func(first.inner)
            if func == torch.Tensor.data.__set__ and isinstance(args[1], OnGpu):
                first.inner = args[1].inner
        device = kwargs.get("device")
        if device is None:
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": CPU if torch.device(device).type == "cuda" else device})
        if not isinstance(made, torch.Tensor):
            return made
        if torch.device(device).type == "cuda":
            return _on_gpu(made.detach()).requires_grad_(made.requires_grad)
        return _inner(made)  # made like one on the GPU, and wanted elsewhere


def _moved(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.to(...)`, `.cpu()` or `.cuda()`."""
    device, dtype, copy = CPU if func is torch.Tensor.cpu else GPU, None, kwargs.pop("copy", False)
    if func is torch.Tensor.to:
        like = args[0] if args and isinstance(args[0], torch.Tensor) else None
        device, dtype = (like.device, like.dtype) if like is not None else torch._C._nn._parse_to(*args, **kwargs)[:2]
    if device is not None and device.type == "cuda" and not isinstance(tensor, OnGpu):
        tensor = _Up.apply(tensor)
    elif device is not None and device.type != "cuda" and isinstance(tensor, OnGpu):
        _gpu.waits += 1
        tensor = _Down.apply(tensor)
    if device is not None and device.type == "meta":
        tensor = torch.Tensor.to(tensor, device)
    return tensor if dtype is None and not copy else torch.Tensor.to(tensor, dtype or tensor.dtype, copy=copy)


@contextmanager
def pretended(major: int = 9) -> Iterator[Gpu]:
    """Within, there is a GPU of compute capability `major`.0, and `autocast` for it is the CPU's."""
    begin = torch.autocast.__init__

    def autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu", *args, **kwargs)

    card = SimpleNamespace(total_memory=80 * 2**30, name="pretended", major=major, minor=0, multi_processor_count=1)
    answers: dict[str, Any] = {
        "is_available": True,
        "_check_bf16_tensor_supported": True,  # emulated on old ones
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": card,
        "get_device_capability": (major, 0),
        "get_device_name": card.name,
        "synchronize": None,
        "get_sync_debug_mode": 0,
        "set_sync_debug_mode": None,
        "mem_get_info": (card.total_memory, card.total_memory),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer))
        # CUDA graphs would be captured of nothing
        stack.enter_context(mock.patch.object(torch.cuda, "graph_pool_handle", side_effect=RuntimeError("pretended")))
        # a torch made for CUDA would ask a driver, if only for the optimiser's current stream
        stack.enter_context(mock.patch.object(torch.accelerator, "current_accelerator", return_value=None))
        stack.enter_context(mock.patch.object(torch.autocast, "__init__", autocast))
        for ask in (torch.is_autocast_enabled, torch.get_autocast_dtype):
            stack.enter_context(mock.patch.object(torch, ask.__name__, lambda *_, ask=ask: ask("cpu")))
        stack.enter_context(_Calls())
        _gpu.waits = 0
        yield _gpu
