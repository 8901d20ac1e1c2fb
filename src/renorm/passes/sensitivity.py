"""How far rounding moves the results of a network: measured, by computing it in float64 with roundings drawn at random
(Monte Carlo arithmetic).

What is rounded: every element of a floating result that its dtype does not hold exactly, by up to AMPLITUDE units; what
a sum of n terms reads, by sqrt(n) units of the dtype it is summed in, which is what its partial sums are off by; images
that a convolution makes also by a few units of the largest element of their channel, since it may be computed by tiles.
Where the largest number of a dtype is exceeded, every other draw stores infinity, as a kernel that ends there does; the
others go on, as a kernel does that goes on.

Where memory holds values in another dtype (graph.layout), that is the one which rounds them, and the weights that they
are multiplied with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.difference import Difference, distances, judge
from renorm.core.errors import RenormError
from renorm.core.lazy import cached_property
from renorm.core.tolerance import AMPLITUDE, Movements, tolerance
from renorm.graph import interpret
from renorm.graph.held import held_weight_dtype
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.layout import Layout
from renorm.graph.op import Fusion
from renorm.ops.shared.window import Windowed

Array = np.ndarray[Any, Any]

_TILES = 8.0  # units of the largest element: what 4 x 4 results of a Winograd convolution are off by, docs/semantics.md


class Sensitivity:
    """Results of nodes by their definition in float64, and how far rounding moves these; computed when first needed.

    results: values of one graph; nodes: what computes them, in order; values: what the nodes read from outside, in
    float64, constants aside; it may have more. stored: values that are rounded before they are read. definition: what
    results are compared with, where that is another graph's: passes change how values are rounded, and round weights.
    """

    def __init__(
        self,
        results: Sequence[Value],
        nodes: Sequence[Node],
        values: Mapping[Value, Array],
        stored: Collection[Value] = (),
        definition: Sensitivity | None = None,
    ):
        self._results, self._nodes, self._values = results, nodes, values
        self._stored = {v: v.dtype for v in stored} | _held_weights(nodes)
        self._definition = definition or self
        self._draws = list[list[Array]]()

    @staticmethod
    def of(graph: Graph, inputs: Mapping[str, Array]) -> Sensitivity:
        """Return the sensitivity of a graph's outputs. The graph must not change afterwards."""
        return Sensitivity(graph.outputs, graph.nodes, interpret.known(graph, inputs))

    def of_compiled(self, compiled: Graph, inputs: Mapping[str, Array]) -> Sensitivity:
        """Return the sensitivity to roundings of a compiled graph, whose results these are; the same where memory holds
        all values in their own dtypes. The graph may have open extents. Where these are counts, which nobody has given,
        every value counts as rounded."""
        held = {v.held_dtype for n in compiled.nodes for v in n.outputs if v.held_dtype != v.dtype}
        if not held:
            return self
        if any(v.name not in inputs for v in compiled.inputs):
            compiled = self._results[0].graph.copy()
            for v in (v for n in compiled.nodes for v in n.outputs if v.dtype == "float32"):
                v.layout = None if compiled.is_output(v) else Layout(dtype=next(iter(held)))
        graph = interpret.fixed(compiled, inputs)
        given = {v.name: inputs[v.name] for v in graph.inputs}
        return Sensitivity(graph.outputs, graph.nodes, interpret.known(graph, given), definition=self)

    @cached_property
    def plain(self) -> dict[Value, Array]:
        """All values without any rounding, in float64."""
        values = dict(self._values)
        interpret.compute((n for n in self._nodes if any(v not in values for v in n.outputs)), values, held=False)
        return values

    @cached_property
    def tolerances(self) -> list[float]:
        """The tolerance of each result: that of the dtype with the fewest digits among all results that it is computed
        from."""
        widest = dict[Value, float]()
        for node in interpret.ancestors(self._results):
            most = max((widest.get(v, 0.0) for v in node.inputs if v is not None), default=0.0)
            widest |= {v: max(most, tolerance(v.held_dtype)) for v in node.outputs}
        return [max(widest.get(v, 0.0), tolerance(v.dtype)) if dtypes.is_float(v.dtype) else 0.0 for v in self._results]

    def expected(self, place: int) -> Array:
        """Return result number `place` in its dtype."""
        v = self._results[place]
        return interpret.narrow(self._defined(place), v.dtype)

    def _defined(self, place: int) -> Array:
        return self._definition.plain[self._definition._results[place]]

    def judge(
        self, place: int, found: Array, expected: Array | None = None, relative: float | None = None
    ) -> Difference:
        """Compare an array with result number `place`, before rounding where `found` is float64. expected: what to
        compare with instead, for instance of another runtime. relative: the tolerance, None for that of the dtype."""
        if expected is None:
            is_wide = found.dtype == np.float64
            expected = self._defined(place) if is_wide else self.expected(place)
        allowed = self.tolerances[place] if relative is None else relative
        return judge(found, expected, allowed, self.movements(place))

    def movements(self, place: int) -> Movements:
        """Return a function that measures how far result number `place` moves, for `core.difference.judge`."""

        def drawn(count: int) -> list[Array]:
            with np.errstate(all="ignore"):
                while len(self._draws) < count:
                    self._draws.append(self._draw(len(self._draws)))
            return [found[place] for found in self._draws[:count]]

        return drawn

    def _draw(self, number: int) -> list[Array]:
        rng, values, fixed = np.random.default_rng(number), dict(self.plain), _extents(self._nodes)
        values |= {v: _off(values[v], dtypes.unit_roundoff(dtype), rng) for v, dtype in self._stored.items()}
        for node in self._nodes:
            plain = [self.plain[v] for v in node.outputs]
            made = plain if node in fixed else self._moved(node, values, plain, rng, is_stored=number % 2 == 0)
            values.update(zip(node.outputs, made))
        narrow = interpret.narrow
        return [distances(*(narrow(a[v], v.dtype) for a in (values, self.plain))) for v in self._results]

    def _moved(
        self, node: Node, values: Mapping[Value, Array], plain: list[Array], rng: np.random.Generator, is_stored: bool
    ) -> list[Array]:
        """Return the results of a node, rounded otherwise; without rounding where it refuses such operands."""
        operands = {v: values[v] for v in node.inputs if v is not None}
        is_same = all(a is self.plain[v] for v, a in operands.items())
        if is_same and all(_is_exact(a, v.held_dtype).all() for v, a in zip(node.outputs, plain)):
            return plain
        terms = _terms(node, operands, plain[0])
        if terms > 1:
            for v, array in operands.items():
                if dtypes.is_float(v.dtype):
                    operands[v] = _off(array, sqrt(terms) * _arithmetic(v.dtype), rng)
        try:
            made = plain if is_same and terms == 1 else interpret.apply(node, operands, held=False)
        except RenormError:
            return plain
        return [_rounded(node, v, a, terms, rng, is_stored) for v, a in zip(node.outputs, made)]


def _held_weights(nodes: Sequence[Node]) -> dict[Value, str]:
    """Return weights that passes have rounded, and the dtype in which memory holds them."""
    operands = ((v, held_weight_dtype(n, i)) for n in nodes for i, v in enumerate(n.inputs) if v is not None)
    return {v: dtype for v, dtype in operands if dtype}


def _extents(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that compute with extents of values, not with their elements."""
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
    """Return how many terms go into an element of a result; an upper estimate where the op is no product."""
    if node.op.fusion_of(node.operand_types()) < Fusion.REDUCTION:
        return 1.0
    sizes = sorted((float(a.size) for v, a in operands.items() if dtypes.is_float(v.dtype)), reverse=True)[:2]
    count = max(1.0, float(result.size))
    product = sqrt(sizes[0] * sizes[1] / count) if len(sizes) == 2 else 1.0
    return max(1.0, product, sizes[0] / count if sizes else 1.0)


def _rounded(node: Node, v: Value, array: Array, terms: float, rng: np.random.Generator, is_stored: bool) -> Array:
    if not dtypes.is_float(v.dtype):
        return array
    dtype = v.held_dtype
    unit = dtypes.unit_roundoff(dtype) + (sqrt(terms) * _arithmetic(v.dtype) if terms > 1 else 0.0)
    moved = _off(array, unit, rng) + AMPLITUDE * dtypes.smallest_number(dtype) * rng.uniform(-0.5, 0.5, array.shape)
    if isinstance(node.op, Windowed) and terms > 1:
        sizes = np.where(np.isfinite(array), np.abs(array), 0.0)
        largest = sizes.max(axis=tuple(range(2, array.ndim)), keepdims=True, initial=0.0)
        moved += AMPLITUDE * _TILES * _arithmetic(v.dtype) * largest * rng.uniform(-1.0, 1.0, array.shape)
    moved = np.where(_is_exact(array, dtype), array, moved)
    if is_stored:
        stored = interpret.narrow(moved, dtype).astype(np.float64)
        moved = np.where(np.isinf(stored), stored, moved)
    return moved


def _off(array: Array, unit: float, rng: np.random.Generator) -> Array:
    """Return the array with each element off by up to AMPLITUDE such units of itself."""
    return array * (1.0 + AMPLITUDE * unit * rng.uniform(-1.0, 1.0, array.shape))


def _is_exact(array: Array, dtype: str) -> Array:
    """Return which elements are not rounded when they are stored. Everything is computed in float64, which cannot tell
    its own rounding: of float64, what float32 holds too counts as exact."""
    if not dtypes.is_float(dtype):
        return np.ones(array.shape, bool)
    narrower = "float32" if dtype == "float64" else dtype
    with np.errstate(all="ignore"):
        return (interpret.narrow(array, narrower).astype(np.float64) == array) | ~np.isfinite(array)


def _arithmetic(dtype: str) -> float:
    return dtypes.unit_roundoff(dtypes.compute_dtype(dtype))
