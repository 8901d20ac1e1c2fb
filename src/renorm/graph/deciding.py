"""Inputs whose elements decide shapes: which ones do, so that their elements become extents of the graph.

graph (x: f32[N, 6], s: i64[2])               ->    graph (x: f32[N, 6], s: i64[2] = [s.0, s.1])
  y: f32[?reshape.0.0, ?reshape.0.1]          ->      y: f32[s.0, s.1]
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import prod

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, Symbol, extents_among, is_static, static, symbols_of
from renorm.core.inputs import FEW, element_symbols
from renorm.graph.conditions import conditions_of
from renorm.graph.interpret import ancestors
from renorm.graph.ir import Graph, Node, Value

BRANCHING = "branching"  # in Graph.metadata: names of inputs of whose elements a branch of the model was taken


def opened(graph: Graph) -> Graph:
    """Return the graph where elements of inputs are extents if shapes depend on them: the same one where none do."""
    if any(v.deciding for v in graph.inputs) or not any(True for n in graph.nodes for _ in undecided(n)):
        return graph
    symbols = element_symbols(graph.inputs)
    if not symbols:
        return graph
    made = graph.copy()
    for v in made.inputs:
        v.deciding = symbols.get(v.name, ())
    made.infer_again()
    return made if settle(made) else graph


def settle(graph: Graph, kept: Container[Value] = (), among: Sequence[Value] | None = None) -> bool:
    """Leave extents only as elements of inputs that are kept, or on which a shape depends, or what an op is told before
    it runs. Return whether there are any. among: the inputs to decide about, all where it is None."""
    inputs = graph.inputs if among is None else among
    used = {s for d in _decided(graph) for s in symbols_of(d)}
    others = [v for v in inputs if v.deciding and v not in kept and not _symbols(v) & used]
    for v in others:
        v.deciding = ()
    if others:
        graph.infer_again()
    left = [v for v in inputs if v.deciding]
    if left:
        used |= {s for c in conditions_of(graph) for d in (c.left, c.right) for s in symbols_of(d)}
    for v in left:
        v.idle = frozenset() if v in kept else _symbols(v) - used
    return bool(left)


def inputs_of(value: Value) -> set[Value]:
    """Return the inputs whose elements are extents from which a value is computed."""
    nodes = ancestors([value])
    return {v for v in (value, *(o for n in nodes for o in n.inputs)) if v is not None and v.deciding}


def sources(graph: Graph, told: Value | Sym) -> set[Value] | None:
    """Return the inputs whose elements make a value, or an element of one, known, beside extents; None where some are
    more than a few elements, or are computed with and several floats, or of open length."""
    if isinstance(told, Sym):
        return {v for v in graph.inputs if _symbols(v) & symbols_of(told)} or deciding_sources(graph, False) or None
    waiting, found, seen = [told], set[Value](), set[Value]()
    is_computed = are_floats = False
    while waiting:
        v = waiting.pop()
        if v in seen or v.is_constant or (v.known is not None and not any(True for _ in extents_among(v.known.flat))):
            continue
        seen.add(v)
        if v.producer is None:
            if not _is_few(v):
                return None
            found.add(v)
        elif v.producer.op.name in _OF_SHAPES:
            continue
        else:
            operands = [x for x in v.producer.inputs if x is not None]
            if v.producer.op.name not in _MOVING:
                is_computed = True
                are_floats |= any(dtypes.is_float(x.dtype) for x in operands)
            waiting += operands
    several = [v for v in found if not is_static(v.shape) or prod(static(v.shape)) > 1]
    if are_floats and any(dtypes.is_float(v.dtype) for v in several):
        return None
    return None if is_computed and any(not is_static(v.shape) for v in found) else found


def deciding_sources(graph: Graph, is_open: bool = True) -> set[Value]:
    """Return the inputs whose elements nodes have to be told as numbers, as scales are that a resize is given: none
    where something else is to be told, too. is_open: what may be an extent is told as one."""
    wanted = [v for node in graph.nodes for v in undecided(node) if not (is_open and dtypes.is_int(v.dtype))]
    found = [sources(graph, v) for v in wanted]
    return {v for inputs in found for v in inputs or ()} if all(found) else set()


_OF_SHAPES = frozenset({"shape", "size"})
_MOVING = frozenset(
    {
        *("cast", "concat", "expand", "gather", "identity", "reshape", "slice", "split", "squeeze", "transpose"),
        "unsqueeze",
    }
)


def _is_few(v: Value) -> bool:
    """Return whether an input has few elements, or is a list of integers of open length."""
    if is_static(v.shape):
        return prod(static(v.shape)) <= FEW
    return dtypes.is_int(v.dtype) and len(v.shape) == 1


def _symbols(v: Value) -> set[Symbol]:
    return {s for d in v.deciding for s in symbols_of(d)}


def _static(node: Node) -> Iterator[Value]:
    """Yield the operands that a node needs to be told."""
    for parameter, operand in zip(node.op.parsed.operands, node.operands, strict=True):
        if parameter.is_static and isinstance(operand, Value) and not operand.is_constant:
            yield operand


def undecided(node: Node) -> Iterator[Value]:
    """Yield the operands that a node needs to be told, and of which nobody knows what they are."""
    return (v for v in _static(node) if v.known is None)


def _decided(graph: Graph) -> Iterator[Dim]:
    """Yield extents of values, and those that ops are told."""
    for node in graph.nodes:
        for v in node.outputs:
            yield from v.shape
        for v in _static(node):
            if v.known is not None:
                yield from extents_among(v.known.flat)
