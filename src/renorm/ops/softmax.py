"""Softmax and its logarithm, over one axis, or over all axes from one on (what ONNX meant before opset 13)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dtypes import FLOATS
from renorm.core.shapes import normalize_axis
from renorm.graph.attributes import Bool, Int
from renorm.graph.ir import Node
from renorm.graph.op import REDUCTION, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64
from renorm.ops.shared.moments import statistic
from renorm.ops.shared.precision import wide
from renorm.ops.shared.reshaping import flattened, reshaped_like
from renorm.ops.shared.tags import REUSED
from renorm.te import tag
from renorm.topi.reduction import reduce


class Normalized(OpDef):
    """Base of softmax and log_softmax. flatten: over the elements of all axes from `axis` on."""

    types = {"T": FLOATS}
    fusion = REDUCTION
    scheduled_as = "normalization"
    axis = Int(-1)
    flatten = Bool(False)

    def wants_digits(self, index: int) -> str | None:
        return "exponentials make relative errors of absolute ones"

    def infer(self, x: Operand) -> None:
        normalize_axis(self.axis, max(x.rank, 1))

    def axes(self, rank: int) -> tuple[int, ...]:
        first = normalize_axis(self.axis, rank) if rank else 0
        return tuple(range(first, rank)) if self.flatten else tuple(range(rank))[first : first + 1]

    def exponentials(self, x: te.Tensor) -> tuple[Any, te.Tensor, te.Tensor]:
        """(the function of an index that gives x - maximum, its exponentials, their sum)."""
        axes = self.axes(x.ndim)
        most = reduce("max", x, axes, True, name="most")

        def distance(*index: Any) -> Any:
            return wide(x[index]) - most[tuple(0 if a in axes else i for a, i in enumerate(index))]

        powers = te.compute(x.shape, lambda *i: te.exp(distance(*i)), name="powers", tag=REUSED)
        return distance, powers, reduce("sum", powers, axes, True, name="total")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before opset 13 x counts as a matrix whose columns are all axes from `axis` (1 unless given) on."""
        (x,) = cls.arrange(node.operands)
        if node.opset >= 13:
            return super().from_onnx(node)
        axis = node.attribute("axis", 1)
        if axis == x.rank:  # legal: every element is a row of its own
            return reshaped_like(cls(axis=1)(flattened(x, axis), name=node.name), x)
        return cls(axis=axis, flatten=normalize_axis(axis, x.rank) < x.rank - 1)(x, name=node.name)

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        rank = node.output.rank
        first = normalize_axis(self.axis, rank)
        if self.flatten != (opset < 13) and first != rank - 1:
            return None  # the two meanings differ
        return type(self).__name__, {"axis": first}, list(node.inputs)


SAMPLES = [
    Sample(f32[3, 5]),
    Sample(f32[2, 3, 4, 5], axis=1),
    Sample(f32[2, 3, 4], axis=1, flatten=True),
    Sample(f32[2, 3, 4], axis=-3, flatten=True),
    Sample(f32[3, 40].between(-1000, 1000)),
    Sample(f32[3, 4].of([[math.inf, 1, 2, 3], [-math.inf] * 4, [-math.inf, 0, 1, -math.inf]])),
    Sample(f32[2, 3].of([[math.nan, 1, 2], [1, 2, 3]])),
    Sample(f32[0, 3]),
    Sample(f32[2, 0]),
    Sample(f64[2, 3]),
    Sample(f16[2, 300]),
    Sample(bf16[2, 3]),
]
REJECTS = [
    Reject(f32[2, 3], axis=2, because="axis 2 is outside"),
    Reject(f32[2, 3], axis=-3, because="axis -3 is outside"),
]


class Softmax(Normalized):
    """y = exp(x - m) / sum of exp(x - m) along axis, where m is the maximum."""

    signature = "x: T[*S] -> y: T[*S]"
    onnx = {"Softmax": 1}

    def compute(self, x: te.Tensor) -> te.Tensor:
        _, powers, total = self.exponentials(x)
        axes = self.axes(x.ndim)
        one = te.const(1.0, total.dtype)  # one division for a slice, not one for each element: an error of an ulp
        inverse = statistic(total.shape, lambda *i: one / total[i], "inverse")

        def element(*index: Any) -> Any:
            share = powers[index] * inverse[tuple(0 if a in axes else i for a, i in enumerate(index))]
            return share.astype(x.dtype)

        return te.compute(x.shape, element, name="softmax", tag=tag.BROADCAST)

    def reference(self, x: Any) -> Any:
        axes = self.axes(x.ndim)
        powers = np.exp(x.astype(np.longdouble) - np.max(x, axis=axes, keepdims=True, initial=-np.inf))
        return (powers / powers.sum(axis=axes, keepdims=True)).astype(np.float64)

    samples = SAMPLES
    rejects = REJECTS


class LogSoftmax(Normalized):
    """y = x - m - log(sum of exp(x - m)) along axis, where m is the maximum."""

    signature = "x: T[*S] -> y: T[*S]"
    onnx = {"LogSoftmax": 1}

    def compute(self, x: te.Tensor) -> te.Tensor:
        distance, _, total = self.exponentials(x)
        axes = self.axes(x.ndim)

        def element(*index: Any) -> Any:
            share = distance(*index) - te.log(total[tuple(0 if a in axes else i for a, i in enumerate(index))])
            return share.astype(x.dtype)

        return te.compute(x.shape, element, name="log_softmax", tag=tag.BROADCAST)

    def reference(self, x: Any) -> Any:
        axes = self.axes(x.ndim)
        distance = x.astype(np.longdouble) - np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        return (distance - np.log(np.exp(distance).sum(axis=axes, keepdims=True))).astype(np.float64)

    samples = SAMPLES
    rejects = REJECTS
