"""Products between views: those that become products of what was there before, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_numbers import RNG

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.ops.gemm import Gemm
from renorm.passes import flattened_products
from renorm.passes.context import Context
from renorm.passes.dead_code import RemoveDeadCode
from renorm.passes.rewriting import ApplyRules
from renorm.passes.simplify import VIEWS


def shaped(x: Value, *shape: int) -> Value:
    return ops.reshape(x, np.array(shape))


def left(build: Callable[..., Value], *shapes: tuple[int, ...]) -> list[tuple[str, int]]:
    """Apply the rules, and return the ops that are left, without views, and their results' ranks. Results are the
    same."""
    g = Graph("products")
    g.outputs = [build(*(g.input(f"x{i}", "float32", s) for i, s in enumerate(shapes)))]
    arrays = [RNG.normal(size=static(v.shape)).astype(v.dtype) for v in g.inputs]
    (wanted,) = interpret.run(g, arrays)
    ApplyRules(flattened_products.RULES).run(g, Context())
    RemoveDeadCode().run(g, Context())
    (found,) = interpret.run(g, arrays)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return [(n.op.name, n.output.rank) for n in g.nodes if n.op.name not in VIEWS]


def batches(a: Value, b: Value) -> Value:
    return shaped(ops.matmul(shaped(a, 6, 5, 4), shaped(b, 6, 4, 7)), 2, 3, 5, 7)


def test_batches() -> None:
    assert left(batches, (2, 3, 5, 4), (2, 3, 4, 7)) == [("matmul", 4)]
    assert left(batches, (1, 2, 3, 5, 4), (3, 2, 4, 7)) == [("matmul", 4)]  # the same elements in order


def test_matrices_that_were_cut_stay() -> None:
    assert left(batches, (2, 3, 20, 1), (2, 3, 4, 7)) == [("matmul", 3)]
    assert left(lambda a, b: shaped(ops.matmul(shaped(a, 6, 5, 4), b), 2, 3, 5, 7), (2, 3, 5, 4), (6, 4, 7)) == [
        ("matmul", 3)
    ]
    assert left(lambda a, b: shaped(ops.matmul(a, b), 2, 15, 7), (6, 5, 4), (6, 4, 7)) == [("matmul", 3)]


@pytest.mark.parametrize("added", [(7,), (1, 7), None, (6, 7), (6, 1)])
@pytest.mark.parametrize("values", [{}, {"alpha": 2.0}, {"transB": True}], ids=["plain", "scaled", "turned"])
def test_rows(added: tuple[int, ...] | None, values: dict[str, Any]) -> None:
    def build(x: Value, w: Value, *c: Value) -> Value:
        return shaped(Gemm(**values)(shaped(x, 6, 4), w, *(c or [None])), 2, 3, 7)

    w = (7, 4) if values.get("transB") else (4, 7)
    found = left(build, (2, 3, 4), w, *([added] if added else []))
    if values or added in ((6, 7), (6, 1)):
        assert found == [("gemm", 2)]
    else:
        assert found == [("matmul", 3), ("add", 3)][: 1 if added is None else 2]


def test_rows_that_are_cut_otherwise() -> None:
    """The last extent of the result is another one, there was no view, or one of other axes."""
    assert left(lambda x, w: shaped(ops.gemm(shaped(x, 6, 4), w), 2, 3, 7, 1), (2, 3, 4), (4, 7)) == [("gemm", 2)]
    assert left(lambda x, w: shaped(ops.gemm(x, w), 2, 3, 7), (6, 4), (4, 7)) == [("gemm", 2)]
    assert left(lambda x, w: shaped(ops.gemm(shaped(x, 6, 4), w), 2, 3, 7), (2, 3, 2, 2), (4, 7)) == [("matmul", 3)]


def test_a_product_that_others_read_stays() -> None:
    def build(x: Value, w: Value) -> Value:
        y = ops.gemm(shaped(x, 6, 4), w)
        return ops.add(shaped(y, 2, 3, 7), ops.reduce_sum(y))

    assert ("gemm", 2) in left(build, (2, 3, 4), (4, 7))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_compiled(lead: list[int], rows: int, columns: int, is_attention: bool) -> None:
    """Attention as PyTorch takes it apart, or a product of rows; beside the interpreter."""
    n = int(np.prod(lead))
    g = Graph("compiled")
    q, k = (g.input(name, "float32", (*lead, size, 3)) for name, size in (("q", rows), ("k", columns)))
    w = g.input("w", "float32", (3, columns))
    if is_attention:
        keys = shaped(ops.transpose(k, perm=(*range(len(lead)), len(lead) + 1, len(lead))), n, 3, columns)
        scores = shaped(ops.matmul(shaped(q, n, rows, 3), keys), *lead, rows, columns)
        weights = ops.softmax(ops.mul(scores, np.float32(0.5)), axis=-1)
        y = shaped(ops.matmul(shaped(weights, n, rows, columns), shaped(k, n, columns, 3)), *lead, rows, 3)
    else:
        y = ops.relu(shaped(ops.gemm(shaped(q, n * rows, 3), w), *lead, rows, columns))
    g.outputs = [y]
    arrays = [RNG.normal(size=static(v.shape)).astype(v.dtype) for v in g.inputs]
    module = renorm.compile(g, threads=1)
    (found,), (wanted,) = module.run(*arrays), interpret.run(g, arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    names = {node.op.name for node in module.graph.nodes}
    assert ("attention" in names) == is_attention
