"""Files that runtimes take though the specification does not: nodes in any order, versions not stated, ops younger than
the opset, Dropout in training mode; and that all faults of a file stand in one error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from tests.frontends import onnx_runtime
from tests.frontends.models import model

import renorm
from renorm import frontends
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.frontends.diagnosis import ASSUMPTIONS
from renorm.graph import interpret, registry
from renorm.graph.op import OpDef

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
BRANCHES = """g (float[2, 3] x) => (float[2, 3] y) {
    y = If (c) <
        then_branch = yes () => (t2) { t2 = Add(t1, b) t1 = Relu(a) },
        else_branch = no () => (e) { e = Exp(a) }
    >
    b = Neg(a)
    a = Sin(x)
}"""


def assumptions(g: Any) -> tuple[str, ...]:
    return g.metadata.get(ASSUMPTIONS, ())


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_nodes_in_any_order_are_the_same_network(seed: int) -> None:
    draw = random.Random(seed)
    names, nodes = ["x"], list[onnx.NodeProto]()
    for i in range(40):
        operands = [draw.choice(names) for _ in range(draw.choice((1, 2)))]
        nodes.append(helper.make_node("Sin" if len(operands) == 1 else "Add", operands, [f"v{i}"], name=f"n{i}"))
        names.append(f"v{i}")
    shuffled = [*nodes]
    draw.shuffle(shuffled)

    def as_model(listed: list[onnx.NodeProto]) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info(n, 1, [2, 3]) for n in ("x", "v39")]
        graph = helper.make_graph(listed, "g", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    sorted_, unsorted = frontends.read(as_model(nodes)), frontends.read(as_model(shuffled))
    assert [n.name for n in sorted_.nodes] == [n.name for n in nodes]  # an order that is one stays
    assert {n.name for n in unsorted.nodes} == {n.name for n in nodes}
    np.testing.assert_array_equal(interpret.run(sorted_, [X])[0], interpret.run(unsorted, [X])[0])


def test_a_branch_waits_for_what_it_reads_from_outside() -> None:
    m = model(BRANCHES, c=np.asarray(True))
    found = interpret.run(frontends.read(m), [X])[0]
    np.testing.assert_allclose(found, np.maximum(np.sin(X), 0) - np.sin(X), rtol=1e-6)


def test_the_body_of_a_function_may_stand_in_any_order() -> None:
    m = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) { y = Neg(a) a = my.f(x) }
        <domain: "my", opset_import: ["" : 17]>
        f (a) => (c) { c = Relu(b) b = Add(a, a) }"""
    )
    np.testing.assert_array_equal(interpret.run(frontends.read(m), [X])[0], -np.maximum(2 * X, 0))


def test_a_ring_of_nodes_is_named() -> None:
    body = "g (float[2] x) => (float[2] d) { [p] a = Add(x, c) [q] b = Exp(a) [r] c = Sin(b) [s] d = Neg(c) }"
    with pytest.raises(InvalidModel, match="'p' reads 'r' reads 'q' reads 'p'"):
        frontends.read(model(body))


# --- versions -------------------------------------------------------------------------------------------------------


def test_a_version_that_is_not_stated_is_the_newest() -> None:
    m = model("g (float[2, 3, 2] x) => (float[2, 3, 2] y) { y = Softmax(x) }")  # along axis 1 until opset 12
    del m.opset_import[:]
    x = np.random.default_rng(0).normal(size=(2, 3, 2)).astype(np.float32)
    graph = frontends.read(m)
    assert "states no version of ai.onnx: 28 is assumed" in assumptions(graph)[0]
    m.opset_import.append(helper.make_opsetid("com.microsoft", 1))  # with none at all ONNX Runtime refuses the file
    np.testing.assert_allclose(interpret.run(graph, [x])[0], onnx_runtime.run(m, x)[0], rtol=1e-5)


def test_the_version_of_another_domain_may_be_missing_too() -> None:
    @renorm.register
    class Twice(OpDef):
        """y = 2 * x."""

        signature = "x: f32[*S] -> y: f32[*S]"
        onnx = {"com.acme::Twice": 2}

        def reference(self, x: Any) -> Any:
            return 2 * x

    try:
        m = model("g (float[2, 3] x) => (float[2, 3] y) { y = Twice(x) }")
        m.graph.node[0].domain = "com.acme"
        graph = frontends.read(m)
        assert assumptions(graph) == (
            "the model states no version of com.acme: 2 is assumed, the newest that renorm knows",
        )
        np.testing.assert_array_equal(interpret.run(graph, [X])[0], 2 * X)
    finally:
        registry.unregister("twice")
    m.graph.node[0].op_type = "Thrice"
    with pytest.raises(UnsupportedOp, match=r"Thrice \(com.acme 1\), which renorm does not define"):
        frontends.read(m)


@pytest.mark.parametrize("opset", [9, 13, 16])
def test_layer_norm_before_its_first_version(opset: int, tmp_path: Path) -> None:
    body = "g (float[2, 3] x) => (float[2, 3] y) { [n] a = LayerNormalization(x, s) [m] y = Mul(a, k) }"
    m = model(body, opset=opset, s=np.asarray([1, 2, 3], np.float32), k=np.asarray([3, 2, 1], np.float32))
    graph = frontends.read(m)
    assert assumptions(graph) == (
        f"LayerNormalization (1 node) is an op of ai.onnx since 17, the model states {opset}: it is taken as 17 "
        "defines it",
    )
    expected = onnx_runtime.run(m, X)[0]
    np.testing.assert_allclose(interpret.run(graph, [X])[0], expected, rtol=1e-5, atol=1e-6)
    report = renorm.optimize(m, tmp_path / "out.onnx")  # folds k into a scale, so that the node is written anew
    assert report.assumptions == assumptions(graph)
    written = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in written.graph.node] == ["LayerNormalization"]
    np.testing.assert_allclose(onnx_runtime.run(written, X)[0], expected, rtol=1e-5, atol=1e-6)


def test_an_op_whose_meaning_changed_is_not_guessed() -> None:
    body = "g (float[2, 4, 3] x) => (float[2, 4, 3] y) { y = GroupNormalization <num_groups = 2> (x, s, s) }"
    with pytest.raises(
        UnsupportedOp, match=r"is no op of ai\.onnx 17: its scale is per group at 18 and per channel at"
    ):
        frontends.read(model(body, s=np.ones(4, np.float32)))


def test_ops_taken_at_their_first_version_mean_the_same_later() -> None:
    """What later versions add must be visible: an attribute, an operand behind the others, or another type."""
    history: dict[str, dict[int, Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            history.setdefault(schema.name, {})[schema.since_version] = schema
    for op_type, versions in history.items():
        found = registry.first_onnx(op_type)
        if found is None or found[0] == 1 or op_type in found[1].onnx_changed:
            continue
        assert found[0] == min(versions), op_type
        first, last = versions[min(versions)], versions[max(versions)]
        assert [p.name for p in last.inputs][: len(first.inputs)] == [p.name for p in first.inputs], op_type
        for name, attribute in first.attributes.items():
            if (op_type, name) in (("GridSample", "mode"), ("DFT", "axis")):
                continue  # its words changed, or it became an operand: both are read
            assert name in last.attributes, (op_type, name)
            assert last.attributes[name].default_value == attribute.default_value, (op_type, name)


# --- Dropout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "operand", "is_test"])
def test_dropout_in_training_mode_drops_nothing_and_says_so(mode: str) -> None:
    if mode == "is_test":
        m = model("g (float[2, 3] x) => (float[2, 3] y) { [d] y, mask = Dropout <is_test = 0> (x) }", opset=6)
        given = [X]
    else:
        given = [X] if mode == "constant" else [X, np.asarray(True)]
        declared = "" if mode == "constant" else ", bool t"
        held = {"t": np.asarray(True)} if mode == "constant" else {}
        body = f"g (float[2, 3] x{declared}) => (float[2, 3] y, bool[2, 3] mask) {{ [d] y, mask = Dropout(x, r, t) }}"
        m = model(body, held, r=np.asarray(0.4, np.float32))
    graph = frontends.read(m)
    assert len(assumptions(graph)) == 1
    assert "Dropout 'd'" in assumptions(graph)[0]
    assert "in training mode: nothing is dropped" in assumptions(graph)[0]
    found = interpret.run(graph, given)
    np.testing.assert_array_equal(found[0], X)
    assert all(mask.all() for mask in found[1:])


def test_dropout_of_ratio_0_is_exact_and_no_assumption() -> None:
    body = "g (float[2, 3] x) => (float[2, 3] y, bool[2, 3] mask) { y, mask = Dropout(x, r, t) }"
    m = model(body, r=np.asarray(0, np.float32), t=np.asarray(True))
    graph = frontends.read(m)
    assert not assumptions(graph)
    for ours, theirs in zip(interpret.run(graph, [X]), onnx_runtime.run(m, X), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- faults ---------------------------------------------------------------------------------------------------------


def test_all_faults_of_a_file_stand_in_one_error_that_names_it(tmp_path: Path) -> None:
    body = """g (float[2, 3] x) => (float[2, 3] y, float z) {
        [one] a = Relu(nothing)
        [two] b = Add(x, w)
        [three] c = Exp(damaged)
        [four] p = Neg(q)
        [five] q = Neg(p)
        [six] w = Neg(x)
        [seven] y = Relu <alpha = 2> (x)
    }"""
    m = model(body, w=np.zeros((2, 4), np.float32), damaged=np.zeros(6, np.float32))
    next(t for t in m.graph.initializer if t.name == "damaged").dims[0] = 7
    m.graph.input.add(name="s").type.sequence_type.SetInParent()
    path = tmp_path / "faulty.onnx"
    path.write_bytes(m.SerializeToString())
    with pytest.raises(RenormError) as raised:
        frontends.read(path)
    told = str(raised.value)
    assert told.startswith("faulty.onnx: ")
    for part in (
        "input 's'", "'one' (Relu (ai.onnx 17)): it reads 'nothing'", "'two' (Add", "initializer 'damaged'",
        "'four' reads 'five' reads 'four'",
        "'six' (Neg (ai.onnx 17)): it makes 'w'", "'seven' (Relu", "the list of outputs reads 'z'",
    ):  # fmt: skip
        assert part in told, (part, told)


def test_whatever_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    m = model("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    held = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    m.graph.initializer.extend([held, held])
    m.graph.input.append(m.graph.input[0])
    for i, damaged in enumerate((m.SerializeToString(), b"", b"\x08\x08:", m.SerializeToString()[:40])):
        path = tmp_path / f"damaged{i}.onnx"
        path.write_bytes(damaged)
        with pytest.raises(RenormError) as raised:
            frontends.read(path)
        assert path.name in str(raised.value).partition("\n")[0]
