"""Pixels as one axis: that of a matrix product where a transposed convolution has one pixel only, so that no padding is
multiplied; and that of vectors where a norm is over channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import is_static, size, static
from renorm.graph.ir import Value
from renorm.graph.rewrite import Match, Plan, Rewrite, node_of
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.shared.reshaping import reshaped_to
from renorm.ops.shared.window import Span
from renorm.passes.affine import exact


def _is_pixel(m: Match) -> bool:
    """Return whether x is one pixel, and everything else known."""
    known = all(v is None or v.is_constant for v in (m.w, m.b))
    return known and set(m.x.shape[2:]) == {1} and is_static(m.x.shape[1:]) and is_static(m.root.output.shape[1:])


def _product(m: Match, w: np.ndarray[Any, Any]) -> Value:
    """The gemm of x [N, C] with w [C, M, *S], as [N, M, *S]."""
    shape = m.root.output.shape
    rows = np.ascontiguousarray(w.reshape(w.shape[0], prod(w.shape[1:])))
    weight = m.graph.constant(rows, f"{m.w.name}.product", m.w.source, dtype=m.w.dtype)
    bias = None
    if m.b is not None:
        bias = m.graph.constant(
            np.repeat(exact(m.b), prod(static(shape[2:]))), f"{m.b.name}.product", m.b.source, dtype=m.b.dtype
        )
    return reshaped_to(ops.gemm(reshaped_to(m.x, m.x.shape[:2]), weight, bias), shape)


class ConvTransposeOfPixel(Rewrite):
    """conv_transpose(x[N, C, 1, ..], w, b) -> reshape(gemm(reshape(x), w', b')), w'[c, m, o] = w[c, m, o + pads], b' =
    b repeated"""

    def pattern(self, x: Any, w: Any, b: Any) -> Any:
        return ConvTranspose.matching()(x, w, b)

    def plan(self, m: Match) -> Plan | None:
        if not _is_pixel(m) or m.root.op.values["group"] != 1:
            return None
        spans, extents = self._window(m)
        is_inside = all(s.dilation == 1 and s.before + e <= s.kernel for s, e in zip(spans, extents, strict=True))
        return Plan(self.rewrite) if is_inside else None

    def rewrite(self, m: Match) -> Value:
        kept = [slice(s.before, s.before + e) for s, e in zip(*self._window(m), strict=True)]
        return _product(m, exact(m.w)[:, :, *kept])

    def _window(self, m: Match) -> tuple[list[Span], list[int]]:
        op = m.root.op
        assert isinstance(op, ConvTranspose)
        return op.transposed(static(m.x.shape[2:]), static(m.w.shape[2:]))


@dataclass(frozen=True)
class NormOfChannels(Rewrite):
    """transpose(norm(transpose(x))) over channels -> the same of reshape(x, [N, C, pixels]), in the shape of x

    Vectors run along pixels, of which a row of an image may have few.
    """

    norm: str

    def pattern(self, x: Any, scale: Any, bias: Any) -> Any:
        norm = node_of(self.norm, node_of("transpose", x, name="there"), scale, bias, name="norm")
        return node_of("transpose", norm, name="back")

    def plan(self, m: Match) -> Plan | None:
        rank, parameters = m.x.rank, (m.scale, m.bound.get("bias"))
        if rank < 4 or m.norm.op.values["axis"] not in (-1, rank - 1):
            return None
        there = (0, *range(2, rank), 1)
        moved = m.there.op.order(rank) == there and m.back.op.order(rank) == (0, rank - 1, *range(1, rank - 1))
        return Plan(self.rewrite) if moved and all(p is None or p.rank < 2 for p in parameters) else None

    def rewrite(self, m: Match) -> Value:
        n, c, *extents = m.x.shape
        x = ops.transpose(reshaped_to(m.x, (n, c, size(extents))), perm=(0, 2, 1))
        y = m.norm.op.with_attributes(axis=-1)(x, *m.norm.inputs[1:])
        return reshaped_to(ops.transpose(y, perm=(0, 2, 1)), m.x.shape)


RULES: tuple[Rewrite, ...] = (ConvTransposeOfPixel(), NormOfChannels("layer_norm"), NormOfChannels("rms_norm"))
