"""Checks of data as outputs of a network: what ops demand of operands is measured where it is computed."""

from __future__ import annotations

import numpy as np

from renorm import ops
from renorm.core.dims import bounds, size
from renorm.graph.ir import Graph, Value
from renorm.graph.op import Demand
from renorm.runtime.checks import Check


def add(graph: Graph, states: int) -> tuple[Check, ...]:
    """Add to a graph two outputs for whatever its nodes demand of data: before its last `states` outputs, in the order
    of the checks."""
    found, outputs = list[Check](), list[Value]()
    for node in [*graph.nodes]:
        for demand in node.op.demands(node):
            if 0 in demand.operand.shape:
                continue
            found.append(Check(node.origin[0] if node.origin else node.name, demand.axes, demand.extents))
            outputs += _extremes(demand)
    at = len(graph.outputs) - states
    graph.outputs[at:at] = outputs
    return tuple(found)


def _extremes(demand: Demand) -> list[Value]:
    """Return the least and the greatest index of each axis; of a divisor whether it is never, and ever, 0."""
    operand = demand.operand
    if not demand.extents:
        operand = ops.equal(operand, np.zeros((), operand.dtype))
    rows = np.asarray([-1, max(1, len(demand.extents))])
    flat = ops.reshape(ops.cast(operand, to="int64"), shape=rows)
    if (
        bounds(size(operand.shape))[0] < 1
    ):  # the extremes of no indices: those of one that is right, as 0 is of a divisor
        flat = ops.pad(flat, pads=np.asarray([0, 0, 1, 0]))
    return [reduce(flat, axes=[0], keepdims=False) for reduce in (ops.reduce_min, ops.reduce_max)]
