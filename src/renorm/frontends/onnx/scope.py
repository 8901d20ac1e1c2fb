"""Names of a graph of an ONNX model, and of those around it, while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from renorm.frontends.onnx import tensors
from renorm.graph.ir import Value

Elements = Callable[[str], tensors.Array]  # those of an initializer, given how errors call it


class Scope:
    """The names of one graph: values made so far, and initializers, which become constants when first read. Those of
    the graph around it can be seen too. opsets: version by domain, by which its nodes are read. place: what stands
    behind names of nodes, which a body that is read several times has as often."""

    def __init__(self, outer: Scope | None = None, opsets: Mapping[str, int] | None = None):
        self.outer = outer
        self.place = outer.place if outer is not None else ""
        self.opsets = (outer.opsets if outer is not None else {}) if opsets is None else opsets
        self.values: dict[str, Value | None] = {}  # None: its node could not be read
        self.initializers: dict[str, Elements] = {}
        self.names: dict[str, str] = {}  # of results of a branch: the names that the If gives them

    def holding(self, name: str) -> Scope | None:
        """Return the innermost scope that has that name."""
        at: Scope | None = self
        while at is not None and name not in at.values and name not in at.initializers:
            at = at.outer
        return at

    def seen(self) -> list[str]:
        """Return all names."""
        at, found = self, list[str]()
        while at is not None:
            found += (*at.values, *at.initializers)
            at = at.outer
        return found
