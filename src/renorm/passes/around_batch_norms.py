"""ReLUs and residuals around batch norms in training, forward and backward, which their kernels compute on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm.graph.ir import Graph, Node, Value
from renorm.passes.context import Context


@dataclass(frozen=True)
class JoinBatchNorms:
    """relu(batch_norm_training(x) + r) -> batch_norm_training(x, residual=r, relu)
    batch_norm_gradient(where(y <= 0, 0, dy), x) -> batch_norm_gradient(dy, x, y=y), with the first as a residual
    batch_norm_gradient(a + b, x) -> batch_norm_gradient(a, x, plus=b)"""

    def run(self, graph: Graph, context: Context) -> None:
        for node in [n for n in graph.nodes if n.op.name == "batch_norm_training"]:
            if context.kept(node) is None:
                _join_forward(graph, node)
        for node in [n for n in graph.nodes if n.op.name == "batch_norm_gradient"]:
            if context.kept(node) is None:
                _join_sum(graph, _join_backward(graph, node))


def _depends(graph: Graph, v: Value, node: Node) -> bool:
    """Return whether a value is made of what a node gives."""
    place, waiting, seen = graph.position_of(node), [v], set[Value]()
    while waiting:
        producer = (v := waiting.pop()).producer
        if producer is node:
            return True
        if producer is not None and v not in seen and graph.position_of(producer) > place:
            waiting += [x for x in producer.inputs if x is not None]
        seen.add(v)
    return False


def _only_reader(graph: Graph, v: Value) -> Node | None:
    return v.users[0] if len(v.users) == 1 and not graph.is_output(v) else None


def _join_forward(graph: Graph, norm: Node) -> None:
    reader = _only_reader(graph, norm.outputs[0])
    if reader is not None and reader.op.name == "add" and norm.inputs[-1] is None and not norm.op.values["relu"]:
        others = [v for v in reader.inputs if v is not None and v is not norm.outputs[0]]
        y = norm.outputs[0]
        if len(others) == 1 and others[0].type == y.type and not _depends(graph, others[0], norm):
            norm = _again(graph, norm, reader, [*norm.inputs[:-1], others[0]], norm.op.values["relu"])
            reader = _only_reader(graph, norm.outputs[0])
    if reader is not None and reader.op.name == "relu":
        _again(graph, norm, reader, norm.inputs, True)


def _again(graph: Graph, norm: Node, reader: Node, operands: list[Value | None], relu: bool) -> Node:
    """Put a norm that computes its reader too in place of both."""
    op = norm.op.with_attributes(relu=relu)
    made = graph.apply(op, operands, before=reader, origin=(*norm.origin, *reader.origin))
    graph.replace(reader.output, made[0])
    for old, new in zip(norm.outputs[1:], made[1:]):
        graph.replace(old, new)
    graph.discard([reader, norm])
    graph.rename_node(made[0].producer, norm.name)
    graph.sort()
    return made[0].producer


def _join_backward(graph: Graph, norm: Node) -> Node:
    """Return the node that stands for the norm's gradient then."""
    dy, x, scale, mean, invstd, mask, y, plus = norm.inputs
    assert dy is not None
    found = _rectified(dy)
    if y is not None or plus is not None or norm.op.values["residual"] or found is None:
        return norm
    of, passed = found
    assert dy.producer is not None
    is_read_elsewhere = len(dy.users) > 1 or graph.is_output(dy)
    if is_read_elsewhere and any(_depends(graph, v, dy.producer) for v in (x, scale, mean, invstd) if v is not None):
        return norm
    op = norm.op.with_attributes(residual=is_read_elsewhere)
    origin = (*norm.origin, *dy.producer.origin)
    made = graph.apply(op, [passed, x, scale, mean, invstd, mask, of, None], before=norm, origin=origin)
    if is_read_elsewhere:
        graph.replace(dy, made[3])
    return _instead(graph, norm, made, dy.producer)


def _join_sum(graph: Graph, norm: Node) -> None:
    dy, *rest, plus = norm.inputs
    assert dy is not None
    added = dy.producer
    if plus is None and added is not None and added.op.name == "add" and _only_reader(graph, dy) is norm:
        a, b = added.inputs
        if a is not None and b is not None and a.type == b.type == dy.type:
            made = graph.apply(norm.op, [a, *rest, b], before=norm, origin=(*norm.origin, *added.origin))
            _instead(graph, norm, made, added)


def _instead(graph: Graph, norm: Node, made: Sequence[Value], joined: Node) -> Node:
    """Have results stand for those of a norm that computes its operand's producer too."""
    for old, new in zip(norm.outputs, made):
        graph.replace(old, new)
    graph.discard([norm])
    graph.discard([joined])
    (node,) = {v.producer for v in made}
    assert node is not None
    graph.rename_node(node, norm.name)
    graph.sort()
    return node


def _rectified(dy: Value) -> tuple[Value, Value] | None:
    """Return y and g of where(y <= 0, 0, g)."""
    choice = dy.producer
    if choice is None or choice.op.name != "where":
        return None
    condition, zero, g = choice.inputs
    if condition is None or zero is None or g is None or not _is_zero(zero) or g.type != dy.type:
        return None
    compared = condition.producer
    if compared is None or compared.op.name != "less_or_equal":
        return None
    y, bound = compared.inputs
    return (y, g) if y is not None and bound is not None and _is_zero(bound) and y.type == dy.type else None


def _is_zero(v: Value) -> bool:
    return v.data is not None and v.data.size == 1 and not v.data.any()
