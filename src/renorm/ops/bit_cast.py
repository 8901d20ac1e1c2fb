"""The bits of elements of one type, read as another of as many bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core import dtypes
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, call
from renorm.graph.attributes import Type
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, TensorType, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u32, u64
from renorm.ops.shared.family import Elementwise

_TYPES = ("float32", "float64", *dtypes.INTS, "bool")  # narrower floats have other bits where they are computed with
_INTEGERS = {32: "int32", 64: "int64"}  # of as many bits as a float


class BitCast(Elementwise):
    """y = the elements that the bits of x are in another type. What is not 0 is true."""

    signature = "x: T[*S] -> y: U[*S]"
    types = {"T": _TYPES}
    to = Type()
    onnx = {"BitCast": 26}

    def infer(self, x: Operand) -> TensorType:
        if self.to not in _TYPES:
            raise OperandError(f"bit_cast to {self.to}, of which bits are not read", [f"known: {', '.join(_TYPES)}"])
        if dtypes.lookup(x.dtype).bits != dtypes.lookup(self.to).bits:
            raise OperandError(f"bit_cast of {x} to {self.to}, which has another number of bits")
        return TensorType(self.to, x.shape)

    def compute(self, x: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Expr:
            e = x[i]
            if dtypes.is_float(x.dtype) == dtypes.is_float(self.to):
                return e.astype(self.to)  # integers wrap: bits stay
            if dtypes.is_float(x.dtype):
                return call("bitcast", e).astype(self.to)
            return call("bitcast", e.astype(_INTEGERS[dtypes.lookup(self.to).bits]))

        return te.compute(x.shape, element, name="bit_cast")

    def reference(self, x: Any) -> Any:
        array = np.asarray(x)
        if array.dtype.kind == "f":  # in float64, whatever it is
            array = array.astype(f"float{dtypes.lookup(self.to).bits}")
        return array != 0 if self.to == "bool" else array.view(self.to)

    samples = [
        Sample(f32[2, 3, 5], to="int32"),
        Sample(f32[7].of([0.0, -0.0, np.inf, -np.inf, 1e-45, -3.4e38, 1.5]), to="uint32"),
        Sample(f64[3, 5].between(-1e300, 1e300), to="int64"),
        Sample(f64[4].of([-0.0, np.inf, 5e-324, -1.5]), to="uint64"),
        Sample(i32[5].of([0, -(2**31), 2**30, 1, 0x7F800000]), to="float32"),
        Sample(u32[3, 1].of([[2**31], [0x3F800000], [1]]), to="float32"),
        Sample(i64[2, 3].of([[1, -(2**63), 2**62], [0x3FF0000000000000, 7, 0]]), to="float64"),
        Sample(u64[2].of([2**63, 0x4008000000000000]), to="float64"),
        Sample(u32[3].of([2**32 - 1, 0, 5]), to="int32"),
        Sample(i64[3].of([-1, 5, -(2**63)]), to="uint64"),
        Sample(i16[5, 3].of(np.arange(-7, 8).reshape(5, 3)), to="uint16"),
        Sample(i8[5].of([-128, -1, 0, 1, 127]), to="uint8"),
        Sample(boolean[3, 7], to="uint8"),
        Sample(u8[3].of([0, 1, 2]), to="bool"),
        Sample(f32[()], to="int32"),
        Sample(f32[0, 3], to="int32"),
        Sample(f32[3], to="float32"),
    ]
    rejects = [
        Reject(f32[3], because="needs to"),
        Reject(f32[3], because="another number of bits", to="float64"),
        Reject(i16[3], because="bits are not read", to="float16"),
        Reject(f16[3], because="x is float16", to="int16"),
    ]
