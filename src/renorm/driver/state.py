"""Running statistics as the state of a module: what norms in training mode update becomes inputs and outputs of the
graph, after those of the network, which each run reads and replaces.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from renorm.core.dims import static
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT, Limits
from renorm.frontends import BUFFERS, statistics_of
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.batch_norm import BatchNorm
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.ops.reshape import Reshape
from renorm.ops.shared.reshaping import reshaped, reshaped_like
from renorm.runtime.program import TensorSpec
from renorm.runtime.state import Array, State


def hold(graph: Graph) -> tuple[Graph, State]:
    """Return a copy of a graph in which constants that norms in training mode read as their running statistics are
    inputs, and what they become outputs, in the same order; and these constants as a State, by their names. What nodes
    make of constants is one too.

    A statistic that norms share is updated by one after the other. Whoever reads such a constant in another role has
    it as it is. Raises InvalidInput where there is no such norm, and where norms share a statistic that do not
    share mean, variance, scale and bias.
    """
    made = graph.copy()
    computed = interpret.Known(lambda v: v.data)
    read = dict.fromkeys(v for n in made.nodes if _is_training(n) for v in _stored(n))
    stored = {v: data for v in read if (data := _known(v, computed)) is not None}
    updated = [n for n in made.nodes if _is_training(n) and all(v in stored for v in _stored(n))]
    if not updated:
        raise InvalidInput(
            f"{graph.name}: no batch norm in training mode has running statistics that are constants of the network",
            [_said(n, stored) for n in made.nodes if isinstance(n.op, (BatchNorm, BatchNormTraining))]
            or ["it has none"],
            "export it for training (torch.onnx.export: training=TrainingMode.TRAINING), or leave train_state out",
        )
    _check(made, updated)
    now = dict[Value, Value]()  # what a constant is at this point of the network
    held = list[Value]()
    for node in updated:
        constants = _stored(node)
        for c in constants:
            if c not in now:
                now[c] = made.input_for(c)
                held.append(c)
        now.update(zip(constants, _update(made, node, [now[c] for c in constants])))
    made.discard_constants()
    made.infer_again()  # what was known of constants is not known of inputs
    made.outputs += [now[c] for c in held]
    inputs = made.inputs[len(graph.inputs) :]
    specs = [TensorSpec(v.name, v.dtype, static(v.shape)) for v in inputs]
    return made, State(specs, [stored[c] for c in held])


def held(graph: Graph) -> State | None:
    """Return what a program says that it holds and updates: its last inputs, and what they become; None for nothing."""
    arrays = graph.metadata.get(BUFFERS)
    if not arrays:
        return None
    specs = [TensorSpec(v.name, v.dtype, static(v.shape)) for v in graph.inputs[-len(arrays) :]]
    return State(specs, [np.array(a) for a in arrays.values()])


def first_run(graph: Graph) -> Graph:
    """Return a network as its first run is: what it holds and updates are constants, and nobody asks what they
    become."""
    arrays = graph.metadata.get(BUFFERS)
    if not arrays:
        return graph
    made = graph.copy(elements=dict(zip((v.name for v in graph.inputs[-len(arrays) :]), arrays.values())))
    made.outputs = made.outputs[: -len(arrays)]
    del made.metadata[BUFFERS]
    return made


def write_state(
    model: Any, state: Mapping[str, Any], path: str | os.PathLike[str], *, limits: Limits = DEFAULT
) -> None:
    """Write an ONNX model to `path` with the arrays of `state` (a module's, or any by name) as its constants of these
    names; nothing else changes. model: a path, bytes, or an onnx.ModelProto. limits: what it may ask for.

    Raises InvalidInput that lists each name that is no constant of the model, and each array of another shape,
    LimitExceeded for a model that is more than limits allow.
    """
    file = statistics_of(model, limits)
    file.replace({name: np.asarray(array) for name, array in state.items()})
    file.write(path)


def _is_training(node: Node) -> bool:
    return isinstance(node.op, BatchNormTraining) or (isinstance(node.op, BatchNorm) and node.op.training_mode)


def _stored(node: Node) -> list[Value]:
    """Return the values that hold the running mean and variance."""
    return [v for v in map(_unshaped, node.inputs[3:5]) if v is not None]


def _unshaped(v: Value | None) -> Value | None:
    """Return the stored value of an operand, which a norm of every activation by itself (spatial = 0) reads flat."""
    maker = None if v is None else v.producer
    return maker.inputs[0] if maker is not None and isinstance(maker.op, Reshape) else v


def _known(v: Value, computed: interpret.Known) -> Array | None:
    """Elements of a value that depends on constants alone, and is no output; None for others."""
    return None if v.graph.is_output(v) and not v.is_constant else computed(v)


def _said(node: Node, stored: Collection[Value]) -> str:
    """Return why a norm has no state."""
    if not _is_training(node):
        return f"{node.name}: it normalizes with stored statistics"
    return f"{node.name}: " + ", ".join(f"{v.name!r} is no constant" for v in _stored(node) if v not in stored)


def _check(graph: Graph, norms: list[Node]) -> None:
    """A statistic is shared by norms that share all parameters: one norm that the network uses several times."""
    parameters, problems = dict[Value, list[Value | None]](), list[str]()
    for node in norms:
        mean, var = _stored(node)
        own = list(map(_unshaped, node.inputs[1:5]))
        if mean is var or any(parameters.setdefault(v, own) != own for v in (mean, var)):
            problems.append(f"{node.name}: mean {mean.name!r}, var {var.name!r}")
    if problems:
        raise InvalidInput(
            f"{graph.name}: norms share running statistics that cannot be one state",
            problems,
            "give each of these norms a mean and a variance of its own (a tool made one of equal initializers)",
        )


def _update(graph: Graph, node: Node, running: list[Value]) -> list[Value]:
    """Make a norm read running statistics that are values, in the shapes that they are stored in. Return what they
    become."""
    x, scale, bias, *flat = node.inputs
    name = node.name
    graph.rename_node(node, graph.fresh(f"{name}.stateless"))
    with graph.at(node, node.origin):
        read = [v if v.rank == 1 else reshaped(v, -1) for v in running]
        if isinstance(node.op, BatchNorm):
            made = node.op.updating(x, scale, bias, *read, name=name)
        else:
            made = node.op(x, scale, bias, *read, *flat[2:], name=name)
        after = [new if v.rank == 1 else reshaped_like(new, v) for v, new in zip(running, made[1:3])]
    for old, new in zip(node.outputs, made):
        graph.replace(old, new)
    graph.discard([node])
    return after
