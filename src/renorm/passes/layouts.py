"""Layouts: regions of values that lie in memory in blocks of channels.

A region is what must lie alike: values that ops read and write element by element, whole channels at a time. Regions
end where an op reads one layout and writes another without loss (a convolution), and at values that are small. What
a kernel can do, the table of schedules says (`ops/schedules/blocks.py`), or the op (`OpDef.in_blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from renorm.core.dims import is_static, static
from renorm.core.dots import PAIRS, QUADS
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.layout import Accepts, Layout
from renorm.ops.schedules import blocks, dot_weights
from renorm.passes.context import Context

# What is computed in 32 bits, whose lanes blocks have
_DTYPES = ("float32", "float16", "bfloat16", "int32", "uint8", "int16")


@dataclass(frozen=True)
class ChooseLayouts:
    """v: [N, C, *S] -> v: [N, C, *S] in blocks of channels, where all that touch v take it so"""

    def run(self, graph: Graph, context: Context) -> None:
        inside = {v: g.name for g in graph.groups for n in g.nodes for v in n.outputs}
        leaving = [v for v, g in inside.items() if graph.is_output(v) or any(inside[u.output] != g for u in v.readers)]
        taken = set[Value]()
        for layout, is_held in _of_a_matrix_unit(leaving, context):
            regions = Regions(graph, graph.groups, context, layout)
            others = regions.holding(taken.__contains__)
            taken |= _lay(leaving, regions, layout, regions.holding(is_held) - others)
        if (layout := layout_of_blocks(context)) is not None:
            regions = Regions(graph, graph.groups, context, layout)
            others = regions.holding(taken.__contains__)
            _lay(leaving, regions, layout, set(leaving) - others)


def _is_rounded(v: Value) -> bool:
    return v.layout is not None and v.layout.dtype is not None


def _lay(values: Sequence[Value], regions: Regions, layout: Layout, chosen: set[Value]) -> set[Value]:
    """Have memory hold those of the chosen values in blocks that may lie so; return them."""
    found = {v for v in values if v in chosen and regions.is_blocked(v)}
    for v in found:
        v.layout = replace(layout, dtype=v.layout.dtype if v.layout else None)
    return found


def layout_of_blocks(context: Context) -> Layout | None:
    """Return the layout that values may have on a target, if there is one: a block is a vector of float32, which is
    what kernels compute in, whatever dtype memory holds values in."""
    machine = context.target.machine_target
    lanes = machine.lanes(4)
    return None if machine.is_gpu or lanes < 2 else Layout(1, lanes)


def _of_a_matrix_unit(values: Sequence[Value], context: Context) -> Iterator[tuple[Layout, Callable[[Value], bool]]]:
    """Yield layouts of what a matrix unit multiplies, best first, with what is true of values that it multiplies: a
    block is a row of its registers, or vectors that fill a part of one, or all channels where these are no vectors."""
    machine = context.target.machine_target
    unit, lanes = None if machine.is_gpu else Machine.of(machine).matrix, machine.lanes(4)
    if unit is None:
        return
    for n in (unit.depth(QUADS), unit.side * unit.columns):  # results are written in panels
        yield (layout := Layout(1, n)), lambda v, layout=layout: _is_of_bytes(v, layout, machine)
    if context.precision != "bfloat16":
        return
    yield Layout(1, unit.depth(PAIRS)), _is_rounded
    rounded = [v for v in values if v.rank > 2 and _is_rounded(v)]
    for n in sorted({n for v in rounded if isinstance(n := v.shape[1], int)}):
        if n % lanes == 0 or n % PAIRS.count:
            continue
        layout, alike = Layout(1, n), (u for v in rounded if v.shape[1] == n for u in v.readers)
        if n >= dot_weights.least(unit, PAIRS) or any(_is_multiplied(u, layout, context) for u in alike):
            yield layout, _is_rounded


def _is_of_bytes(v: Value, layout: Layout, machine: Target) -> bool:
    """Return whether a matrix unit multiplies a value of bytes that lies in blocks."""
    if v.dtype != QUADS.data or layout.refuses(v.shape) is not None:
        return False
    forms = [dot_weights.held(u, 1, replace(layout, dtype=v.dtype), machine) for u in v.readers if u.inputs[0] is v]
    return any(form is not None and dot_weights.lies_in_panels(form) for form in forms)


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
        self._context = context
        target, claimed = context.target, {name for claim in context.claims for name in claim.nodes}
        self._above: dict[Value, Value] = {}
        self._refused: set[Value] = set()  # and with them their regions
        self._layout, self._elementwise = layout, frozenset(elementwise)
        self._lanes = target.machine_target.lanes(4)
        self._is_ragged = layout.lanes % self._lanes > 0
        for group in groups:
            by_user = is_foreign(registry.scheduler(group.nodes, target), target)
            for node in group.nodes:
                self._visit(node, by_user or node.name in claimed or is_foreign(node, target))
        outer = [*graph.inputs, *graph.outputs, *(v for v in self._above if layout.refuses(v.shape))]
        outer += [v for v in self._above if v.dtype not in _DTYPES]
        if self._is_ragged:  # a block is all channels
            outer += [v for v in self._above if v.rank > 1 and v.shape[1] != layout.lanes]
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
        if node in self._elementwise:
            return Accepts.ALIKE
        accepts = blocks.accepts(node, index, self._layout.lanes, self._lanes)
        is_data = index == 0 and accepts is Accepts.ROW_MAJOR
        return Accepts.EITHER if is_data and _is_multiplied(node, self._layout, self._context) else accepts

    def _find(self, v: Value) -> Value:
        self._above.setdefault(v, v)
        while self._above[v] is not v:
            self._above[v] = self._above[self._above[v]]
            v = self._above[v]
        return v


def _is_multiplied(node: Node, layout: Layout, context: Context) -> bool:
    """Return whether a matrix unit multiplies the data of a node, in blocks, with weights, whose results may be too few
    for vectors of them."""
    machine, x = context.target.machine_target, node.inputs[0]
    if x is None or not _is_rounded(x) or node.op.scheduled_as != "convolution" or not machine.has_tiles:
        return False
    if layout.refuses(x.shape) is not None or node.op.values.get("group", 1) != 1:
        return False
    return dot_weights.held(node, 1, replace(layout, dtype=x.held_dtype), machine) is not None


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
