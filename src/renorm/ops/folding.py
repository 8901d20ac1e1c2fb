"""How factors and shifts per channel become part of an op's constants: the arithmetic behind `OpDef.scaled`.

Arrays come and go in float64, weights in the dtype they are stored in or as a Deferred. k, shift: one number per
channel of the result, or None where there is nothing to multiply or add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm.graph.deferred import Deferred
from renorm.graph.op import OpDef

Array = Any


def is_known(operand: Any) -> bool:
    """Whether an operand of `scaled` is a constant."""
    return isinstance(operand, (np.ndarray, Deferred))


def scaled_product(
    op: OpDef, operands: Sequence[Any], axis: int, k: Array, shift: Array, weight_times: Callable[[Array, Array], Array]
) -> Any:
    """y * k + shift for y = product(x, w) + b with channels on axis 1: (op, [x, w * k, b * k + shift]), or why not."""
    x, w, b = operands
    if axis != 1:
        return f"the factors run along axis {axis} of the result of {op.name}, not along its channels"
    if k is not None and not is_known(w):
        return f"the weight of {op.name} is not a constant"
    if b is not None and not is_known(b):
        return f"the bias of {op.name} is not a constant"
    return op, [x, w if k is None else weight_times(w, k), scaled_bias(b, k, shift)]


def scaled_affine(
    op: OpDef, operands: Sequence[Any], axis: int, channels: int, k: Array, shift: Array, at: int = 1
) -> Any:
    """y * k + shift for a normalization y = x' * scale + bias, whose scale and bias are operands `at` and at + 1 and
    run along axis `channels`: (op, operands with scale * k and bias * k + shift), or why not."""
    scale, bias = operands[at], operands[at + 1]
    if axis != channels:
        return f"the factors run along axis {axis} of the result of {op.name}, its scale and bias along axis {channels}"
    if not is_known(scale) or not (bias is None or is_known(bias)):
        return f"scale and bias of {op.name} are not constants"
    changed = list(operands)
    changed[at], changed[at + 1] = scale if k is None else scale * k, scaled_bias(bias, k, shift)
    return op, changed


def scaled_bias(b: Array, k: Array, shift: Array) -> Array:
    """b * k + shift; `b` itself, or None, where nothing changes it."""
    if b is None:
        return shift
    b = b if k is None else b * k
    return b if shift is None else b + shift
