"""Extents that data decide: what comes before a count runs, the count is read, and the rest runs for it, as ONNX
Runtime has it."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.models import model

import renorm
from renorm.core.dims import Sym
from renorm.driver.module import OpenModule
from renorm.errors import InvalidArtifact, InvalidInput, RenormError, TimeLimit, UnsupportedOp
from renorm.graph.counting import cut
from renorm.graph.counts import Counts, counted_symbols, counts_of
from renorm.runtime.module import Module
from renorm.runtime.stages import stages

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("kept_code")

ABOVE = "m = Greater(x, zero) i = Cast<to = 7>(m) c = ReduceSum<keepdims = 1>(i, axes)"
HELD = """<float zero = {0}, float half = {0.5}, int64[1] axes = {0}, int64[1] z = {0}, int64[1] o = {1},
    int64[1] two = {2}, int64[1] all = {-1}, int64[1] three = {3}, int64[1] five = {5},
    int64[1] end = {100}, int64[1] big = {1000000000000},
    int64 from = {0}, int64 step = {1}>"""
NETWORKS = {
    "the first of a row": f"""g (float[N] x) => (float[A] y, float[N] w, float[B] both) {HELD}
        {{ {ABOVE} y = Slice(x, z, c) w = Sigmoid(x) p = Concat<axis = 0>(y, w) both = Softmax<axis = 0>(p) }}""",
    "the count is a result": f"""g (float[N] x) => (float[A] y, int64[1] c) {HELD}
        {{ {ABOVE} y = Slice(x, z, c) }}""",
    "the count is data": f"""g (float[N] x) => (float[A] y) {HELD}
        {{ {ABOVE} s = Slice(x, z, c) f = Cast<to = 1>(c) y = Mul(s, f) }}""",
    "a count of what is counted": f"""g (float[N] x) => (float[A] y, float[B] v) {HELD}
        {{ {ABOVE} y = Slice(x, z, c) n = Greater(y, half) k = Cast<to = 7>(n) d = ReduceSum<keepdims = 1>(k, axes)
           t = Slice(y, z, d) v = Exp(t) }}""",
    "rows": f"""g (float[N, 3, 5] x) => (float[A, B] y) {HELD}
        {{ r = ReduceMax<axes = [1, 2], keepdims = 0>(x) m = Greater(r, half) i = Cast<to = 7>(m)
           c = ReduceSum<keepdims = 1>(i, axes) s = Slice(x, z, c) f = Exp(s) h = Concat<axis = 0>(all, five)
           g2 = Reshape(f, h) w = ReduceMean<axes = [1], keepdims = 1>(g2) y = Sub(g2, w) }}""",
    "what is computed from a count": f"""g (float[N] x) => (float[A, B] y) {HELD}
        {{ {ABOVE} d = Mul(c, two) s = Concat<axis = 0>(c, two) k = ConstantOfShape<value = float[1] {{3}}>(s)
           f = Cast<to = 1>(d) l = Mul(k, f) w = ReduceMax<axes = [0], keepdims = 1>(x) y = Add(l, w) }}""",
    "a scalar": f"""g (float[N] x) => (float[A] y) {HELD}
        {{ m = Greater(x, zero) i = Cast<to = 7>(m) c = ReduceSum<keepdims = 0>(i) r = Range(from, c, step)
           f = Cast<to = 1>(r) y = Sqrt(f) }}""",
    "two counts": f"""g (float[N] x, float[M, 4] u) => (float[A] y, float[B, C] v, float[D, E] both) {HELD}
        {{ {ABOVE} y = Slice(x, z, c) q = ReduceMax<axes = [1], keepdims = 0>(u) mq = Less(q, half)
           iq = Cast<to = 7>(mq) d = ReduceSum<keepdims = 1>(iq, axes) v = Slice(u, z, d) yy = Unsqueeze(y, o)
           vv = ReduceSum<keepdims = 0>(v, o) both = Add(yy, vv) }}""",
    "where something is": f"""g (float[N, 4] x) => (int64[A, B] y, float[C] v) {HELD}
        {{ m = Greater(x, zero) y = NonZero(m) t = Transpose<perm = [1, 0]>(y) e = Exp(x) v = GatherND(e, t) }}""",
    "where rows are something": f"""g (float[N, 4] x) => (float[A, B] y, float[C] v) {HELD}
        {{ r = ReduceSum<keepdims = 0>(x, o) m = Greater(r, zero) y = Compress<axis = 0>(x, m)
           v = ReduceMax<axes = [1], keepdims = 0>(y) }}""",
    "where it is split": f"""g (float[N, 4] x, float[M, 4] u) => (float[A, B] y, float[C, D] v, float[M, 4] w) {HELD}
        {{ m = Greater(u, half) i = Cast<to = 7>(m) k = ReduceMax<axes = [0, 1], keepdims = 0>(i) c = Unsqueeze(k, z)
           left = Add(c, o) right = Sub(three, c) p = Concat<axis = 0>(left, right) y, v = Split<axis = 1>(u, p)
           w = Trilu(u, c) }}""",
    "the best": f"""g (float[N] x) => (float[A] y, int64[B] at) {HELD}
        {{ {ABOVE} y, at = TopK<axis = 0>(x, c) }}""",
    "how often": f"""g (float[N, 4] x, float[M, 4] u) => (float[A, B] y, float[C, D] v, float[E, F] w) {HELD}
        {{ m = Greater(x, zero) i = Cast<to = 7>(m) k = ReduceMax<axes = [0, 1], keepdims = 0>(i) c = Unsqueeze(k, z)
           r = Concat<axis = 0>(two, c) y = Tile(x, r) p = Concat<axis = 0>(c, z, z, two) v = Pad(u, p)
           f = Flatten<axis = 0>(u) t = Transpose<perm = [1, 0]>(f) e = Concat<axis = 0>(o, c) w = Expand(t, e) }}""",
}  # fmt: skip
SHAPES = {
    "rows": [(1, 3, 5), (4, 3, 5), (33, 3, 5)],
    "where": [(1, 4), (9, 4), (1000, 4)],
    "how": [(1, 4), (9, 4), (33, 4)],
    "": [(1,), (2,), (7,), (130,), (5000,)],
}


def network(text: str) -> Any:
    """Return a model whose outputs state no shapes, which ONNX Runtime would hold results against."""
    made = model(text)
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    return made


def opened(name: str, **options: Any) -> tuple[Any, Any]:
    made = network(NETWORKS[name])
    given: dict[str, Any] = {"threads": 1, **options}
    module = renorm.compile(made, **given)
    assert isinstance(module, OpenModule)
    return module, onnxruntime.InferenceSession(made.SerializeToString())


def drawn(module: Any, shape: tuple[int, ...], seed: int, shift: float) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"x": shape, "u": (shape[0] // 2 + 1, 4)}
    return {v.name: (rng.standard_normal(shapes[v.name]) + shift).astype(np.float32) for v in module.inputs}


def compared(module: Any, session: Any, given: dict[str, Array]) -> None:
    found, expected = module.run(**given), session.run(None, given)
    assert [a.shape for a in found] == [a.shape for a in expected]
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    module, session = opened(name)
    assert [v.name for v in module.inputs] == [v.name for v in session.get_inputs()]
    assert [v.name for v in module.outputs] == [v.name for v in session.get_outputs()]
    module.save(tmp_path / "net.renorm")
    loaded = renorm.load(tmp_path / "net.renorm", threads=2)
    shapes = SHAPES.get(name.split()[0], SHAPES[""])
    for seed, shape in enumerate((*shapes, *reversed(shapes))):  # the arena grows while it holds what is read later
        for shift in (0, -0.7, 0.7, -9, 9):  # -9: no count is above 0; 9: all are
            call = drawn(module, shape, seed, shift)
            compared(module, session, call)
            compared(loaded, session, call)


def counts(call: dict[str, Array]) -> tuple[int, int]:
    return int((call["x"] > 0).sum()), int((call["u"].max(axis=1) < 0.5).sum())


def test_counts_that_do_not_fit_each_other() -> None:
    made = network(NETWORKS["two counts"].replace("both = Add(yy, vv)", "both = Add(y, vv)"))
    module, session = renorm.compile(made, threads=1), onnxruntime.InferenceSession(made.SerializeToString())
    calls = [drawn(module, (n,), seed, 0) for seed in range(9) for n in (2, 4, 7)]
    fitting = [c for c in calls if len(set(counts(c))) == 1]
    others = [c for c in calls if len(set(counts(c))) == 2 and 1 not in counts(c)]
    assert fitting
    assert others
    for call in fitting:
        compared(module, session, call)
    for call in others:
        with pytest.raises(InvalidInput, match=r"Add_\d+' needs|elsewhere"):
            module.run(**call)
    compared(module, session, fitting[0])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 300), seed=st.integers(0, 99), shift=st.sampled_from([-9.0, -1.0, 0.0, 1.0, 9.0]))
def test_any_extent_and_any_count(n: int, seed: int, shift: float) -> None:
    module, session = OPENED
    compared(module, session, drawn(module, (n,), seed, shift))


@pytest.fixture(scope="module", autouse=True)
def _opened_once() -> None:
    OPENED.extend(() if OPENED else opened("a count of what is counted"))


OPENED: list[Any] = []


def test_the_graph_is_cut() -> None:
    graph = renorm.read(network(NETWORKS["a count of what is counted"]))
    made = cut(graph)
    assert counts_of(made) == Counts(2, 2)
    assert counted_symbols(made) == {"c.0", "d.0"}
    assert [v.name for v in made.inputs] == ["x", "c.read", "d.read"]
    assert [v.name for v in made.outputs] == ["y", "v", "c", "d"]
    assert [str(d) for v in made.outputs for d in v.shape] == ["c.0", "d.0", "1", "1"]
    assert cut(made) is made
    fixed = renorm.read(network("g (float[N] x) => (float[N] y) { y = Relu(x) }"))
    assert cut(fixed) is fixed


def test_programs_of_stages() -> None:
    module, _ = opened("a count of what is counted")
    program = module.program
    assert len(program.counts) == 2
    assert [list(p.typical) for p in stages(program)] == [["N"], ["N", "c.0"]]
    assert sum(len(p.steps) for p in stages(program)) == program.counts[1] < len(program.steps)
    assert [v.name for v in program.given] == ["x"]
    for changed in (
        replace(program, counts=(1, 99)),
        replace(program, counts=(-1, 2)),
        replace(program, counts=(1, 1, 1, 1)),
        replace(program, inputs=(*program.inputs[:-1], replace(program.inputs[-1], dtype="float32"))),
    ):
        with pytest.raises(InvalidArtifact):
            changed.verify(len(module._objects), program.weight_bytes)


def test_arrays_that_are_given_for_results() -> None:
    module, session = opened("the first of a row")
    call = drawn(module, (40,), 1, 0)
    expected = session.run(None, call)
    out = [np.empty_like(a) for a in expected]
    found = module.run(**call, out=out)
    assert all(a is b for a, b in zip(found, out))
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    found = module.run(**call, out=[None, call["x"], None])  # an input: what is read later is not written over
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert found[1] is call["x"]
    call = drawn(module, (40,), 2, 0)
    with pytest.raises(InvalidInput, match="y"):
        module.run(**call, out=[np.empty(len(expected[0]) + 1, np.float32), None, None])


def test_what_a_module_says_of_a_call() -> None:
    module, session = opened("a count of what is counted")
    call = drawn(module, (50,), 3, 0.3)
    y, v = session.run(None, call)
    assert dict(module.extents(**call)) == {"N": 50, "c.0": len(y), "d.0": len(v)}
    assert module.serving(**call) is module
    run = module.exclusive(**call)
    for step in range(len(module.program.steps)):
        run(step)
    (recording,) = module.recorded(**call)
    assert recording.end > recording.begin
    for a, b in zip(module.evaluate([call["x"]]), (y, v)):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    with pytest.raises(InvalidInput, match="what data say"):
        module.specialized(x=(50,))
    with pytest.raises(InvalidInput, match="x: missing"):
        module.run()
    with pytest.raises(InvalidInput, match="expected float32"):
        module.run(np.zeros(5))
    with pytest.raises(TimeLimit):
        module.run(**call, timeout=0)
    compared(module, session, call)


def test_calls_from_several_threads() -> None:
    for threads in (1, 2):
        module, session = opened("two counts", threads=threads)
        calls = [drawn(module, (n,), n, shift) for n in range(1, 60) for shift in (0, 1)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(compared, module, session), calls * 2))


def test_fixed_shapes_and_other_options() -> None:
    made = network(NETWORKS["rows"])
    session = onnxruntime.InferenceSession(made.SerializeToString())
    tried: list[dict[str, Any]] = [
        {"shapes": {"x": (9, 3, 5)}}, {"opt_level": 0}, {"verify": True}, {"checked": True},
        {"shapes": {"x": ("2*n", 3, 5)}}, {"precision": "exact", "threads": 2},
    ]  # fmt: skip
    for options in tried:
        module = renorm.compile(made, **options)
        for seed, shift in enumerate((0, -9, 9)):
            n = 9 if options.get("shapes", {}).get("x", "")[:1] == (9,) else 8
            compared(module, session, drawn(module, (n, 3, 5), seed, shift))


def test_the_compiler_is_not_needed(tmp_path: Path) -> None:
    module, _ = opened("rows")
    module.save(tmp_path / "net.renorm")
    code = f"""
import sys, numpy as np, renorm
m = renorm.load({str(tmp_path / "net.renorm")!r})
x = np.linspace(-2, 2, 90, dtype=np.float32).reshape(6, 3, 5)
assert m.run(x)[0].shape == ((x.max((1, 2)) > 0.5).sum() * 3, 5)
assert not [name for name in ("llvmlite", "onnx", "renorm.te", "renorm.graph", "renorm.ops") if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_has_no_open_kernels_is_run_by_the_host() -> None:
    text = f"""g (float[N] x) => (float[A] y) {HELD}
        {{ {ABOVE} y = Slice(x, z, end, z, c) }}"""  # the step of a slice
    x = np.random.default_rng(0).standard_normal(20).astype(np.float32)
    module = renorm.compile(network(text))
    assert "slice" in module.report.diagnoses[0]
    np.testing.assert_array_equal(module.run(x)[0], x[:: (x > 0).sum()])


def test_a_count_beyond_what_there_is() -> None:
    text = f"""g (float[N] x) => (float[A] y) {HELD}
        {{ {ABOVE} d = Mul(c, big) s = Sub(z, d) y = ConstantOfShape(s) }}"""
    module = renorm.compile(network(text), threads=1)
    assert module.run(-np.ones(3, np.float32))[0].shape == (0,)
    with pytest.raises(RenormError):
        module.run(np.ones(3, np.float32))
    assert module.run(-np.ones(3, np.float32))[0].shape == (0,)


def test_what_modules_with_counts_do_not_have() -> None:
    with pytest.raises(InvalidInput, match="specializations=2, and data decide extents"):
        renorm.compile(network(NETWORKS["rows"]), specializations=2)
    module = renorm.compile(network(NETWORKS["rows"]))
    assert isinstance(module, OpenModule)
    with pytest.raises(InvalidInput, match="no kernels for some shapes alone"):
        module.specialized(x=(8, 3, 5))


@pytest.mark.parametrize("options", [{}, {"checked": True}, {"verify": True}], ids=str)
def test_state_beside_counts(options: dict[str, Any], tmp_path: Path) -> None:
    """A batch norm in training mode, of which data select slices: each run reads one version of the statistics, in
    front of the counts and behind them."""
    text = f"""g (float[N, 2, 3] x) => (float[A, 2, 3] k, float[2] m2, float[2] v2) {HELD}
        {{ y, m2, v2 = BatchNormalization<training_mode = 1>(x, ones, zeros, mean, var)
           r = ReduceMax<axes = [1, 2], keepdims = 0>(y) m = Greater(r, half) k = Compress<axis = 0>(y, m) }}"""
    held = {name: np.full(2, n, np.float32) for name, n in (("ones", 1), ("zeros", 0), ("mean", 0.5), ("var", 2))}
    made = model(text, held)
    module = renorm.compile(made, train_state=True, threads=2, **options)
    assert isinstance(module, OpenModule)
    module.save(tmp_path / "net.renorm")
    rng = np.random.default_rng(0)
    for runs in (module, renorm.load(tmp_path / "net.renorm")):
        state = {"mean": held["mean"], "var": held["var"]}
        for n in (5, 2, 9):
            x = rng.standard_normal((n, 2, 3)).astype(np.float32)
            session = onnxruntime.InferenceSession(model(text, {**held, **state}).SerializeToString())
            expected = list(map(np.asarray, session.run(None, {"x": x})))
            for a, b in zip(runs.run(x), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            state = dict(zip(state, expected[1:]))
            for name, array in state.items():
                np.testing.assert_allclose(runs.state[name], array, rtol=1e-5)


def test_runs_of_one_state_follow_each_other_beside_counts() -> None:
    """The running mean of ones is 1 - (1 - m)**runs, whichever threads run at once."""
    text = f"""g (float[N, 2, 3] x) => (float[A, 2, 3] k, float[2] m2, float[2] v2) {HELD}
        {{ y, m2, v2 = BatchNormalization<training_mode = 1, momentum = 0.99>(x, ones, zeros, zeros, ones)
           r = ReduceMax<axes = [1, 2], keepdims = 0>(x) m = Greater(r, half) k = Compress<axis = 0>(y, m) }}"""
    held = {"ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32)}
    module = renorm.compile(model(text, held), train_state=True, threads=1)
    x = np.ones((4, 2, 3), np.float32)
    with ThreadPoolExecutor(4) as pool:
        for k, *_ in pool.map(lambda _: module.run(x), range(80)):
            assert k.shape == (4, 2, 3)
    np.testing.assert_allclose(module.state["zeros"], 1 - 0.99**80, rtol=1e-4)


def test_state_is_refused_where_the_host_runs_a_part() -> None:
    text = f"""g (float[N] x, float[3, 2] z0) => (float[A] y, float[3, 2] n, float[2] m2, float[2] v2) {HELD}
        {{ {ABOVE} y = Slice(x, z, end, z, c)
           n, m2, v2 = BatchNormalization<training_mode = 1>(z0, ones, zeros, zeros, ones) }}"""
    held = {"ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32)}
    with pytest.raises(UnsupportedOp, match="has state, and does not compile where what data decide is open"):
        renorm.compile(model(text, held), train_state=True)


@pytest.mark.parametrize("seed", range(8))
def test_programs_of_any_counts_are_refused_or_run(seed: int) -> None:
    module, session = OPENED
    program, *rest = module.parts()
    rng, call = random.Random(seed), drawn(module, (9,), seed, 0)
    names = [*map(str, program.typical), "q"]
    for _ in range(40):
        read = [
            replace(s, deciding=tuple(Sym(rng.choice(names)) for _ in range(rng.choice([0, 1, 1, 1, 2]))))
            for s in program.inputs[1:]
        ]
        counts = tuple(rng.choice([0, 1, 2, 3, 5, 99, -1]) for _ in range(rng.choice([0, 1, 2, 2, 2, 3])))
        changed: list[dict[str, Any]] = [
            {"counts": counts},
            {"inputs": (program.inputs[0], *read)},
            {"typical": {**program.typical, "q": 3}},
        ]
        with suppress(InvalidArtifact, InvalidInput):
            made = Module(replace(program, **rng.choice(changed)), *rest, threads=1)
            made.run(**call)
    compared(module, session, call)


SIGNED = "r = ReduceSum<keepdims = 0>(x) q = Floor(r) c = Cast<to = 7>(q)"
TILED = "u = Unsqueeze(n, z) e = Concat<axis = 0>(u, o) y = Tile(x, e)"


@pytest.mark.parametrize("made", ["p = GreaterOrEqual(c, from) n = Cast<to = 7>(p)", "n = Abs(c)", "n = Max(c, from)"])
def test_what_may_be_negative_is_no_count(made: str) -> None:
    built = network(f"g (float[N, 3] x) => (float[A, B] y) {HELD} {{ {SIGNED} {made} {TILED} }}")
    module, session = renorm.compile(built, threads=1), onnxruntime.InferenceSession(built.SerializeToString())
    rng, sums = np.random.default_rng(0), list[float]()
    for n in (1, 2, 5, 1, 2, 5):
        x = rng.standard_normal((n, 3)).astype(np.float32)
        compared(module, session, {"x": x})
        sums.append(float(x.sum()))
    assert min(sums) < -1
    assert max(sums) > 1


READ_OTHERWISE = {
    "what is left": ("int64[2] s", "y = Slice(x, z, c, z) f = Flatten<axis = 0>(y) v = Reshape(f, s)"),
    "beyond what is counted": ("int64[1] s", "y = Slice(x, z, c, z) v = Slice(y, z, s, z)"),
    "from the end of what is counted": ("int64[1] s", "y = Slice(x, z, c, z) v = Slice(y, s, end, z)"),
}


@pytest.mark.parametrize(("name", "calls"), [
    ("what is left", [[-1, 4], [2, -1], [1, -1], [-1, 2]]),
    ("beyond what is counted", [[1], [99], [2], [-1], [0]]),
    ("from the end of what is counted", [[0], [-1], [1], [-2], [-99]]),
])  # fmt: skip
def test_elements_that_are_no_extents_beside_counts(name: str, calls: list[list[int]]) -> None:
    given, body = READ_OTHERWISE[name]
    rows = "r = ReduceMax<axes = [1], keepdims = 0>(x) m = Greater(r, zero) i = Cast<to = 7>(m)"
    counted = f"{rows} c = ReduceSum<keepdims = 1>(i, axes)"
    made = network(f"g (float[N, 4] x, {given}) => (float[A, B] y, float[C, D] v) {HELD} {{ {counted} {body} }}")
    module, session = renorm.compile(made, threads=1), onnxruntime.InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(0)
    for elements in calls * 2:
        for n in (2, 5, 8):
            x = rng.standard_normal((n, 4)).astype(np.float32)
            x[-1], x[0] = -1, 1
            compared(module, session, {"x": x, "s": np.array(elements)})


def test_evaluating_beside_other_runs() -> None:
    """A run that goes on from counts leaves its place behind, whose next run may be of all steps."""
    module, session = opened("a count of what is counted")
    calls = [drawn(module, (40,), seed, 0) for seed in range(2)]
    compared(module, session, calls[0])
    for call in calls * 2:
        for a, b in zip(module.evaluate([call["x"]]), session.run(None, call)):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        compared(module, session, calls[0])


def test_evaluating_where_nothing_is_left() -> None:
    """A module that runs in place of open kernels has weights of its own."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    text = """g (float[N, 3] x) => (float[4] y, float[N, 4] z)
        { z = MatMul(x, w) s = ReduceSum<keepdims = 0>(z, axes) y = Add(s, bias) }"""
    made = model(text, {"w": weights, "bias": np.arange(4, dtype=np.float32) + 1, "axes": np.array([0])})
    module = renorm.compile(made, threads=1)
    assert isinstance(module, OpenModule)
    x = np.zeros((0, 3), np.float32)
    assert module.serving(x) is not module
    np.testing.assert_array_equal(module.evaluate([x])[0], [1, 2, 3, 4])
