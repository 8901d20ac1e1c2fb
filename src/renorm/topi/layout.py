"""How memory holds a tensor: in blocks, [O, I, ...] -> [O / v, I / v, ..., v of I, v of O], vectors of elements that
kernels read as one, and in which dtype.

A Blocking says how memory holds a tensor. Neither ops nor graph know the shape that it has there: at both ends of a
kernel a view turns one into the other. What is read comes as `view`, in the tensor's own shape; what is written goes
out as `result`. Views are always inlined, so all that is left of them is the index arithmetic, which lowering undoes:
(c * v + i) // v is c. Constant weights are stored in their form once, at compile time (`Blocking.pack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import te
from renorm.expr.nodes import const
from renorm.graph.layout import Layout
from renorm.te import tag

VIEW = "layout_view"
RESULT = "layout_result"
PACKED = "layout_packed"


@dataclass(frozen=True)
class Blocking:
    """Axes cut into blocks. cuts: (axis, lanes); the elements of the last one lie side by side, those of the one before
    lie around them. An axis may be cut again: ((1, 16), (0, 8), (1, 2)) has 32 of I in 16 pairs, 8 of O around each
    pair. first: an axis whose blocks come one after the other, everything else within; None leaves the axes in their
    order. An extent that lanes do not divide is filled up. dtype: what memory holds float32 elements in, rounded; None:
    as they are."""

    cuts: tuple[tuple[int, int], ...]
    first: int | None = None
    dtype: str | None = None

    @staticmethod
    def of(layout: Layout) -> Blocking:
        """Return how a value of the graph lies in memory."""
        cuts = () if layout.axis is None else ((layout.axis, layout.lanes),)
        return Blocking(cuts, dtype=layout.dtype)

    def cuts_only(self, axis: int) -> bool:
        """Return whether memory is row-major but for blocks along `axis`."""
        return self.first is None and [a for a, _ in self.cuts] == [axis]

    def lanes(self, axis: int) -> int:
        """Return how many elements along an axis a block has; 1 for an axis that is not cut."""
        return prod(n for a, n in self.cuts if a == axis)

    def blocks(self) -> list[tuple[int, int]]:
        """Return (axis, lanes) of each axis that is cut."""
        return [(axis, self.lanes(axis)) for axis in dict.fromkeys(a for a, _ in self.cuts)]

    def _order(self, rank: int) -> list[int]:
        """Axes as memory has them, without what is inside of blocks."""
        rest = [a for a in range(rank) if a != self.first]
        return rest if self.first is None else [self.first, *rest]

    def _steps(self) -> list[int]:
        """Return for each cut how far apart its elements are along the axis."""
        return [prod(n for a, n in self.cuts[i + 1 :] if a == axis) for i, (axis, _) in enumerate(self.cuts)]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in memory of a tensor of `shape`."""
        outer = [-(-shape[a] // self.lanes(a)) for a in self._order(len(shape))]
        return (*outer, *(n for _, n in self.cuts))

    def index(self, index: Sequence[Any]) -> tuple[Any, ...]:
        """Return where in memory the element at `index` lies."""
        whole = dict(self.blocks())
        outer = [index[a] // whole[a] if a in whole else index[a] for a in self._order(len(index))]
        inner = list[Any]()
        for (a, n), step in zip(self.cuts, self._steps()):
            place = index[a] // step if step > 1 else index[a]
            inner.append(place % n)
        return (*outer, *inner)

    def element(self, place: Sequence[Any]) -> tuple[Any, ...]:
        """The index of the element at a place in memory: what `index` undoes."""
        rank = len(place) - len(self.cuts)
        found = dict(zip(self._order(rank), place))
        for (axis, lanes), inside in zip(self.cuts, place[rank:]):
            found[axis] = found[axis] * lanes + inside
        return tuple(found[a] for a in range(rank))

    def pack(self, data: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Writes the array to `out` as memory holds it, rounded to its dtype. out: C-contiguous, of `shape`; what fills
        up blocks is zero."""
        split, order = self._cut(data.shape)
        missing = [(0, f - e) for f, e in zip(self._filled(data.shape), data.shape)]
        data = np.pad(data, missing) if any(after for _, after in missing) else data
        turned = data.reshape(split).transpose(order)
        if not turned.flags.c_contiguous:  # NumPy turns and rounds faster one after the other
            turned = data.astype(out.dtype, copy=False).reshape(split).transpose(order)
        np.copyto(out.reshape(turned.shape), turned, casting="unsafe")

    def unpack(self, held: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The array of `shape` that `pack` wrote."""
        split, order = self._cut(shape)
        turned = held.reshape([split[i] for i in order]).transpose(np.argsort(order))
        full = turned.reshape(self._filled(shape))
        return full[tuple(slice(e) for e in shape)]

    def _cut(self, shape: Sequence[int]) -> tuple[list[int], list[int]]:
        """Extents of a filled up array of `shape` where each axis is several, blocks and the cuts inside of one, and
        the order in which memory has these."""
        split, outer = list[int](), dict[int, int]()
        places = dict[int, int]()  # of cuts, by number
        for a, extent in enumerate(shape):
            outer[a] = len(split)
            split.append(-(-extent // self.lanes(a)))
            for i, (axis, n) in enumerate(self.cuts):
                if axis == a:
                    places[i] = len(split)
                    split.append(n)
        return split, [*(outer[a] for a in self._order(len(shape))), *(places[i] for i in range(len(self.cuts)))]

    def _filled(self, shape: Sequence[int]) -> list[int]:
        """Return the extents of an array of `shape` whose blocks are filled up."""
        return [-(-extent // self.lanes(a)) * self.lanes(a) for a, extent in enumerate(shape)]


def view(held: te.Tensor, shape: tuple[int, ...], form: Blocking) -> te.Tensor:
    """Return the elements as memory holds them in `form`, in its own shape, as float32 where that rounds."""

    def element(*index: Any) -> Any:
        e = held[form.index(index)]
        return e.astype("float32") if form.dtype else e

    return te.compute(shape, element, name=f"{held.name}_view", tag=VIEW, attrs={"form": form})


def result(t: te.Tensor, form: Blocking) -> te.Tensor:
    """`t` as memory holds it in `form`: a stage like any elementwise one where that has no blocks."""

    def element(*place: Any) -> Any:
        e = t[form.element(place)]
        return e.astype(form.dtype) if form.dtype else e

    kind = (RESULT, {"form": form}) if form.cuts else (tag.ELEMWISE, None)
    return te.compute(form.shape(t.shape), element, name=f"{t.name}_held", tag=kind[0], attrs=kind[1])


def packed(t: te.Tensor, form: Blocking) -> te.Tensor:
    """Return a stage that holds `t` in `form`, as `Blocking.pack` does with a constant: for weights that are not known
    before."""
    filled = [axis for axis, lanes in form.blocks() if t.shape[axis] % lanes]

    def element(*place: Any) -> Any:
        index = form.element(place)
        is_there = [index[axis] < t.shape[axis] for axis in filled]
        return te.if_then_else(te.all(*is_there), t[index], const(0, t.dtype)) if filled else t[index]

    return te.compute(form.shape(t.shape), element, name=f"{t.name}_packed", tag=PACKED)


def form_of(t: te.Tensor) -> Blocking | None:
    """The form of a view or a result; None for other tensors."""
    return t.op.attrs["form"] if t.op.tag in (VIEW, RESULT) else None


def is_result(t: te.Tensor) -> bool:
    return t.op.tag == RESULT


def source(t: te.Tensor) -> te.Tensor:
    """The tensor that a view or a result turns; any other tensor itself."""
    return t.op.input_tensors[0] if t.op.tag in (VIEW, RESULT) else t
