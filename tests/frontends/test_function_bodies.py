"""Ops that are read as the body that ONNX states for them, and functions of a model with attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser, reference

import renorm
from renorm import frontends
from renorm.core.errors import LimitExceeded
from renorm.graph import interpret, registry

RNG = np.random.default_rng(5)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def model(node: onnx.NodeProto, opset: int, outputs: int = 1, **operands: tuple[Any, ...]) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in operands.items()]
    results = [onnx.ValueInfoProto(name=name) for name in node.output[:outputs]]
    graph = helper.make_graph([node], "g", given, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def agrees(m: onnx.ModelProto, *arrays: np.ndarray) -> None:
    given = dict(zip((v.name for v in m.graph.input), arrays))
    expected: Any = reference.ReferenceEvaluator(m).run(None, given)
    module = renorm.compile(m)
    for got, wanted in zip(module.run(*[given[v.name] for v in module.inputs]), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("attributes", [{}, {"periodic": 0}, {"output_datatype": TensorProto.DOUBLE}])
def test_attributes_of_a_call_and_their_defaults(op_type: str, attributes: dict[str, Any]) -> None:
    m = model(helper.make_node(op_type, ["n"], ["y"], **attributes), 17)
    m.graph.initializer.append(helper.make_tensor("n", TensorProto.INT64, (), [11]))
    agrees(m)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_past", [True, False])
def test_a_body_that_depends_on_operands(has_bias: bool, has_past: bool) -> None:
    """The past is a fourth operand also where the third is left out, and extents are open."""
    names = ["x", "w", "b" if has_bias else "", "past" if has_past else ""]
    node = helper.make_node("CausalConvWithState", names, ["y", "present"], activation="silu")
    shapes = {"x": ("N", 3, "L"), "w": (3, 1, 4), "b": (3,), "past": ("N", 3, 3)}
    m = model(node, 27, 2, **{n: shapes[n] for n in names if n})
    for batch, length in ((2, 5), (1, 9)):
        arrays = {"x": f(batch, 3, length), "w": f(3, 1, 4), "b": f(3), "past": f(batch, 3, 3)}
        agrees(m, *[arrays[n] for n in names if n])


def test_a_body_within_a_body_and_within_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        monkeypatch.delitem(registry._ONNX, name)
    m = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3, 5] x) => (float[3] y) {
            labels = Constant <value = int64[3] {4, 0, 2}> ()
            c = Constant <value = bool {1}> ()
            y = If (c) <
                then_branch = t () => (float[3] p) {
                    p = SoftmaxCrossEntropyLoss <reduction = "none"> (x, labels)
                },
                else_branch = e () => (float[3] q) { q = ReduceSum <keepdims = 0> (x) }
            >
        }""")
    x = f(3, 5)
    graph = frontends.read(m)
    assert graph.outputs[0].name == "y"
    expected = np.log(np.exp(x).sum(1)) - x[np.arange(3), [4, 0, 2]]
    np.testing.assert_allclose(interpret.run(graph, [x])[0], expected, rtol=1e-5)
    assert all(".".join(n.name.split(".")[:2]).startswith("SoftmaxCrossEntropyLoss_0.") for n in graph.nodes)


def test_two_calls_keep_their_values_apart() -> None:
    m = parser.parse_model("""<ir_version: 10, opset_import: ["" : 27]>
        g (float[2, 3, 5] x, float[3, 1, 2] w) => (float[2, 3, 5] y) {
            p = CausalConvWithState (x, w)
            y = CausalConvWithState (p, w)
        }""")
    m.graph.node[1].output.append("present")
    m.graph.node[0].output.append("past")
    agrees(m, f(2, 3, 5), f(3, 1, 2))


def test_nodes_of_bodies_are_counted() -> None:
    m = model(helper.make_node("CausalConvWithState", ["x", "w"], ["y", "p"]), 27, x=(1, 3, 5), w=(3, 1, 2))
    with pytest.raises(LimitExceeded, match=r"expansions: \d+, at most 3; .* CausalConvWithState"):
        frontends.read(m, limits=renorm.Limits(expansions=3))


FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2, 3] x) => (float[2, 3] y) { CALLS }
    <domain: "my", opset_import: ["" : 17]>
    leaky <alpha: float = 0.5> (a) => (c) { c = LeakyRelu <alpha: float = @alpha> (a) }
    <domain: "my", opset_import: ["" : 17, "my" : 1]>
    outer (a) => (c) { c = my.leaky (a) }"""


@pytest.mark.parametrize(
    ("calls", "slope"),
    [
        ("y = my.leaky (x)", 0.5),
        ("y = my.leaky <alpha = 0.25> (x)", 0.25),
        ("y = my.outer (x)", 0.5),
        ("z = my.leaky <alpha = 0.5> (x) y = my.leaky (z)", 0.25),
        ("c = Constant <value = bool {1}> () y = If (c) <then_branch = t () => (float[2, 3] p) { p = my.leaky (x) }, "
         "else_branch = e () => (float[2, 3] q) { q = Neg (x) }>", 0.5),
    ],
)  # fmt: skip
def test_attributes_of_functions_have_defaults(calls: str, slope: float) -> None:
    m, x = parser.parse_model(FUNCTION.replace("CALLS", calls)), f(2, 3)
    before = m.SerializeToString(deterministic=True)
    (y,) = interpret.run(frontends.read(m), [x])
    np.testing.assert_allclose(y, np.where(x > 0, x, slope * x), rtol=1e-6)
    assert m.SerializeToString(deterministic=True) == before
