"""Which calls renorm's kernels may take: asked here by all layers, in the forward and in the backward pass.

A kernel works on memory, unseen by torch. So it takes no call that somebody wants to see as operations of torch, and no
tensor that is more or less than memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _dispatch_tls_is_dispatch_key_included,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _parse_dispatch_key,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from renorm.torch.arrays import DTYPES
from renorm.torch.gpus import is_together

_PLAIN = (Tensor, torch.nn.Parameter)
_NARROW = (torch.float16, torch.bfloat16)
_VMAP: Any = _parse_dispatch_key("VmapMode")  # of gradients that come in batches


def is_watched() -> bool:
    """Return whether somebody sees what is called, and may do something else: torch.compile, tracers, transforms
    of torch.func, batches of gradients, modes (TorchDispatchMode, TorchFunctionMode). A default device is none of them:
    it concerns new tensors only."""
    return bool(
        is_compiling()
        or _len_torch_dispatch_stack()
        or (_len_torch_function_stack() and _sees_functions())
        or _are_functorch_transforms_active()
        or _get_tracing_state() is not None  # pyright: ignore[reportUnnecessaryComparison]  # None where nobody traces
        or _dispatch_tls_is_dispatch_key_included(_VMAP)
    )


def _sees_functions() -> bool:
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def is_ours(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether nobody watches, and these are no more than memory of the CPU, or all of one GPU, strided, of a
    dtype that renorm has: neither subclasses nor tangents of forward mode, nothing that is negated when it is read, or
    has no memory."""
    if is_watched():
        return False
    has_tangents, is_on_cpu = forward_ad._current_level >= 0, x.is_cpu
    for t in (x, *others):
        if t is None:
            continue
        if not (type(t) in _PLAIN and t.dtype in DTYPES and t.layout is torch.strided) or t.is_neg():
            return False
        if not (t.is_cpu if is_on_cpu else is_together(t, x)):
            return False
        if has_tangents and forward_ad.unpack_dual(t).tangent is not None:
            return False
        if not t.data_ptr() and t.numel():
            return False
    return True


def is_ours_in_batches(x: Tensor, *parameters: Tensor | None) -> bool:
    """Return whether batch norm takes these: parameters in the dtype of x, or wider than a narrow one."""
    if not is_ours(x, *parameters) or x.dim() < 2:
        return False
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    return all(p is None or p.dtype is x.dtype or p.dtype is wide for p in parameters)


def is_ours_in_slices(x: Tensor, *parameters: Tensor | None) -> bool:
    """Return whether norms of slices take these: the dtypes that torch takes together."""
    return is_ours(x, *parameters) and all(
        p is None or p.dtype is x.dtype or (p.dtype is torch.float32 and x.dtype in _NARROW) for p in parameters
    )


def is_epsilon(epsilon: float) -> bool:
    """Return whether kernels take it; with others torch computes what it may."""
    return 0 <= epsilon < float("inf")
