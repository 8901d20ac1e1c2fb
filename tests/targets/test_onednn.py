"""The target "onednn": values beside PyTorch in float64, what is left to the base, errors without the library."""

from __future__ import annotations

import ctypes.util
import inspect
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.limited import without_threads

import renorm
from renorm import ops
from renorm.core.dims import Sym, static
from renorm.driver.module import CompiledModule, SpecializingModule
from renorm.errors import InvalidTarget
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.targets.onednn import library as dnnl

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

try:
    dnnl.path()
except InvalidTarget as missing:
    pytest.skip(missing.headline, allow_module_level=True)


def array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def statistics(rng: np.random.Generator, channels: int) -> list[np.ndarray]:
    return [array(rng, channels), array(rng, channels), array(rng, channels), np.abs(array(rng, channels)) + 0.2]


def double(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).double()


def compiled(graph: Graph, **options) -> CompiledModule | SpecializingModule:
    return renorm.compile(graph, target="onednn", threads=2, **options)


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0) <= 1e-5 * np.abs(expected).max(initial=1)


# C, M, groups, extents, window, strides, dilations, pads before, behind
CONVOLUTIONS = [
    (3, 16, 1, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    (12, 6, 3, (9, 11), (3, 2), (2, 1), (1, 2), (1, 0), (0, 2)),
    (8, 8, 8, (7,), (3,), (1,), (1,), (1,), (1,)),
    (4, 5, 1, (4, 5, 6), (3, 3, 1), (1, 2, 1), (1, 1, 1), (1, 1, 0), (0, 1, 0)),
    (17, 33, 1, (5, 8), (1, 1), (2, 3), (1, 1), (0, 0), (0, 0)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize(("has_bias", "has_norm", "has_relu"), [*itertools.product((False, True), repeat=3)])
def test_convolutions(case, has_bias, has_norm, has_relu):
    channels, results, group, extents, kernel, strides, dilations, before, behind = case
    rng, rank = np.random.default_rng(len(str(case))), len(extents)
    w, b = array(rng, results, channels // group, *kernel), array(rng, results) if has_bias else None
    norm = statistics(rng, results)
    g = Graph("conv")
    x = g.input("x", "float32", (2, channels, *extents))
    y = ops.conv(
        x, w, *([] if b is None else [b]), strides=strides, dilations=dilations, pads=(*before, *behind), group=group
    )
    y = ops.batch_norm(y, *norm, epsilon=1e-3) if has_norm else y
    g.outputs = [ops.relu(y) if has_relu else y]

    m = compiled(g)
    assert [n.fate for n in m.report.norms] == ["unit"] * has_norm
    (kernel_record,) = m.report.kernels
    assert "convolution" in m.kernel(kernel_record).source

    a = array(rng, 2, channels, *extents)
    around = [p for i in reversed(range(rank)) for p in (before[i], behind[i])]
    expected = getattr(torch.nn.functional, f"conv{rank}d")(
        torch.nn.functional.pad(double(a), around),
        double(w),
        b if b is None else double(b),
        strides,
        0,
        dilations,
        group,
    )
    assert_near(m.run(a)[0], finish(expected, norm if has_norm else None, has_relu))


def finish(y: torch.Tensor, norm: list[np.ndarray] | None, has_relu: bool) -> np.ndarray:
    if norm is not None:
        scale, bias, mean, var = map(double, norm)
        y = torch.nn.functional.batch_norm(y, mean, var, scale, bias, False, 0.0, 1e-3)
    return (y.relu() if has_relu else y).numpy()


# C, M, groups, extents, window, strides, dilations, pads, output padding
TRANSPOSED = [
    (5, 7, 1, (4, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    (6, 4, 2, (5, 3), (4, 2), (2, 3), (1, 2), (1, 0), (0, 2)),
    (3, 8, 1, (6,), (5,), (1,), (2,), (0,), (0,)),
    (4, 4, 4, (3, 4, 3), (2, 3, 2), (2, 1, 1), (1, 1, 1), (0, 1, 0), (1, 0, 0)),
]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
@pytest.mark.parametrize(("has_norm", "has_relu"), [*itertools.product((False, True), repeat=2)])
def test_transposed_convolutions(case, has_norm, has_relu):
    channels, results, group, extents, kernel, strides, dilations, pads, extra = case
    rng, rank = np.random.default_rng(len(str(case))), len(extents)
    w, b, norm = array(rng, channels, results // group, *kernel), array(rng, results), statistics(rng, results)
    g = Graph("transposed")
    x = g.input("x", "float32", (3, channels, *extents))
    attributes = {"strides": strides, "dilations": dilations, "pads": (*pads, *pads), "output_padding": extra}
    y = ops.conv_transpose(x, w, b, group=group, **attributes)
    y = ops.batch_norm(y, *norm, epsilon=1e-3) if has_norm else y
    g.outputs = [ops.relu(y) if has_relu else y]
    m = compiled(g)
    a = array(rng, 3, channels, *extents)
    expected = getattr(torch.nn.functional, f"conv_transpose{rank}d")(
        double(a), double(w), double(b), strides, pads, extra, group, dilations
    )
    assert_near(m.run(a)[0], finish(expected, norm if has_norm else None, has_relu))
    assert len(m.report.kernels) == 1
    assert m.kernel(m.report.kernels[0]).source or m.report.refusals


def residual(rng: np.random.Generator, batch: int = 2) -> Graph:
    """A network of which oneDNN has all but the sum, the pool and the norm that computes its own statistics."""
    g = Graph("residual")
    x = g.input("x", "float32", (batch, 3, 13, 10))
    y = ops.relu(ops.batch_norm(ops.conv(x, array(rng, 8, 3, 3, 3), pads=(1,) * 4), *statistics(rng, 8)))
    z = ops.batch_norm(ops.conv(y, array(rng, 8, 8, 3, 3), pads=(1,) * 4), *statistics(rng, 8))
    z = ops.relu(ops.batch_norm(ops.add(z, y), *statistics(rng, 8)))
    z = ops.instance_norm(z, array(rng, 8), array(rng, 8))
    g.outputs = [ops.global_average_pool(z), y]
    return g


@pytest.mark.parametrize("level", range(4))
def test_a_network(level, tmp_path):
    rng = np.random.default_rng(level)
    g = residual(rng)
    m = compiled(g, opt_level=level)
    assert [n.fate for n in m.report.norms if n.kind == "batch_norm"] == ["unit"] * 3
    a = array(rng, 2, 3, 13, 10)
    expected = interpret.run(g, [a])
    for found, wanted in zip(m.run(a), expected, strict=True):
        assert_near(found, wanted)
    m.save(tmp_path / "m.renorm")
    for found, wanted in zip(renorm.load(tmp_path / "m.renorm").run(a), m.run(a), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_artifact_runs_without_the_compiler(tmp_path):
    rng = np.random.default_rng(7)
    compiled(residual(rng)).save(tmp_path / "m.renorm")
    program = (
        "import sys, numpy, renorm\n"
        f"renorm.load({str(tmp_path / 'm.renorm')!r}).run(numpy.zeros((2, 3, 13, 10), 'float32'))\n"
        "assert not {'onnx', 'llvmlite', 'renorm.graph', 'renorm.passes', 'renorm.ops'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def build(rng: np.random.Generator, dtype: str, training: bool, computed: bool, batch: int) -> Graph:
    g = Graph("left to the base")
    x = g.input("x", dtype, (batch, 4, 5, 3))
    w = g.input("w", dtype, (6, 4, 1, 1)) if computed else array(rng, 6, 4, 1, 1).astype(dtype)
    norm = [s.astype(dtype) for s in statistics(rng, 6)]
    y = ops.batch_norm(ops.conv(x, w), *norm, training_mode=training)
    g.outputs = [y[0] if isinstance(y, tuple) else y]
    return g


@pytest.mark.parametrize(
    ("dtype", "training", "computed", "batch", "said"),
    [
        ("float64", False, False, 2, "only float32"),
        ("float32", True, False, 2, "statistics are the batch's"),
        ("float32", False, True, 2, "'w' is computed"),
        ("float32", False, False, 0, "no elements"),
    ],
)
def test_what_is_left_to_the_base(dtype, training, computed, batch, said):
    rng = np.random.default_rng(3)
    g = build(rng, dtype, training, computed, batch)
    m = compiled(g)
    assert any(said in str(r) for r in m.report.refusals)
    inputs = [rng.normal(size=static(v.shape)).astype(dtype) for v in g.inputs]
    assert_near(m.run(*inputs)[0], interpret.run(g, inputs)[0])


def _constant_image(g: Graph) -> list[np.ndarray]:
    """A convolution whose weight, not its image, is what the network reads."""
    rng = np.random.default_rng(4)
    g.outputs = [ops.conv(g.constant(array(rng, 2, 3, 7, 6)), g.input("w", "float32", (4, 3, 3, 3)))]
    return [array(rng, 4, 3, 3, 3)]


def _correlation(g: Graph) -> list[np.ndarray]:
    x = g.input("x", "float32", (2, 3, 7, 6))
    g.outputs = [ops.conv(x, x)]
    return [array(np.random.default_rng(5), 2, 3, 7, 6)]


def _constants(g: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    x = g.input("x", "float32", (2, 8, 5, 4))
    y = ops.conv(g.constant(array(rng, 2, 3, 7, 6)), g.constant(array(rng, 8, 3, 3, 3)))
    g.outputs = [ops.add(x, y)]
    return [array(rng, 2, 8, 5, 4)]


def _extra_beyond_the_stride(g: Graph) -> list[np.ndarray]:
    """The result is longer than what the windows reach: padding behind of -1."""
    rng = np.random.default_rng(7)
    x = g.input("x", "float32", (3, 4, 5))
    w = array(rng, 4, 4, 3)
    y = ops.conv_transpose(x, w, strides=(1,), dilations=(2,), pads=(3, 0), group=2, output_padding=(1,))
    g.outputs = [ops.relu(y)]
    return [array(rng, 3, 4, 5)]


def _norm_of_six_axes(g: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(8)
    shape = (2, 3, 4, 2, 3, 2)
    g.outputs = [ops.batch_norm(g.input("x", "float32", shape), *statistics(rng, 3))]
    return [array(rng, *shape)]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (_constant_image, "is a constant"),
        (_correlation, "'x' is computed"),
        (_constants, "is a constant"),
        (_extra_beyond_the_stride, "no primitive for it"),
        (_norm_of_six_axes, "6 axes"),
    ],
)
def test_what_onednn_would_get_wrong_or_forbid(build, said, level):
    g = Graph("forbidden")
    inputs = build(g)
    m = compiled(g, opt_level=level)
    assert any(said in str(r) for r in m.report.refusals) or build is _constants
    assert_near(m.run(*inputs)[0], interpret.run(g, inputs)[0])


def test_a_child_of_fork_runs_it_too(tmp_path):
    rng = np.random.default_rng(13)
    m = compiled(residual(rng))
    a = array(rng, 2, 3, 13, 10)
    m.save(tmp_path / "m.renorm")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "y.npy", m.run(a)[1])
    program = f"""
import os, warnings
import numpy, renorm
warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads is what this is about
m = renorm.load({str(tmp_path / "m.renorm")!r})
a, y = (numpy.load(os.path.join({str(tmp_path)!r}, n)) for n in ("a.npy", "y.npy"))
good = lambda: all(numpy.allclose(m.run(a)[1], y, atol=1e-5) for _ in range(3))
assert good()
for _ in range(2):
    child = os.fork()
    if not child:
        os._exit(0 if good() else 1)
    assert os.waitpid(child, 0)[1] == 0
assert good()
"""
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "2"
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_nan_and_infinity_reach_the_result():
    rng = np.random.default_rng(5)
    g = Graph("norm")
    x = g.input("x", "float32", (1, 2, 3, 4))
    g.outputs = [ops.batch_norm(x, *statistics(rng, 2))]
    a = array(rng, 1, 2, 3, 4)
    a[0, 0, 0, 0], a[0, 1, 2, 3] = np.nan, np.inf
    found = compiled(g).run(a)[0]
    assert np.isnan(found[0, 0, 0, 0])
    assert np.isinf(found[0, 1, 2, 3])
    assert np.isfinite(found).sum() == a.size - 2


def test_symbolic_extents_are_asked_for_each_shape():
    rng = np.random.default_rng(9)
    g = Graph("open")
    x = g.input("x", "float32", (Sym("N"), 3, 6, 5))
    w, norm = array(rng, 4, 3, 3, 3), statistics(rng, 4)
    g.outputs = [ops.relu(ops.batch_norm(ops.conv(x, w), *norm))]
    m = compiled(g)
    for batch in (1, 4):
        a = array(rng, batch, 3, 6, 5)
        assert_near(m.run(a)[0], interpret.run(g, [a])[0])


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.setattr(sys, "base_prefix", "/nowhere")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(
        InvalidTarget, match=r"not installed[\s\S]*/nowhere/lib/libdnnl[\s\S]*pip install 'renorm\[onednn\]'"
    ):
        dnnl.path()


_NO_THREADS = f"""
import os, threading
import numpy as np, renorm
from renorm import ops
from renorm.errors import OutOfMemory, UserCodeError
from renorm.graph.ir import Graph

x = np.ones((1, 16, 64, 64), np.float32)
g = Graph("conv")
g.outputs = [ops.conv(g.input("x", "float32", x.shape), np.ones((16, 16, 3, 3), np.float32))]
m, go = renorm.compile(g, target="onednn", threads=1), threading.Event()

def run():
    go.wait()
    try:
        m.run(x)
    except UserCodeError as error:
        assert isinstance(error.__cause__, OutOfMemory), error
        print(error.__cause__.facts[0])

(other := threading.Thread(target=run)).start()  # for which OpenMP has no threads yet
{inspect.getsource(without_threads)}
without_threads()
go.set()
other.join()
"""


def test_where_openmp_gets_no_threads() -> None:
    """It would end the process."""
    done = subprocess.run(
        [sys.executable, "-c", _NO_THREADS],
        env=os.environ | {"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "2 threads beside the one that asks, which the system does not give\n", done.stderr
