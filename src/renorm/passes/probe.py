"""Probes: every rewrite is compared with what was there before, on random inputs, by the interpreter.

The whole network is run once, and again after each pass that changed what it computes; in between a rewrite costs what
its own nodes cost, because the values around it are known.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import cache as cached
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.comparison import random_inputs
from renorm.core.dataclass import dataclass
from renorm.core.dims import static, substitute_shape, symbols_of
from renorm.core.errors import RenormError
from renorm.core.tolerance import Judged, judge, tolerance
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.rewrite import Match
from renorm.passes.sensitivity import Sensitivity, tolerances

Array = np.ndarray[Any, Any]

_EXTENTS = (3, 8, 32, 64, 224, 1)  # for open extents, all of them alike


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


def differing(what: str, judged: Judged, dtype: str) -> str:
    """A sentence on what differs."""
    far = f"{judged.error:.2g} of its largest element" if dtypes.is_float(dtype) else f"{judged.error:g}"
    where = f" ({judged.differing} elements, most at {list(judged.worst)})" if judged.worst else ""
    return f"on random inputs {what} differs by {far}{where}"


@dataclass
class Probes:
    """Values of a graph on random inputs, followed through its passes. measure: a rewrite.Probe."""

    graph: Graph
    values: dict[Value, Array] = field(default_factory=dict[Value, Array])

    def __post_init__(self) -> None:
        self.inputs, self.values = drawn(self.graph)
        self.expected = [self.values[v] for v in self.graph.outputs]
        source = self.graph.copy()
        self.tolerances = tolerances(source.outputs)
        self.sensitivity = Sensitivity.of(source, self.inputs)

    def evaluate(self, graph: Graph) -> None:
        """Computes all values anew, from here on those of `graph`."""
        self.values = interpret.evaluate(graph, self.inputs)

    def measure(self, m: Match, results: Sequence[Value], made: Sequence[Node]) -> tuple[float, str | None]:
        """The relative difference that a rewrite makes, and a sentence where that is more than one layer may be off."""
        pairs = [(old, new) for old, new in [*zip(m.root.outputs, results), *m.alongside.items()] if new is not None]
        inside = {v for n in made for v in n.outputs}
        first = {v for n in made for v in n.inputs if v is not None and v not in inside}
        sensitivity = cached(lambda: Sensitivity.between(first, [old for old, _ in pairs], self.value))
        worst, reason = 0.0, None
        for i, (old, new) in enumerate(pairs):
            found, expected = self.value(new), self.value(old)
            judged = judge(found, expected, tolerance(old.dtype, 1), lambda n, i=i: sensitivity().movements(i)(n))
            if not judged.agrees:
                reason = differing(repr(old.name), judged, old.dtype)
            worst = max(worst, judged.error)
        return worst, reason

    def value(self, v: Value) -> Array:
        """The array of a value, computed when somebody asks for it first."""
        waiting = [v]
        while waiting:
            last, node = waiting[-1], waiting[-1].producer
            before = [o for o in node.inputs if o is not None and o not in self.values] if node is not None else []
            if last in self.values or not before:
                waiting.pop()
            if last in self.values:
                continue
            if node is None:
                assert last.data is not None
                self.values[last] = interpret.widen(last.data)
            elif before:
                waiting += before
            else:
                self.values.update(zip(node.outputs, interpret.apply(node, self.values)))
        return self.values[v]

    def compare(self, changed: Graph) -> str | None:
        """Computes all values anew; a sentence where the graph gives other outputs than at first."""
        self.evaluate(changed)
        for i, (old, new) in enumerate(zip(self.expected, changed.outputs, strict=True)):
            judged = judge(self.values[new], old, self.tolerances[i], self.sensitivity.movements(i))
            if not judged.agrees:
                return differing(f"output {new.name!r}", judged, new.dtype)
        return None
