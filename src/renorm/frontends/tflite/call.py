"""One operator of a file, as the function sees it that reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.tensors import Array, First, Tensor
from renorm.graph.ir import Graph, Value

Result = Value | First | Sequence[Value | First]
Reader = Callable[["Call"], Result]


@dataclass(frozen=True)
class Call:
    """kind: the name of its code, `CONV_2D`. name: its node's. inputs: None where left out. options: None if it has
    none."""

    graph: Graph
    kind: str
    name: str
    options: Table | None
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]

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
        """An operand in the order of the file."""
        return self.tensor(index).stored()

    def first(self, index: int) -> Value:
        """An operand with channels first."""
        return self.tensor(index).first()

    def array(self, index: int, what: str) -> Array:
        """The elements of an operand that must be constant."""
        value = self.tensor(index).stored()
        if value.data is None:
            raise UnsupportedOp(
                f"{what} {value.name!r} is computed when the network runs", do="fix the shapes when exporting"
            )
        return value.data

    def integers(self, index: int, what: str) -> list[int]:
        """The elements of a constant operand, flat."""
        return [int(i) for i in self.array(index, what).reshape(-1)]

    def bias(self, index: int) -> Value | None:
        return self.stored(index) if self.has(index) else None

    @property
    def activation(self) -> str:
        """The name of the activation that the operator computes of its result."""
        names = None if self.options is None else self.options.schema.names("ActivationFunctionType")
        number = 0 if self.options is None else self.options.fields.get("fused_activation_function", 0)
        return "NONE" if names is None else names.get(number, str(number))

    def activated(self, result: Result) -> Result:
        """The result after the activation that the operator names."""
        kind = self.activation
        if kind == "NONE":
            return result
        if kind not in ACTIVATIONS or not isinstance(result, (Value, First)):
            raise UnsupportedOp(f"activation {kind} is not one renorm computes")
        apply = ACTIVATIONS[kind]
        return First(apply(result.value)) if isinstance(result, First) else apply(result)


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "RELU": lambda x: ops.relu(x),
    "RELU_N1_TO_1": lambda x: clipped(x, -1, 1),
    "RELU_0_TO_1": lambda x: clipped(x, 0, 1),
    "RELU6": lambda x: clipped(x, 0, 6),
    "TANH": lambda x: ops.tanh(x),
}


def clipped(x: Value, low: float, high: float) -> Value:
    return ops.clip(x, np.asarray(low, x.dtype), np.asarray(high, x.dtype))
