"""Inputs and outputs of a network that are sequences or optionals: arrays of their own, by names of their own.

s: seq(f32[N, 3])         s.0: f32[?, 3], s.1: f32[?, 3]    as many as shapes= or inputs= have
o: optional(f32[5])       o: f32[5], or nothing             where inputs={"o": None}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from renorm.core.errors import InvalidInput, UnsupportedOp, UntoldOperand
from renorm.frontends.onnx import tensors
from renorm.frontends.onnx.held import Absent, Held, Items
from renorm.frontends.onnx.messages import Dimension, TensorShapeProto, TensorType, TypeProto, ValueInfoProto
from renorm.graph.ir import Value

if TYPE_CHECKING:
    from renorm.frontends.onnx.reader import Reader

TYPES = ("sequence_type", "optional_type")  # of a TypeProto
COUNTS = "sequences"  # in Graph.metadata: by the names of outputs, how many tensors each is; None: it is absent


class Parts:
    """An input that is no tensor, as the tensors that it consists of. inputs: these, as a file would declare them.
    Raises UntoldOperand where nobody says how many there are."""

    def __init__(self, given: ValueInfoProto, reader: Reader):
        self.name, kind = given.name, given.type
        self.is_absent = self.is_sequence = False
        if kind.WhichOneof("value") == "optional_type":
            kind = kind.optional_type.elem_type
            self.is_absent = self.name in reader.values and reader.values[self.name] is None
        if kind.WhichOneof("value") == "sequence_type":
            kind, self.is_sequence = kind.sequence_type.elem_type, True
        what = f"{reader.source.label}: input {self.name!r}"
        if kind.WhichOneof("value") != "tensor_type":
            raise UnsupportedOp(f"{what} is no tensor, and consists of none")
        self.element = tensors.dtype_name(kind.tensor_type.elem_type, what)
        if self.is_sequence and not self.is_absent:
            self.inputs = [_element(f"{self.name}.{k}", kind.tensor_type) for k in range(self._count(reader, what))]
        else:
            self.inputs = [] if self.is_absent else [_info(self.name, kind)]
        if self.is_absent:
            reader.values = {n: x for n, x in reader.values.items() if n != self.name}
        elif not self.is_sequence and self.name not in reader.values:
            reader.assumed.append(f"the optional {self.name!r} is given: inputs={{{self.name!r}: None}} is without it")

    def _count(self, reader: Reader, what: str) -> int:
        """Return how many elements there are. The reader's shapes and values, where it has them together, become those
        of the single ones."""
        if self.name in reader.values:
            elements = reader.values[self.name]
            if not isinstance(elements, (list, tuple)):
                raise InvalidInput(
                    f"{what} is a sequence", do=f"give a list of arrays: inputs={{{self.name!r}: [...]}}"
                )
            named = {f"{self.name}.{k}": x for k, x in enumerate(elements)}
            reader.values = {n: x for n, x in reader.values.items() if n != self.name} | named
            reader.shapes = {**reader.shapes, **{n: np.shape(x) for n, x in named.items()}}
            return len(named)
        pattern = re.compile(re.escape(self.name) + r"\.(\d+)")
        places = [int(m[1]) for n in (*reader.shapes, *reader.values) if (m := pattern.fullmatch(n))]
        if not places:
            do = f"say so: shapes={{'{self.name}.0': (...), '{self.name}.1': (...)}}, or inputs={{{self.name!r}: []}}"
            raise UntoldOperand(f"{what} is a sequence: how many tensors it has is not known", do=do)
        return len({*places})

    def held(self, values: Mapping[str, Value | None]) -> Value:
        """Return the input. values: by name, those of `inputs` among them."""
        if self.is_absent:
            return Absent(self.name)
        found = [v for one in self.inputs if (v := values[one.name]) is not None]
        if self.is_sequence:
            return Items(self.name, found, self.element)
        return found[0] if found else Absent(self.name)  # one that could not be read has its fault


def _info(name: str, kind: TypeProto) -> ValueInfoProto:
    made = ValueInfoProto()
    made.name, made.type = name, kind
    return made


def _element(name: str, tensor: TensorType) -> ValueInfoProto:
    """Return what a file would declare of an element: extents that are no numbers may differ from those of others."""
    kind, own = TypeProto(), TensorType()
    own.elem_type = tensor.elem_type
    if tensor.HasField("shape"):
        own.shape = shape = TensorShapeProto()
        shape.dim = [Dimension() for _ in tensor.shape.dim]
        for d, theirs in zip(shape.dim, tensor.shape.dim):
            if theirs.HasField("dim_value"):
                d.dim_value = theirs.dim_value
    kind.tensor_type = own
    return _info(name, kind)


def spread(reader: Reader, outputs: Sequence[ValueInfoProto], made: Sequence[Value]) -> list[tuple[str, Value]]:
    """Return the outputs of a network as tensors with their names. Raises UnsupportedOp where one is declared as one
    tensor and is none."""
    found, counts = list[tuple[str, Value]](), dict[str, int | None]()
    for out, value in zip(outputs, made, strict=True):
        kind = out.type.WhichOneof("value")
        if isinstance(value, Held) and kind not in TYPES:
            what = "" if kind else ", and its type is not declared"
            raise UnsupportedOp(f"{reader.source.label}: output {out.name!r} is {value.what}{what}")
        if isinstance(value, Items):
            counts[out.name] = len(value.items)
            found += [(f"{out.name}.{k}", v) for k, v in enumerate(value.items)]
        elif isinstance(value, Held):
            counts[out.name] = None
        else:
            found.append((out.name, value))
    if counts:
        reader.graph.metadata[COUNTS] = counts
    return found
