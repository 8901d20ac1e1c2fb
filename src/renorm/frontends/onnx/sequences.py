"""Ops of sequences and optionals of tensors, which are gone when a file has been read: what is known of them is used.

s = SequenceInsert(s, x)    a tuple of values, with one more
y = SequenceAt(s, i)        one of them; where data say which, and all have one type, by gather
s = SplitToSequence(x)      pieces, whose number is an extent that is known
s = SequenceMap(s, x)       its body once for each element
o = Optional()              nothing; Optional(x) is x
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.errors import InvalidModel, UntoldOperand
from renorm.core.shapes import normalize_axis
from renorm.frontends.onnx import control_flow, tensors
from renorm.frontends.onnx.held import Absent, Held, Items
from renorm.frontends.onnx.messages import NodeProto
from renorm.frontends.onnx.model import standard_domain
from renorm.graph.deciding import sources
from renorm.graph.ir import Value

if TYPE_CHECKING:
    from renorm.frontends.onnx.reader import Reader
    from renorm.frontends.onnx.scope import Scope

Results = Sequence[Value | None]
Reading = Generator[tuple[Sequence[NodeProto], "Scope"], None, Results]


def takes(proto: NodeProto, operands: Results) -> bool:
    """Return whether a node is read here."""
    is_identity = proto.op_type == "Identity" and any(isinstance(x, Held) for x in operands)
    return (proto.op_type in OPS or is_identity) and not standard_domain(proto.domain)


def results(reader: Reader, proto: NodeProto, name: str, operands: Results, scope: Scope) -> Reading:
    """Return the results of a node that `takes` says is read here. Raises what keeps it from being read."""
    attributes = {a.name: a for a in proto.attribute}
    if proto.op_type == "SequenceMap":
        return (yield from _map(reader, proto, name, attributes, operands, scope))
    made = OPS.get(proto.op_type) or _optional
    node = _Node(reader, proto.output[0] if proto.output else name, {k: int(a.i) for k, a in attributes.items()})
    return [made(node, *operands, *[None] * (3 - len(operands)))]


class _Node:
    """Hold what the ops know of their node. out: the name of its result. attributes: those that are numbers."""

    def __init__(self, reader: Reader, out: str, attributes: Mapping[str, int]):
        self.reader, self.out, self.attributes = reader, out, attributes

    def position(self, given: Value | None, count: int, most: int) -> int:
        """Return a position in a sequence of so many, from the front; `most`, the last that may be, where it is left
        out."""
        at = most if given is None else control_flow.whole_number(self.reader, given, f"the position {given.name!r}")
        if not -count <= at <= most:
            raise InvalidModel(f"position {at} is none of a sequence of {count}")
        return at + count if at < 0 else at

    def constant(self, element: Any) -> Value:
        return self.reader.graph.constant(np.asarray(element), self.out)


def _items(given: Value | None) -> Items:
    if not isinstance(given, Items):
        raise InvalidModel("a sequence is expected" + ("" if given is None else f", {given.name!r} is none"))
    return given


def _tensor(given: Value | None) -> Value:
    if given is None:
        raise InvalidModel("a tensor is missing")
    return given.graph and given  # no Held is in a graph, as it says


def _optional(node: _Node, given: Value | None, *_: Any) -> Value:
    return Absent(node.out) if given is None else given


def _has_element(node: _Node, given: Value | None, *_: Any) -> Value:
    return node.constant(given is not None and not isinstance(given, Absent))


def _element(node: _Node, given: Value | None, *_: Any) -> Value:
    if given is None or isinstance(given, Absent):
        raise InvalidModel("the optional has no value")
    return given


def _empty(node: _Node, *_: Any) -> Value:
    return Items(node.out, (), tensors.dtype_name(node.attributes.get("dtype", 1), "the sequence"))


def _construct(node: _Node, *given: Value | None) -> Value:
    values = [_tensor(v) for k, v in enumerate(given) if k == 0 or v is not None]
    return Items(node.out, values, values[0].dtype)


def _length(node: _Node, given: Value | None, *_: Any) -> Value:
    return node.constant(np.int64(len(_items(given).items)))


def _insert(node: _Node, given: Value | None, value: Value | None, position: Value | None) -> Value:
    held = _items(given)
    at = node.position(position, len(held.items), len(held.items))
    return Items(node.out, (*held.items[:at], _tensor(value), *held.items[at:]), held.element)


def _erase(node: _Node, given: Value | None, position: Value | None, _: Any) -> Value:
    held = _items(given)
    at = node.position(position, len(held.items), len(held.items) - 1)
    return Items(node.out, (*held.items[:at], *held.items[at + 1 :]), held.element)


def _at(node: _Node, given: Value | None, position: Value | None, _: Any) -> Value:
    items, at = _items(given).items, _tensor(position)
    try:
        return items[node.position(at, len(items), len(items) - 1)]
    except UntoldOperand:
        inputs = sources(node.reader.graph, at)
        is_told = inputs and not any(dtypes.is_float(v.dtype) for v in inputs)  # once these are known
        if is_told or at.rank or len({v.type for v in items}) != 1:
            raise
        return ops.gather(_stacked(items, 0), at, axis=0)


def _concat(node: _Node, given: Value | None, *_: Any) -> Value:
    items, axis = _items(given).items, node.attributes.get("axis")
    if not items or axis is None:
        raise InvalidModel("it does not say its axis" if items else "of no tensors there is no result")
    return _stacked(items, axis) if node.attributes.get("new_axis") else ops.concat(list(items), axis=axis)


def _stacked(items: Sequence[Value], axis: int) -> Value:
    axis = normalize_axis(axis, items[0].rank + 1)
    return ops.concat([ops.unsqueeze(v, axes=[axis]) for v in items], axis=axis)


def _split(node: _Node, given: Value | None, sizes: Value | None, _: Any) -> Value:
    x = _tensor(given)
    axis = normalize_axis(node.attributes.get("axis", 0), x.rank)
    extent, made = x.shape[axis], list[Value]()
    if sizes is None or sizes.rank == 0:
        piece = 1
        if sizes is not None:
            piece = control_flow.whole_number(node.reader, sizes, f"the size {sizes.name!r} of pieces")
        if not isinstance(extent, int):
            what = f"how many pieces an axis of {extent} has"
            raise UntoldOperand(f"{what} is not known", do="give its shape (shapes=)", operand=extent)
        if piece < 1:
            raise InvalidModel(f"SplitToSequence: pieces of {piece}")
        whole, rest = divmod(extent, piece)
        node.reader.expand(whole, "pieces of SplitToSequence")
        if extent:
            made = _pieces(x, np.array([piece] * whole + [rest] * (rest > 0), np.int64), axis)
    else:
        made = _pieces(x, sizes, axis)
    if sizes is None and not node.attributes.get("keepdims", 1):
        made = [ops.squeeze(v, axes=[axis]) for v in made]
    return Items(node.out, made, x.dtype)


def _pieces(x: Value, sizes: Any, axis: int) -> list[Value]:
    made = ops.split(x, sizes, axis=axis)
    return [made] if isinstance(made, Value) else list(made)


def _map(
    reader: Reader, proto: NodeProto, name: str, attributes: Mapping[str, Any], operands: Results, scope: Scope
) -> Reading:
    if "body" not in attributes:
        raise InvalidModel("SequenceMap has no body")
    body, first = attributes["body"].g, _items(operands[0] if operands else None)
    count = len(first.items)
    others = [len(x.items) for x in operands if isinstance(x, Items) and len(x.items) != count]
    if others or len(body.input) != len(operands):
        facts = [f"its sequences have {[count, *others]} elements", f"its body takes {len(body.input)} values"]
        raise InvalidModel(f"SequenceMap: it has {len(operands)} operands", facts)
    held, found = reader.scope_of(body, scope), list[list[Value]]()
    for k in range(count):
        reader.expand(len(body.node) + 1, f"element {k} of {name!r}")
        given = [x.items[k] if isinstance(x, Items) else x for x in operands]
        inner = reader.scope_within(held, dict(zip((i.name for i in body.input), given)), {}, f".{k}")
        yield body.node, inner
        made = [reader.find(o.name, inner, f"the body {body.name!r}") for o in body.output]
        if None in made:  # which is noted
            return [None] * len(proto.output)
        found.append([_tensor(v) for v in made])
    names = [*proto.output, *[""] * (len(body.output) - len(proto.output))]
    stated = [tensors.dtype_name(o.type.tensor_type.elem_type, o.name) for o in body.output] if not found else []
    elements = [v.dtype for v in found[0]] if found else stated
    return [Items(out, [row[k] for row in found], elements[k]) for k, out in enumerate(names)]


OPS = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": None,  # reads a body
    "SplitToSequence": _split,
}
