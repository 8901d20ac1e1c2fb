"""Running statistics as the state of a module: what norms in training mode update becomes inputs and outputs of the
graph, behind those of the network, which each run reads and replaces.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from renorm.core.dims import static
from renorm.core.errors import InvalidInput
from renorm.frontends import statistics_of
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.batch_norm import BatchNorm
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.runtime.program import TensorSpec
from renorm.runtime.state import State

RUNNING = (3, 4)  # places of mean and var among the operands of both ops


def hold(graph: Graph) -> tuple[Graph, State]:
    """A copy of a graph in which constants that norms in training mode read as their running statistics are inputs, and
    what they become outputs, in the same order; and these constants as a State, by their names.

    A statistic that several norms share is updated by one after the other. Whoever reads such a constant in another
    role has it as it is. Raises InvalidInput where there is no such norm, and where a statistic is the mean of one norm
    and the variance of another, or shared by norms that share only one of the two.
    """
    made = graph.copy()
    updated = [n for n in made.nodes if _is_training(n) and all(_running(n, i).is_constant for i in RUNNING)]
    if not updated:
        norms = sum(isinstance(n.op, BatchNorm) for n in made.nodes)
        raise InvalidInput(
            f"{graph.name}: no batch norm in training mode has running statistics that are constants of the network",
            [f"it has {norms} batch norms" + (", which use stored statistics" if norms else "")],
            "export it for training (torch.onnx.export: training=TrainingMode.TRAINING), or leave train_state out",
        )
    _check(made, updated)
    now = dict[Value, Value]()  # what a constant is at this point of the network
    held = list[Value]()
    for node in updated:
        constants = [_running(node, i) for i in RUNNING]
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
    return made, State(specs, [np.asarray(c.data) for c in held])


def write_state(model: Any, state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes an ONNX model to `path` with the arrays of `state` (a module's, or any by name) as its constants of these
    names; nothing else changes. model: a path, bytes, or an onnx.ModelProto.

    Raises InvalidInput that lists each name that is no constant of the model, and each array of another shape.
    """
    file = statistics_of(model)
    file.replace({name: np.asarray(array) for name, array in state.items()})
    file.write(path)


def _is_training(node: Node) -> bool:
    return isinstance(node.op, BatchNormTraining) or (isinstance(node.op, BatchNorm) and node.op.training_mode)


def _running(node: Node, place: int) -> Value:
    v = node.inputs[place]
    assert v is not None
    return v


def _check(graph: Graph, norms: list[Node]) -> None:
    partner, problems = dict[Value, Value](), list[str]()
    for node in norms:
        mean, var = (_running(node, i) for i in RUNNING)
        if mean is var or partner.setdefault(mean, var) is not var or partner.setdefault(var, mean) is not mean:
            problems.append(f"{node.name}: mean {mean.name!r}, var {var.name!r}")
    if problems:
        raise InvalidInput(
            f"{graph.name}: norms share running statistics that cannot be one state",
            problems,
            "give each of these norms a mean and a variance of its own (a tool made one of equal initializers)",
        )


def _update(graph: Graph, node: Node, running: list[Value]) -> list[Value]:
    """Makes a norm read running statistics that are values, and gives what they become."""
    x, scale, bias, _, _, *others = node.inputs
    name = node.name
    graph.rename_node(node, graph.fresh(f"{name}.stateless"))
    with graph.at(node, node.origin):
        if isinstance(node.op, BatchNorm):
            made = node.op.updating(x, scale, bias, *running, name=name)
        else:
            made = node.op(x, scale, bias, *running, *others, name=name)
    for old, new in zip(node.outputs, made):
        graph.replace(old, new)
    graph.discard([node])
    return made[1:3]
