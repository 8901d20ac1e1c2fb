"""Places: values that lie in the memory of others, so that ops which only lay elements side by side need no kernel.

    y = view(x)            y lies where x does; where y is an output and x is not, x lies where y does
    y = concat(x0, x1..)   each part lies in y, where its producer writes it; a part that must lie elsewhere too (an
                           input, a constant, an output, a part of another concat) is copied there by a kernel
    y0, .. = split(x)      the pieces lie in x

This holds where the elements of the one are a run of the elements of the other (`OpDef.runs`): along an axis with
nothing but extents of 1 before it. Elsewhere the op's kernel copies. A concat whose parts are a run of the parts of a
later one lies in that (as features pile up in a dense block).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from renorm.core.dims import is_static, static
from renorm.core.dtypes import itemsize
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value, Within
from renorm.graph.op import Run
from renorm.ops.identity import Identity


def place(graph: Graph, target: Target) -> None:
    """Places what can be placed, in a graph that is cut into kernels, and marks those that need not run."""
    places = _Places(graph)
    groups: list[Group] = []
    for group in graph.groups:
        before = list[Group]()
        if len(group.nodes) == 1 and registry.overridden(group.nodes[0].op.name, target) == registry.Override():
            node = group.nodes[0]
            runs = runs_of(node)
            if runs:
                is_joining = any(r.whole is node.output for r in runs)
                group.is_placed = places.join(node, runs, before) if is_joining else places.cut(runs)
        groups += [*before, group]
    graph.groups = groups


def runs_of(node: Node) -> Sequence[Run] | None:
    """What `OpDef.runs` says, where shapes are fixed and memory holds both sides in an order that lets it be."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if not all(is_static(v.shape) for v in values):
        return None
    runs = node.op.runs(node)
    return runs if runs and all(_same_order(r) for r in runs) else None


def _same_order(run: Run) -> bool:
    part, whole = run.part, run.whole
    if part.dtype != whole.dtype or part.layout != whole.layout:
        return False
    if part.layout is None:
        return True
    if part.rank != whole.rank or part.shape[2:] != whole.shape[2:] or part.layout.axis != 1:
        return False
    return run.offset % (part.layout.lanes * prod(static(whole.shape[2:]))) == 0


class _Places:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._outputs = set(graph.outputs)
        self._joined: dict[Value, list[tuple[Value, int]]] = {}  # of a placed concat: its parts, and bytes before them

    def cut(self, runs: Sequence[Run]) -> bool:
        """Results that are runs of an operand."""
        if not any(r.part in self._outputs for r in runs):
            for r in runs:
                r.part.within = Within(r.whole, r.offset * itemsize(r.part.dtype))
            return True
        (run, *more) = runs
        x, y = run.whole, run.part
        if more or _nbytes(x) != _nbytes(y) or x.within is not None or not self._is_free(x):
            return False
        x.within = Within(y)
        return True

    def join(self, node: Node, runs: Sequence[Run], before: list[Group]) -> bool:
        """Operands that are runs of the result. before: where kernels are put that copy."""
        y = node.output
        parts = [(r.part, r.offset * itemsize(y.dtype)) for r in runs]
        if len({part for part, _ in parts}) < len(parts):
            return False
        moves, copies = dict[Value, Within](), list[tuple[Value, int]]()
        for part, offset in parts:
            root, at = _root(part)
            if root in moves and moves[root].offset + at == offset:
                continue
            if root not in moves and self._fits(root, offset - at, parts):
                moves[root] = Within(y, offset - at)
            else:
                copies.append((part, offset))
        if 2 * sum(_nbytes(part) for part, _ in copies) > _nbytes(y):
            return False
        for root, within in moves.items():
            root.within = within
        for part, offset in copies:
            copied = self._graph.apply(Identity(), [part], before=node, origin=node.origin)
            copied.layout, copied.within = part.layout, Within(y, offset)
            node.replace_operand(part, copied)
            before.append(Group(self._graph.fresh("copy"), [copied.producer]))
        self._joined[y] = [(copied, offset) for copied, (_, offset) in zip((v for v in node.inputs if v), parts)]
        return True

    def _fits(self, root: Value, offset: int, parts: Sequence[tuple[Value, int]]) -> bool:
        """Whether all that lies in `root` stands among the parts as it would if `root` lay there."""
        if not self._is_free(root):
            return False
        if any(at == offset and _root(part) == (root, 0) and _nbytes(part) == _nbytes(root) for part, at in parts):
            return True
        return root in self._joined and all((part, offset + at) in parts for part, at in self._joined[root])

    def _is_free(self, v: Value) -> bool:
        return v.producer is not None and v not in self._outputs and not v.is_constant


def _root(v: Value) -> tuple[Value, int]:
    """The value whose memory `v` lies in, and at which byte."""
    offset = 0
    while v.within is not None:
        v, offset = v.within.value, offset + v.within.offset
    return v, offset


def _nbytes(v: Value) -> int:
    return prod(static(v.shape)) * itemsize(v.dtype)
