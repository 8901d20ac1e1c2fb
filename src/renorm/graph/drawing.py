"""A graph as text for Graphviz or Mermaid: a box for a node, an oval for a value, a frame for a kernel.

Values that are drawn are inputs, outputs, and what somebody reads of a node with several results; any other edge is the
only result of the node where it begins. Constants are not drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from renorm.core.errors import InvalidInput
from renorm.graph.ir import Graph, Node, Value

FILLS = {"value": "#f6f8fa", "op": "#ddf4ff", "norm": "#fff1c2"}  # by class; text on them is black


@dataclass(frozen=True)
class _Box:
    """A node of the drawing. lines: of its label. kind: a key of FILLS. kernel: the group around it, or ""."""

    name: str
    lines: tuple[str, ...]
    kind: str
    kernel: str = ""


def text(graph: Graph, suffix: str) -> str:
    """Return the drawing for a file of that suffix. Raises InvalidInput for one that is neither."""
    forms = {".dot": dot, ".gv": dot, ".mmd": mermaid}
    if suffix not in forms:
        raise InvalidInput(
            f"a drawing is not written to {suffix or 'a file without a suffix'}", [f"known: {', '.join(forms)}"]
        )
    return forms[suffix](graph)


def dot(graph: Graph) -> str:
    """Return the graph for Graphviz: `dot -Tsvg`. The same text for the same graph."""
    boxes, edges = _parts(graph)
    lines = [f"digraph {_quoted([graph.name])} {{", '  node [style=filled fontname=monospace fontcolor="#1b1f24"]']
    for i, (kernel, members) in enumerate(_frames(boxes)):
        shapes = [
            f"  {b.name} [label={_quoted(b.lines)} shape={'oval' if b.kind == 'value' else 'box'} "
            f'fillcolor="{FILLS[b.kind]}"]'
            for b in members
        ]
        if kernel:
            shapes = [f"  subgraph cluster_{i} {{", f"  label={_quoted([kernel])}", *shapes, "  }"]
        lines += shapes
    return "\n".join([*lines, *(f"  {a} -> {b}" for a, b in edges), "}"]) + "\n"


def mermaid(graph: Graph) -> str:
    """Return the graph for Mermaid, which pages of many kinds show as a picture. The same text for the same graph."""
    boxes, edges = _parts(graph)
    lines = ["flowchart TD"]
    for i, (kernel, members) in enumerate(_frames(boxes)):
        shapes = list[str]()
        for b in members:
            begin, end = ("([", "])") if b.kind == "value" else ("[", "]")
            shapes.append(f"  {b.name}{begin}{_entities(b.lines)}{end}:::{b.kind}")
        if kernel:
            shapes = [f"  subgraph k{i}[{_entities([kernel])}]", *shapes, "  end"]
        lines += shapes
    lines += [f"  {a} --> {b}" for a, b in edges]
    return "\n".join([*lines, *(f"  classDef {kind} fill:{fill},color:#1b1f24" for kind, fill in FILLS.items())]) + "\n"


def _parts(graph: Graph) -> tuple[list[_Box], list[tuple[str, str]]]:
    """Boxes, nodes in their order, and edges between their names."""
    readers = graph.user_map()
    names: dict[Node | Value, str] = {}
    boxes, edges = list[_Box](), dict[tuple[str, str], None]()
    kernels = {node: group.name for group in graph.groups for node in group.nodes}

    def value(v: Value, name: str) -> str:
        boxes.append(_Box(name, (v.name, str(v.type)), "value"))
        return name

    def join(v: Value | None, end: str) -> None:
        if v is not None and not v.is_constant:
            edges[names[v] if v in names or v.producer is None else names[v.producer], end] = None

    for i, v in enumerate(graph.inputs):
        names[v] = value(v, f"x{i}")
    for i, node in enumerate(graph.nodes):
        names[node] = f"n{i}"
        lines = dict.fromkeys((node.op.name, node.name))
        boxes.append(
            _Box(names[node], tuple(lines), "norm" if node.op.is_normalization else "op", kernels.get(node, ""))
        )
        for v in node.inputs:
            join(v, names[node])
        for k, v in enumerate(node.outputs if len(node.outputs) > 1 else ()):
            if readers.get(v):
                names[v] = value(v, f"n{i}_{k}")
                edges[names[node], names[v]] = None
    for i, v in enumerate(graph.outputs):
        join(v, value(v, f"y{i}"))
    return boxes, list(edges)


def _frames(boxes: Iterable[_Box]) -> Iterator[tuple[str, list[_Box]]]:
    """Boxes by kernel, in the order in which kernels begin; those outside of all by themselves."""
    kernels: dict[str, list[_Box]] = {}
    for b in boxes:
        kernels.setdefault(b.kernel, []).append(b)
    yield from kernels.items()


def _quoted(lines: Iterable[str]) -> str:
    return json.dumps("\n".join(lines), ensure_ascii=False)


def _entities(lines: Iterable[str]) -> str:
    """A label for Mermaid, which takes some characters for its own: as their numbers."""
    plain = (re.sub(r"[^\w\s.,:()[\]=+*/|-]", lambda m: f"#{ord(m[0])};", line) for line in lines)
    return f'"{"<br>".join(plain)}"'
