"""Graphs before and after folding, compared by what calls of layers can express; constants by where they come from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from renorm import ops
from renorm.graph.channels import ChannelMap
from renorm.graph.deferred import Deferred
from renorm.graph.ir import Graph, Node, Value
from renorm.passes.affine import given, scaling, together

Array = np.ndarray[Any, Any]
Site = tuple[str, int]  # a node, and which of its operands


def roots(graph: Graph) -> dict[Site, tuple[str, bool]]:
    """Return which constant each operand is, as far as it is one, and whether it is turned."""
    found, turned = dict[Site, tuple[str, bool]](), set[Node]()
    for n in graph.nodes:
        for i, v in enumerate(n.inputs):
            maker = None if v is None else v.producer
            if v is not None and v.is_constant:
                found[n.name, i] = v.name, False
            elif maker is not None and n.op.name == "matmul" and i == 1 and _turns_constant(maker):
                assert maker.inputs[0] is not None
                found[n.name, i] = maker.inputs[0].name, True
                turned.add(maker)
    for n in turned:
        if all(u.op.name == "matmul" for u in n.output.readers) and not graph.is_output(n.output):
            del found[n.name, 0]
    return found


def _turns_constant(n: Node) -> bool:
    x = n.inputs[0]
    return n.op.name == "transpose" and x is not None and x.is_constant and tuple(n.op.values["perm"]) == (1, 0)


def grouped(nodes: Iterable[Node], key: Callable[[Node], Hashable]) -> list[list[Node]]:
    """Return nodes with the same key together, in their order."""
    found = dict[Hashable, list[Node]]()
    for n in nodes:
        found.setdefault(key(n), []).append(n)
    return [*found.values()]


def chain(calls: Sequence[Node]) -> tuple[Value, ChannelMap] | None:
    """Return what calls scale and shift, one after the other, and how; None where they do anything else."""
    found: tuple[Value, ChannelMap] | None = None
    for before, n in zip([None, *calls], calls):
        step = scaling(n)
        if step is None or (before is not None and (step[0] is not before.output or {*step[0].readers} != {n})):
            return None
        both = step[1] if found is None else together(found[1], step[1], found[0])
        if both is None or (before is not None and n.output.graph.is_output(before.output)):
            return None
        found = (step[0] if found is None else found[0]), both
    return found


def why_not_in_turn(norm: Node, inside: Sequence[Node], called: Sequence[str], order: Sequence[str]) -> str | None:
    """Return why the layers of a norm layer, one after the other, are not what follows the norm in it; None where they
    are. inside: their nodes; called: which of them each is of; order: all of them, as the layer has them."""
    if [*dict.fromkeys(called)] != [name for name in order if name in called]:
        return f"its own layers are called in another order than it has them: {', '.join(dict.fromkeys(called))}"
    for n in inside:
        if any(v is not None and not v.is_constant and v.producer not in (norm, *inside) for v in n.inputs):
            return f"{n.name!r} in it reads more than what is normalized"
    made = [v for n in (norm, *inside) for v in n.outputs]
    ends = [v for v in made if v.graph.is_output(v) or any(u not in inside for u in v.readers)]
    is_last = not inside or ends == [inside[-1].output]
    return None if is_last else "more is read of it than what its last layer gives"


def map_of(layer: nn.Module, read: Value) -> tuple[Array, Array] | None:
    """Return scale and shift of a layer for each channel in float64, as it computes them itself."""
    state = {
        n: t.detach().double() if t.is_floating_point() else t
        for n, t in (*layer.named_parameters(), *layer.named_buffers())
    }
    device = next((t.device for t in state.values()), None)
    zeros = torch.zeros((1, int(str(read.shape[1])), *[1] * (read.rank - 2)), dtype=torch.float64, device=device)
    try:
        with torch.no_grad():
            shift, both = (functional_call(layer, state, (x,), tie_weights=False) for x in (zeros, zeros + 1))
    except Exception:  # whatever the layer's own code raises
        return None
    if shift.dtype != torch.float64 or shift.shape != zeros.shape:
        return None
    return (both - shift).reshape(-1).cpu().numpy(), shift.reshape(-1).cpu().numpy()


def make_norm(calls: Sequence[Node], x: Value, k: Array, shift: Array) -> None:
    """Put one batch norm, x * k + shift, in the place of calls, the last of which gives that."""
    last = calls[-1]
    graph, name = last.output.graph, last.name
    with graph.at(last, (name,)):
        held = [graph.constant(c, name, dtype=x.dtype) for c in (k, shift, np.zeros_like(k), np.ones_like(k))]
        y = ops.batch_norm(x, *held, epsilon=0.0)
    made = y.producer
    assert made is not None
    graph.replace(last.output, y)
    graph.discard(calls)
    graph.rename_node(made, name)


def is_same(n: Node, was: Node, gone: set[str]) -> bool:
    """Return whether a node computes what it did, but for norms and the elements of its constants."""
    if type(n.op) is not type(was.op) or n.op.values != was.op.values or len(n.inputs) != len(was.inputs):
        return False
    for v, before in zip(n.inputs, was.inputs):
        if v is None or before is None or v.is_constant != before.is_constant:
            if v is not before:
                return False
        elif not v.is_constant and place(v) != place(standing(before, gone)):
            return False
    return True


def standing(v: Value, gone: set[str]) -> Value:
    """Return what a value is, once norms are gone."""
    while v.producer is not None and v.producer.name in gone and v.producer.inputs[0] is not None:
        v = v.producer.inputs[0]
    return v


def place(v: Value) -> Site:
    """Return which result of which node a value is."""
    return (v.name, -1) if v.producer is None else (v.producer.name, v.producer.outputs.index(v))


def exact(v: Value) -> Array:
    """Return the elements of a constant in float64, before they are rounded."""
    elements = given(v)
    return elements.exact() if isinstance(elements, Deferred) else np.asarray(elements, np.float64)
