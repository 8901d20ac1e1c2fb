"""The messages of an ONNX file as far as renorm reads them: their fields, by the names and numbers of onnx.proto.

Of an onnx.ModelProto the same names are read, so that it may come in the place of a ModelProto of this file. What is
not here (documentation, types of values in between, names of dimensions) is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from renorm.frontends import order
from renorm.frontends.onnx.wire import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    OCTETS,
    TEXT,
    UINT64,
    VIEW,
    Message,
    choice,
    message,
    messages,
    one,
    several,
)


class AttributeType(IntEnum):
    """Which field of an attribute holds its value."""

    UNDEFINED, FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS = range(10)
    GRAPHS, SPARSE_TENSOR, SPARSE_TENSORS, TYPE_PROTO, TYPE_PROTOS = range(10, 15)


# TensorProto.DataType: element types, by their number
ELEMENT_TYPES = (
    "UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16", "DOUBLE",
    "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ", "UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2", "FLOAT6E2M3", "FLOAT6E3M2",
)  # fmt: skip
EXTERNAL = 1  # TensorProto.DataLocation: elements are in another file


class StringStringEntryProto(Message):
    key: str = one(1, TEXT)
    value: str = one(2, TEXT)


class OperatorSetIdProto(Message):
    domain: str = one(1, TEXT)
    version: int = one(2, INT64)


class TensorProto(Message):
    dims: Sequence[int] = several(1, INT64)
    data_type: int = one(2, INT32)
    segment: Message = message(3, lambda: Message)
    float_data: Sequence[float] = several(4, FLOAT32)
    int32_data: Sequence[int] = several(5, INT32)
    string_data: Sequence[bytes] = several(6, OCTETS)
    int64_data: Sequence[int] = several(7, INT64)
    name: str = one(8, TEXT)
    raw_data: bytes | memoryview = one(9, VIEW)
    double_data: Sequence[float] = several(10, FLOAT64)
    uint64_data: Sequence[int] = several(11, UINT64)
    external_data: Sequence[StringStringEntryProto] = messages(13, lambda: StringStringEntryProto)
    data_location: int = choice(14, 2)


class SparseTensorProto(Message):
    values: TensorProto = message(1, lambda: TensorProto)
    indices: TensorProto = message(2, lambda: TensorProto)
    dims: Sequence[int] = several(3, INT64)


class Dimension(Message):
    """TensorShapeProto.Dimension."""

    exclusive = True
    dim_value: int = one(1, INT64)
    dim_param: str = one(2, TEXT)


class TensorShapeProto(Message):
    dim: Sequence[Dimension] = messages(1, lambda: Dimension)


class TensorType(Message):
    """TypeProto.Tensor."""

    elem_type: int = one(1, INT32)
    shape: TensorShapeProto = message(2, lambda: TensorShapeProto)


class SequenceType(Message):
    """TypeProto.Sequence."""

    elem_type: TypeProto = message(1, lambda: TypeProto)


class OptionalType(Message):
    """TypeProto.Optional."""

    elem_type: TypeProto = message(1, lambda: TypeProto)


class TypeProto(Message):
    exclusive = True
    tensor_type: TensorType = message(1, lambda: TensorType)
    sequence_type: SequenceType = message(4, lambda: SequenceType)
    map_type: Message = message(5, lambda: Message)
    opaque_type: Message = message(7, lambda: Message)
    sparse_tensor_type: Message = message(8, lambda: Message)
    optional_type: OptionalType = message(9, lambda: OptionalType)


class ValueInfoProto(Message):
    name: str = one(1, TEXT)
    type: TypeProto = message(2, lambda: TypeProto)


class AttributeProto(Message):
    name: str = one(1, TEXT)
    f: float = one(2, FLOAT32)
    i: int = one(3, INT64)
    s: bytes = one(4, OCTETS)
    t: TensorProto = message(5, lambda: TensorProto)
    g: GraphProto = message(6, lambda: GraphProto)
    floats: Sequence[float] = several(7, FLOAT32)
    ints: Sequence[int] = several(8, INT64)
    strings: Sequence[bytes] = several(9, OCTETS)
    graphs: Sequence[GraphProto] = messages(11, lambda: GraphProto)
    type: int = choice(20, len(AttributeType))
    sparse_tensor: SparseTensorProto = message(22, lambda: SparseTensorProto)


class NodeProto(Message):
    input: Sequence[str] = several(1, TEXT)
    output: Sequence[str] = several(2, TEXT)
    name: str = one(3, TEXT)
    op_type: str = one(4, TEXT)
    attribute: Sequence[AttributeProto] = messages(5, lambda: AttributeProto)
    domain: str = one(7, TEXT)
    overload: str = one(8, TEXT)


class GraphProto(Message):
    node: Sequence[NodeProto] = messages(1, lambda: NodeProto)
    name: str = one(2, TEXT)
    initializer: Sequence[TensorProto] = messages(5, lambda: TensorProto)
    input: Sequence[ValueInfoProto] = messages(11, lambda: ValueInfoProto)
    output: Sequence[ValueInfoProto] = messages(12, lambda: ValueInfoProto)
    sparse_initializer: Sequence[SparseTensorProto] = messages(15, lambda: SparseTensorProto)


class FunctionProto(Message):
    name: str = one(1, TEXT)
    node: Sequence[NodeProto] = messages(7, lambda: NodeProto)
    domain: str = one(10, TEXT)
    overload: str = one(13, TEXT)


class ModelProto(Message):
    ir_version: int = one(1, INT64)
    graph: GraphProto = message(7, lambda: GraphProto)
    opset_import: Sequence[OperatorSetIdProto] = messages(8, lambda: OperatorSetIdProto)
    metadata_props: Sequence[StringStringEntryProto] = messages(14, lambda: StringStringEntryProto)
    functions: Sequence[FunctionProto] = messages(25, lambda: FunctionProto)


def inner_graphs(attribute: AttributeProto) -> Sequence[GraphProto]:
    """Return the graphs that an attribute is."""
    if attribute.type == AttributeType.GRAPH:
        return (attribute.g,)
    return attribute.graphs if attribute.type == AttributeType.GRAPHS else ()


def graphs(proto: GraphProto) -> list[GraphProto]:
    """Return a graph and the graphs nested in it."""
    found, waiting = list[GraphProto](), [proto]
    while waiting:
        found.append(waiting.pop())
        waiting += reversed([g for n in found[-1].node for a in n.attribute for g in inner_graphs(a)])
    return found


def captured(node: NodeProto) -> list[str]:
    """Return the names that graphs nested in a node read of the graph around it."""
    found = list[str]()
    for top in (g for a in node.attribute for g in inner_graphs(a)):
        nested = graphs(top)
        made = {v.name for g in nested for v in (*g.input, *g.initializer)}
        made |= {name for g in nested for n in g.node for name in n.output}
        read = [name for g in nested for name in (*(i for n in g.node for i in n.input), *(o.name for o in g.output))]
        found += [name for name in read if name and name not in made]
    return list(dict.fromkeys(found))


def topological(nodes: Sequence[NodeProto], known: Iterable[str] = ()) -> tuple[list[int], list[int]]:
    """Return the places of nodes as `order.topological`. known: names that nodes read from elsewhere."""
    taken = {*known}
    makes = [[name for name in n.output if name not in taken] for n in nodes]
    return order.topological([(*n.input, *captured(n)) for n in nodes], makes)
