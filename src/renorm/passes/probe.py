"""Probes: every rewrite is compared with what was there before, on random inputs, by the interpreter.

The whole network is run once; after that each rewrite costs what its own nodes cost, because the values around it are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.comparison import difference, random_inputs
from renorm.core.dims import is_static
from renorm.core.errors import InvalidInput
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match

Array = np.ndarray[Any, Any]

_BUDGET = 1e-5  # of the largest element: a tenth of what all rewrites together may cost
_ROUNDINGS = 32  # the same in roundings of a dtype, for narrow floats


def fixed_inputs(graph: Graph) -> dict[str, Array]:
    """Inputs to compare networks on. InvalidInput names inputs whose shape is open."""
    open_ = [f"{v.name}: {v.type}" for v in graph.inputs if not is_static(v.shape)]
    if open_:
        raise InvalidInput(f"{graph.name}: verify needs fixed input shapes", open_, "give them with shapes=")
    return random_inputs(graph.inputs)


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
        self.inputs = fixed_inputs(self.graph)
        self.evaluate(self.graph)
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
            error = difference(self.value(new), self.value(old))
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
            error = difference(self.values[new], old)
            if error > 10 * self.budget(new.dtype):
                return f"on random inputs output {new.name!r} differs by {error:.2g} of its largest element"
        return None
