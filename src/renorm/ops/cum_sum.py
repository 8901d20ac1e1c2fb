"""Running sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from renorm import te
from renorm.core import dims, shapes
from renorm.core.dims import Shape
from renorm.core.dtypes import NUMBERS, compute_dtype
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, cast, const
from renorm.graph.attributes import Bool
from renorm.graph.op import OPAQUE, OpDef, Reject, Sample
from renorm.graph.types import Operand, f16, f32, i32, i64

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

_LANES = 16  # sums that run side by side, where neighbours in memory are of different ones


class Running(OpDef):
    """Base of cum_sum and cum_prod. unit: what is there before the first element."""

    types = {"T": NUMBERS, "I": ("int64", "int32")}
    exclusive = Bool(False)
    reverse = Bool(False)
    fusion = OPAQUE
    scheduled_as = "given_loops"
    unit: ClassVar[int] = 0

    def infer(self, x: Operand, axis: Operand) -> Shape:
        if axis.known is None or axis.shape not in ((), (1,)):
            raise OperandError(f"{self.name}: {axis} is not a scalar that is known at compile time")
        shapes.normalize_axis(dims.number(axis.known.reshape(-1)[0], f"{self.name}: its axis"), x.rank)
        return x.shape

    def compute(self, x: te.Tensor, axis: np.ndarray[Any, Any]) -> te.Tensor:
        along = shapes.normalize_axis(int(axis.reshape(-1)[0]), x.ndim)
        rounds = math.prod(_rounds(x.shape, along))
        body = _running(along, self.exclusive, self.reverse, self.unit)
        return te.extern(x.shape, [x], body, name=self.name, rounds=rounds)

    def reference(self, x: Any, axis: Any) -> Any:
        along = int(np.reshape(axis, ()))
        turned = np.flip(x, along) if self.reverse else np.asarray(x)
        if self.exclusive:
            behind = np.delete(turned, [-1] if turned.shape[along] else [], along)
            first = np.full_like(np.take(turned, [0][: turned.shape[along]], along), self.unit)
            turned = np.concatenate([first, behind], along)
        total = (np.cumprod if self.unit else np.cumsum)(turned, along, dtype=turned.dtype)
        return np.flip(total, along) if self.reverse else total

    samples = [
        Sample(f32[5], i64[()].of(0)),
        Sample(f32[2, 5], i32[()].of(-1), exclusive=1),
        Sample(f32[4, 3], i64[1].of([0]), reverse=1),
        Sample(i64[2, 4], i64[()].of(1), reverse=1, exclusive=1),
        Sample(f16[6], i64[()].of(0), tolerance=2e-3),
        Sample(f32[2, 7, 3, 35], i64[()].of(1)),
        Sample(f32[3, 20], i64[()].of(0), reverse=1, exclusive=1),
        Sample(f16[3, 1, 16], i64[()].of(-3), tolerance=2e-3),
        Sample(i32[0, 3], i64[()].of(0)),
    ]
    rejects = [
        Reject(f32[5], i64[()].of(1), because="axis 1 is outside"),
        Reject(f32[5], i64[2].of([0, 0]), because="is not a scalar"),
    ]


class CumSum(Running):
    """y[k] = x[0] + ... + x[k] along axis; exclusive leaves out x[k]; reverse runs from the end."""

    signature = "x: T[*S], axis!: I[...] -> y: T[*S]"
    onnx = {"CumSum": 11}


class CumProd(Running):
    """y[k] = x[0] * ... * x[k] along axis; exclusive leaves out x[k]; reverse runs from the end."""

    signature = "x: T[*S], axis!: I[...] -> y: T[*S]"
    onnx = {"CumProd": 26}
    unit = 1


def _rounds(shape: Sequence[Any], along: int) -> list[Any]:
    """Return how many rounds there are along each axis: none along that of the sums, and vectors along the last one."""
    last = len(shape) - 1
    return [1 if a == along else (d + (_LANES - 1)) // _LANES if a == last else d for a, d in enumerate(shape)]


def _running(along: int, exclusive: bool, reverse: bool, unit: int) -> Body:
    """The loops of one sum (unit: 0) or product (1), or of a vector of these along the last axis."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        (x,) = inputs
        n, last, counts = x.shape[along], len(x.shape) - 1, _rounds(x.shape, along)
        index = list[Any]()
        for a, count in enumerate(counts):
            after = math.prod(counts[a + 1 :])
            index.append(loops.round // after % count)
        dtype = compute_dtype(x.dtype)
        total = loops.allocate((_LANES,), dtype, "total")

        def run(
            lanes: int, place: Callable[[Expr, Expr], list[Any]], kind: str, *inside: Callable[[Expr], Expr]
        ) -> None:
            with loops.for_range(0, lanes, "lane", kind) as lane:
                total[lane] = const(unit, dtype)
            with ExitStack() as around:
                k = around.enter_context(loops.for_range(0, n, "k"))
                lane = around.enter_context(loops.for_range(0, lanes, "lane", kind))
                around.enter_context(loops.if_scope(*(f(lane) for f in inside)))
                at = tuple(place(n - 1 - k if reverse else k, lane))
                so_far, element = total[lane], cast(dtype, x[at])
                after = so_far * element if unit else so_far + element
                output[at] = so_far if exclusive else after
                total[lane] = after

        if along == last:
            run(1, lambda k, _: [*index[:last], k], "serial")
            return
        first = loops.let(index[last] * _LANES, "first")

        def within(k: Expr, lane: Expr) -> list[Any]:
            return [k if a == along else first + lane if a == last else i for a, i in enumerate(index)]

        with loops.if_scope(first + _LANES <= x.shape[last]):
            run(_LANES, within, "vectorized")
        with loops.if_scope(first + _LANES > x.shape[last]):
            run(_LANES, within, "serial", lambda lane: first + lane < x.shape[last])

    return body
