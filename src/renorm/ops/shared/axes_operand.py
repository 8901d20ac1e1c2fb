"""Axes that ONNX wrote as an attribute, and from some opset on as an operand; here they are an attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core.errors import UntoldOperand
from renorm.graph.op import OnnxNode


def read(node: OnnxNode, position: int = 1) -> list[int] | None:
    """The axes of a node in either form; None where neither is there. An operand must be known at compile time."""
    given = node.operands[position] if len(node.operands) > position else None
    if given is None:
        return node.attribute("axes")
    known = given.known if given.known is not None else given.data
    if known is None or any(not isinstance(a, (int, np.integer)) for a in known.reshape(-1).tolist()):
        raise UntoldOperand(
            f"{node.op_type}: its axes {given.name!r} are computed when the network runs",
            do="export with constant axes, or give the inputs that they depend on (inputs=)",
            operand=given,
        )
    return [int(a) for a in known.reshape(-1)]


def write(op_type: str, node: Any, axes: Sequence[int] | None, opset: int, since: int = 13, **attributes: Any) -> Any:
    """Return the `OpDef.to_onnx` of a node whose axes (counted from the front) are an operand since an opset."""
    if axes is None:
        return op_type, attributes, [node.operands[0]]
    if opset < since:
        return op_type, {"axes": list(axes), **attributes}, [node.operands[0]]
    return op_type, attributes, [node.operands[0], np.asarray(axes, np.int64)]
