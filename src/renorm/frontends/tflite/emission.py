"""One node of a graph, as the function sees it that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from renorm.core.errors import UnsupportedOp
from renorm.frontends.tflite.counted import Weight, bias_of, weight_of
from renorm.frontends.tflite.quantized import held
from renorm.frontends.tflite.subgraph import Subgraph
from renorm.frontends.tflite.tensors import Array
from renorm.graph.ir import Node, Value

# since which operators are of integers of 8 bits, 2 for others
_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "HARD_SWISH": 1}


@dataclass(frozen=True)
class Emission:
    """kind: of the operator that means the same, "" where there is none. result: what it is to make, that of the
    activation where `activation` names one. counts: it reads and makes integers of quantized tensors (`counted`)."""

    subgraph: Subgraph
    kind: str
    node: Node
    result: Value
    activation: str = "NONE"
    counts: bool = False

    @property
    def inputs(self) -> Sequence[Value | None]:
        if not self.counts:
            return self.node.inputs
        whole = [None if v is None else held(v) for v in self.node.inputs]
        return [v if q is None or q.is_constant else q for v, q in zip(self.node.inputs, whole)]

    def operand(self, index: int) -> Value:
        found = self.inputs[index]
        assert found is not None
        return found

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def weight(self, index: int, perm: Sequence[int]) -> int:
        """Return the tensor of a constant weight with its axes in another order, of integers beside integers."""
        value = self.operand(index)
        if not self.counts:
            return self.subgraph.constant(self.data(index, "its weight").transpose(perm), value.name)
        weight = weight_of(value)
        assert weight is not None
        turned = replace(weight, data=weight.data.transpose(perm), axis=perm.index(weight.axis))
        return self._integers(turned, value.name)

    def bias(self, index: int, count: int) -> int:
        """Return the tensor of a constant bias, zeros where it is left out: its steps beside integers."""
        value, weight, name = self.optional(index), weight_of(self.node.inputs[1]), f"{self.node.name}.bias"
        if self.counts and weight is not None:
            step = np.float32(self.subgraph.quantization[self.operand(0)]["scale"][0])
            return self._integers(bias_of(value, np.broadcast_to(step * weight.scale, (count,))), name)
        if value is None:
            return self.subgraph.constant(np.zeros(count, self.operand(0).dtype), name)
        return self.subgraph.plain(value)

    def _integers(self, held: Weight, name: str) -> int:
        axis = held.axis if held.scale.size > 1 else 0
        said = {"scale": held.scale.astype(np.float32), "zero_point": held.zero, "quantized_dimension": axis}
        return self.subgraph.constant(held.data, name, said=self.subgraph.table("QuantizationParameters", **said))

    def attribute(self, name: str) -> Any:
        return self.node.op.values[name]

    def data(self, index: int, what: str) -> Array:
        """Return the elements of an operand that must be constant."""
        value = self.operand(index)
        found = self.subgraph.elements(value)
        if found is None:
            raise UnsupportedOp(f"{what} {value.name!r} is not a constant")
        return found

    def number(self, enum: str, name: str) -> int:
        return self.subgraph.schema.enums[enum][name]

    def operator(
        self, inputs: Sequence[int | None], is_last: bool = False, *, kind: str = "", version: int = 1, **fields: Any
    ) -> None:
        """Add the operator that makes the result: as it is in the graph, or with channels last. fields: of its options
        beside the activation."""
        made = self.subgraph.make(self.result, is_last)
        version = max(version, _VERSIONS.get(kind or self.kind, 2)) if self.counts else version
        self.subgraph.operator(kind or self.kind, inputs, [made], version, self.activation, **fields)

    def reshaped(self, tensor: int) -> None:
        """Make the result of the elements of a tensor."""
        self.operator([tensor, self.subgraph.shape(self.result)], kind="RESHAPE")

    def aligned(self, *values: Value) -> tuple[list[int], bool]:
        """Operands that broadcast against each other (all, where none is named) in one order, and whether that has
        channels last."""
        held = values or tuple(v for v in self.inputs if v is not None)
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
