"""How much a network asks for, read off its graph before anything is made of it: elements, bytes, operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, size, static
from renorm.core.errors import InvalidInput, RenormError
from renorm.core.extents import Evaluation
from renorm.core.inputs import given_symbols
from renorm.core.lazy import cached_property
from renorm.core.limits import Found, Limits
from renorm.graph.ir import Graph, Node, Value


def check(graph: Graph, limits: Limits) -> None:
    """Raise LimitExceeded for a graph that asks for more; extents that are still open count nothing."""
    found = list[Found]()
    values = [v for v in graph.values() if v.type.is_static]
    if values:
        largest = max(values, key=_elements)
        found.append(("elements", _elements(largest), _named(largest)))
    outside = [v for v in (*graph.inputs, *graph.outputs, *graph.constants.values()) if v.type.is_static]
    if outside:
        total = {v: _elements(v) * dtypes.itemsize(v.dtype) for v in outside}
        most = max(outside, key=total.__getitem__)
        found.append(("bytes", sum(total.values()), f"most of {_named(most)}"))
    if sum(map(_at_most, graph.nodes)) > limits.operations:
        counted = dict(_operations(graph))
        if counted:
            name = max(counted, key=counted.__getitem__)
            found.append(("operations", sum(counted.values()), f"most of node {name!r}, {counted[name]:.3g}"))
    limits.check(graph.name, found)


class OpenBounds:
    """The same for each run of a graph with open extents: its elements, bytes and operations are Dims. Operations are
    counted roughly first, and exactly once that was too many. Only where more is asked for than is allowed, the graph
    is looked at for the extents of the run."""

    def __init__(self, graph: Graph, limits: Limits):
        self._graph, self._limits = graph, limits
        outside = (*graph.inputs, *graph.outputs, *graph.constants.values())
        self._elements = tuple({size(v.shape) for v in graph.values()})
        self._bytes = _sum(size(v.shape) * dtypes.itemsize(v.dtype) for v in outside)
        self._operations = _sum(map(_open_most, graph.nodes))
        self._symbols = sorted(map(str, given_symbols(graph.inputs)))
        self._evaluation = self._evaluated()

    def _evaluated(self) -> Evaluation:
        return Evaluation(self._symbols, (*self._elements, self._bytes, self._operations))

    @cached_property
    def _exact(self) -> Evaluation:
        """With operations by the expressions of nodes."""
        self._operations = _open_operations(self._graph)
        self._evaluation = self._evaluated()
        return self._evaluation

    def check(self, values: Mapping[str, int]) -> None:
        """Raise LimitExceeded where a run with these extents asks for more."""
        if not self._is_allowed(values) and not (self._exact and self._is_allowed(values)):
            check(self._graph.copy(values), self._limits)

    def _is_allowed(self, values: Mapping[str, int]) -> bool:
        index, limits = self._evaluation.index, self._limits
        try:
            held = self._evaluation.at(values)
        except InvalidInput:
            return False

        def of(d: Dim) -> int:
            return held[index[d]] if isinstance(d, Sym) else d

        most = max(map(of, self._elements), default=0), of(self._bytes), of(self._operations)
        return all(a <= b for a, b in zip(most, (limits.elements, limits.bytes, limits.operations)))


def _open_operations(graph: Graph) -> Dim:
    """Steps of the expressions of all nodes; of a node that has none for open extents, what _open_most says."""
    from renorm.driver import extents  # loads te, which a network of usual size does without here
    from renorm.driver.lowering import expressions
    from renorm.driver.work import steps

    symbols = given_symbols(graph.inputs)
    sizes = extents.OpenExtents(symbols, dict.fromkeys(symbols, 1))
    total: Dim = 0
    for node in graph.nodes:
        try:
            total = total + sizes.dim(steps(expressions(node, sizes)))
        except RenormError:
            total = total + _open_most(node)
    return total


def _sum(dims: Iterable[Dim]) -> Dim:
    total: Dim = 0
    for d in dims:
        total = total + d
    return total


def _open_most(node: Node) -> Dim:
    """As _at_most, with sums where that has the largest."""
    types, results = node.operand_types(), _sum(size(v.shape) for v in node.outputs)
    weights = _sum(
        size(v.shape) for i, v in enumerate(node.inputs) if v is not None and node.op.channel_axis(i, types) is not None
    )
    if weights != 0:
        return results * weights
    return results * _sum([1, *(size(v.shape) for v in node.inputs if v is not None)]) * _often(node)


def _often(node: Node) -> int:
    given = [n for value in node.op.values.values() for n in (value if isinstance(value, tuple) else (value,))]
    return prod(n for n in given if type(n) is int and n > 1)


def _named(v: Value) -> str:
    return repr(v) if v.producer is None else f"{v!r} of node {v.producer.name!r}"


def _elements(v: Value) -> int:
    return prod(static(v.shape))


def _at_most(node: Node) -> int:
    """Return more than what a node computes, found without its expressions: each element of its results from all of its
    weights, or, of an op without, from all of an operand and as often as its attributes may say."""
    if not all(v.type.is_static for v in (*node.inputs, *node.outputs) if v is not None):
        return 0
    types, results = node.operand_types(), sum(map(_elements, node.outputs))
    weights = [
        _elements(v) for i, v in enumerate(node.inputs) if v is not None and node.op.channel_axis(i, types) is not None
    ]
    if weights:
        return results * max(weights)
    read = max((_elements(v) for v in node.inputs if v is not None), default=1)
    return results * max(1, read) * _often(node)


def _operations(graph: Graph) -> Iterator[tuple[str, int]]:
    """By node: steps of its expressions. Of a node that has none yet the elements of its results."""
    from renorm.driver.lowering import expressions  # loads te, which a network of usual size does without here
    from renorm.driver.work import steps

    for node in graph.nodes:
        if all(v.type.is_static for v in (*node.inputs, *node.outputs) if v is not None):
            try:
                yield node.name, steps(expressions(node))
            except RenormError:  # an operand that is not known yet, an op that fails: lowering says so
                yield node.name, sum(map(_elements, node.outputs))
