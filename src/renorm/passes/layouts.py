"""Layouts: regions of values that lie in memory in blocks of channels.

A region is what must lie alike: values that ops read and write element by element, whole channels at a time. Regions
end where an op reads one layout and writes another without loss (a convolution), and at values that are small. What
a kernel can do, the table of schedules says (`ops/schedules/blocks.py`), or the op (`OpDef.in_blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from renorm.core.dims import is_static, static
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.layout import Accepts, Layout
from renorm.ops.schedules import blocks
from renorm.passes.context import Context

_DTYPES = ("float32", "float16", "bfloat16")  # what is computed in float32, whose lanes blocks have


@dataclass(frozen=True)
class ChooseLayouts:
    """v: [N, C, *S] -> v: [N, C, *S] in blocks of channels, where all that touch v take it so"""

    def run(self, graph: Graph, context: Context) -> None:
        inside = {v: g.name for g in graph.groups for n in g.nodes for v in n.outputs}
        leaving = [v for v, g in inside.items() if graph.is_output(v) or any(inside[u.output] != g for u in v.readers)]
        rows, blocks_of = _rows_of_a_matrix(context), layout_of_blocks(context)
        taken = set[Value]()
        if rows is not None:
            regions = Regions(graph, graph.groups, context, rows)
            taken = regions.holding(lambda v: v.layout is not None and v.layout.dtype is not None)
            _lay(leaving, regions, rows, taken.__contains__)
        if blocks_of is not None:
            regions = Regions(graph, graph.groups, context, blocks_of)
            others = regions.holding(taken.__contains__)
            _lay(leaving, regions, blocks_of, lambda v: v not in others and v not in taken)


def _lay(values: Sequence[Value], regions: Regions, layout: Layout, takes: Callable[[Value], bool]) -> None:
    for v in values:
        if takes(v) and regions.is_blocked(v):
            v.layout = replace(layout, dtype=v.layout.dtype if v.layout else None)


def layout_of_blocks(context: Context) -> Layout | None:
    """Return the layout that values may have on a target, if there is one: a block is a vector of float32, which is
    what kernels compute in, whatever dtype memory holds values in."""
    machine = context.target.machine_target
    lanes = machine.lanes(4)
    return None if machine.is_gpu or lanes < 2 else Layout(1, lanes)


def _rows_of_a_matrix(context: Context) -> Layout | None:
    """Return the layout of what a matrix unit multiplies: a block is a row of its registers."""
    unit = None if context.target.machine_target.is_gpu else Machine.of(context.target.machine_target).matrix
    return Layout(1, unit.depth) if unit is not None and context.precision == "bfloat16" else None


class Regions:
    """A partition of the values that layouts matter for, by union and find. groups: kernels; elementwise: nodes that
    will be made of elementwise ones, whatever their ops say now."""

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        context: Context,
        layout: Layout,
        elementwise: Collection[Node] = (),
    ):
        target, claimed = context.target, {name for claim in context.claims for name in claim.nodes}
        self._above: dict[Value, Value] = {}
        self._refused: set[Value] = set()  # and with them their regions
        self._layout, self._elementwise = layout, frozenset(elementwise)
        for group in groups:
            by_user = is_foreign(registry.scheduler(group.nodes, target), target)
            for node in group.nodes:
                self._visit(node, by_user or node.name in claimed or is_foreign(node, target))
        outer = [*graph.inputs, *graph.outputs, *(v for v in self._above if layout.refuses(v.shape))]
        outer += [v for v in self._above if v.dtype not in _DTYPES]
        self._closed = {self._find(v) for v in (*outer, *self._refused)}

    def is_blocked(self, v: Value) -> bool:
        return v in self._above and self._find(v) not in self._closed

    def holding(self, has: Callable[[Value], bool]) -> set[Value]:
        """Return the values of regions in which some value has a property."""
        found = {self._find(v) for v in self._above if has(v)}
        return {v for v in self._above if self._find(v) in found}

    def _visit(self, node: Node, is_foreign: bool) -> None:
        """Notes what a node asks for."""
        results = [v for v in node.outputs if not _is_small(v)]
        alike = list[Value]()
        asked: list[tuple[int | None, Value]] = [(None, v) for v in results]
        asked += [(i, v) for i, v in enumerate(node.inputs) if v is not None and not v.is_constant and not _is_small(v)]
        for index, v in asked:
            self._above.setdefault(v, v)
            accepts = Accepts.ROW_MAJOR if is_foreign else self._accepts(node, index)
            if accepts is Accepts.ROW_MAJOR:
                self._refused.add(v)
            elif accepts is Accepts.ALIKE:
                alike.append(v)
        for v in alike[1:]:
            self._above[self._find(v)] = self._find(alike[0])

    def _accepts(self, node: Node, index: int | None) -> Accepts:
        return Accepts.ALIKE if node in self._elementwise else blocks.accepts(node, index, self._layout.lanes)

    def _find(self, v: Value) -> Value:
        self._above.setdefault(v, v)
        while self._above[v] is not v:
            self._above[v] = self._above[self._above[v]]
            v = self._above[v]
        return v


def is_foreign(node: Node, target: Target) -> bool:
    """Return whether the schedule of a node is a user's, who has not said what it takes: blocks are a fifth axis."""
    replaced, op = registry.overridden(node.op.name, target), type(node.op)
    is_silent = registry.is_own(op.in_blocks) and not registry.is_own(op.schedule)
    return replaced.compute is not None or replaced.schedule is not None or is_silent


def _is_small(v: Value) -> bool:
    """Return whether blocks of channels make no difference: one channel, or nothing but channels."""
    if v.rank < 3 or v.shape[1] == 1:
        return True
    return is_static(v.shape) and prod(static(v.shape[2:])) == 1
