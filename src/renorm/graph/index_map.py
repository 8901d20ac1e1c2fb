"""Index maps: where each element of a result is in an operand, for ops that only move elements.

    map  ::= Moved(operand, step, ..)        Moved(x, Regrouped((6, 4)), Permuted((1, 0)))
           | Joined(axis, operands)          one after the other
    step ::= Regrouped | Permuted            the index as one number in mixed radix, cut elsewhere; the order of axes
           | Strided | Padded | Repeated     each axis by itself: start and step; elements around; periods

An op states its map once (`ops.shared.movement`). Shapes, tensor expressions, where channels go (`carry`) and which
bytes are shared (`aliases`) are read off it. Operands are whatever has a shape: types, values, tensors, arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm.core import shapes
from renorm.core.dims import Dim, Sym, is_static, static
from renorm.core.shapes import regrouping
from renorm.graph.channels import MOST, Carry
from renorm.graph.op import Alias

if TYPE_CHECKING:
    from renorm.graph.ir import Value

Array = np.ndarray[Any, Any]
Extents = tuple[Any, ...]  # an int, a Sym, or None where it is not known

Labels = list[Array | None]
"""The number of a channel as a sum over axes: what each position of an axis adds, NaN where there is no channel; None
for an axis that says nothing of it."""


class Reindexing(ABC):
    """A change of indices."""

    @abstractmethod
    def extents(self, shape: Extents) -> Extents:
        """Return the shape after the step."""

    @abstractmethod
    def labels(self, shape: Extents, labels: Labels) -> Labels | None:
        """Return the labels of all axes; None where they are no such sum, or more than `MOST`."""


class AxisStep(Reindexing):
    """A change of indices along each axis by itself."""

    @abstractmethod
    def along(self, axis: int, labels: Array) -> Array:
        """Return the labels of an axis after the step."""

    def labels(self, shape: Extents, labels: Labels) -> Labels | None:
        extents = zip(labels, self.extents(shape))
        if any(own is not None and (not isinstance(e, int) or e > MOST) for own, e in extents):
            return None
        return [None if own is None else self.along(axis, own) for axis, own in enumerate(labels)]


@dataclass(frozen=True)
class Regrouped(Reindexing):
    """The same elements in order, in another shape."""

    shape: Extents

    def extents(self, shape: Extents) -> Extents:
        return self.shape

    def labels(self, shape: Extents, labels: Labels) -> Labels | None:
        found: Labels = []
        for old, new in regrouping(shape, self.shape):
            split = _cut(shape[old.start : old.stop], labels[old.start : old.stop], self.shape[new.start : new.stop])
            if split is None:
                return None
            found += split
        return found


@dataclass(frozen=True)
class Permuted(Reindexing):
    """Axis k is axis order[k] before."""

    order: tuple[int, ...]

    def extents(self, shape: Extents) -> Extents:
        return tuple(shape[a] for a in self.order)

    def labels(self, shape: Extents, labels: Labels) -> Labels:
        return [labels[a] for a in self.order]


@dataclass(frozen=True)
class Strided(AxisStep):
    """x[slices], one for each axis. Bounds and extents may be symbols, steps may not."""

    slices: tuple[slice, ...]

    def taken(self, shape: Extents) -> list[tuple[Dim, int, Dim]]:
        """Return (start, step, count) of what is taken along each axis, of known shape or with symbols."""
        return [shapes.sliced(e, s) for e, s in zip(shape, self.slices)]

    def extents(self, shape: Extents) -> Extents:
        return tuple(None if e is None else shapes.sliced(e, s)[2] for e, s in zip(shape, self.slices))

    def labels(self, shape: Extents, labels: Labels) -> Labels | None:
        ends = (end for own, s in zip(labels, self.slices) if own is not None for end in (s.start, s.stop))
        return None if any(isinstance(end, Sym) for end in ends) else super().labels(shape, labels)

    def along(self, axis: int, labels: Array) -> Array:
        return labels[self.slices[axis]]


@dataclass(frozen=True)
class Padded(AxisStep):
    """Elements (before, after) each axis, taken away where negative. mode: as numpy.pad has it; fill: an operand whose
    only element is put there at mode constant, 0 without one."""

    pads: tuple[tuple[Any, Any], ...]
    fill: Any = None
    mode: str = "constant"

    def extents(self, shape: Extents) -> Extents:
        return tuple(e + before + after for e, (before, after) in zip(shape, self.pads))

    def along(self, axis: int, labels: Array) -> Array:
        before, after = static(self.pads[axis])
        if self.mode == "constant":
            at = np.arange(-before, labels.size + after)
            return np.append(labels, np.nan)[np.where((at < 0) | (at > labels.size), labels.size, at)]
        mode: Any = self.mode  # NumPy's stubs list the literals
        return np.pad(labels, (before, after), mode)

    def fixed(self) -> Any:
        """Return the number that is put beside elements of the operand, None where there is none; a Value that is no
        constant where it is not known."""
        fills = self.mode == "constant" and any(not isinstance(p, int) or p > 0 for pair in self.pads for p in pair)
        return None if not fills else 0.0 if self.fill is None else self.fill


@dataclass(frozen=True)
class Repeated(AxisStep):
    """times[k] copies along axis k."""

    times: tuple[Dim, ...]

    def extents(self, shape: Extents) -> Extents:
        return tuple(e * t for e, t in zip(shape, self.times))

    def along(self, axis: int, labels: Array) -> Array:
        return np.tile(labels, static([self.times[axis]]))


class Moved:
    """The first operand, after steps. shape: of the result."""

    def __init__(self, source: Any, *steps: Reindexing):
        self.source, self.steps = source, steps
        self.shape: Extents = reduce(lambda shape, step: step.extents(shape), steps, tuple(source.shape))

    def aliases(self, result: Value) -> list[Alias]:
        """Return how the result lies in the operand, of fixed shape, where it does."""
        if all(isinstance(s, Regrouped) for s in self.steps):
            return [Alias(result, self.source)]
        step, *more = self.steps
        if more or not isinstance(step, Strided):
            return []
        if any(isinstance(n, Sym) for s in step.slices for n in (s.start, s.stop)):
            return []  # data decide where it begins
        taken = [range(e)[s] for e, s in zip(static(self.source.shape), step.slices)]
        if any(r.step != 1 for r in taken if len(r) > 1):
            return []
        return [Alias(result, self.source, tuple(r[0] if r else 0 for r in taken))]

    def carry(self, index: int, axis: int) -> Carry | None:
        """Return where the channels along an axis of operand `index` are: along the axis of the result that tells most
        of them apart; None where that is not known."""
        shape: Extents = tuple(self.source.shape)
        extent = shape[axis] if index == 0 <= axis < len(shape) else None
        if not isinstance(extent, int) or not 0 < extent <= MOST:
            return None
        labels: Labels = [None] * len(shape)
        labels[axis], fixed = np.arange(extent, dtype=np.float64), None
        for step in self.steps:
            after = step.labels(shape, labels)
            if after is None:
                return None
            labels, shape = after, step.extents(shape)
            fixed = step.fixed() if isinstance(step, Padded) else fixed
        held = {a: own for a, own in enumerate(labels) if own is not None}
        if not held or (not isinstance(fixed, float | None) and fixed.data is None):
            return None
        along = max(held, key=lambda a: len(np.unique(held[a])))
        others = _sums([np.unique(own) for a, own in held.items() if a != along])
        table = np.add.outer(held[along], others.reshape(-1))
        positions, k = np.nonzero(~np.isnan(table))
        pairs = np.stack([positions, table[positions, k].astype(np.int64)], axis=1)
        return Carry(along, pairs, fixed=fixed if isinstance(fixed, float | None) else float(fixed.data.item()))


@dataclass(frozen=True)
class Joined:
    """Operands one after the other along an axis."""

    axis: int
    parts: Sequence[Any]
    shape: Extents

    def aliases(self, result: Value) -> list[Alias]:
        """Return how the operands, of fixed shapes, lie in the result."""
        starts = accumulate((p.shape[self.axis] for p in self.parts), initial=0)
        return [
            Alias(p, result, tuple(start if a == self.axis else 0 for a in range(result.rank)))
            for p, start in zip(self.parts, starts)
        ]

    def carry(self, index: int, axis: int) -> Carry | None:
        """Return where the channels along an axis of operand `index` are; None where that is not known."""
        carry = Moved(self.parts[index]).carry(0, axis)
        before = [p.shape[axis] for p in self.parts[:index]] if axis == self.axis else []
        return Carry(axis, carry.pairs + [sum(before), 0]) if carry is not None and is_static(before) else None


IndexMap = Moved | Joined


def _sums(labels: Sequence[Array]) -> Array:
    """Return what labels of several axes add up to, for all of their positions."""
    return np.asarray(reduce(np.add.outer, labels, np.zeros(())))


def _cut(before: Extents, labels: Labels, after: Extents) -> Labels | None:
    """Return the labels of a run of axes that is cut into axes `after`; None where they are no sum over these."""
    if all(own is None for own in labels):
        return [None for _ in after]
    if not after or not is_static(before + after) or not 0 < prod(before) == prod(after) <= MOST:
        return None
    table = _sums([np.zeros(e) if own is None else own for e, own in zip(before, labels)]).reshape(after)
    first = table.reshape(-1)[0]
    added = [table[tuple(slice(None) if k == a else 0 for k in range(table.ndim))] - first for a in range(table.ndim)]
    telling = [a for a, own in enumerate(added) if own.any()] or [0]
    added[telling[0]] = added[telling[0]] + first
    return (
        [own if a in telling else None for a, own in enumerate(added)] if np.array_equal(_sums(added), table) else None
    )
