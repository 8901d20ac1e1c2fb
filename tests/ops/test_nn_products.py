"""Gemm as every year wrote it, matrix products of any rank, and how a factor and a shift per channel are folded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from tests.ops.nodes import by_loops, by_onnxruntime, by_reference, by_renorm, case, model, normal, read
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import Sym, Symbol
from renorm.core.errors import RenormError
from renorm.graph.deferred import Deferred
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef
from renorm.graph.types import TensorType
from renorm.ops.batch_norm import BatchNorm
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.ops.gemm import Gemm
from renorm.ops.group_norm import GroupNorm
from renorm.ops.instance_norm import InstanceNorm
from renorm.ops.layer_norm import LayerNorm
from renorm.ops.matmul import Matmul
from renorm.ops.rms_norm import RmsNorm


def drawn(*shape: int) -> Any:
    return normal(RNG, *shape)


# --- gemm -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [1, 6, 7, 9, 11, 13])
@pytest.mark.parametrize("c", [None, (3,), (1, 3), (5, 1), (5, 3), (1,)], ids=str)
@pytest.mark.parametrize("turns", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_at_every_opset(opset: int, c: tuple[int, ...] | None, turns: tuple[int, int]) -> None:
    if c is None and opset < 11:
        c = (5, 3)  # was not optional
    o: dict[str, Any] = {"a": drawn(5, 7), "b": drawn(7, 3), "c": None if c is None else drawn(*c)}
    expected = 0.5 * (o["a"].astype(np.float64) @ o["b"]) + (0 if c is None else 2.0 * o["c"])
    operands = o | {"a": o["a"].T.copy() if turns[0] else o["a"], "b": o["b"].T.copy() if turns[1] else o["b"]}
    old: dict[str, Any] = {"broadcast": 1} if opset < 7 else {}
    proto = model("Gemm", opset, operands, transA=turns[0], transB=turns[1], alpha=0.5, beta=2.0, **old)
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)
    loops = by_loops(Gemm, *operands.values(), transA=turns[0], transB=turns[1], alpha=0.5, beta=2.0)
    np.testing.assert_allclose(loops, expected, rtol=1e-4, atol=1e-4)


def test_gemm_before_opset_7_broadcasts_only_where_it_says_so() -> None:
    o = {"a": drawn(5, 7), "b": drawn(7, 3), "c": drawn(3)}
    with pytest.raises(RenormError, match="set the attribute broadcast to 1"):
        read(model("Gemm", 6, o))
    same = o | {"c": drawn(5, 3)}
    np.testing.assert_allclose(
        by_renorm(model("Gemm", 6, same), same)[0], same["a"] @ same["b"] + same["c"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("c", "attributes"), [(np.zeros(3, np.float32), {}), (np.full(3, np.nan, np.float32), {"beta": 0.0})]
)
@pytest.mark.parametrize("is_constant", [True, False])
def test_gemm_without_a_bias_as_it_was_written_in_2018(c: Any, attributes: dict[str, Any], is_constant: bool) -> None:
    o = {"a": drawn(5, 7), "b": drawn(7, 3), "c": c}
    proto = model("Gemm", 7, o, constant=("c",) if is_constant else (), **attributes)
    np.testing.assert_allclose(by_renorm(proto, o)[0], o["a"] @ o["b"], rtol=1e-4, atol=1e-5)
    (node,) = read(proto).nodes
    if is_constant or attributes:
        assert node.operands[2] is None
        assert isinstance(node.op, Gemm)
        assert node.op.beta == 1


# --- matmul -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=2, min_side=1, max_side=4),
    st.integers(0, 99),
)
def test_matmul_is_that_of_numpy(shapes: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (normal(rng, *s) for s in shapes.input_shapes)
    expected = np.matmul(a.astype(np.float64), b)
    np.testing.assert_allclose(by_loops(Matmul, a, b), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_reference(Matmul, a, b), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_columns_whose_vectors_no_tile_divides(target: str, is_constant: bool) -> None:
    """37 and 73 vectors, primes, in a result that no core's cache holds: the last tile of columns is not full."""
    rows = max(301, renorm.Target("llvm").cache_bytes // (581 * 8) + 1)
    graph, (a, b) = Graph(), (drawn(2, rows, 5), drawn(*(() if is_constant else (2,)), 5, 581))
    y = renorm.ops.matmul(
        graph.input("a", "float32", a.shape), b if is_constant else graph.input("b", "float32", b.shape)
    )
    graph.outputs = [renorm.ops.relu(y)]
    m = renorm.compile(graph, target=target)
    found = m.run(*([a] if is_constant else [a, b]))[0]
    np.testing.assert_allclose(found, np.maximum(a.astype(np.float64) @ b, 0), rtol=1e-4, atol=1e-5)


def test_shapes_of_products_may_be_symbols() -> None:
    graph = Graph()
    a, b = graph.input("a", "float32", (Sym("N"), Sym("T"), 8)), graph.input("b", "float32", (8, 3))
    assert Matmul()(a, b).shape == (Sym("N"), Sym("T"), 3)
    left, bias = graph.input("left", "float32", (Sym("N"), 8)), graph.input("bias", "float32", (3,))
    assert Gemm()(left, b, bias).shape == (Sym("N"), 3)


# --- a factor and a shift per channel ---------------------------------------------------------------------------------

POSITIVE = np.abs(drawn(6)) + np.float32(0.1)
SCALED: list[tuple[type[OpDef], tuple[Any, ...], dict[str, Any], int]] = [
    (Conv, (drawn(2, 4, 5, 5), drawn(6, 2, 3, 3), drawn(6)), {"group": 2, "strides": (2, 1)}, 1),
    (Conv, (drawn(2, 3, 7), drawn(6, 3, 2), None), {"pads": (1, 1)}, 1),
    (ConvTranspose, (drawn(2, 4, 3, 3), drawn(4, 6, 2, 3), drawn(6)), {"strides": (2, 2)}, 1),
    (ConvTranspose, (drawn(2, 4, 3, 3), drawn(4, 3, 2, 3), None), {"group": 2}, 1),
    (ConvTranspose, (drawn(2, 3, 4), drawn(3, 2, 3), drawn(6)), {"group": 3, "output_padding": (0,)}, 1),
    (Gemm, (drawn(5, 4), drawn(4, 6), drawn(6)), {"alpha": 0.5, "beta": -2.0}, 1),
    (Gemm, (drawn(5, 4), drawn(6, 4), drawn(5, 1)), {"transB": True}, 1),
    (Gemm, (drawn(5, 4), drawn(4, 6), None), {}, 1),
    (Gemm, (drawn(6, 4), drawn(4, 5), drawn(5)), {"alpha": 2.0}, 0),
    (Gemm, (drawn(4, 6), drawn(4, 5), drawn(1)), {"transA": True, "beta": 3.0}, 0),
    (Matmul, (drawn(5, 4), drawn(4, 6)), {}, 1),
    (Matmul, (drawn(6, 4), drawn(4, 5)), {}, 0),
    (BatchNorm, (drawn(2, 6, 3), drawn(6), drawn(6), drawn(6), POSITIVE), {}, 1),
    (InstanceNorm, (drawn(2, 6, 3), drawn(6), drawn(6)), {}, 1),
    (GroupNorm, (drawn(2, 6, 3), drawn(6), drawn(6)), {"num_groups": 2}, 1),
    (LayerNorm, (drawn(2, 3, 6), drawn(6), drawn(6)), {}, 2),
    (LayerNorm, (drawn(2, 6, 3), drawn(3), None), {"axis": -2}, 1),
]
CONSTANT_OPERANDS = {"gemm-0": (0, 2), "matmul-0": (0,)}


@pytest.mark.parametrize("which", ["k", "shift", "both"])
@pytest.mark.parametrize(("op", "operands", "attributes", "axis"), SCALED, ids=lambda v: getattr(v, "name", None))
def test_scaled_is_the_result_times_k_plus_shift(
    op: type[OpDef], operands: tuple[Any, ...], attributes: dict[str, Any], axis: int, which: str
) -> None:
    expected = by_reference(op, *operands, **attributes)
    along = (-1, *[1] * (expected.ndim - 1 - axis))
    k = RNG.standard_normal(6) if which != "shift" else None
    shift = RNG.standard_normal(6) if which != "k" else None
    expected = expected * (1 if k is None else k.reshape(along)) + (0 if shift is None else shift.reshape(along))
    constant = CONSTANT_OPERANDS.get(f"{op.name}-{axis}", range(1, 5))
    seen = [
        None if a is None else a.astype(np.float64) if i in constant else TensorType("float32", a.shape)
        for i, a in enumerate(operands)
    ]
    made, changed = op(**attributes).fold_after(seen, axis, k, shift)
    arrays = [operands[i] if isinstance(a, TensorType) else a for i, a in enumerate(changed)]
    wide = [None if a is None else a.exact() if isinstance(a, Deferred) else a.astype(np.float64) for a in arrays]
    np.testing.assert_allclose(by_reference(type(made), *wide, **made.values), expected, rtol=1e-9, atol=1e-9)


F, T = (lambda *s: np.ones(s)), (lambda *s: TensorType("float32", s))
REFUSED: list[tuple[OpDef, list[Any], int, bool, str]] = [
    (Conv(), [T(1, 2, 3), T(4, 2, 1), None], 1, False, "weight of conv is not a constant"),
    (Conv(), [T(1, 2, 3), F(4, 2, 1), T(4)], 1, True, "bias of conv is not a constant"),
    (Conv(), [T(1, 2, 3), F(4, 2, 1), None], 2, False, "axis 2 of the result of conv"),
    (Gemm(), [T(2, 3), T(3, 4), None], 1, False, "operand b of gemm"),
    (Gemm(), [T(2, 3), F(3, 4), None], 0, False, "operand a of gemm"),
    (Gemm(), [T(2, 3), F(3, 4), T(4)], 1, False, "operand c of gemm"),
    (Matmul(), [T(5, 2, 3), F(3, 4)], 1, False, "left operand of matmul"),
    (Matmul(), [T(5, 2, 3), F(3, 4)], 0, False, "neither its rows nor its columns"),
    (Matmul(), [T(5, 2, 3), F(3, 4)], 2, True, "matmul has no bias"),
    (BatchNorm(), [T(1, 4), T(4), F(4), F(4), F(4)], 1, False, "scale and bias of batch_norm are not constants"),
    (InstanceNorm(), [T(1, 4, 3), F(4), F(4)], 2, False, "axis 2 of the result of instance_norm"),
    (RmsNorm(), [T(1, 4), F(4)], 1, True, "rms_norm has no bias"),
    (RmsNorm(), [T(1, 4), T(4)], 1, False, "scale of rms_norm is not a constant"),
]


@pytest.mark.parametrize(("op", "operands", "axis", "shifted", "because"), REFUSED)
def test_scaled_says_why_it_cannot_be_done(
    op: OpDef, operands: list[Any], axis: int, shifted: bool, because: str
) -> None:
    extent = 4
    said = op.fold_after(operands, axis, np.ones(extent), np.ones(extent) if shifted else None)
    assert isinstance(said, str)
    assert because in said


@pytest.mark.parametrize(("ranks", "axis"), [((3, 2), 2), ((3, 3), 2), ((1, 2), 0)])
def test_columns_of_a_product_of_any_rank(ranks: tuple[int, int], axis: int) -> None:
    a, b = drawn(*(2, 5, 4)[3 - ranks[0] :]), drawn(*(2, 4, 6)[3 - ranks[1] :])
    k = RNG.standard_normal(6)
    operands = [TensorType("float32", a.shape), b.astype(np.float64)]
    _, (_, scaled) = Matmul().fold_after(operands, axis, k, None)
    found = np.matmul(a.astype(np.float64), scaled.exact())
    np.testing.assert_allclose(found, by_reference(Matmul, a, b) * k, rtol=1e-9)


def test_products_of_no_terms_are_zero() -> None:
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)
    np.testing.assert_array_equal(by_loops(Matmul, a, b), np.zeros((3, 2)))
    np.testing.assert_array_equal(by_loops(Gemm, a, b, np.ones(2, np.float32)), np.ones((3, 2)))
    o = {"a": a, "b": b}
    np.testing.assert_array_equal(by_onnxruntime(model("MatMul", 13, o), o)[0], np.zeros((3, 2)))
    assert case(Matmul, a, b).graph.outputs[0].shape == (3, 2)


# --- few rows of many matrices ----------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    lead=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    rows=st.one_of(st.integers(1, 7), st.integers(30, 70)),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    target=st.sampled_from(["llvm", "llvm -mcpu=haswell"]),
    turned=st.booleans(),
    is_open=st.booleans(),
)
def test_few_rows_of_many_matrices(
    lead: list[int], rows: int, sizes: tuple[int, int], target: str, turned: bool, is_open: bool
) -> None:
    depth, columns = sizes
    x, w, r = drawn(*lead, rows, depth), drawn(depth, columns), drawn(*lead, rows, columns)
    if turned:
        x = np.ascontiguousarray(x.swapaxes(0, -2))
    g = Graph("rows")
    held = list(x.shape)
    batch = -2 if turned else 0  # where the first axis of the result lies
    held[batch] = Sym(Symbol("n")) if is_open else held[batch]
    v = g.input("x", "float32", held)
    if turned:
        order = [*range(x.ndim)]
        order[0], order[-2] = order[-2], order[0]
        v, x = ops.transpose(v, perm=order), x.swapaxes(0, -2)
    y = ops.add(ops.matmul(v, g.constant(w, "w")), g.input("r", "float32", (held[batch], *r.shape[1:])))
    g.outputs = [ops.relu(y)]
    given = np.ascontiguousarray(x.swapaxes(0, -2) if turned else x)
    expected = np.maximum(x.astype(np.float64) @ w + r, 0)
    np.testing.assert_allclose(renorm.compile(g, target=target).run(given, r)[0], expected, rtol=1e-4, atol=1e-4)


def test_rows_of_many_matrices_are_multiplied_in_tiles_across_them() -> None:
    """128 matrices of one row take what one of 128 rows does."""
    predicted = []
    for shape in ((128, 1, 64), (1, 128, 64)):
        g = Graph("rows")
        g.outputs = [ops.matmul(g.input("x", "float32", shape), g.constant(drawn(64, 256), "w"))]
        predicted.append(renorm.compile(g).report.kernels[0].predicted)
    assert predicted[0] <= 1.1 * predicted[1]
