"""One operator of a file, as the function sees it that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.orders import First, View, aligned
from renorm.frontends.tflite import activations
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.operator import Operator, Result
from renorm.frontends.tflite.tensors import Array, Tensor
from renorm.graph.ir import Graph, Value


@dataclass(frozen=True)
class OperatorCall:
    """name: its node's. inputs: None where left out. options: None if it has none."""

    graph: Graph
    operator: Operator
    name: str
    options: Table | None
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]

    @property
    def kind(self) -> str:
        return self.operator.kind

    def op(self, *operands: Any, **attributes: Any) -> Any:
        """Apply the op that means the same."""
        return getattr(ops, self.operator.op)(*operands, **attributes)

    def option(self, name: str, default: Any = None) -> Any:
        return default if self.options is None else self.options[name]

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise InvalidModel(f"{self.kind} has no input {index}")
        return found

    def stored(self, index: int) -> Value:
        """Return an operand in the order of the file."""
        return self.tensor(index).stored()

    def first(self, index: int) -> Value:
        """Return an operand with channels first."""
        return self.tensor(index).first()

    def aligned(self, *indices: int) -> View:
        """Return operands (all, where none is named) in one order."""
        return aligned([self.tensor(i) for i in indices or range(len(self.inputs))])

    def array(self, index: int, what: str) -> Array:
        """Return the elements of an operand that must be constant."""
        value = self.tensor(index).stored()
        if value.data is None:
            raise UnsupportedOp(
                f"{what} {value.name!r} is computed when the network runs", do="fix the shapes when exporting"
            )
        return value.data

    def integers(self, index: int, what: str) -> list[int]:
        """Return the elements of a constant operand, flat."""
        return [int(i) for i in self.array(index, what).reshape(-1)]

    def bias(self, index: int) -> Value | None:
        return self.stored(index) if self.has(index) else None

    @property
    def activation(self) -> str:
        """Return the name of the activation that the operator computes of its result."""
        if self.options is None:
            return "NONE"
        number = self.options.fields.get("fused_activation_function", 0)
        return self.options.schema.names("ActivationFunctionType").get(number, str(number))

    def activated(self, result: Result) -> Result:
        """Return the result after the activation that the operator names."""
        kind = self.activation
        if kind == "NONE" or self.operator.has_cell:
            return result
        if kind not in activations.NAMES or not isinstance(result, (Value, First)):
            raise UnsupportedOp(f"activation {kind} is not one renorm computes")
        if isinstance(result, First):
            return First(activations.apply(kind, result.value))
        return activations.apply(kind, result)
