"""The invariants of graphs, checked; all violations at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from renorm.core.dims import Sym
from renorm.core.errors import InvalidGraph, RenormError
from renorm.graph.ir import Graph, Node
from renorm.graph.types import TensorType

_HELD = {("float32", "bfloat16"), ("float32", "tf32"), ("float32", "uint8")}


def verify(graph: Graph) -> None:
    """Raise InvalidGraph that names every violation of: names are unique; operands are defined above their reader;
    lists of readers are what the nodes say; types are what inference gives; outputs are values of this graph; groups
    partition the nodes, stand in an order in which they can run, and none must run before and after another; layouts
    fit their values, which are results of nodes that no caller sees."""
    found = violations(graph)
    if found:
        raise InvalidGraph(f"graph {graph.name} breaks {len(found)} invariant{'s' if len(found) > 1 else ''}", found)


def violations(graph: Graph) -> list[str]:
    """Return the problems that `verify` raises, one sentence each."""
    return [*_names(graph), *_order(graph), *_readers(graph), *_types(graph), *_groups(graph), *_layouts(graph)]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _names(graph: Graph) -> list[str]:
    found = [f"value name {n!r} is used twice" for n in _repeated(v.name for v in graph.values())]
    found += [f"node name {n!r} is used twice" for n in _repeated(n.name for n in graph.nodes)]
    found += [f"constant {v.name!r} is listed as {k!r}" for k, v in graph.constants.items() if k != v.name]
    return found


def _order(graph: Graph) -> list[str]:
    found: list[str] = []
    defined = {*graph.inputs, *graph.constants.values(), *graph.extents.values()}
    everywhere = {*defined, *(v for n in graph.nodes for v in n.outputs)}
    for n in graph.nodes:
        for v in n.inputs:
            if v is not None and v not in defined:
                what = "which comes later" if v in everywhere else "which is no value of this graph"
                found.append(f"node {n.name!r} reads {v.name!r}, {what}")
        for v in n.outputs:
            if v.producer is not n:
                found.append(f"{v.name!r} is a result of {n.name!r} but names {_name(v.producer)} as its producer")
        defined |= set(n.outputs)
    found += [f"output {v.name!r} is no value of this graph" for v in graph.outputs if v not in everywhere]
    return found


def _readers(graph: Graph) -> list[str]:
    actual = graph.user_map()
    return [
        f"{v.name!r} is read by {_list(actual.get(v, []))} but lists {_list(v.users)} as its readers"
        for v in graph.values()
        if set(actual.get(v, [])) != set(v.users)
    ]


def _types(graph: Graph) -> list[str]:
    found: list[str] = []
    for v in graph.constants.values():
        if v.elements is not None and v.elements.shape != v.shape:
            found.append(f"constant {v.name!r} is {v.type} but holds elements of shape {list(v.elements.shape)}")
    for n in graph.nodes:
        try:
            inferred = graph.infer(n)
        except RenormError as error:
            found.append(str(error))
            continue
        if len(inferred) != len(n.outputs):
            found.append(f"node {n.name!r} has {len(n.outputs)} results, inference gives {len(inferred)}")
        found += [
            f"{v.name!r} is {v.type} but inference gives {t}"
            for v, t in zip(n.outputs, inferred)
            if not _agree(v.type, t)
        ]
    return found


def _agree(written: TensorType, inferred: TensorType) -> bool:
    """Equal, except that inference may not know an extent."""
    return (
        written.dtype == inferred.dtype
        and written.rank == inferred.rank
        and all(a == b or isinstance(b, Sym) for a, b in zip(written.shape, inferred.shape))
    )


def _groups(graph: Graph) -> list[str]:
    if not graph.groups:
        return []
    found = [f"two kernels are named {name!r}" for name in _repeated(g.name for g in graph.groups)]
    where: dict[Node, int] = {}
    for i, g in enumerate(graph.groups):
        for n in g.nodes:
            if n in where:
                found.append(f"node {n.name!r} is in kernels {graph.groups[where[n]].name!r} and {g.name!r}")
            where[n] = i
    nodes = set(graph.nodes)
    found += [f"node {n.name!r} is in no kernel" for n in graph.nodes if n not in where]
    found += [
        f"kernel {graph.groups[i].name!r} has {n.name!r}, no node of this graph"
        for n, i in where.items()
        if n not in nodes
    ]
    # Launched in order, each kernel may read only what earlier ones wrote; a kernel that must run both before and after
    # another one breaks this whatever their order, so convexity needs no check of its own.
    for n in graph.nodes:
        for v in n.inputs:
            if v is not None and v.producer in where and n in where and where[v.producer] > where[n]:
                before, after = graph.groups[where[n]].name, graph.groups[where[v.producer]].name
                found.append(f"kernel {before!r} is launched before {after!r} but reads its result {v.name!r}")
    for g in graph.groups:
        position = {n: i for i, n in enumerate(g.nodes)}
        for n in g.nodes:
            for v in n.inputs:
                if v is not None and v.producer in position and position[v.producer] >= position[n]:
                    found.append(
                        f"kernel {g.name!r}: {n.name!r} stands before {v.producer.name!r}, whose result it reads"
                    )
    return found


def _layouts(graph: Graph) -> list[str]:
    found: list[str] = []
    for v in graph.values():
        if v.layout is None:
            continue
        reason = v.layout.refuses(v.shape)
        if reason:
            found.append(f"value {v.name!r}: {reason}")
        if v.layout.dtype and (v.dtype, v.layout.dtype) not in _HELD:
            found.append(f"value {v.name!r} is {v.dtype}, which memory does not hold {v.layout}")
        if v.producer is None or graph.is_output(v):
            what = "a constant" if v.is_constant else "an input" if v.producer is None else "an output"
            found.append(f"value {v.name!r} is {what} of the graph and has layout {v.layout}; it must be row-major")
    return found


def _name(node: Node | None) -> str:
    return "nobody" if node is None else repr(node.name)


def _list(nodes: Iterable[Node]) -> str:
    return ", ".join(repr(n.name) for n in nodes) or "nobody"
