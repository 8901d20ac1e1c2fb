"""The messages of an ONNX file as far as renorm reads them: their fields, by the names and numbers of onnx.proto.

Of an onnx.ModelProto the same names are read, so that it may come in the place of a ModelProto of this file. What is
not here (documentation, types of values in between, names of dimensions) is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from renorm.frontends.onnx import wire
from renorm.frontends.onnx.wire import Message


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
    key: str = wire.text(1)
    value: str = wire.text(2)


class OperatorSetIdProto(Message):
    domain: str = wire.text(1)
    version: int = wire.int64(2)


class TensorProto(Message):
    dims: Sequence[int] = wire.int64s(1)
    data_type: int = wire.int32(2)
    segment: Message = wire.message(3, lambda: Message)
    float_data: Sequence[float] = wire.float32s(4)
    int32_data: Sequence[int] = wire.int32s(5)
    string_data: Sequence[bytes] = wire.lists_of_octets(6)
    int64_data: Sequence[int] = wire.int64s(7)
    name: str = wire.text(8)
    raw_data: bytes | memoryview = wire.view(9)
    double_data: Sequence[float] = wire.float64s(10)
    uint64_data: Sequence[int] = wire.uint64s(11)
    external_data: Sequence[StringStringEntryProto] = wire.messages(13, lambda: StringStringEntryProto)
    data_location: int = wire.choice(14, 2)


class SparseTensorProto(Message):
    values: TensorProto = wire.message(1, lambda: TensorProto)
    indices: TensorProto = wire.message(2, lambda: TensorProto)
    dims: Sequence[int] = wire.int64s(3)


class Dimension(Message):
    """TensorShapeProto.Dimension."""

    exclusive = True
    dim_value: int = wire.int64(1)
    dim_param: str = wire.text(2)


class TensorShapeProto(Message):
    dim: Sequence[Dimension] = wire.messages(1, lambda: Dimension)


class TensorType(Message):
    """TypeProto.Tensor."""

    elem_type: int = wire.int32(1)
    shape: TensorShapeProto = wire.message(2, lambda: TensorShapeProto)


class TypeProto(Message):
    exclusive = True
    tensor_type: TensorType = wire.message(1, lambda: TensorType)
    sequence_type: Message = wire.message(4, lambda: Message)
    map_type: Message = wire.message(5, lambda: Message)
    opaque_type: Message = wire.message(7, lambda: Message)
    sparse_tensor_type: Message = wire.message(8, lambda: Message)
    optional_type: Message = wire.message(9, lambda: Message)


class ValueInfoProto(Message):
    name: str = wire.text(1)
    type: TypeProto = wire.message(2, lambda: TypeProto)


class AttributeProto(Message):
    name: str = wire.text(1)
    f: float = wire.float32(2)
    i: int = wire.int64(3)
    s: bytes = wire.octets(4)
    t: TensorProto = wire.message(5, lambda: TensorProto)
    g: GraphProto = wire.message(6, lambda: GraphProto)
    floats: Sequence[float] = wire.float32s(7)
    ints: Sequence[int] = wire.int64s(8)
    strings: Sequence[bytes] = wire.lists_of_octets(9)
    graphs: Sequence[GraphProto] = wire.messages(11, lambda: GraphProto)
    type: int = wire.choice(20, len(AttributeType))
    sparse_tensor: SparseTensorProto = wire.message(22, lambda: SparseTensorProto)


class NodeProto(Message):
    input: Sequence[str] = wire.texts(1)
    output: Sequence[str] = wire.texts(2)
    name: str = wire.text(3)
    op_type: str = wire.text(4)
    attribute: Sequence[AttributeProto] = wire.messages(5, lambda: AttributeProto)
    domain: str = wire.text(7)
    overload: str = wire.text(8)


class GraphProto(Message):
    node: Sequence[NodeProto] = wire.messages(1, lambda: NodeProto)
    name: str = wire.text(2)
    initializer: Sequence[TensorProto] = wire.messages(5, lambda: TensorProto)
    input: Sequence[ValueInfoProto] = wire.messages(11, lambda: ValueInfoProto)
    output: Sequence[ValueInfoProto] = wire.messages(12, lambda: ValueInfoProto)
    sparse_initializer: Sequence[SparseTensorProto] = wire.messages(15, lambda: SparseTensorProto)


class FunctionProto(Message):
    name: str = wire.text(1)
    node: Sequence[NodeProto] = wire.messages(7, lambda: NodeProto)
    domain: str = wire.text(10)
    overload: str = wire.text(13)


class ModelProto(Message):
    ir_version: int = wire.int64(1)
    graph: GraphProto = wire.message(7, lambda: GraphProto)
    opset_import: Sequence[OperatorSetIdProto] = wire.messages(8, lambda: OperatorSetIdProto)
    metadata_props: Sequence[StringStringEntryProto] = wire.messages(14, lambda: StringStringEntryProto)
    functions: Sequence[FunctionProto] = wire.messages(25, lambda: FunctionProto)


def graphs(proto: GraphProto) -> list[GraphProto]:
    """A graph and the graphs nested in it."""
    found, waiting = list[GraphProto](), [proto]
    while waiting:
        found.append(waiting.pop())
        inner = list[GraphProto]()
        for n in found[-1].node:
            for a in n.attribute:
                if a.type in (AttributeType.GRAPH, AttributeType.GRAPHS):
                    inner += (a.g,) if a.type == AttributeType.GRAPH else a.graphs
        waiting += reversed(inner)
    return found
