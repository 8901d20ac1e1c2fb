"""The bases of reductions: over axes that an op fixes, and over `axes`, which is an attribute here; ONNX moved it to an
operand at opset 13 and 18."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import is_float
from renorm.expr.nodes import Expr, cast
from renorm.graph.attributes import Bool, Ints
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import REDUCTION, OnnxNode, OpDef
from renorm.graph.types import Operand
from renorm.ops.shared import axes_operand
from renorm.te import tag
from renorm.topi.reduction import reduce, reduced_axes, reduced_shape


class Reducing(OpDef):
    """Base of y = after(combiner of before(x) over axes, number of elements). Without `keepdims` these axes go, with it
    they stay with an extent of 1. floating: integers are computed in float64 and truncated. carries: what
    `graph.channels.every` says of a map per channel that passes through; None where none does."""

    fusion = REDUCTION
    scheduled_as = "reduction"
    keepdims: Any = True
    combiner: ClassVar[str] = "sum"
    floating: ClassVar[bool] = False
    carries: ClassVar[Mapping[str, Any] | None] = None

    def reduced(self, rank: int) -> tuple[int, ...]:
        """Return the axes that are reduced over, of an operand of this rank."""
        raise NotImplementedError(f"{self.name} has no reduced")

    def before(self, x: Expr) -> Expr:
        return x

    def after(self, total: Expr, count: int) -> Expr:
        return total

    def numpy(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        raise NotImplementedError(f"{self.name} has no numpy")

    def infer(self, x: Operand) -> tuple[Dim, ...]:
        return reduced_shape(x.shape, self.reduced(x.rank), self.keepdims)

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        """Means keep a map as it is, largest and smallest elements where factors are above zero, sums where nothing is
        added."""
        x = node.inputs[0]
        if index or x is None or self.carries is None or axis in (gone := self.reduced(x.rank)):
            return None
        place = axis if self.keepdims else axis - sum(a < axis for a in gone)
        return every(x.shape[axis], place, **self.carries)

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        x = node.inputs[0]
        assert x is not None
        gone = self.reduced(x.rank)
        if 1 in gone or not (self.keepdims or len(gone) >= x.rank - 2):
            return Accepts.ROW_MAJOR
        return Accepts.EITHER if set(range(2, x.rank)) <= set(gone) else Accepts.ALIKE

    def compute(self, x: te.Tensor) -> te.Tensor:
        accumulated, gone = self.accumulated(x.dtype), self.reduced(x.ndim)
        total = reduce(
            self.combiner,
            x,
            gone,
            self.keepdims,
            formula=lambda e, _: self.before(e),
            name=self.name,
            dtype=accumulated,
        )
        count = math.prod(x.shape[a] for a in gone)
        return te.compute(
            total.shape,
            lambda *i: cast(x.dtype, self.after(total[i], count)),
            name=f"{self.name}_result",
            tag=tag.ELEMWISE,
        )

    def accumulated(self, dtype: str) -> str | None:
        """Return the dtype that is accumulated in; None for the default."""
        if dtype == "bool":
            return "uint8"
        return "float64" if self.floating and not is_float(dtype) else None

    def reference(self, x: Any) -> Any:
        y = self.numpy(x.astype(np.float64) if self.floating else x, self.reduced(x.ndim), self.keepdims)
        return np.trunc(y).astype(x.dtype) if x.dtype.kind in "iu" else y


class Reduction(Reducing):
    """Base of reductions over any axes. axes: None for all of them, () for none."""

    axes = Ints(None)
    keepdims = Bool(True)
    axes_operand_since: ClassVar[int] = 18  # opset

    def reduced(self, rank: int) -> tuple[int, ...]:
        return reduced_axes(self.axes, rank)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        axes = axes_operand.read(node)
        if not axes:
            axes = () if node.attribute("noop_with_empty_axes", 0) else None
        return cls(axes=axes, keepdims=node.attribute("keepdims", 1))(node.operands[0], name=node.name)

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        attributes: dict[str, Any] = {} if self.keepdims else {"keepdims": 0}
        since = self.axes_operand_since
        if self.axes != ():
            return axes_operand.write(type(self).__name__, node, self.axes, opset, since, **attributes)
        return (
            (type(self).__name__, attributes | {"noop_with_empty_axes": 1}, list(node.inputs))
            if opset >= since
            else None
        )
