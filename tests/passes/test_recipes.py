"""Recipes: a small network for each fold, what must remain of it, and its values beside float64."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from renorm.core.difference import judge
from renorm.core.tolerance import tolerance
from renorm.frontends import read
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize

pytest.importorskip("torch", reason="PyTorch is not installed")
from tests.passes.folding.cases import PLAIN, Case
from tests.passes.folding.check import LAYERS

Step = tuple[str, dict[str, Any]]
IMAGE, SIGNAL, MATRIX, ROWS = (2, 4, 6, 7), (2, 4, 9), (3, 6), (2, 4, 5)


def windowed(kind: str, **said: Any) -> Step:
    return kind, {**PLAIN, "m": 3, "kernel": [3, 2, 2], "bias": True, **said}


def conv(**said: Any) -> Step:
    return windowed("convolve", **said)


def tconv(**said: Any) -> Step:
    return windowed("transposed", **said)


def gemm(**said: Any) -> Step:
    plain = {"m": 5, "alpha": 1.0, "beta": 1.0, "transA": False, "transB": False, "c": "row", "how": "constant"}
    return "gemm", {**plain, **said}


def matmul(left: bool = False) -> Step:
    return "matmul", {"left": left, "m": 5, "how": "constant"}


def norm(form: str = "batch_norm", **said: Any) -> Step:
    return "norm", {"form": form, "spread": "full", "scale": "any", "shifts": True, "axis": 1, "epsilon": 1e-3, **said}


def rises(**said: Any) -> Step:
    return norm(scale="positive", **said)


def pad(mode: str, value: float = 0.0) -> Step:
    return "pad", {"mode": mode, "pads": [1, 0, 0, 2, 1, 0], "value": value}


def pool(which: str, padded: bool = False) -> Step:
    return "pool", {"which": which, "padded": padded}


def join(other: str = "conv", axis: int = 1) -> Step:
    return "join", {"other": other, "axis": axis, "first": True}


def plus(other: str = "conv", op: str = "Add") -> Step:
    return "plus", {"other": other, "op": op}


RELU, SWAP, MERGE, FLATTEN = ("activation", {"which": "Relu"}), ("swap", {}), ("merge", {}), ("flatten", {})
NEGATIVE = norm("mul", scale="negative")
CHANNELS = ("crop", {"channels": True, "start": 1, "stride": 1})
PIXELS = ("crop", {"channels": False, "start": 1, "stride": 2})
WIDE = {"strides": [2, 3, 1], "dilations": [2, 1, 1], "pads": [1, 0, 2, 2, 1, 0]}

# name: shape, steps, ops that must remain
RECIPES: dict[str, tuple[tuple[int, ...], list[Step], str]] = {
    "conv, norm": (IMAGE, [conv(), norm()], "conv"),
    "conv without a bias, norm": (SIGNAL, [conv(bias=False), norm()], "conv"),
    "wide conv in groups, norm": (IMAGE, [conv(groups="some", **WIDE), norm()], "conv"),
    "depthwise conv, norm": (IMAGE, [conv(groups="each"), norm()], "conv"),
    "transposed conv, norm": (IMAGE, [tconv(), norm()], "conv_transpose"),
    "wide transposed conv, norm": (IMAGE, [tconv(groups="some", extra=[1, 2, 0], **WIDE), norm()], "conv_transpose"),
    "depthwise transposed conv, norm": (SIGNAL, [tconv(groups="each", **WIDE), norm()], "conv_transpose"),
    "gemm, norm": (MATRIX, [gemm(alpha=0.5, beta=-2.0), norm()], "gemm"),
    "gemm of a turned weight, norm": (MATRIX, [gemm(transB=True, c="column"), norm()], "gemm"),
    "matmul, norm": (MATRIX, [matmul(), norm()], "gemm"),
    "matmul of rows, mul": (ROWS, [matmul(), norm("mul", axis=-1)], "matmul"),
    "matmul of rows, mul and add": (ROWS, [matmul(), norm("mul_add", axis=-1)], "matmul add"),
    "matmul with a left weight, norm": (ROWS, [matmul(left=True), norm()], "matmul add"),
    "conv, mul, add": (IMAGE, [conv(), norm("mul_add")], "conv"),
    "conv, sub, div": (IMAGE, [conv(), norm("sub_div", spread="trailing")], "conv"),
    "c - conv": (IMAGE, [conv(), norm("sub_from", spread="scalar")], "conv"),
    "norm, conv": (IMAGE, [norm(), conv()], "conv"),
    "norm, padded conv": (IMAGE, [norm(), conv(**WIDE)], "conv add"),
    "norm, conv with SAME": (IMAGE, [norm(), conv(auto_pad="SAME_LOWER")], "conv add"),
    "norm, pad, conv": (IMAGE, [norm(), pad("constant"), conv()], "conv add"),
    "norm, transposed conv": (IMAGE, [norm(), tconv(extra=[1, 2, 0], **WIDE)], "conv_transpose add"),
    "norm, gemm": (MATRIX, [norm(), gemm(transB=True, alpha=2.0)], "gemm"),
    "norm, flatten, gemm": (IMAGE, [norm(), FLATTEN, gemm()], "flatten gemm"),
    "norm, matmul of rows": (ROWS, [norm("mul_add", axis=-1), matmul()], "matmul add"),
    "norm, matmul with a left weight": (ROWS, [norm(), matmul(left=True)], "matmul add"),
    "norms on both sides": (IMAGE, [norm(), conv(**WIDE), norm()], "conv add"),
    "conv, norm, conv, norm": (IMAGE, [conv(), norm(), conv(), norm("mul_add")], "conv conv"),
    "conv, norm, norm, norm": (IMAGE, [conv(), norm(), norm("sub_div"), norm()], "conv"),
    "norms in a row that nothing takes": (IMAGE, [norm("sub_div"), norm("mul_add"), norm("sub_from")], "batch_norm"),
    "conv, slice of channels, norm": (IMAGE, [conv(), CHANNELS, norm()], "conv slice"),
    "conv, slice of pixels, norm": (IMAGE, [conv(), PIXELS, norm()], "conv slice"),
    "norm, slice of channels, conv": (IMAGE, [norm(), CHANNELS, conv()], "slice conv"),
    "conv, split, norm": (IMAGE, [conv(m=4), ("part", {"index": 1}), norm()], "conv split relu"),
    "conv, edges, norm": (IMAGE, [conv(), pad("edge"), norm()], "conv pad"),
    "conv, reflection, norm": (IMAGE, [conv(), pad("reflect"), norm()], "conv pad"),
    "conv, pad of zeros, mul": (IMAGE, [conv(), pad("constant"), norm("mul")], "conv pad"),
    "conv, pad of zeros, norm": (IMAGE, [conv(), pad("constant"), norm()], "conv pad add"),
    "conv, pad of halves, norm": (IMAGE, [conv(), pad("constant", 0.5), norm()], "conv pad add"),
    "conv, transpose, norm": (IMAGE, [conv(), SWAP, norm()], "conv transpose"),
    "conv, reshape, norm": (IMAGE, [conv(), MERGE, norm()], "conv reshape"),
    "conv, concat with a conv, norm": (IMAGE, [conv(), join(), norm()], "conv conv concat"),
    "conv, concat with a constant, norm": (IMAGE, [conv(), join("constant"), norm()], "conv concat"),
    "conv, concat of rows, norm": (IMAGE, [conv(), join(axis=2), norm()], "conv conv concat"),
    "conv + conv, norm": (IMAGE, [conv(), plus(), norm()], "conv conv add"),
    "conv - conv, norm": (IMAGE, [conv(), plus(op="Sub"), norm()], "conv conv sub"),
    "conv + image, norm": (IMAGE, [conv(), plus("constant"), norm()], "conv add"),
    "conv, average pool, norm": (IMAGE, [conv(), pool("AveragePool", True), norm()], "conv average_pool"),
    "conv, average with padding, norm": (IMAGE, [conv(), pool("counted", True), norm()], "conv average_pool add"),
    "conv, global average, norm": (IMAGE, [conv(), pool("GlobalAveragePool"), norm()], "conv global_average_pool"),
    "conv, max pool, norm": (IMAGE, [conv(), pool("MaxPool", True), rises()], "conv max_pool"),
    "conv, relu, mul": (IMAGE, [conv(), RELU, norm("mul", scale="positive")], "conv relu"),
    "conv, relu, norm": (IMAGE, [conv(), RELU, rises()], "conv relu add"),
    "conv with a shared weight, norm": (IMAGE, [conv(how="shared"), norm()], "conv conv"),
    "instance norm, norm": (IMAGE, [("instance", {}), norm()], "instance_norm"),
    "norm, two convs": (IMAGE, [norm(), ("twice", {}), conv()], "conv conv"),
    "norm, two padded convs": (IMAGE, [norm(), ("twice", {}), conv(**WIDE)], "conv conv add"),
    "stays, norm, conv": (IMAGE, [NEGATIVE, RELU, pool("AveragePool"), norm(), conv()], "mul relu average_pool conv"),
    # what must stay
    "conv, relu, norm of any sign": (IMAGE, [conv(), RELU, norm(scale="negative")], "conv relu batch_norm"),
    "conv that is an output, norm": (IMAGE, [conv(), ("output", {}), norm()], "conv batch_norm"),
    "conv with another reader, norm": (IMAGE, [conv(), ("reader", {}), norm()], "conv tanh batch_norm"),
    "conv, norm of the batch": (IMAGE, [conv(), ("training", {})], "conv batch_norm"),
    "conv of a given weight, norm": (IMAGE, [conv(how="input"), norm()], "conv batch_norm"),
    "gemm summed over the batch": (MATRIX, [norm(), gemm(transA=True)], "batch_norm gemm"),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_recipe(name: str, dtype: str) -> None:
    shape, steps, remain = RECIPES[name]
    net, _ = Case(len(name), shape, tuple(steps), dtype).build()
    done, report = optimize(read(net.model()).copy(), level=2, for_export=True, verify=dtype == "float64")
    assert ops(done) == Counter(remain.split())
    assert not any("reverted" in reason for _, _, reason in report.refusals)
    values = interpret.evaluate(done, net.inputs)
    for v, expected in zip(done.outputs, net.expected(), strict=True):
        assert judge(values[v], expected, tolerance(dtype, LAYERS)).agrees
    assert [v.name for v in done.outputs] == net.outputs
    assert all(r.fate == "folded" or r.reason for r in report.norms)


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op.name for n in graph.nodes)


# --- the network of the article on transposed convolution -------------------------------------------------------------

SCALE, OFFSET, MEAN, VARIANCE, EPSILON = 1.0177339, 0.0156285, 1.0271552, 0.2558007, 0.001
MUL, ADD = 2.0083351, -2.0472434


def article(form: str) -> Any:
    """2 x 2 elements, a filter of 3 x 3 ones, and the norm as one node or as the multiplication and addition it is."""
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"])]
    held = {"w": np.ones((1, 1, 3, 3))}
    if form == "BatchNormalization":
        held |= {"scale": [SCALE], "offset": [OFFSET], "mean": [MEAN], "variance": [VARIANCE]}
        nodes.append(helper.make_node(form, ["y", "scale", "offset", "mean", "variance"], ["z"], epsilon=EPSILON))
    else:
        held |= {"mul": [MUL], "add": [ADD]}
        nodes += [helper.make_node("Mul", ["y", "mul"], ["scaled"]), helper.make_node("Add", ["scaled", "add"], ["z"])]
    constants = [
        helper.make_tensor(n, TensorProto.FLOAT, np.shape(a), np.asarray(a, np.float32).ravel())
        for n, a in held.items()
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (1, 1, 2, 2)), ("z", None))]
    graph = helper.make_graph(nodes, "article", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("form", ["BatchNormalization", "Mul"])
def test_the_network_of_the_article(form: str) -> None:
    done, _ = optimize(read(article(form)), level=2, for_export=True)
    assert ops(done) == {"conv_transpose": 1}
    (node,) = done.nodes
    _, w, b = node.inputs
    assert w is not None
    assert b is not None
    np.testing.assert_allclose(np.asarray(w.data), np.full((1, 1, 3, 3), MUL), rtol=1e-7)
    np.testing.assert_allclose(np.asarray(b.data), [ADD], rtol=2e-7)  # what the digits of the article give
    x = np.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    sums = np.array([[1, 3, 3, 2], [4, 10, 10, 6], [4, 10, 10, 6], [3, 7, 7, 4]])  # of the elements that ones reach
    (y,) = interpret.run(done, [x.astype(np.float32)])
    np.testing.assert_allclose(y[0, 0], (sums - MEAN) / np.sqrt(VARIANCE + EPSILON) * SCALE + OFFSET, atol=2e-6)
