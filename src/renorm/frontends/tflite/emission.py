"""One node of a graph, as the function sees it that writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.errors import UnsupportedOp
from renorm.frontends.tflite.form import Form
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Node, Value

Inputs = Sequence[int | None]
Writer = Callable[["Emission"], None]


@dataclass(frozen=True)
class Emission:
    """result: what the operator is to make, that of the activation where `activation` names one."""

    form: Form
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
        """The elements of an operand that must be constant."""
        value = self.operand(index)
        if value.data is None:
            raise UnsupportedOp(f"{what} {value.name!r} is not a constant")
        return value.data

    @property
    def fused(self) -> int:
        """The number of the activation."""
        return self.form.schema.enums["ActivationFunctionType"][self.activation]

    def plain(self, kind: str, inputs: Inputs, options: str = "", version: int = 1, **fields: Any) -> None:
        """Makes the result as it is in the graph."""
        self.form.operator(kind, inputs, [self.form.make(self.result)], options, version, **fields)

    def last(self, kind: str, inputs: Inputs, options: str = "", version: int = 1, **fields: Any) -> None:
        """Makes the result with channels last."""
        self.form.operator(kind, inputs, [self.form.make(self.result, True)], options, version, **fields)

    def either(
        self, is_last: bool, kind: str, inputs: Inputs, options: str = "", version: int = 1, **fields: Any
    ) -> None:
        (self.last if is_last else self.plain)(kind, inputs, options, version, **fields)

    def aligned(self, values: Sequence[Value]) -> tuple[list[int], bool]:
        """Operands that broadcast against each other in one order, and whether that has channels last."""
        rank = max(v.rank for v in values)
        whole = all(v.rank in (0, rank) or v.data is not None for v in values)
        if rank <= 2 or not whole or not any(self.form.is_last(v) for v in values):
            return [self.form.plain(v) for v in values], False
        return [self._last(v, rank) for v in values], True

    def _last(self, v: Value, rank: int) -> int:
        if v.rank == rank:
            return self.form.last(v)
        if v.data is None or v.rank == 0:
            return self.form.plain(v)
        spread = v.data.reshape([1] * (rank - v.rank) + list(v.data.shape))
        return self.form.constant(np.moveaxis(spread, 1, -1), v.name)

    def place(self, axis: int, rank: int, is_last: bool) -> int:
        """Return where an axis of the graph is in the file."""
        if not is_last or axis == 0 or rank <= 2:
            return axis
        return rank - 1 if axis == 1 else axis - 1
