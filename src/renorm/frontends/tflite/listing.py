"""A TensorFlow Lite or Circle file as a listing, and back. Operators keep all that the file says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.frontends.listing import Array, Listing, Operator
from renorm.frontends.tflite.flatbuffer import Table, decode, encode
from renorm.frontends.tflite.model import Model, Section, assemble
from renorm.frontends.tflite.tensors import DTYPES

_NAMES = ("inputs", "outputs", "opcode_index")


def listing(model: Model) -> Listing:
    """Return the content of the first subgraph of a file."""
    identifier, main, label = model.identifier, model.main, model.label
    names = main.names
    made = {int(i) for o in main.operators for i in o.items("outputs")}
    constants = {
        name: array for i, name in enumerate(names) if i not in made and (array := _elements(i, main)) is not None
    }
    operators = list[Operator]()
    for place, o in enumerate(main.operators):
        code, kind = model.code(o), model.kind(o)
        body = Table("Operator", model.schema, {k: v for k, v in o.fields.items() if k not in _NAMES})
        says = encode(identifier, body, label) + encode(identifier, code, label)
        reads = tuple(names[i] if i >= 0 else "" for i in map(int, o.items("inputs")))
        makes = tuple(names[int(i)] for i in o.items("outputs"))
        operators.append(Operator(kind, f"{kind}_{place}", says, reads, makes, (body, code)))
    types, extents = dict[str, bytes](), dict[str, Any]()
    for name, t in zip(names, main.tensors):
        said = Table("Tensor", model.schema, {k: v for k, v in t.fields.items() if k not in ("name", "buffer")})
        types[name] = encode(identifier, said, label)
        extents[name] = (t["type"], [int(d) for d in t.items("shape")], [int(d) for d in t.items("shape_signature")])
    inputs, outputs = ([names[int(i)] for i in main.table.items(side)] for side in ("inputs", "outputs"))
    return Listing(inputs, outputs, operators, constants, types, extents, is_typed=True)


def written(found: Listing, model: Model, metadata: Sequence[tuple[str | None, bytes]]) -> bytes:
    """Return a file with these operators, constants and entries of metadata, and all else as in `model`."""
    return encode(model.identifier, _root(found, model, model.root, model.main.table.fields, metadata), model.label)


def fragment(operators: list[Operator], of: Listing, model: Model) -> bytes:
    """Return a file of operators of a model alone, with what is said of their tensors."""
    parts = Listing([], [], operators, types=of.types)
    return encode(model.identifier, _root(parts, model, Table("Model", model.schema), {}, ()), model.label)


def _root(
    found: Listing, model: Model, around: Table, main: dict[str, Any], metadata: Sequence[tuple[str | None, bytes]]
) -> Table:
    """Return the root table of a file with what was found, and all else as in `around`, and of its subgraph in
    `main`."""
    schema = model.schema
    order = [*found.inputs, *found.outputs, *(n for o in found.operators for n in (*o.operands, *o.results))]
    number = {name: i for i, name in enumerate(dict.fromkeys(order))}
    buffers, tensors = [Table("Buffer", schema)], list[Table]()
    for name in number:
        tensor = decode(memoryview(found.types[name]), model.label, "Tensor")[1]
        array = found.constants.get(name)
        tensors.append(Table("Tensor", schema, {**tensor.fields, "name": name, "buffer": 0}))
        if array is not None:
            tensors[-1]["buffer"] = len(buffers)
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            buffers.append(Table("Buffer", schema, {"data": raw}))
    codes, numbers, operators = list[Table](), dict[bytes, int](), list[Table]()
    for o in found.operators:
        body, code = o.native
        key = encode(model.identifier, code, model.label)
        if numbers.setdefault(key, len(codes)) == len(codes):
            codes.append(code)
        fields = {
            "opcode_index": numbers[key],
            "inputs": np.asarray([number[n] if n else -1 for n in o.reads], np.int32),
            "outputs": np.asarray([number[n] for n in o.makes], np.int32),
        }
        operators.append(Table("Operator", schema, {**body.fields, **fields}))
    inputs, outputs = (np.asarray([number[n] for n in names], np.int32) for names in (found.inputs, found.outputs))
    main = {**main, "inputs": inputs, "outputs": outputs, "tensors": tensors, "operators": operators}
    signatures = model.signatures(number)
    return assemble(around, Table("SubGraph", schema, main), codes, buffers, metadata, signatures)


def _elements(i: int, section: Section) -> Array | None:
    """Return elements of a tensor, as bytes where their type is none of renorm's; None for one without a buffer."""
    table, raw = section.tensors[i], section.elements(i)
    dtype = DTYPES.get(table.schema.names("TensorType").get(table["type"], ""))
    shape = [int(d) for d in table.items("shape")]
    if raw is None or dtype is None or raw.nbytes != dtypes.itemsize(dtype) * int(np.prod(shape, dtype=np.int64)):
        return raw
    return raw.view(dtypes.numpy_dtype(dtype)).reshape(shape)
