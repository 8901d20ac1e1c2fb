"""Schedules, chosen by the kind of target and by the name that an op gives (`OpDef.scheduled_as`).

Each is called with (s, outs, target) and schedules `s` in place; outs: results of the fused group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from renorm import te
from renorm.core.errors import UnsupportedOp, suggest
from renorm.core.target import Target
from renorm.graph.op import OpDef
from renorm.ops.schedules import (
    cpu_attention,
    cpu_convolution,
    cpu_injective,
    cpu_normalization,
    cpu_packing,
    cpu_reduction,
    cpu_transposed,
    cpu_winograd,
    cuda,
    given_loops,
    gpu_attention,
    gpu_elements,
    gpu_products,
    gpu_rows,
    structure,
)
from renorm.topi import layout

Schedule = Callable[["te.Schedule", Sequence["te.Tensor"], Target], None]  # in quotes: te is loaded when it is used


def _by_target(meaning: str, on_cpu: Schedule, on_gpu: Schedule) -> Schedule:
    """Return the schedule that is `on_cpu` on CPUs and `on_gpu` on GPUs; meaning: its docstring."""

    def scheduled(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
        (on_gpu if target.is_gpu else on_cpu)(s, outs, target)

    scheduled.__doc__ = meaning
    return scheduled


injective = _by_target("Elementwise, broadcast and injective results.", cpu_injective.schedule, gpu_elements.schedule)
reduction = _by_target(
    "Reductions and windows, with elementwise stages around them.", cpu_reduction.schedule, gpu_rows.schedule
)
normalization = _by_target(
    "Statistics of slices and the elements of these slices.", cpu_normalization.schedule, gpu_rows.schedule
)
convolution = _by_target("Convolutions of any rank.", cpu_convolution.schedule, gpu_products.schedule)
transposed_convolution = _by_target(
    "Transposed convolutions of any rank.", cpu_transposed.schedule, gpu_products.schedule
)
gemm = _by_target("Matrix products.", cpu_convolution.schedule, gpu_products.schedule)
attention = _by_target("Mixtures of values by scores of keys.", cpu_attention.schedule, gpu_attention.schedule)


def winograd(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """Convolutions by transformed tiles."""
    if target.is_gpu:
        cuda.schedule(s, outs, target, keep=cpu_winograd.transforms(outs))
    else:
        cpu_winograd.schedule(s, outs, target)


NAMED: dict[str, Schedule] = {
    "injective": injective,
    "reduction": reduction,
    "normalization": normalization,
    "convolution": convolution,
    "transposed_convolution": transposed_convolution,
    "gemm": gemm,
    "attention": attention,
    "winograd": winograd,
    "given_loops": given_loops.schedule,
}


def schedule(op: OpDef, s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> Any:
    """Schedule `s`, made for `outs`, as `op` has it: by its own method, or by the schedule that it names. Return what
    the method returns."""
    if type(op).schedule is not OpDef.schedule or not op.scheduled_as:
        return op.schedule(s, outs, target)
    if op.scheduled_as not in NAMED:
        raise UnsupportedOp(
            f"{op.name} is scheduled as {op.scheduled_as!r}, which is no schedule",
            [f"nearest: {suggest(op.scheduled_as, NAMED)}"],
        )
    made = NAMED[op.scheduled_as](s, outs, target)
    for weight in (t for t in structure.stages(outs) if t.op.tag == layout.PACKED):
        cpu_packing.schedule(s, weight)
    return made
