"""Modules for calls that a network with open extents has no result for as it is compiled.

    s = [b, -1]         -1 is what is left: a module where s.1 is -1, and s.0 is open
    end = -3            counts from the end of the axis: a module where end is below 0
    end = 99, or        is the end of an axis of 10: a module where bounds of slices are moved into their axes
    x[:, :, :h]         of fewer than h columns: the same
    x[n, c] + y[m, c]   n is 1: a module for that, of which y may have any m
    s = [m, -1]         m is 0, which keeps an extent: a module for that

A module takes elements that decide shapes to be extents, slices to lie inside and extents that meet to be equal, and
has one result for all calls. One that it refuses is looked at again, since there may be another (core.inputs.readings):
who reads it so has a module of its own, compiled when such a call comes first, and open in everything that is not read
as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from renorm.core.dims import Dim, Sym, Symbol, bounds, substitute, symbols_of
from renorm.core.errors import RenormError
from renorm.core.extents import LONGEST
from renorm.core.inputs import Reading, readings
from renorm.core.lru import Latest
from renorm.graph.conditions import Settled, settled
from renorm.graph.counts import given_inputs
from renorm.graph.deciding import BRANCHING
from renorm.graph.ir import Graph
from renorm.ops.slice import Slice

MODULES = 8  # that are kept; of ways to read a call, whether there is a result is kept for more
M = TypeVar("M")


class Readings(Generic[M]):
    """Modules by how calls are read, the latest few of which are kept. graph: as it was read, nothing settled.

    compile: makes a module of a graph that has results.
    """

    def __init__(self, graph: Graph, compile: Callable[[Graph], M]):
        branching = graph.metadata.get(BRANCHING, ())  # which were taken for what elements are as extents
        self._inputs = [v for v in given_inputs(graph) if v.name not in branching]  # counts are what they are
        self._graph, self._compile = graph, compile
        self._known = Latest[str, _Network](f"a reading of {graph.name}", 8 * MODULES)
        self._made = Latest[str, M](f"{graph.name} read otherwise", MODULES)

    def serving(self, shapes: Mapping[str, Sequence[int]], elements: Mapping[str, Sequence[int]]) -> M | None:
        """Return the module that has a result for these shapes and elements, of counts too where they are there: the
        first that has one whatever counts are that are not, else the first that may have one. None where there is no
        result."""
        possible: tuple[str, _Network] | None = None
        for reading in readings(self._inputs, shapes, elements):
            key = str((reading.is_cut, *sorted((str(s), str(d)) for s, d in reading.values.items())))
            network = self._known.made(key, partial(_Network, self._graph, reading))
            is_served = network.settled is not None and network.settled.has_result(shapes, elements)
            if is_served or (is_served is None and possible is None):
                possible = key, network
            if is_served:
                break
        return possible and self._made.made(possible[0], partial(self._compile, possible[1].graph))

    def all(self) -> list[M]:
        """Return the modules that are there."""
        return self._made.all()


class _Network:
    """A network that is read in one way. settled: None where it has no result."""

    settled: Settled | None = None

    def __init__(self, graph: Graph, reading: Reading):
        self.graph = graph
        try:
            self.graph = graph.copy(reading.values)
            if reading.is_cut:
                _cut_slices(self.graph)
            if all(_least(d) <= LONGEST for v in self.graph.values() for d in v.shape):
                self.settled = settled(self.graph)
        except (RenormError, ZeroDivisionError):
            return


def _least(extent: Dim) -> float:
    """Return the least value of an extent where none that it is made of is 0."""
    return bounds(substitute(extent, {s: Sym(Symbol(s, max(1, s.least), s.most)) for s in symbols_of(extent)}))[0]


def _cut_slices(graph: Graph) -> None:
    for node in list(graph.nodes):
        graph.infer_again([node])  # what it is told may be made of what was cut
        operands = node.op.cut(node) if isinstance(node.op, Slice) else None
        if operands is None:
            continue
        with graph.at(node, node.origin):
            made = graph.apply(node.op, operands, name=node.name)
        graph.replace(node.output, made)
        graph.discard([node])
