"""Elements around a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import dims, dtypes, shapes
from renorm.core.errors import OperandError
from renorm.graph.attributes import String
from renorm.graph.index_map import Moved, Padded
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import OnnxNode, Reject, Sample
from renorm.graph.types import boolean, f16, f32, i64
from renorm.ops.shared.movement import Movement


class Pad(Movement):
    """y = x with elements before and after each axis (of `axes`, or of all): pads = [before.., after..].

    Mode constant adds `value` (0 where not given) and takes elements away where a pad is negative; edge repeats the
    outermost element, reflect mirrors without it, wrap starts again from the other end.
    """

    signature = "x: T[...], pads!: i64[P], value?: T[...], axes!?: I[A] -> y: T[...]"
    types = {"I": ("int64", "int32")}
    mode = String("constant", among=("constant", "reflect", "edge", "wrap"))
    onnx = {"Pad": 1}

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 11 pads and value were attributes, pads called paddings at opset 1."""
        if node.opset >= 11:
            return super().from_onnx(node)
        x = node.operands[0]
        pads = np.asarray(node.attribute("pads", node.attribute("paddings", ())), np.int64)
        value = node.attribute("value", 0.0)
        given = np.asarray(value, dtypes.numpy_dtype(x.dtype)) if value else None
        return cls(mode=node.attribute("mode", "constant"))(x, pads, given, name=node.name)

    def to_onnx(self, node: Any, opset: int) -> Any:
        x, pads, value, axes = node.operands
        if (self.mode == "wrap" and opset < 19) or (axes is not None and opset < 18):
            return None
        attributes: dict[str, Any] = {"mode": self.mode} if self.mode != "constant" else {}
        if opset >= 11:
            return "Pad", attributes, [x, pads, value, axes]
        if pads.data is None or (value is not None and value.data is None):
            return None
        number = {} if value is None else {"value": float(value.data.reshape(()))}
        return "Pad", {"pads" if opset >= 2 else "paddings": pads.data.tolist(), **attributes, **number}, [x]

    def index_map(self, x: Any, pads: Any, value: Any, axes: Any) -> Moved:
        if value is not None and not shapes.is_scalar(value.shape):
            raise OperandError(f"pad: {value} is not a scalar")
        pairs = self.around(len(x.shape), pads.tolist(), axes)
        found = Moved(x, Padded(tuple(pairs), value, self.mode))
        for a, (extent, padded, pair) in enumerate(zip(x.shape, found.shape, pairs)):
            if self.mode != "constant" and any(isinstance(p, int) and p < 0 for p in pair):
                raise OperandError(f"pad({x}): negative pads need mode constant, not {self.mode}")
            if self.mode != "constant" and extent == 0 and any(pair):
                raise OperandError(f"pad({x}): axis {a} is empty, so there is nothing to repeat")
            if self.mode != "constant" and any(pair):
                dims.take(1, "<=", extent)
            if isinstance(padded, int) and padded < 0:
                raise OperandError(f"pad({x}): axis {a} would have extent {padded}")
        return found

    def around(self, rank: int, pads: Any, axes: Any) -> list[tuple[Any, Any]]:
        """(before, after) of each axis of x."""
        chosen = (
            [shapes.normalize_axis(dims.number(a, "pad: its axis"), rank) for a in axes]
            if axes is not None
            else list(range(rank))
        )
        if len(pads) != 2 * len(chosen):
            raise OperandError(f"pad: {len(pads)} pads for {len(chosen)} axes", ["each axis has one before, one after"])
        found: list[tuple[Any, Any]] = [(0, 0)] * rank
        for k, a in enumerate(chosen):
            found[a] = (pads[k], pads[k + len(chosen)])
        return found

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        x = node.inputs[0]
        assert x is not None
        if index is None and x.shape[1] != node.output.shape[1] == lanes:
            return Accepts.EITHER  # a block is all channels
        return Accepts.ALIKE if index in (None, 0) and x.shape[1] == node.output.shape[1] else Accepts.ROW_MAJOR

    def reference(self, x: Any, pads: Any, value: Any, axes: Any) -> Any:
        x, pairs = np.asarray(x), self.around(np.ndim(x), pads, axes)
        if self.mode != "constant":
            mode: Any = self.mode  # NumPy's stubs list the literals
            return np.pad(x, pairs, mode)
        padded = np.full([n + b + a for n, (b, a) in zip(x.shape, pairs)], 0 if value is None else value, x.dtype)
        inner = tuple(slice(max(b, 0), max(b, 0) + n + min(b, 0) + min(a, 0)) for n, (b, a) in zip(x.shape, pairs))
        padded[inner] = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, pairs))]
        return padded

    samples = [
        Sample(f32[2, 3], i64[4].of([0, 1, 2, 3])),
        Sample(f32[2, 3], i64[4].of([1, 0, 0, 2]), f32[()].of(-7.5)),
        Sample(f32[4, 5], i64[4].of([-1, 2, 1, -2]), f32[1].of([np.inf])),
        Sample(f32[2, 3, 4], i64[2].of([1, 2]), None, i64[1].of([-1])),
        Sample(f32[1, 2, 4, 5], i64[8].of([0, 0, 2, 1, 0, 0, 1, 3]), mode="reflect"),
        Sample(f32[1, 2, 4, 5], i64[8].of([0, 0, 2, 1, 0, 0, 1, 3]), mode="edge"),
        Sample(f32[3, 4], i64[4].of([2, 1, 0, 6]), mode="wrap"),
        Sample(f32[3], i64[2].of([5, 4]), mode="reflect"),
        Sample(f32[1], i64[2].of([2, 1]), mode="reflect"),
        Sample(f16[3], i64[2].of([1, 1]), f16[()].of(2)),
        Sample(i64[3], i64[2].of([1, 1]), i64[()].of(2**60)),
        Sample(boolean[2], i64[2].of([1, 1])),
        Sample(f32[0], i64[2].of([1, 1])),
        Sample(f32[()], i64[0].of([])),
    ]
    rejects = [
        Reject(f32[2, 3], i64[2].of([1, 1]), because="2 pads for 2 axes"),
        Reject(f32[2], i64[2].of([-2, -1]), because="would have extent -1"),
        Reject(f32[2], i64[2].of([-1, 1]), mode="edge", because="negative pads need mode constant"),
        Reject(f32[2], i64[2].of([1, 1]), f32[2], because="is not a scalar"),
        Reject(f32[2], i64[2].of([1, 1]), mode="mirror", because="known: constant"),
        Reject(f32[0], i64[2].of([1, 1]), mode="edge", because="is empty"),
    ]
