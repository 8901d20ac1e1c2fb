"""One value, in a shape."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims, dtypes
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr
from renorm.graph.attributes import Attribute, Type
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, TensorType, i64
from renorm.ops.shared import exact
from renorm.ops.shared.family import Injective


class Number(Attribute):
    """A number of any kind, as it came: integers stay exact."""

    kind = "a number"

    def convert(self, value: Any) -> int | float | bool:
        if not isinstance(value, (int, float, bool, np.generic)):
            raise TypeError("must be a number")
        return value.item() if isinstance(value, np.generic) else value


class ConstantOfShape(Injective):
    """y = value everywhere, as dtype."""

    signature = "shape!: i64[R] -> y: T[...]"
    value = Number(0.0)
    dtype = Type("float32")
    onnx = {"ConstantOfShape": 9}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """ONNX gives the value as a tensor of one element, whose type is the result's."""
        held = np.asarray(node.attribute("value", np.zeros(1, np.float32)))
        if held.size != 1:
            raise OperandError(f"ConstantOfShape: its value has {held.size} elements, expected 1")
        value = held.reshape(-1)[0]
        return cls(value=value, dtype=dtypes.from_numpy(held.dtype))(node.operands[0], name=node.name)

    def to_onnx(self, node: Any, opset: int) -> Any:
        return "ConstantOfShape", {"value": np.array([self.value], dtypes.numpy_dtype(self.dtype))}, list(node.inputs)

    def infer(self, shape: Operand) -> TensorType:
        if shape.known is None:
            unknown: Any = (None,) * dims.axes_said(shape.shape, "the shape operand")
            return TensorType(self.dtype, unknown)
        if any(isinstance(d, int) and d < 0 for d in shape.known):
            raise OperandError(f"constant_of_shape: an extent of {list(shape.known)} is negative")
        return TensorType(self.dtype, tuple(shape.known))

    def compute(self, shape: np.ndarray[Any, Any]) -> te.Tensor:
        extents: Any = [d if isinstance(d, Expr) else int(d) for d in shape]  # an open one counts as a number
        return topi.full(extents, self.dtype, self.value)

    def reference(self, shape: Any) -> Any:
        return np.full(tuple(shape), self.value, dtypes.numpy_dtype(self.dtype))

    def known_result(self, shape: exact.Known) -> np.ndarray[Any, Any] | None:
        if shape[1] is None:
            return None
        extents = [d for d in shape[1] if isinstance(d, int)]
        if len(extents) < len(shape[1]) or prod(extents) > exact.MOST:
            return None
        return np.full(extents, dtypes.numpy_dtype(self.dtype).type(self.value).item(), dtype=object)

    samples = [
        Sample(i64[2].of([2, 3])),
        Sample(i64[1].of([4]), value=7, dtype="int64"),
        Sample(i64[0].of([]), value=-1.5),
        Sample(i64[2].of([0, 3])),
        Sample(i64[1].of([2]), value=True, dtype="bool"),
        Sample(i64[1].of([2]), value=2**60 + 1, dtype="int64"),
        Sample(i64[1].of([3]), value=0.1, dtype="float16"),
    ]
    rejects = [
        Reject(i64[1].of([-2]), because="is negative"),
        Reject(i64[1].of([2]), value="x", because="must be a number"),
        Reject(i64[1, 1].of([[2]]), because="has rank 2"),
    ]
