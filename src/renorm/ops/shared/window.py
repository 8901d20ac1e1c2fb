"""The base of ops that slide a window over spatial axes: strides, dilations, padding, and the stage that pads.

Spatial axes are all axes after the first two. Along one of them, window position o covers the elements
o * stride + k * dilation - before, k = 0 .. kernel - 1, of an axis that is continued by `before` and `after` elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims, shapes
from renorm.core.dims import Dim, Shape, format_shape, is_static
from renorm.core.errors import OperandError
from renorm.expr.extents import same_extent
from renorm.graph.attributes import Ints, String
from renorm.graph.ir import Node
from renorm.graph.op import OpDef
from renorm.graph.types import Operand
from renorm.te.open_dims import OpenDims
from renorm.topi import layout

AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Span:
    """A window along one axis of `extent` elements. before, after: elements of padding."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Elements from the first to the last that one window covers, both included."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def has_phases(self) -> bool:
        """Return whether a transposed convolution with this window has phases (ops.shared.phases): taps that lie side
        by side, and some of them."""
        return self.dilation == 1 and not same_extent(self.kernel, 0)


class Windowed(OpDef):
    """Base of ops with a window. Attributes that are not given are 1 (strides, dilations) or 0 (pads) along every axis.

    pads: all elements before, axis by axis, then all elements after, as ONNX has them. auto_pad: overrules pads.
    """

    kernel_shape = Ints(None)
    strides = Ints(None)
    dilations = Ints(None)
    pads = Ints(None)
    auto_pad = String("NOTSET", among=AUTO_PAD)

    def along(self, attribute: str, rank: int, default: int = 1, least: int = 1) -> tuple[int, ...]:
        """An attribute with one value per spatial axis."""
        given = getattr(self, attribute)
        if given is None:
            return (default,) * rank
        if len(given) != rank:
            raise OperandError(
                f"{self.name}: {attribute} {list(given)} needs one value for each of {rank} spatial axes"
            )
        if any(v < least for v in given):
            raise OperandError(f"{self.name}: {attribute} {list(given)} must be at least {least}")
        return given

    def explicit_pads(self, rank: int) -> list[tuple[int, int]]:
        """(before, after) per axis as the attribute `pads` says."""
        pads = self.pads if self.pads is not None and self.auto_pad != "VALID" else (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise OperandError(
                f"{self.name}: pads {list(pads)} needs two values for each of {rank} spatial axes",
                do="write all elements before, axis by axis, then all elements after",
            )
        if any(p < 0 for p in pads):
            raise OperandError(f"{self.name}: pads {list(pads)} must not be negative", do="crop with slice instead")
        return list(zip(pads[:rank], pads[rank:], strict=True))

    def known_kernel(self, shape: Shape) -> Shape:
        """Extents of the window: those of the attribute, or the weight's where it says nothing. They must agree."""
        stated = self.along("kernel_shape", len(shape)) if self.kernel_shape is not None else (None,) * len(shape)
        if any(isinstance(d, int) and s not in (None, d) for d, s in zip(shape, stated)):
            raise OperandError(
                f"{self.name}: kernel_shape {list(stated)} contradicts the weight, which has {format_shape(shape)}"
            )
        for d, s in zip(shape, stated):
            if s is not None:
                dims.take(d, "==", s)
        return tuple(d if s is None else s for d, s in zip(shape, stated))

    def spans(self, spatial: Sequence[int], kernel: Sequence[int]) -> list[Span]:
        """The window along every axis, once extents are known."""
        rank, open_dims = len(spatial), OpenDims()
        pads = self.explicit_pads(rank)
        found: list[Span] = []
        for i, (e, k, s, d) in enumerate(
            zip(spatial, kernel, self.along("strides", rank), self.along("dilations", rank), strict=True)
        ):
            if self.auto_pad.startswith("SAME"):
                is_lower = self.auto_pad == "SAME_LOWER"
                around = shapes.same_padding(open_dims.dim(e), open_dims.dim(k), s, d, is_lower)
                pads[i] = (open_dims.extent(around[0]), open_dims.extent(around[1]))
            found.append(Span(e, k, s, d, *pads[i]))
        return found

    def positions(self, spatial: Sequence[Dim], kernel: Sequence[Dim], ceil_mode: bool = False) -> list[Dim]:
        """Return how many positions the window has along every axis; all extents may be symbolic."""
        rank, found = len(spatial), list[Dim]()
        pads = self.explicit_pads(rank)
        for i, (e, k, s, d) in enumerate(
            zip(spatial, kernel, self.along("strides", rank), self.along("dilations", rank), strict=True)
        ):
            if self.auto_pad.startswith("SAME"):
                found.append((e + (s - 1)) // s)
                continue
            count = shapes.pool_extent(e, k, s, d, *pads[i], ceil_mode)
            if isinstance(count, int) and count < 1:
                raise OperandError(
                    f"{self.name}: a window of {d * (k - 1) + 1} elements does not fit into axis {i + 2}",
                    [f"it has {e} elements, padded {sum(pads[i]) + int(str(e))}"],
                )
            dims.take(1, "<=", count)
            found.append(count)
        return found

    def padded(
        self, node: Node, said: tuple[str, dict[str, Any], list[Any]] | None, kernel: Sequence[Dim]
    ) -> tuple[str, dict[str, Any], list[Any]] | None:
        """Return how ONNX says a node, with pads for an auto_pad that ONNX Runtime takes amiss, or not at all: of a
        dilated window, or one shorter than a stride. Where they depend on open extents auto_pad stays."""
        rank, pads = len(kernel), list[tuple[Dim, Dim]]()
        along = [*zip(kernel, self.along("strides", rank), self.along("dilations", rank), strict=True)]
        is_taken = all(d == 1 and isinstance(k, int) and k >= s for k, s, d in along)
        if said is None or is_taken or not self.auto_pad.startswith("SAME"):
            return said
        for e, (k, s, d) in zip(node.operands[0].shape[2:], along, strict=True):
            found, most = shapes.same_padding(e, k, s, d, self.auto_pad == "SAME_LOWER"), d * (k - 1)
            if not is_static(found) and most in ((0, 1) if self.auto_pad == "SAME_UPPER" else (0,)):
                found = 0, most  # what no window reaches changes nothing
            if not is_static(found):
                return said
            pads.append(found)
        others = {a: value for a, value in said[1].items() if a != "auto_pad"}
        return said[0], {**others, "pads": (*(p[0] for p in pads), *(p[1] for p in pads))}, said[2]

    def counts(self, spatial: Sequence[int], kernel: Sequence[int], ceil_mode: bool = False) -> list[int]:
        """`positions` of a tensor expression, whose open extents count as ints."""
        open_dims = OpenDims()
        counts = self.positions(open_dims.shape(spatial), open_dims.shape(kernel), ceil_mode)
        return [open_dims.extent(n) for n in counts]


def check_group(op: Any, group: int, x: Operand, w: Operand, per_group: Dim, divided: Dim) -> None:
    """Raises OperandError where x does not have group * per_group channels, or group does not divide `divided`, the
    weight's axis 0."""
    if x.rank != w.rank:
        raise OperandError(
            f"{op.name}({x}, {w}): x has {x.rank - 2} spatial axes but w has {w.rank - 2}",
            do="their ranks must be equal",
        )
    channels = x.shape[1]
    if isinstance(divided, int) and divided % group:
        raise OperandError(f"{op.name}({x}, {w}): group {group} does not divide {divided}, the extent of axis 0 of w")
    if isinstance(channels, int) and isinstance(per_group, int) and channels != group * per_group:
        raise OperandError(
            f"{op.name}({x}, {w}): x has {channels} channels, expected {group * per_group}",
            [f"group is {group}, and w takes {per_group} channels per group"],
        )
    dims.take(channels, "==", group * per_group)
    dims.take(divided % group, "==", 0)


def pad(x: te.Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> te.Tensor:
    """`x` continued by `value` along its spatial axes; `x` itself where there is nothing to add. What memory holds in
    blocks of channels stays in blocks."""
    if all(same_extent(n, 0) for n in (*before, *after)):
        return x
    form = layout.form_of(x)
    is_blocked = form is not None and form.cuts_only(1)
    held = layout.source(x) if is_blocked else x
    lanes = (0,) * (held.ndim - 2 - len(before))
    padded = topi.pad(held, (0, 0, *before, *lanes), (0, 0, *after, *lanes), value, f"{held.name}_padded")
    if form is None or not is_blocked:
        return padded
    return layout.view(padded, (*x.shape[:2], *padded.shape[2 : 2 + len(before)]), form)


def window_view(x: np.ndarray[Any, Any], spans: Sequence[Span], value: float = 0.0) -> np.ndarray[Any, Any]:
    """All windows of an array, as [N, C, *positions, *kernel]; for references."""
    widths = [(0, 0), (0, 0), *((s.before, s.after) for s in spans)]
    padded = np.pad(x, widths, constant_values=value)
    axes = tuple(range(2, x.ndim))
    windows: Any = np.lib.stride_tricks.sliding_window_view  # NumPy's stubs know one axis alone
    every = windows(padded, [s.reach for s in spans], axis=axes)
    take = [slice(None), slice(None), *(slice(None, None, s.stride) for s in spans)]
    return every[(*take, *(slice(None, None, s.dilation) for s in spans))]
