"""Gemm: the matrix product of BLAS, with scalars, transposition and a third matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import einsum

from renorm import te
from renorm.core import dtypes
from renorm.core.dims import Dim, take
from renorm.core.dtypes import FLOATS, is_float
from renorm.core.errors import OperandError
from renorm.core.shapes import spreads
from renorm.graph.attributes import Bool, Float
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import times
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64, i32
from renorm.ops.shared.folding import ALONG, in_float64, is_known, scaled_bias
from renorm.ops.shared.precision import spread
from renorm.te import tag
from renorm.topi.linear import product


class Gemm(OpDef):
    """y = alpha * a' @ b' + beta * c; a' is a, or its transpose with transA, and b' likewise; c broadcasts to y.

    As in BLAS, c is not read where beta is 0.
    """

    signature = "a: T[I, K], b: T[J, L], c?: T[...] -> y: T[...]"
    types = {"T": (*FLOATS, "int32", "int64", "uint32", "uint64")}
    onnx = {"Gemm": 1}
    onnx_ignored = ("broadcast",)  # read by from_onnx
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "gemm"
    is_product = True
    alpha = Float(1.0)
    beta = Float(1.0)
    transA = Bool(False)
    transB = Bool(False)

    def infer(self, a: Operand, b: Operand, c: Operand | None) -> tuple[Dim, ...]:
        (m, depth), (rows, n) = _turned(a.shape, self.transA), _turned(b.shape, self.transB)
        if depth != rows and isinstance(depth, int) and isinstance(rows, int):
            raise OperandError(
                f"gemm({a}, {b}): a has {depth} columns but b has {rows} rows",
                [f"transA is {int(self.transA)}, transB is {int(self.transB)}"],
            )
        take(depth, "==", rows)
        if c is not None and (c.rank > 2 or not spreads(c.shape, (m, n))):
            raise OperandError(f"gemm({a}, {b}, {c}): c does not broadcast to [{m}, {n}]")
        if not is_float(a.dtype) and not (self.alpha.is_integer() and self.beta.is_integer()):
            raise OperandError(
                f"gemm({a}, {b}): alpha {self.alpha} and beta {self.beta} must be integers over {a.dtype}"
            )
        return (m, n)

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return (0 if self.transB else 1) if index == 1 else None

    def rows_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return int(self.transB) if index == 1 and not self.transA else None

    def fold_after(self, operands: Sequence[Any], axis: int, k: Any, shift: Any) -> Any:
        """alpha and beta become part of the operands that change."""
        a, b, c = operands
        along = axis == 1  # factors per column fall upon b, factors per row upon a
        if k is not None and not is_known(b if along else a):
            return f"operand {'b' if along else 'a'} of gemm, which the factors fall upon, is not a constant"
        if c is not None and self.beta != 0 and not is_known(c):
            return "operand c of gemm is not a constant"
        changed: dict[str, float] = {"beta": 1.0}
        third = None if c is None or self.beta == 0 else c * self.beta
        if not along and third is not None and third.ndim < 2:
            third = third.reshape(1, -1)
        placed = [None if v is None else v if along else v[:, None] for v in (k, shift)]
        if k is not None:
            changed["alpha"] = 1.0
            a, b = self.scaled_operands(a, b, k * self.alpha, along)
        return self.with_attributes(**changed), [a, b, scaled_bias(third, *placed)]

    def fold_before(self, node: Node, operands: Sequence[Any], index: int, m: ChannelMap) -> Any:
        """The other matrix times k along what is summed; the shift adds the same to every row of y, or every column."""
        other, c, is_turned = operands[1 - index], operands[2], (self.transA, self.transB)
        if index > 1 or m.axis != int(is_turned[index] == bool(index)):
            return ALONG.format(m.axis)
        if not is_known(other) or (c is not None and self.beta != 0 and not is_known(c)):
            return f"operand {'ab'[1 - index]} or c of gemm is not a constant"
        third = None if c is None or self.beta == 0 else c * self.beta
        summed_last = is_turned[1 - index] == (index == 0)  # of the other matrix
        if m.shift is not None and m.shift.any():
            rows = in_float64(other)
            added = self.alpha * (rows @ m.shift if summed_last else m.shift @ rows)
            third = scaled_bias(third, None, added if index == 0 else added[:, None])
        if m.k is not None:
            other = times(other, m.k if summed_last else m.k[:, None])
        both = [operands[0], other] if index == 0 else [other, operands[1]]
        return self.with_attributes(beta=1.0), [*both, third], None

    def scaled_operands(self, a: Any, b: Any, k: Any, along: bool) -> tuple[Any, Any]:
        """The operands whose product is k times as large per column (along), or per row."""
        if along:
            return a, times(b, k[:, None] if self.transB else k)
        return times(a, k if self.transA else k[:, None]), b

    def compute(self, a: te.Tensor, b: te.Tensor, c: te.Tensor | None) -> te.Tensor:
        y = plain = product(a, b, self.transA, self.transB)
        if self.alpha != 1:
            y = te.compute(
                y.shape, lambda i, j: plain[i, j] * _number(self.alpha, plain), name="scaled", tag=tag.ELEMWISE
            )
        if c is not None and self.beta != 0:
            without, third = y, c

            def element(*index: Any) -> Any:
                term = spread(third, index)
                return without[index] + (term if self.beta == 1 else term * _number(self.beta, without))

            y = te.compute(y.shape, element, name="biased", tag=tag.BROADCAST)
        return y.astype(a.dtype)

    def reference(self, a: Any, b: Any, c: Any) -> Any:
        alpha, beta = (v if is_float(str(a.dtype)) else int(v) for v in (self.alpha, self.beta))
        y = alpha * einsum(f"{'ki' if self.transA else 'ik'},{'jk' if self.transB else 'kj'}->ij", a, b)
        return y if c is None or beta == 0 else y + beta * c

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Exporters of 2018 wrote a product without bias as one with a C of zeros, or a beta of 0: that C is left
        out. Before opset 7, C broadcasts only where `broadcast` says so."""
        a, b, c = cls.arrange(node.operands)
        chosen = {k: v for k, v in node.attributes.items() if k in cls.attributes}
        op = cls(**chosen)
        if c is not None and (op.beta == 0 or (c.data is not None and not c.data.any())):
            return op.with_attributes(beta=1.0)(a, b, name=node.name)
        y = op(a, b, c, name=node.name)
        if node.opset < 7 and c is not None and not node.attribute("broadcast", 0) and c.shape != y.shape:
            raise OperandError(
                f"{node.op_type} of opset {node.opset}: C {c.type} is not of the result's type {y.type}",
                do="set the attribute broadcast to 1",
            )
        return y

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Before opset 11 C has to be there, and before 7 `broadcast` says that it is not of the result's shape."""
        a, b, c = node.operands
        op_type, written, operands = super().to_onnx(node, opset) or ("", {}, [])
        if c is None and opset < 11:
            operands = [a, b, np.zeros(1, dtypes.numpy_dtype(a.dtype))]
        if opset < 7 and (c is None or c.shape != node.output.shape):
            written["broadcast"] = 1
        return op_type, written, operands

    samples = [
        Sample(f32[5, 7], f32[7, 3]),
        Sample(f32[5, 7], f32[7, 3], f32[3]),
        Sample(f32[7, 5], f32[7, 3], f32[5, 1], transA=True, alpha=0.5, beta=2.0),
        Sample(f32[5, 7], f32[3, 7], f32[()], transB=True, beta=-1.0),
        Sample(f32[7, 5], f32[3, 7], f32[5, 3], transA=True, transB=True),
        Sample(f32[5, 7], f32[7, 3], f32[1].of([float("nan")]), beta=0.0),
        Sample(f32[0, 3], f32[3, 2], f32[2]),
        Sample(f32[2, 0], f32[0, 3], f32[2, 3]),
        Sample(f64[3, 4], f64[4, 2], f64[1, 2]),
        Sample(f16[3, 40], f16[40, 2], f16[2]),
        Sample(bf16[3, 4], bf16[4, 2]),
        Sample(i32[3, 4], i32[4, 2], i32[2], alpha=2.0, beta=3.0),
    ]
    rejects = [
        Reject(f32[5, 7], f32[6, 3], because="a has 7 columns but b has 6 rows"),
        Reject(f32[5, 7], f32[7, 3], f32[5], because="c does not broadcast to [5, 3]"),
        Reject(f32[1, 7], f32[7, 3], f32[2, 3], because="c does not broadcast to [1, 3]"),
        Reject(f32[2, 5, 7], f32[7, 3], because="a has rank 3"),
        Reject(i32[3, 4], i32[4, 2], alpha=0.5, because="must be integers over int32"),
    ]


def _turned(pair: Any, transposed: bool) -> tuple[Any, Any]:
    first, second = pair
    return (second, first) if transposed else (first, second)


def _number(value: float, like: te.Tensor) -> Any:
    return te.const(value if is_float(like.dtype) else int(value), like.dtype)
