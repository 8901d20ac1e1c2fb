"""Dropout, which at inference passes everything."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dtypes
from renorm.core.dims import is_static
from renorm.graph.attributes import Float
from renorm.graph.op import ELEMENTWISE, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64
from renorm.ops.shared import builders


class Dropout(OpDef):
    """y = x. ratio: the share of elements that training would set to zero; kept so that a file can be written back.

    In training mode too: what ONNX defines there is noise, which every runtime draws otherwise, round this y.
    """

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": dtypes.FLOATS}
    onnx = {"Dropout": 1}
    onnx_ignored = ("is_test", "consumed_inputs", "seed")
    fusion = ELEMENTWISE
    scheduled_as = "injective"
    ratio = Float(0.5)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.elementwise(lambda e: e, x, name="dropout")

    def reference(self, x: Any) -> Any:
        return x

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Until opset 6 `is_test` says that nothing is dropped, until 11 nothing ever is, then an operand says what is.

        Result 1, the mask of what was kept, is all true (of x's dtype until opset 9).
        """
        x, *rest = node.operands
        ratio, training = [*rest, None, None][:2]
        share = _number(ratio, node.attribute("ratio", 0.5))
        trains = not node.attribute("is_test", 0) if node.opset < 7 else _number(training, False)
        if trains is None or (trains and share != 0):
            mode = "may be" if trains is None else "is"
            node.assumed.append(
                f"Dropout {node.name!r} {mode} in training mode: nothing is dropped, as at inference, where training "
                "would drop at random"
            )
        y = cls(ratio=0.5 if share is None else share)(x, name=node.name)
        if not any(node.is_asked[1:]):
            return y
        kept = np.asarray(True).astype(dtypes.numpy_dtype(x.dtype) if node.opset < 10 else bool)
        shape = np.asarray(x.shape, np.int64) if is_static(x.shape) else builders.find("shape")(x)
        return [y, builders.find("expand")(x.graph.constant(kept, f"{node.name}_kept"), shape)]

    samples = [
        Sample(f32[2, 3, 4]),
        Sample(f32[3].of([float("nan"), float("inf"), -0.0]), ratio=0.1),
        Sample(f32[()]),
        Sample(f32[0, 3]),
        Sample(f64[2]),
        Sample(f16[2]),
        Sample(bf16[2]),
    ]
    rejects = [Reject(f32[2], ratio="often", because="ratio")]


def _number(value: Any, default: Any) -> Any:
    """The one element of an optional operand; None where it is not known yet."""
    if value is None:
        return default
    return None if value.data is None else value.data.reshape(-1)[0].item()
