"""Cholesky factors of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.expr.nodes import call, cast, const
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.inverse import squared
from renorm.ops.shared.elimination import WIDE
from renorm.topi.transform import unravel

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops


class Cholesky(OpDef):
    """y = L, lower triangular, with L L' = x, of which what lies above the diagonal is not read. Where x is not
    positive definite, elements of L are no numbers."""

    signature = "x: T[*S] -> y: T[*S]"
    types = {"T": FLOATS}
    scheduled_as = "given_loops"

    def wants_digits(self, index: int) -> str:
        return "errors of a factor grow with the condition of the matrix"

    def infer(self, x: Operand) -> None:
        squared("cholesky", x)

    def to_onnx(self, node: Any, opset: int) -> Any:
        """ONNX has no such op."""
        return None

    def compute(self, x: te.Tensor) -> te.Tensor:
        made = te.extern(x.shape, [x], _factored, name="factors", dtype=WIDE, rounds=math.prod(x.shape[:-2]))
        return te.compute(x.shape, lambda *i: made[i].astype(x.dtype), name="cholesky", tag=te.tag.INJECTIVE)

    def reference(self, x: Any) -> Any:
        def factor(matrix: Any) -> Any:
            try:
                return np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:  # elements in front of the first that is no number are numbers
                return _by_rows(matrix)

        flat = [factor(m) for m in np.reshape(x, (-1, *np.shape(x)[-2:]))] if np.size(x) else []
        return np.reshape(np.array(flat, np.float64), np.shape(x))

    samples = [
        Sample(f32[3, 3].of([[4, 9, 20], [2, 5, 40], [1, 3, 6]])),
        Sample(f32[2, 1, 1].of([[[4]], [[0.25]]])),
        Sample(f64[2, 3, 3], tolerance=1e-9),  # of random numbers few are positive definite
        Sample(f16[3, 2, 2]),
        Sample(bf16[3, 2, 2]),
        Sample(f32[0, 3, 3]),
        Sample(f32[2, 0, 0]),
    ]
    rejects = [
        Reject(f32[3], because="is no matrix"),
        Reject(f32[2, 3, 4], because="3 rows and 4 columns"),
    ]


def _by_rows(x: Any) -> Any:
    made = np.zeros(x.shape)
    for i in range(len(x)):
        for j in range(i + 1):
            left = x[i, j] - made[i, :j] @ made[j, :j]
            made[i, j] = np.sqrt(left) if i == j else left / made[j, j]
    return made


def _factored(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
    """L[i, j] = (x[i, j] - sum over k < j of L[i, k] L[j, k]) / L[j, j], and its root on the diagonal, row by row."""
    (x,) = inputs
    *lead, rows, _ = output.shape
    matrix, left = unravel(loops.round, lead), loops.allocate((1,), WIDE, "left")
    with loops.for_range(0, rows) as i:
        with loops.for_range(0, rows, "j") as j:
            output[(*matrix, i, j)] = const(0.0, WIDE)
        with loops.for_range(0, i + 1, "j") as j:
            left[0] = cast(WIDE, x[(*matrix, i, j)])
            with loops.for_range(0, j, "k") as k:
                left[0] = left[0] - output[(*matrix, i, k)] * output[(*matrix, j, k)]
            with loops.if_scope(i.equal(j)):
                output[(*matrix, i, j)] = call("sqrt", left[0])
            with loops.if_scope(j < i):
                output[(*matrix, i, j)] = left[0] / output[(*matrix, j, j)]
