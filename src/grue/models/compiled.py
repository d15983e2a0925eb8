"""Layers compiled for training by torch.compile: fewer kernels, which less Python starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from grue.errors import ModelError, first_line

BACKEND = "inductor"
Compiled = Sequence[tuple[nn.Module, Callable[..., Any]]]  # a layer, and what computes it


def compile_layers(layers: Sequence[nn.Module]) -> Compiled:
    """What `in_place` needs. Layers alike share the work, which is done when they are first called.

    Batches and lengths may vary: they are symbols in the compiled code.
    """
    return [(layer, torch.compile(layer.forward, dynamic=True, backend=BACKEND)) for layer in layers]


@contextmanager
def in_place(compiled: Compiled) -> Iterator[None]:
    """Inside, the layers are computed by compiled code. ModelError where they cannot be compiled."""
    for layer, forward in compiled:
        layer.forward = forward
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise
        cause = getattr(error, "inner_exception", error)
        said = f"{type(cause).__name__}: {first_line(cause)}"
        raise ModelError(
            f"torch cannot compile the layers of this model ({said})", hint="set model.compile=false"
        ) from error
    finally:
        for layer, _ in compiled:
            del layer.forward
