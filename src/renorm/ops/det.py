"""Determinants of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS, compute_dtype
from renorm.expr.nodes import any_of, call, cast, const, select
from renorm.graph.op import OpDef, Reject, Sample
from renorm.graph.types import f16, f32, f64

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops


class Det(OpDef):
    """y = the determinant of each matrix that the last two axes hold: by elimination, the greatest element of a column
    first."""

    signature = "x: T[*S, M, M] -> y: T[*S]"
    types = {"T": FLOATS}
    onnx = {"Det": 11}
    scheduled_as = "given_loops"

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = x.shape[:-2]
        return te.extern(shape, [x], _eliminated, name="det", dtype=x.dtype, rounds=math.prod(shape))

    def reference(self, x: Any) -> Any:
        return np.linalg.det(x) if np.size(x) or 0 not in np.shape(x)[:-2] else np.zeros(np.shape(x)[:-2])

    samples = [
        Sample(f32[3, 3]),
        Sample(f32[2, 3, 5, 5]),
        Sample(f32[4, 1, 1]),
        Sample(f32[2, 3, 3].of([[[0, 2, 1], [0, 0, 3], [4, 1, 1]], [[1, 2, 3], [2, 4, 6], [0, 1, 1]]])),
        Sample(f64[2, 7, 7]),
        Sample(f16[2, 2, 2], tolerance=5e-3),
        Sample(f32[0, 3, 3]),
    ]
    rejects = [
        Reject(f32[2, 3], because="M"),
        Reject(f32[3], because="has rank 1"),
    ]


def _eliminated(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
    (x,) = inputs
    n, dtype = x.shape[-1], compute_dtype(x.dtype)
    lead = [loops.round // math.prod(x.shape[a + 1 : -2]) % extent for a, extent in enumerate(x.shape[:-2])]
    rows, det = loops.allocate((n, n), dtype, "rows"), loops.allocate((1,), dtype, "det")
    chosen = loops.allocate((1,), "int32", "chosen")
    det[0] = const(1, dtype)
    with loops.for_range(0, n) as i, loops.for_range(0, n) as j:
        rows[i, j] = cast(dtype, x[(*lead, i, j)])
    with loops.for_range(0, n, "k") as k:
        chosen[0] = k
        with loops.for_range(0, n) as i, loops.if_scope(i > k):
            row, own = loops.let(chosen[0], "row"), loops.let(call("abs", rows[i, k]), "own")
            with loops.if_scope(row >= 0, row < n, any_of(own > call("abs", rows[row, k]), call("isnan", own))):
                chosen[0] = i
        first = loops.let(chosen[0], "first")
        with loops.if_scope(first >= 0, first < n):
            pivot = loops.let(rows[first, k], "pivot")
            det[0] = det[0] * select(first.equal(k), pivot, -pivot)
            with loops.for_range(k, n, "j") as j:
                held = loops.let(rows[k, j], "held")
                rows[k, j] = rows[first, j]
                rows[first, j] = held
            with loops.for_range(0, n) as i, loops.if_scope(i > k, any_of(pivot < 0, pivot > 0)):
                factor = loops.let(rows[i, k] / pivot, "factor")
                with loops.for_range(k, n, "j") as j:
                    rows[i, j] = rows[i, j] - factor * rows[k, j]
    output[tuple(lead)] = det[0]
