"""Common subexpressions: equal constants become one, and so do equal nodes on equal operands."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

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
                alike.setdefault((v.type, _bits(v)[:_GLANCE].tobytes()), []).append(v)
        for values in alike.values():
            while values:
                first = values.pop(0)
                same = [v for v in values if np.array_equal(_bits(v), _bits(first))]
                for v in same:
                    graph.replace(v, first)
                values = [v for v in values if v not in same]


def _bits(v: Value) -> np.ndarray[Any, Any]:
    """Bytes of a constant, before rounding where that is known: what tells 0.0 from -0.0, and one NaN from another."""
    data = v.data if v.exact is None else v.exact
    assert data is not None
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
