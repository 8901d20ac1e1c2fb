"""Bases of op families: what all elementwise ops share, and all ops that only move elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from renorm import te, topi
from renorm.core import dtypes, shapes
from renorm.core.dims import Shape
from renorm.expr.nodes import Expr, Var, as_expr
from renorm.expr.rewrite import levels, walk
from renorm.graph import registry
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.op import BROADCAST, ELEMENTWISE, INJECTIVE, Demand, Formula, Fusion, OnnxNode, OpDef
from renorm.graph.types import Operand, TensorType
from renorm.ops.shared import exact

HOMOGENEOUS = "homogeneous"  # f(x * k) = f(x) * k for k above zero
LINEAR = "linear"  # f(x * k + shift, y * k) = f(x * k, y * k + shift) = f(x, y) * k + shift
DIFFERENCE = "difference"  # f(x * k + shift, y * k) = f(x * k, y * k - shift) = f(x, y) * k + shift


class Elementwise(OpDef):
    """Ops whose result element needs only the operand elements at its own, broadcast index.

    A subclass gives `element`, a scalar formula over expressions, and `numpy`, the same independently over arrays.
    16-bit floats are widened around the formula. known_element: the formula over elements of a shape chain (see
    ops.shared.exact), where that makes sense.
    """

    fusion = ELEMENTWISE
    scheduled_as = "injective"
    known_element: ClassVar[Callable[..., Any] | None] = None
    commutes: ClassVar[str] = ""

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        v, y = node.inputs[index], node.output
        if v is None or not self.commutes:
            return None
        place = axis + y.rank - (v.rank if axis >= 0 else 0)
        if not 0 <= place < y.rank:
            return None
        own, extent = v.shape[axis] if -v.rank <= axis else 1, y.shape[place]
        if self.commutes == HOMOGENEOUS:
            return every(extent, place, positive=True, fixed=0.0)
        sums = {"joined": len(node.inputs) > 1, "negated": self.commutes == DIFFERENCE and index == 1}
        if own == 1 and v.is_constant and isinstance(extent, int):
            return Carry(place, np.stack([np.arange(extent), np.zeros(extent, np.int64)], axis=1), **sums)
        return every(extent, place, **sums) if own == extent else None

    def element(self, *operands: Expr) -> Expr:
        raise NotImplementedError(f"{self.name} has no element")

    def numpy(self, *operands: Any) -> Any:
        raise NotImplementedError(f"{self.name} has no numpy")

    def infer(self, *operands: Operand) -> Shape:
        return shapes.broadcast(*(o.shape for o in operands))

    def fusion_of(self, operands: Sequence[TensorType | None]) -> Fusion:
        return ELEMENTWISE if len({o.shape for o in operands if o}) <= 1 else BROADCAST

    def formula(self, operands: Sequence[TensorType | None]) -> Formula:
        if type(self).element is Elementwise.element:
            return super().formula(operands)
        given = [Var("x", dtypes.compute_dtype(t.dtype)) if t else None for t in operands]
        body = as_expr(self.element(*(x for x in given if x is not None)))
        read = Counter(id(x) for x in walk(body) if isinstance(x, Var))
        casts = 2 * any(dtypes.compute_dtype(t.dtype) != t.dtype for t in operands if t)
        return Formula(levels(body) - 1 + casts, tuple(read[id(x)] for x in given))

    def compute(self, *operands: te.Tensor) -> te.Tensor:
        named = {r.dtype: dtypes.BY_SHORT[r.dtype].name for r in self.parsed.results if r.dtype in dtypes.BY_SHORT}
        result = named.get(self.parsed.results[0].dtype, operands[0].dtype)
        return topi.elementwise(self.element, *operands, name=self.name, dtype=result)

    def reference(self, *operands: Any) -> Any:
        return self.numpy(*operands)

    def known_result(self, *operands: exact.Known) -> np.ndarray[Any, Any] | None:
        f = type(self).known_element
        return None if f is None else exact.elementwise(f, *operands)


class Aligned(Elementwise):
    """Binary ops that ONNX broadcast by attributes before opset 7: with `axis`, the axes of b stand under those of a
    from there on."""

    onnx_ignored = ("consumed_inputs", "broadcast", "axis")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        if node.opset < 7 and node.attribute("broadcast") and "axis" in node.attributes:
            a, b = node.operands
            behind = a.rank - shapes.normalize_axis(node.attributes["axis"], a.rank) - b.rank
            if behind > 0:
                unsqueezed = registry.find("unsqueeze")(axes=range(b.rank, b.rank + behind))(b)
                node = replace(node, operands=(a, unsqueezed))
        return super().from_onnx(node)

    def to_onnx(self, node: Any, opset: int) -> Any:
        """Before opset 7, b has the shape of a, or of some axes of a in a row, the first of which is `axis`."""
        said = super().to_onnx(node, opset)
        a, b = node.operands
        if said is None or opset >= 7 or a.shape == b.shape:
            return said
        filled = [i for i, d in enumerate(b.shape) if d != 1]
        first, last = (filled[0], filled[-1] + 1) if filled else (b.rank, b.rank)
        axis, core = a.rank - b.rank + first, b.shape[first:last]
        if axis < 0 or a.shape[axis : axis + len(core)] != core or (last < b.rank and b.data is None):
            return None
        op_type, written, _ = said
        written |= {"broadcast": 1} | ({"axis": axis} if core else {})
        return op_type, written, [a, b if b.data is None else b.data.reshape(core)]


class Injective(OpDef):
    """Ops that move elements: each result element is one operand element."""

    fusion = INJECTIVE
    scheduled_as = "injective"


def divided(node: Node) -> list[Demand]:
    """That the second operand is not 0 anywhere, where it is of integers."""
    b = node.inputs[1]
    is_safe = b is None or dtypes.is_float(b.dtype) or (b.data is not None and bool(np.all(b.data)))
    return [] if b is None or is_safe else [Demand(b)]


def entry(base: type[OpDef], title: str, formula: str, module: str, **members: Any) -> type[OpDef]:
    """One row of a table of ops: a subclass of `base` named `title`, with `formula` as its docstring, of the file
    `module`.

    members: class attributes and methods.
    """
    return type(title, (base,), {"__doc__": formula, "__module__": module, **members})


def method(f: Callable[..., Any]) -> Callable[..., Any]:
    """A formula over operands alone, as a method."""
    return lambda self, *operands: f(*operands)
