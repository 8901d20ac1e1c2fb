"""Operands of ONNX nodes that are numbers, where an op is made of others by them when a file is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.errors import UntoldOperand
from renorm.graph.op import OnnxNode


def numbers(node: OnnxNode, position: int, what: str) -> list[Any] | None:
    """Return the elements of an operand, None where it is left out. what: its name, for the error where they are not
    known."""
    given = node.operands[position] if len(node.operands) > position else None
    if given is None:
        return None
    known = given.known if given.known is not None else given.data
    if known is None or any(not isinstance(e, (int, float, np.number)) for e in known.reshape(-1).tolist()):
        raise UntoldOperand(
            f"{node.op_type}: its {what} {given.name!r} is computed when the network runs",
            do="export with a constant one, or give the inputs that it depends on (inputs=)",
            operand=given,
        )
    return known.reshape(-1).tolist()
