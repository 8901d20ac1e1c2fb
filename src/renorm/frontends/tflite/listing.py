"""A TensorFlow Lite or Circle file as a listing, and back. Operators keep all that the file says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.frontends.listing import Array, Listing, Operator
from renorm.frontends.tflite.flatbuffer import Table, decode, encode
from renorm.frontends.tflite.tensors import DTYPES, tensor_names

_NAMES = ("inputs", "outputs", "opcode_index")


def listing(content: memoryview, label: str) -> Listing:
    """Return the content of the first subgraph of a file."""
    identifier, model = decode(content, label)
    main: Table = model.items("subgraphs")[0]
    tables, codes, buffers = main.items("tensors"), model.items("operator_codes"), model.items("buffers")
    names = tensor_names(tables)
    made = {int(i) for o in main.items("operators") for i in o.items("outputs")}
    constants = {
        names[i]: array
        for i, t in enumerate(tables)
        if i not in made and (array := _elements(t, buffers, content, label)) is not None
    }
    operators = list[Operator]()
    for place, o in enumerate(main.items("operators")):
        code = codes[o["opcode_index"]]
        number = code["builtin_code"] or code["deprecated_builtin_code"]
        kind = model.schema.names("BuiltinOperator").get(number, str(number))
        body = Table("Operator", model.schema, {k: v for k, v in o.fields.items() if k not in _NAMES})
        says = encode(identifier, body, label) + encode(identifier, code, label)
        reads = tuple(names[i] if i >= 0 else "" for i in map(int, o.items("inputs")))
        makes = tuple(names[int(i)] for i in o.items("outputs"))
        operators.append(Operator(kind, f"{kind}_{place}", says, reads, makes, (body, code)))
    types, extents = dict[str, bytes](), dict[str, Any]()
    for name, t in zip(names, tables):
        said = Table("Tensor", model.schema, {k: v for k, v in t.fields.items() if k not in ("name", "buffer")})
        types[name] = encode(identifier, said, label)
        extents[name] = (t["type"], [int(d) for d in t.items("shape")], [int(d) for d in t.items("shape_signature")])
    inputs, outputs = ([names[int(i)] for i in main.items(side)] for side in ("inputs", "outputs"))
    return Listing(inputs, outputs, operators, constants, types, extents, is_typed=True)


def assemble(identifier: bytes, model: Table, found: Listing, label: str, metadata: Mapping[str, bytes]) -> bytes:
    """A file with these operators, constants and entries of metadata, and all else as in `model`."""
    schema = model.schema
    order = [*found.inputs, *found.outputs, *(n for o in found.operators for n in (*o.operands, *o.results))]
    number = {name: i for i, name in enumerate(dict.fromkeys(order))}
    buffers, tensors = [Table("Buffer", schema)], list[Table]()

    def buffer(raw: Any) -> int:
        buffers.append(Table("Buffer", schema, {"data": np.frombuffer(raw, np.uint8) if len(raw) else raw}))
        return len(buffers) - 1

    for name in number:
        tensor = decode(memoryview(found.types[name]), label, "Tensor")[1]
        array = found.constants.get(name)
        held = 0 if array is None else buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        tensors.append(Table("Tensor", schema, {**tensor.fields, "name": name, "buffer": held}))
    codes, numbers, operators = list[Table](), dict[bytes, int](), list[Table]()
    for o in found.operators:
        body, code = o.native
        key = encode(identifier, code, label)
        if numbers.setdefault(key, len(codes)) == len(codes):
            codes.append(code)
        fields = {
            "opcode_index": numbers[key],
            "inputs": np.asarray([number[n] if n else -1 for n in o.reads], np.int32),
            "outputs": np.asarray([number[n] for n in o.makes], np.int32),
        }
        operators.append(Table("Operator", schema, {**body.fields, **fields}))
    ends = {side: np.asarray([number[n] for n in names], np.int32) for side, names in _sides(found)}
    main: Table | None = next(iter(model.items("subgraphs")), None)
    main = Table(
        "SubGraph", schema, {**(main.fields if main else {}), **ends, "tensors": tensors, "operators": operators}
    )
    entries = [Table("Metadata", schema, {"name": n, "buffer": buffer(raw)}) for n, raw in metadata.items()]
    fields = {"operator_codes": codes, "subgraphs": [main], "buffers": buffers, "metadata": entries}
    if signatures := _signatures(model, number):
        fields["signature_defs"] = signatures
    dropped = ("signature_defs", "metadata_buffer")
    return encode(
        identifier,
        Table(
            "Model", schema, {k: v for k, v in {**model.fields, **fields}.items() if k not in dropped or k in fields}
        ),
        label,
    )


def metadata_of(model: Table) -> dict[str, bytes]:
    """Entries of a file's metadata."""
    buffers = model.items("buffers")
    known = [e for e in model.items("metadata") if e["buffer"] < len(buffers)]
    return {e["name"] or "": bytes(buffers[e["buffer"]].items("data")) for e in known}


def fragment(identifier: bytes, model: Table, operators: list[Operator], of: Listing, label: str) -> bytes:
    """Operators alone, with what is said of their tensors."""
    empty = Table("Model", model.schema)
    return assemble(identifier, empty, Listing([], [], operators, types=of.types), label, {})


def _sides(found: Listing) -> list[tuple[str, list[str]]]:
    return [("inputs", [*found.inputs]), ("outputs", [*found.outputs])]


def _signatures(model: Table, number: Mapping[str, int]) -> list[Table]:
    """Signatures, whose tensors have other numbers now."""
    subgraphs = model.items("subgraphs")
    names = tensor_names(subgraphs[0].items("tensors")) if subgraphs else []
    found = list[Table]()
    for signature in model.items("signature_defs"):
        sides: dict[str, list[Table]] = {}
        for side in ("inputs", "outputs"):
            ends = [(e, number.get(names[e["tensor_index"]])) for e in signature.items(side)]
            sides[side] = [
                Table("TensorMap", model.schema, {**e.fields, "tensor_index": n}) for e, n in ends if n is not None
            ]
        found.append(Table("SignatureDef", model.schema, {**signature.fields, **sides}))
    return found


def _elements(table: Table, buffers: list[Table], content: memoryview, label: str) -> Array | None:
    """Elements of a tensor, as bytes where their type is none of renorm's; None for one without a buffer."""
    place = table["buffer"]
    if not 0 < place < len(buffers):
        return None
    held = buffers[place]
    raw = held["data"]
    if held["offset"] > 1:  # after the tables, in large files
        raw = np.frombuffer(content, np.uint8, held["size"], held["offset"])
    dtype = DTYPES.get(table.schema.names("TensorType").get(table["type"], ""))
    shape = [int(d) for d in table.items("shape")]
    if raw is None and 0 in shape:
        raw = np.zeros(0, np.uint8)
    if raw is None:
        return None
    if dtype is None or raw.nbytes != dtypes.itemsize(dtype) * int(np.prod(shape, dtype=np.int64)):
        return raw
    return raw.view(dtypes.numpy_dtype(dtype)).reshape(shape)
