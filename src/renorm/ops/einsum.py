"""Sums of products over named axes, as Einstein wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.core.dtypes import FLOATS
from renorm.core.errors import OperandError
from renorm.core.shapes import broadcast
from renorm.graph.attributes import String
from renorm.graph.ir import Node
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OpDef, Reject, Sample
from renorm.graph.types import Operand, bf16, f16, f32, f64, i64
from renorm.ops.shared.precision import spread
from renorm.te import tag
from renorm.te.open_dims import OpenDims

Axes = list[str]
"""A name for each axis: a letter, or "0", "1", .. for what `...` stands for, counted from the last."""


class Einsum(OpDef):
    """y[result] = sum over all other names of x0[names 0] * x1[names 1] * ..; equation: "names 0, names 1 -> result".

    A name is a letter; `...` stands for any leading axes, which broadcast. Without "->" the result is `...`, then the
    letters that occur once, in the order of the alphabet.
    """

    signature = "*xs: T[...] -> y: T[...]"
    types = {"T": (*FLOATS, "int32", "int64", "uint32", "uint64")}
    onnx = {"Einsum": 12}
    fusion = OUT_ELEMENTWISE_FUSABLE
    scheduled_as = "reduction"
    is_product = True
    factors = 0
    equation = String()

    def axes(self, ranks: Sequence[int]) -> tuple[list[Axes], Axes]:
        """Names of the axes of operands of these ranks, and of the result."""
        left, arrow, right = self.equation.replace(" ", "").partition("->")
        terms = left.split(",")
        if len(terms) != len(ranks):
            raise OperandError(f"einsum {self.equation!r} names {len(terms)} operands but there are {len(ranks)}")
        names = [self._names(term, rank) for term, rank in zip(terms, ranks)]
        spread = max((sum(a.isdigit() for a in axes) for axes in names), default=0)
        if arrow:
            result = self._names(right, len(right.replace("...", "")) + (spread if "..." in right else 0))
        else:
            letters = left.replace("...", "").replace(",", "")
            result = [*map(str, reversed(range(spread))), *sorted(c for c in letters if letters.count(c) == 1)]
        known = {a for axes in names for a in axes}
        for a in result:
            if a not in known or result.count(a) > 1:
                raise OperandError(
                    f"einsum {self.equation!r}: {a} of the result is in no operand, or stands there twice"
                )
        return names, result

    def _names(self, term: str, rank: int) -> Axes:
        before, dots, after = term.partition("...")
        more = rank - len(before) - len(after)
        if more < 0 or (more and not dots) or not (before + after + "a").isalpha():
            raise OperandError(
                f"einsum {self.equation!r}: {term!r} does not name the axes of an operand of rank {rank}"
            )
        return [*before, *map(str, reversed(range(more))), *after]

    def infer(self, xs: Sequence[Operand]) -> tuple[Dim, ...]:
        names, result = self.axes([x.rank for x in xs])
        extents = self._extents(names, [x.shape for x in xs])
        return tuple(extents[a] for a in result)

    def _extents(self, names: Sequence[Axes], shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for axes, shape in zip(names, shapes):
            for a, extent in zip(axes, shape):
                try:
                    found[a] = broadcast((found.get(a, 1),), (extent,))[0]
                except OperandError:
                    raise OperandError(
                        f"einsum {self.equation!r}: axis {a} has {found[a]} elements and {extent}"
                    ) from None
        return found

    def compute(self, xs: Sequence[te.Tensor]) -> te.Tensor:
        names, result = self.axes([x.ndim for x in xs])
        open_dims = OpenDims()
        found = self._extents(names, [open_dims.shape(x.shape) for x in xs])
        extents = {a: open_dims.extent(d) for a, d in found.items()}
        summed = {a: te.reduce_axis((0, extents[a]), name=f"r{a}") for a in extents if a not in result}

        def element(*index: Any) -> Any:
            at = {**dict(zip(result, index)), **summed}
            product = reduce(mul, (spread(x, [at[a] for a in axes]) for axes, x in zip(names, xs)))
            return te.sum(product, axis=list(summed.values())) if summed else product

        shape = tuple(extents[a] for a in result)
        y = te.compute(shape, element, name="einsum", tag=tag.COMM_REDUCE if summed else tag.INJECTIVE)
        return y.astype(xs[0].dtype)

    def to_onnx(self, node: Node, opset: int) -> Any:
        """ONNX wants `...` to stand for equally many axes of each operand that has it."""
        terms = self.equation.replace(" ", "").partition("->")[0].split(",")
        ranks = [v.rank - len(t.replace("...", "")) for t, v in zip(terms, node.inputs) if v is not None and "..." in t]
        return super().to_onnx(node, opset) if len(set(ranks)) <= 1 else None

    def reference(self, xs: Sequence[Any]) -> Any:
        return np.einsum(self.equation.replace(" ", ""), *xs)

    samples = [
        Sample([f32[2, 3, 5], f32[2, 4, 5]], equation="bnd,bmd->bnm"),
        Sample([f32[2, 3, 5], f32[2, 5, 4]], equation="bik, bkj -> bij"),
        Sample([f32[2, 3, 4, 5], f32[2, 3, 6, 5]], equation="bhdn,bhen->bhde"),
        Sample([f32[3, 4], f32[4, 5]], equation="ik,kj"),
        Sample([f32[3, 4], f32[5, 4]], equation="ik,jk->ji"),
        Sample([f32[3, 4], f32[4]], equation="ij,j->i"),
        Sample([f32[3], f32[4]], equation="i,j->ij"),
        Sample([f32[4], f32[4]], equation="i,i->"),
        Sample([f32[2, 3, 4, 5]], equation="bhwc->bchw"),
        Sample([f32[3, 4, 5]], equation="ijk->j"),
        Sample([f32[4, 4]], equation="ii->i"),
        Sample([f32[2, 3, 4], f32[4, 5]], equation="...k,kj->...j"),
        Sample([f32[2, 1, 3, 4], f32[6, 4, 5]], equation="...ik,...kj->...ij"),
        Sample([f32[2, 3], f32[3, 4], f32[4, 5]], equation="ab,bc,cd->ad"),
        Sample([f32[3, 0], f32[0, 2]], equation="ik,kj->ij"),
        Sample([f64[3, 4], f64[4, 2]], equation="ik,kj->ij"),
        Sample([f16[3, 40], f16[40, 2]], equation="ik,kj->ij"),
        Sample([bf16[3, 4], bf16[4, 2]], equation="ik,kj->ij"),
        Sample([i64[3, 4], i64[4, 2]], equation="ik,kj->ij"),
    ]
    rejects = [
        Reject([f32[3, 4], f32[5, 2]], equation="ik,kj->ij", because="axis k has 4 elements and 5"),
        Reject([f32[3, 4]], equation="ik,kj->ij", because="names 2 operands but there are 1"),
        Reject([f32[3, 4]], equation="ijk->i", because="does not name the axes of an operand of rank 2"),
        Reject([f32[3, 4]], equation="ij->ik", because="is in no operand"),
    ]
