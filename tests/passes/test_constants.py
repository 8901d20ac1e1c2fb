"""What is computed at compile time, what is not, and what exporters write around shapes."""

import numpy as np
import pytest

from renorm import ops
from renorm.core.dims import Sym
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef
from renorm.graph.verify import verify
from renorm.passes.common_subexpressions import ShareCommon
from renorm.passes.constants import FixStaticOperands, FoldConstants
from renorm.passes.context import Context
from renorm.passes.dead_code import RemoveDeadCode
from renorm.passes.pipeline import optimize


def op_names(g: Graph) -> list[str]:
    return [n.op.name for n in g.nodes]


def test_folding_rounds_once_and_integers_are_exact() -> None:
    g = Graph()
    x = g.input("x", "float32", (3,))
    c = ops.mul(g.constant(np.array([1.1, 2.2, 3.3], np.float32)), np.array([0.1, 0.2, 0.3], np.float32))
    n = ops.add(g.constant(np.array([2**60])), np.array([1]))
    g.outputs = [ops.add(x, c), ops.mul(g.input("i", "int64", (1,)), n)]
    FoldConstants().run(g, Context())
    verify(g)
    assert op_names(g) == ["add", "mul"]
    exact = np.array([1.1, 2.2, 3.3], np.float32).astype(np.float64) * np.array([0.1, 0.2, 0.3], np.float32).astype(
        np.float64
    )
    np.testing.assert_array_equal(g.nodes[0].operands[1].data, exact.astype(np.float32))
    assert g.nodes[1].operands[1].data.tolist() == [2**60 + 1]


def test_outputs_kept_nodes_and_large_results_stay() -> None:
    g = Graph()
    big = ops.expand(g.constant(np.array([1], np.float32)), np.array([2000, 2000]))
    also = ops.constant_of_shape(g.constant(np.array([3000, 3000])))
    kept = ops.relu(g.constant(np.array([-1, 1], np.float32)), name="mine")
    g.outputs = [ops.neg(big), ops.neg(also), ops.neg(kept), ops.exp(g.constant(np.array([1], np.float32)))]
    before = op_names(g)
    FoldConstants().run(g, Context(keep=frozenset(["mine"])))
    assert op_names(g) == before
    assert sum(v.data.nbytes for v in g.constants.values() if v.data is not None) < 1000


def test_several_results_fold_together() -> None:
    g = Graph()
    a, b = ops.split(g.constant(np.arange(6.0)), num_outputs=2)
    x = g.input("x", "float64", (3,))
    g.outputs = [ops.add(x, a), ops.add(x, b)]
    FoldConstants().run(g, Context())
    verify(g)
    assert op_names(g) == ["add", "add"]
    np.testing.assert_array_equal(interpret.run(g, [np.zeros(3)])[1], [3, 4, 5])


def view_chain(g: Graph, n: object, h: object) -> None:
    """x.view(x.size(0), -1) and an upsampling by two, as torch exported them for years."""
    x = g.input("x", "float32", (n, 3, h, h))
    rows = ops.unsqueeze(ops.gather(ops.shape(x), np.array(0)), axes=(0,))
    size = ops.slice(ops.shape(x), *(np.array([i]) for i in (2, 4, 0)))
    doubled = ops.cast(ops.floor(ops.mul(ops.cast(size, to="float32"), np.array([2, 2], np.float32))), to="int64")
    sizes = ops.concat([ops.slice(ops.shape(x), *(np.array([i]) for i in (0, 2, 0))), doubled], axis=0)
    larger = ops.resize(x, None, None, sizes, mode="nearest", coordinate_transformation_mode="asymmetric")
    g.outputs = [ops.reshape(x, ops.concat([rows, np.array([-1])], axis=0)), ops.relu(larger)]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_shape_chains_are_no_work_of_the_network(level: int) -> None:
    g = Graph()
    view_chain(g, 2, 5)
    x = np.random.default_rng(0).random((2, 3, 5, 5)).astype(np.float32)
    done, _ = optimize(g, level=level)
    assert sorted(op_names(done)) == ["relu", "reshape", "resize"]
    assert [v.shape for v in done.outputs] == [(2, 75), (2, 3, 10, 10)]
    flat, larger = interpret.run(done, [x])
    np.testing.assert_array_equal(flat, x.reshape(2, 75))
    np.testing.assert_array_equal(larger, x.repeat(2, axis=2).repeat(2, axis=3))


def test_shape_chains_over_open_extents_stay_until_they_are_fixed() -> None:
    g = Graph()
    view_chain(g, Sym("N"), Sym("H"))
    FixStaticOperands().run(g, Context())
    assert "shape" in op_names(g)
    done, _ = optimize(g.copy({"N": 2, "H": 5}), level=0)
    assert sorted(op_names(done)) == ["relu", "reshape", "resize"]


def test_a_shape_that_is_also_a_result_is_computed() -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3))
    s = ops.shape(x)
    g.outputs = [ops.reshape(x, s), s]
    done, _ = optimize(g, level=0)
    assert op_names(done) == ["shape", "reshape"]
    assert interpret.run(done, [np.zeros((2, 3))])[1].tolist() == [2, 3]


def test_identity_between_an_initializer_and_its_reader() -> None:
    for level in (0, 2):
        g = Graph()
        x = g.input("x", "float32", (1, 2, 4))
        w = ops.identity(g.constant(np.ones((2, 2, 1), np.float32), "w"))
        stats = [ops.identity(g.constant(np.ones(2, np.float32))) for _ in range(4)]
        g.outputs = [ops.relu(ops.dropout(ops.batch_norm(ops.conv(x, w), *stats)))]
        done, report = optimize(g, level=level)
        assert op_names(done) == (["conv", "mul", "add", "relu"] if level == 0 else ["conv", "relu"])
        assert report.norms[0].fate == ("unpacked" if level == 0 else "folded")


def test_dropout_can_be_kept() -> None:
    g = Graph()
    g.outputs = [ops.relu(ops.dropout(g.input("x", "float32", (2,))))]
    done, _ = optimize(g.copy(), level=3, keep=["dropout"])
    assert op_names(done) == ["dropout", "relu"]
    assert op_names(optimize(g, level=0)[0]) == ["relu"]


def test_an_output_that_is_an_input_keeps_its_own_name() -> None:
    g = Graph()
    x = g.input("x", "float32", (2,))
    y = ops.identity(x)
    g.rename(y, "y")
    g.outputs = [y, ops.identity(y)]
    done, _ = optimize(g, level=3)
    assert done.outputs[0].name == "y"
    assert all(v.producer is not None for v in done.outputs)


def test_common_nodes_and_constants_are_shared_and_kept_ones_are_not() -> None:
    def build() -> Graph:
        g = Graph()
        x = g.input("x", "float32", (2,))
        parts = [ops.mul(ops.exp(x, name=f"exp{i}"), np.array([2, 3], np.float32)) for i in range(3)]
        g.outputs = [ops.add(ops.add(parts[0], parts[1]), parts[2])]
        return g

    g = build()
    ShareCommon().run(g, Context())
    verify(g)
    assert op_names(g) == ["exp", "mul", "add", "add"]
    assert len(g.constants) == 1
    assert g.nodes[0].origin == ("exp0", "exp1", "exp2")
    g = build()
    ShareCommon().run(g, Context(keep=frozenset(["exp"])))
    assert op_names(g).count("exp") == 3


def test_zeros_of_either_sign_are_different_constants() -> None:
    g = Graph()
    x = g.input("x", "float32", (1,))
    g.outputs = [ops.div(x, np.array([0.0], np.float32)), ops.div(x, np.array([-0.0], np.float32))]
    ShareCommon().run(g, Context())
    assert len(g.constants) == 2


def test_dead_code_goes_with_its_constants() -> None:
    g = Graph()
    x = g.input("x", "float32", (2,))
    ops.add(ops.exp(x), np.array([1, 2], np.float32))
    g.outputs = [ops.relu(x)]
    RemoveDeadCode().run(g, Context())
    verify(g)
    assert op_names(g) == ["relu"]
    assert not g.constants
    assert g.inputs == [x]


class Noisy(OpDef):
    """y = x, by a reference that fails."""

    signature = "x: T[*S] -> y: T[*S]"


def test_one_result_per_level_zero_kernel() -> None:
    g = Graph()
    g.outputs = [ops.relu(Noisy()(g.input("x", "float32", (2,))))]
    assert [k.name for k in optimize(g, level=0)[0].groups] == ["noisy", "relu"]


def test_each_node_of_a_shape_chain_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ways lead through it, and however long they are."""
    g = Graph()
    x = g.input("x", "float32", (2, 3))
    shape = ops.abs(ops.shape(x))
    for _ in range(100):
        shape = ops.sub(ops.abs(shape), ops.sub(shape, ops.abs(shape)))
    g.outputs = [ops.relu(ops.reshape(x, shape))]
    computed, apply = list[str](), interpret.apply
    monkeypatch.setattr(interpret, "apply", lambda node, *a, **k: computed.append(node.name) or apply(node, *a, **k))
    FixStaticOperands().run(g, Context())
    assert op_names(g) == ["reshape", "relu"]
    assert g.outputs[0].shape == (2, 3)
    assert len(computed) == len(set(computed)) <= 402


def test_shapes_that_depend_on_shapes_just_fixed_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 3))
    for _ in range(50):
        x = ops.neg(ops.reshape(x, ops.abs(ops.shape(x))))
    g.outputs = [x]
    inferred, infer = list[str](), Graph.infer
    monkeypatch.setattr(Graph, "infer", lambda self, node: inferred.append(node.name) or infer(self, node))
    FixStaticOperands().run(g, Context())
    assert op_names(g) == ["reshape", "neg"] * 50
    assert x.shape == (2, 3)
    assert max(map(inferred.count, inferred)) == 1


def test_constants_that_begin_alike_are_not_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x = g.input("x", "float32", (2, 100))
    arrays = [np.stack([np.zeros(100), np.full(100, i % 40)]).astype(np.float32) for i in range(200)]
    g.outputs = [ops.sum([ops.mul(x, a) for a in arrays])]
    compared, equal = list[int](), np.array_equal
    monkeypatch.setattr(np, "array_equal", lambda *a, **k: compared.append(1) or equal(*a, **k))
    ShareCommon().run(g, Context())
    assert len(g.constants) == 40
    assert not compared
