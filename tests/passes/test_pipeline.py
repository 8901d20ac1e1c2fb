"""Whole pipelines: random networks keep their numbers at every level, and names and promises of the interface hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.networks import networks

from renorm import ops
from renorm.core.dims import Sym
from renorm.core.errors import InternalError, InvalidInput, UserCodeError
from renorm.core.target import Target
from renorm.graph import interpret, registry
from renorm.graph.channels import ChannelMap
from renorm.graph.ir import Graph, Value
from renorm.graph.op import OPAQUE
from renorm.graph.parse import parse
from renorm.graph.rewrite import Rewrite
from renorm.graph.verify import verify
from renorm.passes import fold
from renorm.passes.common_subexpressions import ShareCommon
from renorm.passes.context import Context, Pass
from renorm.passes.dead_code import RemoveDeadCode
from renorm.passes.pipeline import KERNELS, MODEL, optimize
from renorm.passes.rewriting import ApplyRules


def close(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))


PASSES: list[Pass] = [one for _, one in (*MODEL, *KERNELS)]
RULES = [rule for one in PASSES if isinstance(one, ApplyRules) for rule in one.rules]


@settings(deadline=None, max_examples=40)
@given(networks(), st.permutations(PASSES), st.lists(st.sampled_from(RULES), max_size=5))
def test_every_pass_alone_and_in_any_order_keeps_the_numbers(
    network: Any, passes: list[Pass], rules: list[Rewrite]
) -> None:
    g, inputs = network
    passes = [*passes, *(ApplyRules((rule,)) for rule in rules)]
    expected = interpret.run(g, inputs)
    for one in passes:
        alone = g.copy()
        one.run(alone, Context())
        verify(alone)
        close(interpret.run(alone, inputs), expected)
    for one in passes:
        g.groups = []
        one.run(g, Context())
        verify(g)
    close(interpret.run(g, inputs), expected)


@settings(deadline=None, max_examples=40)
@given(networks(), st.sampled_from([0, 1, 2, 3]), st.sampled_from([(), ("batch_norm",), ("batch_norm", "dropout")]))
def test_every_level_keeps_numbers_and_output_names(network: Any, level: int, keep: tuple[str, ...]) -> None:
    g, inputs = network
    expected, names = interpret.run(g, inputs), [v.name for v in g.outputs]
    norms = [n.name for n in g.nodes if n.op.is_normalization]
    live = g.copy()
    RemoveDeadCode().run(live, Context())
    units = [n.name for n in live.nodes if n.op.name in keep]
    done, report = optimize(g.copy(), level=level, keep=keep)
    close(interpret.run(done, inputs), expected)
    assert [v.name for v in done.outputs] == names
    assert report.renamed == {}
    assert [r.name for r in report.norms if r.name in norms] == norms
    assert all(r.raised for r in report.norms if r.name not in norms)
    assert all(r.reason or r.fate == "folded" for r in report.norms)
    left = {n.name for n in done.nodes}
    assert left.issuperset(units)
    assert {r.name for r in report.norms if r.fate == "unit"} == {u for u in units if u in norms}
    if level < 2:
        assert len(done.groups) == len(done.nodes)
    text = str(done)
    assert str(parse(text, {v.name: v.data for v in done.constants.values() if v.data is not None})) == text


def _steps(g: Graph) -> list[tuple[str, list[str]]]:
    return [(repr(n.op), [str(t) for t in n.operand_types()]) for n in g.nodes]


@settings(deadline=None, max_examples=25)
@given(networks())
def test_a_second_run_changes_nothing(network: Any) -> None:
    g, inputs = network
    expected = interpret.run(g.copy(), inputs)
    once, _ = optimize(g, level=2)
    steps = _steps(once)
    once.groups = []
    again, report = optimize(once, level=2)
    assert _steps(again) == steps  # what stayed a scale and a shift is raised and unpacked again, under other names
    close(interpret.run(again, inputs), expected)
    assert not any(r.fate == "folded" for r in report.norms)


@settings(deadline=None, max_examples=25)
@given(networks())
def test_verifying_finds_nothing_wrong(network: Any) -> None:
    g, inputs = network
    expected = interpret.run(g, inputs)
    done, report = optimize(g, level=2, verify=True)
    close(interpret.run(done, inputs), expected)
    assert not [r for r in report.refusals if "reverted" in r[2]]
    assert all(r.max_error is not None and r.max_error < 1e-9 for r in report.norms if r.fate == "folded" and r.into)


def small(middle: Callable[[Value], Value] = ops.relu, **symbols: Any) -> Graph:
    rng, g = np.random.default_rng(0), Graph("small")
    x = g.input("x", "float32", (symbols.get("n", 2), 3, 6, 6))

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def norm(y: Value, name: str) -> Value:
        scale = normal(int(str(y.shape[1])))
        scale[0] = -1  # which relu does not commute with
        c = len(scale)
        return ops.batch_norm(y, scale, normal(c), normal(c), np.abs(normal(c)) + np.float32(0.1), name=name)

    y = ops.relu(norm(ops.conv(x, normal(4, 3, 3, 3), name="conv_a"), "norm_a"))
    z = middle(norm(middle(ops.conv(y, normal(4, 4, 1, 1), name="conv_b")), "norm_b"))
    g.outputs = [ops.add(z, y, name="sum")]
    return g


def kernels(g: Graph) -> list[str]:
    return [k.name for k in g.groups]


def test_levels_and_kernel_names() -> None:
    assert kernels(optimize(small(), level=0)[0]) == [
        *("conv2d", "mul", "add", "relu", "conv2d_1", "relu_1", "mul_1", "add_1", "relu_2", "add_2")
    ]
    assert kernels(optimize(small(), level=2)[0]) == ["fused_conv2d_relu", "fused_conv2d_relu_mul_add_relu_add"]
    kept = kernels(optimize(small(), level=3, keep=["batch_norm"])[0])
    assert kept == ["fused_conv2d_batch_norm_relu", "fused_conv2d_relu_batch_norm_relu_add"]
    kept = kernels(optimize(small(), level=0, keep=["batch_norm"])[0])
    assert kept == ["conv2d", "batch_norm", "relu", "conv2d_1", "relu_1", "batch_norm_1", "relu_2", "add"]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_open_extents_go_through_every_level(level: int) -> None:
    """Folding and fusing do not wait for the batch size; what is known later is the same network."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    g, report = optimize(small(n=Sym("N")), level=level)
    assert [r.fate for r in report.norms] == (["folded", "fused"] if level >= 2 else ["unpacked"] * 2)
    assert kernels(g) == kernels(optimize(small(), level=level)[0])
    close(interpret.run(g, [x]), interpret.run(small(), [x]), 1e-5)


def test_keep_names_one_node() -> None:
    g, report = optimize(small(), level=2, keep=["norm_b"])
    fates = {r.name: (r.fate, r.into, r.reason) for r in report.norms}
    assert fates["norm_a"] == ("folded", ("conv_a",), "")
    assert fates["norm_b"] == ("unit", ("fused_conv2d_relu_batch_norm_relu_add",), "keep holds 'norm_b'")
    assert str(g).count(" = batch_norm(") == 1


def test_unknown_names_in_keep_are_named_with_near_ones() -> None:
    with pytest.raises(InvalidInput) as error:
        optimize(small(), keep=["batchnorm", "norm_x", "relu", "BatchNormalization"])
    assert error.value.headline == "keep: neither op nor node of small: 'batchnorm', 'norm_x', 'BatchNormalization'"
    assert "batch_norm" in error.value.facts[0]
    assert "norm_a" in error.value.facts[1]
    assert error.value.facts[2] == "ONNX's BatchNormalization is batch_norm here"


def test_fates_and_reasons() -> None:
    def fates(level: int) -> dict[str, tuple[str, tuple[str, ...], str]]:
        return {r.name: (r.fate, r.into, r.reason) for r in optimize(small(), level=level)[1].norms}

    assert fates(0)["norm_a"] == ("unpacked", ("mul", "add"), "opt_level 0 folds nothing")
    found = fates(2)
    assert found["norm_a"] == ("folded", ("conv_a",), "")
    assert found["norm_b"] == (
        "fused",
        ("fused_conv2d_relu_mul_add_relu_add",),
        "relu does not commute with factors that are not above zero: -1.03 in channel 0 (node 'relu_1')",
    )


def test_fates_of_norms_on_inputs_and_of_other_norms() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3, 4, 4))
    one = np.ones(3, np.float32)
    y = ops.batch_norm(x, one, one, one, one, name="first")
    y = ops.instance_norm(y, one, one, name="second")
    y = ops.batch_norm(ops.relu(y), one, one, one, one, training_mode=True, name="third")
    ops.instance_norm(y, one, one, name="dead")
    g.outputs = [ops.relu(y)]
    report = optimize(g, level=2)[1]
    found = {r.name: (r.fate, r.into, r.reason) for r in report.norms}
    assert found["first"][0] == "fused"
    assert found["first"][2] == "it reads the input 'x' of the graph: no node before it could take its scale and shift"
    assert found["second"][0] == "kept"
    assert found["second"][2] == "its statistics come from what it reads, so that constants cannot hold it"
    assert found["third"][0] == "kept"
    assert found["third"][2] == "its statistics come from the batch (training_mode = 1)"
    assert found["dead"] == ("folded", (), "no output of the network depends on it")


def test_fates_of_norms_in_a_row() -> None:
    """Both become part of the convolution behind them, in one step; in front of nothing that takes them, of one
    another."""
    g = Graph()
    x = g.input("x", "float32", (2, 3, 4, 4))
    one = np.ones(3, np.float32)
    y = ops.batch_norm(ops.batch_norm(x, one, one, one, one, name="first"), one, one, one, one, name="second")
    g.outputs = [ops.relu(ops.conv(y, np.ones((2, 3, 1, 1), np.float32), name="conv"))]
    done, report = optimize(g.copy(), level=2)
    assert kernels(done) == ["fused_conv2d_relu"]
    assert {r.name: (r.fate, r.into) for r in report.norms} == dict.fromkeys(("first", "second"), ("folded", ("conv",)))
    g.outputs = [ops.exp(y)]
    done, report = optimize(g, level=2)
    assert kernels(done) == ["fused_mul_add_exp"]
    assert [r.fate for r in report.norms] == ["fused", "folded"]


def test_an_override_keeps_an_op_alone_on_its_target() -> None:
    registry.override("batch_norm", target="llvm", fusion=OPAQUE)
    try:
        alone = kernels(optimize(small(), level=2, keep=["batch_norm"])[0])
        assert alone == ["conv2d", "batch_norm", "relu", "fused_conv2d_relu", "batch_norm_1", "fused_relu_add"]
        cuda = optimize(small(), level=2, keep=["batch_norm"], target=Target("cuda"))[0]
        assert "fused_conv2d_batch_norm_relu" in kernels(cuda)
    finally:
        registry.override("batch_norm", target="llvm")


def test_a_target_keeps_its_units() -> None:
    npu = Target("npu", supports=["batch_norm"])
    g, report = optimize(small(), level=3, target=npu)
    assert [r.fate for r in report.norms] == ["unit", "unit"]
    assert report.norms[0].reason == "target npu has batch_norm as a unit"
    assert "fused_conv2d_batch_norm_relu" in kernels(g)


def test_a_target_claims_patterns_the_larger_first_whatever_the_order() -> None:
    def conv_norm(x: Any, w: Any, b: Any, s: Any, t: Any, mean: Any, var: Any) -> Any:
        return ops.batch_norm(ops.conv(x, w, b), s, t, mean, var)

    def conv_norm_relu(x: Any, w: Any, b: Any, s: Any, t: Any, mean: Any, var: Any) -> Any:
        return ops.relu(ops.batch_norm(ops.conv(x, w, b), s, t, mean, var))

    for supports in ([conv_norm, conv_norm_relu], [conv_norm_relu, conv_norm]):
        g, report = optimize(small(lambda v: v), level=3, target=Target("npu", supports=supports))
        assert kernels(g) == ["fused_conv2d_batch_norm_relu", "fused_conv2d_batch_norm", "add"]
        assert [r.reason for r in report.norms] == [
            "target npu runs conv + batch_norm + relu as one",
            "target npu runs conv + batch_norm as one",
        ]


def test_exported_graphs_stay_models() -> None:
    g, report = optimize(small(n=Sym("N")), level=2, for_export=True)
    assert not g.groups
    assert [n.op.name for n in g.nodes] == ["conv", "relu", "conv", "relu", "batch_norm", "relu", "add"]
    assert [r.fate for r in report.norms] == ["folded", "kept"]


def test_verify_reverts_a_rule_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fold.FoldBatchNorm.affine

    def wrong(self: Any, m: Any) -> Any:
        found = right(self, m)
        if isinstance(found, str):
            return found
        assert found.k is not None
        return ChannelMap(found.axis, found.k * 1.001, found.shift)

    monkeypatch.setattr(fold.FoldBatchNorm, "affine", wrong)
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    expected = interpret.run(small(), [x])[0]
    done, report = optimize(small(), level=2, verify=True)
    (reverted,) = [r for r in report.refusals if "reverted" in r[2]]
    assert reverted[:2] == ("FoldBatchNorm", "norm_a")
    norm = report.norms[0]
    assert norm.fate == "fused"
    assert norm.reason.startswith("reverted: on random inputs 'norm_a_out' differs by 0.00")
    close(interpret.run(done, [x]), [expected], 1e-5)


def test_verify_reverts_a_pass_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, graph: Graph, context: Context) -> None:
        for n in graph.nodes:
            if n.op.name == "relu":
                n.op = registry.find("neg")()

    monkeypatch.setattr(ShareCommon, "run", wrong)
    done, report = optimize(small(), level=2, verify=True)
    assert "relu" in {n.op.name for n in done.nodes}
    assert {r[0] for r in report.refusals if "reverted" in r[2]} == {"ShareCommon"}


def test_a_fault_of_a_pass_prints_the_pass_and_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, graph: Graph, context: Context) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(RemoveDeadCode, "run", fail)
    with pytest.raises(InternalError, match=r"pass RemoveDeadCode failed on .*: KeyError: 'lost'") as caught:
        optimize(small(), level=1)
    for part in ("test_pipeline.py:", "= conv(", "renorm inspect MODEL --opt-level 1"):
        assert part in str(caught.value)


def test_verify_draws_open_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    report = optimize(small(n=Sym("N")), verify=True)[1]
    assert report.norms[0].max_error is not None
    monkeypatch.setattr(fold.FoldBatchNorm, "affine", lambda self, m: ChannelMap(1, np.full(4, 2.0), None))
    report = optimize(small(n=Sym("N")), verify=True)[1]
    assert "FoldBatchNorm" in {rule for rule, _, reason in report.refusals if reason.startswith("reverted")}


def test_verify_refuses_what_cannot_be_computed() -> None:
    g = Graph()
    x = g.input("x", "float32", (Sym("N"), 3))
    g.outputs = [ops.reshape(x, np.array([7, 7, 7, 7, 7], np.int64))]
    with pytest.raises(UserCodeError, match=r"node 'reshape'(?s:.*)verify computed graph on random inputs"):
        optimize(g, verify=True)
