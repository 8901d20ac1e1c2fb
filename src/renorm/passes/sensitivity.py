"""How far rounding moves the results of a network: measured, by computing it in float64 with roundings drawn at random.

What is rounded: every element of a floating result that its dtype does not hold exactly, by up to AMPLITUDE units; what
a sum of n terms reads, by sqrt(n) units of the dtype it is summed in, which is what its partial sums are off by; images
that a convolution makes also by a few units of the largest element of their channel, since it may be computed by tiles.
Where the largest number of a dtype is exceeded, every other draw stores infinity, as a kernel that ends there does; the
others go on, as a kernel does that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.comparison import distances
from renorm.core.errors import RenormError
from renorm.core.lazy import cached_property
from renorm.core.tolerance import AMPLITUDE, Movements, tolerance
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.op import Fusion
from renorm.ops.window import Windowed

Array = np.ndarray[Any, Any]

_TILES = 8.0  # units of the largest element: what 4 x 4 results of a Winograd convolution are off by, docs/semantics.md


def tolerances(values: Iterable[Value]) -> list[float]:
    """The tolerance of each: that of the dtype with the fewest digits among all results that it is computed from."""
    found, wanted = dict[Value, float](), [*values]  # of what is computed, up to each value
    waiting = wanted[::-1]
    while waiting:
        v = waiting[-1]
        operands = [o for o in v.producer.inputs if o is not None] if v.producer is not None else []
        before = [o for o in operands if o not in found] if v not in found else []
        if not before:
            found[v] = max((found[o] for o in operands), default=0.0)
            found[v] = max(found[v], tolerance(v.dtype)) if v.producer is not None else 0.0
            waiting.pop()
        waiting += before
    return [max(found[v], tolerance(v.dtype)) if dtypes.is_float(v.dtype) else 0.0 for v in wanted]


def tolerance_of(v: Value) -> float:
    """The tolerance of one value."""
    return tolerances([v])[0]


class Sensitivity:
    """Results of some nodes when they are rounded otherwise. Nothing is computed before somebody asks.

    nodes: in order; known: what they read from outside, in float64; results: those of interest. stored: known values
    that are rounded too.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        known: Mapping[Value, Array],
        results: Sequence[Value],
        stored: Collection[Value] = (),
    ):
        self._nodes, self._known, self._results, self._stored = nodes, known, results, stored
        self._draws = list[list[Array]]()

    @staticmethod
    def of(graph: Graph, inputs: Mapping[str, Array]) -> Sensitivity:
        """Of the outputs of a whole graph, which nobody changes from here on."""
        known = {v: interpret.widen(interpret.narrow(np.asarray(inputs[v.name]), v.dtype)) for v in graph.inputs}
        known |= {v: interpret.widen(v.data) for v in graph.constants.values() if v.data is not None}
        return Sensitivity(graph.nodes, known, graph.outputs)

    @staticmethod
    def between(first: Collection[Value], last: Sequence[Value], value: Callable[[Value], Array]) -> Sensitivity:
        """Of some values of a graph, by what lies behind other ones. value: elements of any value."""
        reached, nodes = [v.producer for v in last if v not in first], dict[Node, None]()
        while reached:
            node = reached.pop()
            if node is not None and node not in nodes:
                nodes[node] = None
                reached += [v.producer for v in node.inputs if v is not None and v not in first]
        ordered = sorted(nodes, key=last[0].graph.place_of)
        made = {v for n in ordered for v in n.outputs}
        read = dict.fromkeys(v for n in ordered for v in n.inputs if v is not None and v not in made)
        known = {v: value(v) for v in (*read, *last) if v not in made}
        return Sensitivity(ordered, known, last, {v for v in known if not v.is_constant and dtypes.is_float(v.dtype)})

    @cached_property
    def plain(self) -> dict[Value, Array]:
        """All values as they are without any rounding, in float64."""
        values = dict(self._known)
        for node in self._nodes:
            values.update(zip(node.outputs, interpret.apply(node, values)))
        return values

    def movements(self, place: int) -> Movements:
        """Those of result number `place`, as `core.tolerance.judge` asks for them."""

        def drawn(count: int) -> list[Array]:
            with np.errstate(all="ignore"):
                while len(self._draws) < count:
                    self._draws.append(self._draw(len(self._draws)))
            return [found[place] for found in self._draws[:count]]

        return drawn

    def _draw(self, number: int) -> list[Array]:
        rng, values, fixed = np.random.default_rng(number), dict(self._known), _extents(self._nodes)
        values |= {v: _off(values[v], dtypes.unit_roundoff(v.dtype), rng) for v in self._stored}
        for node in self._nodes:
            plain = [self.plain[v] for v in node.outputs]
            made = plain if node in fixed else self._moved(node, values, plain, rng, is_stored=number % 2 == 0)
            values.update(zip(node.outputs, made))
        narrow = interpret.narrow
        return [distances(narrow(values[v], v.dtype), narrow(self.plain[v], v.dtype)) for v in self._results]

    def _moved(
        self, node: Node, values: Mapping[Value, Array], plain: list[Array], rng: np.random.Generator, is_stored: bool
    ) -> list[Array]:
        """The results of a node, rounded otherwise. Where it refuses operands that are, those that it has otherwise."""
        operands = {v: values[v] for v in node.inputs if v is not None}
        is_same = all(a is self.plain[v] for v, a in operands.items())
        if is_same and all(_is_exact(a, v.dtype).all() for v, a in zip(node.outputs, plain)):
            return plain
        terms = _terms(node, operands, plain[0])
        if terms > 1:
            for v, array in operands.items():
                if dtypes.is_float(v.dtype):
                    operands[v] = _off(array, sqrt(terms) * _arithmetic(v.dtype), rng)
        try:
            made = plain if is_same and terms == 1 else interpret.apply(node, operands)
        except RenormError:
            return plain
        return [_rounded(node, v, a, terms, rng, is_stored) for v, a in zip(node.outputs, made)]


def _extents(nodes: Sequence[Node]) -> set[Node]:
    """Nodes that compute with the extents of values, and not with their elements."""
    of_data, found = set[Value](), set[Node]()
    made = {v for n in nodes for v in n.outputs}
    for node in nodes:
        operands = [v for v in node.inputs if v is not None]
        reads_data = any(v in of_data or (v not in made and not v.is_constant) for v in operands)
        if node.op.name == "shape" or (not reads_data and any(v.producer in found for v in operands)):
            found.add(node)
        elif reads_data:
            of_data.update(node.outputs)
    return found


def _terms(node: Node, operands: Mapping[Value, Array], result: Array) -> float:
    """How many terms go into an element of a result; an estimate from above where the op is no product."""
    if node.op.fusion_of(node.operand_types()) < Fusion.REDUCTION:
        return 1.0
    sizes = sorted((float(a.size) for v, a in operands.items() if dtypes.is_float(v.dtype)), reverse=True)[:2]
    count = max(1.0, float(result.size))
    product = sqrt(sizes[0] * sizes[1] / count) if len(sizes) == 2 else 1.0
    return max(1.0, product, sizes[0] / count if sizes else 1.0)


def _rounded(node: Node, v: Value, array: Array, terms: float, rng: np.random.Generator, is_stored: bool) -> Array:
    if not dtypes.is_float(v.dtype):
        return array
    unit = dtypes.unit_roundoff(v.dtype) + (sqrt(terms) * _arithmetic(v.dtype) if terms > 1 else 0.0)
    moved = _off(array, unit, rng) + AMPLITUDE * dtypes.smallest_number(v.dtype) * rng.uniform(-0.5, 0.5, array.shape)
    if isinstance(node.op, Windowed) and terms > 1:
        sizes = np.where(np.isfinite(array), np.abs(array), 0.0)
        largest = sizes.max(axis=tuple(range(2, array.ndim)), keepdims=True, initial=0.0)
        moved += AMPLITUDE * _TILES * _arithmetic(v.dtype) * largest * rng.uniform(-1.0, 1.0, array.shape)
    moved = np.where(_is_exact(array, v.dtype), array, moved)
    if is_stored:
        stored = interpret.narrow(moved, v.dtype).astype(np.float64)
        moved = np.where(np.isinf(stored), stored, moved)
    return moved


def _off(array: Array, unit: float, rng: np.random.Generator) -> Array:
    """Each element off by up to AMPLITUDE such units of itself."""
    return array * (1.0 + AMPLITUDE * unit * rng.uniform(-1.0, 1.0, array.shape))


def _is_exact(array: Array, dtype: str) -> Array:
    """Elements that are not rounded when they are stored. The float64 that all is computed in says nothing of itself:
    what float32 holds too is counted as exact."""
    if not dtypes.is_float(dtype):
        return np.ones(array.shape, bool)
    narrower = "float32" if dtype == "float64" else dtype
    with np.errstate(all="ignore"):
        return (interpret.narrow(array, narrower).astype(np.float64) == array) | ~np.isfinite(array)


def _arithmetic(dtype: str) -> float:
    return dtypes.unit_roundoff(dtypes.compute_dtype(dtype))
