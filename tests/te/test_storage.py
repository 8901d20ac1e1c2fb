"""Storage reuse: what shares memory, what must not, and that results never change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import te
from renorm.expr.nodes import Expr
from renorm.expr.rewrite import loads
from renorm.te.storage import reuse
from renorm.tir import interpret
from renorm.tir.nodes import Allocate, Buffer, Kernel, Store, expressions, walk
from renorm.tir.parse import parse


def allocations(kernel: Kernel) -> dict[str, int | Expr]:
    return {s.buffer.name: s.buffer.size for s in walk(kernel.body) if isinstance(s, Allocate)}


def lower(*tensors: te.Tensor) -> Kernel:
    return te.lower(te.create_schedule(tensors[-1].op), list(tensors))


A = te.placeholder((8, 4), name="A")
V = te.placeholder((4,), name="V")


def named(name: str, f: Any, shape: tuple[int, ...] = (8, 4), dtype: str = "float32") -> te.Tensor:
    return te.compute(shape, f, name=name)


def test_elementwise_chains_run_in_place() -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[i, j] * 2)
    z = named("z", lambda i, j: y[i, j] - 3)
    assert allocations(lower(A, named("out", lambda i, j: z[7 - i, j]))) == {"x": 32}


def test_another_index_needs_other_memory() -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[7 - i, j] * 2)
    assert allocations(lower(A, named("out", lambda i, j: y[7 - i, j]))) == {"x": 32, "y": 32}


def test_memory_that_is_free_is_taken_again() -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[7 - i, j] * 2)
    z = named("z", lambda i, j: y[7 - i, j] * 2)
    assert allocations(lower(A, named("out", lambda i, j: z[7 - i, j]))) == {"x": 32, "y": 32}


def test_memory_grows_for_a_larger_tenant() -> None:
    x = te.compute((4,), lambda j: V[j] + 1, name="x")
    y = te.compute((4,), lambda j: x[3 - j] * 2, name="y")
    z = named("z", lambda i, j: y[3 - j] + A[i, j])
    assert allocations(lower(A, V, named("out", lambda i, j: z[7 - i, j]))) == {"x": 32, "y": 4}


def test_what_is_read_later_keeps_its_memory() -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[i, j] * 2)
    assert allocations(lower(A, named("out", lambda i, j: x[i, j] + y[7 - i, j]))) == {"x": 32, "y": 32}


def test_a_reduction_does_not_overwrite_what_it_reads() -> None:
    x = te.compute((4,), lambda j: V[j] + 1, name="x")
    k = te.reduce_axis((0, 8), "k")
    y = te.compute((4,), lambda j: te.sum(A[k, j] * x[j], axis=k), name="y")
    assert allocations(lower(A, V, te.compute((4,), lambda j: y[3 - j], name="out"))) == {"x": 4, "y": 4}


def test_other_dtypes_do_not_share() -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[i, j].astype("int32"))
    assert allocations(lower(A, named("out", lambda i, j: y[7 - i, j]))) == {"x": 32, "y": 32}


def test_arguments_are_never_scratch() -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[i, j] * 2)
    out = named("out", lambda i, j: y[i, j] - 3)
    for args in ((A, out), (A, x, out), (A, x, y, out)):
        kernel = lower(*args)
        written = {s.buffer for s in walk(kernel.body) if isinstance(s, Store)}
        stores = [s.buffer.name for s in walk(kernel.body) if isinstance(s, Store)]
        assert kernel.params[0] not in written
        assert all(stores.count(t.name) == 1 for t in args[1:])


@pytest.mark.parametrize(("columns", "expected"), [(2000, {"x": 2000}), (4, {"x": 4, "y": 4})])
def test_memory_of_a_place_inside_a_loop(columns: int, expected: dict[str, int]) -> None:
    """What is small stays apart, so that it can live in registers."""
    a = te.placeholder((3, columns), name="A")
    x = te.compute(a.shape, lambda i, j: a[i, j] + 1, name="x")
    y = te.compute(a.shape, lambda i, j: x[i, j] * 2, name="y")
    out = te.compute(a.shape, lambda i, j: y[i, columns - 1 - j], name="out")
    s = te.create_schedule(out.op)
    for t in (x, y):
        s[t].compute_at(s[out], out.op.axis[0])
    assert allocations(te.lower(s, [a, out])) == expected


def test_nothing_changes_where_nothing_can_be_shared() -> None:
    kernel = parse("kernel k(X: float32[4]) -> (X) {\n  for (i, 0, 4) {\n    X[i] = 0f\n  }\n}")
    assert reuse(kernel.body) is kernel.body


def combined(x: te.Tensor, y: te.Tensor, turned: bool, step: int) -> te.Tensor:
    n = x.shape[0]
    return te.compute((n,), lambda i: x[n - 1 - i if turned else i] * 2 - y[i] + step, name=f"t{step}")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_programs_at_root(data: st.DataObject) -> None:
    """Many small stages that read each other at equal and at mirrored indices; the peak of live sizes bounds memory."""
    n = 6
    a = te.placeholder((n,), "int64", name="a")
    arrays = {a: np.arange(n)}
    t = a
    for step in range(data.draw(st.integers(1, 7), label="stages")):
        x, y = (data.draw(st.sampled_from(list(arrays)), label="operand") for _ in range(2))
        turned = data.draw(st.booleans(), label="mirrored")
        t = combined(x, y, turned, step)
        arrays[t] = (arrays[x][::-1] if turned else arrays[x]) * 2 - arrays[y] + step
    kernel = lower(a, t)
    out = np.zeros(n, "int64")
    interpret.run(kernel, [arrays[a].copy(), out])
    np.testing.assert_array_equal(out, arrays[t])
    sources: set[Buffer] = {
        load.source for s in walk(kernel.body) for e in expressions(s) for load in loads(e)
        if isinstance(load.source, Buffer)
    }  # fmt: skip
    assert {b.name for b in sources} <= {b.name for b in kernel.params} | set(allocations(kernel))


@pytest.mark.parametrize("scope", ["register", "shared"])
def test_other_scopes_are_left_alone(scope: str) -> None:
    x = named("x", lambda i, j: A[i, j] + 1)
    y = named("y", lambda i, j: x[i, j] * 2)
    out = named("out", lambda i, j: y[i, 3 - j])
    s = te.create_schedule(out.op)
    for t in (x, y):
        s[t].compute_at(s[out], out.op.axis[0])
        s[t].set_scope(scope)
    assert allocations(te.lower(s, [A, out])) == {"x": 4, "y": 4}
