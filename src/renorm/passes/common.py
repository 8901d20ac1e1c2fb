"""Common subexpressions: equal constants become one, and so do equal nodes on equal operands."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from renorm.core.dataclass import dataclass
from renorm.graph.ir import Graph, Node, Value
from renorm.passes.context import Context

_GLANCE = 256  # bytes that tell most constants of one type apart


@dataclass(frozen=True)
class ShareCommon:
    """op(xs), op(xs) -> one op(xs) with the readers of both.

    Kept nodes stay apart, and so do nodes whose results are both outputs of the graph.
    """

    def run(self, graph: Graph, context: Context) -> None:
        self._share_constants(graph)
        first: dict[Hashable, Node] = {}
        gone: list[Node] = []
        for node in graph.nodes:
            if context.kept(node):
                continue
            key = (type(node.op), node.op, tuple(tuple(o) if isinstance(o, list) else o for o in node.operands))
            other = first.setdefault(key, node)
            if other is node or any(graph.why_not_replace(a, b) for a, b in zip(node.outputs, other.outputs)):
                continue
            for old, new in zip(node.outputs, other.outputs):
                graph.replace(old, new)
            other.origin = tuple(dict.fromkeys((*other.origin, *node.origin)))
            gone.append(node)
        graph.discard(gone)
        graph.discard_constants()

    def _share_constants(self, graph: Graph) -> None:
        alike: dict[Hashable, list[Value]] = {}
        for v in graph.constants.values():
            if not graph.is_output(v):
                alike.setdefault((v.type, _glance(v)), []).append(v)
        for values in alike.values():
            while values:
                first = values.pop(0)
                same = [v for v in values if _is_same(v, first)]
                for v in same:
                    graph.replace(v, first)
                values = [v for v in values if v not in same]


def _glance(v: Value) -> Hashable:
    """Return a key that tells most constants of one type apart, and all where nothing is computed yet."""
    return v.deferred.key() if v.deferred else _bits(v.part(0, 0, 1) if v.rank else v.data)[:_GLANCE].tobytes()


def _is_same(v: Value, other: Value) -> bool:
    """Whether two constants of one glance are equal to the last bit, also before rounding where that is known."""
    if v.deferred or other.deferred:
        return True
    if not np.array_equal(_bits(v.data), _bits(other.data)):
        return False
    a, b = v.exact, other.exact
    return a is b if a is None or b is None else np.array_equal(_bits(a), _bits(b))


def _bits(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """Bytes of an array: what tells 0.0 from -0.0, and one NaN from another."""
    assert array is not None
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
