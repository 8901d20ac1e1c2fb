"""Bounds of the elements of integer results that are not known: they say how far indices reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from renorm.core.dims import Sym
from renorm.graph.ir import Node, Value
from renorm.graph.op import Reach


def rising(known: Callable[[Any, Any], Any]) -> Callable[..., Reach | None]:
    """Return `known_range` of an op of two operands whose result is the greatest where both are. known: it, of elements
    that are known."""

    def known_range(self: Any, node: Node, ranges: Mapping[Value, Reach]) -> Reach | None:
        found = [r for v in node.inputs if (r := _of(v, ranges)) is not None]
        if len(found) < 2 or ranges.keys().isdisjoint(node.inputs):
            return None
        least, most = (known(*(r[end] for r in found)) for end in (0, 1))
        return least, most

    return known_range


def _of(v: Value | None, ranges: Mapping[Value, Reach]) -> Reach | None:
    """Return the range of a value, that of one known element too."""
    if v is None or v in ranges or v.known is None or v.known.size != 1:
        return None if v is None else ranges.get(v)
    element = v.known.reshape(-1)[0]
    return (element, element) if isinstance(element, (int, Sym)) else None
