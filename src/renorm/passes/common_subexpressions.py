"""Common subexpressions: equal constants become one, and so do equal nodes on equal operands."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from renorm.graph.ir import Graph, Node, Value
from renorm.graph.origin import Origin
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
            other.origin = Origin(other.origin, node.origin)
            gone.append(node)
        graph.discard(gone)
        graph.discard_constants()

    def _share_constants(self, graph: Graph) -> None:
        alike: dict[Hashable, list[Value]] = {}
        for v in graph.constants.values():
            if not graph.is_output(v):
                alike.setdefault((v.type, _glance(v)), []).append(v)
        for values in alike.values():
            first: dict[Hashable, Value] = {}
            for v in values if len(values) > 1 else ():
                if (same := first.setdefault(_content(v), v)) is not v:
                    graph.replace(v, same)


def _glance(v: Value) -> Hashable:
    """Return a key that tells most constants of one type apart, and all where nothing is computed yet."""
    return v.deferred.key() if v.deferred else _bits(v.part(0, 0, 1) if v.rank else v.data)[:_GLANCE].tobytes()


def _content(v: Value) -> Hashable:
    """Equal for constants of one type and glance that are equal to the last bit, also before rounding where that is
    known."""
    if v.deferred:
        return None
    exact = v.exact
    return _digest(v.data), None if exact is None else _digest(exact)


def _digest(array: np.ndarray[Any, Any] | None) -> bytes:
    return sha256(_bits(array).data).digest()


def _bits(array: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """Bytes of an array: what tells 0.0 from -0.0, and one NaN from another."""
    assert array is not None
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
