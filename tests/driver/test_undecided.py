"""Models of which elements of inputs decide axes, scales and branches: one module for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm.core.stated import Undecided
from renorm.driver.undecided import DECIDED, DecidingModule
from renorm.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("kept_code")

SUM = "g (float[2, 3, 4] x, int64[K] axes) => (float y) { y = ReduceSum(x, axes) }"
MODELS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    # model, elements that decide
    "axes": (SUM, [{"axes": a} for a in ([1], [0, 2], [-1], [0, 1, 2])]),
    "an axis": ("g (float[5, 6] x, int64 a) => (float y) { y = CumSum(x, a) }", [{"a": a} for a in (0, 1, -1)]),
    "axes of a slice": (
        "g (float[5, 6] x, int64[2] s, int64[2] e, int64[2] a) => (float y) { y = Slice(x, s, e, a) }",
        [{"s": [1, 0], "e": [3, 4], "a": a} for a in ([0, 1], [1, 0])],
    ),
    "axes that are computed": (
        """g (float[5, 6, 2] x, int64 a) => (float y) <int64[1] z = {0}, int64 o = {1}>
        { b = Add(a, o) c = Unsqueeze(b, z) y = ReduceMax(x, c) }""",
        [{"a": a} for a in (0, 1)],
    ),
    "scales": (
        """g (float[1, 2, 3, 5] x, float[4] s) => (float y) <float[0] r = {}>
        { y = Resize<mode = "linear">(x, r, s) }""",
        [{"s": np.array(s, np.float32)} for s in ([1, 1, 2, 3], [1, 1, 1, 0.6])],
    ),
    "one after the other": (
        """g (float[4, 6] x, bool t, int64[1] a, int64[1] b) => (float y) {
        y = If (t) <then_branch = n () => (float[A, B] p) { p = ReduceSum(x, a) },
                    else_branch = m () => (float[A, B] q) { q = ReduceSum(x, b) }> }""",
        [{"t": np.array(t), "a": [0], "b": [b]} for t, b in ((True, 1), (False, 1), (False, 0))],
    ),
}


def given(text: str, elements: dict[str, Any]) -> dict[str, Any]:
    extents = model(text).graph.input[0].type.tensor_type.shape.dim
    x = RNG.normal(size=[d.dim_value for d in extents]).astype(np.float32)
    return {"x": x, **{n: a if isinstance(a, np.ndarray) else np.array(a, np.int64) for n, a in elements.items()}}


@pytest.mark.parametrize(("text", "calls"), MODELS.values(), ids=MODELS)
def test_each_call_decides(text: str, calls: list[dict[str, Any]]) -> None:
    source = model(text, opset=18)
    module, peer = renorm.compile(source, threads=1), onnx_runtime.session(source)
    assert isinstance(module, DecidingModule)
    for elements in (*calls, calls[0]):
        arrays = given(text, elements)
        (wanted,) = onnx_runtime.run(peer, arrays)
        (got,) = module.run(*(arrays[v.name] for v in module.inputs))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
        assert got.shape == wanted.shape
    assert len(module._decided.all()) <= len(calls) + 1  # one was made before it was known what else decides


def test_what_is_known_before_and_after_a_call(tmp_path: Path) -> None:
    m = renorm.compile(model(SUM, opset=18), threads=1)
    assert isinstance(m, DecidingModule)
    assert m.deciding == ("axes",)
    assert [v.name for v in m.inputs] == ["x", "axes"]
    for what in ("outputs", "report", "graph"):
        with pytest.raises(InvalidInput, match=rf"g has no {what} yet\n.*axes decide"):
            getattr(m, what)
    x = np.ones((2, 3, 4), np.float32)
    (y,) = m.run(x, axes=np.array([1]))
    assert m.outputs[0].shape == y.shape == (2, 1, 4)
    m.save(tmp_path / "sum.renorm")
    np.testing.assert_array_equal(renorm.load(tmp_path / "sum.renorm").run(x)[0], y)
    out = np.empty((1, 3, 1), np.float32)
    m.run(x, np.array([0, 2]), out=out)
    np.testing.assert_array_equal(out, np.full((1, 3, 1), 8))
    with pytest.raises(InvalidInput, match="2 combinations were used"):
        m.save(tmp_path / "sum.renorm")
    for i in range(2 * DECIDED):
        m.run(x, np.array([i % 3] * (1 + i // 3), np.int64)[:1])
    assert len(m._decided.all()) <= DECIDED


def test_what_does_not_fit() -> None:
    m = renorm.compile(model("g (float[2, 3] x, int64[2] a) => (float y) { y = ReduceSum(x, a) }", opset=18))
    x, a = np.ones((2, 3), np.float32), np.array([0, 1])
    calls: list[tuple[list[Any], dict[str, Any], str]] = [
        ([x], {}, r"input a: missing, expected int64\[2\]"),
        ([x, a.astype(np.int32)], {}, r"input a: int32\[2\], expected int64\[2\]"),
        ([x, a.astype(">i8")], {}, "input a: .* of foreign byte order"),
        ([x, np.array([0])], {}, r"input a: int64\[1\], expected int64\[2\]"),
        ([x, [0, 1]], {}, "input a: list"),
        ([x, a], {"a": a}, "by position and by name"),
        ([x, a, a], {}, "3 arrays by position, expected at most 2"),
        ([x, a], {"b": a}, "'b' is not an input"),
        ([x.T, a], {}, "input x"),
    ]
    for args, named, message in calls:
        with pytest.raises(InvalidInput, match=message):
            m.run(*args, **named)
    with pytest.raises(renorm.errors.RenormError, match="axis 7 is outside"):
        m.run(x, np.array([0, 7]))
    np.testing.assert_array_equal(m.run(x, a)[0], [[6]])


def test_data_are_not_compiled_for() -> None:
    by_data = "g (float[30] x) => (float y) { i = ArgMax(x) y = ReduceSum(x, i) }"
    with pytest.raises(renorm.errors.RenormError) as raised:
        renorm.compile(model(by_data, opset=18))
    assert not isinstance(raised.value, Undecided)


def test_a_training_state_is_not_shared() -> None:
    with pytest.raises(Undecided, match="inputs="):
        renorm.compile(model(SUM, opset=18), train_state=True)
