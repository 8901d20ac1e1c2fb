"""Pooling against torch in float64, and against ONNX Runtime where torch has no such form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.nodes import by_loops, by_onnxruntime, by_reference, by_renorm, model, normal, read

import renorm
from renorm import ops
from renorm.core.dims import Sym
from renorm.driver.module import CompiledModule
from renorm.graph.ir import Graph
from renorm.ops.average_pool import AveragePool
from renorm.ops.global_pool import GlobalLpPool, GlobalMaxPool
from renorm.ops.lp_pool import LpPool
from renorm.ops.max_pool import MaxPool

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch


@st.composite
def windows(draw: st.DrawFn, dilated: bool) -> tuple[Any, dict[str, Any]]:
    """Data, and the arguments that torch and renorm share."""
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, strides, dilations = per_axis(1, 4), per_axis(1, 3), per_axis(1, 2) if dilated else (1,) * rank
    pads = tuple(draw(st.integers(0, k // 2)) for k in kernel)  # torch allows no more
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations)]
    spatial = tuple(draw(st.integers(r, r + 5)) for r in reach)  # avg_pool3d takes no less
    x = normal(np.random.default_rng(draw(st.integers(0, 999))), draw(st.integers(1, 2)), 2, *spatial)
    return x, {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads, "ceil": draw(st.booleans())}


def ours(a: dict[str, Any]) -> dict[str, Any]:
    return {
        "kernel_shape": a["kernel"],
        "strides": a["strides"],
        "dilations": a["dilations"],
        "pads": a["pads"] * 2,
        "ceil_mode": a["ceil"],
    }


@settings(deadline=None, max_examples=40)
@given(windows(dilated=True))
def test_max_pool_agrees_with_torch(case: tuple[Any, dict[str, Any]]) -> None:
    x, a = case
    f = getattr(torch.nn.functional, f"max_pool{x.ndim - 2}d")
    expected = f(torch.from_numpy(x), a["kernel"], a["strides"], a["pads"], a["dilations"], a["ceil"]).numpy()
    np.testing.assert_array_equal(by_reference(MaxPool, x, **ours(a)), expected)
    np.testing.assert_array_equal(by_loops(MaxPool, x, **ours(a)), expected)


@settings(deadline=None, max_examples=40)
@given(windows(dilated=False), st.booleans())
def test_average_pool_agrees_with_torch(case: tuple[Any, dict[str, Any]], counted: bool) -> None:
    x, a = case
    f = getattr(torch.nn.functional, f"avg_pool{x.ndim - 2}d")
    wide = torch.from_numpy(x.astype(np.float64))
    expected = f(wide, a["kernel"], a["strides"], a["pads"], a["ceil"], counted).numpy()
    attributes = ours(a) | {"count_include_pad": counted}
    np.testing.assert_allclose(by_reference(AveragePool, x, **attributes), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_loops(AveragePool, x, **attributes), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (2, 2), (3, 2), (3, 1), (4, 3), (5, 2)])
@pytest.mark.parametrize("opset", [7, 11, 19])
def test_automatic_padding_is_that_of_onnxruntime(op: str, auto_pad: str, kernel: int, stride: int, opset: int) -> None:
    operands = {"x": normal(np.random.default_rng(kernel), 2, 3, 9, 8)}
    attributes: dict[str, Any] = {"kernel_shape": [kernel, 2], "strides": [stride, 2], "auto_pad": auto_pad}
    proto = model(op, opset, operands, **attributes)
    expected = by_onnxruntime(proto, operands)[0]
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
def test_dilated_average_pool_is_that_of_onnxruntime(counted: int, ceil: int, dilation: int) -> None:
    operands = {"x": normal(np.random.default_rng(0), 2, 3, 10, 9)}
    attributes: dict[str, Any] = {
        "kernel_shape": [3, 2],
        "strides": [2, 2],
        "pads": [1, 1, 1, 0],
        "dilations": [dilation, 1],
    }
    proto = model("AveragePool", 19, operands, ceil_mode=ceil, count_include_pad=counted, **attributes)
    expected = by_onnxruntime(proto, operands)[0]
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_norm_pools_are_those_of_torch(p: float) -> None:
    x = np.abs(normal(np.random.default_rng(0), 2, 3, 7, 8))
    windowed = torch.nn.functional.lp_pool2d(torch.from_numpy(x.astype(np.float64)), p, (3, 2), 2).numpy()
    y = by_loops(LpPool, x, kernel_shape=(3, 2), strides=(2, 2), p=p)
    np.testing.assert_allclose(y, windowed, rtol=1e-4)
    whole = np.linalg.norm(x.reshape(2, 3, -1).astype(np.float64), p, axis=-1).reshape(2, 3, 1, 1)
    np.testing.assert_allclose(by_loops(GlobalLpPool, x, p=p), whole, rtol=1e-4)


def test_maximum_of_nan_is_nan() -> None:
    x = np.array([[[1, np.nan, 2, 3, -np.inf, -np.inf]]], np.float32)
    np.testing.assert_array_equal(by_loops(MaxPool, x, kernel_shape=(2,)), [[[np.nan, np.nan, 3, 3, -np.inf]]])
    np.testing.assert_array_equal(by_loops(GlobalMaxPool, x), [[[np.nan]]])


def test_positions_of_maxima_are_computed_only_where_they_are_read() -> None:
    operands = {"x": normal(np.random.default_rng(0), 1, 1, 4, 4)}
    listed = model("MaxPool", 12, operands, ("y", "where"), read=("y",), kernel_shape=[2, 2], storage_order=1)
    assert by_renorm(listed, operands)[0].shape == (1, 1, 3, 3)
    assert [node.op.name for node in read(listed).nodes] == ["max_pool"]
    both = read(model("MaxPool", 12, operands, ("y", "where"), kernel_shape=[2, 2]))
    assert [node.op.name for node in both.nodes] == ["max_pool", "max_pool_positions"]


def test_extents_may_be_symbols() -> None:
    graph = Graph()
    x = graph.input("x", "float32", (Sym("N"), 3, Sym("H"), 9))
    assert MaxPool(kernel_shape=(2, 2), strides=(2, 2))(x).shape == (Sym("N"), 3, (Sym("H") - 2) // 2 + 1, 4)
    same = AveragePool(kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_LOWER")(x)
    assert same.shape[2:] == ((Sym("H") + 1) // 2, 5)


@pytest.mark.parametrize("tail", ["", "relu", "sub"])
@pytest.mark.parametrize("pool", ["max", "average"])
@pytest.mark.parametrize("shape", [(1, 1, 32, 64), (1, 16, 40, 128), (2, 3, 17, 35)])
def test_pools_over_rows_are_finished_in_registers(shape: tuple[int, ...], pool: str, tail: str) -> None:
    """What is elementwise behind a pool joins its loops, so that no sums of windows go to memory; where rows are whole
    numbers of vectors, what is read stays within bounds."""
    graph, f = Graph("pooled"), torch.nn.functional
    x = graph.input("x", "float32", shape)
    op = (MaxPool if pool == "max" else AveragePool)(kernel_shape=(5, 3), pads=(2, 1, 2, 1), strides=(1, 1))
    y = op(x)
    graph.outputs = [{"": lambda: y, "relu": lambda: ops.relu(y), "sub": lambda: ops.sub(ops.add(y, x), x)}[tail]()]
    data = normal(np.random.default_rng(3), *shape)
    t = torch.from_numpy(data)
    if pool == "max":
        want = f.max_pool2d(t, (5, 3), 1, (2, 1)).numpy()
    else:
        want = f.avg_pool2d(t, (5, 3), 1, (2, 1), count_include_pad=False).numpy()
    want = {"": want, "relu": want.clip(0), "sub": (want + data) - data}[tail]
    module = renorm.compile(graph)
    assert isinstance(module, CompiledModule)
    np.testing.assert_allclose(np.asarray(module.run(data)[0]), want, atol=2e-6)
    (kernel,) = (module.kernel(k.name) for k in module.report.kernels)
    assert 'storage_scope = "global"' not in str(kernel.loops)
