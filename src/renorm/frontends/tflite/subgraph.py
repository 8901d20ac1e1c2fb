"""A file in the making: its tensors, each value of the graph in up to two orders of axes.

`plain` has the axes of the graph's value, `last` the same with channels last. An operator makes one of them; the other
costs a TRANSPOSE, unless the graph has that transpose as a node, which is then no operator at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import UnsupportedOp
from renorm.frontends.orders import to_first, to_stored
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.schema import Schema
from renorm.frontends.tflite.tensors import NUMBER, Array
from renorm.graph.ir import Value

_ACTIVATION = "fused_activation_function"


class Subgraph:
    """Tables of one subgraph. tensors: by number. quantization: of integers that stand for numbers."""

    def __init__(self, schema: Schema, quantization: Mapping[Value, Table] | None = None):
        self.schema, self.quantization = schema, quantization or {}
        self.tensors, self.operators = list[Table](), list[Table]()
        self.buffers = [self.table("Buffer")]  # the first is for tensors without elements
        self.codes = dict[tuple[int, int], Table]()
        self.names = dict[int, list[str]]()  # of values that are this tensor, the most telling last
        self._plain, self._last = dict[Value, int](), dict[Value, int]()
        self._constants = dict[tuple[str, bytes], int]()
        self._real = dict[Value, Array]()  # elements of constants that are dequantized

    def table(self, kind: str, /, **fields: Any) -> Table:
        return Table(kind, self.schema, {k: v for k, v in fields.items() if v is not None})

    # --- tensors ------------------------------------------------------------------------------------------------------

    def tensor(
        self,
        dtype: str,
        shape: Sequence[Any],
        name: str,
        data: Array | None = None,
        of: Value | None = None,
        said: Table | None = None,
    ) -> int:
        """Return a new tensor. Extents that are not numbers are open. of: the value that it is, in some order. said: of
        its integers, where that value does not say it."""
        if dtype not in NUMBER:
            raise UnsupportedOp(f"{name!r} is of type {dtype}, which files of this format do not hold")
        is_open = any(not isinstance(d, int) for d in shape)
        signature = np.asarray([d if isinstance(d, int) else -1 for d in shape], np.int32) if is_open else None
        buffer = 0
        if data is not None:
            buffer = len(self.buffers)
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            self.buffers.append(self.table("Buffer", data=raw))
        self.tensors.append(
            self.table(
                "Tensor",
                shape=np.asarray([d if isinstance(d, int) else 1 for d in shape], np.int32),
                shape_signature=signature,
                type=self.schema.enums["TensorType"][NUMBER[dtype]],
                buffer=buffer,
                quantization=said if of is None else self.quantization.get(of),
            )
        )
        self.names[len(self.tensors) - 1] = [name]
        return len(self.tensors) - 1

    def constant(self, data: Any, name: str = "constant", of: Value | None = None, said: Table | None = None) -> int:
        """Return a tensor with elements; equal ones are one tensor. of: as for `tensor`. said: of its integers."""
        array = np.ascontiguousarray(data)
        said = self.quantization.get(of) if of is not None else said
        key = (f"{array.dtype}{array.shape}{said and id(said)}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.tensor(dtypes.from_numpy(array.dtype), array.shape, name, array, said=said)
        return self._constants[key]

    def elements(self, v: Value) -> Array | None:
        """Return the elements of a constant, and of one that is dequantized; None for other values."""
        node = v.producer if v.producer is not None and v.producer.op.name == "dequantize_linear" else None
        if node is None or not all(x is None or x.is_constant for x in node.inputs):
            return v.data
        if v not in self._real:
            found = node.op.reference(*(None if x is None else x.data for x in node.inputs))
            self._real[v] = np.asarray(found, dtypes.numpy_dtype(v.dtype))
        return self._real[v]

    def integers(self, values: Sequence[int], name: str) -> int:
        return self.constant(np.asarray(values, np.int32), name)

    def like(self, tensor: int, name: str) -> int:
        """Return a new tensor of the same type and shape."""
        self.tensors.append(self.table("Tensor", **{**self.tensors[tensor].fields, "buffer": 0, "name": None}))
        self.names[len(self.tensors) - 1] = [name]
        return len(self.tensors) - 1

    def copied(self, tensor: int, name: str) -> int:
        """Return a copy of a tensor, made by an operator that changes nothing."""
        made, rank = self.like(tensor, name), len(self.tensors[tensor].items("shape"))
        signature = self.tensors[tensor].items("shape_signature") or self.tensors[tensor].items("shape")
        if [int(d) for d in signature].count(-1) > 1:
            self.operator("TRANSPOSE", [tensor, self.integers(range(rank), "order")], [made])
        else:
            shape = self.integers([int(d) for d in signature], "shape")
            self.operator("RESHAPE", [tensor, shape], [made])
        return made

    def values(self) -> dict[int, list[tuple[Value, bool]]]:
        """Return each tensor's values, and whether it has their channels last."""
        found: dict[int, list[tuple[Value, bool]]] = {}
        for is_last, held in ((False, self._plain), (True, self._last)):
            for v, tensor in held.items():
                found.setdefault(tensor, []).append((v, is_last))
        return found

    def shape(self, v: Value) -> int:
        """Return the extents of a value as a tensor, for operators that take them as an operand; one may be open."""
        extents = [d if isinstance(d, int) else -1 for d in v.shape]
        if extents.count(-1) > 1:
            raise UnsupportedOp(f"the shape of {v.name!r} has several open extents", do="give shapes of the inputs")
        return self.integers(extents, "shape")

    def plain(self, v: Value) -> int:
        """Return the tensor of a value as it is in the graph."""
        if v not in self._plain:
            if (data := self.elements(v)) is not None:
                self._plain[v] = self.constant(data, v.name, v)
            elif v in self._last:
                self._plain[v] = self._turned(self._last[v], v, to_first(v.rank), v.shape)
            else:
                self._plain[v] = self.tensor(v.dtype, v.shape, v.name, of=v)
        return self._plain[v]

    def last(self, v: Value) -> int:
        """Return the tensor of a value with channels last."""
        if v.rank <= 2:
            return self.plain(v)
        if v not in self._last:
            perm = to_stored(v.rank)
            if (data := self.elements(v)) is not None:
                self._last[v] = self.constant(data.transpose(perm), v.name, v)
            else:
                self._last[v] = self._turned(self.plain(v), v, perm, [v.shape[a] for a in perm])
        return self._last[v]

    def is_last(self, v: Value) -> bool:
        """Return whether a value exists with channels last only."""
        return v in self._last and v not in self._plain

    def make(self, v: Value, is_last: bool = False) -> int:
        """Return the tensor that an operator is about to make of a value."""
        if not is_last or v.rank <= 2:
            return self.plain(v)
        self._last[v] = self.tensor(v.dtype, [v.shape[a] for a in to_stored(v.rank)], v.name, of=v)
        return self._last[v]

    def same(self, v: Value, tensor: int, is_last: bool = False) -> None:
        """A value that is a tensor already."""
        (self._last if is_last and v.rank > 2 else self._plain)[v] = tensor
        self.names[tensor].append(v.name)

    def turn(self, v: Value, x: Value, perm: Sequence[int]) -> bool:
        """Return whether v = transpose(x, perm) is x in its other order, so that no operator has to make it."""
        if tuple(perm) == to_stored(x.rank) and (self.is_last(x) or self.elements(x) is not None):
            self.same(v, self.last(x))
            return True
        if tuple(perm) == to_first(x.rank) and x.rank > 2:
            self.same(v, self.plain(x), is_last=True)
            return True
        return False

    def _turned(self, tensor: int, v: Value, perm: Sequence[int], shape: Sequence[Any]) -> int:
        made = self.tensor(v.dtype, shape, f"{v.name}.order", of=v)
        self.operator("TRANSPOSE", [tensor, self.integers(perm, "order")], [made])
        return made

    # --- operators ----------------------------------------------------------------------------------------------------

    def operator(
        self,
        kind: str,
        inputs: Sequence[int | None],
        outputs: Sequence[int],
        version: int = 1,
        activation: str = "NONE",
        /,
        **fields: Any,
    ) -> None:
        """Add an operator. activation: of its result, where its options name one. fields: the others of its options."""
        number = self.schema.enums["BuiltinOperator"].get(kind)
        if number is None:
            raise UnsupportedOp(f"files of this format have no operator {kind}")
        code = self.codes.setdefault(
            (number, version),
            self.table("OperatorCode", builtin_code=number, deprecated_builtin_code=min(number, 127), version=version),
        )
        operator = self.table(
            "Operator",
            opcode_index=[*self.codes.values()].index(code),
            inputs=np.asarray([-1 if i is None else i for i in inputs], np.int32),
            outputs=np.asarray(outputs, np.int32),
        )
        tag, options = self.schema.options(kind)
        if options:
            if any(f is not None and f.name == _ACTIVATION for f in self.schema.tables[options]):
                fields[_ACTIVATION] = self.schema.enums["ActivationFunctionType"][activation]
            operator["builtin_options_type"], operator["builtin_options"] = tag, self.table(options, **fields)
        self.operators.append(operator)
