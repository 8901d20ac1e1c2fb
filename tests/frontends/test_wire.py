"""Model files read with their weights apart: the same model as protobuf reads, or left to it as a whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import renorm
from renorm.errors import InvalidModel
from renorm.frontends.onnx import wire

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool", "uint32", ml_dtypes.bfloat16)


def example(*extra: TensorProto) -> ModelProto:
    """A sum of what its initializers hold: large and small ones of all types, shapes with 1 and 0."""
    rng = np.random.default_rng()
    shapes = [(), (3,), (0, 70_000), (1, 40_000), (7, 11, 1500), (90_001,)]
    tensors = [
        numpy_helper.from_array(np.asarray(rng.integers(0, 2, s)).astype(d), f"{np.dtype(d)}.{i}")
        for d in DTYPES
        for i, s in enumerate(shapes)
    ]
    tensors += [helper.make_tensor("typed", TensorProto.FLOAT, (20_000,), rng.normal(size=20_000).tolist()), *extra]
    nodes = [helper.make_node("Identity", [t.name], [f"of {t.name}"]) for t in tensors]
    nodes.append(helper.make_node("Neg", ["x"], ["y"], name="n"))
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, (2,)) for v in "xy")
    outputs = [y, *(helper.make_tensor_value_info(f"of {t.name}", t.data_type, t.dims) for t in tensors)]
    graph = helper.make_graph(nodes, "g", [x], outputs, tensors, doc_string="said of it")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], producer_name="somebody")


def written(m: ModelProto, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_what_is_lifted_and_what_is_left_are_the_model(tmp_path: Path) -> None:
    m = example()
    data, lifted = wire.read(written(m, tmp_path))
    left = ModelProto.FromString(data)
    assert {np.dtype(a.dtype).name for a in lifted.values()} == {"float32", "float64", "float16", "int8", "uint8"} | {
        "int32",
        "int64",
    }
    assert len(data) < wire.LARGE * 40
    for t in left.graph.initializer:
        if t.name in lifted:
            assert not t.raw_data
            t.raw_data = lifted[t.name].tobytes()
            assert lifted[t.name].shape == tuple(t.dims)
            assert not lifted[t.name].flags.owndata
    assert left == m


def test_graphs_are_the_same_as_from_memory(tmp_path: Path) -> None:
    m = example()
    ours, theirs = renorm.read(written(m, tmp_path)), renorm.read(m)
    assert list(ours.constants) == list(theirs.constants)
    for name, v in ours.constants.items():
        assert v.type == theirs.constants[name].type
        assert v.data is not None
        np.testing.assert_array_equal(v.data, theirs.constants[name].data)
        assert v.data.flags.aligned
    assert [repr(n) for n in ours.nodes] == [repr(n) for n in theirs.nodes]


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    m, pipe = example(), tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(m.SerializeToString(),), daemon=True)
    writer.start()
    assert list(renorm.read(pipe).constants) == list(renorm.read(m).constants)
    writer.join()


W = np.arange(30_000, dtype=np.float32)


def renamed(t: TensorProto, name: str) -> TensorProto:
    t.name = name
    return t


UNUSUAL: dict[str, Callable[[ModelProto], bytes]] = {
    "two graphs to merge": lambda m: m.SerializeToString() + ModelProto(graph=m.graph).SerializeToString(),
    "two tensors of one name": lambda m: ModelProto(
        ir_version=9,
        graph=_with(m, renamed(numpy_helper.from_array(W + 1), "float32.5")),
        opset_import=m.opset_import,
    ).SerializeToString(),
    "a shape too large": lambda m: ModelProto(
        ir_version=9, graph=_with(m, _impossible(0, 2**62, 2**62)), opset_import=m.opset_import
    ).SerializeToString(),
    "a negative shape": lambda m: ModelProto(
        ir_version=9, graph=_with(m, _impossible(0, -1)), opset_import=m.opset_import
    ).SerializeToString(),
    "raw data twice": lambda m: ModelProto(
        ir_version=9, graph=_with(m, _twice(numpy_helper.from_array(W, "again"))), opset_import=m.opset_import
    ).SerializeToString(),
}


def _impossible(*dims: int) -> TensorProto:
    """No elements, and yet a shape that no array can have."""
    t = TensorProto(name="impossible", data_type=TensorProto.FLOAT, raw_data=b"", doc_string="x" * wire.LARGE)
    t.dims.extend(dims)
    return t


def _with(m: ModelProto, t: TensorProto) -> onnx.GraphProto:
    m.graph.initializer.append(t)
    return m.graph


def _twice(t: TensorProto) -> TensorProto:
    """The later one counts."""
    return TensorProto.FromString(TensorProto(raw_data=bytes(t.raw_data)).SerializeToString() + t.SerializeToString())


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_is_left_to_protobuf(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(UNUSUAL[kind](example()))
    theirs = ModelProto.FromString(path.read_bytes())
    try:
        expected = renorm.read(theirs)
    except renorm.errors.RenormError as error:
        with pytest.raises(type(error)):
            renorm.read(path)
        return
    ours = renorm.read(path)
    for name, v in expected.constants.items():
        np.testing.assert_array_equal(ours.constants[name].data, v.data)


def test_damaged_files_are_refused_as_protobuf_refuses_them(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    whole = example().SerializeToString()
    path = tmp_path / "m.onnx"
    for _ in range(60):
        at = int(rng.integers(len(whole)))
        damaged = whole[:at] if rng.integers(2) else whole[:at] + rng.bytes(1) + whole[at + 1 :]
        path.write_bytes(damaged)
        data, lifted = wire.read(path)
        try:
            theirs = ModelProto.FromString(damaged)
        except Exception:
            with pytest.raises(InvalidModel, match="not an ONNX model"):
                renorm.read(path)
            continue
        ours = ModelProto.FromString(data)
        for t in ours.graph.initializer:
            if t.name in lifted and not t.raw_data:
                t.raw_data = lifted[t.name].tobytes()
        if len({t.name for t in theirs.graph.initializer}) == len(theirs.graph.initializer):  # else it is read whole
            assert ours.SerializeToString() == theirs.SerializeToString()  # equal messages with a NaN are not equal
