"""Composites: what files call one op, and is read as several that renorm has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from renorm.core.errors import OperandError
from renorm.graph import registry
from renorm.graph.op import OnnxNode, OpDef
from renorm.ops.shared import builders

NEWEST = 22  # the opset in whose terms composites state parts of theirs


class Composite(OpDef):
    """Base of them. A subclass states attributes, which op types of files it is, and `made`. takes: the names of its
    operands; one with ? may be left out."""

    takes: ClassVar[str]

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        """Return the results, in order; operands are Values, those left out None."""
        raise NotImplementedError(f"{self.name} has no made")

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        names = cls.takes.split(", ")
        given = [*node.operands, *[None] * (len(names) - len(node.operands))]
        beyond = sum(x is not None for x in given[len(names) :])
        if beyond:
            raise OperandError(f"{node.op_type} takes {len(names)} operands, not {len(names) + beyond}")
        missing = [name for name, x in zip(names, given) if x is None and not name.endswith("?")]
        if missing:
            raise OperandError(f"{node.op_type}: operand {', '.join(missing)} is missing")
        return cls(**cls.stated(node)).made(node, *given[: len(names)])


def apply(name: str, *operands: Any, **attributes: Any) -> Any:
    """Return the results of an op by its name here."""
    return builders.find(name)(*operands, **attributes)


def read_as(node: OnnxNode, op_type: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the first result of an ONNX op, of which a node states a part."""
    op = registry.find_onnx(op_type, NEWEST)
    assert op is not None
    part = replace(
        node, op_type=op_type, opset=NEWEST, operands=tuple(operands), outputs=("y",), attributes=dict(attributes)
    )
    made = op.from_onnx(part)
    return made[0] if isinstance(made, (tuple, list)) else made
