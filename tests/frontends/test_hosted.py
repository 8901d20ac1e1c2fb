"""Loops that data end, and branches of other shapes that data choose: modules of pieces, against ONNX Runtime."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm import Limits, frontends
from renorm.core.errors import Cancelled, InvalidInput, LimitExceeded, TimeLimit, UnsupportedOp, UntoldOperand
from renorm.driver.hosted import HostedModule
from renorm.driver.pieces import varying

pytestmark = pytest.mark.usefixtures("kept_code")
Array = np.ndarray[Any, Any]


def hosted(source: Any, **more: Any) -> HostedModule:
    made = renorm.compile(source, threads=1, **more)
    assert isinstance(made, HostedModule)
    return made


def agrees(source: onnx.ModelProto, *calls: dict[str, Array], module: Any = None) -> Any:
    """Run a model on calls, one after the other, beside ONNX Runtime."""
    session, module = onnx_runtime.session(source), module or hosted(source)
    for call in calls:
        expected, got = onnx_runtime.run(session, call), module.run(**call)
        assert len(got) == len(expected)
        for mine, wanted in zip(got, expected):
            assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)  # both of float32, round after round
    return module


def floats(*shape: int, scale: float = 1) -> Array:
    return (RNG.normal(size=shape) * scale).astype(np.float32)


NORM = """g (float[2, 3] x) => (float[2, 3] y, int64 n) <bool t = {{1}}, float eps = {{0.1}}, float half = {{0.5}},
    int64 zero = {{0}}, int64 one = {{1}}, int64 most = {{{most}}}> {{
    w = Mul(x, x) norm = ReduceSum<keepdims = 0>(w) begin = Greater(norm, eps)
    z, n = Loop({count}, begin, x, zero) <body = b (int64 i, bool c, float[2, 3] a, int64 k) =>
        (bool d, float[2, 3] e, int64 l)
        {{ e = Mul(a, half) f = Mul(e, e) s = ReduceSum<keepdims = 0>(f) d = Greater(s, eps) l = Add(k, one) }}>
    y = Add(z, x) }}"""


@pytest.mark.parametrize("count", ["", "most"])
def test_while_a_norm_is_greater(count: str) -> None:
    source = model(NORM.format(count=count, most=3))
    calls = [{"x": floats(2, 3, scale=scale)} for scale in (1, 30, 1e-3, 0, 5)]  # the third and fourth: no rounds
    module, reference = agrees(source, *calls), ReferenceEvaluator(source)
    for call in calls:
        expected: Any = reference.run(None, call)
        for mine, wanted in zip(module.run(**call), expected):
            np.testing.assert_allclose(mine, wanted, rtol=1e-5)


GROWING = """g (float[N] x, int64 least) => (float[M] y, float[K] sums, int64[K, 2] pairs) <bool t = {1},
    float top = {20}, int64 most = {9}, int64[1] at = {0}> {
    w = Relu(x)
    y, sums, pairs = Loop(most, t, w) <body = b (int64 i, bool c, float[P] a) =>
        (bool d, float[Q] e, float m, int64[2] p) {
        e = Concat<axis = 0>(a, w) m = ReduceSum<keepdims = 0>(e) fits = Less(m, top) small = Less(i, least)
        d = And(fits, small) j = Add(i, least) u = Unsqueeze(i, at) v = Unsqueeze(j, at)
        p = Concat<axis = 0>(u, v) }> }"""


def test_states_grow_and_results_are_put_together() -> None:
    calls = [{"x": floats(n), "least": np.array(k)} for n, k in ((2, 4), (3, 2), (2, 7), (5, 1), (1, 9))]
    module = agrees(model(GROWING), *calls)
    assert len(module.parts["Loop_1.body"]) <= 4  # and not one for each length
    assert module.outputs[2].shape[1:] == (2,)
    assert module.report.kernels


def test_a_loop_without_rounds_gives_what_no_round_would() -> None:
    source = model("""g (float[2] x) => (float[2] y, float[K, 2] s, float[K, 3] r) <float top = {0}, bool t = {1}> {
        m = ReduceSum<keepdims = 0>(x) begin = Greater(m, top)
        y, s, r = Loop(, begin, x) <body = b (int64 i, bool c, float[2] a) =>
            (bool d, float[2] e, float[2] s1, float[3] r1)
            <float[3] k = {1, 2, 3}, float one = {1}>
            { e = Sub(a, one) q = ReduceSum<keepdims = 0>(e) d = Greater(q, top) s1 = Neg(e) r1 = Mul(q, k) }> }""")
    agrees(source, {"x": np.array([-1, 0], np.float32)}, {"x": np.array([3, 0.5], np.float32)})


NESTED = """g (float[3] x) => (float[3] y, int64 n) <bool t = {1}, float top = {50}, int64 zero = {0},
    int64 one = {1}, float two = {2}> {
    h = Abs(x)
    y, n = Loop(, t, h, zero) <body = b (int64 i, bool c, float[3] a, int64 k) => (bool d, float[3] e, int64 l) {
        m = ReduceMax<keepdims = 0>(a) q = Less(m, two)
        e, l = If(q) <
            then_branch = t1 () => (float[3] e1, int64 l1) {
                e1, l1 = Loop(, t, a, k) <body = b2 (int64 j, bool c2, float[3] u, int64 w) =>
                    (bool d2, float[3] v, int64 z)
                    { v = Add(u, h) v2 = ReduceMax<keepdims = 0>(v) d2 = Less(v2, two) z = Add(w, one) }> },
            else_branch = f1 () => (float[3] e2, int64 l2) { e2 = Mul(a, two) l2 = Add(k, one) }>
        r = ReduceSum<keepdims = 0>(e) d = Less(r, top) }> }"""


def test_a_loop_in_a_branch_in_a_loop() -> None:
    source = model(NESTED)
    agrees(source, *({"x": floats(3, scale=scale)} for scale in (0.1, 1, 40)))


def test_a_body_is_not_compiled_for_each_number_that_it_is_given() -> None:
    source = model("""g (float[3] x) => (float[M] y, int64 n) <bool t = {1}, float top = {50}, int64 one = {1},
        int64 few = {4}> {
        h = Abs(x)
        y, n = Loop(, t, h, one) <body = b (int64 i, bool c, float[K] a, int64 k) => (bool d, float[L] e, int64 l) {
            small = Less(k, few) l = Add(k, one)
            e = If(small) <then_branch = t1 () => (float[P] p) { p = Concat<axis = 0>(a, h) },
                           else_branch = f1 () => (float[Q] q) { q = Add(a, a) }>
            q1 = Loop(k, , l) <body = b2 (int64 j, bool c2, int64 u) => (bool c3, int64 v)
                { c3 = Identity(c2) v = Add(u, u) }>
            q2 = Cast<to = 1>(q1) r = ReduceSum<keepdims = 0>(e) d1 = Less(r, top)
            d2 = Less(q2, r) d = Or(d1, d2) }> }""")
    module = agrees(source, *({"x": floats(3, scale=scale)} for scale in (1, 0.1)))
    (body,) = (p for name, p in module.parts.items() if name == "Loop_1.body")
    assert all(isinstance(m, HostedModule) for m in body)


CHOICE = """g (float[N, 3] x) => (float[A, B] y) <float zero = {0}, int64[1] one = {1}, int64[1] two = {2},
    int64[1] ax = {0}> {
    h = Mul(x, x) m = ReduceSum<keepdims = 0>(x) c = Greater(m, zero)
    z = If (c) <then_branch = t () => (float[A1, B1] p) { p = Concat<axis = 0>(h, x) },
                else_branch = e () => (float[A2, B2] q) { q = Slice(h, one, two, one) }>
    y = Neg(z) }"""


def test_branches_of_other_shapes() -> None:
    x = np.abs(floats(4, 3)) + 1
    module = agrees(model(CHOICE), {"x": x}, {"x": -x}, {"x": x[:2]}, {"x": -x[:3]})
    assert list(module.parts) == ["before", "If_3.then", "If_3.else", "after"]


def test_two_loops_in_a_row_and_one_that_sees_the_other() -> None:
    source = model("""g (float[2] x) => (float[2] y, float[2] w, float[2] x2) <bool t = {1}, float top = {9}> {
        x2 = Identity(x)
        y = Loop(, t, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
            { f = Abs(a) e = Add(f, f) m = ReduceSum<keepdims = 0>(e) d = Less(m, top) }>
        w = Loop(, t, x) <body = b3 (int64 j, bool c3, float[2] o) => (bool d3, float[2] p)
            { p = Add(o, y) r = Abs(p) m3 = ReduceSum<keepdims = 0>(r) d3 = Less(m3, top) }> }""")
    agrees(source, {"x": np.array([1, 2], np.float32)}, {"x": np.array([0.25, -0.1], np.float32)})


def test_states_that_are_passed_on_are_not_copied_and_results_are_the_callers() -> None:
    source = model("""g (float[2] x, float[4] kept) => (float[2] y, float[4] k, float[4] l)
        <bool t = {1}, float top = {9}> {
        y, k = Loop(, t, x, kept) <body = b (int64 i, bool c, float[2] a, float[4] s) =>
            (bool d, float[2] e, float[4] s2)
            { f = Abs(a) e = Add(f, f) m = ReduceSum<keepdims = 0>(e) d = Less(m, top) s2 = Identity(s) }>
        l = Identity(k) }""")
    call = {"x": np.array([1, 2], np.float32), "kept": floats(4)}
    module = agrees(source, call)
    assert "kept" not in {v.name for made in module.parts.values() for m in made for v in m.inputs}
    _, k, l = module.run(**call)
    k += 1
    assert not np.array_equal(k, call["kept"])
    assert np.array_equal(l, call["kept"])


def test_scan_over_any_number_of_slices() -> None:
    source = model("""g (float[2] s, float[N, 2] x, float[3, N] w) => (float[2] y, float[A, B] z, float[C] u) {
        y, z, u = Scan(s, x, w) <num_scan_inputs = 2, scan_input_axes = [0, -1], scan_input_directions = [1, 0],
            scan_output_directions = [0, 1], scan_output_axes = [1, 0], body =
            b (float[2] a, float[2] p, float[3] q) => (float[2] c, float[2] d, float v)
            { c = Add(a, p) d = Mul(c, p) v = ReduceMax<keepdims = 0>(q) }> }""")
    module = agrees(source, *({"s": floats(2), "x": floats(n, 2), "w": floats(3, n)} for n in (3, 1, 5)))
    s = floats(2)
    y, z, u = module.run(s, floats(0, 2), floats(3, 0))
    np.testing.assert_array_equal(y, s)
    assert (z.shape, u.shape) == ((2, 0), (0,))
    with pytest.raises(InvalidInput, match="N"):
        module.run(s, floats(3, 2), floats(3, 4))


def decoder(width: int = 8, words: int = 11) -> onnx.ModelProto:
    """One layer with attention over all words so far, which a loop runs until word 0 comes, the most likely one."""
    held = {name: floats(*shape) for name, shape in (
        ("emb", (words, width)), ("wq", (width, width)), ("wk", (width, width)), ("wv", (width, width)),
        ("head", (width, words)),
    )}  # fmt: skip
    return model(
        """g (int64[1, P] prompt) => (int64[1, T] tokens, float[R, 1, W] logits) <bool t = {1}, int64 most = {12},
            int64[1] zero = {0}, int64 end = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64[1] far = {99}> {
        wkt = Transpose<perm = [0, 1]>(wk)
        x0 = Gather(emb, prompt) k0 = MatMul(x0, wkt) v0 = MatMul(x0, wv)
        tokens, kn, vn, logits = Loop(most, t, prompt, k0, v0) <body = b
            (int64 i, bool c, int64[1, S] so, float[1, S, H] k, float[1, S, H] v) =>
            (bool d, int64[1, S2] so2, float[1, S2, H] k2, float[1, S2, H] v2, float[1, W] l) {
            tail = Slice(so, last, far, one) x = Gather(emb, tail) q = MatMul(x, wq)
            kt = Transpose<perm = [0, 2, 1]>(k) scores = MatMul(q, kt) p = Softmax<axis = -1>(scores)
            mixed = MatMul(p, v) h = Add(mixed, x) all = MatMul(h, head) l = Squeeze(all, one)
            next = ArgMax<axis = 1, keepdims = 1>(l) so2 = Concat<axis = 1>(so, next)
            nx = Gather(emb, next) nk = MatMul(nx, wkt) nv = MatMul(nx, wv)
            k2 = Concat<axis = 1>(k, nk) v2 = Concat<axis = 1>(v, nv)
            word = Squeeze(next) same = Equal(word, end) d = Not(same) }> }""",
        held,
    )


def test_a_decoder_with_a_cache_ends_where_it_says_so() -> None:
    source = decoder()
    module = agrees(source, *({"prompt": np.array([p])} for p in ([1, 2, 3], [4], [5, 6], [7, 1, 9, 2, 3])))
    assert len(module.parts["Loop_4.body"]) <= 3
    names = {v.name for m in module.parts["Loop_4.body"] for v in m.inputs}
    assert not names & {"wkt", "emb", "head"}  # weights, and what is computed of them, are constants of the body


def test_threads_call_one_module() -> None:
    source = decoder()
    module, session = hosted(source), onnx_runtime.session(source)
    prompts = [np.array([RNG.integers(1, 11, size=n)]) for n in (1, 2, 3, 4) * 4]
    expected = [onnx_runtime.run(session, {"prompt": p})[0] for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(lambda p: module.run(p)[0], prompts), expected):
            np.testing.assert_array_equal(got, wanted)


ENDLESS = """g (float[2] x) => (float[2] y) <float zero = {0}> {
    h = Abs(x) m = ReduceSum<keepdims = 0>(h) begin = GreaterOrEqual(m, zero)
    y = Loop(, begin, h) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
        { e = Sqrt(a) n = ReduceSum<keepdims = 0>(e) d = GreaterOrEqual(n, zero) }> }"""


def test_a_loop_without_end_ends_in_time_or_when_cancelled() -> None:
    module, x = hosted(model(ENDLESS)), floats(2)
    with pytest.raises(TimeLimit, match=r"Loop 'Loop_3', round \d+: .*not done in 0.3 s"):
        module.run(x, timeout=0.3)
    threading.Timer(0.2, module.cancel).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        module.run(x, timeout=60)
    assert time.monotonic() - began < 30


def test_results_of_rounds_are_limited() -> None:
    text = ENDLESS.replace("(float[2] y)", "(float[2] y, float[K, 2] s)").replace("y = Loop", "y, s = Loop")
    text = text.replace("float[2] e)", "float[2] e, float[2] r)").replace("{ e =", "{ r = Neg(a) e =")
    module = hosted(model(text), limits=Limits(bytes=1 << 14))
    with pytest.raises(LimitExceeded, match="results of rounds"):
        module.run(floats(2), timeout=120)


def test_errors_name_the_loop_and_its_round() -> None:
    source = model(
        """g (float[3] x) => (float[3] y, float[K, L] s) <bool t = {1}, float top = {3}, int64[1] one = {1}> {
        h = Abs(x)
        y, s = Loop(, t, h) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e, float[L] r)
            { e = Mul(a, a) m = ReduceSum<keepdims = 0>(e) d = Less(m, top)
              n = Unsqueeze(i, z) r = Expand(m, n) }> }""",
        z=np.array([0]),
    )
    with pytest.raises(InvalidInput, match=r"(?s)Loop 'Loop_1', round 1: .*other shapes.*round 0: float32\[0\]"):
        hosted(source).run(np.full(3, 0.5, np.float32))


def test_what_a_body_lacks_is_said_at_once() -> None:
    source = model(ENDLESS.replace("Sqrt(a)", "MaxRoiPool(a)"))
    with pytest.raises(UnsupportedOp, match="MaxRoiPool"):
        renorm.compile(source)


def test_what_reads_one_graph_says_why_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UntoldOperand, match=r"(?s)condition 'begin' of Loop.*piece by piece"):
        frontends.read(model(ENDLESS))
    module = hosted(model(ENDLESS))
    for refused in (lambda: module.graph, lambda: module.specialized(x=(2,))):
        with pytest.raises(InvalidInput, match="condition 'begin' of Loop"):
            refused()
    assert [str(v) for v in module.outputs] == ["y f32[2]"]
    with pytest.raises(InvalidInput, match=r"(?s)'z' is not an input"):
        module.run(z=floats(2))
    for wrong, said in ((np.zeros(2), r"float64\[2\]"), (np.zeros(2, ">f4"), r"float32\[2\] of foreign byte order")):
        with pytest.raises(InvalidInput, match=rf"{said}, expected float32\[2\]"):
            module.run(wrong)


def test_out_and_given_inputs() -> None:
    source = model(GROWING)
    module = hosted(source, inputs={"least": 3})
    assert [v.name for v in module.inputs] == ["x"]
    x = floats(2)
    expected = onnx_runtime.run(source, {"x": x, "least": np.array(3)})
    out = [np.empty_like(a) for a in expected]
    got = module.run(x, out=out)
    for mine, place, wanted in zip(got, out, expected):
        assert mine is place
        np.testing.assert_allclose(mine, wanted, rtol=1e-5)


def test_extents_that_vary_alike_have_one_symbol() -> None:
    assert varying([(2, 3, 8)]) == ((None, 2), (None, 3), (None, 8))
    assert varying([(2, 3, 8, 1), (3, 4, 8, 1)]) == ((0, 0), (0, 1), (None, 8), (None, 1))
    assert varying([(2, 3, 8, 1), (3, 4, 8, 1), (4, 9, 8, 1)]) == ((0, 0), (1, 0), (None, 8), (None, 1))


STEPS = {
    "f": ("Add(a, x)", "Mul(a, half)", "Sub(x, a)", "Max(a, x)"),
    "n": ("Add(k, i)", "Add(k, one)", "Mul(k, two)", "Max(k, i)"),
    "b": ("Not(o)", "Or(o, c)", "Xor(o, c)"),
    "g": ("Concat<axis = 0>(z, x)", "Concat<axis = 0>(x, z)", "Identity(z)", "Neg(z)"),
    "d": ("Less(s, top)", "Greater(s, low)", "And(v, o2)"),
}


@settings(max_examples=6, deadline=None)
@drawn(
    *(st.sampled_from(STEPS[k]) for k in "fnbgd"), st.sampled_from(["", "most"]), st.integers(0, 5), st.integers(1, 4)
)
def test_any_loop(f: str, n: str, b: str, g: str, d: str, count: str, most: int, width: int) -> None:
    source = model(
        f"""g (float[N] x) => (float[N] y, int64 yn, bool yo, float[M] yz, float[K] s, int64[K] t)
        <float half = {{0.5}}, float top = {{6}}, float low = {{-6}}, int64 one = {{1}}, int64 two = {{2}},
        int64 most = {{{most}}}, int64 cap = {{7}}> {{
        h = Abs(x) m = ReduceSum<keepdims = 0>(h) begin = Less(m, top) o0 = Greater(m, half)
        y, yn, yo, yz, s, t = Loop({count}, begin, h, one, o0, x) <body = b
            (int64 i, bool c, float[N] a, int64 k, bool o, float[Z] z) =>
            (bool d, float[N] a2, int64 k2, bool o2, float[Z2] z2, float q, int64 r) {{
            a2 = {f} k2 = {n} o2 = {b} z2 = {g} s = ReduceSum<keepdims = 0>(a2) v = Less(s, top)
            w = {d} capped = Less(i, cap) d = And(w, capped) q = Neg(s) r = Add(k2, i) }}> }}"""
    )
    module = hosted(source)
    for scale in (0.1, 1, 9):
        x = (np.linspace(-1, 1, width) * scale).astype(np.float32)
        for mine, wanted in zip(module.run(x), onnx_runtime.run(source, {"x": x})):
            assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


PADDED = """g (float[3, 5, 4] x, float t) => (int64[K] y, float[A, B, C] padded) <int64[4] z = {0, 0, 0, 0},
    int64[1] z1 = {0}, int64[1] ax = {0}, int64 none = {0}> {
    sh = Shape(x) shf = Cast<to = 1>(sh) m = ReduceMin<keepdims = 1>(shf) e = Ceil(m) i = Cast<to = 7>(e)
    pads = Concat<axis = 0>(z, i, z1) padded = Pad(x, pads)
    h = Greater(x, t) nz = NonZero(h) n = Size(nz) c = Equal(n, none)
    y = If(c) <then_branch = t1 () => (int64[P] p) { p = Constant<value_ints = [7, 7]>() },
               else_branch = f1 () => (int64[Q] q) { f = ReduceSum<keepdims = 0>(nz, ax) q = Add(f, f) }> }"""


def test_pads_that_follow_from_numbers_are_told_before_what_data_decide() -> None:
    x = np.abs(floats(3, 5, 4))
    agrees(model(PADDED), {"x": x, "t": np.array(0.5, np.float32)}, {"x": x, "t": np.array(99, np.float32)})
