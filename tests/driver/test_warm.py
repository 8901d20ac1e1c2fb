"""Compiling what was compiled before: the same bits without LLVM, and weights that go from the file to the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm
from renorm.core.dims import Sym, static
from renorm.core.host import host_cpu
from renorm.core.limits import Limits
from renorm.core.target import parse
from renorm.driver import bounds, lowering, weights
from renorm.driver.lowering import Parameter
from renorm.frontends import onnx as onnx_frontend
from renorm.graph import interpret
from renorm.graph.deferred import LARGE
from renorm.graph.ir import Graph
from renorm.runtime import threads

ROOT = Path(__file__).parents[2]

COMPILE = """
import hashlib, sys
import numpy as np
import renorm
from renorm.driver import kernels
kernels._SOURCES = "sources"  # also while somebody edits them
m = renorm.compile(sys.argv[1])
x = np.random.default_rng(5).normal(size=m.inputs[0].shape).astype(np.float32)
(y,) = m.run(x)
m.save(sys.argv[2])
print(m.report.code.compiled, hashlib.sha256(y.tobytes()).hexdigest(), hashlib.sha256(m._weights.tobytes()).hexdigest())
print(*sorted(sys.modules))
"""


def array(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32) / np.float32(np.prod(shape[1:]) or 1) ** 0.5


def network(height: Any = 12) -> Graph:
    """Weights that are computed in parts: for tiles, a plain product, transposed phases, a matrix; odd channels."""
    g = Graph("net")
    y = g.input("x", "float32", (1, 70, height, 10))
    for shape in ((66, 70, 3, 3), (270, 66, 1, 1)):
        y = renorm.ops.conv(y, array(*shape), array(shape[0]), pads=(shape[2] // 2,) * 4)
        y = renorm.ops.batch_norm(y, *(array(shape[0]) for _ in range(3)), np.abs(array(shape[0])) + 1)
        y = renorm.ops.relu(y)
    y = renorm.ops.conv_transpose(y, array(270, 35, 2, 2), None, strides=(2, 2))
    y = renorm.ops.mul(y, array(1, 35, 1, 1))
    y = renorm.ops.reduce_mean(y, axes=(2, 3), keepdims=False)
    y = renorm.ops.gemm(y, array(500, 35), array(500), transB=True, alpha=0.7)
    g.outputs = [y]
    assert sum(prod(static(v.shape)) >= LARGE for v in g.constants.values()) == 4
    return g


def written(g: Graph, folder: Path) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(onnx_frontend.write(g).SerializeToString())
    return path


def test_from_the_cache_it_has_the_same_bits_and_loads_no_compiler(tmp_path: Path) -> None:
    path = written(network(), tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RENORM_CACHE": "1"}
    environment["RENORM_CACHE_DIR"] = str(tmp_path / "cache")
    found: list[tuple[list[str], set[str], bytes]] = []
    for name in ("cold", "warm"):
        command = [sys.executable, "-c", COMPILE, str(path), str(tmp_path / name)]
        head, modules = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        found.append((head.split(), set(modules.split()), (tmp_path / name).read_bytes()[-1000:]))
    (cold, loaded, _), (warm, needed, _) = found
    assert int(cold[0]) > 3
    assert int(warm[0]) == 0
    assert cold[1:] == warm[1:]
    assert found[0][2] == found[1][2]
    heavy = {"llvmlite", "renorm.tir", "renorm.te.lower", "renorm.te.schedule", "renorm.codegen.structural_hash"}
    assert heavy <= loaded
    assert not (heavy | {"onnx", "google.protobuf"}) & needed
    assert "lark" not in loaded  # nothing is parsed


def test_what_a_network_of_usual_size_asks_for_is_found_without_te(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph("depthwise")
    y = g.input("x", "float32", (1, 96, 112, 112))
    y = renorm.ops.conv(y, array(96, 1, 3, 3), pads=(1,) * 4, strides=(2, 2), group=96)
    g.outputs = [renorm.ops.conv(y, array(512, 96, 1, 1))]
    monkeypatch.setattr(lowering, "_user_code", lambda *_: pytest.fail("an expression is made"))
    bounds.check(g, Limits())


def test_the_graph_of_a_module_reads_the_weights_of_its_program(tmp_path: Path) -> None:
    for model in (network(), written(network(), tmp_path)):
        m = renorm.compile(model)
        large = [v for v in m.graph.constants.values() if prod(static(v.shape)) >= LARGE]
        assert len(large) == 4
        x = RNG.normal(size=static(m.inputs[0].shape)).astype(np.float32)
        (expected,) = interpret.run(m.graph, [x])
        (y,) = m.run(x)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("height", [12, Sym("h")], ids=["fixed", "symbolic"])
def test_the_file_may_change_when_compiling_is_done(height: Any, tmp_path: Path) -> None:
    g = network(height)
    path, x = written(g, tmp_path), RNG.normal(size=(1, 70, 12, 10)).astype(np.float32)
    m = renorm.compile(path)
    read = renorm.read(path)
    with open(path, "r+b") as file:  # in place: what is mapped would be lost
        file.truncate(100)
    (y,) = m.run(x)
    (expected,) = renorm.compile(g, shapes={"x": x.shape}).run(x)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())  # algorithms may differ
    assert str(m.graph)
    for v in m.graph.constants.values():
        assert v.data is not None
        assert np.isfinite(v.data).all()
    assert sum(float(np.abs(v.data).sum()) for v in read.constants.values() if v.data is not None) > 0


def test_constants_of_any_dtype_are_read_back() -> None:
    """Integers beyond 2**53, halves, and what a kernel reads row by row."""
    g = Graph("dtypes")
    tables = [
        RNG.integers(-(2**62), 2**62, (170, 100)),
        array(170, 100).astype(np.float16),
        array(170, 100).astype(np.float64),
    ]
    index = g.input("i", "int64", (3,))
    g.outputs = [renorm.ops.gather(g.constant(t), index) for t in tables]
    left = g.input("a", "int64", (2, 170))
    g.outputs.append(renorm.ops.gemm(left, g.constant(tables[0])))
    m = renorm.compile(g)
    held = [v.data for v in m.graph.constants.values() if v.data is not None and v.shape == (170, 100)]
    assert all(any(np.array_equal(h, t) and h.dtype == t.dtype for h in held) for t in tables)


def test_the_kind_of_cpu_is_told_without_what_changes() -> None:
    text = host_cpu()
    assert "model" in text or "CPU part" in text
    assert "MHz" not in text
    assert "processor" not in text.splitlines()[0]
    assert parse("llvm").is_host


def test_what_stops_a_thread_that_writes_weights_stops_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    here, came, right = threading.get_ident(), threading.Event(), Parameter.write

    def write(self: Parameter, *part: Any) -> None:
        if threading.get_ident() != here:
            came.set()
            raise SystemExit("stopped")
        came.wait(20)
        right(self, *part)

    monkeypatch.setattr(Parameter, "write", write)
    monkeypatch.setattr(threads, "default", lambda: 2)
    monkeypatch.setattr(weights, "WORTH_A_THREAD", 0)
    with pytest.raises(SystemExit, match="stopped"):
        renorm.compile(network())
