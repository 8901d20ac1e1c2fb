"""Model files read without protobuf: the messages that protobuf reads, and for damaged files renorm's errors only."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

import renorm
from renorm.errors import RenormError
from renorm.frontends.onnx import messages, tensors, wire

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool", "uint32", ml_dtypes.bfloat16)
THEIRS = {  # names that ours have there
    "Dimension": "TensorShapeProto.Dimension",
    "TensorType": "TypeProto.Tensor",
    "SequenceType": "TypeProto.Sequence",
    "OptionalType": "TypeProto.Optional",
}
CLASSES = [c for c in vars(messages).values() if isinstance(c, type) and issubclass(c, wire.Message) and c.fields]


def example(*extra: TensorProto) -> ModelProto:
    """A sum of what its initializers hold: large and small ones of all types, shapes with 1 and 0."""
    rng = np.random.default_rng(5)
    shapes = [(), (3,), (0, 70_000), (1, 40_000), (7, 11, 1500), (90_001,)]
    initializers = [
        numpy_helper.from_array(np.asarray(rng.integers(0, 2, s)).astype(d), f"{np.dtype(d)}.{i}")
        for d in DTYPES
        for i, s in enumerate(shapes)
    ]
    typed = helper.make_tensor("typed", TensorProto.FLOAT, (20_000,), rng.normal(size=20_000).tolist())
    initializers += [typed, *extra]
    nodes = [helper.make_node("Identity", [t.name], [f"of {t.name}"]) for t in initializers]
    nodes.append(helper.make_node("Neg", ["x"], ["y"], name="n"))
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, (2,)) for v in "xy")
    outputs = [y, *(helper.make_tensor_value_info(f"of {t.name}", t.data_type, t.dims) for t in initializers)]
    graph = helper.make_graph(nodes, "g", [x], outputs, initializers, doc_string="said of it")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], producer_name="somebody")


def every_field() -> ModelProto:
    """A small model with something in every field that is read."""
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["b"])], "body", [], [])
    indices = numpy_helper.from_array(np.array([1, 5]), "indices")
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.array([5, 7], np.float32), "sparse"), indices, [2, 3])
    given: dict[str, Any] = {
        "f": 1.1, "i": -5, "s": "text", "t": indices, "g": body, "floats": [0.1, 1e30], "ints": [3, -(2**63)],
        "strings": ["a", "b"], "graphs": [body, body], "sparse_tensor": sparse,
    }  # fmt: skip
    node = helper.make_node("Op", ["x", ""], ["y", "z"], name="n", domain="my", **given)
    typed = [
        TensorProto(data_type=TensorProto.FLOAT, dims=[2], float_data=[1.5, 3e-39], name="float"),
        TensorProto(data_type=TensorProto.INT32, dims=[2], int32_data=[-1, 2**31 - 1]),
        TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff\x00"]),
        TensorProto(data_type=TensorProto.INT64, dims=[2], int64_data=[-1, 2**62]),
        TensorProto(data_type=TensorProto.DOUBLE, dims=[1], double_data=[1e300]),
        TensorProto(data_type=TensorProto.UINT64, dims=[1], uint64_data=[2**64 - 1]),
        TensorProto(data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL),
        TensorProto(segment=TensorProto.Segment(begin=3), raw_data=b"1234"),
    ]
    typed[6].external_data.add(key="location", value="w.bin")
    open_dims = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", -1, None, 3])
    kinds = [
        open_dims,
        helper.make_value_info("s", helper.make_sequence_type_proto(open_dims.type)),
        helper.make_value_info("o", helper.make_optional_type_proto(open_dims.type)),
        helper.make_value_info("m", helper.make_map_type_proto(TensorProto.INT64, open_dims.type)),
        helper.make_value_info("p", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [3])),
        onnx.ValueInfoProto(name="none"),
    ]
    graph = helper.make_graph([node, node], "g", kinds, kinds[:2], typed, sparse_initializer=[sparse])
    function = helper.make_function("my", "Op", ["a"], ["b"], [], [helper.make_opsetid("", 17)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    helper.set_model_props(model, {"key": "value", "other": ""})
    return model


def assert_same(ours: Any, theirs: Any, where: str = "model") -> None:
    """All fields that ours knows, by what protobuf's message has in them."""
    for name, field in type(ours).fields.items():
        if isinstance(field, wire.Nested) and field.is_repeated:
            assert len(getattr(ours, name)) == len(getattr(theirs, name)), f"{where}.{name}"
            for i, (a, b) in enumerate(zip(getattr(ours, name), getattr(theirs, name))):
                assert_same(a, b, f"{where}.{name}[{i}]")
        elif field.default() == ():
            a, b = list(getattr(ours, name)), list(getattr(theirs, name))
            assert repr(a) == repr(b), f"{where}.{name}"  # NaN is not equal to itself
        else:
            assert ours.HasField(name) == theirs.HasField(name), f"{where}.{name}"
            if isinstance(field, wire.Nested):
                if ours.HasField(name):  # a type may hold others without an end
                    assert_same(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
            else:
                a = getattr(ours, name)
                held = bytes(a) if isinstance(a, memoryview) else a
                assert repr(held) == repr(getattr(theirs, name)), f"{where}.{name}"


def written(m: ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    return path


# --- the definitions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", CLASSES, ids=lambda c: c.__name__)
def test_fields_are_those_of_onnx(ours: type[wire.Message]) -> None:
    outer, _, inner = THEIRS.get(ours.__name__, ours.__name__).partition(".")
    theirs = getattr(onnx, outer).DESCRIPTOR
    theirs = theirs.nested_types_by_name[inner] if inner else theirs
    for name, field in ours.fields.items():
        if (ours, name) == (messages.TypeProto, "opaque_type"):
            continue  # of ONNX-ML files that this onnx package does not write
        defined = theirs.fields_by_name[name]
        assert field.number == defined.number, name
        assert (field.default() == ()) == defined.is_repeated, name
        nested = isinstance(field, wire.Nested)
        assert nested == (defined.message_type is not None), name
        if nested and field.message() is not wire.Message:
            known = THEIRS.get(field.message().__name__, field.message().__name__)
            assert defined.message_type.full_name == f"onnx.{known}", name
        assert ours.exclusive == (defined.containing_oneof is not None), name


def test_enumerations_are_those_of_onnx() -> None:
    assert {t.name: t.value for t in messages.AttributeType} == dict(AttributeProto.AttributeType.items())
    assert {name: i for i, name in enumerate(messages.ELEMENT_TYPES)} == dict(TensorProto.DataType.items())
    assert messages.EXTERNAL == TensorProto.EXTERNAL


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [every_field, example])
def test_messages_are_those_that_protobuf_reads(model: Callable[[], ModelProto]) -> None:
    content = model().SerializeToString()
    ours = messages.ModelProto.read(content)
    assert_same(ours, ModelProto.FromString(content))
    assert ours.SerializeToString() == content


def test_numbers_are_read_one_by_one_too() -> None:
    key = bytes([8 << 3])  # AttributeProto.ints, not packed
    content = key + b"\x05" + key + b"\xff" * 9 + b"\x01" + bytes([8 << 3 | 2, 3]) + b"\x07\x80\x01"
    assert list(messages.AttributeProto.read(content).ints) == [5, -1, 7, 128]
    assert_same(messages.AttributeProto.read(content), AttributeProto.FromString(content))


def test_a_field_that_is_left_out_has_its_default() -> None:
    empty = messages.TensorProto()
    assert (empty.name, list(empty.dims), empty.data_type, empty.HasField("raw_data")) == ("", [], 0, False)
    assert messages.ModelProto().graph.node == ()
    with pytest.raises(AttributeError, match="TensorProto has no field 'doc_string'"):
        attrgetter("doc_string")(empty)


def test_of_exclusive_fields_the_last_one_counts() -> None:
    value, param = bytes([1 << 3, 7]), bytes([2 << 3 | 2, 1]) + b"N"
    for content, expected in ((value + param, "dim_param"), (param + value, "dim_value")):
        dim = messages.Dimension.read(content)
        assert [name for name in dim.fields if dim.HasField(name)] == [dim.WhichOneof("value")] == [expected]


@pytest.mark.parametrize("is_mapped", [False, True])
def test_graphs_are_the_same_as_from_memory(is_mapped: bool, tmp_path: Path) -> None:
    m = example()
    ours, theirs = renorm.frontends.read(written(m, tmp_path), is_mapped=is_mapped), renorm.read(m)
    assert list(ours.constants) == list(theirs.constants)
    for name, v in ours.constants.items():
        assert v.type == theirs.constants[name].type
        assert v.data is not None
        np.testing.assert_array_equal(v.data, theirs.constants[name].data)
        assert v.data.flags.owndata or (is_mapped and v.data.nbytes >= wire.LARGE) or name == "typed"
        assert v.data.flags.aligned or is_mapped
    mapped = [v for v in ours.constants.values() if v.data is not None and not v.data.flags.owndata]
    assert len(mapped) > 20 or not is_mapped
    assert [repr(n) for n in ours.nodes] == [repr(n) for n in theirs.nodes]


@pytest.mark.parametrize("dtype", [*DTYPES, "int16", "uint16", "uint64"], ids=str)
@pytest.mark.parametrize("is_raw", [False, True])
def test_elements_are_those_that_onnx_gives(dtype: Any, is_raw: bool) -> None:
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype)
    values = rng.normal(size=(3, 5)) * 9
    if kind.kind in "iu":
        values = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, (3, 5), endpoint=True, dtype=kind)
    code = helper.np_dtype_to_tensor_dtype(kind)
    held = np.asarray(values).astype(kind)
    tensor = helper.make_tensor("w", code, (3, 5), held.tobytes() if is_raw else held.ravel(), raw=is_raw)
    ours = tensors.to_array(messages.TensorProto.read(tensor.SerializeToString()), None, "w")
    theirs = tensors.to_array(tensor, None, "w")  # pyright: ignore[reportArgumentType]  # onnx's own
    for array in (ours, theirs):
        assert array.dtype == held.dtype
        np.testing.assert_array_equal(array, numpy_helper.to_array(tensor))
        np.testing.assert_array_equal(array, held)


# --- what is unusual, and what is damaged ---------------------------------------------------------------------------


W = np.arange(30_000, dtype=np.float32)


def renamed(t: TensorProto, name: str) -> TensorProto:
    t.name = name
    return t


UNUSUAL: dict[str, Callable[[ModelProto], bytes]] = {
    "two graphs to merge": lambda m: m.SerializeToString() + ModelProto(graph=m.graph).SerializeToString(),
    "two tensors of one name": lambda m: _with(m, renamed(numpy_helper.from_array(W + 1), "float32.5")),
    "a shape too large": lambda m: _with(m, _impossible(0, 2**62, 2**62)),
    "a negative shape": lambda m: _with(m, _impossible(0, -1)),
    "raw data twice": lambda m: _with(m, _twice(numpy_helper.from_array(W, "again"))),
    "a segment": lambda m: _with(m, TensorProto(name="s", data_type=1, dims=[0], segment=TensorProto.Segment(begin=0))),
}


def _impossible(*dims: int) -> TensorProto:
    """No elements, and yet a shape that no array can have."""
    t = TensorProto(name="impossible", data_type=TensorProto.FLOAT, raw_data=b"", doc_string="x" * wire.LARGE)
    t.dims.extend(dims)
    return t


def _with(m: ModelProto, t: TensorProto) -> bytes:
    m.graph.initializer.append(t)
    m.graph.node.append(helper.make_node("Identity", [t.name], [f"{t.name} again"]))
    m.graph.output.append(helper.make_tensor_value_info(f"{t.name} again", t.data_type, None))
    return m.SerializeToString()


def _twice(t: TensorProto) -> TensorProto:
    """The later one counts."""
    return TensorProto.FromString(TensorProto(raw_data=bytes(t.raw_data)).SerializeToString() + t.SerializeToString())


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_is_read_as_protobuf_reads_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(UNUSUAL[kind](example()))
    theirs = ModelProto.FromString(path.read_bytes())
    assert_same(messages.ModelProto.read(path.read_bytes()), theirs)
    try:
        expected = renorm.read(theirs)
    except RenormError as error:
        with pytest.raises(type(error)):
            renorm.read(path)
        return
    ours = renorm.read(path)
    for name, v in expected.constants.items():
        np.testing.assert_array_equal(ours.constants[name].data, v.data)


def test_graphs_deeper_than_protobuf_reads_are_refused() -> None:
    def nested(depth: int) -> bytes:
        found = GraphProto(output=[onnx.ValueInfoProto(name="y")]).SerializeToString()
        for i in range(depth):
            for key in (6, 5, 1, 7)[: 3 if i < depth - 1 else 4]:  # g of an attribute, attribute, node, graph
                size = len(found)
                found = bytes([key << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + found
        return found

    assert_same(messages.ModelProto.read(nested(30)), ModelProto.FromString(nested(30)))
    with pytest.raises(DecodeError):
        ModelProto.FromString(nested(60))
    with pytest.raises(renorm.errors.InvalidModel, match="more than 100 messages within each other"):
        renorm.read(nested(60))


@pytest.mark.parametrize(
    ("stray", "words"),
    [
        (b"\x00\x01", "a field 0"),  # a number
        (b"\x02\x00", "a field 0"),  # no bytes
        (b"\x80\x00\x01", "a field 0"),  # in a varint of two bytes
        (b"\x80\x80\x80\x80\x10\x01", "a field 536870912"),
        (b"\xa3\x06\xa4\x06", "a group"),  # 100, which begins and ends
        (b"\xa4\x06", "a group"),
        (b"\xa6\x06", "a field of kind 6"),
    ],
)
@pytest.mark.parametrize("place", ["model", "graph", "initializer"])
def test_fields_that_there_are_not_are_refused(stray: bytes, words: str, place: str, tmp_path: Path) -> None:
    m = example()
    inner = m.graph.initializer[0].SerializeToString() + (stray if place == "initializer" else b"")
    del m.graph.initializer[0]
    graph = m.graph.SerializeToString() + message(5, inner) + (stray if place == "graph" else b"")
    m.ClearField("graph")
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString() + message(7, graph) + (stray if place == "model" else b""))
    with pytest.raises(renorm.errors.InvalidModel, match=words):
        renorm.read(path)
    path.write_bytes(
        m.SerializeToString() + message(7, graph.removesuffix(stray)) + message(100, b"of a later version")
    )
    assert place == "initializer" or renorm.read(path).nodes


def message(number: int, content: bytes) -> bytes:
    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    return varint(number << 3 | 2) + varint(len(content)) + content


def mutated(whole: bytes, rng: np.random.Generator) -> bytes:
    found = bytearray(whole)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(found)))
        match int(rng.integers(5)):
            case 0:
                found[at] = int(rng.integers(256))
            case 1:
                found[at] ^= 1 << int(rng.integers(8))
            case 2:
                found[at] = int(rng.choice([0, 1, 127, 128, 255]))
            case 3:
                del found[at : at + int(rng.integers(1, 9))]
            case _:
                found[at:at] = found[at : at + int(rng.integers(1, 30))]
    return bytes(found[: int(rng.integers(len(found)))] if rng.integers(8) == 0 else found)


def test_damaged_messages_are_refused_or_read_as_protobuf_reads_them() -> None:
    rng = np.random.default_rng(11)
    whole, read, refused = every_field().SerializeToString(), 0, 0
    for _ in range(600):
        damaged = mutated(whole, rng)
        try:
            ours = messages.ModelProto.read(damaged)
        except wire.DamagedError:
            refused += 1
            with pytest.raises(DecodeError):
                ModelProto.FromString(damaged)
            continue
        with contextlib.suppress(DecodeError):  # of a field that is passed over here
            assert_same(ours, ModelProto.FromString(damaged))
            read += 1
    assert min(read, refused) > 50


def test_damaged_files_give_errors_of_renorm_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(13)
    w = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    body = """g (float[2, 3, 9, 7] x) => (float[2, 4, 9, 7] y) {
        k = Constant <value_floats = [1.0, 2.0]> ()
        s = Softmax <axis = 0> (k)
        a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
        y = LeakyRelu <alpha = 0.1> (a)
    }"""
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{body}')
    parsed.graph.initializer.append(numpy_helper.from_array(w, "w"))
    whole, path, accepted = parsed.SerializeToString(), tmp_path / "m.onnx", 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diagnoses
        for i in range(400):
            damaged = mutated(whole, rng)
            path.write_bytes(damaged)
            with contextlib.suppress(RenormError):
                renorm.read(path if i % 2 else damaged)
                accepted += 1
    assert accepted > 20
