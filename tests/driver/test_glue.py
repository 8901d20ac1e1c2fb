"""Networks of which the host computes what no kernel is told, against ONNX Runtime."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends import onnx_runtime
from tests.frontends.models import model
from tests.random_numbers import RNG

import renorm
from renorm import Limits
from renorm.core.errors import Cancelled, InvalidInput, LimitExceeded, RenormError, TimeLimit
from renorm.driver.glue import GluedModule
from renorm.driver.hosted import HostedModule
from renorm.driver.module import OpenModule

pytestmark = pytest.mark.usefixtures("kept_code")
Array = np.ndarray[Any, Any]


def glued(source: Any, **more: Any) -> GluedModule:
    made = renorm.compile(source, threads=1, **more)
    assert isinstance(made, GluedModule)
    return made


def agrees(source: onnx.ModelProto, *calls: dict[str, Array], module: Any = None) -> Any:
    """Run a model on calls, one after the other, beside ONNX Runtime."""
    session, module = onnx_runtime.session(source), module or glued(source)
    for call in calls:
        expected, got = onnx_runtime.run(session, call), module.run(**call)
        assert len(got) == len(expected)
        for mine, wanted in zip(got, expected):
            assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)
    return module


def floats(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def kernels(module: GluedModule) -> str:
    return " ".join(k.name for k in module.report.kernels)


# a convolved image at a place and of a size that data decide, as far as it lies within 12 rows of 8; zeros around it
PASTED = """g (float[2, 3, 9, 7] x) => (float[2, 4, H, W] y, float[2, 4] mean, int64[4] box) <int64[2] axes = {2, 3},
    int64[2] whole = {12, 8}, int64[2] zero = {0, 0}, int64[2] planes = {2, 4}, float far = {4},
    float half = {0.5}, float[2] own = {9, 7}, float[2] ones = {1, 1}> {
    c = Conv<pads = [1, 1, 1, 1]>(x, w) f = Tanh(c)
    mean = ReduceMean<axes = [2, 3], keepdims = 0>(c)
    m = ReduceMax<axes = [0], keepdims = 0>(mean) k = Tanh(m) scaled = Mul(k, far)
    low = Slice(scaled, l0, l2) more = Slice(scaled, l2, l4) size = Abs(more) long = Add(size, far)
    high = Add(low, long) corners = Concat<axis = 0>(low, high) floor = Floor(corners) box = Cast<to = 7>(floor)
    first = Slice(box, l0, l2) last = Slice(box, l2, l4)
    extent = Sub(last, first) float_extent = Cast<to = 1>(extent) wide = Add(float_extent, half)
    ratio = Div(wide, own) all = Concat<axis = 0>(ones, ratio)
    big = Resize<mode = "linear">(f, , all)
    from = Max(first, zero) to = Min(last, whole)
    begin = Sub(from, first) end = Sub(to, first)
    part = Slice(big, begin, end, axes)
    shape = Shape(part) columns = Slice(shape, l3, l4)
    left_over = Sub(whole, to)
    up = Slice(from, l0, l1) down = Slice(left_over, l0, l1)
    above = Concat<axis = 0>(planes, up, columns) below = Concat<axis = 0>(planes, down, columns)
    zeros_above = ConstantOfShape(above) zeros_below = ConstantOfShape(below)
    rows = Concat<axis = 2>(zeros_above, part, zeros_below)
    left = Slice(from, l1, l2) right = Slice(left_over, l1, l2) height = Slice(whole, l0, l1)
    before = Concat<axis = 0>(planes, height, left) behind = Concat<axis = 0>(planes, height, right)
    zeros_before = ConstantOfShape(before) zeros_behind = ConstantOfShape(behind)
    y = Concat<axis = 3>(zeros_before, rows, zeros_behind) }"""
WEIGHTS = floats(4, 3, 3, 3)


def pasted() -> onnx.ModelProto:
    return model(PASTED, {f"l{k}": np.array([k]) for k in range(5)}, w=WEIGHTS)


def test_a_part_that_data_cut_out_is_pasted_by_the_host() -> None:
    source = pasted()
    module = agrees(source, *({"x": floats(2, 3, 9, 7) * scale} for scale in (1, 0.2, -1, 3, 20)))
    assert "conv" in kernels(module)
    host = next(d for d in module.report.diagnoses if "the host runs" in d)
    assert "resize" in host
    assert "conv" not in host
    assert [str(o.dtype) for o in module.outputs] == ["float32", "float32", "int64"]
    assert [len(o.shape) for o in module.outputs] == [4, 2, 1]
    assert [v.name for v in module.inputs] == ["x"]


RESIZED = """g (float[1, 2, 6, 5] x, int64[2] least) => (float[1, 2, H, W] y, float[1, 2, 6, 5] f)
    <int64[2] two = {1, 2}, int64 top = {9}> {
    f = Sigmoid(x) m = ReduceSum<keepdims = 0>(x) q = Abs(m) i = Cast<to = 7>(q) n = Min(i, top)
    sizes = Add(least, n) all = Concat<axis = 0>(two, sizes)
    z = Resize<mode = "linear">(f, , , all) y = Mul(z, z) }"""


def test_an_image_is_resized_to_what_data_say() -> None:
    source = model(RESIZED)
    source.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2]), "two"))
    calls = [{"x": floats(1, 2, 6, 5), "least": np.array(least)} for least in ([1, 2], [4, 3], [7, 1])]
    module = renorm.compile(source, threads=1)
    agrees(source, *calls, module=module)


# an image whose size data decide is convolved once more
BEHIND = """g (float[1, 3, 8, 8] x) => (float[1, 5, H, W] y, float[1, 5, H, W] z) <int64[2] axes = {2, 3},
    float one = {1}> {
    c = Conv<pads = [1, 1, 1, 1]>(x, w) f = Relu(c)
    m = ReduceMean<axes = [0, 2, 3], keepdims = 0>(f) a = Mul(m, four) r = Ceil(a) n = Cast<to = 7>(r)
    b = Slice(n, l0, l2) begin = Min(b, l2) past = Add(begin, l1) end = Neg(past)
    part = Slice(f, begin, end, axes)
    v = Conv<pads = [1, 1, 1, 1]>(part, u) g1 = Relu(v) z = Conv<pads = [1, 1, 1, 1]>(g1, t)
    sum = Add(z, one) y = Tanh(sum) }"""


def behind() -> onnx.ModelProto:
    held = {"w": floats(4, 3, 3, 3), "u": floats(4, 4, 3, 3), "t": floats(5, 4, 3, 3)}
    return model(
        BEHIND, held, l0=np.array([0]), l1=np.array([1]), l2=np.array([2]), four=np.array([4, 1, 0.5, 2], np.float32)
    )


def test_what_is_convolved_behind_it_is_compiled() -> None:
    source = behind()
    module = agrees(source, *({"x": floats(1, 3, 8, 8) * scale} for scale in (0.2, 0.1, 0.4, 0.2)))
    assert kernels(module).count("conv") == 3
    host = " ".join(d for d in module.report.diagnoses if "the host runs" in d)
    assert "conv" not in host
    assert "relu" in host


# rows that fulfil a condition, and of these as many as their sum says, which may be none
ROWS = """g (float[N, 3] x) => (float[M, 3] some, float[K, 3] y, int64[1] n) <int64[1] first = {0}, float zero = {0},
    int64 last = {1}, int64[1] minus = {-1}> {
    e = Exp(x) d = Mul(e, x) s = ReduceSum<keepdims = 0>(d, rows) up = Greater(s, zero)
    some = Compress<axis = 0>(d, up) sh = Shape(some) n = Slice(sh, first, rows)
    h = ReduceSum<keepdims = 0>(some) f = Floor(h) w = Cast<to = 7>(f) k = Unsqueeze(w, first)
    y = Slice(some, first, k) }"""


@pytest.mark.parametrize("rows", [6, 1])
def test_there_may_be_none(rows: int) -> None:
    source = model(ROWS, rows=np.array([1]))
    calls = [{"x": floats(rows, 3)}, {"x": -np.abs(floats(rows, 3))}, {"x": np.abs(floats(rows, 3)) + 1}]
    module = renorm.compile(source, threads=1)
    agrees(source, *calls, {"x": floats(rows + 4, 3)}, module=module)


# the tail of what is sorted from where data say, which counts from the end where they are negative
TAIL = """g (float[N] x) => (float[M] y, int64[1] n) <int64[1] first = {0}> {
    m = ReduceMax<keepdims = 1>(x) f = Floor(m) n = Cast<to = 7>(f) o = Neg(n)
    begin = Max(n, first) past = Sub(begin, n) s = Slice(x, past, o) y = Tanh(s) }"""


def test_what_is_no_extent_in_one_call() -> None:
    source = model(TAIL)
    module = renorm.compile(source, threads=1)
    assert isinstance(module, OpenModule)
    rows = np.sort(RNG.uniform(1, 2.9, 50).astype(np.float32))
    calls = [{"x": x} for x in (rows, -rows, rows[:2], 30 * rows, np.array([0.5], np.float32))]
    agrees(source, *calls, module=module)
    for n in (1, 3):  # of which conditions make numbers of counts
        known = renorm.compile(source, shapes={"x": (n,)}, threads=1)
        agrees(source, *({"x": np.full(n, v, np.float32)} for v in (0.3, 1.4, 2.2, -0.5, -1.5, 9, -9)), module=known)
    with pytest.raises(InvalidInput, match="expected float32"):
        module.run(rows.astype(np.float64))


# one value is told with elements that are extents, and others that are data alone
PARTLY = """g (float[5, 7] x, int64[4] boxes) => (float[A, 7] y, int64 least) <int64[1] top = {6}> {
    box = Neg(boxes) up = Slice(box, l0, l1) down = Slice(box, l2, l3) t = Tanh(x)
    y = Slice(t, up, l4, l0) both = Concat<axis = 0>(down, top) least = ReduceMin<keepdims = 0>(both) }"""


def test_elements_that_are_no_extents_beside_others() -> None:
    source = model(PARTLY, {f"l{k}": np.array([k]) for k in range(5)})
    module = renorm.compile(source, threads=1)
    assert isinstance(module, OpenModule)  # compiled at once
    calls = [{"x": floats(5, 7), "boxes": -np.array(box)} for box in ([1, 2, 3, 4], [2, 0, 9, 1], [0, 0, 0, 0])]
    agrees(source, *calls, module=module)


LOOP = """g (float[4] b, float[6, 5] x) => (float[N, 6, 5] y) <bool t = {1}, float top = {1.6}, int64 most = {4}> {
    f = Tanh(x)
    y = Loop(most, t) <body = round (int64 i, bool c) => (bool d, float[6, 5] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] five = {5}, float[1] same = {1}> {
        by = Gather(b, i) ratio = Unsqueeze(by, zero) scales = Concat<axis = 0>(same, ratio)
        wide = Resize<mode = "linear">(f, , scales) z = Slice(wide, zero, five, one) d = Less(by, top) }> }"""


def test_in_the_body_of_a_loop_that_data_end() -> None:
    source = model(LOOP)
    module = renorm.compile(source, threads=1)
    assert isinstance(module, HostedModule)
    ratios = np.array([1.5, 1.25, 1.3, 2.1], np.float32)
    agrees(source, *({"b": b, "x": floats(6, 5)} for b in (ratios, ratios[::-1].copy())), module=module)
    inner = [m for modules in module.parts.values() for m in modules if isinstance(m, GluedModule)]
    assert len(inner) == 1  # not one for each ratio
    assert any("the host runs" in d for d in module.report.diagnoses)


def test_an_artifact_holds_no_part_of_the_host(tmp_path: Path) -> None:
    module = glued(pasted())
    with pytest.raises(InvalidInput, match=r"not compiled(.|\n)*the host runs"):
        module.save(tmp_path / "m.renorm")


def test_what_is_not_for_it() -> None:
    source = pasted()
    with pytest.raises(InvalidInput, match="data decide extents"):
        renorm.compile(source, specializations=2)
    with pytest.raises(InvalidInput, match="no one program"):
        glued(source).specialized(x=(2, 3, 9, 7))


def test_inputs_and_results_that_are_given() -> None:
    source = pasted()
    module, x = glued(source), floats(2, 3, 9, 7)
    expected = onnx_runtime.run(source, x)
    out = [np.empty_like(e) for e in expected]
    assert module.run(x, out=out)[0] is out[0]
    for mine, wanted in zip(out, expected):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidInput, match="expected float32"):
        module.run(x.astype(np.float64))
    with pytest.raises(InvalidInput):
        module.run(x[:, :, :5])


def test_calls_from_several_threads() -> None:
    source = pasted()
    module, session = glued(source), onnx_runtime.session(source)
    calls = [floats(2, 3, 9, 7) * (1 + k % 3) / 2 for k in range(12)]
    expected = [onnx_runtime.run(session, x) for x in calls]
    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(module.run, calls), expected):
            for a, b in zip(got, wanted):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


# a long chain for the host: 200 sorts of what is as long as data say
LONG = "".join(f"s{k + 1}, i{k} = TopK<largest = {k % 2}>(s{k}, size) " for k in range(200))
SLOW = f"""g (float[1, 40, N] x) => (float[A, B, M] s200) <float[2] ones = {{1, 1}}> {{
    m = ReduceMax<keepdims = 0>(x) n = Reshape(m, one) all = Concat<axis = 0>(ones, n)
    s0 = Resize<mode = "nearest">(x, , all) shape = Shape(s0) size = Slice(shape, two, three) {LONG} }}"""


def slow() -> tuple[GluedModule, Array]:
    return glued(model(SLOW, {n: np.array([k + 1]) for k, n in enumerate(("one", "two", "three"))})), RNG.uniform(
        0, 2, (1, 40, 2000)
    ).astype(np.float32)


# of a batch images that fulfil a condition, which may be none, and of these a part that data cut out
KEPT = """g (float[N, 3, 8, 6] x) => (float[K, 5, H, W] y, float[K] s) <int64[2] axes = {2, 3}, float zero = {0}> {
    c = Conv<pads = [1, 1, 1, 1]>(x, w) f = Relu(c)
    e = ReduceMean<axes = [1, 2, 3], keepdims = 0>(x) up = Greater(e, zero) kept = Compress<axis = 0>(f, up)
    m = ReduceMean<axes = [0, 2, 3], keepdims = 0>(f) a = Mul(m, four) r = Ceil(a) n = Cast<to = 7>(r)
    b = Slice(n, l0, l2) begin = Min(b, most) past = Add(begin, l1) end = Neg(past)
    part = Slice(kept, begin, end, axes)
    v = Conv<pads = [PADS]>(part, u) g1 = Relu(v) y = InstanceNormalization(g1, scale, bias)
    s = ReduceMean<axes = [1, 2, 3], keepdims = 0>(y) }"""


def kept(pads: str = "1, 1, 1, 1", most: int = 2) -> onnx.ModelProto:
    held = {"w": floats(4, 3, 3, 3), "u": floats(5, 4, 3, 3), "scale": floats(5), "bias": floats(5)}
    held |= {"four": np.array([4, 1, 0.5, 2], np.float32)} | {f"l{k}": np.array([k]) for k in range(3)}
    return model(KEPT.replace("PADS", pads), held, most=np.array([most]))


def test_a_batch_of_which_none_is_left() -> None:
    source = kept()
    module = agrees(source, *({"x": s * np.abs(floats(n, 3, 8, 6))} for n in (1, 3, 2, 5, 0) for s in (0.3, -0.3)))
    assert kernels(module).count("conv") == 2
    shapes = [m.inputs[0].shape for m in module.parts["g.compiled1.Conv_14"]]
    assert not any(isinstance(d, int) for d in (shapes[-1][0], *shapes[-1][2:]))  # one module for what comes later


def test_calls_of_several_threads_that_compile_what_comes() -> None:
    source = kept()
    session, draws = onnx_runtime.session(source), [np.random.default_rng(k) for k in range(24)]
    calls = [(r.normal(size=(k % 5, 3, 8, 6)) * (0.1 + 0.3 * (k % 7))).astype(np.float32) for k, r in enumerate(draws)]
    expected = [onnx_runtime.run(session, x) for x in calls]
    module = glued(source)
    with ThreadPoolExecutor(6) as pool:
        for got, wanted in zip(pool.map(module.run, calls), expected):
            for a, b in zip(got, wanted):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_an_error_names_where_it_is() -> None:
    module, x = glued(kept("0, 0, 0, 0", most=3)), np.abs(floats(2, 3, 8, 6))
    module.run(x / 100)
    with pytest.raises(InvalidInput, match=r"Conv_14(.|\n)*axis 3"):
        module.run(100 * x)
    ratios = np.array([1.5, -2, 1, 1], np.float32)
    with pytest.raises(InvalidInput, match=r"Loop 'Loop_1', round 1.*node 'Resize_1': resize: scales"):
        renorm.compile(model(LOOP), threads=1).run(b=ratios, x=floats(6, 5))


# no node of the body can be compiled before it runs
HOST_ALONE = """g (float[3] a, float[2] s) => (float[2] v, float[N, H, W] y) {
    m = ReduceMax<keepdims = 0>(a) i = Cast<to = 7>(m)
    v, y = Loop(i, , s) <body = round (int64 k, bool c, float[2] t) => (bool d, float[2] u, float[H, W] z) {
        d = Identity(c) u = Identity(t) z = Resize<mode = "nearest">(image, , t) }> }"""


def test_a_part_that_only_the_host_runs(tmp_path: Path) -> None:
    source = model(HOST_ALONE, image=floats(2, 3))
    module: Any = renorm.compile(source, threads=1)
    calls = [((1, 2, 2), (1, 1)), ((3, 0, 1), (2, 1.5)), ((1, 1, 1), (1.4, 4))]
    agrees(source, *({"a": np.array(a, np.float32), "s": np.array(s, np.float32)} for a, s in calls), module=module)
    (inner,) = (m for modules in module.parts.values() for m in modules if isinstance(m, GluedModule))
    assert [*inner.parts] == ["g.Loop_2.body.host0"]
    assert not inner.report.kernels
    with pytest.raises(InvalidInput, match=r"not compiled(.|\n)*the host runs 1 node,"):
        module.save(tmp_path / "m.renorm")


def test_another_process_runs_what_this_one_compiled() -> None:
    module, x = glued(behind()), floats(1, 3, 8, 8) / 4
    expected = module.run(x)
    child = os.fork()
    if not child:
        os._exit(0 if all(map(np.array_equal, module.run(x), expected)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_time_limit() -> None:
    module, x = slow()
    with pytest.raises(TimeLimit, match=r"0\.05"):
        module.run(x, timeout=0.05)


def test_a_run_is_cancelled() -> None:
    module, x = slow()
    raised = list[Exception]()

    def run() -> None:
        try:
            module.run(x)
        except RenormError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.1)
    module.cancel()
    thread.join(10)
    assert [type(e) for e in raised] == [Cancelled]


def test_open_inputs_and_a_batch() -> None:
    source = model(
        """g (float[N, 2, H, W] x) => (float[A, B, C, D] y, float[N, 4, H, W] f) <float[2] ones = {1, 1}> {
        f = Conv<pads = [1, 1, 1, 1]>(x, w) m = ReduceMax<axes = [0, 1, 2, 3], keepdims = 0>(x) a = Abs(m)
        s = Concat<axis = 0>(ones, b, b) k = Reshape(a, one) r = Max(s, k) q = Mul(r, mask) z = Add(q, rest)
        y = Resize<mode = "cubic">(f, , z) }""",
        w=floats(4, 2, 3, 3),
        b=np.array([1.3], np.float32),
        one=np.array([1]),
        mask=np.array([0, 0, 1, 1], np.float32),
        rest=np.array([1, 1, 0, 0], np.float32),
    )
    module = agrees(source, *({"x": floats(n, 2, h, w) / 2} for n, h, w in ((1, 5, 7), (3, 4, 9), (2, 5, 7))))
    assert "conv" in kernels(module)


def test_a_constant_of_a_computed_size_and_inputs_that_are_results() -> None:
    source = model(
        """g (float[3] x) => (float[A, B, C] y, float[3] same, float[3] a) {
        a = Abs(x) y = Resize<mode = "nearest">(image, , a) same = Identity(x) }""",
        image=floats(2, 3, 4),
    )
    agrees(source, *({"x": -np.array(x, np.float32)} for x in ([1, 2, 3], [1, 1, 1.6])))


def test_names_of_many_counts_are_few() -> None:
    cuts = "".join(f"n{k} = Slice(n, l{k}, l{k + 1}) s{k} = Slice(t, l0, l9, l0, n{k}) " for k in range(12))
    joined = ", ".join(f"s{k}" for k in range(12))
    source = model(
        f"""g (float[9] x) => (float[A] y) {{ t = Tanh(x) r = ReduceMax<axes = [0], keepdims = 1>(x)
        c = Ceil(r) i = Cast<to = 7>(c) n = Expand(i, l12) {cuts} y = Concat<axis = 0>({joined}) }}""",
        {f"l{k}": np.array([k]) for k in range(13)},
    )
    module = agrees(source, {"x": np.abs(floats(9)) + 1})
    host = next(d for d in module.report.diagnoses if "the host runs" in d)
    assert "and 5 more" in host
    assert len(module.obstacle) < 1500


HUGE = """g (float[2] x) => (float[A, B] y) <int64[1] first = {0}, int64[1] one = {1}> {
    a = Abs(x) n = Cast<to = 7>(a) z = ConstantOfShape(n) s = Slice(z, n, m) y = Neg(s) }"""


def test_no_more_is_computed_than_is_allowed() -> None:
    source = model(HUGE, m=np.array([-1, -1]))
    module = renorm.compile(source, threads=1, limits=Limits(bytes=1 << 24))
    agrees(source, {"x": np.array([7, 5], np.float32)}, module=module)
    with pytest.raises(LimitExceeded):
        module.run(np.array([20000, 60000], np.float32))


def test_data_for_which_there_is_no_result() -> None:
    source = model(
        """g (float[3, 4] x) => (float[A, B] y) <int64[1] first = {0}> {
        m = ReduceSum<keepdims = 0>(x) f = Floor(m) i = Cast<to = 7>(f) n = Unsqueeze(i, first)
        r = Reshape(x, sh) part = Slice(r, n, end) two = Shape(x) q = Concat<axis = 0>(n, n) y = Reshape(part, q) }""",
        end=np.array([-1]),
        sh=np.array([12]),
    )
    module = renorm.compile(source, threads=1)
    x = np.zeros((3, 4), np.float32)
    x[0, 0] = 3.5
    with pytest.raises(InvalidInput):
        module.run(x)
