"""Training steps of a norm layer: renorm's beside PyTorch's, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import renorm.torch as ours
from benchmarks.gpu.contenders import spread
from benchmarks.gpu.deviation import largest
from benchmarks.gpu.place import Place
from benchmarks.gpu.timing import settle, side_by_side

_SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {  # of a GPU, and of a CPU
    "batch norm": (lambda: nn.BatchNorm2d(64), (32, 64, 112, 112), (2, 64, 14, 14)),
    "batch norm, last stage": (lambda: nn.BatchNorm2d(2048), (32, 2048, 7, 7), (2, 2048, 7, 7)),
    "instance norm": (lambda: nn.InstanceNorm2d(64, affine=True), (32, 64, 112, 112), (2, 64, 14, 14)),
    "group norm": (lambda: nn.GroupNorm(32, 256), (32, 256, 56, 56), (2, 256, 7, 7)),
    "layer norm": (lambda: nn.LayerNorm(768), (64, 197, 768), (2, 19, 768)),
    "RMS norm": (lambda: nn.RMSNorm(1024), (64, 256, 1024), (2, 19, 1024)),
}
LAYERS = tuple(_SHAPES)
PASSES = 5  # over memory that a step takes at least: x and y, then x, dy and dx


def stepped(place: Place, name: str, seconds: float) -> dict[str, Any]:
    """Return how far a step of renorm's layer is from PyTorch's in float64, relative to the largest number; the
    milliseconds of both; and bytes that a step moves at least."""
    settle(place)
    ours.set_background(False)  # kernels are compiled before they are timed
    make, on_gpu, on_cpu = _SHAPES[name]
    shape = on_gpu if place.is_gpu else on_cpu
    torch.manual_seed(3)
    theirs = make().to(place.device)
    own = copy.deepcopy(theirs)
    ours.replace_norms(own)
    x, dy = (torch.randn(shape, device=place.device) for _ in range(2))
    wanted = _step(copy.deepcopy(theirs).double(), x.double(), dy.double())
    found, eager = _step(own, x, dy), _step(theirs, x, dy)
    calls: dict[str, Callable[[], Any]] = {
        "renorm": lambda: _step(own, x, dy), "eager": lambda: _step(theirs, x, dy)
    }  # fmt: skip
    times = side_by_side(place, calls, seconds)
    return {
        "error": largest(found, wanted), "eager_error": largest(eager, wanted), "moved": PASSES * x.nbytes,
        "ms": {k: spread(v) for k, v in times.items()},
    }  # fmt: skip


def _step(layer: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    """Return the result and all gradients."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(dy)
    return [t.detach() for t in (y, x.grad, *(p.grad for p in layer.parameters())) if t is not None]
