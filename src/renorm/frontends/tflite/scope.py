"""One reading of a subgraph: its tensors as values of the graph, its operators as nodes.

A subgraph that others call is read wherever it is called, with the tensors that it is given there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from renorm.core import dtypes
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp, UntoldOperand, raised_at
from renorm.frontends.orders import First, to_first
from renorm.frontends.problems import Problem
from renorm.frontends.tflite import quantized
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.model import Section
from renorm.frontends.tflite.operators import READ
from renorm.frontends.tflite.operators.control import DECIDED
from renorm.frontends.tflite.stored import elements
from renorm.frontends.tflite.tensors import COMPLEX, DTYPES, INNER, Tensor, scale_of
from renorm.graph.ir import Node, Value
from renorm.ops.shared.quantization import BYTES

if TYPE_CHECKING:
    from renorm.frontends.tflite.reader import Reader


class Noted(RenormError):
    """A subgraph could not be read: its problems are noted already."""


class Scope:
    """place: what stands before names of nodes and tensors; "" for the model itself. depth: subgraphs around it."""

    def __init__(self, reader: Reader, section: Section, place: str = "", depth: int = 0):
        self.reader, self.section, self.place, self.depth = reader, section, place, depth
        self.graph, self.label = reader.graph, reader.model.label
        self.unread = set[int]()  # tensors whose operators could not be read
        self.tables = section.tensors
        self.tensors = [Tensor(self.graph, place + name) for name in section.names]

    def read(self) -> None:
        for number, operator in enumerate(self.section.operators):
            if not self.depth:
                self.reader.top = number
            self._operator(number, operator)

    def inlined(self, index: int, given: Sequence[Tensor], place: str) -> list[Tensor]:
        """Return the results of a subgraph with these tensors for its inputs. place: of its names. Raises Noted."""
        section, reader = self.reader.model.section(index), self.reader
        reader.expand(len(section.operators) + 1, self.depth + 1, place)
        inner = Scope(reader, section, f"{place}/", self.depth + 1)
        inputs, outputs = (inner.places(section.table[side], f"{side} of subgraph {index}") for side in _ENDS)
        if len(inputs) != len(given):
            raise InvalidModel(f"subgraph {index} has {len(inputs)} inputs, and is given {len(given)}")
        for i, tensor in zip(inputs, given):
            inner.tensors[i] = tensor
        inner.read()
        if not inner.unread.isdisjoint(outputs):
            raise Noted(f"subgraph {index}")
        return [inner.operand(i) for i in outputs]

    # --- tensors ------------------------------------------------------------------------------------------------------

    def places(self, indices: Any, what: str) -> list[int]:
        found = [] if indices is None else [int(i) for i in indices]
        wrong = [i for i in found if not 0 <= i < len(self.tensors)]
        if wrong:
            raise InvalidModel(f"{self.label}: {what}: there is no tensor {wrong[0]} among {len(self.tensors)}")
        return found

    def operand(self, i: int) -> Tensor:
        """Return a tensor that an operator reads: made before, a constant, or a variable."""
        tensor, table = self.tensors[i], self.tables[i]
        if tensor.is_made or tensor.variable is not None:
            return tensor
        what = self.section.called(i)
        held = elements(self.section, i, self.reader.limits)
        if held is None and table["is_variable"]:
            shape = tuple(int(d) for d in table.items("shape"))
            tensor.dtype = self.dtype(i)
            tensor.scale = scale_of(table, tensor.dtype, what)
            tensor.variable = self.reader.variable((id(self.section), i), tensor.name, what, shape, True)
            return tensor
        if held is None:
            raise InvalidModel(f"{self.label}: {what} is read, but nothing before makes it")
        array, scale = held
        if scale is not None:
            tensor.integers, tensor.scale, array = array, scale, scale.real(array)
        tensor.make(self.graph.constant(array, tensor.name, f"buffer {table['buffer']}", exact=not self.place))
        return tensor

    def dtype(self, i: int, is_inner: bool = False) -> str:
        """Return the dtype of a tensor. is_inner: it may be one that only operators see."""
        number = self.tables[i]["type"]
        name = self.reader.types.get(number, "")
        if is_inner and name in INNER:
            return INNER[name]
        if name not in DTYPES:
            raise UnsupportedOp(f"{self.label}: {self.section.called(i)} is of type {name or number}")
        return DTYPES[name]

    # --- operators ----------------------------------------------------------------------------------------------------

    def _operator(self, number: int, operator: Table) -> None:
        kind, name, outputs = "operator", f"{self.place}operator_{number}", list[int]()
        try:
            kind = self.reader.model.kind(operator)
            before, number = self.section.marks[number]
            name = f"{self.place}{before}{kind}_{number}"
            outputs = self.places(operator["outputs"], f"outputs of {name}")
            given = [int(i) for i in operator.items("inputs")]
            self.places([i for i in given if i >= 0], f"inputs of {name}")
            for i in outputs:
                if self.tensors[i].is_made:
                    raise InvalidModel(f"it makes {self.section.called(i)}, which exists already")
            if kind not in READ:
                raise UnsupportedOp(f"renorm does not read {kind}", do="export the model without it")
            if self.unread.isdisjoint(given):
                self._apply(OperatorCall(self, READ[kind], name, operator, *self._tensors(kind, given, outputs)))
                return
        except Noted:
            pass
        except RenormError as error:
            if isinstance(error, UntoldOperand) and kind in DECIDED:
                self.reader.hosted[len(self.reader.problems)] = self.reader.top
            self.reader.problems.append(Problem(error, name, kind=kind))
        self.unread.update(outputs)

    def _tensors(
        self, kind: str, given: Sequence[int], outputs: Sequence[int]
    ) -> tuple[list[Tensor | None], list[Tensor]]:
        for i in outputs:
            self.tensors[i].dtype = dtype = self.dtype(i, is_inner=True)
            self.tensors[i].scale = scale_of(self.tables[i], dtype, self.section.called(i))
        operands = [None if i < 0 else self.operand(i) for i in given]
        if not READ[kind].is_complex and any(t is not None and t.dtype == COMPLEX for t in operands):
            raise UnsupportedOp(f"{kind} of complex numbers is not read", do="export real and imaginary parts")
        return operands, [self.tensors[i] for i in outputs]

    def _apply(self, call: OperatorCall) -> None:
        read, before = call.operator.read, len(self.graph.nodes)
        assert read is not None
        try:
            call = _of_integers(call) or call
            result = call.activated(read(call))
            results = [*result] if isinstance(result, Sequence) else [result]
            if len(results) < len(call.outputs):
                raise InvalidModel(f"it has {len(call.outputs)} outputs, {call.kind} has {len(results)}")
            results = [_held(tensor, made) for tensor, made in zip(call.outputs, results)]
        except RenormError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, ArithmeticError) as error:  # a file that promises more
            raise InvalidModel(f"its operands or options do not fit: {error}", [raised_at(error)]) from error
        made_here = self.graph.nodes[before:]
        owned = {v for n in made_here for v in n.outputs}
        for tensor, made in zip(call.outputs, results):
            value = made.value if isinstance(made, First) or (isinstance(made, Tensor) and made.is_made) else made
            if value in owned and value.name != tensor.name:
                self.graph.rename(value, tensor.name, exact=not self.place)
            tensor.make(made)
        new = self.graph.nodes[max(before, self.reader.named) :]
        self.reader.named = len(self.graph.nodes)
        for node in new:
            node.origin = (call.name,)
        if new and len(new) == len(made_here):
            self.graph.rename_node(_principal(new), call.name)


def _of_integers(call: OperatorCall) -> OperatorCall | None:
    """Return an operator with integers for its operands, where its results are elements of operands of their scale."""
    picks = call.operator.picks
    read = [*range(len(call.inputs))] if picks is None else [i for i in picks if i < len(call.inputs)]
    out = call.outputs[0] if call.outputs else None
    if not read or out is None or out.scale is None or out.dtype not in BYTES or call.is_activated:
        return None
    if not all(t.scale is None or (t.scale.is_like(out.scale) and t.dtype == out.dtype) for t in call.outputs):
        return None
    inputs = [*call.inputs]
    for i in read:
        tensor = inputs[i]
        inputs[i] = None if tensor is None or not tensor.is_made else tensor.counted(out.scale, out.dtype)
        if inputs[i] is None:
            return None
    return replace(call, inputs=inputs, zero=quantized.parameters(out.scale, out.dtype)[1])


def _held(tensor: Tensor, made: Value | First | Tensor) -> Value | First | Tensor:
    """Return a result as its tensor holds it: rounded to its integers."""
    scale = tensor.scale
    if isinstance(made, Tensor) or scale is None:  # of a subgraph, where that was done
        return made
    value, is_first = (made.value, True) if isinstance(made, First) else (made, False)
    axis = to_first(value.rank).index(scale.axis) if is_first and value.rank else scale.axis
    if value.dtype == tensor.dtype:
        value = quantized.real(value, scale, axis)
    elif dtypes.is_float(value.dtype) and not value.is_constant:
        value = quantized.rounded(value, scale, tensor.dtype, axis)
    return First(value) if is_first else value


_ENDS = ("inputs", "outputs")


def _principal(nodes: Sequence[Node]) -> Node:
    """Return the node that bears the operator's name: the first that is more than a change of order, or of what stands
    for numbers."""
    computing = [n for n in nodes if n.op.name not in ("quantize_linear", "dequantize_linear")] or nodes
    return next((n for n in computing if n.op.name not in ("transpose", "reshape")), computing[-1])
