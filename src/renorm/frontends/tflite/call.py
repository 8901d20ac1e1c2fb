"""One operator of a file, as the function sees it that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, Sym
from renorm.core.errors import InvalidModel, UnsupportedOp, UntoldOperand
from renorm.frontends.orders import First, View, aligned
from renorm.frontends.tflite import activations, quantized
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.flexbuffer import numbers
from renorm.frontends.tflite.model import options_of
from renorm.frontends.tflite.operator import Operator, Result
from renorm.frontends.tflite.tensors import COMPLEX, Array, Tensor
from renorm.graph import registry
from renorm.graph.deciding import sources
from renorm.graph.interpret import Known
from renorm.graph.ir import Graph, Value
from renorm.graph.op import OnnxNode

if TYPE_CHECKING:
    from renorm.frontends.tflite.scope import Scope

_OPSET = 20  # of ONNX, whose operators some are read as


@dataclass(frozen=True)
class OperatorCall:
    """scope: the reading that it is of. name: its node's. table: what the file says of it. inputs: None where left
    out. zero: the integer that stands for 0, where it reads and makes integers of a quantized tensor."""

    scope: Scope
    operator: Operator
    name: str
    table: Table
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    zero: Array | None = None

    @property
    def graph(self) -> Graph:
        return self.scope.graph

    @property
    def options(self) -> Table | None:
        """Return its options; None if it has none."""
        return options_of(self.table)

    @property
    def kind(self) -> str:
        return self.operator.kind

    def onnx(self, op_type: str, *operands: Any, outs: int = 1, **attributes: Any) -> Any:
        """Return the results of an operator of ONNX, which is read as several ops; the one, if there is one."""
        found = registry.find_onnx(op_type, _OPSET)
        assert found is not None
        names = tuple(f"y{k}" for k in range(outs))
        made = found.from_onnx(OnnxNode(op_type, _OPSET, f"{self.name}.part", operands, names, attributes))
        return made[0] if outs == 1 and isinstance(made, (tuple, list)) else made

    def shape_of(self, extents: Sequence[Dim]) -> Value:
        """Return a shape as an operand."""
        held = np.empty(len(extents), object)
        held[:] = extents
        return self.graph.open_constant(held, f"{self.name}.shape", "int64")

    def allow(self, count: int) -> None:
        """Raise LimitExceeded where a constant of that many elements, which the file does not hold, is too large."""
        self.scope.reader.limits.check(self.name, [("elements", count, self.kind), ("bytes", 8 * count, self.kind)])

    def result_shape(self) -> list[int]:
        """Return the shape that the file states for the first result. Raises UnsupportedOp where it is open."""
        table = self.scope.tables[int(self.table.items("outputs")[0])]
        shape = [int(d) for d in table.items("shape")]
        if min([*shape, *map(int, table.items("shape_signature"))], default=0) < 0:
            raise UnsupportedOp(f"the shape {shape} of its result is open", do="export it with fixed shapes")
        return shape

    def rank(self, index: int) -> int:
        """Return the number of axes that an operand has in the file."""
        tensor = self.tensor(index)
        return tensor.value.rank - (tensor.dtype == COMPLEX)

    def op(self, *operands: Any, **attributes: Any) -> Any:
        """Apply the op that means the same."""
        return getattr(ops, self.operator.op)(*operands, **attributes)

    def custom(self) -> Mapping[str, float]:
        """Return the numbers that a custom operator states for its options."""
        held = self.table["custom_options"]
        return numbers(b"" if held is None else bytes(held))

    def option(self, name: str, default: Any = None) -> Any:
        return default if self.options is None else self.options[name]

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise InvalidModel(f"{self.kind} has no input {index}")
        if found.is_made:
            return found
        made = Tensor(self.graph, found.name)  # of a variable as it is now
        assert found.variable is not None
        made.make(self.scope.reader.read_variable(found.variable))
        return made

    def stored(self, index: int) -> Value:
        """Return an operand in the order of the file."""
        return self.tensor(index).stored()

    def first(self, index: int) -> Value:
        """Return an operand with channels first."""
        return self.tensor(index).first()

    def weight(self, index: int, perm: tuple[int, ...]) -> Value:
        """Return an operand with its axes in another order, transposed now where it is constant: dequantized integers
        beside data that are dequantized as well."""
        value, tensor = self.stored(index), self.inputs[index]
        is_same = perm == tuple(range(value.rank))
        if value.data is None:
            return value if is_same else quantized.moved(value, lambda v: ops.transpose(v, perm=perm))
        assert tensor is not None
        others = [t.value for i, t in enumerate(self.inputs) if i != index and t is not None and t.is_made]
        if tensor.scale is not None and tensor.integers is not None and any(quantized.is_of_bytes(v) for v in others):
            turned = np.ascontiguousarray(tensor.integers.transpose(perm))
            whole = self.graph.constant(turned, value.name, value.source)
            return quantized.real(whole, tensor.scale, perm.index(tensor.scale.axis))
        if is_same:
            return value
        return self.graph.constant(np.ascontiguousarray(value.data.transpose(perm)), value.name, value.source)

    def aligned(self, *indices: int) -> View:
        """Return operands (all, where none is named) in one order."""
        return aligned([self.tensor(i) for i in indices or range(len(self.inputs))])

    def known(self, index: int, what: str) -> Array:
        """Return the elements of an operand that are known before the network runs, among them extents that are open.
        Raises UntoldOperand."""
        value = self.stored(index)
        found = known(value)
        if found is None:
            raise UntoldOperand(
                f"{what} {value.name!r} is computed when the network runs",
                do="give the shapes (shapes=) or inputs (inputs=) that it depends on, or fix the shapes when exporting",
                operand=value,
            )
        self.scope.reader.decided_by(value)
        return found

    def array(self, index: int, what: str) -> Array:
        """Return the elements of an operand that must be known. Raises UntoldOperand."""
        found = self.known(index, what)
        if found.dtype != object:
            return found
        if unknown := [e for e in found.flat if isinstance(e, Sym)]:
            raise UntoldOperand(
                f"{what} {self.stored(index).name!r} has extents that are not known",
                do="give shapes",
                operand=unknown[0],
            )
        return found.astype(self.stored(index).dtype)

    def integers(self, index: int, what: str) -> list[int]:
        """Return the elements of an operand that must be known, flat."""
        return [int(i) for i in self.array(index, what).reshape(-1)]

    def extents(self, index: int, what: str) -> list[Dim]:
        """Return the elements of an operand that is a shape, flat."""
        return [d if isinstance(d, Sym) else int(d) for d in self.known(index, what).reshape(-1)]

    def operands(self) -> list[Tensor]:
        """Return all operands, none of which may be left out."""
        found = [t for t in self.inputs if t is not None]
        if len(found) < len(self.inputs):
            raise InvalidModel(f"{self.kind}: an operand is left out")
        return found

    def number(self, option: str) -> int:
        """Return an option that must be there, as the number of a subgraph."""
        if self.options is None:
            raise InvalidModel(f"{self.kind} has no options")
        return int(self.options[option])

    def inlined(self, index: int, given: Sequence[Tensor], place: str = "") -> list[Tensor]:
        """Return the results of a subgraph that is read with these tensors for its inputs."""
        return self.scope.inlined(index, given, self.name + place)

    def bias(self, index: int) -> Value | None:
        return self.stored(index) if self.has(index) else None

    def state(self, index: int, shape: Sequence[Dim]) -> Value | None:
        """Return the state that an operand holds before this operator; None for zeros. A variable of another shape than
        this one, as the batch is another one, begins with zeros in each run."""
        tensor = self.inputs[index] if self.has(index) else None
        if tensor is None or tensor.is_made:
            given = None if tensor is None else tensor.stored()
            return None if given is None or (given.data is not None and not given.data.any()) else given
        assert tensor.variable is not None
        is_held = tensor.variable.shape == tuple(shape)
        value = self.scope.reader.read_variable(tensor.variable, is_held)
        return value if is_held else None

    def becomes(self, index: int, value: Value) -> None:
        """Note what the state becomes that an operand holds."""
        tensor = self.inputs[index] if self.has(index) else None
        if tensor is None or tensor.variable is None or tensor.variable.first is None:
            return
        if tensor.scale is not None:
            value = quantized.rounded(value, tensor.scale, tensor.dtype, tensor.scale.axis)
        tensor.variable.now = value

    @property
    def activation(self) -> str:
        """Return the name of the activation that the operator computes of its result."""
        if self.options is None:
            return "NONE"
        number = self.options.fields.get("fused_activation_function", 0)
        return self.options.schema.names("ActivationFunctionType").get(number, str(number))

    @property
    def is_activated(self) -> bool:
        """Return whether the operator computes an activation of its result: one beyond which integers of a quantized
        tensor stand for no numbers changes nothing."""
        out, ends = self.outputs[0] if self.outputs else None, activations.CUTTING.get(self.activation)
        if self.activation == "NONE" or self.operator.has_cell:
            return False
        return out is None or out.scale is None or ends is None or quantized.is_cut(ends, out.scale, out.dtype)

    def activated(self, result: Result) -> Result:
        """Return the result after the activation that the operator names."""
        kind = self.activation
        if not self.is_activated:
            return result
        if kind not in activations.NAMES or not isinstance(result, (Value, First)):
            raise UnsupportedOp(f"activation {kind} is not one renorm computes")
        if isinstance(result, First):
            return First(activations.apply(kind, result.value))
        return activations.apply(kind, result)


def known(value: Value) -> Array | None:
    """Return the elements of a value as far as they are known before the network runs, objects where extents are among
    them; None where nothing is known."""
    if (told := value.told) is not None:
        return told
    if value.known is None and sources(value.graph, value) == set():  # computed of constants
        return Known(lambda v: v.told)(value)
    return value.known


def long(value: Value) -> Value:
    """Return indices in the integers that ops take."""
    if value.data is not None:
        return value.graph.constant(value.data.astype(np.int64), value.name, value.source)
    return value if value.dtype == "int64" else ops.cast(value, to="int64")
