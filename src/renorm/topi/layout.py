"""Memory in blocks: [O, I, ...] -> [O / v, I / v, ..., v of I, v of O], vectors of elements that kernels read as one.

A Blocking says how memory holds a tensor. Neither ops nor graph know the shape that it has there: at both ends of a
kernel a view turns one into the other. What is read comes as `view`, in the tensor's own shape; what is written goes
out as `result`. Views are always inlined, so all that is left of them is the index arithmetic, which lowering undoes:
(c * v + i) // v is c. Constant weights are stored in their form once, at compile time (`Blocking.pack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import te
from renorm.graph.layout import Blocked

VIEW = "layout_view"
RESULT = "layout_result"


@dataclass(frozen=True)
class Blocking:
    """Axes cut into blocks. cuts: (axis, lanes); the elements of the last one lie side by side, those of the one before
    lie around them. first: an axis whose blocks come one after the other, everything else within; None leaves the
    axes in their order. An extent that lanes do not divide is filled up."""

    cuts: tuple[tuple[int, int], ...]
    first: int | None = None

    @staticmethod
    def of(layout: Blocked) -> Blocking:
        """Return how a value of the graph lies in memory."""
        return Blocking(((layout.axis, layout.lanes),))

    def cuts_only(self, axis: int) -> bool:
        """Return whether memory is row-major but for blocks along `axis`."""
        return self.first is None and [a for a, _ in self.cuts] == [axis]

    def _order(self, rank: int) -> list[int]:
        """Axes as memory has them, without what is inside of blocks."""
        rest = [a for a in range(rank) if a != self.first]
        return rest if self.first is None else [self.first, *rest]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in memory of a tensor of `shape`."""
        lanes = dict(self.cuts)
        outer = [-(-shape[a] // lanes.get(a, 1)) for a in self._order(len(shape))]
        return (*outer, *(n for _, n in self.cuts))

    def index(self, index: Sequence[Any]) -> tuple[Any, ...]:
        """Return where in memory the element at `index` lies."""
        lanes = dict(self.cuts)
        outer = [index[a] // lanes[a] if a in lanes else index[a] for a in self._order(len(index))]
        return (*outer, *(index[a] % n for a, n in self.cuts))

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
        full = [before * inside for before, inside in zip(split[::2], split[1::2])]
        missing = [(0, f - e) for f, e in zip(full, data.shape)]
        data = np.pad(data, missing) if any(after for _, after in missing) else data
        turned = data.reshape(split).transpose(order)
        if not turned.flags.c_contiguous:  # NumPy turns and rounds faster one after the other
            turned = data.astype(out.dtype, copy=False).reshape(split).transpose(order)
        np.copyto(out.reshape(turned.shape), turned, casting="unsafe")

    def unpack(self, held: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The array of `shape` that `pack` wrote."""
        split, order = self._cut(shape)
        turned = held.reshape([split[i] for i in order]).transpose(np.argsort(order))
        full = turned.reshape([before * inside for before, inside in zip(split[::2], split[1::2])])
        return full[tuple(slice(e) for e in shape)]

    def _cut(self, shape: Sequence[int]) -> tuple[list[int], list[int]]:
        """Extents of a filled up array of `shape` where each axis is two, blocks and what is inside of one, and the
        order in which memory has these."""
        lanes = dict(self.cuts)
        split = [n for a, e in enumerate(shape) for n in (-(-e // lanes.get(a, 1)), lanes.get(a, 1))]
        outer, inner = [2 * a for a in self._order(len(shape))], [2 * a + 1 for a, _ in self.cuts]
        return split, [*outer, *inner, *(2 * a + 1 for a in range(len(shape)) if a not in lanes)]


def view(held: te.Tensor, shape: tuple[int, ...], form: Blocking) -> te.Tensor:
    """Return the elements as memory holds them in `form`, in its own shape."""
    return te.compute(shape, lambda *i: held[form.index(i)], name=f"{held.name}_view", tag=VIEW, attrs={"form": form})


def result(t: te.Tensor, form: Blocking) -> te.Tensor:
    """`t` as memory holds it in `form`."""
    return te.compute(
        form.shape(t.shape), lambda *i: t[form.element(i)], name=f"{t.name}_held", tag=RESULT, attrs={"form": form}
    )


def form_of(t: te.Tensor) -> Blocking | None:
    """The form of a view or a result; None for other tensors."""
    return t.op.attrs["form"] if t.op.tag in (VIEW, RESULT) else None


def is_result(t: te.Tensor) -> bool:
    return t.op.tag == RESULT


def source(t: te.Tensor) -> te.Tensor:
    """The tensor that a view or a result turns; any other tensor itself."""
    return t.op.input_tensors[0] if t.op.tag in (VIEW, RESULT) else t
