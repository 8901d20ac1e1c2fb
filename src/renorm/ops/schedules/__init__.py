"""Schedules that ops share, chosen by the kind of target. `s` is scheduled in place; outs: results of the fused
group.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.core.target import Target
from renorm.ops.schedules import (
    cpu_convolution,
    cpu_injective,
    cpu_normalization,
    cpu_reduction,
    cpu_transposed,
    cpu_winograd,
    cuda,
)


def injective(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Elementwise, broadcast and injective results."""
    (cuda.schedule if target.is_gpu else cpu_injective.schedule)(s, outs, target)


def reduction(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Reductions and windows, with elementwise stages around them."""
    (cuda.schedule if target.is_gpu else cpu_reduction.schedule)(s, outs, target)


def normalization(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Statistics of a slice and the elements of that slice: instance, layer, group and RMS norm, softmax."""
    (cuda.schedule if target.is_gpu else cpu_normalization.schedule)(s, outs, target)


def convolution(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Convolutions of any rank."""
    (cuda.schedule if target.is_gpu else cpu_convolution.schedule)(s, outs, target)


def transposed_convolution(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Transposed convolutions of any rank."""
    (cuda.schedule if target.is_gpu else cpu_transposed.schedule)(s, outs, target)


def gemm(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Matrix products."""
    (cuda.schedule if target.is_gpu else cpu_convolution.schedule)(s, outs, target)


def winograd(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Convolutions by transformed tiles."""
    if target.is_gpu:
        cuda.schedule(s, outs, target, keep=cpu_winograd.transforms(outs))
    else:
        cpu_winograd.schedule(s, outs, target)
