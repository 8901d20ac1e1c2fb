"""Change of type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import conversion, dtypes
from renorm.core.dims import Sym
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, maximum, minimum
from renorm.graph.attributes import Bool, Type
from renorm.graph.ir import Node, Value
from renorm.graph.op import OnnxNode, Reach, Reject, Sample
from renorm.graph.types import (
    Operand,
    TensorType,
    bf16,
    boolean,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i32,
    i64,
    u2,
    u4,
    u8,
)
from renorm.ops.shared import exact
from renorm.ops.shared.family import Elementwise

# of a float of at most 8 bits: what rounds to it, to even, up, to its smallest numbers and beyond its greatest one
_EDGES = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.06, 1.0625, -1.1875, 17.0, 19.0, 0.001, -0.0013, 7e-6, 1e-9, 5.0, -0.25,
          0.75, 239.9, 248.0, -449.0, 464.0, 57344.0, -61439.0, 61440.0, 1e9, -3e38]  # fmt: skip


class Cast(Elementwise):
    """y = x as another type; floats become integers by truncation, within its range, and bool where they are not 0.

    saturate: what is beyond a float of 8 bits becomes its greatest number; otherwise infinite, or NaN where the type
    has no infinity. Floats become integers of less than 8 bits by truncation to int32, which wraps.
    """

    signature = "x: T[*S] -> y: U[*S]"
    to = Type()
    saturate = Bool(True)
    onnx = {"Cast": 1, "CastLike": 15}
    onnx_ignored = ("round_mode",)  # this is about float8e8m0

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """CastLike names the type by an operand that has it."""
        if node.op_type == "CastLike":
            x, like = node.operands
            return cls(to=like.dtype, saturate=node.attribute("saturate", 1))(x, name=node.name)
        return super().from_onnx(node)

    def infer(self, x: Operand) -> TensorType:
        if self.to not in dtypes.MOVED:
            raise OperandError(f"cast: to = {self.to} is no dtype of a value of a graph")
        return TensorType(self.to, x.shape)

    def compute(self, x: te.Tensor) -> te.Tensor:
        most = self._most(x.dtype)
        if most is None:
            return topi.cast(x, self.to)

        def element(e: Expr) -> Expr:
            wide = e if dtypes.is_float(e.dtype) else e.astype("float32")
            return maximum(minimum(wide, most), -most)

        return topi.elementwise(element, x, name="cast", dtype=self.to)

    def reference(self, x: Any) -> Any:
        array = np.asarray(x)
        most = self._most(dtypes.from_numpy(array.dtype))
        return conversion.converted(array if most is None else np.clip(array.astype(np.float64), -most, most), self.to)

    def _most(self, dtype: str) -> float | None:
        """What results do not exceed; None where nothing is cut off: what has the type already stays as it is."""
        is_cut = self.saturate and self.to in dtypes.FORMATS and dtype != self.to
        return dtypes.FORMATS[self.to].greatest if is_cut else None

    def known_result(self, x: exact.Known) -> np.ndarray[Any, Any] | None:
        return exact.elementwise(self._known, x)

    def known_range(self, node: Node, ranges: Mapping[Value, Reach]) -> Reach | None:
        is_wide = self.to in ("int32", "int64")  # as extents are
        return ranges.get(x) if is_wide and (x := node.inputs[0]) is not None else None

    def _known(self, x: Any) -> Any:
        """An extent stays one in every type of 16 bits and more: those that occur are exact in float32 too."""
        kind = dtypes.lookup(self.to).kind
        if isinstance(x, Sym):
            return None if kind == "bool" or dtypes.is_stored(self.to) else x
        if isinstance(x, exact.Ratio):
            return x.truncated() if kind in ("int", "uint") else x if self.to in ("float32", "float64") else None
        made = self.reference(x)
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
        *(Sample(f32[26].of(_EDGES), to=to, saturate=s) for to in dtypes.FORMATS for s in (True, False)),
        *(Sample(f32[7].of([np.nan, 7.9, -8.9, -9.9, 16.0, 300.7, -1.5]), to=to) for to in ("int4", "uint4", "int2")),
        Sample(f16[3, 5].between(-500, 500), to="float8e4m3fn"),
        Sample(bf16[17].between(-1, 1), to="float8e4m3fnuz", saturate=False),
        Sample(f64[3].of([1.0625 + 2.0**-40, 1.125 + 2.0**-45, -(2.0**-17) - 2.0**-60]), to="float8e5m2"),
        Sample(i64[4].of([-17, 2**40 + 3, 18, 19]), to="float8e4m3fn"),
        Sample(i32[5].of([7, 8, -9, 300, -1]), to="int4"),
        Sample(i64[5].of([15, 16, -1, 2**40 + 3, 0]), to="uint4"),
        Sample(u8[3].of([255, 2, 5]), to="uint2"),
        Sample(boolean[3], to="float4e2m1"),
        Sample(boolean[3], to="int2"),
        Sample(f8e4m3fn[2, 9].between(-400, 400), to="float32"),
        Sample(f8e4m3fn[5].of([np.nan, 0.0, -0.0, 2.0**-9, -448]), to="float16"),
        Sample(f8e4m3fnuz[5].of([np.nan, 0.0, 2.0**-10, -240, 1]), to="float64"),
        Sample(f8e5m2[6].of([np.nan, np.inf, -np.inf, -0.0, 2.0**-16, 57344]), to="float32"),
        Sample(f8e5m2fnuz[4].of([np.nan, 2.0**-17, -57344, 3]), to="bfloat16"),
        Sample(f8e5m2[7].between(-3, 3), to="float8e4m3fn"),
        Sample(f8e5m2[5].of([0, -0.0, 0.1, -2, np.nan]), to="bool"),
        Sample(f4e2m1[16].between(-6, 6), to="float32"),
        Sample(f4e2m1[3, 3].between(-6, 6), to="int4"),
        Sample(i4[3, 5].between(-5, 5), to="float32"),
        Sample(i4[16], to="int8"),
        Sample(i4[5], to="uint4"),
        Sample(u4[3, 7].between(0, 13), to="uint8"),
        Sample(u4[9].between(0, 13), to="float16"),
        Sample(i2[5].of([-2, -1, 0, 1, 1]), to="int64"),
        Sample(u2[4].of([0, 1, 2, 3]), to="float32"),
        Sample(u2[4].of([0, 1, 2, 3]), to="bool"),
        Sample(i4[2, 3], to="int4"),
    ]
    rejects = [
        Reject(f32[3], because="needs to"),
        Reject(f32[3], because="attribute to = 'complex64' is not a dtype", to="complex64"),
    ]
