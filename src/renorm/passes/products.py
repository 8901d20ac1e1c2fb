"""Matrix products in one form: whatever an exporter wrote for x @ w + b, the kernel is a gemm over a weight that is
not transposed.

MatMul of two matrices and Gemm compute the same; MatMul with leading axes does not, and stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.graph import deferred
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Refusal, Rewrite
from renorm.ops.gemm import Gemm
from renorm.passes.affine import given


class MatmulToGemm(Rewrite):
    """matmul(a, b) -> gemm(a, b) for matrices a, b"""

    brings = "gemm"

    def pattern(self, a: Any, b: Any) -> Any:
        return ops.matmul(a, b)

    def plan(self, m: Match) -> Plan | Refusal:
        if m.a.rank != 2 or m.b.rank != 2:
            return Refusal(f"operands are of rank {m.a.rank} and {m.b.rank}, and gemm takes matrices")
        return Plan(self.rewrite)

    def rewrite(self, m: Match) -> Value:
        return ops.gemm(m.a, m.b)


class GemmOfTransposed(Rewrite):
    """gemm(a, transpose(b)) -> gemm(a, b, transB flipped)"""

    shares = True

    def pattern(self, a: Any, b: Any, c: Any) -> Any:
        return ops.gemm(a, ops.transpose(b, perm=(1, 0)), c)

    def rewrite(self, m: Match) -> Value:
        op = m.root.op
        return op.with_attributes(transB=not op.values["transB"])(m.a, m.b, m.c)


class GemmTransposesConstant(Rewrite):
    """gemm(a, constant b, transB) -> gemm(a, b'), b' = transposed b"""

    constants = ("b",)

    def pattern(self, a: Any, b: Any, c: Any) -> Any:
        return Gemm(transB=True)(a, b, c)

    def rewrite(self, m: Match) -> Value:
        b = m.graph.constant(m.b.data.T, m.b.name, m.b.source)
        b.exact = None if m.b.exact is None else m.b.exact.T
        return m.root.op.with_attributes(transB=False)(m.a, b, m.c)


class GemmDropsC(Rewrite):
    """gemm(a, b, c) -> gemm(a, b) for beta = 0 or c = 0"""

    def pattern(self, a: Any, b: Any, c: Any) -> Any:
        return ops.gemm(a, b, c)

    def plan(self, m: Match) -> Plan | None:
        is_nothing = m.c is not None and (m.root.op.values["beta"] == 0 or (m.c.is_constant and not m.c.data.any()))
        return Plan(self.rewrite) if is_nothing else None

    def rewrite(self, m: Match) -> Value:
        return m.root.op.with_attributes(beta=1.0)(m.a, m.b)


class GemmFoldsScalars(Rewrite):
    """alpha * (a @ b) + beta * c -> a @ (alpha * b) + (beta * c) for constants b, c"""

    def pattern(self, a: Any, b: Any, c: Any) -> Any:
        return ops.gemm(a, b, c)

    def plan(self, m: Match) -> Plan | None:
        values, c = m.root.op.values, m.c
        scaled = [v for v, factor in ((m.b, values["alpha"]), (c, values["beta"])) if v is not None and factor != 1]
        can_be = scaled and dtypes.is_float(m.a.dtype) and all(v.is_constant for v in scaled)
        return Plan(self.rewrite) if can_be else None

    def rewrite(self, m: Match) -> Value:
        alpha, beta = m.root.op.values["alpha"], m.root.op.values["beta"]

        def times(v: Value | None, factor: float) -> Value | None:
            if v is None or factor == 1:
                return v
            return m.graph.constant(deferred.times(given(v), np.asarray(factor)), v.name, v.source, dtype=v.dtype)

        return m.root.op.with_attributes(alpha=1.0, beta=1.0)(m.a, times(m.b, alpha), times(m.c, beta))


RULES: tuple[Rewrite, ...] = (
    MatmulToGemm(),
    GemmOfTransposed(),
    GemmTransposesConstant(),
    GemmDropsC(),
    GemmFoldsScalars(),
)
