"""Convolution by 3 x 3 windows with fewer products: Winograd's minimal filtering over tiles of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, is_static, static
from renorm.core.errors import OperandError
from renorm.core.target import Target
from renorm.graph.attributes import Int, Ints
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts, Blocked
from renorm.graph.op import OUT_ELEMENTWISE_FUSABLE, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, f32, f64
from renorm.ops import schedules
from renorm.ops.precision import add_channels
from renorm.ops.schedules import cpu_winograd
from renorm.ops.window import pad
from renorm.ops.winograd import TAPS, matrices, pick, products


class WinogradConv(OpDef):
    """y[n, k, m*p + i, m*q + j] = b[k] + (A^T M A)[i, j],  M = sum over c of u[:, c, k] * (B^T d[c] B),  d[c] = the
    m + 2 by m + 2 elements of x[n, c] from (m*p - pads[0], m*q - pads[1]) on, zeros outside.

    It equals Conv of a weight w[K, C, 3, 3] with u = G w G^T (ops.winograd_weight), strides and dilations
    of 1: in exact arithmetic, for finite numbers. An infinity or a NaN in x spreads over the m by m results of every
    tile that reads it, and so does what overflows in a transform, whose sums exceed x up to 33 times for m = 4.
    tile: m. pads: (top, left, bottom, right).
    """

    signature = "x: T[N, C, H, W], u: T[P, C, K], b?: T[K] -> y: T[...]"
    types = {"T": ("float32", "float64")}
    fusion = OUT_ELEMENTWISE_FUSABLE
    tile = Int(4, at_least=2)
    pads = Ints((0, 0, 0, 0))

    def infer(self, x: Operand, u: Operand, b: Operand | None) -> tuple[Dim | None, ...]:
        if self.tile not in (2, 4):
            raise OperandError(f"{self.name}: tile {self.tile} is not 2 or 4")
        if len(self.pads) != 4 or any(p < 0 for p in self.pads):
            raise OperandError(f"{self.name}: pads {list(self.pads)} must be four numbers from 0 up")
        if u.shape[0] != (self.tile + TAPS - 1) ** 2 and isinstance(u.shape[0], int):
            raise OperandError(
                f"{self.name}: u has {u.shape[0]} planes, but tile {self.tile} needs {(self.tile + TAPS - 1) ** 2}"
            )
        extents: list[Dim] = []
        for axis in (2, 3):
            extent = x.shape[axis] + self.pads[axis - 2] + self.pads[axis] - (TAPS - 1)
            if isinstance(extent, int) and extent < 1:
                raise OperandError(f"{self.name}: a window of {TAPS} elements does not fit into axis {axis}")
            extents.append(extent)
        return (x.shape[0], u.shape[2], *extents)

    def label(self, operands: Sequence[TensorType | None]) -> str:
        return f"winograd{self.tile}_conv2d"

    def channel_axis(self, index: int, operands: Sequence[TensorType | None]) -> int | None:
        return 2 if index == 1 else None

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.EITHER if index in (None, 0) else Accepts.ROW_MAJOR

    def finished_tile(self, node: Node, target: Target) -> tuple[int, ...] | None:
        x, y, lanes = node.inputs[0], node.output, target.lanes(4)
        if x is None or not is_static((*x.shape, *y.shape)) or Blocked(1, lanes).refuses(y.shape):
            return None
        batch, channels, *extents = static(y.shape)
        n, counts = self.tile + TAPS - 1, [-(-e // self.tile) for e in extents]
        blocks = cpu_winograd.choose_blocks((n, n, batch, *counts, channels), static(x.shape)[1], lanes, target)
        return self.tile * blocks.down, self.tile * blocks.across

    def copies(self, node: Node) -> bool:
        return any(self.pads)

    def compute(self, x: te.Tensor, u: te.Tensor, b: te.Tensor | None) -> te.Tensor:
        m = self.tile
        n = m + TAPS - 1
        (batch, channels, *extents), (top, left, bottom, right) = x.shape, self.pads
        height, width = extents[0] + top + bottom - n + m, extents[1] + left + right - n + m
        down, across = -(-height // m), -(-width // m)
        behind = (m * down + n - m - extents[0] - top, m * across + n - m - extents[1] - left)
        data = pad(x, (top, left), behind)
        a, _, bt = matrices(m)

        def row(i: Any, s: Any, p: Any, q: Any, j: Any, c: Any) -> Any:
            return pick(i, products(bt, [data[s, c, m * p + k, m * q + j] for k in range(n)]))

        rows = te.compute((n, batch, down, across, n, channels), row, name="rows", tag="winograd_rows")

        def column(s: Any, p: Any, i: Any, j: Any, q: Any, c: Any) -> Any:
            return pick(j, products(bt, [rows[i, s, p, q, k, c] for k in range(n)]))

        v = te.compute((batch, down, n, n, across, channels), column, name="transformed", tag="winograd_input")
        ic = te.reduce_axis((0, channels), name="ic")
        product = te.compute(
            (n, n, batch, down, across, u.shape[2]),
            lambda i, j, s, p, q, k: te.sum(v[s, p, i, j, q, ic] * u[i * n + j, ic, k], axis=ic),
            name="products",
            tag="winograd_products",
        )

        def row_back(i: Any, j: Any, s: Any, p: Any, q: Any, k: Any) -> Any:
            return pick(i, products(a, [product[l, j, s, p, q, k] for l in range(n)]))

        sums = te.compute((m, n, batch, down, across, u.shape[2]), row_back, name="sums", tag="winograd_sums")

        def result(s: Any, k: Any, h: Any, w: Any) -> Any:
            return pick(w % m, products(a, [sums[h % m, l, s, h // m, w // m, k] for l in range(n)]))

        shape = (batch, u.shape[2], height, width)
        return add_channels(te.compute(shape, result, name="winograd", tag="winograd", attrs={"tile": m}), b)

    def schedule(self, s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
        schedules.winograd(s, outs, target)

    def nominal_flops(self, operands: Sequence[TensorType | None], results: Sequence[TensorType]) -> int:
        (data, *_), (y,) = operands, results
        assert data is not None
        channels, *extents = static((data.shape[1], *y.shape))
        return 2 * channels * TAPS**2 * prod(extents)

    def reference(self, x: Any, u: Any, b: Any) -> Any:
        m = self.tile
        n, (top, left, bottom, right) = m + TAPS - 1, self.pads
        a, _, bt = matrices(m)
        height, width = x.shape[2] + top + bottom - n + m, x.shape[3] + left + right - n + m
        down, across = -(-height // m), -(-width // m)
        behind = (m * down + n - m - x.shape[2] - top, m * across + n - m - x.shape[3] - left)
        padded = np.pad(x, ((0, 0), (0, 0), (top, behind[0]), (left, behind[1])))
        d = np.lib.stride_tricks.sliding_window_view(padded, (n, n), axis=(2, 3))[:, :, ::m, ::m]
        v = bt @ d @ bt.T  # [N, C, p, q, n, n]
        product = np.einsum("scpqij,ijck->skpqij", v, u.reshape(n, n, *u.shape[1:]), optimize=True)
        y = np.moveaxis(a @ product @ a.T, 4, 3).reshape(*product.shape[:2], m * down, m * across)
        y = y[:, :, :height, :width]
        return y if b is None else y + b.reshape(-1, 1, 1)

    samples = [
        Sample(f32[1, 3, 7, 6], f32[36, 3, 5], f32[5], pads=(1, 1, 1, 1)),
        Sample(f32[2, 2, 5, 9], f32[16, 2, 3], tile=2, pads=(0, 1, 2, 0)),
        Sample(f32[1, 17, 9, 13], f32[36, 17, 33], f32[33], pads=(1, 0, 0, 1)),
        Sample(f32[0, 2, 6, 6], f32[36, 2, 3]),
        Sample(f64[1, 2, 6, 6], f64[36, 2, 3], f64[3]),
    ]
    rejects = [
        Reject(f32[1, 3, 7, 6], f32[16, 3, 5], because="u has 16 planes, but tile 4 needs 36"),
        Reject(f32[1, 3, 7, 6], f32[25, 3, 5], tile=3, because="tile 3 is not 2 or 4"),
        Reject(f32[1, 3, 7, 6], f32[36, 3, 5], pads=(1, 1), because="must be four numbers"),
        Reject(f32[1, 3, 2, 6], f32[36, 3, 5], because="does not fit into axis 2"),
        Reject(f32[1, 3, 7, 6], f32[36, 4, 5], because="C"),
    ]
