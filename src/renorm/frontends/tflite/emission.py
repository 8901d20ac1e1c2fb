"""One node of a graph, as the function sees it that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.errors import UnsupportedOp
from renorm.frontends.tflite.subgraph import Subgraph
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Node, Value


@dataclass(frozen=True)
class Emission:
    """kind: of the operator that means the same, "" where there is none. result: what it is to make, that of the
    activation where `activation` names one."""

    subgraph: Subgraph
    kind: str
    node: Node
    result: Value
    activation: str = "NONE"

    def operand(self, index: int) -> Value:
        found = self.node.inputs[index]
        assert found is not None
        return found

    def optional(self, index: int) -> Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def attribute(self, name: str) -> Any:
        return self.node.op.values[name]

    def data(self, index: int, what: str) -> Array:
        """Return the elements of an operand that must be constant."""
        value = self.operand(index)
        if value.data is None:
            raise UnsupportedOp(f"{what} {value.name!r} is not a constant")
        return value.data

    def number(self, enum: str, name: str) -> int:
        return self.subgraph.schema.enums[enum][name]

    def operator(
        self, inputs: Sequence[int | None], is_last: bool = False, *, kind: str = "", version: int = 1, **fields: Any
    ) -> None:
        """Add the operator that makes the result: as it is in the graph, or with channels last. fields: of its options
        beside the activation."""
        made = self.subgraph.make(self.result, is_last)
        self.subgraph.operator(kind or self.kind, inputs, [made], version, self.activation, **fields)

    def reshaped(self, tensor: int) -> None:
        """Make the result of the elements of a tensor."""
        self.operator([tensor, self.subgraph.shape(self.result)], kind="RESHAPE")

    def aligned(self, *values: Value) -> tuple[list[int], bool]:
        """Operands that broadcast against each other (all, where none is named) in one order, and whether that has
        channels last."""
        held = values or tuple(v for v in self.node.inputs if v is not None)
        rank = max(v.rank for v in held)
        whole = all(v.rank in (0, rank) or v.data is not None for v in held)
        if rank <= 2 or not whole or not any(self.subgraph.is_last(v) for v in held):
            return [self.subgraph.plain(v) for v in held], False
        return [self._last(v, rank) for v in held], True

    def _last(self, v: Value, rank: int) -> int:
        if v.rank == rank:
            return self.subgraph.last(v)
        if v.data is None or v.rank == 0:
            return self.subgraph.plain(v)
        spread = v.data.reshape([1] * (rank - v.rank) + list(v.data.shape))
        return self.subgraph.constant(np.moveaxis(spread, 1, -1), v.name)

    def place(self, axis: int, rank: int, is_last: bool) -> int:
        """Return where an axis of the graph is in the file."""
        if not is_last or axis == 0 or rank <= 2:
            return axis
        return rank - 1 if axis == 1 else axis - 1
