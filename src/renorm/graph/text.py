"""The text form of graphs, which graph.parse reads back; the grammar is there.

    graph net(x: f32[1, 3, 8, 8]) -> (%y) {opset=17} {
      const %w: f32[4, 3, 3, 3] = #1fe2373734955e60  // conv1.weight
      const %b: f32[4] = [0.5, -1.0, 2.0, 0.0]
      const %six: f32[] = 6.0
      extents %to: i64[2] = [N, 16*H]
      kernel fused_conv2d_relu {
        %input.4: f32[1, 4, 3, 3] = conv(%x, %w, %b) {strides=[2, 2]}  // Conv_0
        %y: f32[1, 4, 3, 3] blocked(1, 4) as bf16 = clip(%input.4, -, %six)  // Relu_1 (Max_3, Min_4)
      }
    }

`extents` are elements, in a row, that are numbers once symbols are. Elements stand in the text where there are few of
them; otherwise a digest of their bytes, and the arrays are given to the parser. `blocked` and `as` say how memory holds
a value (graph.layout), `-` that an operand is absent. The comment after a node is its name, and, in parentheses, the
nodes of the source model that it stands for when these are others. Names are quoted where they are no words. Attributes
that have their default are not written. Symbols of inputs stand with the numbers between which they lie,
`x: f32[N:1..64]`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import format_facts, format_shape
from renorm.graph import ir
from renorm.graph.ir import Graph, Node, Value

FEW = 16  # elements that are written out
WORD = re.compile(r"[A-Za-z_][\w.]*")


def quoted(name: str) -> str:
    """Return a name as it is written: bare where it is a word."""
    return name if WORD.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def digest(data: np.ndarray[Any, Any]) -> str:
    """Sixteen hexadecimal digits that tell arrays of one type apart."""
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:16]


def text(graph: Graph) -> str:
    """Return the graph in the form above; kernels as blocks where the graph is cut into groups."""
    inputs = ", ".join(_input(v) for v in graph.inputs)
    outputs = ", ".join(_value(v) for v in graph.outputs)
    written = {k: v for k, v in graph.metadata.items() if isinstance(v, (bool, int, float, str))}
    lines = [f"graph {quoted(graph.name)}({inputs}) -> ({outputs}){_attributes(written)} {{"]
    lines += [f"  {_constant(v)}" for v in graph.constants.values()]
    for v in graph.extents.values():
        lines.append(f"  extents {_typed(v)} = {format_shape(() if v.known is None else v.known.reshape(-1))}")
    if graph.groups:
        for group in graph.groups:
            lines.append(f"  kernel {quoted(group.name)} {{")
            lines += [f"    {node_text(n)}" for n in group.nodes]
            lines.append("  }")
    else:
        lines += [f"  {node_text(n)}" for n in graph.nodes]
    return "\n".join([*lines, "}"])


def node_text(node: Node) -> str:
    """One node on one line."""
    results = ", ".join(_typed(v) for v in node.outputs)
    operands = ", ".join(
        f"[{', '.join(_value(v) for v in o)}]" if isinstance(o, list) else _value(o) for o in _without_absent_tail(node)
    )
    given = {a: v for a, v in node.op.values.items() if v != type(node.op).attributes[a].default}
    origin = "" if node.origin == (node.name,) else f" ({', '.join(quoted(o) for o in node.origin)})"
    return f"{results} = {node.op.name}({operands}){_attributes(given)}  // {quoted(node.name)}{origin}"


def _without_absent_tail(node: Node) -> list[Any]:
    operands = list(node.operands)
    while operands and operands[-1] is None:
        operands.pop()
    return operands


def _value(v: Value | None) -> str:
    return "-" if v is None else f"%{quoted(v.name)}"


def _input(v: Value) -> str:
    told = (v.shape, () if not v.deciding or v.known is None else v.known.flat)
    extents, elements = (", ".join(map(format_facts, shape)) for shape in told)
    elements = f" = [{elements}]" if elements else ""
    return f"{quoted(v.name)}: {dtypes.short(v.dtype)}[{extents}]" + (f" {v.layout}" if v.layout else "") + elements


def _typed(v: Value) -> str:
    return f"%{quoted(v.name)}: {v.type}" + (f" {v.layout}" if v.layout else "")


def _constant(v: Value) -> str:
    assert v.data is not None
    shown = _elements(v.data) if v.data.size <= FEW else f"#{digest(v.data)}"
    return f"const {_typed(v)} = {shown}" + (f"  // {quoted(v.source)}" if v.source else "")


def _elements(data: np.ndarray[Any, Any]) -> str:
    """Nested lists; floats in the shortest form that reads back as the same number of their dtype."""
    if data.ndim:
        return f"[{', '.join(_elements(row) for row in data)}]"
    if data.dtype.kind == "b":
        return "true" if data else "false"
    if data.dtype.kind in "iu":
        return str(int(data))
    return str(data[()])


def literal(value: Any) -> str:
    """Return an attribute's value as text."""
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(literal(v) for v in value)}]"
    return json.dumps(str(value), ensure_ascii=False)


def _attributes(values: dict[str, Any]) -> str:
    return f" {{{', '.join(f'{quoted(a)}={literal(v)}' for a, v in values.items())}}}" if values else ""


ir.set_printer(text)
