"""unfold(optimize(model)) is the model: its nodes with their names, and its constants to the last bit."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import ModelProto, NodeProto, helper, numpy_helper
from tests.frontends import onnx_runtime
from tests.frontends.models import DIGITS, model
from tests.frontends.test_tflite_writer import seed_001
from tests.frontends.tflite_files import File, litert
from tests.shared_files import shared

import renorm
from renorm.cli import main
from renorm.core.limits import DEFAULT
from renorm.errors import InvalidInput, InvalidModel, RenormError
from renorm.frontends import recipe, tflite
from renorm.frontends.onnx import listing as onnx_listing
from renorm.frontends.recipe import KEY
from renorm.frontends.tflite.listing import listing
from renorm.frontends.tflite.model import Model


class Network:
    """A random network in the making: what reads and makes what, and constants."""

    def __init__(self, seed: int, rank: int = 2):
        self.rng, self.rank = np.random.default_rng(seed), rank
        self.nodes, self.constants, self.shape = (
            list[NodeProto](),
            dict[str, np.ndarray](),
            dict[str, tuple[int, ...]](),
        )
        self.shape["x"] = (2, 6, *(8, 7, 5)[:rank])

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, np.float32)
        return name

    def node(self, op: str, reads: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, reads, [name], name=f"{op}.{len(self.nodes)}", **attributes))
        self.shape[name] = shape
        return name

    def norm(self, x: str, zeros: bool = False) -> str:
        c = self.shape[x][1]
        scale, bias, mean = self.rng.standard_normal((3, c))
        if zeros:
            scale[::2] = 0
        var = self.rng.uniform(0.1, 3, c)
        return self.node("BatchNormalization", [x, *map(self.constant, (scale, bias, mean, var))], self.shape[x])

    def arithmetic(self, x: str) -> str:
        """Mul and Add in the place of a norm."""
        spread = (self.shape[x][1], *[1] * (len(self.shape[x]) - 2))
        y = self.node("Mul", [x, self.constant(self.rng.standard_normal(spread))], self.shape[x])
        return self.node("Add", [self.constant(self.rng.standard_normal(spread)), y], self.shape[x])

    def conv(self, x: str, out: int, groups: int = 1, pad: int = 0) -> str:
        w = self.constant(self.rng.standard_normal((out, self.shape[x][1] // groups, *[3] * self.rank)))
        reads = [x, w] + ([self.constant(self.rng.standard_normal(out))] if self.rng.random() < 0.5 else [])
        shape = (self.shape[x][0], out, *(d + 2 * pad - 2 for d in self.shape[x][2:]))
        return self.node("Conv", reads, shape, group=groups, pads=[pad] * (2 * self.rank))

    def transposed(self, x: str, out: int, groups: int = 1) -> str:
        w = self.constant(self.rng.standard_normal((self.shape[x][1], out // groups, *[2] * self.rank)))
        shape = (self.shape[x][0], out, *(2 * d for d in self.shape[x][2:]))
        return self.node("ConvTranspose", [x, w], shape, group=groups, strides=[2] * self.rank)

    def model(self, *outputs: str) -> ModelProto:
        x, *results = (helper.make_tensor_value_info(n, 1, self.shape[n]) for n in ("x", *outputs))
        initializers = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "net", [x], results, initializers)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made


def random_network(seed: int) -> ModelProto:
    """A chain of linear ops with norms before, behind and between; a concat of two; a Gemm behind it."""
    n = Network(seed, rank=1 + seed % 3)
    rng, x = n.rng, "x"
    for _ in range(int(rng.integers(2, 5))):
        before, behind = (int(i) for i in rng.integers(0, 4, 2))
        x = (lambda v: v, n.norm, n.arithmetic, lambda v: n.norm(n.norm(v)))[before](x)
        match int(rng.integers(0, 4)):
            case 0:
                x = n.conv(x, 4 if rng.random() < 0.5 else 6, groups=2 if rng.random() < 0.5 else 1, pad=1)
            case 1:
                x = n.transposed(x, 6, groups=2 if rng.random() < 0.5 else 1)
            case 2:
                x = n.norm(
                    n.node("Concat", [a := n.conv(x, 4, pad=1), n.conv(x, 2, pad=1)], (2, 6, *n.shape[a][2:]), axis=1)
                )
            case _:
                x = n.norm(n.conv(x, 6, pad=1), zeros=True)
        x = (lambda v: v, n.norm, n.arithmetic, lambda v: n.node("Relu", [v], n.shape[v]))[behind](x)
    flat = n.node("GlobalAveragePool", [x], (*n.shape[x][:2], *[1] * n.rank))
    flat = n.node("Flatten", [flat], n.shape[x][:2])
    w = n.constant(rng.standard_normal((5, n.shape[x][1])))
    last = n.node("Gemm", [flat, w, n.constant(rng.standard_normal(5))], (2, 5), transB=1)
    return n.model(n.norm(last), x)


def told(node: NodeProto) -> tuple[Any, ...]:
    attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
    return node.op_type, node.name, list(node.input), list(node.output), attributes


def constants(m: ModelProto) -> dict[str, tuple[Any, ...]]:
    read = {n for x in m.graph.node for n in x.input}
    return {
        t.name: (t.data_type, list(t.dims), numpy_helper.to_array(t).tobytes())
        for t in m.graph.initializer
        if t.name in read
    }


def outputs(m: ModelProto, x: np.ndarray) -> list[np.ndarray]:
    return onnx_runtime.run(m, x)


def there_and_back(source: ModelProto, directory: Path, **options: Any) -> tuple[ModelProto, ModelProto]:
    onnx.save(source, directory / "source.onnx")
    renorm.optimize(directory / "source.onnx", directory / "folded.onnx", reversible=True, **options)
    renorm.unfold(directory / "folded.onnx", directory / "back.onnx")
    return onnx.load(directory / "folded.onnx"), onnx.load(directory / "back.onnx")


@pytest.mark.parametrize("seed", range(18))
def test_random_networks_come_back(seed: int, tmp_path: Path):
    source = random_network(seed)
    folded, back = there_and_back(source, tmp_path, verify=seed % 3 == 0)
    kinds = [n.op_type for n in folded.graph.node]
    assert len(kinds) < len(source.graph.node), kinds
    assert [told(n) for n in back.graph.node] == [told(n) for n in source.graph.node]
    assert constants(back) == constants(source)
    assert not back.metadata_props
    x = np.random.default_rng(seed).standard_normal((2, 6, *(8, 7, 5)[: 1 + seed % 3])).astype(np.float32)
    for y, e, f in zip(outputs(back, x), outputs(source, x), outputs(folded, x), strict=True):
        np.testing.assert_array_equal(y, e)
        np.testing.assert_allclose(f, e, atol=2e-4 * np.abs(e).max())


def test_a_trained_network_comes_back_and_the_way_is_short(tmp_path: Path):
    source = onnx.load(DIGITS / "model.onnx")
    folded, back = there_and_back(source, tmp_path)
    assert [told(n) for n in back.graph.node] == [told(n) for n in source.graph.node]
    assert constants(back) == constants(source)
    (entry,) = folded.metadata_props
    assert entry.key == KEY
    assert len(entry.value) < 0.1 * (tmp_path / "source.onnx").stat().st_size


def test_what_exporters_write_around_weights(tmp_path: Path):
    """Weights transposed by a node, constants as nodes, dropout, unnamed nodes; metadata of the model stays."""
    rng = np.random.default_rng(0)
    source = model(
        """net (float[N, 6] x) => (float[N, 4] y)
        { wt = Transpose <perm = [1, 0]> (w) a = MatMul(x, wt) b = Add(a, c) d = Dropout(b)
          k = Constant <value = float[1] {2.0}> () y = Mul(d, k) }""",
        w=rng.standard_normal((4, 6)).astype(np.float32), c=rng.standard_normal(4).astype(np.float32),
    )  # fmt: skip
    source.metadata_props.add(key="author", value="somebody")
    folded, back = there_and_back(source, tmp_path)
    assert [n.op_type for n in folded.graph.node] == ["Gemm"]
    assert [told(n) for n in back.graph.node] == [told(n) for n in source.graph.node if n.op_type != "Constant"]
    assert [(p.key, p.value) for p in back.metadata_props] == [("author", "somebody")]
    x = rng.standard_normal((3, 6)).astype(np.float32)
    np.testing.assert_array_equal(outputs(back, x)[0], outputs(source, x)[0])


def test_folding_twice_is_undone_twice(tmp_path: Path):
    source = random_network(2)
    onnx.save(source, tmp_path / "0.onnx")
    renorm.optimize(tmp_path / "0.onnx", tmp_path / "1.onnx", reversible=True, passes=["FoldBatchNorm"])
    renorm.optimize(tmp_path / "1.onnx", tmp_path / "2.onnx", reversible=True)
    renorm.unfold(tmp_path / "2.onnx", tmp_path / "1b.onnx")
    a, b = onnx.load(tmp_path / "1.onnx"), onnx.load(tmp_path / "1b.onnx")
    assert [told(n) for n in a.graph.node] == [told(n) for n in b.graph.node]
    renorm.unfold(tmp_path / "1b.onnx", tmp_path / "0b.onnx")
    assert constants(onnx.load(tmp_path / "0b.onnx")) == constants(source)


def test_what_was_changed_since_is_named_and_left(tmp_path: Path):
    n = Network(1)
    a = n.norm(n.conv("x", 4))
    b = n.norm(n.conv(n.node("Relu", [a], n.shape[a]), 3))
    folded, _ = there_and_back(n.model(b), tmp_path)
    _, second = (x for x in folded.graph.node if x.op_type == "Conv")
    weight = next(t for t in folded.graph.initializer if t.name == second.input[1])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(folded, tmp_path / "trained.onnx")
    with pytest.raises(InvalidModel, match="1 of its folds cannot be undone") as error:
        renorm.unfold(tmp_path / "trained.onnx", tmp_path / "back.onnx")
    assert error.value.facts[0].startswith(f"{b}: what makes '{b}' was changed since")
    undone = renorm.unfold(tmp_path / "trained.onnx", tmp_path / "back.onnx", partial=True)
    assert [name for _, name in undone.restored] == ["Conv.0", "BatchNormalization.1"]
    assert [name for name, _ in undone.left] == [b]
    back = onnx.load(tmp_path / "back.onnx")
    assert [x.op_type for x in back.graph.node] == ["Conv", "BatchNormalization", "Relu", "Conv"]
    x = n.rng.standard_normal((2, 6, 8, 7)).astype(np.float32)
    np.testing.assert_allclose(outputs(back, x)[0], outputs(folded, x)[0], atol=1e-3)
    with pytest.raises(InvalidModel, match="1 of its folds cannot be undone"):  # what is left is in the recipe still
        renorm.unfold(back, tmp_path / "again.onnx")


@pytest.mark.parametrize("seed", range(20, 30))
def test_each_region_can_be_undone_by_itself(seed: int, tmp_path: Path):
    """Any of the recipe's regions undone, the others left folded: the network computes the same."""
    source = random_network(seed)
    folded, _ = there_and_back(source, tmp_path)
    whole = recipe.Recipe.unpack(b64decode(folded.metadata_props[0].value), "folded")
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 6, *(8, 7, 5)[: 1 + seed % 3])).astype(np.float32)
    expected = outputs(source, x)
    for _ in range(3):
        some = tuple(r for r in whole.regions if rng.random() < 0.5)
        fragment = onnx_listing.listing(ModelProto.FromString(whole.fragment), DEFAULT)
        found, undone, _ = recipe.undo(onnx_listing.listing(folded, DEFAULT), replace(whole, regions=some), fragment)
        assert (len(undone.restored), undone.left) == (sum(len(r.restored) for r in some), ())
        for y, e in zip(outputs(onnx_listing.assemble(folded, found), x), expected, strict=True):
            np.testing.assert_allclose(y, e, atol=2e-4 * np.abs(e).max())


def test_values_that_somebody_reads_since(tmp_path: Path):
    """A concat moved behind... what is inside a fold and read by a new node cannot go; what was renamed is missing."""
    n = Network(4)
    a = n.node("Concat", [n.conv("x", 4), n.conv("x", 2)], (2, 6, 6, 5), axis=1)
    folded, _ = there_and_back(n.model(n.norm(a)), tmp_path)
    inner = folded.graph.node[0].output[0]
    folded.graph.node.append(helper.make_node("Relu", [inner], ["extra"]))
    folded.graph.output.append(helper.make_tensor_value_info("extra", 1, (2, 4, 6, 5)))
    onnx.save(folded, tmp_path / "changed.onnx")
    with pytest.raises(InvalidModel) as error:
        renorm.unfold(tmp_path / "changed.onnx", tmp_path / "back.onnx")
    assert "is read by what was added since" in error.value.facts[0]
    del folded.graph.node[-1], folded.graph.output[-1]
    for node in folded.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = "renamed" if name == inner else name
    onnx.save(folded, tmp_path / "changed.onnx")
    with pytest.raises(InvalidModel) as error:
        renorm.unfold(tmp_path / "changed.onnx", tmp_path / "back.onnx")
    assert f"'{inner}' is not in the file any more" in error.value.facts[0]


def test_files_without_a_recipe_or_with_a_damaged_one(tmp_path: Path):
    source = random_network(1)
    folded, _ = there_and_back(source, tmp_path)
    with pytest.raises(InvalidModel, match="has no recipe"):
        renorm.unfold(source, tmp_path / "back.onnx")
    whole = folded.metadata_props[0].value
    for damaged in ("no base64!", "AAAA", whole[:40], whole[:-400], whole.replace(whole[100:104], "AAAA", 1)):
        folded.metadata_props[0].value = damaged
        with pytest.raises(InvalidModel, match="its recipe is damaged"):
            renorm.unfold(folded, tmp_path / "none.onnx")
    assert not (tmp_path / "none.onnx").exists()
    with pytest.raises(InvalidInput, match="same format"):
        renorm.optimize(source, tmp_path / "out.circle", reversible=True)
    with pytest.raises(InvalidInput, match="no file to go back to"):
        renorm.optimize(renorm.read(source), tmp_path / "out.onnx", reversible=True)


@cache
def bomb(size: int) -> bytes:
    """A few bytes that stand for many zeros."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.parametrize("place", ["head", "whole", "factors", "residual", "escaped"])
def test_small_recipes_do_not_ask_for_all_memory(place: str, tmp_path: Path):
    source = random_network(1)
    folded, _ = there_and_back(source, tmp_path)
    made = recipe.Recipe.unpack(b64decode(folded.metadata_props[0].value), "m")
    large = bomb(1 << 28)
    content = made.pack()
    if place == "head":
        body = struct.pack("<Q", len(large)) + large + struct.pack("<Q", 0)
        content = b"renorm recipe 1\0" + blake2b(body, digest_size=16).digest() + body
    else:
        part = {"whole": 0, "factors": 0, "residual": 1, "escaped": 2}[place]
        name, code = next(
            (n, c.code) for n, c in made.constants.items() if c.code and (c.code.way is None) == (place == "whole")
        )
        parts = (*code.parts[:part], large, *code.parts[part + 1 :])
        if place == "escaped":
            parts = (parts[0], zlib.compress(b"\x80" * int(np.prod(code.shape))), large)
        if place == "whole":
            code = replace(code, shape=(1 << 26,), dtype="float32")
        constants = {**made.constants, name: replace(made.constants[name], code=replace(code, parts=parts))}
        content = replace(made, constants=constants).pack()
    folded.metadata_props[0].value = b64encode(content).decode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidModel, match="stand for more than the"):
            renorm.unfold(folded, tmp_path / "none.onnx")
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".onnx", ".circle"])
def test_damaged_files_give_errors_of_renorm(suffix: str, tmp_path: Path):
    """Bytes changed at random: an error that names the file, or a file."""
    (tmp_path / "net.circle").write_bytes(seed_001()[0])
    onnx.save(random_network(2), tmp_path / "net.onnx")
    renorm.optimize(tmp_path / f"net{suffix}", tmp_path / f"folded{suffix}", reversible=True)
    whole, rng, failed = (tmp_path / f"folded{suffix}").read_bytes(), np.random.default_rng(0), 0
    for _ in range(150):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), int(rng.integers(1, 12))):
            damaged[at] = int(rng.integers(0, 256))
        (tmp_path / f"damaged{suffix}").write_bytes(damaged)
        try:
            renorm.unfold(tmp_path / f"damaged{suffix}", tmp_path / f"back{suffix}", partial=True)
        except RenormError:
            failed += 1
    assert failed > 10


def test_the_command(tmp_path: Path):
    onnx.save(random_network(3), tmp_path / "a.onnx")

    def run(*arguments: Any, code: int = 0) -> Any:
        result = CliRunner().invoke(main, [*map(str, arguments), "--json"], catch_exceptions=False)
        assert result.exit_code == code, result.output + result.stderr
        return json.loads(result.stdout)

    run("optimize", tmp_path / "a.onnx", tmp_path / "b.onnx", "--reversible")
    found = run("unfold", tmp_path / "b.onnx", tmp_path / "c.onnx")
    assert any(kind == "BatchNormalization" for kind, _ in found["restored"])
    assert found["left"] == []
    assert run("check", tmp_path / "a.onnx", tmp_path / "c.onnx", "-d", 0, "--with", "ort")["agrees"]
    run("unfold", tmp_path / "a.onnx", tmp_path / "c.onnx", code=3)


# --- TensorFlow Lite and Circle -----------------------------------------------------------------------------------


def flat_there_and_back(content: bytes, directory: Path, suffix: str) -> tuple[bytes, bytes]:
    paths = [directory / f"{name}{suffix}" for name in ("source", "folded", "back")]
    paths[0].write_bytes(content)
    renorm.optimize(paths[0], paths[1], reversible=True)
    renorm.unfold(paths[1], paths[2])
    a, b = (listing(Model(memoryview(p.read_bytes()), p.name)) for p in (paths[0], paths[2]))
    assert [a.key(o) for o in a.operators] == [b.key(o) for o in b.operators]
    assert {n: a.digest(n) for n in b.constants} == {n: b.digest(n) for n in b.constants}
    assert (a.inputs, a.outputs) == (b.inputs, b.outputs)
    return paths[1].read_bytes(), paths[2].read_bytes()


def test_the_network_of_the_article_comes_back(tmp_path: Path):
    content, _ = seed_001()
    folded, back = flat_there_and_back(content, tmp_path, ".circle")
    assert (folded[4:8], back[4:8]) == (b"CIR0", b"CIR0")
    kinds = [o.kind for o in listing(Model(memoryview(folded), "folded")).operators]
    assert kinds == ["TRANSPOSE_CONV"]
    kinds = [o.kind for o in listing(Model(memoryview(back), "back")).operators]
    assert kinds == ["TRANSPOSE_CONV", "MUL", "ADD"]


def test_a_trained_network_of_tensorflow_lite_comes_back(tmp_path: Path):
    content = shared("models/tiny_resnet8.tflite").read_bytes()
    folded, back = flat_there_and_back(content, tmp_path, ".tflite")
    x = np.random.default_rng(0).standard_normal((1, 32, 32, 3)).astype(np.float32)
    np.testing.assert_array_equal(litert(back, x)[0], litert(content, x)[0])
    np.testing.assert_allclose(litert(folded, x)[0], litert(content, x)[0], atol=1e-5)


def test_a_chain_with_equal_extents_comes_back(tmp_path: Path):
    """N = H = W = C: no shape tells channels first from channels last, names alone must."""
    rng, file = np.random.default_rng(0), File()
    file.tensor("x", (4, 4, 4, 4))
    before = "x"
    for i in range(3):
        file.constant(f"w{i}", rng.standard_normal((4, 3, 3, 4)).astype(np.float32))
        file.constant(f"k{i}", rng.standard_normal(4).astype(np.float32))
        file.constant(f"b{i}", rng.standard_normal(4).astype(np.float32))
        for t in (f"c{i}", f"m{i}", f"a{i}"):
            file.tensor(t, (4, 4, 4, 4))
        file.operator("CONV_2D", [before, f"w{i}", f"b{i}"], [f"c{i}"], "Conv2DOptions", stride_h=1, stride_w=1)
        file.operator("MUL", [f"c{i}", f"k{i}"], [f"m{i}"], "MulOptions")
        file.operator("ADD", [f"m{i}", f"k{i}"], [f"a{i}"], "AddOptions", fused_activation_function=i % 2)
        before = f"a{i}"
    file.tensor("y", (4, 4, 4, 4))
    file.operator("SOFTMAX", [before], ["y"], "SoftmaxOptions", beta=1.0)
    content = file.written(["x"], ["y"])
    folded, _ = flat_there_and_back(content, tmp_path, ".tflite")
    held = listing(Model(memoryview(folded), "folded"))
    assert [o.makes for o in held.operators] == [("a0",), ("a1",), ("a2",), ("y",)]
    x = rng.standard_normal((4, 4, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(litert(folded, x)[0], litert(content, x)[0], atol=1e-4)
    assert tflite.read(folded).outputs[0].name == "y"


def test_a_file_is_unfolded_to_its_own_format(tmp_path: Path) -> None:
    renorm.optimize(DIGITS / "model.onnx", tmp_path / "m.onnx", reversible=True)
    with pytest.raises(InvalidInput, match="a file of the same format"):
        renorm.unfold(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert not (tmp_path / "m.tflite").exists()


@pytest.mark.parametrize("version", [16, 18])
def test_a_file_converted_since_is_restored_where_definitions_are_the_same(version: int, tmp_path: Path) -> None:
    body = """g (float[2, 3, 8] x) => (float[2, 3, 8] y) {
        m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean <axes = [-1]> (q)
        e = Add(v, eps) s = Sqrt(e) n = Div(d, s) f = Mul(n, w) y = Add(f, w)
    }"""
    source = model(body, w=np.linspace(1, 2, 8, dtype=np.float32), eps=np.array(1e-5, np.float32))
    renorm.optimize(source, tmp_path / "m.onnx", reversible=True)
    made = onnx.load(tmp_path / "m.onnx")
    assert [n.op_type for n in made.graph.node] == ["LayerNormalization"]
    made.opset_import[0].version = version
    if version == 18:  # axes are an operand there
        with pytest.raises(InvalidModel, match=r"version 18 of ai\.onnx.*17, where ReduceMean is defined otherwise"):
            renorm.unfold(made, tmp_path / "u.onnx")
    else:
        renorm.unfold(made, tmp_path / "u.onnx")
        assert [n.op_type for n in onnx.load(tmp_path / "u.onnx").graph.node] == [n.op_type for n in source.graph.node]


def test_unfolding_writes_the_same_bytes_in_each_process(tmp_path: Path):
    """Whatever the hashes of names are, which Python draws anew for each process."""
    folded, script = tmp_path / "folded.onnx", "import sys, renorm; renorm.unfold(sys.argv[1], sys.argv[2])"
    renorm.optimize(DIGITS / "model.onnx", folded, reversible=True)
    found = set[bytes]()
    for seed in ("1", "2", "3"):
        back, environment = tmp_path / f"{seed}.onnx", {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, str(folded), str(back)], check=True, env=environment)
        found.add(back.read_bytes())
    assert len(found) == 1
