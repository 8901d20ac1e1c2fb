"""Elements gathered, by indices that are data, from tables that other ops make: fused, each read is proved to lie
inside of what it reads, and the numbers are those of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model

import renorm

TABLES = {
    "concat": ("Concat<axis = 0>(x, c)", 37),
    "reflected": ('Pad<mode = "reflect">(x, p)', 37),
    "edges": ('Pad<mode = "edge">(x, p)', 37),
    "zeros": ("Pad(x, p)", 37),
    "repeated": ("Tile(x, t)", 60),
    "slice": ("Slice(x, two, far, zero)", 28),
}
INDICES = {
    "as they are": "Identity(i)",
    "modulo": "Mod(i, n)",
    "clipped": "Clip(i, z, l)",
    "halved": "Div(i, two)",
}
GATHERS = {
    "gather": ("Gather<axis = 0>(k, r)", (9, 2)),
    "by points": ("GatherND(k, r)", (18, 1)),
    "by element": ("GatherElements<axis = 0>(k, r)", (9, 2)),
}


@pytest.mark.parametrize("gather", GATHERS)
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("table", TABLES)
def test_gathers(table: str, index: str, gather: str) -> None:
    (made, rows), (op, shape) = TABLES[table], GATHERS[gather]
    result = "A, B, C" if gather == "gather" else "A, B"
    source = model(f"""g (float[30, 3] x, float[7, 3] c, int64[{", ".join(map(str, shape))}] i) => (float[{result}] y)
        <int64 n = {{{rows}}}, int64 z = {{0}}, int64 l = {{{rows - 1}}}, int64[4] p = {{2, 0, 5, 0}},
         int64[2] t = {{2, 1}}, int64[1] two = {{2}}, int64[1] far = {{99}}, int64[1] zero = {{0}}>
        {{ k = {made} r = {INDICES[index]} y = {op} }}""")
    rng = np.random.default_rng(0)
    given = {"x": rng.random((30, 3), np.float32), "c": rng.random((7, 3), np.float32)}
    given["i"] = rng.permutation(np.arange(18) * 5 % rows).reshape(shape)
    session = onnx_runtime.session(source)
    given = {i.name: given[i.name] for i in session.get_inputs()}
    (expected,) = onnx_runtime.run(session, given)
    for level in (1, 3):
        np.testing.assert_array_equal(renorm.compile(source, opt_level=level).run(*given.values())[0], expected)


def test_what_is_not_proved_is_not_fused() -> None:
    """Kernels of one node each, and the report says why."""
    source = model("""g (float[40, 6] x, int64[4] i) => (float[A, B] y)
        <int64 n = {40}, int64[4] p = {2, 0, 5, 0}, int64[1] o = {0}, int64[1] m = {7}, int64[1] e = {40}>
        { u = Slice(x, m, e, o) v = Slice(x, o, m, o) w = Concat<axis = 0>(u, v) k = Pad<mode = "reflect">(w, p)
          a = Abs(i) r = Mod(a, n) g = Gather<axis = 0>(k, r) y = Neg(g) }""")
    given = {"x": np.random.default_rng(1).random((40, 6), np.float32), "i": np.array([7, -81, 39, 0])}
    m = renorm.compile(source)
    np.testing.assert_array_equal(m.run(*given.values())[0], onnx_runtime.run(onnx_runtime.session(source), given)[0])
    assert [rule for rule, *_ in m.report.refusals] == ["Fuse"]
    assert "1 problem in its loops" in m.report.refusals[0][2]
