"""Probes: every rewrite is compared with what was there before, on random inputs, by the interpreter.

The whole network is run once, and again after each pass that changed what it computes; in between a rewrite costs what
its own nodes cost, because the values around it are known.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.comparison import difference, random_inputs
from renorm.core.dataclass import dataclass
from renorm.core.dims import static, substitute_shape, symbols_of
from renorm.core.errors import RenormError
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match

Array = np.ndarray[Any, Any]

_BUDGET = 1e-5  # of the largest element: a tenth of what all rewrites together may cost
_EXTENTS = (3, 8, 32, 64, 224, 1)  # for open extents, all of them alike
_ROUNDINGS = 32  # the same in roundings of a dtype, for narrow floats


def drawn(graph: Graph) -> tuple[dict[str, Array], dict[Value, Array]]:
    """Inputs to compare networks on, and all values that they give.

    Integers are small numbers of both signs, or 0 and 1 where the network refuses those (as indices, say). Open extents
    are the first of _EXTENTS with which it can be computed. Where there is none, the
    error of the last try, which names the node.
    """
    error: RenormError | None = None
    symbols = dict.fromkeys(s for v in graph.inputs for d in v.shape for s in symbols_of(d))
    for extent in _EXTENTS if symbols else (1,):
        sizes = dict.fromkeys(symbols, extent)
        shapes = {v.name: static(substitute_shape(v.shape, sizes)) for v in graph.inputs}
        narrow = random_inputs(graph.inputs, shapes=shapes)
        for inputs in (_wide(narrow), narrow):
            try:
                return inputs, interpret.evaluate(graph, inputs)
            except RenormError as failed:
                error = failed
    assert error is not None
    facts = [*error.facts, f"verify computed {graph.name} on random inputs"]
    raise type(error)(error.headline, facts, "give other shapes with shapes=") from error


def _wide(inputs: dict[str, Array]) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {
        n: rng.integers(0 if a.dtype.kind == "u" else -4, 9, a.shape).astype(a.dtype) if a.dtype.kind in "iu" else a
        for n, a in inputs.items()
    }


def fingerprint(graph: Graph) -> Hashable:
    """Equal for graphs that compute the same from the same values: what passes that only annotate do not change."""
    nodes = tuple(
        (repr(n.op), *(v.name if v else "" for v in n.inputs), *(v.name for v in n.outputs)) for n in graph.nodes
    )
    constants = tuple((v.name, v.dtype, _content(v)) for v in graph.constants.values())
    return nodes, constants, tuple(v.name for v in graph.outputs)


def _content(v: Value) -> Hashable:
    if v.deferred is not None:
        return v.deferred.key()
    assert v.data is not None
    return v.shape, zlib.crc32(v.data.tobytes())


def distance(found: Array, expected: Array, dtype: str) -> float:
    """See core.comparison.difference; integers are equal or not."""
    if dtypes.is_float(dtype):
        return difference(found, expected)
    return 0.0 if np.array_equal(found, expected) else max(difference(found, expected), 2.0**-53)


def budget(dtype: str) -> float:
    """How much one rewrite may change a result of this dtype."""
    if not dtypes.is_float(dtype):
        return 0.0
    return max(_BUDGET, 2 * _ROUNDINGS * dtypes.unit_roundoff(dtype))


@dataclass
class Probes:
    """Values of a graph on random inputs, followed through its passes. measure: a rewrite.Probe. budget: see
    `budget`; tests make it smaller."""

    graph: Graph
    budget: Callable[[str], float] = budget
    values: dict[Value, Array] = field(default_factory=dict[Value, Array])

    def __post_init__(self) -> None:
        self.inputs, self.values = drawn(self.graph)
        self.expected = [self.values[v] for v in self.graph.outputs]

    def evaluate(self, graph: Graph) -> None:
        """Computes all values anew, from here on those of `graph`."""
        self.values = interpret.evaluate(graph, self.inputs)

    def measure(self, m: Match, results: Sequence[Value], made: Sequence[Node]) -> tuple[float, str | None]:
        """The relative difference that a rewrite makes, and a sentence where that is over budget."""
        worst, reason = 0.0, None
        for old, new in [*zip(m.root.outputs, results), *m.alongside.items()]:
            if new is None:
                continue
            error = distance(self.value(new), self.value(old), old.dtype)
            if error > self.budget(old.dtype):
                reason = f"on random inputs {old.name!r} differs by {error:.2g} of its largest element"
            worst = max(worst, error)
        return worst, reason

    def value(self, v: Value) -> Array:
        """The array of a value, computed when somebody asks for it first."""
        if v not in self.values:
            if v.data is not None:
                self.values[v] = interpret.widen(v.data)
            else:
                node = v.producer
                assert node is not None
                for operand in node.inputs:
                    if operand is not None:
                        self.value(operand)
                self.values.update(zip(node.outputs, interpret.apply(node, self.values)))
        return self.values[v]

    def compare(self, changed: Graph) -> str | None:
        """Computes all values anew; a sentence where the graph gives other outputs than at first."""
        self.evaluate(changed)
        for old, new in zip(self.expected, changed.outputs, strict=True):
            error = distance(self.values[new], old, new.dtype)
            if error > 10 * self.budget(new.dtype):
                return f"on random inputs output {new.name!r} differs by {error:.2g} of its largest element"
        return None
