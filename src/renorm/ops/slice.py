"""Slices with steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core import dims, shapes
from renorm.core.dims import Dim, Sym
from renorm.core.errors import OperandError
from renorm.graph.index_map import Moved, Strided
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import Operand, f32, i32, i64
from renorm.ops.shared.movement import Movement


class Slice(Movement):
    """y = x[start:end:step] along axes (all of them where not given), with Python's rules for negative and too large
    bounds, except that a start before the first element is that one, also with a step down."""

    signature = "x: T[...], starts!: I[K], ends!: I[K], axes!?: I[K], steps!?: I[K] -> y: T[...]"
    types = {"I": ("int64", "int32")}
    onnx = {"Slice": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 10 starts, ends and axes were attributes."""
        if node.opset >= 10:
            return super().from_onnx(node)
        given = (node.attribute(a) for a in ("starts", "ends", "axes"))
        return cls()(node.operands[0], *(None if a is None else np.asarray(a, np.int64) for a in given), name=node.name)

    def infer(self, x: Operand, starts: Operand, ends: Operand, axes: Operand | None, steps: Operand | None) -> Any:
        shape: list[Dim | None] = list(x.shape)
        if axes is not None and axes.known is None:
            return (None,) * x.rank
        chosen = self._axes(x.rank, axes.known if axes is not None else None, starts.shape)
        for k, axis in enumerate(chosen):
            start, end, step = (None if o is None or o.known is None else o.known[k] for o in (starts, ends, steps))
            step = 1 if steps is None else step
            shape[axis] = None
            if start is not None and end is not None and isinstance(step, int):
                shape[axis] = shapes.sliced(x.shape[axis], _slice(x.shape[axis], start, end, step))[2]
        return tuple(shape)

    @staticmethod
    def _axes(rank: int, axes: Any, like: Sequence[Dim]) -> list[int]:
        """The axes that bounds belong to, in order."""
        given = range(dims.static(like)[0]) if axes is None else [dims.number(a, "slice: its axis") for a in axes]
        found = [shapes.normalize_axis(a, rank) for a in given]
        if len(set(found)) < len(found):
            raise OperandError(f"slice: axes {list(given)} name an axis twice")
        return found

    def slices(self, shape: Sequence[Any], starts: Any, ends: Any, axes: Any, steps: Any) -> list[slice]:
        """One Python slice per axis of x."""
        found = [slice(None)] * len(shape)
        for k, axis in enumerate(self._axes(len(shape), axes, np.shape(starts))):
            found[axis] = _slice(shape[axis], starts[k], ends[k], 1 if steps is None else int(steps[k]))
        return found

    def cut(self, node: Node) -> list[Any] | None:
        """Return the operands of a node with starts and ends moved into their axes, where some are extents, which else
        are taken to lie inside; None where none is, or a step goes down, or nobody knows from where one counts."""
        x, starts, ends, axes, steps = node.arranged(node.inputs)
        told = [None if v is None else v.known for v in (starts, ends, axes, steps)]
        if told[0] is None or told[1] is None or (axes is not None and told[2] is None):
            return None
        if not any(isinstance(e, Sym) for e in (*told[0], *told[1])):
            return None
        if steps is not None and (told[3] is None or not all(isinstance(s, int) and s > 0 for s in told[3])):
            return None
        first, last = told[0].copy(), told[1].copy()
        for k, axis in enumerate(self._axes(x.rank, told[2], starts.shape)):
            for bounds in (first, last):
                bounds[k] = _inside(bounds[k], x.shape[axis])
            if first[k] is None or last[k] is None:
                return None
            last[k] = dims.maximum(first[k], last[k])
        made = (x.graph.open_constant(e, v.name, v.dtype) for e, v in ((first, starts), (last, ends)))
        return [x, *made, axes, steps]

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        x = node.inputs[0]
        assert x is not None
        if not isinstance(x.shape[1], int) or any(v is not None and v.data is None for v in node.inputs[1:]):
            return Accepts.ROW_MAJOR
        bounds = [None if v is None else v.data for v in node.inputs[1:]]
        taken = range(x.shape[1])[self.slices(x.shape, *bounds)[1]]
        return Accepts.ALIKE if taken.step == 1 and taken.start % lanes == 0 else Accepts.ROW_MAJOR

    def index_map(self, x: Any, *bounds: Any) -> Moved | None:
        return Moved(x, Strided(tuple(self.slices(x.shape, *bounds))))

    def reference(self, x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
        return np.asarray(x)[tuple(self.slices(np.shape(x), starts, ends, axes, steps))]

    def to_onnx(self, node: Any, opset: int) -> Any:
        if opset >= 10:
            return super().to_onnx(node, opset)
        x, starts, ends, axes, steps = node.operands
        if any(v is not None and v.data is None for v in (starts, ends, axes, steps)):
            return None
        if steps is not None and (steps.data != 1).any():
            return None
        named = (("starts", starts), ("ends", ends), ("axes", axes))
        return "Slice", {a: v.data.tolist() for a, v in named if v is not None}, [x]

    samples = [
        Sample(f32[5, 7], i64[2].of([1, 2]), i64[2].of([4, 6])),
        Sample(f32[2, 5, 7], i64[1].of([-3]), i64[1].of([2**62]), i64[1].of([-1])),
        Sample(f32[4, 9], i64[2].of([0, 1]), i64[2].of([4, 8]), i64[2].of([0, 1]), i64[2].of([2, 3])),
        Sample(f32[9], i64[1].of([-1]), i64[1].of([-(2**62)]), i64[1].of([0]), i64[1].of([-2])),
        Sample(f32[9], i64[1].of([7]), i64[1].of([2]), i64[1].of([0]), i64[1].of([-3])),
        Sample(f32[5, 3], i64[1].of([4]), i64[1].of([2]), i64[1].of([0])),
        Sample(f32[3], i64[1].of([-5]), i64[1].of([-99]), i64[1].of([0]), i64[1].of([-1])),
        Sample(i64[5], i32[1].of([-100]), i32[1].of([100])),
        Sample(f32[5], i64[1].of([0]), i64[1].of([-1])),
    ]
    rejects = [
        Reject(f32[5], i64[1].of([0]), i64[1].of([2]), i64[1].of([1]), because="axis 1 is outside"),
        Reject(f32[5, 5], i64[2].of([0, 0]), i64[2].of([2, 2]), i64[2].of([0, -2]), because="twice"),
        Reject(f32[5], i64[1].of([0]), i64[2].of([2, 2]), because="ends has K = 2 but starts has K = 1"),
        Reject(f32[5], i64[1].of([0]), i64[1].of([2]), None, i64[1].of([0]), because="step"),
    ]


_LEAST, _MOST = -(2**31) + 1, 2**31 - 1  # exporters write "to the very end" as the limit of int32 or int64, or near it


def _inside(bound: Any, extent: Dim) -> Dim | None:
    """Return a bound counted from the front and moved into an axis; None where it may count from either end."""
    least, most = dims.bounds(bound)
    if most < 0:
        return dims.maximum(0, extent + bound)
    return dims.minimum(bound, extent) if least >= 0 else None


def _slice(extent: Any, start: Any, end: Any, step: int) -> slice:
    """Return the slice from start to end, numbers or Syms; None in it is the very end. Counted down from before the
    first element of a known extent, there is that one: Python has none."""
    if step == 0:
        raise OperandError("slice: a step is 0")
    first, last = (bound if isinstance(bound, Sym) else int(bound) for bound in (start, end))
    if isinstance(first, int):
        first = None if first >= _MOST and step < 0 else max(_LEAST, min(first, _MOST))
        if step < 0 and isinstance(first, int) and isinstance(extent, int) and first < -extent:
            first = 0
    if isinstance(last, int):
        # counted down, an end below the first element means "through it", which Python writes as None
        last = None if (last <= _LEAST if step < 0 else last >= _MOST) else last
    return slice(first, last, step)
