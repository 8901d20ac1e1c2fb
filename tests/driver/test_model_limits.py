"""What models may ask for: each limit, with models of a few bytes that ask for more, and that it can be raised."""

from __future__ import annotations

import os
import socket
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import renorm
from renorm import Limits, frontends
from renorm.cli.group import main
from renorm.errors import InvalidInput, InvalidModel, LimitExceeded
from renorm.graph import registry
from renorm.graph.ir import Graph

onnx = pytest.importorskip("onnx")
h, node = onnx.helper, onnx.helper.make_node


def model(nodes: Sequence[Any], shape: Sequence[int], *functions: Any, **constants: Any) -> bytes:
    inits = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    x, y = (h.make_tensor_value_info(name, 1, s) for name, s in (("x", shape), ("y", None)))
    graph = h.make_graph(nodes, "net", [x], [y], inits)
    opsets = [h.make_opsetid("", 17), h.make_opsetid("own", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions).SerializeToString()


def function(name: str, *called: str) -> Any:
    """A function of the model: ops and functions one after the other."""
    values = ["a", *(f"v{i}" for i in range(1, len(called))), "b"]
    domains = ["" if op[0].isupper() else "own" for op in called]
    steps = [node(op, [values[i]], [values[i + 1]], domain=d) for i, (op, d) in enumerate(zip(called, domains))]
    return h.make_function("own", name, ["a"], ["b"], steps, [h.make_opsetid("", 17), h.make_opsetid("own", 1)])


def doubling(n: int) -> bytes:
    bodies = [function("f0", "Neg", "Neg"), *(function(f"f{i}", f"f{i - 1}", f"f{i - 1}") for i in range(1, n))]
    return model([node(f"f{n - 1}", ["x"], ["y"], domain="own")], [2], *bodies)


def branches(n: int) -> bytes:
    result = h.make_tensor_value_info("y", 1, None)
    inner = [node("Neg", ["x"], ["y"])]
    for i in range(n):
        graphs = {f"{side}_branch": h.make_graph(inner, side, [], [result]) for side in ("then", "else")}
        inner = [node("If", ["c"], ["y"], name=f"if{i}", **graphs)]
    return model(inner, [2], c=np.array([True]))


ADD = node("Add", ["x", "c"], ["y"])
SUM = [node("Expand", ["x", "s"], ["e"]), node("ReduceSum", ["e"], ["y"])]
RANGE = [node("Range", ["a", "b", "d"], ["r"]), node("Cast", ["r"], ["c"], to=1), ADD]
POOL = node("MaxPool", ["x"], ["y"], kernel_shape=[2**31] * 2, pads=[2**30] * 4)
DOUBLED = [node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0) for i in range(34)]
FAR = np.array([2**40], np.int64)

LARGE = {
    "operations, window": (lambda: model([node("LRN", ["x"], ["y"], size=2**40 + 1)], [1, 8, 4, 4]), "operations"),
    "operations, sum": (lambda: model(SUM, [1], s=np.array([2**31, 2**31], np.int64)), "elements operations"),
    "operations, pool": (lambda: model([POOL], [1, 1, 4, 4]), "operations"),
    "expansions": (lambda: doubling(25), "nodes expansions nesting"),
    "expansions without end": (lambda: doubling(1100), "nodes expansions nesting"),
    "nesting": (lambda: branches(6), "nesting"),
    "constant": (lambda: model([node("ConstantOfShape", ["s"], ["c"]), ADD], [1], s=FAR), "elements bytes"),
    "repeated": (lambda: model([node("Tile", ["x", "s"], ["y"])], [1], s=FAR), "elements bytes"),
    "padded": (
        lambda: model([node("Pad", ["x", "p"], ["y"])], [1], p=np.array([0, 2**41], np.int64)),
        "elements bytes",
    ),
    "counted": (lambda: model(RANGE, [1], a=np.int64(0), b=np.int64(10**12), d=np.int64(1)), "elements bytes"),
    "beyond 64 bits": (lambda: model(SUM, [1], s=np.array([2**22] * 3, np.int64)), "elements operations"),
    "constants that double": (
        lambda: model([*DOUBLED, node("Add", ["x", "c34"], ["y"])], [1], c0=np.array([1], np.float32)),
        "bytes",
    ),
    "input": (lambda: model([node("ReduceSum", ["x"], ["y"])], [2**34]), "bytes"),
}


@pytest.mark.parametrize(("name", "verify"), [*((name, False) for name in LARGE), ("input", True)])
def test_a_small_file_that_asks_for_much_is_refused_before_anything_is_made(name: str, verify: bool) -> None:
    made, names = LARGE[name]
    file, since = made(), time.process_time()
    with pytest.raises(LimitExceeded) as error:
        renorm.compile(file, limits=Limits(bytes=1 << 34, nesting=4), verify=verify)
    assert time.process_time() - since < 20  # a second, on a machine that does nothing else
    assert [*dict.fromkeys(fact.partition(":")[0] for fact in error.value.facts)] == names.split()
    assert f"--limit {names.split()[-1]}=" in str(error.value)


def test_functions_that_call_themselves_are_refused() -> None:
    file = model([node("p", ["x"], ["y"], domain="own")], [2], function("p", "q", "Neg"), function("q", "Neg", "p"))
    with pytest.raises(InvalidModel, match=r"call themselves\n.*own::p -> own::q -> own::p"):
        renorm.read(file)


def test_functions_within_limits_are_put_in_the_place_of_calls() -> None:
    file = doubling(6)
    assert len(renorm.read(file).nodes) == 64
    with pytest.raises(LimitExceeded, match="expansions: 64, at most 63; most of own::f5"):
        renorm.read(file, limits=Limits(expansions=63))


@pytest.mark.parametrize("limit", ["nodes", "elements", "bytes", "operations", "file_bytes"])
def test_each_limit_can_be_lowered_and_raised(limit: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model([node("Neg", ["x"], ["a"]), node("MatMul", ["a", "w"], ["y"])], [7, 5], w=np.ones((5, 3), "f4"))
    )
    found = {"nodes": 2, "elements": 35, "bytes": 4 * (35 + 21 + 15), "operations": 35 + 105}
    most = found | {"file_bytes": path.stat().st_size}
    # between kernels memory begins at multiples of 64, and columns of weights fill vectors, of 64 bytes at the most
    padding = 64 * 3 + 64 * 5 if limit == "bytes" else 0
    renorm.compile(path, limits=Limits(**{limit: most[limit] + padding}), threads=1)
    with pytest.raises(LimitExceeded, match=rf"{limit}: {most[limit]}, at most {most[limit] - 1}"):
        renorm.compile(path, limits=Limits(**{limit: most[limit] - 1}))


def test_memory_between_kernels_is_counted() -> None:
    nodes = [node("Softmax", ["x"], ["a"]), node("Softmax", ["a"], ["b"], axis=0), node("ReduceSum", ["b"], ["y"])]
    file = model(nodes, [64, 64])
    with pytest.raises(LimitExceeded, match=r"bytes: .* between kernels"):
        renorm.compile(file, limits=Limits(bytes=4 * 64 * 64 + 8))
    renorm.compile(file, limits=Limits(bytes=3 * 4 * 64 * 64))


def test_limits_are_whole_numbers() -> None:
    assert Limits(operations=1e15).operations == 10**15  # type: ignore[arg-type]
    for wrong in (-1, 1.5, "1", True, float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match="nodes"):
            Limits(nodes=wrong)  # type: ignore[arg-type]


def test_operations_of_every_op_are_bounded_before_they_are_counted() -> None:
    """What decides that a network need not be counted is not below what counting gives."""
    from renorm.driver.bounds import _at_most, _operations

    for op in registry.all_ops():
        for sample in op.samples[:4]:
            g = Graph()
            rng = np.random.default_rng(0)

            def held(spec: Any, is_static: bool, g: Graph = g, rng: Any = rng) -> Any:
                """Data are inputs: what they say (indices) is not looked at."""
                if isinstance(spec, list):
                    return [held(s, is_static) for s in spec]
                if spec is None:
                    return None
                array = spec.draw(rng)
                return g.constant(array) if is_static else g.input(f"x{len(g.inputs)}", spec.type.dtype, array.shape)

            known = {p.name for p in op.parsed.operands if p.is_static}
            flat = [s for given in sample.operands for s in (given if isinstance(given, list) else [given])]
            operands = [held(s, p.name in known) for s, p in zip(op.arrange(flat), op.parsed.operands)]
            g.apply(op(**sample.attributes), operands)
            for n in g.nodes:
                counted = dict(_operations(g))[n.name]
                assert counted <= 64 * (_at_most(n) + 1), (op.name, sample, counted, _at_most(n))


# --- files ------------------------------------------------------------------------------------------------------------


READERS: dict[str, Callable[..., object]] = {
    "read": renorm.read,
    "unfold": lambda path, **limits: renorm.unfold(path, path.with_name(f"back{path.suffix}"), **limits),
    "write_state": lambda path, **limits: renorm.write_state(path, {}, path.with_name("back.onnx"), **limits),
}


@pytest.mark.parametrize(
    ("reader", "suffix"),
    [("read", ".onnx"), ("read", ".tflite"), ("unfold", ".onnx"), ("unfold", ".tflite"), ("write_state", ".onnx")],
)
def test_only_ordinary_files_are_read(reader: str, suffix: str, tmp_path: Path) -> None:
    path, read = tmp_path / f"m{suffix}", READERS[reader]
    os.mkfifo(path)
    with pytest.raises(InvalidModel, match="it is a pipe"):
        read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InvalidModel, match="it is a device"):
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidModel, match="directory"):
        read(path)
    path.rmdir()
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))
        with pytest.raises(InvalidModel):
            read(path)
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 37)
    with pytest.raises(LimitExceeded, match="file_bytes: 137,438,953,472"):
        read(path)


def with_data_outside(folder: Path) -> Path:
    proto = onnx.load_from_string(model([node("Add", ["x", "w"], ["y"])], [300], w=np.ones(300, np.float32)))
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


@pytest.mark.parametrize("reader", READERS)
def test_data_with_another_name_is_refused(reader: str, tmp_path: Path) -> None:
    path = with_data_outside(tmp_path)
    renorm.read(path)
    os.link(tmp_path / "w.bin", tmp_path / "other")
    with pytest.raises(InvalidModel, match=r"other names too\n.*2 hard links.*\n.*cp w.bin"):
        READERS[reader](path)


DAMAGED = {
    "no file": {"location": "w2.bin"},
    "no name": {"location": ""},
    "outside": {"location": "../w.bin"},
    "negative": {"offset": "-5"},
    "no number": {"offset": "x"},
    "too long": {"length": "9999999"},
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_what_a_model_says_of_its_data_may_be_wrong(reader: str, damage: str, tmp_path: Path) -> None:
    path = with_data_outside(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    (tensor,) = proto.graph.initializer
    said = {e.key: e.value for e in tensor.external_data} | DAMAGED[damage]
    del tensor.external_data[:]
    for key, value in said.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModel):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_all_who_read_models_take_limits(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(doubling(6))
    for limits, said in ((Limits(expansions=63), "expansions: 64, at most 63"), (Limits(file_bytes=10), "file_bytes")):
        with pytest.raises(LimitExceeded, match=said):
            READERS[reader](path, limits=limits)


def test_a_recipe_is_made_within_the_limits_of_who_optimizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out, given = tmp_path / "m.onnx", tmp_path / "out.onnx", list[Any]()
    path.write_bytes(doubling(6))
    with pytest.raises(LimitExceeded, match="expansions: 64, at most 63"):
        frontends.write_reversibly(renorm.read(path), out, path, Limits(expansions=63))
    monkeypatch.setattr("renorm.driver.optimize.write_reversibly", lambda *args: given.extend(args))
    limits = Limits(expansions=64)
    renorm.optimize(path, out, reversible=True, limits=limits)
    assert given[-1] is limits


def test_data_is_an_ordinary_file(tmp_path: Path) -> None:
    path = with_data_outside(tmp_path)
    (tmp_path / "w.bin").unlink()
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(InvalidModel):
        renorm.read(path)


def test_a_dense_array_of_a_sparse_one_is_counted() -> None:
    values = onnx.numpy_helper.from_array(np.array([1], np.float32), "w")
    sparse = h.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array([3], np.int64)), [1 << 38])
    proto = onnx.load_from_string(model([node("Add", ["x", "w"], ["y"])], [1]))
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(LimitExceeded, match="elements: 274,877,906,944"):
        renorm.read(proto.SerializeToString())


def test_a_batch_of_a_billion_is_compiled() -> None:
    ones = np.ones(1, np.float32)
    norm = node("BatchNormalization", ["c", *"sbmv"], ["n"])
    constants = {"w": np.ones((1, 1, 1, 1), np.float32), **dict.fromkeys("sbmv", ones)}
    file = model([node("Conv", ["x", "w"], ["c"]), norm, node("Relu", ["n"], ["y"])], [10**9, 1, 1, 1], **constants)
    m = renorm.compile(file, limits=Limits(bytes=1 << 40), threads=1)
    assert [n.fate for n in m.report.norms] == ["folded"]


# --- command line -----------------------------------------------------------------------------------------------------


def test_limits_of_unfold_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["y"])], [3]))
    ran = CliRunner().invoke(main, ["unfold", str(path), str(tmp_path / "out.onnx"), "--limit", "nodes=1"])
    assert ran.exit_code == 3, ran.output
    assert "nodes: 2, at most 1" in ran.output


@pytest.mark.parametrize("verb", [["compile"], ["inspect"], ["doctor"], ["optimize"], ["check"]])
def test_limits_on_the_command_line(verb: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["y"])], [3]))
    out = [str(tmp_path / "out.onnx")] if verb == ["optimize"] else []
    ran = CliRunner().invoke(main, [*verb, str(path), *out, "--limit", "nodes=1"])
    assert ran.exit_code == 3, ran.output
    assert "nodes: 2, at most 1" in ran.output
    assert CliRunner().invoke(main, [*verb, str(path), *out, "--limit", "nodes=1e3"]).exit_code == 0
    ran = CliRunner().invoke(main, [*verb, str(path), *out, "--limit", "notes=1"])
    assert ran.exit_code == 2
    assert "limits are file_bytes, nodes" in ran.output


def test_a_limit_that_is_raised_holds_wherever_check_reads_a_file(tmp_path: Path) -> None:
    """Two files that differ, nested deeper than by default: they are read again to find where they begin to differ."""
    for kind in ("Neg", "Abs"):
        bodies = [function("f0", kind), *(function(f"f{i}", f"f{i - 1}") for i in range(1, 40))]
        (tmp_path / f"{kind}.onnx").write_bytes(model([node("f39", ["x"], ["y"], domain="own")], [2], *bodies))
    files = [str(tmp_path / f"{kind}.onnx") for kind in ("Neg", "Abs")]
    assert CliRunner().invoke(main, ["check", *files]).exit_code == 3
    ran = CliRunner().invoke(main, ["check", *files, "--limit", "nesting=50"])
    assert ran.exit_code == 1, ran.output
    assert "first diverging tensor" in ran.output


def test_loops_of_more_rounds_than_32_bits_count_are_compiled() -> None:
    """Bounds of an index are of its type, also where they are beyond that."""
    for size in (2**31 + 1, 2**40 + 1):
        file = model([node("LRN", ["x"], ["y"], size=size)], [1, 8, 4, 4])
        renorm.compile(file, limits=Limits(operations=1 << 62), threads=1)


def test_a_batch_of_a_thousand_million_is_refused_or_costs_nothing_but_its_results() -> None:
    """Nothing is allocated for each sample before it is known that it may be."""
    w, s = np.ones((3, 2, 1, 1), np.float32), np.arange(1, 4, dtype=np.float32)
    small = np.ones(2, np.float32)
    networks = (
        [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "s", "s", "s", "s"], ["y"])],
        [node("BatchNormalization", ["x", "p", "p", "p", "p"], ["b"]), node("Conv", ["b", "w"], ["y"])],
        [node("InstanceNormalization", ["x", "p", "p"], ["y"])],
        [node("Transpose", ["x"], ["t"], perm=[1, 0, 2, 3]), node("Mul", ["t", "k"], ["y"])],
        [node("Conv", ["x", "w"], ["c"]), node("Reshape", ["c", "flat"], ["r"]), node("Mul", ["r", "k"], ["y"])],
    )
    constants = {"w": w, "s": s, "p": small, "k": np.array([3], np.float32), "flat": np.array([-1, 3], np.int64)}
    limits = Limits(bytes=1 << 50, elements=1 << 40, operations=1 << 60)
    for nodes in networks:
        file = model(nodes, [10**9, 2, 1, 1], **constants)
        with pytest.raises(LimitExceeded, match="bytes"):
            renorm.compile(file, limits=Limits(bytes=1 << 30))
        tracemalloc.start()
        m = renorm.compile(file, limits=limits, threads=1)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
        tracemalloc.stop()
        assert m.inputs[0].shape == (10**9, 2, 1, 1)
