"""The GPU that runs kernels on a tensor is the one that holds it, in the order of the caller's stream."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from renorm.core.errors import RenormError
from renorm.training.kernels import Gpu, gpu


def gpu_of(x: Tensor) -> Gpu | None:
    """Return the GPU that holds a tensor; None for one on the CPU, and where renorm has no code for what holds it."""
    return _gpu(x.get_device()) if x.is_cuda else None


def is_on_host(x: Tensor) -> bool:
    """Return whether a tensor lies in memory of the CPU. What is none is refused there."""
    return not isinstance(x, Tensor) or x.is_cpu


def stream_of(gpu: Gpu) -> int:
    """Return the handle of the stream that operations of PyTorch go to now."""
    return torch._C._cuda_getCurrentRawStream(gpu.index)


def is_together(t: Tensor, x: Tensor) -> bool:
    """Return whether one GPU holds both, and kernels may run there. While a stream is captured its work has to be what
    PyTorch can capture."""
    return t.is_cuda and t.device == x.device and gpu_of(x) is not None and not torch.cuda.is_current_stream_capturing()


@cache
def _gpu(index: int) -> Gpu | None:
    if torch.version.hip:
        return None
    try:
        return gpu(index)
    except RenormError:  # without renorm[cuda]
        return None
