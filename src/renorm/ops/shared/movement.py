"""What ops that only move elements have in common: they state an index map, and the rest is read off it.

    infer                 its shape              compute         its steps, as topi has them
    propagate_channels    the way of one axis    aliases         a part of memory, where it is one
    known_result          `reference` over known elements

`reference` stays each op's own, by NumPy: tests hold all of this against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.dims import Dim, Shape, Sym
from renorm.core.errors import InternalError
from renorm.expr.nodes import cast
from renorm.graph.channels import Carry
from renorm.graph.index_map import IndexMap, Joined, Moved, Padded, Permuted, Regrouped, Reindexing, Repeated, Strided
from renorm.graph.ir import Node, Value
from renorm.graph.op import Alias, Reach
from renorm.ops.shared import exact
from renorm.ops.shared.family import Injective
from renorm.te.open_dims import OpenDims
from renorm.topi.transform import Taken


class Movement(Injective):
    """Ops whose result elements are elements of operands, at places that extents and static operands fix."""

    def index_map(self, *operands: Any) -> IndexMap | list[IndexMap] | None:
        """Return where elements of the result (of each of a list of results) come from; None where it is not known.

        operands: whatever has a shape, which may be symbolic; static ones are arrays of ints or Syms, a variadic one is
        a list, absent ones are None. Raises OperandError where operands do not fit.
        """
        raise NotImplementedError(f"{self.name} has no index_map")

    def open_rank(self, x: Any, *static: Any) -> int:
        """Return the rank of the result where a static operand is not known, which leaves its extents open."""
        return len(x.shape)

    def infer(self, *operands: Any) -> Any:
        found = self._map(operands)
        if found is None:
            return (None,) * self.open_rank(*operands)
        return [m.shape for m in found] if isinstance(found, list) else found.shape

    def compute(self, *operands: Any) -> Any:
        open_dims = OpenDims()
        given = [[_seen(x, open_dims) for x in o] if isinstance(o, list) else _seen(o, open_dims) for o in operands]
        found = self.index_map(*given)
        return [_tensor(m, open_dims) for m in found] if isinstance(found, list) else _tensor(found, open_dims)

    def propagate_channels(self, node: Node, index: int, axis: int) -> Sequence[Carry]:
        found, seen, maps = list[Carry](), set[int](), self.maps(node)
        for result, m in enumerate(maps):
            carry = m.carry(index, axis)
            channels = set[int]() if carry is None or len(maps) == 1 else {*carry.pairs[:, 1].tolist()}
            if carry is None or not seen.isdisjoint(channels):
                return []  # a channel that is in several results is carried to none of them
            seen |= channels
            found.append(Carry(carry.axis, carry.pairs, result, fixed=carry.fixed))
        return found

    def aliases(self, node: Node) -> Sequence[Alias]:
        return [alias for m, result in zip(self.maps(node), node.outputs) for alias in m.aliases(result)]

    def known_result(self, *operands: Any) -> np.ndarray[Any, Any] | list[np.ndarray[Any, Any]] | None:
        flat: list[exact.Known] = [k for o in operands if o is not None for k in (o if isinstance(o, list) else [o])]
        if any(elements is None for _, elements in flat):
            return None
        given = [o and ([k for _, k in o] if isinstance(o, list) else o[1]) for o in operands]
        found = self.index_map(*given)
        if found is None:
            return None
        maps = found if isinstance(found, list) else [found]
        if any(not dims.is_static(m.shape) or prod(dims.static(m.shape)) > exact.MOST for m in maps):
            return None
        made = self.reference(*given)
        return [np.asarray(m, object) for m in made] if isinstance(made, list) else np.asarray(made, object)

    def known_range(self, node: Node, ranges: Mapping[Value, Reach]) -> Reach | None:
        x = node.inputs[0]
        if x is None or x not in ranges:
            return None
        match self.maps(node):
            case [Moved(steps=steps)] if not any(isinstance(step, Padded) for step in steps):
                return ranges[x]
            case _:
                return None

    def maps(self, node: Node) -> list[IndexMap]:
        """Return the maps of all results of a node; none where they are not known."""
        found = self._map(node.operands)
        return found if isinstance(found, list) else [] if found is None else [found]

    def _map(self, operands: Sequence[Any]) -> IndexMap | list[IndexMap] | None:
        """Return the map of operands that are types or values; None where a static one is not known."""
        given: list[Any] = []
        for parameter, o in zip(self.parsed.operands, operands):
            if parameter.is_static and o is not None:
                o = o.data if isinstance(o, Value) and o.data is not None else o.known
                if o is None:
                    return None
            given.append(o)
        return self.index_map(*given)


@dataclass(frozen=True)
class _Seen:
    """A tensor as index maps see it: its extents are those of core.dims."""

    tensor: te.Tensor
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{dims.format_shape(self.shape)}"


def _seen(operand: Any, open_dims: OpenDims) -> Any:
    """Return an operand of `compute` as index maps see it."""
    if isinstance(operand, te.Tensor):
        return _Seen(operand, open_dims.shape(operand.shape), operand.dtype)
    if isinstance(operand, np.ndarray) and operand.dtype == object:
        return np.array([open_dims.dim(e) for e in operand.flat] + [None], object)[:-1].reshape(operand.shape)
    return operand


def _tensor(m: Any, open_dims: OpenDims) -> te.Tensor:
    if isinstance(m, Joined):
        return topi.concatenate([p.tensor for p in m.parts], m.axis)
    x, shape = m.source.tensor, tuple(m.source.shape)
    for step in m.steps:
        x = _after(x, shape, step, open_dims)
        shape = step.extents(shape)
    return x


def _last(extent: Dim, given: slice, taken: tuple[Dim, int, Dim]) -> tuple[Dim, ...]:
    """Return the last position of an axis, where open bounds are only known to lie inside by a call's conditions."""
    start, step, count = taken
    farthest = start + (count - 1) * step if step > 0 else start
    is_open = isinstance(given.start, Sym) or isinstance(given.stop, Sym)
    return (extent - 1,) if is_open and dims.bounds(farthest - (extent - 1))[1] > 0 else ()


def _after(x: te.Tensor, shape: Shape, step: Reindexing, open_dims: OpenDims) -> te.Tensor:
    def extents(found: Sequence[Any]) -> list[Any]:
        return [open_dims.extent(e) for e in found]

    match step:
        case Regrouped(shape=wanted):
            return topi.reshape(x, [-1 if e is None else e for e in extents(wanted)])
        case Permuted(order=order):
            return topi.transpose(x, order)
        case Strided(slices=slices):
            told = zip(shape, slices, step.taken(shape))
            return topi.gather_ranges(x, [Taken(*extents((*t, *_last(e, s, t)))) for e, s, t in told])
        case Repeated(times=times):
            return topi.tile(x, extents(times))
        case Padded(pads=pads, fill=fill, mode=mode):
            value = 0 if fill is None else cast(x.dtype, fill.tensor[(0,) * len(fill.shape)])
            before, after = (extents([pair[side] for pair in pads]) for side in (0, 1))
            return topi.pad(x, before, after, value, "pad", mode=mode)
        case _:
            raise InternalError(f"no tensor expression for {step}")
