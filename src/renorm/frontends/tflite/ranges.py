"""Which real numbers a tensor can be: what operators say of their results, and what the integers of a quantized tensor
can stand for, at which runtimes saturate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from renorm import ops
from renorm.core.conversion import limits
from renorm.frontends.tflite.activations import CUTTING
from renorm.frontends.tflite.tensors import Range, Scale, Tensor
from renorm.graph.ir import Value

if TYPE_CHECKING:
    from renorm.frontends.tflite.call import OperatorCall

ALL: Range = (-math.inf, math.inf)

# What operators and activations cut their results to
_WITHIN: dict[str, Range] = {
    **CUTTING,
    "L2_NORMALIZATION": (-1, 1),
    "LOGISTIC": (0, 1),
    "SOFTMAX": (0, 1),
    "TANH": (-1, 1),
}


def of_result(call: OperatorCall) -> Range:
    """Return where the results of an operator lie."""
    at = call.operator.between
    read = call.inputs if at is None else [call.inputs[i] for i in at if i < len(call.inputs)]
    held = [_of(t) for t in read if t is not None]
    low, high = (min(r[0] for r in held), max(r[1] for r in held)) if held else ALL
    for name in (call.kind, call.activation):
        least, most = _WITHIN.get(name, ALL)
        low, high = min(max(low, least), most), max(min(high, most), least)
    return low, high


def _of(tensor: Tensor) -> Range:
    data = tensor.value.data
    if tensor.range is not None or data is None:
        return tensor.range or ALL
    return (float(data.min()), float(data.max())) if data.size and not np.isnan(data).any() else ALL


def of_integers(scale: Scale, dtype: str) -> Range:
    """Return the least and greatest number that integers of a dtype stand for, of all channels."""
    ends = np.outer(limits(dtype), np.ones(scale.zero_point.size)) - scale.zero_point
    real = (ends * scale.scale.astype(np.float64)).astype(np.float32)
    return float(real.min()), float(real.max())


def saturated(value: Value, scale: Scale, dtype: str, axis: int, held: Range) -> Value:
    """Return a value cut to what the integers of a tensor stand for, where it can lie beyond. axis: of the value, along
    which scales differ if there are several."""
    if scale.scale.size > 1:
        shape = [-1 if a == axis else 1 for a in range(value.rank)]
        ends = [(end - scale.zero_point) * scale.scale.astype(np.float64) for end in limits(dtype)]
        low, high = (e.astype(np.float32).reshape(shape) for e in ends)
        return ops.min(ops.max(value, low), high)
    low, high = of_integers(scale, dtype)
    bounds = [np.float32(b) if binds else None for b, binds in ((low, held[0] < low), (high, held[1] > high))]
    return value if bounds == [None, None] else ops.clip(value, *bounds)
