"""What ops that only move elements have in common: they state an index map, and the rest is read off it.

    infer                 its shape              compute         its steps, as topi has them
    propagate_channels    the way of one axis    aliases         a part of memory, where it is one
    known_result          `reference` over known elements

`reference` stays each op's own, by NumPy: tests hold all of this against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm import te, topi
from renorm.core import dims
from renorm.core.errors import InternalError
from renorm.expr.nodes import cast
from renorm.graph.channels import Carry
from renorm.graph.index_map import IndexMap, Joined, Padded, Permuted, Regrouped, Reindexing, Repeated, Strided
from renorm.graph.ir import Node, Value
from renorm.graph.op import Alias
from renorm.ops.shared import exact
from renorm.ops.shared.family import Injective


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
        found = self.index_map(*operands)
        return [_tensor(m) for m in found] if isinstance(found, list) else _tensor(found)

    def propagate_channels(self, node: Node, index: int, axis: int) -> Sequence[Carry]:
        found, seen, maps = list[Carry](), set[int](), self._maps(node)
        for result, m in enumerate(maps):
            carry = m.carry(index, axis)
            channels = set[int]() if carry is None or len(maps) == 1 else {*carry.pairs[:, 1].tolist()}
            if carry is None or not seen.isdisjoint(channels):
                return []  # a channel that is in several results is carried to none of them
            seen |= channels
            found.append(Carry(carry.axis, carry.pairs, result, fixed=carry.fixed))
        return found

    def aliases(self, node: Node) -> Sequence[Alias]:
        return [alias for m, result in zip(self._maps(node), node.outputs) for alias in m.aliases(result)]

    def known_result(self, *operands: Any) -> np.ndarray[Any, Any] | None:
        """Return the elements of a single result."""
        flat: list[exact.Known] = [k for o in operands if o is not None for k in (o if isinstance(o, list) else [o])]
        if any(elements is None for _, elements in flat):
            return None
        given = [o and ([k for _, k in o] if isinstance(o, list) else o[1]) for o in operands]
        found = self.index_map(*given)
        if found is None or isinstance(found, list) or not dims.is_static(found.shape):
            return None
        is_small = prod(dims.static(found.shape)) <= exact.MOST
        return np.asarray(self.reference(*given), dtype=object) if is_small else None

    def _maps(self, node: Node) -> list[IndexMap]:
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


def _tensor(m: Any) -> te.Tensor:
    if isinstance(m, Joined):
        return topi.concatenate(m.parts, m.axis)
    x: te.Tensor = m.source
    for step in m.steps:
        x = _after(x, step)
    return x


def _after(x: te.Tensor, step: Reindexing) -> te.Tensor:
    match step:
        case Regrouped(shape=shape):
            return topi.reshape(x, dims.static(-1 if e is None else e for e in shape))
        case Permuted(order=order):
            return topi.transpose(x, order)
        case Strided(slices=slices):
            return topi.gather_ranges(x, [range(e)[s] for e, s in zip(x.shape, slices)])
        case Repeated(times=times):
            return topi.tile(x, dims.static(times))
        case Padded(pads=pads, fill=fill, mode=mode):
            value = 0 if fill is None else cast(x.dtype, fill[(0,) * fill.ndim])
            return topi.pad(x, [b for b, _ in pads], [a for _, a in pads], value, "pad", mode=mode)
        case _:
            raise InternalError(f"no tensor expression for {step}")
