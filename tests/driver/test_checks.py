"""Indices outside their axes and division by zero: never a read outside, some number that is stated, and an error where
it is asked for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from tests.frontends.models import model

import renorm
from renorm.core.errors import InvalidInput, OperandError
from renorm.driver.module import OpenModule
from renorm.graph import interpret

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
X = np.arange(12, dtype=np.float32).reshape(3, 4)
pytestmark = pytest.mark.usefixtures("kept_code")

GATHERS: dict[str, tuple[str, Any, Any]] = {
    "Gather": ("[g] y = Gather <axis = 1> (x, i)", [LEAST, -5, -4, 0, 3, 4, MOST], [0, 0, 0, 0, 3, 3, 3]),
    "GatherElements": ("[g] y = GatherElements <axis = 1> (x, i)", [[LEAST, -1, 9]], [[0, 3, 3]]),
    "GatherND": ("[g] y = GatherND (x, i)", [[1, 2], [7, -9]], [6, 8]),
}


def gather(kind: str) -> tuple[Any, Any, Any]:
    body, i, expected = GATHERS[kind]
    i = np.asarray(i)
    shape = ", ".join(map(str, i.shape))
    m = model(f"g (float[3, 4] x, int64[{shape}] i) => (float[a, b] y) {{ {body} }}")
    del m.graph.output[0].type.tensor_type.shape.dim[:]
    m.graph.output[0].type.tensor_type.ClearField("shape")
    return m, i, expected


@pytest.mark.parametrize("kind", GATHERS)
def test_an_index_outside_reads_the_nearest_element(kind: str) -> None:
    m, i, places = gather(kind)
    expected = X.reshape(-1)[places] if kind == "GatherND" else X[:1, places[0]] if i.ndim > 1 else X[:, places]
    for found in (interpret.run(renorm.read(m), [X, i]), renorm.compile(m, threads=1).run(X, i)):
        np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("kind", GATHERS)
def test_a_checked_module_names_node_index_and_axis(kind: str, tmp_path: Path) -> None:
    m, i, _ = gather(kind)
    module = renorm.compile(m, threads=1, checked=True)
    assert [o.name for o in module.outputs] == ["y"]
    inside = np.clip(i, 0, 2)
    (expected,) = onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"x": X, "i": inside})
    np.testing.assert_array_equal(module.run(X, inside)[0], expected)
    axis, index = {"Gather": (1, LEAST), "GatherElements": (1, LEAST), "GatherND": (0, 7)}[kind]
    extent = (3, 4)[axis]
    told = f"node 'g': index {index} is outside axis {axis} of extent {extent}"
    with pytest.raises(InvalidInput, match=told):
        module.run(X, i)
    module.save(tmp_path / "checked.renorm")
    loaded = renorm.load(tmp_path / "checked.renorm")
    with pytest.raises(InvalidInput, match=told):
        loaded.run(X, i)
    np.testing.assert_array_equal(loaded.run(X, inside)[0], expected)


DIVISIONS = ("Div(a, b)", "Mod(a, b)", "Mod <fmod = 1> (a, b)")


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_division_by_zero_is_zero_and_the_least_number_by_minus_one_wraps(dtype: str) -> None:
    info = np.iinfo(dtype)
    divisors = [0, 1, info.max, *([info.min, -1, -3] if info.min else [3])]
    pairs = [*itertools.product([info.min, info.max, 7, 0], divisors)]
    a, b = (np.asarray([p[side] for p in pairs], dtype) for side in (0, 1))
    assert (b == 0).any()
    names = ("d", "m", "f")
    body = " ".join(f"[{n}] {n} = {text}" for n, text in zip(names, DIVISIONS))
    declared = ", ".join(f"{dtype}[{a.size}] {n}" for n in names)
    m = model(f"g ({dtype}[{a.size}] a, {dtype}[{a.size}] b) => ({declared}) {{ {body} }}", opset=14)
    for found in (interpret.run(renorm.read(m), [a, b]), renorm.compile(m, threads=1).run(a, b)):
        assert all(not r[b == 0].any() for r in found)
        for i in np.flatnonzero(b):
            x, y = int(a[i]), int(b[i])
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            wrapped = quotient if quotient <= info.max else info.min
            assert [int(r[i]) for r in found] == [wrapped, x % y, x - quotient * y], (x, y)
    module = renorm.compile(m, threads=1, checked=True)
    with pytest.raises(InvalidInput) as raised:
        module.run(a, b)
    assert raised.value.facts == tuple(f"node {n!r} divides by zero" for n in names)
    module.run(a, np.where(b == 0, 1, b).astype(dtype))


def test_checks_wait_for_shapes_and_leave_state_and_results_alone() -> None:
    m = model("g (float[N, 4] x, int64[K] i) => (float[K, 4] y) { [g] y = Gather(x, i) }")
    module = renorm.compile(m, checked=True)
    np.testing.assert_array_equal(module.run(X, np.asarray([2, -3]))[0], X[[2, 0]])
    assert module.run(X, np.zeros(0, np.int64))[0].shape == (0, 4)
    with pytest.raises(InvalidInput, match="index 2 is outside axis 0 of extent 2"):
        module.run(X[:2], np.asarray([2]))


def test_open_code_is_checked(tmp_path: Path) -> None:
    """Guards of open kernels, of a file too: for indices, divisors, several axes, and for none of them."""
    m = model(
        """g (float[N, 4] x, int64[K] i, int64[L, 2] at, int32[K] d) => (float[K, 4] y, float[L] z, int32[K] q) {
            [g] y = Gather(x, i)
            [nd] z = GatherND(x, at)
            [q] q = Div(d, d)
        }"""
    )
    compiled = renorm.compile(m, checked=True, threads=1)
    assert isinstance(compiled, OpenModule), compiled
    compiled.save(tmp_path / "checked.renorm")
    at = np.asarray([[0, 3], [2, -4], [1, 1]])
    i, d = np.asarray([2, -3, 0, 1]), np.asarray([1, 2, -3, 4], np.int32)
    for module in (compiled, renorm.load(tmp_path / "checked.renorm")):
        assert [o.name for o in module.outputs] == ["y", "z", "q"]
        y, z, q = module.run(X, i, at, d)
        np.testing.assert_array_equal(y, X[i])
        np.testing.assert_array_equal(z, X[at[:, 0], at[:, 1]])
        np.testing.assert_array_equal(q, [1, 1, 1, 1])
        for wrong, said in [
            ((X[:2], i, at[2:], d), "'g': index -3 is outside axis 0 of extent 2"),
            ((X, i, at + 1, d), "'nd': index 3 is outside axis 0 of extent 3"),
            ((X, i, at, d * 0), "node 'q' divides by zero"),
        ]:
            with pytest.raises(InvalidInput, match=said):
                module.run(*wrong)
        y, z, q = module.run(X, i[:1], at[:1], d[:1])
        assert (y.shape, z.shape, q.shape) == ((1, 4), (1,), (1,))
    y, z, q = compiled.run(X, i[:0], at, d[:0])
    assert (y.shape, z.shape, q.shape) == ((0, 4), (3,), (0,))
    with pytest.raises(InvalidInput, match="'nd': index 3 is outside"):
        compiled.run(X, i[:0], at + 1, d[:0])


def checked_and_trained() -> ModelProto:
    """A batch norm whose state a run replaces, beside an index that is checked."""
    return model(
        """g (float[2, 3] x, int64[1] i) => (float[2, 3] y, float[1] z) {
            y, rm, rv = BatchNormalization <training_mode = 1> (x, s, b, m, v)
            [g] z = Gather(s, i)
        }""",
        opset=15, s=np.ones(3, np.float32), b=np.zeros(3, np.float32), m=np.zeros(3, np.float32),
        v=np.ones(3, np.float32),
    )  # fmt: skip


def test_guards_are_no_verified_outputs() -> None:
    """They are compared, as what a module gives and what its state becomes is."""
    m = checked_and_trained()
    of = {}
    for checked in (False, True):
        module = renorm.compile(m, threads=1, train_state=True, verify=True, checked=checked)
        assert module.report.verified is not None
        of[checked] = [o.name for o in module.report.verified.outputs]
    assert of[True] == of[False]
    assert of[True][:2] == ["y", "z"]
    assert len(of[True]) == 4


def test_an_axis_without_elements_is_refused() -> None:
    with pytest.raises(OperandError, match="axis 0 has no elements"):
        renorm.compile(model("g (float[0, 4] x, int64[2] i) => (float[2, 4] y) { y = Gather(x, i) }"))


def test_constants_that_are_safe_are_not_looked_at() -> None:
    m = model(
        "g (int32[3] a) => (int32[3] y) { b = Div(a, c) y = Gather(b, i) }",
        c=np.asarray([1, 2, -1], np.int32), i=np.asarray([0, -3, 2]),
    )  # fmt: skip
    compiled = renorm.compile(m, checked=True, threads=1)
    assert isinstance(compiled, renorm.Module)
    assert not compiled.program.checks


def test_a_run_that_breaks_a_check_leaves_the_state_as_it_was() -> None:
    m = checked_and_trained()
    module = renorm.compile(m, threads=1, train_state=True, checked=True)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = module.state.copy()
    with pytest.raises(InvalidInput, match="'g': index 5"):
        module.run(x, np.asarray([5]))
    for name, held in module.state.copy().items():
        np.testing.assert_array_equal(held, before[name])
    module.run(x, np.asarray([1]))
    assert any((held != before[name]).any() for name, held in module.state.copy().items())
