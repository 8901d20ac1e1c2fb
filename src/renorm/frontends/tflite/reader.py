"""TensorFlow Lite and Circle to Graph.

Values have the names of tensors; a node is called by its operator and its place in the file: `CONV_2D_3`. Whatever
cannot be read is collected, so that one error names all of it.

Quantized networks are read as arithmetic over the real numbers that their integers stand for: constants are
dequantized, what is between operators is cut to the range of its integers and not rounded to them, and inputs and
outputs keep the integers of the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Dim, Sym
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp, raised_at
from renorm.core.limits import DEFAULT, Limits
from renorm.frontends.diagnosis import ASSUMPTIONS, diagnose
from renorm.frontends.files import called, content
from renorm.frontends.orders import First, to_first
from renorm.frontends.problems import Problem, together
from renorm.frontends.tflite import ranges
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.model import KEY, Model
from renorm.frontends.tflite.operators import READ
from renorm.frontends.tflite.tensors import DTYPES, Array, Scale, Tensor, scale_of
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.identity import Identity


def read(source: Any, *, is_mapped: bool = False, limits: Limits = DEFAULT) -> Graph:
    """Return the graph of a .tflite or .circle file: a path or bytes. See `renorm.frontends.read`."""
    model = load(source, limits, is_mapped)
    graph = _Reader(model).read()
    diagnose(graph)
    return graph


def load(source: Any, limits: Limits, is_mapped: bool = False) -> Model:
    """Return what a path or bytes hold. Raises InvalidModel, LimitExceeded."""
    is_path = isinstance(source, (str, os.PathLike))
    held = memoryview(content(source, limits, is_mapped) if is_path else source).cast("B")
    model = Model(held, called(source, "bytes"))
    limits.check(model.label, [("nodes", len(model.operators), "")])
    return model


class _Reader:
    def __init__(self, model: Model):
        self.model, self.label = model, model.label
        self.graph = Graph(model.main["name"] or os.path.splitext(model.label)[0] or "main")
        self.graph.metadata[KEY] = model
        self.types = model.schema.names("TensorType")
        self.problems = list[Problem]()
        self.unread = set[int]()  # tensors whose operators could not be read
        self.tables = model.tensors
        self.tensors = [Tensor(self.graph, name) for name in model.names]
        self.graph.reserve(model.names)

    def read(self) -> Graph:
        for i in self._ends("inputs"):
            try:
                self._input(i)
            except RenormError as error:
                self._fault(error)
                self.unread.update({i} if not self.tensors[i].is_made else ())
        for place, operator in enumerate(self.model.operators):
            self._operator(place, operator)
        for i in self._ends("outputs"):
            try:
                if i not in self.unread:
                    self.graph.outputs.append(self._output(i))
            except RenormError as error:
                self._fault(error)
        if self.problems:  # what renorm does not define first
            self.problems.sort(key=lambda p: not isinstance(p.error, UnsupportedOp))
            raise together(self.problems, self.label)
        for tensor in self.tensors:
            self.model.forms.update((v.name, (tensor.name, is_first)) for v, is_first in tensor.forms())
        self.graph.discard_constants()  # weights are held in the graph's order only
        return self.graph

    def _fault(self, error: RenormError) -> None:
        """Note what is wrong with no operator."""
        self.problems.append(Problem(error))

    def _ends(self, side: str) -> list[int]:
        """Places of the model's inputs, or outputs; those that there are not are noted."""
        try:
            return self._places(self.model.main[side], f"{side} of the model")
        except RenormError as error:
            self._fault(error)
            return []

    # --- tensors ------------------------------------------------------------------------------------------------------

    def _places(self, indices: Any, what: str) -> list[int]:
        found = [] if indices is None else [int(i) for i in indices]
        wrong = [i for i in found if not 0 <= i < len(self.tensors)]
        if wrong:
            raise InvalidModel(f"{self.label}: {what}: there is no tensor {wrong[0]} among {len(self.tensors)}")
        return found

    def _input(self, i: int) -> None:
        tensor, table = self.tensors[i], self.tables[i]
        if tensor.is_made:
            raise InvalidModel(f"{self.label}: input {tensor.name!r} is listed twice")
        dtype = self._dtype(i)
        value = self.graph.input(tensor.name, dtype, self._shape(table, tensor.name))
        tensor.scale = scale_of(table, dtype, self.model.called(i))
        if tensor.scale is not None:
            tensor.range = ranges.of_integers(tensor.scale, dtype)
            scale, zero = tensor.scale.spread(value.rank)
            real = ops.cast(value, to="float32")
            value = ops.mul(ops.sub(real, zero.astype(np.float32)), scale.astype(np.float32))
        tensor.make(value)

    def _output(self, i: int) -> Value:
        tensor = self.tensors[i]
        value = self._operand(i).stored()
        scale = scale_of(self.tables[i], self._dtype(i), self.model.called(i))
        if scale is not None and value.producer is not None:
            real, value = value, self._quantized(value, scale, self._dtype(i))
            if real.name == tensor.name:
                self.graph.swap_names(real, value)
        if value.name == tensor.name:
            return value
        return self.graph.apply(Identity(), [value], name=f"Identity_{tensor.name}", outputs=[tensor.name])

    def _quantized(self, value: Value, scale: Scale, dtype: str) -> Value:
        """Return the integers of a result: to the nearest, those beyond the range cut."""
        steps, zero = (a.astype(np.float32) for a in scale.spread(value.rank))
        limits = np.iinfo(dtypes.numpy_dtype(dtype))
        rounded = ops.add(ops.round(ops.div(value, steps)), zero)
        low, high = np.asarray(limits.min, np.float32), np.asarray(limits.max, np.float32)
        return ops.cast(ops.clip(rounded, low, high), to=dtype)

    def _operand(self, i: int) -> Tensor:
        """Return a tensor that an operator reads: made before, or constant."""
        tensor = self.tensors[i]
        if not tensor.is_made:
            array = self._constant(i)
            if array is None and self.tables[i]["is_variable"]:
                array = self._started(i)
            if array is None:
                raise InvalidModel(f"{self.label}: {self.model.called(i)} is read, but nothing before makes it")
            place = self.tables[i]["buffer"]
            tensor.make(self.graph.constant(array, tensor.name, f"buffer {place}", exact=True))
        return tensor

    def _constant(self, i: int) -> Array | None:
        """Return the elements of a tensor that has a buffer, dequantized; None for one without."""
        table, raw = self.tables[i], self.model.elements(i)
        if raw is None:
            return None
        shape = [int(d) for d in table.items("shape")]
        if table["sparsity"] is not None:
            raise UnsupportedOp(f"{self.model.called(i)} is sparse", do="export it with dense weights")
        dtype = self._dtype(i)
        count = int(np.prod(shape, dtype=object))
        if min(shape, default=0) < 0 or raw.nbytes != count * dtypes.itemsize(dtype):
            raise InvalidModel(
                f"{self.label}: {self.model.called(i)} is {dtype}{shape}, but its buffer has {raw.nbytes} bytes"
            )
        array = raw.view(dtypes.numpy_dtype(dtype)).reshape(shape)
        scale = scale_of(table, dtype, self.model.called(i))
        if scale is not None:
            return scale.real(array)
        return array.astype(np.float32) if dtype in ("float16", "bfloat16") else array

    def _started(self, i: int) -> Array:
        """Return what a variable begins with, zeros, as it is read here in each run."""
        said = f"{self.model.called(i)} is a variable: each run begins with zeros, and none goes on from the one before"
        held = self.graph.metadata.get(ASSUMPTIONS, ())
        self.graph.metadata[ASSUMPTIONS] = (*held, said)
        return np.zeros([int(d) for d in self.tables[i].items("shape")], np.float32)

    def _dtype(self, i: int) -> str:
        number = self.tables[i]["type"]
        name = self.types.get(number)
        if name not in DTYPES:
            raise UnsupportedOp(f"{self.label}: {self.model.called(i)} is of type {name or number}")
        return DTYPES[name]

    def _shape(self, table: Table, name: str) -> list[Dim]:
        """Return extents; what the signature of the shape leaves open is symbolic."""
        shape = [int(d) for d in table.items("shape")]
        signature = [int(d) for d in table.items("shape_signature")] or shape
        if len(signature) != len(shape):
            raise InvalidModel(f"{self.label}: {name!r} has shape {shape} and signature {signature}")
        return [d if s >= 0 and d >= 0 else Sym(f"?{name}.{axis}") for axis, (d, s) in enumerate(zip(shape, signature))]

    # --- operators ----------------------------------------------------------------------------------------------------

    def _operator(self, place: int, operator: Table) -> None:
        kind, name, outputs = "operator", f"operator_{place}", list[int]()
        try:
            kind = self.model.kind(operator)
            name = f"{kind}_{place}"
            outputs = self._places(operator["outputs"], f"outputs of {name}")
            given = [int(i) for i in operator.items("inputs")]
            self._places([i for i in given if i >= 0], f"inputs of {name}")
            for i in outputs:
                if self.tensors[i].is_made:
                    raise InvalidModel(f"it makes {self.model.called(i)}, which exists already")
            if kind not in READ:
                raise UnsupportedOp(f"renorm does not read {kind}", do="export the model without it")
            if self.unread.isdisjoint(given):
                options = operator["builtin_options"]
                self._apply(OperatorCall(self.graph, READ[kind], name, options, *self._tensors(given, outputs)))
                return
        except RenormError as error:
            self.problems.append(Problem(error, name, kind=kind))
        self.unread.update(outputs)

    def _tensors(self, given: Sequence[int], outputs: Sequence[int]) -> tuple[list[Tensor | None], list[Tensor]]:
        for i in outputs:
            self.tensors[i].dtype = dtype = self._dtype(i)
            self.tensors[i].scale = scale_of(self.tables[i], dtype, self.model.called(i))
        return [None if i < 0 else self._operand(i) for i in given], [self.tensors[i] for i in outputs]

    def _apply(self, call: OperatorCall) -> None:
        read, before = call.operator.read, len(self.graph.nodes)
        assert read is not None
        try:
            result = call.activated(read(call))
        except RenormError:
            raise
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:  # a file that promises more
            raise InvalidModel(f"its operands or options do not fit: {error}", [raised_at(error)]) from error
        results = [*result] if isinstance(result, Sequence) else [result]
        if len(results) < len(call.outputs):
            raise InvalidModel(f"it has {len(call.outputs)} outputs, {call.kind} has {len(results)}")
        results = [self._saturated(call, tensor, made) for tensor, made in zip(call.outputs, results)]
        new = self.graph.nodes[before:]
        for tensor, made in zip(call.outputs, results):
            value = made.value if isinstance(made, First) else made
            if value.producer in new and value.name != tensor.name:
                self.graph.rename(value, tensor.name)
            tensor.make(made)
        for node in new:
            node.origin = (call.name,)
        if new:
            self.graph.rename_node(_principal(new), call.name)

    def _saturated(self, call: OperatorCall, tensor: Tensor, made: Value | First) -> Value | First:
        """Return a result as a quantized tensor holds it: within the range of its integers."""
        tensor.range, scale = ranges.of_result(call), tensor.scale
        value, is_first = (made.value, True) if isinstance(made, First) else (made, False)
        if scale is None or not dtypes.is_float(value.dtype) or value.is_constant:
            return made
        axis = to_first(value.rank).index(scale.axis) if is_first else scale.axis
        held, own = tensor.range, ranges.of_integers(scale, tensor.dtype)
        cut = ranges.saturated(value, scale, tensor.dtype, axis, held)
        tensor.range = min(max(held[0], own[0]), own[1]), max(min(held[1], own[1]), own[0])
        return First(cut) if is_first else cut


def _principal(nodes: Sequence[Node]) -> Node:
    """Return the node that bears the operator's name: the first that is more than a change of order."""
    return next((n for n in nodes if n.op.name not in ("transpose", "reshape")), nodes[-1])
