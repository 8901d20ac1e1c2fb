"""A tensor read at positions that a grid gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from renorm import te
from renorm.core import dims
from renorm.core.dims import Dim, is_static, static
from renorm.core.dtypes import ALL, FLOATS, is_float
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, all_of, cast, const
from renorm.graph.attributes import Bool, String
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, boolean, f16, f32, f64, i64
from renorm.ops.shared.composite import apply
from renorm.ops.shared.precision import wide
from renorm.ops.shared.sampling import Sampling

_OLD_MODES = {"linear": "bilinear", "cubic": "bicubic"}  # as they were called before opset 20


class GridSample(OpDef):
    """y[n, c, o..] = x[n, c] at the position grid[n, o..], whose last axis has one number from -1 to 1 for each axis of
    x, the last axis first: the nearest element, or a mean of those around it.

    -1 and 1 are the middles of the outermost elements (align_corners), or their outer edges. Outside is 0, or what a
    position there is moved to: the border, or where the border reflects it to. in_elements: the grid counts elements
    from the middle of the first one on, which ONNX cannot say.
    """

    signature = "x: T[N, C, *S], grid: G[N, *R] -> y: T[...]"
    types = {"T": ALL, "G": FLOATS}
    mode = String("linear", among=("linear", "nearest", "cubic"))
    padding_mode = String("zeros", among=("zeros", "border", "reflection"))
    align_corners = Bool(False)
    in_elements = Bool(False)
    onnx = {"GridSample": 16}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "reduction"

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Modes had other names before opset 20."""
        mode = node.attribute("mode", "linear")
        named = {old: new for new, old in _OLD_MODES.items()}.get(mode, mode)
        others = {"padding_mode": "zeros", "align_corners": 0}
        given = {a: node.attribute(a, default) for a, default in others.items()}
        return cls(mode=named, **given)(*cls.arrange(node.operands), name=node.name)

    def to_onnx(self, node: Node, opset: int) -> Any:
        """Before opset 20 there were images only."""
        x, grid = node.operands
        if self.in_elements:
            return None
        if opset >= 20:
            return super().to_onnx(node, opset)
        mode = _OLD_MODES.get(self.mode, self.mode)
        given = {"mode": mode, "padding_mode": self.padding_mode, "align_corners": int(self.align_corners)}
        return ("GridSample", given, [x, grid]) if opset >= 16 and x.rank == 4 else None

    def in_onnx(self, node: Node) -> Any:
        """Element p of n is at (2 * p + 1) / n - 1, where -1 and 1 are outer edges."""
        x, grid = node.operands
        if not self.in_elements or not is_static(x.shape[2:]) or 0 in x.shape[2:]:
            return None
        dtype = "float64" if grid.dtype == "float64" else "float32"
        extents = np.array(static(x.shape[2:])[::-1], dtype)
        at = apply("add", apply("mul", apply("cast", grid, to=dtype), 2 / extents), 1 / extents - 1)
        return self.with_attributes(in_elements=False, align_corners=False)(x, at)

    def infer(self, x: Operand, grid: Operand) -> tuple[Dim, ...]:
        rank = x.rank - 2
        if rank < 1 or grid.rank != x.rank or (isinstance(grid.shape[-1], int) and grid.shape[-1] != rank):
            raise OperandError(
                f"grid_sample({x}, {grid}): the grid needs the rank of x, and along its last axis one element for each "
                "axis of x behind the first two"
            )
        if self.mode != "nearest" and not is_float(x.dtype):
            raise OperandError(f"grid_sample({x}): {self.mode} interpolation is defined over floats only")
        dims.take(grid.shape[-1], "==", rank)
        shape = (*x.shape[:2], *grid.shape[1:-1])
        if 0 in x.shape[2:] and 0 not in shape:
            raise OperandError(f"grid_sample({x}, {grid}): an axis has no elements, and some are asked for")
        for extent in x.shape[2:]:
            dims.take(dims.minimum(1, dims.size(shape)), "<=", extent)
        return shape

    def compute(self, x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        rank, extents, has_zeros = x.ndim - 2, x.shape[2:], self.padding_mode == "zeros"
        places, weights = self._sampling().stages(grid, extents, _dtype(x, grid))
        count = places.shape[2]

        def term(n: Expr, c: Expr, o: Sequence[Expr], taps: Sequence[Any]) -> Expr:
            given = [places[(n, a, tap, *o)] for a, tap in enumerate(taps)]
            e = x[(n, c, *(te.max(te.min(i, extent - 1), 0) for i, extent in zip(given, extents)))]
            if weights is not None:
                e = wide(e)
                for a, tap in enumerate(taps):
                    e = e * cast(e.dtype, weights[(n, a, tap, *o)])
            return te.select(all_of(*(i >= 0 for i in given)), e, const(0, e.dtype)) if has_zeros else e

        shape = (*x.shape[:2], *grid.shape[1:-1])
        if count <= 2:  # few enough to be written down
            every = list(itertools.product(range(count), repeat=rank))

            def element(n: Expr, c: Expr, *o: Expr) -> Expr:
                return reduce(add, (term(n, c, o, taps) for taps in every)).astype(x.dtype)

            return te.compute(shape, element, name="sampled", tag=te.tag.INJECTIVE)
        taps = [te.reduce_axis((0, count), name="tap") for _ in extents]
        total = te.compute(shape, lambda n, c, *o: te.sum(term(n, c, o, taps), axis=taps), name="sampled")
        return total.astype(x.dtype)

    def _sampling(self) -> Sampling:
        return Sampling(self.mode, self.padding_mode, self.align_corners, self.in_elements)

    def reference(self, x: Any, grid: Any) -> Any:
        x, grid = np.asarray(x), np.asarray(grid)
        y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
        for n, *o in np.ndindex(*y.shape[:1], *y.shape[2:]):
            lines = [self._sampling().line(g, extent) for g, extent in zip(grid[(n, *o)][::-1], x.shape[2:])]
            for chosen in itertools.product(*lines):
                at = tuple(int(i) for i, _ in chosen)
                w = np.prod([w for _, w in chosen])
                y[(n, slice(None), *o)] += (x[(n, slice(None), *at)] * w).astype(x.dtype)
        return y

    samples = [
        Sample(f32[2, 3, 5, 4], f32[2, 3, 7, 2].between(-1.4, 1.4)),
        Sample(f32[1, 2, 3, 6], f32[1, 2, 5, 2].between(-1.4, 1.4), align_corners=1, padding_mode="border"),
        Sample(f32[1, 1, 3, 4], f32[1, 4, 5, 2].between(-3, 3), padding_mode="reflection"),
        Sample(f32[1, 2, 3, 4], f32[1, 4, 5, 2].between(-5, 5), padding_mode="reflection", align_corners=1),
        Sample(f32[2, 3, 5, 4], f32[2, 3, 7, 2].between(-1.4, 1.4), mode="nearest"),
        Sample(i64[1, 2, 3, 4], f32[1, 4, 5, 2].between(-3, 3), mode="nearest", padding_mode="reflection"),
        Sample(boolean[1, 1, 3, 4], f64[1, 2, 2, 2], mode="nearest", padding_mode="border", align_corners=1),
        Sample(f32[2, 1, 5, 4], f32[2, 3, 7, 2].between(-1.4, 1.4), mode="cubic"),
        Sample(f32[1, 2, 3, 4], f32[1, 4, 5, 2].between(-3, 3), mode="cubic", padding_mode="reflection"),
        Sample(f32[1, 2, 3, 4], f32[1, 4, 5, 2], mode="cubic", padding_mode="border", align_corners=1),
        Sample(f32[2, 2, 3, 4, 5], f32[2, 2, 3, 4, 3].between(-1.3, 1.3)),
        Sample(f32[1, 1, 3, 2, 4], f32[1, 2, 3, 2, 3], mode="nearest", padding_mode="border"),
        Sample(f32[1, 1, 4, 3, 5], f32[1, 2, 1, 2, 3].between(-1.1, 1.1), mode="cubic", padding_mode="reflection"),
        Sample(f32[2, 2, 5], f32[2, 7, 1].between(-1.3, 1.3), padding_mode="border"),
        Sample(f64[1, 1, 1, 1], f32[1, 2, 3, 2].between(-4, 4), padding_mode="reflection", align_corners=1),
        Sample(f16[1, 2, 3, 4], f16[1, 3, 2, 2].between(-1, 1), tolerance=4e-3),
        Sample(bf16[1, 2, 3, 4], f32[1, 3, 2, 2].between(-1, 1)),
        Sample(f32[1, 2, 3, 4], f32[1, 5, 2, 2].between(-2, 5), in_elements=1),
        Sample(f32[1, 2, 3, 4], f32[1, 0, 2, 2]),
        Sample(f32[0, 2, 3, 4], f32[0, 1, 2, 2]),
    ]
    rejects = [
        Reject(f32[1, 2, 3, 4], f32[1, 3, 2, 3], because="the grid needs the rank of x"),
        Reject(f32[1, 2, 3, 4], f32[1, 3, 2], because="the grid needs the rank of x"),
        Reject(i64[1, 2, 3, 4], f32[1, 3, 2, 2], because="linear interpolation is defined over floats only"),
        Reject(f32[1, 2, 0, 4], f32[1, 3, 2, 2], because="an axis has no elements"),
        Reject(f32[1, 2, 3, 4], f32[2, 3, 2, 2], because="N"),
    ]


def _dtype(x: te.Tensor, grid: te.Tensor) -> str:
    """Return in which dtype positions are computed."""
    return "float64" if "float64" in (x.dtype, grid.dtype) else "float32"
