"""Elements of inputs that decide shapes when a network runs: one module, compiled once, gives what ONNX Runtime does
for all of them, and one error for those that it has no result for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from tests.frontends.models import model

import renorm
from renorm.driver.module import OpenModule, SpecializingModule
from renorm.errors import InvalidInput, RenormError

Array = np.ndarray[Any, Any]
Call = Mapping[str, Any]  # of an input that decides shapes its elements, of others a shape (a tuple)
pytestmark = pytest.mark.usefixtures("kept_code")

CASES: dict[str, tuple[str, Sequence[Call], Sequence[Call]]] = {
    # network, calls that have a result, calls that have none
    "Reshape": (
        """g (float[N, 12] x, int64[3] s) => (float[A, B, C] y) { y = Reshape(x, s) }""",
        [{"x": (n, 12), "s": s} for n, s in ((1, [1, 3, 4]), (2, [6, 2, 2]), (3, [36, 1, 1]), (0, [0, 3, 4]))],
        [{"x": (2, 12), "s": s} for s in ([5, 5, 1], [1, 1, 1], [2, -2, -6], [1 << 40, 1, 1], [5, -1, 1], [-1, -1, 1])],
    ),
    "Reshape of what is left": (
        """g (float[N, M] x, int64[1] b, int64 h) => (float[A, B, C] y) <int64[1] m = {-1}, int64[1] z = {0}>
        { h1 = Unsqueeze(h, z) s = Concat<axis = 0>(b, m, h1) y = Reshape(x, s) }""",
        [{"x": x, "b": [b], "h": h} for x, b, h in (((2, 12), 3, 4), ((1, 1), 1, 1), ((6, 35), 7, 5))],
        [{"x": (2, 12), "b": [b], "h": h} for b, h in ((5, 1), (3, -4))],
    ),
    "Slice": (
        """g (float[N, 6] x, int64[1] a, int64[1] b) => (float[A, B] y) <int64[1] axis = {0}>
        { y = Slice(x, a, b, axis) }""",
        [{"x": (n, 6), "a": [a], "b": [b]} for n, a, b in ((5, 1, 4), (1, 0, 1), (3, 3, 3), (7, 0, 7), (4, 2, 2))],
        [],
    ),
    "Slice of the last ones": (
        """g (float[N, 8] x, int64 k) => (float[A, B] y)
        <int64[1] z = {0}, int64[1] end = {9223372036854775807}, int64[1] axis = {1}>
        { n = Neg(k) s = Unsqueeze(n, z) y = Slice(x, s, end, axis) }""",
        [{"x": (n, 8), "k": k} for n, k in ((1, 1), (2, 8), (3, 5))],
        [],
    ),
    "Slice from a position": (
        """g (float[N, L] x, int64 past) => (float[A, B] y)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] z = {0}, int64 from = {0}, int64 most = {16}, int64 d = {1}>
        { s = Shape(x) l = Slice(s, one, two) p = Unsqueeze(past, z) e = Add(p, l)
          i = Range(from, most, d) all = Cast<to = 1>(i) rows = Slice(all, p, e, z) y = Add(x, rows) }""",
        [{"x": (n, l), "past": p} for n, l, p in ((1, 1, 0), (2, 5, 11), (3, 16, 0), (1, 7, 3))],
        [{"x": (2, 5), "past": p} for p in (12, -1, 1 << 33)],
    ),
    "Slices up to several ends": (
        """g (float[N, 8] x, int64[1] a, int64[1] b) => (float[A, B] y, float[C, D] z) <int64[1] o = {0}>
        { y = Slice(x, o, a, o) z = Slice(x, o, b, o) }""",
        [{"x": (n, 8), "a": [a], "b": [b]} for n, a, b in ((3, 1, 2), (2, 2, 1), (1, 1, 1), (2, 0, 2))],
        [],
    ),
    "Slice by what is computed": (
        """g (float[N, 8] x, int64 a, int64 b) => (float[A, B] y) <int64 two = {2}, int64[1] z = {0}, int64[1] o = {1}>
        { c = Mul(a, two) d = Add(c, b) e = Unsqueeze(d, z) y = Slice(x, z, e, o) }""",
        [{"x": (n, 8), "a": a, "b": b} for n, a, b in ((3, 1, 2), (2, 4, 0), (1, 0, 1), (2, 0, 0))],
        [],
    ),
    "Expand": (
        """g (float[N, 1, 3] x, int64 r) => (float[A, B, C] y) <int64[1] z = {0}, int64[1] o = {1}>
        { e = Unsqueeze(r, z) s = Concat<axis = 0>(o, e, o) y = Expand(x, s) }""",
        [{"x": (n, 1, 3), "r": r} for n, r in ((1, 1), (2, 5), (3, 0), (1, 33))],
        [{"x": (2, 1, 3), "r": -1}],
    ),
    "Tile": (
        """g (float[N, 6] x, int64[2] s) => (float[A, B] y) { t = Tile(x, s) y = Relu(t) }""",
        [{"x": (n, 6), "s": s} for n, s in ((1, [1, 1]), (2, [3, 1]), (1, [0, 2]), (3, [1, 5]))],
        [{"x": (2, 6), "s": [-1, 1]}, {"x": (2, 6), "s": [1 << 40, 1]}],
    ),
    "Resize by sizes": (
        """g (float[N, 2, H, W] x, int64[2] hw) => (float[A, B, C, D] y) <int64[1] z = {0}, int64[1] two = {2}>
        { s = Shape(x) nc = Slice(s, z, two) to = Concat<axis = 0>(nc, hw)
          y = Resize<mode = "linear">(x, , , to) }""",
        [{"x": (n, 2, 5, 7), "hw": hw} for n, hw in ((1, [1, 1]), (2, [5, 7]), (1, [10, 3]), (2, [4, 21]))],
        [{"x": (1, 2, 5, 7), "hw": hw} for hw in ([-1, 2], [1 << 32, 1])],
    ),
    "Resize to the nearest": (
        """g (float[N, 2, H, W] x, int64[2] hw) => (float[A, B, C, D] y) <int64[1] z = {0}, int64[1] two = {2}>
        { s = Shape(x) nc = Slice(s, z, two) to = Concat<axis = 0>(nc, hw)
          y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , to) }""",
        [{"x": (n, 2, 5, 7), "hw": hw} for n, hw in ((1, [1, 1]), (2, [5, 7]), (1, [10, 14]), (2, [3, 20]))],
        [{"x": (1, 2, 5, 7), "hw": [-1, 2]}],
    ),
    "Resize within sizes": (
        """g (float[N, 2, H, W] x, int64[2] hw) => (float[A, B, C, D] y)
        { y = Resize<mode = "linear", keep_aspect_ratio_policy = "not_larger", axes = [2, 3]>(x, , , hw) }""",
        [{"x": (n, 2, h, w), "hw": hw}
         for n, h, w, hw in ((1, 5, 7, [1, 1]), (2, 5, 7, [10, 9]), (1, 1, 8, [3, 5]), (2, 6, 4, [4, 21]))],
        [{"x": (1, 2, 5, 7), "hw": [-1, 2]}],
    ),
    "Resize around sizes": (
        """g (float[N, 2, H, W] x, int64[2] hw) => (float[A, B, C, D] y)
        { y = Resize<mode = "linear", coordinate_transformation_mode = "asymmetric",
                     keep_aspect_ratio_policy = "not_smaller", axes = [2, 3]>(x, , , hw) }""",
        [{"x": (n, 2, h, w), "hw": hw}
         for n, h, w, hw in ((1, 5, 7, [1, 1]), (2, 5, 7, [10, 9]), (1, 1, 8, [3, 5]), (2, 6, 4, [4, 21]))],
        [{"x": (1, 2, 5, 7), "hw": [-1, 2]}],
    ),
    "Resize by whole scales": (
        """g (float[N, 2, H, W] x, int64 f) => (float[A, B, C, D] y) <float[2] o = {1, 1}, int64[1] z = {0}>
        { g = Unsqueeze(f, z) h = Cast<to = 1>(g) s = Concat<axis = 0>(o, h, h) y = Resize(x, , s) }""",
        [{"x": (n, 2, 3, 4), "f": f} for n, f in ((1, 1), (2, 2), (1, 5))],
        [{"x": (1, 2, 3, 4), "f": f} for f in (0, -2)],
    ),
    "Range": (
        """g (float[N, 1] x, int64 a, int64 b, int64 d) => (float[A, B] y)
        { i = Range(a, b, d) f = Cast<to = 1>(i) y = Mul(x, f) }""",
        [{"x": (n, 1), "a": a, "b": b, "d": d}
         for n, a, b, d in ((1, 0, 5, 1), (2, 1, 8, 3), (2, 5, 5, 1), (1, 7, 2, 4))],
        [{"x": (2, 1), "a": 0, "b": 5, "d": d} for d in (0,)],
    ),
    "Range that tells rows": (
        """g (int64 past, int64[1] count) => (float[A, B, C] y) <int64 d = {1}, int64[1] z = {0}>
        { n = Squeeze(count) end = Add(past, n) i = Range(past, end, d) at = Unsqueeze(i, z) y = Gather(table, at) }""",
        [{"past": p, "count": [n]} for p, n in ((0, 1), (5, 3), (0, 64), (63, 1), (64, 0))],
        [{"past": p, "count": [n]} for p, n in ((0, 65), (60, 5), (-2, 70))],
    ),
    "ConstantOfShape": (
        """g (float[N, 1] x, int64[1] s) => (float[A, B] y) <int64[1] o = {1}>
        { t = Concat<axis = 0>(o, s) z = ConstantOfShape<value = float[1] {2}>(t) y = Add(x, z) }""",
        [{"x": (n, 1), "s": [s]} for n, s in ((1, 1), (2, 5), (3, 0))],
        [{"x": (2, 1), "s": [-1]}],
    ),
    "Pad": (
        """g (float[N, 5] x, int64[4] p) => (float[A, B] y) { y = Pad(x, p) }""",
        [{"x": (n, 5), "p": p} for n, p in ((1, [0, 0, 0, 0]), (2, [1, 2, 0, 3]), (3, [0, 0, 7, 1]))],
        [{"x": (2, 5), "p": [0, -6, 0, 0]}],
    ),
    "Pad by the edge": (
        """g (float[N, 5] x, int64 p) => (float[A, B] y) <int64[1] z = {0}>
        { q = Unsqueeze(p, z) ps = Concat<axis = 0>(z, q, z, z) y = Pad<mode = "edge">(x, ps) }""",
        [{"x": (n, 5), "p": p} for n, p in ((1, 0), (2, 1), (3, 9))],
        [{"x": (2, 5), "p": -1}],
    ),
    "Split": (
        """g (float[N, 10] x, int64[2] s) => (float[A, B] y, float[C, D] z) { y, z = Split<axis = 1>(x, s) }""",
        [{"x": (n, 10), "s": s} for n, s in ((1, [4, 6]), (2, [1, 9]), (2, [0, 10]))],
        [{"x": (2, 10), "s": s} for s in ([3, 3], [-1, 11])],
    ),
    "OneHot": (
        """g (int64[N] x, int64 d) => (float[A, B] y) <float[2] v = {0, 1}, int64[1] z = {0}>
        { e = Unsqueeze(d, z) y = OneHot(x, e, v) }""",
        [{"x": (n,), "d": d} for n, d in ((1, 1), (2, 5))],
        [{"x": (2,), "d": -1}],
    ),
    "Trilu": (
        """g (float[N, 5] x, int64 k) => (float[A, B] y) { y = Trilu(x, k) }""",
        [{"x": (n, 5), "k": k} for n, k in ((1, 1), (2, 0), (7, 3), (3, 9))],
        [],
    ),
    "integers of 32 bits, of which some decide": (
        """g (float[N, 8] x, int32[4] a) => (float[A, B] y) <int64[2] i = {3, 1}>
        { c = Cast<to = 7>(a) s = Gather(c, i) y = Reshape(x, s) }""",
        [{"x": (n, 8), "a": a} for n, a in ((3, [0, 6, 0, 4]), (2, [7, 16, -1, 1]), (2, [1 << 30, 8, -9, 2]))],
        [{"x": (3, 8), "a": [0, 5, 0, 5]}],
    ),
    "a limit": (
        """g (float[N, 8] x, int64 a) => (float[A, B] y) <int64[1] z = {0}, int64 most = {8}, int64[1] o = {1}>
        { c = Min(a, most) d = Unsqueeze(c, z) y = Slice(x, z, d, o) }""",
        [{"x": (n, 8), "a": a} for n, a in ((3, 1), (2, 8), (1, 20), (2, 0))],
        [],
    ),
    "a value that is data as well": (
        """g (float[N, 4] x, int64 k) => (float[A, B] y) <int64[1] z = {0}, int64[1] o = {1}>
        { e = Unsqueeze(k, z) c = Slice(x, z, e, o) f = Cast<to = 1>(k) y = Mul(c, f) }""",
        [{"x": (n, 4), "k": k} for n, k in ((1, 1), (2, 3), (3, 0))],
        [],
    ),
}  # fmt: skip

OTHERWISE: dict[str, tuple[str, int, Sequence[Call]]] = {
    # of elements that are no extents: the network, how many modules answer these calls
    "what is left, and what is kept": (
        CASES["Reshape"][0], 4,
        [{"x": (2, 12), "s": s} for s in ([-1, 2, 2], [-1, 4, 1], [-1, 1, 8], [2, -1, 4], [0, -1, 4], [0, 4, 3])],
    ),
    "counted from the end": (
        CASES["Slice"][0], 4,
        [{"x": (n, 6), "a": [a], "b": [b]}
         for n, a, b in ((5, 1, -2), (9, 3, -4), (2, 0, -2), (5, -3, -2), (7, -7, -3), (5, -3, 4), (1, 0, -7))],
    ),
    "up to the last one": (CASES["Slice"][0], 1, [{"x": (n, 6), "a": [a], "b": [-1]} for n, a in ((5, 1), (1, 0))]),
    "beyond the axis": (
        CASES["Slice"][0], 4,
        [{"x": (n, 6), "a": [a], "b": [b]}
         for n, a, b in ((5, 0, 7), (5, 3, 9), (5, 4, 2), (5, 9, 2), (1, 0, 6), (0, 0, 3), (5, -9, 3), (5, 1, -7))],
    ),
    "limits of the dtype": (
        CASES["Slice"][0], 3,
        [{"x": (5, 6), "a": [a], "b": [b]} for a, b in ((0, (1 << 63) - 1), (-(1 << 63), 3), (-2, (1 << 63) - 1))],
    ),
    "slices that overlap in no way": (
        CASES["Slices up to several ends"][0], 1,
        [{"x": (n, 8), "a": [a], "b": [b]} for n, a, b in ((2, 3, 1), (4, 1, 9), (1, 1, 2), (3, 8, 9))],
    ),
    "the last ones, of more than there are": (
        CASES["Slice of the last ones"][0], 4, [{"x": (2, 8), "k": k} for k in (9, 11, -1, -3, 0)],
    ),
    "by what is computed": (
        CASES["Slice by what is computed"][0], 1, [{"x": (2, 8), "a": a, "b": b} for a, b in ((3, 3), (7, 7))],
    ),
    "by a limit": (
        CASES["a limit"][0], 2, [{"x": (2, 8), "a": a} for a in (-1, -3, -7)],
    ),
    "data as well": (
        CASES["a value that is data as well"][0], 3, [{"x": (2, 4), "k": k} for k in (5, 7, -1, -2, -3)],
    ),
    "an extent that is kept": (
        """g (float[N, M] x, int64 r) => (float[B, C] y) <int64[1] z = {0}, int64[1] o = {1}>
        { e = Unsqueeze(r, z) s = Concat<axis = 0>(e, o) y = Expand(x, s) }""",
        2, [{"x": x, "r": r} for x, r in (((2, 3), 1), ((4, 3), 1), ((1, 3), 2))],
    ),
    "down": (
        CASES["Range"][0], 2,
        [{"x": (2, 1), "a": a, "b": b, "d": d} for a, b, d in ((5, 0, -1), (9, -6, -4))],
    ),
    "rows from the end": (
        CASES["Range that tells rows"][0], 2, [{"past": p, "count": [n]} for p, n in ((-1, 1), (-3, 2))],
    ),
    "no rows kept": (CASES["Reshape of what is left"][0], 1, [{"x": (n, 12), "b": [0], "h": 1} for n in (2, 3)]),
    "less": (CASES["Pad"][0], 2, [{"x": (2, 5), "p": p} for p in ([0, -1, 0, 0], [0, -1, 1, 2], [-1, 0, 0, 0])]),
    "of nothing": (
        "g (float[N, M] x, int64[2] s) => (float[A, B] y) { y = Reshape<allowzero = 1>(x, s) }",
        2, [{"x": x, "s": s} for x, s in (((0, 6), [3, 0]), ((2, 0), [5, 0]), ((7, 0), [5, 0]))],
    ),
    "an axis of nothing, kept": (
        """g (float[N, M] x) => (float[A, B] y) <int64[1] m = {-1}>
        { s = Shape<start = 1>(x) c = Concat<axis = 0>(s, m) y = Reshape(x, c) }""",
        1, [{"x": (6, 0)}, {"x": (2, 0)}],
    ),
    "below the diagonal": (CASES["Trilu"][0], 2, [{"x": (4, 5), "k": k} for k in (-1, -2, -3)]),
}  # fmt: skip

COMBINED = """
g (float[N, L, 12] x, int64 start, int64 end, int64[1] b, int64[1] h, int64[2] hw, int64 limit)
    => (float[A, B, C] y, float[E, F] p, float[G, H, I, J] r)
<int64[1] left = {-1}, int64[1] z = {0}, int64[1] one = {1}, int64[1] two = {2}, int64 from = {0}, int64 step = {1}>
{   s0 = Unsqueeze(start, z) e0 = Unsqueeze(end, z)
    cut = Slice(x, s0, e0, one)
    to = Concat<axis = 0>(b, left, h)
    y = Reshape(cut, to)
    ids = Range(from, limit, step)
    rows = Gather(table, ids)
    p = Sigmoid(rows)
    image = Unsqueeze(x, one)
    s = Shape(image) nc = Slice(s, z, two) size = Concat<axis = 0>(nc, hw)
    r = Resize<mode = "linear">(image, , , size)   }"""
TABLE = np.random.default_rng(7).standard_normal((64, 8)).astype(np.float32)


def network(text: str) -> Any:
    """Return a model whose outputs state no shapes, which ONNX Runtime would hold results against."""
    made = model(text, {"table": TABLE} if "(table," in text else {}, opset=18)
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    return made


def arrays(module: Any, call: Call) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    found = dict[str, Array]()
    for v in module.inputs:
        given = call[v.name]
        if not isinstance(given, tuple):
            found[v.name] = np.asarray(given, v.dtype)
        elif v.dtype == "float32":
            found[v.name] = rng.standard_normal(given).astype(np.float32)
        else:
            found[v.name] = rng.integers(0, 2, given)
    return found


def compared(module: Any, session: Any, call: Call) -> None:
    given = arrays(module, call)
    assert not hasattr(module, "serving") or module.serving(**given) is module  # nothing is compiled for these
    for found, expected in zip(module.run(**given), session.run(None, given), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=2e-6)


def opened(text: str) -> tuple[Any, Any]:
    made = network(text)
    module = renorm.compile(made, threads=1)
    assert isinstance(module, OpenModule), getattr(module, "obstacle", "")
    return module, onnxruntime.InferenceSession(made.SerializeToString())


@pytest.mark.parametrize("name", CASES)
def test_elements_decide_shapes(name: str) -> None:
    text, right, wrong = CASES[name]
    module, session = opened(text)
    for call in (*right, *right):
        compared(module, session, call)
    for call in wrong:
        with pytest.raises(RenormError) as caught:
            module.run(**arrays(module, call))
        assert isinstance(caught.value, InvalidInput)
        deciding = [v.name for v in module.inputs if v.deciding]
        assert any(v in str(caught.value) for v in deciding), str(caught.value)


@pytest.mark.parametrize("name", OTHERWISE)
def test_elements_that_are_no_extents(name: str) -> None:
    text, most, calls = OTHERWISE[name]
    module, session = opened(text)
    serving = set[int]()
    for call in (*calls, *calls):
        given = arrays(module, call)
        for found, expected in zip(module.run(**given), session.run(None, given), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=2e-6)
        serving.add(id(module.serving(**given)))
        alone = module.specialized(**given)
        assert all(np.array_equal(a, b) for a, b in zip(alone.run(**given), module.run(**given), strict=True))
    assert id(module) not in serving
    assert len(serving) == most


RIGHT: list[Call] = [
    {"x": (n, l, 12), "start": a, "end": e, "b": [b], "h": [h], "hw": hw, "limit": m}
    for n, l, a, e, b, h, hw, m in (
        (2, 7, 1, 5, 4, 3, [5, 9], 10), (1, 1, 0, 1, 1, 12, [1, 1], 1), (3, 4, 0, 4, 2, 6, [8, 3], 64),
        (1, 3, 1, 1, 1, 1, [2, 2], 0), (2, 3, 1, 2, 24, 1, [3, 12], 3),
    )
]  # fmt: skip


def test_a_network_of_all_of_them(tmp_path: Path) -> None:
    module, session = opened(COMBINED)
    for call in RIGHT:
        compared(module, session, call)
    module.save(tmp_path / "net.renorm")
    loaded = renorm.load(tmp_path / "net.renorm", threads=1)
    assert [v.deciding for v in loaded.inputs] == [v.deciding for v in module.inputs]
    for call in RIGHT:
        compared(loaded, session, call)
        given = arrays(loaded, call)
        assert all(np.array_equal(a, b) for a, b in zip(loaded.run(**given), module.run(**given), strict=True))
    changes = {"start": 9}, {"end": 8}, {"h": [5]}, {"b": [-2]}
    for changed in changes:
        call, (word,) = {**RIGHT[0], **changed}, changed
        with pytest.raises(InvalidInput, match=word):  # there is no compiler for what elements may mean else
            loaded.run(**arrays(loaded, call))
        if word in ("h", "b"):
            with pytest.raises(InvalidInput, match=word):
                module.run(**arrays(module, call))
        else:
            given = arrays(module, call)
            for found, expected in zip(module.run(**given), session.run(None, given), strict=True):
                np.testing.assert_allclose(found, expected, atol=2e-6)
    with pytest.raises(InvalidInput, match=r"start: float32\[\], expected int64\[\]"):
        module.run(**{**arrays(module, RIGHT[0]), "start": np.float32(1)})
    with pytest.raises(InvalidInput, match="start: missing"):
        module.run(**{n: a for n, a in arrays(module, RIGHT[0]).items() if n != "start"})


def test_the_compiler_is_not_needed(tmp_path: Path) -> None:
    module, _ = opened(CASES["Slice"][0])
    module.save(tmp_path / "net.renorm")
    code = f"""
import sys, numpy as np, renorm
m = renorm.load({str(tmp_path / "net.renorm")!r})
x = np.arange(30, dtype=np.float32).reshape(5, 6)
assert (m.run(x, np.array([1]), np.array([4]))[0] == x[1:4]).all()
assert not [name for name in ("llvmlite", "onnx", "renorm.te", "renorm.graph", "renorm.ops") if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_for_some_elements_alone() -> None:
    module, session = opened(COMBINED)
    given = arrays(module, RIGHT[0])
    alone = module.specialized(**given)
    compared(alone, session, RIGHT[0])
    assert module.specialized(**given) is alone
    with pytest.raises(InvalidInput, match="start: 0 where the model has 1"):
        alone.run(**{**given, "start": np.asarray(0)})
    with pytest.raises(InvalidInput, match="start decides shapes"):
        module.specialized(**{**given, "start": ()})


def test_what_cannot_be_open_is_compiled_for_each_value() -> None:
    text = """g (float[N, 5] x, int64[1] k) => (float[A, B] y)
        <int64[1] z = {0}, int64[1] e = {100}, int64[1] o = {1}> { y = Slice(x, z, e, o, k) }"""
    made = network(text)
    module = renorm.compile(made, threads=1)
    assert isinstance(module, SpecializingModule)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for n, k in ((1, 1), (2, 2), (1, 1), (2, 3), (2, -1)):
        compared(module, session, {"x": (n, 5), "k": [k]})
    first = module.specialized(x=(1, 5), k=np.array([1]))
    assert first is module.specialized(x=(1, 5), k=np.array([1]))
    assert first is not module.specialized(x=(1, 5), k=np.array([2]))


def test_channels_are_not_followed_through_a_slice_that_begins_anywhere() -> None:
    text = """g (float[N, 8] x, int64[1] a) => (float[A, B] y) <int64[1] two = {2}, int64[1] o = {1},
        float[8] k = {1, 2, 3, 4, 5, 6, 7, 8}> { p = Mul(x, k) e = Add(a, two) s = Slice(p, a, e, o) y = Mul(s, c) }"""
    made = network(text)
    made.graph.initializer.append(numpy_helper.from_array(np.array([2, 3], np.float32), "c"))
    module, session = renorm.compile(made, threads=1), onnxruntime.InferenceSession(made.SerializeToString())
    for n, a in ((1, 0), (3, 6), (2, 3)):
        compared(module, session, {"x": (n, 8), "a": [a]})


def test_a_quotient_by_what_must_be_0() -> None:
    made = network("""g (float[N, 12] x, int64[1] v) => (float[A, B] y, float[C, 3] w)
        <int64[1] z = {0}, int64[1] m = {-1}>
        { s = Concat<axis = 0>(v, m) y = Reshape(x, s) w = Slice(none, z, v, z) }""")
    made.graph.initializer.append(numpy_helper.from_array(np.zeros((0, 3), np.float32), "none"))
    module = renorm.compile(made, threads=1)
    assert isinstance(module, SpecializingModule)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    compared(module, session, {"x": (2, 12), "v": [3]})  # numbers are cut to the axis


def test_verified_and_checked_modules() -> None:
    made = network(COMBINED)
    module = renorm.compile(made, threads=1, verify=True, checked=True)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    assert module.report.verified is not None
    assert module.report.verified.outputs
    for call in RIGHT[:3]:
        compared(module, session, call)
    with pytest.raises(InvalidInput, match="64"):
        module.run(**arrays(module, {**RIGHT[0], "limit": 65}))


def test_what_is_stated_of_elements() -> None:
    made = network(CASES["Slice"][0])
    facts = {"a": ["1..2"], "b": ["b:2..16"]}
    module = renorm.compile(made, inputs=facts, shapes={"x": ["n:16..64", 6]}, threads=1)
    assert isinstance(module, OpenModule)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for a, b in ((1, 2), (2, 16), (1, 9)):
        compared(module, session, {"x": (17, 6), "a": [a], "b": [b]})
    for a, b in ((0, 2), (3, 5), (1, 17)):
        with pytest.raises(InvalidInput):
            module.run(**arrays(module, {"x": (17, 6), "a": [a], "b": [b]}))
    fixed = renorm.compile(made, inputs={"a": [1], "b": ["?"]}, threads=1)
    assert [v.name for v in fixed.inputs] == ["x", "b"]
    equal = renorm.compile(made, inputs={"a": [0], "b": ["n"]}, shapes={"x": ["n", 6]}, threads=1)
    with pytest.raises(InvalidInput, match="b, element 0"):
        equal.run(np.ones((3, 6), np.float32), np.array([2]))
    with pytest.raises(InvalidInput, match=r"a is int64\[1\]: it cannot be \['n', 1\]"):
        renorm.compile(made, inputs={"a": ["n", 1]})


def test_positions_beyond_a_table_are_refused() -> None:
    text = """g (int64[B, L] x) => (float[A, C, D] y) <int64 one = {1}, int64 from = {0}>
        { s = Shape(x) l = Gather(s, one) i = Range(from, l, one) y = Gather(table, i) }"""
    module, session = opened(text)
    compared(module, session, {"x": (2, 64)})
    with pytest.raises(InvalidInput, match=r"L is in (0|1)\.\.64"):
        module.run(np.zeros((2, 65), np.int64))


def test_a_branch_for_elements_that_are_not_negative_is_taken_for_these_only() -> None:
    text = """g (float[N] x, int64 k) => (float[M] y) <int64 z = {0}> { b = Less(k, z)
        y = If(b) <then_branch = t () => (float[M] p) { p = Neg(x) },
                   else_branch = e () => (float[M] q) { q = Exp(x) }> }"""
    module = renorm.compile(network(text), threads=1)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(module.run(x, np.asarray(7))[0], np.exp(x), rtol=1e-6)
    with pytest.raises(InvalidInput, match="k: -1"):
        module.run(x, np.asarray(-1))


def test_inputs_that_decide_nothing_stay_data() -> None:
    made = network("g (int64[4] x) => (float[A, B] y) { y = Gather(table, x) }")
    module = renorm.compile(made, threads=1)
    assert not isinstance(module, OpenModule)
    assert not module.inputs[0].deciding
    assert module.run(np.array([-1, 3, 0, 63]))[0].shape == (4, 8)


@pytest.fixture(scope="module")
def attention() -> tuple[Any, Any]:
    """Attention over the first rows, in so many heads, of a plane that is resized behind."""
    return opened("""
    g (float[B, L, C] x, int64 rows, int64 heads, int64 wide) => (float[E, F, G, H] y)
    <int64[1] z = {0}, int64[1] one = {1}, int64[1] left = {-1}>
    {   r1 = Unsqueeze(rows, z) h1 = Unsqueeze(heads, z) w1 = Unsqueeze(wide, z)
        k = Slice(x, z, r1, one)
        s = Shape(x) b1 = Slice(s, z, one)
        to = Concat<axis = 0>(b1, r1, h1, left)
        split = Reshape(k, to)
        turned = Transpose<perm = [0, 2, 1, 3]>(split)
        other = Transpose<perm = [0, 2, 3, 1]>(split)
        weights = MatMul(turned, other)
        soft = Softmax(weights)
        bh = Concat<axis = 0>(b1, h1, r1, w1)
        y = Resize<mode = "linear", coordinate_transformation_mode = "asymmetric">(soft, , , bh)   }""")


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3), length=st.integers(1, 9), rows=st.integers(1, 9), heads=st.integers(1, 4),
    per_head=st.integers(1, 5), extra=st.integers(0, 1), wide=st.integers(1, 12),
)  # fmt: skip
def test_random_elements(
    attention: tuple[Any, Any], batch: int, length: int, rows: int, heads: int, per_head: int, extra: int, wide: int
) -> None:
    module, session = attention
    call = {"x": (batch, length, heads * per_head + extra), "rows": rows, "heads": heads, "wide": wide}
    if rows <= length and not (extra and heads > 1):
        compared(module, session, call)
        return
    given = arrays(module, call)
    try:
        expected = session.run(None, given)
    except Exception:
        expected = None
    if expected is not None:  # rows end with the axis, and what is left is as much less
        for found, one in zip(module.run(**given), expected, strict=True):
            assert found.shape == one.shape
            np.testing.assert_allclose(found, one, atol=2e-6)
    else:
        with pytest.raises(InvalidInput):
            module.run(**arrays(module, call))
