"""Change of type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import conversion, dtypes
from renorm.core.dims import Sym
from renorm.graph.attributes import Type
from renorm.graph.ir import Node, Value
from renorm.graph.op import OnnxNode, Reach, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from renorm.ops.shared import exact
from renorm.ops.shared.family import Elementwise


class Cast(Elementwise):
    """y = x as another type; floats become integers by truncation, within its range, and bool where they are not 0."""

    signature = "x: T[*S] -> y: U[*S]"
    to = Type()
    onnx = {"Cast": 1, "CastLike": 15}
    onnx_ignored = ("saturate", "round_mode")  # these are about types of 8 bits

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """CastLike names the type by an operand that has it."""
        if node.op_type == "CastLike":
            x, like = node.operands
            return cls(to=like.dtype)(x, name=node.name)
        return super().from_onnx(node)

    def infer(self, x: Operand) -> TensorType:
        return TensorType(self.to, x.shape)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.cast(x, self.to)

    def reference(self, x: Any) -> Any:
        return conversion.converted(np.asarray(x), self.to)

    def known_result(self, x: exact.Known) -> np.ndarray[Any, Any] | None:
        return exact.elementwise(self._known, x)

    def known_range(self, node: Node, ranges: Mapping[Value, Reach]) -> Reach | None:
        is_wide = self.to in ("int32", "int64")  # as extents are
        return ranges.get(x) if is_wide and (x := node.inputs[0]) is not None else None

    def _known(self, x: Any) -> Any:
        """An extent stays one in every type but bool: those that occur are exact in float32 too."""
        kind = dtypes.lookup(self.to).kind
        if isinstance(x, Sym):
            return None if kind == "bool" else x
        if isinstance(x, exact.Ratio):
            return x.truncated() if kind in ("int", "uint") else x if self.to in ("float32", "float64") else None
        made = conversion.converted(np.asarray(x), self.to)
        return made[()] if kind == "float" else made.item()

    samples = [
        Sample(f32[2, 3, 5], to="int32"),
        Sample(f32[2, 3, 5], to="int64"),
        Sample(f32[6].of([0.0, -0.0, 0.5, np.nan, np.inf, -3]), to="bool"),
        Sample(f64[5], to="float32"),
        Sample(f32[9], to="float16"),
        Sample(f32[9], to="bfloat16"),
        Sample(f16[7], to="float32"),
        Sample(bf16[7], to="float32"),
        Sample(i64[2, 3], to="float32"),
        Sample(i32[4], to="int8"),
        Sample(u8[4], to="int32"),
        Sample(i8[4], to="float64"),
        Sample(boolean[2, 3], to="float32"),
        Sample(boolean[3], to="int64"),
        Sample(i32[4].of([0, 1, -1, 256]), to="bool"),
        Sample(f32[7].of([np.nan, np.inf, -np.inf, 3e9, -3e9, 300.7, -1.5]), to="int32"),
        Sample(f32[7].of([np.nan, np.inf, -np.inf, 3e19, -3e19, 300.7, -1.5]), to="uint8"),
        Sample(f64[5].of([np.nan, 1e19, -1e19, 9.3e18, -0.5]), to="int64"),
        Sample(i32[4].of([-1, 65519, 65520, 2**31 - 1]), to="float16"),
        Sample(i64[4].of([-1, 256, 2**40 + 3, -(2**63)]), to="uint8"),
        Sample(f32[3], to="float32"),
    ]
    rejects = [
        Reject(f32[3], because="needs to"),
        Reject(f32[3], because="attribute to = 'complex64' is not a dtype", to="complex64"),
    ]
