"""Kernels for extents that come often, compiled in the background: calls give the same numbers before, meanwhile and
after, whatever happens to the thread that compiles."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.driver.test_open_networks import array, image, perceptron
from tests.stress._children import in_child

import renorm
from renorm import ops
from renorm.driver import background
from renorm.driver import compile as compiling
from renorm.driver.module import OpenModule
from renorm.errors import InvalidInput
from renorm.graph import interpret
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("kept_code")
CALLS = 3


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "OFTEN", CALLS)


def made(g: Graph, count: int, **options: Any) -> OpenModule:
    m = renorm.compile(g, specializations=count, **options)
    assert isinstance(m, OpenModule)
    return m


def rows(n: int) -> Array:
    return np.random.default_rng(n).normal(size=(n, 24)).astype(np.float32)


def check(m: OpenModule, g: Graph, x: Array) -> None:
    for ours, theirs in zip(m.run(x), interpret.run(g, [x]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_extents_that_come_often_get_kernels_of_their_own(threads: int) -> None:
    g = perceptron()
    m = made(g, 2, threads=threads)
    for n in (5, 9, 7):
        for _ in range(CALLS - 1):
            check(m, g, rows(n))
    assert {one.by for one in m.served} == {"open"}
    assert m.serving(rows(5)) is m  # which counts as a call: the first that is one too many
    assert m.wait_specialized(60)
    fixed = m.serving(rows(5))
    assert fixed.inputs[0].shape == (5, 24)
    check(m, g, rows(5))
    for _ in range(2 * CALLS):
        check(m, g, rows(9))
        check(m, g, rows(7))
    assert m.wait_specialized(60)
    for n in (5, 9, 7):
        check(m, g, rows(n))
    by = {one.extents["n"]: one.by for one in m.served}
    assert by == {5: "specialized", 9: "specialized", 7: "open"}  # no more than two
    out = [np.empty_like(y) for y in m.run(rows(9))]
    assert m.run(rows(9), out=out)[0] is out[0]


def test_nothing_is_compiled_unless_it_is_asked_for() -> None:
    m = made(perceptron(), 0)
    for _ in range(3 * CALLS):
        m.run(rows(4))
    assert m.serving(rows(4)) is m
    assert m.wait_specialized(0)
    with pytest.raises(InvalidInput, match="specializations is -1"):
        renorm.compile(perceptron(), specializations=-1)


def test_errors_in_the_background_break_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    g = perceptron()
    m = made(g, 2)

    def failing(*args: Any) -> Any:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(compiling, "specialize", failing)
    for _ in range(2 * CALLS):
        check(m, g, rows(6))
    assert m.wait_specialized(60)
    check(m, g, rows(6))
    (one,) = m.served
    assert (one.by, one.failure) == ("open", "ZeroDivisionError: a fault")


def test_where_there_is_no_thread_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_thread", none)
    g = perceptron()
    m = made(g, 1)
    for _ in range(2 * CALLS):
        check(m, g, rows(6))
    assert m.wait_specialized(1)
    assert m.served[0].failure == "can't start new thread"


def test_calls_from_several_threads_while_kernels_are_swapped() -> None:
    g = image()
    m, failed = made(g, 3, threads=2, precision="exact"), list[BaseException]()
    shapes = [(1, 3, 8, 8), (2, 3, 9, 17), (1, 3, 16, 5), (3, 3, 6, 6)]
    feeds = [np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate(shapes)]
    expected = [interpret.run(g, [x])[0] for x in feeds]

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not m.wait_specialized(0) or len(m.served) < 4 or min(s.calls for s in m.served) < 2 * CALLS:
                i = int(rng.integers(len(feeds)))
                np.testing.assert_allclose(m.run(feeds[i])[0], expected[i], rtol=2e-4, atol=2e-5)
        except BaseException as error:
            failed.append(error)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not failed
    for x, y in zip(feeds, expected):
        np.testing.assert_allclose(m.run(x)[0], y, rtol=2e-4, atol=2e-5)
    assert [one.by for one in m.served].count("specialized") == 3


TRAINED = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N, 3] x) => (float[N, 3] y, float[3] a, float[3] b)
    <float[3] s = {1, 1, 1}, float[3] z = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}>
    { y, a, b = BatchNormalization <training_mode = 1> (x, s, z, m, v) }"""


def test_state_is_one_for_open_and_specialised_kernels() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(TRAINED)
    m = renorm.compile(model, train_state=True, specializations=1)
    other = renorm.compile(model, train_state=True, shapes={"x": (4, 3)})
    x = array(4, 3)
    for _ in range(2 * CALLS):
        m.run(x)
        other.run(x)
        if isinstance(m, OpenModule):
            assert m.wait_specialized(60)
    for name, held in m.state.items():
        np.testing.assert_allclose(held, other.state[name], rtol=1e-5)


def test_copies_and_pickles_have_state_of_their_own() -> None:
    onnx = pytest.importorskip("onnx")
    m = renorm.compile(onnx.parser.parse_model(TRAINED), train_state=True, specializations=1)
    x, (copied, read) = array(4, 3), (copy.deepcopy(m), pickle.loads(pickle.dumps(m)))
    m.run(x)
    for other in (copied, read):
        assert all(not np.array_equal(other.state[n], held) for n, held in m.state.items())
        np.testing.assert_array_equal(other.run(x)[0], m.run(x)[0])
    for name, held in m.state.items():
        np.testing.assert_array_equal(read.state[name], copied.state[name])
        assert not np.array_equal(held, read.state[name])


def test_a_module_that_nobody_holds_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(graph: Graph, extents: Mapping[str, int], options: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        try:
            options.progress("schedule", 1, 2)
        finally:
            ended.set()

    m = made(perceptron(), 1)
    monkeypatch.setattr(compiling, "specialize", slow)
    for _ in range(2 * CALLS):
        m.run(rows(6))
    assert begun.wait(60)
    (thread,) = (t for t in threading.enumerate() if t.name == "renorm perceptron")
    assert not m.wait_specialized(0)
    del m
    gc.collect()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert ended.is_set()


def test_a_child_of_fork_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    given = compiling.specialize

    def slow(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return given(*args)

    g = perceptron()
    m = made(g, 1, threads=1)
    monkeypatch.setattr(compiling, "specialize", slow)
    for _ in range(CALLS):
        m.run(rows(6))
    assert begun.wait(60)

    def child() -> None:
        go_on.set()
        assert m.wait_specialized(0)
        for _ in range(2 * CALLS):
            check(m, g, rows(6))
        assert m.wait_specialized(60)
        check(m, g, rows(6))
        assert m.served[0].by == "specialized"

    in_child(child, 120)
    go_on.set()
    assert m.wait_specialized(60)
    check(m, g, rows(6))
    assert m.served[0].by == "specialized"


@pytest.mark.parametrize("end", ["pass", "raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_process_ends_while_kernels_are_compiled(end: str) -> None:
    script = f"""
import os, signal
import numpy as np
from tests.driver.test_open_networks import image
import renorm
from renorm.driver import background
background.OFTEN = 2
m = renorm.compile(image(), specializations=2, threads=1)
for _ in range(3):
    m.run(np.zeros((1, 3, 40, 40), np.float32))
assert m.served[0].by == "pending"
{end}
"""
    environment = os.environ | {"RENORM_CACHE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    if end == "pass":
        assert (found.returncode, found.stderr) == (0, "")
    else:
        assert found.returncode in (1, 130, -2)
        assert found.stderr.strip().endswith("KeyboardInterrupt")


def test_what_is_empty_and_what_is_refused_stay_so() -> None:
    g = Graph("joined")
    a, b = g.input("a", "float32", ("n", 3)), g.input("b", "float32", ("m", 3))
    g.outputs = [ops.concat([a, b], axis=0)]
    m = made(g, 4)
    x = array(2, 3)
    for _ in range(3 * CALLS):
        np.testing.assert_array_equal(m.run(x[:0], x)[0], x)
        with pytest.raises(InvalidInput):
            m.run(x[:, :2], x)
    assert m.wait_specialized(60)
    assert [one.by for one in m.served if 0 not in one.extents.values()] == []
