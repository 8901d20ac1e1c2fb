"""Cut a graph where data decide extents: what is computed becomes an output, and who reads it reads an input.

graph (x: f32[N])                               ->    graph (x: f32[N], c.read: i64[1] = [c.0])
  c: i64[1] = reduce_sum(greater(x, 0))         ->      c: i64[1] = reduce_sum(greater(x, 0))     output, hidden
  y: f32[?slice.0] = slice(x, 0, c)             ->      y: f32[c.0] = slice(x, 0, c.read)
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Hashable
from math import prod

from renorm.core import dtypes
from renorm.core.dims import Sym, Symbol, bounds, is_static, static, symbols_of
from renorm.core.inputs import FEW, element_symbols
from renorm.graph.counts import COUNTS, Counts
from renorm.graph.deciding import settle, undecided
from renorm.graph.interpret import ancestors
from renorm.graph.ir import Graph, Node, Value


def cut(graph: Graph, states: int = 0) -> Graph:
    """Return the graph where each small integer value that is computed from data, and decides a shape, is an output at
    the end and an input at the end: the same one where none does. states: how many inputs, and as many outputs, are
    state, which stays behind these."""
    if not any(True for node in graph.nodes for _ in undecided(node)):
        return graph
    return _cut(graph, states, _counts) or _cut(graph, states, _undecided) or graph


def untold(graph: Graph) -> bool:
    """Return whether a node has to be told what elements of inputs decide, and neither extents do nor elements that are
    extents."""
    extents = {v for node in graph.nodes if node.op.name in ("shape", "size") for v in node.outputs}
    wanted = [v for node in graph.nodes for v in undecided(node)]
    read = {v for v in wanted if v.producer is None}
    read |= {v for node in ancestors(wanted, extents) for v in node.inputs if v is not None}
    return any(v.producer is None and not v.is_constant and not v.deciding for v in read - extents)


def _cut(graph: Graph, states: int, counts: Callable[[Graph], list[Value]]) -> Graph | None:
    """Return the graph cut at these counts; None where what depends on them would be a number for all extents: as
    elements that may be negative, which none is."""
    made, number, first = graph.copy(), len(graph.inputs), len(graph.outputs) - states
    inputs = dict[Value, Value]()
    while found := counts(made):
        wanted = _undecided(made)
        symbols = element_symbols([*made.inputs, *found])
        alike, reads = _alike(made), dict[int, Value]()
        for count in found:
            read = reads.get(alike[count])
            if read is None:
                named = (f"{count.name}.read{k or ''}" for k in itertools.count())
                read = reads[alike[count]] = made.input(next(filter(made.is_free, named)), count.dtype, count.shape)
                read.deciding = symbols[count.name]
                inputs[read] = count
            for node in count.users:
                node.replace_operand(count, read)
        made.infer_again()
        if any(v.known is not None and not any(isinstance(e, Sym) for e in v.known.flat) for v in wanted):
            return None
    settle(made, among=made.inputs[number:])
    used = [v for v in made.inputs[number:] if v.deciding]
    for v in made.inputs[number:]:
        if v not in used:
            for node in v.users:
                node.replace_operand(v, inputs[v])
    given = number - states
    made.inputs = [*made.inputs[:given], *used, *made.inputs[given:number]]
    made.outputs = [*made.outputs[:first], *(inputs[v] for v in used), *made.outputs[first:]]
    made.metadata[COUNTS] = Counts(first, len(used), states)
    return made if used else None


def _alike(graph: Graph) -> dict[Value, int]:
    """Return a number for each value, which is the same where equal ops on equal operands compute it: what a mask
    selects of two arrays is as much."""
    numbers, found = defaultdict[Hashable, int](itertools.count().__next__), dict[Value, int]()

    def number(v: Value | None) -> int:
        if v is None:
            return -1
        if v not in found:
            is_few = v.data is not None and v.data.size <= FEW
            found[v] = numbers[(v.type, v.data.tobytes()) if is_few and v.data is not None else v]
        return found[v]

    for node in graph.nodes:
        operands = (tuple(map(number, o)) if isinstance(o, list) else number(o) for o in node.operands)
        key = type(node.op), node.op, tuple(operands)
        for i, v in enumerate(node.outputs):
            found[v] = numbers[key, i]
    return found


def _undecided(graph: Graph) -> list[Value]:
    """Return what shapes depend on and may be counts: not what follows from numbers, which passes compute."""
    wanted = {v for node in graph.nodes for v in undecided(node) if _may_count(v)} - _of_numbers(graph)
    return [v for node in graph.nodes for v in node.outputs if v in wanted]


def _of_numbers(graph: Graph) -> set[Value]:
    """Return what is computed from numbers that are known, whether inference follows it or not; among these extents
    that it decides."""
    found, settled = set[Value](), set[Symbol]()

    def is_number(v: Value) -> bool:
        if v in found or v.is_constant:
            return True
        elements = [] if v.known is None else [e for e in v.known.flat if isinstance(e, Sym)]
        return v.known is not None and all(settled.issuperset(symbols_of(e)) for e in elements)

    for node in graph.nodes:
        inputs = [v for v in node.inputs if v is not None]
        if all(map(is_number, inputs)):
            found.update(node.outputs)
        needed = list(undecided(node))
        if needed and found.issuperset(needed):
            before = {s for v in inputs for d in v.shape for s in symbols_of(d)}
            settled.update({s for v in node.outputs for d in v.shape for s in symbols_of(d)} - before)
    return found


def _counts(graph: Graph) -> list[Value]:
    """Return the earliest values that make known what shapes depend on, in order; of what may be negative, which
    extents are not, those behind which its sign does not matter."""
    fixed = _of_numbers(graph)
    wanted = [v for node in graph.nodes for v in undecided(node) if v not in fixed]
    sources = dict[Value, dict[Value, None]]()  # of a value that is known once these are
    natural = set[Value]()
    for node in ancestors(wanted) if wanted else ():
        operands = [v for v in node.inputs if v is not None and not v.is_constant]
        found = [{} if v.known is not None else sources.get(v) for v in operands]
        of_all = {s: None for f in found for s in f or ()}
        follows = bool(of_all) and None not in found and all(map(_is_small, operands))
        follows = follows and (node.op.name in _LINEAR or natural.issuperset(of_all)) and not _adds_truths(node)
        if node.op.name in _PLACES or (node.op.name in _RISING and all(_is_natural(v, natural) for v in node.inputs)):
            natural.update(node.outputs)
        for v in node.outputs:
            if v.known is None and follows:
                sources[v] = of_all
            elif v.known is None and _may_count(v):
                sources[v] = {v: None}
    chosen = {s for v in wanted for s in sources.get(v, ())}
    return [v for node in graph.nodes for v in node.outputs if v in chosen]


# what gives indices or extents; what gives nothing negative of what is not; what inference is right about whatever the
# sign of its operands is
_PLACES = frozenset({"arg_max", "arg_min", "kept_rows", "nonzero", "shape", "size"})
_LIKE = frozenset({
    *("add", "cast", "concat", "expand", "flatten", "gather", "gather_elements", "gather_nd", "identity", "mul"),
    *("reduce_sum", "reshape", "slice", "split", "squeeze", "sum", "tile", "transpose", "unsqueeze"),
})  # fmt: skip
_RISING = _LIKE | {"cum_sum", "max", "min", "reduce_max", "reduce_min", "reduce_prod"}
_LINEAR = _LIKE | {"neg", "sub"}


def _is_natural(v: Value | None, found: Container[Value]) -> bool:
    """Return whether no element is negative. found: of what is computed, values of which that is known."""
    if v is None or v in found or v.dtype == "bool" or v.dtype.startswith("uint"):
        return True
    if v.known is not None:
        return all(isinstance(e, (int, Sym)) and bounds(e)[0] >= 0 for e in v.known.flat)
    return v.is_constant and v.data is not None and bool((v.data >= 0).all())


def _adds_truths(node: Node) -> bool:
    """Return whether a node counts what is true: each combination of truth values would be extents of its own."""
    if node.op.name != "reduce_sum" or node.inputs[0] is None or (by := node.inputs[0].producer) is None:
        return False
    return by.op.name == "cast" and by.inputs[0] is not None and by.inputs[0].dtype == "bool"


def _is_small(v: Value) -> bool:
    return is_static(v.shape) and prod(static(v.shape)) <= FEW


def _may_count(v: Value) -> bool:
    return dtypes.is_int(v.dtype) and _is_small(v) and prod(static(v.shape)) > 0
