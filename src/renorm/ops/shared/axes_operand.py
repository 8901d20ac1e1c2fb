"""Axes that ONNX wrote as an attribute, and from some opset on as an operand; here they are an attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.graph.op import OnnxNode
from renorm.ops.shared.told import numbers


def read(node: OnnxNode, position: int = 1) -> list[int] | None:
    """The axes of a node in either form; None where neither is there. An operand must be known at compile time."""
    if len(node.operands) <= position or node.operands[position] is None:
        return node.attribute("axes")
    return [int(a) for a in numbers(node, position, "axes") or ()]


def write(op_type: str, node: Any, axes: Sequence[int] | None, opset: int, since: int = 13, **attributes: Any) -> Any:
    """Return the `OpDef.to_onnx` of a node whose axes (counted from the front) are an operand since an opset."""
    if axes is None:
        return op_type, attributes, [node.operands[0]]
    if opset < since:
        return op_type, {"axes": list(axes), **attributes}, [node.operands[0]]
    return op_type, attributes, [node.operands[0], np.asarray(axes, np.int64)]
