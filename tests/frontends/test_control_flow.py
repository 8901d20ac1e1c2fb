"""If, Loop and Scan, whose bodies are read into the graph: against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm import Limits, frontends
from renorm.core.errors import InvalidModel, LimitExceeded, RenormError, UntoldOperand
from renorm.frontends.diagnosis import ASSUMPTIONS

pytestmark = pytest.mark.usefixtures("kept_code")

STEP = """b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e, float[2, 3] s) {
    d = Identity(c) f = Cast<to = 1>(i) g = Add(a, f) e = Mul(g, x) s = Sub(e, f) }"""
LOOPS = {
    "a number of rounds": f"""g (float[2, 3] x) => (float[2, 3] y, float[K, 2, 3] z) <int64 n = {{4}}, bool t = {{1}}>
        {{ y, z = Loop(n, t, x) <body = {STEP}> }}""",
    "no condition": f"""g (float[2, 3] x) => (float[2, 3] y, float[K, 2, 3] z) <int64 n = {{3}}>
        {{ y, z = Loop(n, , x) <body = {STEP}> }}""",
    "a condition that ends it": """g (float[2, 3] x) => (float[2, 3] y) <int64 n = {9}, bool t = {1}, int64 k = {2}> {
        y = Loop(n, t, x) <body = b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e)
            { d = Less(i, k) e = Add(a, x) }> }""",
    "no number": """g (float[2, 3] x) => (float[2, 3] y) <bool t = {1}, int64 k = {5}> {
        y = Loop(, t, x) <body = b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e)
            { d = Less(i, k) e = Add(a, x) }> }""",
    "no rounds": """g (float[2, 3] x) => (float[2, 3] y) <int64 n = {0}, bool t = {1}> {
        w = Neg(x) y = Loop(n, t, w) <body = b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e)
            { d = Identity(c) e = Add(a, x) }> }""",
    "no rounds, of which results are made": f"""g (float[2, 3] x) => (float[2, 3] y, float[K, 2, 3] z)
        <int64 n = {{0}}> {{ y, z = Loop(n, , x) <body = {STEP}> }}""",
    "carried numbers": """g (float[2, 3] x) => (float[2, 3] y) <int64 n = {4}, bool t = {1}, int64 o = {1}> {
        h, y = Loop(n, t, o, x) <body = b (int64 i, bool c, int64 m, float[2, 3] a) =>
            (bool d, int64 p, float[2, 3] e)
            { d = Identity(c) p = Add(m, m) q = Cast<to = 1>(p) e = Mul(a, q) }> }""",
    "within another": """g (float[2, 3] x) => (float[2, 3] y) <int64 n = {2}, int64 m = {3}, bool t = {1}> {
        y = Loop(n, t, x) <body = b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e) {
            d = Identity(c)
            e = Loop(m, t, a) <body = b2 (int64 j, bool c2, float[2, 3] u) => (bool d2, float[2, 3] v)
                { d2 = Identity(c2) ij = Add(i, j) f = Cast<to = 1>(ij) v = Add(u, f) }> }> }""",
}
SCAN = """g (float[2] s, float[5, 2] x, float[3, 5] w) => (float[2] y, float[A, B] z, float[C] u) {{
    y, z, u = Scan(s, x, w) <num_scan_inputs = 2, {attributes}, body =
        b (float[2] a, float[2] p, float[3] q) => (float[2] c, float[2] d, float v)
        {{ c = Add(a, p) d = Mul(c, p) v = ReduceMax<keepdims = 0>(q) }}> }}"""
SCANS = {
    "forward": "scan_input_axes = [0, 1]",
    "backward": "scan_input_axes = [0, -1], scan_input_directions = [1, 0], scan_output_directions = [0, 1]",
    "along other axes": "scan_input_axes = [0, 1], scan_output_axes = [1, 0]",
}


def agrees(source: Any, **given: Any) -> None:
    expected = onnx_runtime.run(onnx_runtime.session(source), given)
    module = renorm.compile(source, threads=1)
    for got, wanted in zip(module.run(**given), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        assert got.shape == wanted.shape


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_loop(text: str) -> None:
    agrees(model(text), x=RNG.normal(size=(2, 3)).astype(np.float32))


@pytest.mark.parametrize("attributes", SCANS.values(), ids=SCANS)
def test_scan(attributes: str) -> None:
    shapes = {"s": (2,), "x": (5, 2), "w": (3, 5)}
    given = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    agrees(model(SCAN.format(attributes=attributes)), **given)


def test_an_input_says_how_many_rounds() -> None:
    source = model(f"""g (int64 n, bool t, float[2, 3] x) => (float[2, 3] y, float[K, 2, 3] z)
        {{ y, z = Loop(n, t, x) <body = {STEP}> }}""")
    for rounds in (1, 4, 0, 2):
        agrees(source, n=np.array(rounds), t=np.array(True), x=RNG.normal(size=(2, 3)).astype(np.float32))


CHOICE = """g (float[3] x) => (float[{then}] y) <float zero = {{0}}> {{
    m = ReduceSum<keepdims = 0>(x) c = Greater(m, zero)
    y = If (c) <then_branch = t () => (float[{then}] p) {{ p = {first} }},
                else_branch = e () => (float[3] q) {{ q = Neg(x) }}> }}"""


def test_data_decide_between_branches_of_one_type() -> None:
    source = model(CHOICE.format(then=3, first="Exp(x)"))
    for sign in (1, -1):
        agrees(source, x=(sign * np.array([1, 2, 3])).astype(np.float32))
    assert any("both branches of If 'If_2'" in a for a in frontends.read(source).metadata[ASSUMPTIONS])


def test_what_is_refused() -> None:
    with pytest.raises(UntoldOperand, match=r"(?s)condition 'c' of If .*then  f32\[6\].*else  f32\[3\]"):
        frontends.read(model(CHOICE.format(then=6, first="Concat<axis = 0>(x, x)")))
    endless = """g (float[2, 3] x) => (float[2, 3] y) <bool t = {1}> {
        y = Loop(, t, x) <body = b (int64 i, bool c, float[2, 3] a) => (bool d, float[2, 3] e)
            { d = Identity(c) e = Add(a, x) }> }"""
    with pytest.raises(LimitExceeded, match="expansions: 2"):
        frontends.read(model(endless), limits=Limits(expansions=20))
    by_data = """g (float[2] x) => (float[2] y) <bool t = {1}, float z = {0}> {
        y = Loop(, t, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
            { e = Add(a, x) m = ReduceSum<keepdims = 0>(e) d = Less(m, z) }> }"""
    with pytest.raises(RenormError, match="condition 'd' of Loop is computed when the network runs"):
        frontends.read(model(by_data))
    with pytest.raises(InvalidModel, match="neither a number of rounds nor a condition"):
        frontends.read(model(f"g (float[2, 3] x) => (float[2, 3] y) {{ y = Loop(, , x) <body = {STEP}> }}"))
    with pytest.raises(InvalidModel, match="takes 3 values and gives 3"):
        frontends.read(
            model(f"g (float[2, 3] x) => (float[2, 3] y) <int64 n = {{1}}> {{ y = Loop(n) <body = {STEP}> }}")
        )


def test_an_input_that_ends_a_loop_is_held_against_what_was_read() -> None:
    """Elements are taken for extents, which are not negative: a loop that begins for all of these asks for one."""
    source = model("""g (int64 s, float[2] x) => (float[2] y) <int64 low = {-1}, int64 n = {3}> {
        c = Greater(s, low)
        y = Loop(n, c, x) <body = b (int64 i, bool c1, float[2] a) => (bool d, float[2] e)
            { d = Identity(c1) e = Add(a, a) }> }""")
    x, module = np.ones(2, np.float32), renorm.compile(source, threads=1)
    np.testing.assert_array_equal(module.run(np.array(5), x)[0], [8, 8])
    with pytest.raises(RenormError, match=r"s\.0"):
        module.run(np.array(-5), x)


def test_a_body_that_cannot_be_read_is_reported_once() -> None:
    source = model("""g (float[2] x) => (float[2] y) <bool t = {1}> {
        y = Loop(, t, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
            { d = MaxRoiPool(a) e = Add(a, x) }> }""")
    with pytest.raises(RenormError, match=r"'MaxRoiPool_0\.round0' is MaxRoiPool") as raised:
        frontends.read(source)
    assert "more node" not in str(raised.value)


def test_names_of_bodies_give_way_to_those_of_the_graph() -> None:
    source = model("""g (float[2] x) => (float[2] y) <int64 n = {2}, bool t = {1}> {
        w = Loop(n, t, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] y)
            { d = Identity(c) y = Add(a, x) }>
        y = Neg(w) }""")
    agrees(source, x=np.array([1, 2], np.float32))
    assert frontends.read(source).outputs[0].name == "y"


def test_weights_of_a_body_are_there_once() -> None:
    source = model("""g (float[2] x) => (float[2] y) <int64 n = {5}, bool t = {1}> {
        y = Loop(n, t, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
            <float[2] k = {3, 4}> { d = Identity(c) h = Constant<value = float[2] {1, 2}>()
                f = Mul(a, k) e = Add(f, h) }> }""")
    agrees(source, x=np.array([1, 2], np.float32))
    assert sum(v.shape == (2,) for v in frontends.read(source).constants.values()) == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Scan(x) <body = b (float a) => (float c) { c = Neg(a) }>", "num_scan_inputs"),
        ("y = Scan(x) <num_scan_inputs = 3, body = b (float a) => (float c) { c = Neg(a) }>", "3 of 1 values"),
        ("y = Loop(x, , x) <body = b (int64 i, bool t, float[2] a) => (bool d, float[2] c) { c = Neg(a) }>", "integer"),
        ("y = If(x) <then_branch = t () => (float p) { p = Neg(x) }>", "not bool"),
    ],
)
def test_damaged_bodies(body: str, why: str) -> None:
    with pytest.raises(InvalidModel, match=why):
        frontends.read(model(f"g (float[2] x) => (float[2] y) {{ {body} }}"))
