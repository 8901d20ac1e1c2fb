"""Differential testing of passes: every rewrite is compared with what was there before, on random inputs, in float64.

The whole network is computed once, and again after each pass that changed what it computes; a rewrite costs only what
its own nodes cost, because the values around it are known.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core.difference import judge
from renorm.core.dims import Symbol
from renorm.core.dtypes import is_float
from renorm.core.errors import RenormError
from renorm.core.inputs import given_symbols
from renorm.core.random_inputs import random_inputs
from renorm.core.tolerance import tolerance
from renorm.graph import interpret
from renorm.graph.counts import counted
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.typical import TYPICAL
from renorm.passes.sensitivity import Sensitivity

Array = np.ndarray[Any, Any]

EXTENTS = (3, 8, 32, 64, 224, 1)  # for open extents, all of them alike


def evaluate_on_random_inputs(graph: Graph) -> tuple[dict[str, Array], dict[Value, Array]]:
    """Return random inputs by name, and all values that they give.

    Integers are small numbers of both signs, or 0 and 1 where the network refuses those (as indices, say). Open extents
    are the first of EXTENTS with which it can be computed, or typical ones. Where there is none, raise the error of the
    last try, which names the node.
    """
    error: RenormError | None = None
    symbols = open_extents(graph)
    tried = [{str(s): nearest(s, extent) for s in symbols} for extent in (EXTENTS if symbols else (1,))]
    for sizes in (*tried, *([graph.metadata[TYPICAL]] if symbols and TYPICAL in graph.metadata else [])):
        for integers in ((-4, 8), (0, 1)):
            inputs = random_inputs(graph.inputs, integers=integers, sizes=sizes)
            try:
                inputs = counted(graph, inputs)
                return inputs, interpret.evaluate(graph, inputs)
            except RenormError as failed:
                error = failed
    assert error is not None
    facts = [*error.facts, f"verify computed {graph.name} on random inputs"]
    raise type(error)(error.headline, facts, "give other shapes with shapes=") from error


def open_extents(graph: Graph) -> list[Symbol]:
    """Return the symbols of a network's inputs."""
    return given_symbols(graph.inputs)


def nearest(symbol: Symbol, extent: int) -> int:
    """Return what a symbol may be that is nearest to an extent."""
    return int(min(max(extent, symbol.least), symbol.most))


def fingerprint(graph: Graph) -> Hashable:
    """Return what is equal for graphs that compute the same from the same values: what passes that only annotate do not
    change."""

    def content(v: Value) -> Hashable:
        if v.deferred is not None:
            return v.deferred.key()
        assert v.data is not None
        return v.shape, zlib.crc32(v.data.tobytes())

    nodes = tuple(
        (repr(n.op), *(v.name if v else "" for v in n.inputs), *(v.name for v in n.outputs)) for n in graph.nodes
    )
    constants = tuple((v.name, v.dtype, content(v)) for v in graph.constants.values())
    return nodes, constants, tuple(v.name for v in graph.outputs)


class Probes:
    """Values of a graph on random inputs, followed through its passes. measure: a rewrite.Probe."""

    def __init__(self, graph: Graph) -> None:
        source = graph.copy()
        self._inputs, values = evaluate_on_random_inputs(source)
        self._definition = Sensitivity(source.outputs, source.nodes, values)
        self._values = {now: values[v] for now, v in zip(graph.values(), source.values(), strict=True)}

    def evaluate(self, graph: Graph) -> None:
        """Compute all values anew, which are those of `graph` from here on."""
        self._values = interpret.evaluate(graph, self._inputs)

    def measure(self, replaced: Mapping[Value, Value], made: Sequence[Node]) -> tuple[float, str | None]:
        """Return the relative error that a rewrite makes, and a sentence where it is more than that of one layer."""
        worst, reason = 0.0, None
        for old, new in replaced.items():
            expected, found, relative = self._value(old), self._value(new), tolerance(old.dtype, 1)
            difference = judge(found, expected, relative)
            if not difference.agrees:
                difference = self._sensitivity(old, made).judge(0, found, expected, relative)
            if not difference.agrees:
                reason = difference.sentence(repr(old.name), old.dtype)
            worst = max(worst, difference.error)
        return worst, reason

    def _sensitivity(self, old: Value, made: Sequence[Node]) -> Sensitivity:
        """Return that of a value which a rewrite replaces, to rounding of what the new nodes read and of what is
        computed from it."""
        inside = {v for n in made for v in n.outputs}
        nodes = interpret.ancestors([old], {v for n in made for v in n.inputs if v is not None and v not in inside})
        computed = {v for n in nodes for v in n.outputs}
        read = {v for v in (old, *(v for n in nodes for v in n.inputs)) if v is not None and v not in computed}
        for v in read:
            self._value(v)
        return Sensitivity([old], nodes, self._values, {v for v in read if not v.is_constant and is_float(v.dtype)})

    def compare(self, changed: Graph) -> str | None:
        """Compute all values anew; return a sentence where the graph gives other outputs than at first."""
        self.evaluate(changed)
        for i, v in enumerate(changed.outputs):
            found = self._definition.judge(i, self._values[v])
            if not found.agrees:
                return found.sentence(f"output {v.name!r}", v.dtype)
        return None

    def _value(self, v: Value) -> Array:
        """Return the array of a value, computed when it is needed first."""
        if v.data is not None:
            return self._values.setdefault(v, interpret.widen(v.data))
        interpret.compute(interpret.ancestors([v], self._values), self._values)
        return self._values[v]
