"""Activations: operators of their own, and parts of those that compute one of their result."""

from __future__ import annotations

import math

import numpy as np

from renorm import ops
from renorm.frontends.tflite.tensors import Range
from renorm.graph.ir import Node, Value

CUTTING: dict[str, Range] = {
    "RELU": (0, math.inf),
    "RELU6": (0, 6),
    "RELU_N1_TO_1": (-1, 1),
    "RELU_0_TO_1": (0, 1),
}
"""Those that cut their operand to a range."""

NAMES = frozenset((*CUTTING, "TANH"))


def apply(name: str, x: Value) -> Value:
    if name in ("RELU", "TANH"):
        return ops.relu(x) if name == "RELU" else ops.tanh(x)
    low, high = CUTTING[name]
    return ops.clip(x, np.asarray(low, x.dtype), np.asarray(high, x.dtype))


def cutting(node: Node) -> str | None:
    """Return the name of the activation that a node is, None for others, and for TANH."""
    if node.op.name == "relu":
        return "RELU"
    limits = [v.data for v in node.inputs[1:] if v is not None and v.data is not None and v.data.size == 1]
    if node.op.name != "clip" or len(limits) != 2:
        return None
    held = tuple(float(a.item()) for a in limits)
    return next((name for name, ends in CUTTING.items() if ends == held), None)
