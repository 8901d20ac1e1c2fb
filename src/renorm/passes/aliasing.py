"""Aliasing: values that lie in the memory of others, so that ops which only lay elements side by side need no kernel.

    y = view(x)            y lies where x does; where y is an output and x is not, x lies where y does
    y = concat(x0, x1..)   each part lies in y, where its producer writes it; a part that must lie elsewhere too (an
                           input, a constant, an output, a part of another concat) is copied there by a kernel
    y0, .. = split(x)      the pieces lie in x, and so does what is sliced

This holds along any axis (`OpDef.aliases`): kernels read and write with the strides of what holds the value
(graph.strided_region). Elsewhere the op's kernel copies. A concat whose parts stand side by side among the parts of a
later one lies in that (as features pile up in a dense block).
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.core.dims import is_static
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.external import external_values
from renorm.graph.ir import Graph, Group, Node, Value, Within
from renorm.graph.op import Alias
from renorm.graph.strided_region import StridedRegion, memory_shape, nbytes, root
from renorm.ops.identity import Identity
from renorm.runtime.launches import ALIGNED

RUN = 256  # bytes that must lie side by side: shorter rows cost vectors and streams of memory more than a copy


def alias_values(graph: Graph, target: Target) -> None:
    """Have values lie in others where they can, in a graph that is cut into kernels, and mark kernels that need not
    run."""
    aliases = _Aliases(graph, ALIGNED if target.machine_target.is_gpu else 1)
    groups: list[Group] = []
    for group in graph.groups:
        before = list[Group]()
        if (
            len(group.nodes) == 1
            and not group.external
            and registry.overridden(group.nodes[0].op.name, target) == registry.Override()
        ):
            node = group.nodes[0]
            parts = parts_of(node)
            if parts:
                is_joining = any(v is node.output for _, v, _ in parts)
                group.is_aliased = aliases.join(node, parts, before) if is_joining else aliases.cut(parts)
        groups += [*before, group]
    graph.groups = groups


Part = tuple[Value, Value, StridedRegion]  # a value, another one, and where the first lies in the second


def parts_of(node: Node) -> list[Part]:
    """Return the parts of `OpDef.aliases` where shapes are fixed and memory lets both sides lie so; else none."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if not all(is_static(v.shape) for v in values):
        return []
    aliases = node.op.aliases(node) or ()
    found = [(a.part, a.whole, region) for a in aliases if (region := _region(a))]
    return found if len(found) == len(aliases) else []


def _region(alias: Alias) -> StridedRegion | None:
    part, whole = alias.part, alias.whole
    if part.dtype != whole.dtype or part.layout != whole.layout:
        return None
    is_blocked = part.layout is not None and part.layout.axis is not None
    if alias.starts is None:
        is_alike = part.shape[:2] == whole.shape[:2] or (part.rank, part.shape[2:]) == (whole.rank, whole.shape[2:])
        return StridedRegion(0, nbytes(part)) if is_alike or not is_blocked else None
    starts = alias.starts
    if part.layout is not None and part.layout.axis is not None:
        if alias.starts[part.layout.axis] % part.layout.lanes:
            return None
        starts = part.layout.memory(starts, 0)
    region = StridedRegion.of_box(memory_shape(whole), memory_shape(part), starts, itemsize(part.held_dtype))
    return region if region and (region.rows == 1 or region.run >= RUN) else None


class _Aliases:
    def __init__(self, graph: Graph, aligned: int):
        """aligned: bytes of which what a kernel is given begins at a multiple."""
        self._graph, self._aligned = graph, aligned
        self._outputs = set(graph.outputs)
        self._joined: dict[Value, list[tuple[Value, StridedRegion]]] = {}  # of a concat that others lie in: its parts
        self._lying: dict[Value, list[tuple[Value, StridedRegion]]] = {}  # what lies in a value
        # what code that is not renorm's reads and writes: it knows no strides
        self._dense = {v for g in graph.groups if g.external for vs in external_values(g, g.external) for v in vs}

    def cut(self, parts: Sequence[Part]) -> bool:
        """Results that are parts of an operand."""
        if not any(part in self._outputs for part, _, _ in parts):
            if not all(self._can_lie(part, region.inside(root(whole)[1])) for part, whole, region in parts):
                return False
            for part, whole, region in parts:
                self._put(part, Within(whole, region))
            return True
        ((y, x, region), *more) = parts
        if more or region != StridedRegion(0, nbytes(x)) or x.within is not None or not self._is_free(x):
            return False
        self._put(x, Within(y, region))
        return True

    def join(self, node: Node, parts: Sequence[Part], before: list[Group]) -> bool:
        """Operands that are parts of the result. before: where kernels are put that copy."""
        y = node.output
        if len({part for part, _, _ in parts}) < len(parts):
            return False
        moves, copies = dict[Value, Within](), list[tuple[Value, StridedRegion]]()
        wanted = [(part, region) for part, _, region in parts]
        for part, region in wanted:
            held, at = root(part)
            if held in moves and at.inside(moves[held].region) == region:
                continue
            within = None if held in moves else self._within(held, at, y, region)
            if within and self._fits(held, within, wanted):
                moves[held] = within
            else:
                copies.append((part, region))
        if 2 * sum(nbytes(part) for part, _ in copies) > nbytes(y):
            return False
        if any(region.offset % self._aligned for _, region in copies):
            return False
        for held, within in moves.items():
            self._put(held, within)
        for part, region in copies:
            copied = self._graph.apply(Identity(), [part], before=node, origin=node.origin)
            copied.layout = part.layout
            self._put(copied, Within(y, region))
            node.replace_operand(part, copied)
            before.append(Group(self._graph.fresh("copy"), [copied.producer]))
        self._joined[y] = [(copied, region) for copied, (_, region) in zip((v for v in node.inputs if v), wanted)]
        return True

    def _within(self, held: Value, at: StridedRegion, y: Value, region: StridedRegion) -> Within | None:
        """Return where in `y` all of `held` would lie, if what lies there at `at` lay in `y` at `region`."""
        rows, run = (at.rows, at.pitch) if at.rows > 1 else (region.rows, nbytes(held) // region.rows)
        row, begin = divmod(at.offset, run) if run else (0, 0)
        offset = region.offset - row * region.pitch - begin
        if offset < 0 or rows * run != nbytes(held):
            return None
        return Within(y, StridedRegion.of(offset, run, rows, region.pitch))

    def _fits(self, held: Value, within: Within, parts: Sequence[tuple[Value, StridedRegion]]) -> bool:
        """Return whether all that lies in `held` stands among the parts as it would if `held` lay there."""
        if not self._is_free(held) or not self._can_lie(held, within.region):
            return False
        if any(
            root(part) == (held, StridedRegion(0, nbytes(held))) and region == within.region for part, region in parts
        ):
            return True
        return held in self._joined and all(
            (part, region.inside(within.region)) in parts for part, region in self._joined[held]
        )

    def _can_lie(self, v: Value, region: StridedRegion | None) -> bool:
        """Return whether kernels can read and write `v`, and all that lies in it, with the strides that it would
        have."""
        waiting = [(v, region)]
        while waiting:
            v, region = waiting.pop()
            if region is None or region.offset % self._aligned:
                return False
            if region.strides(memory_shape(v), itemsize(v.held_dtype)) is None:
                return False
            if region.rows > 1:  # else what lies in it has the strides that it has there already
                if v in self._dense:
                    return False
                waiting += [(inner, at.inside(region)) for inner, at in self._lying.get(v, ())]
        return True

    def _put(self, v: Value, within: Within) -> None:
        v.within = within
        self._lying.setdefault(within.value, []).append((v, within.region))

    def _is_free(self, v: Value) -> bool:
        return v.producer is not None and v not in self._outputs and not v.is_constant
