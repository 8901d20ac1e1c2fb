"""Targets with a code generator of their own: claimed groups run as external steps between native ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from dataclasses import replace
from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.driver.external_targets import Interpreted, conv_norm, conv_norm_relu, target
from tests.driver.random_networks import network
from tests.driver.test_random_networks import Oracle
from tests.passes.networks import networks

import renorm
from renorm import ops
from renorm.cli.inspect import command as inspect
from renorm.core.dims import Sym
from renorm.driver.compile import analyze
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.runtime.external import PROVIDED as LOADERS
from renorm.runtime.profile import profile
from renorm.targets import PROVIDED

FUSED = "fused_conv2d_batch_norm_relu"


def array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def conv(x: Any, channels: int, seed: int, kernel: int = 3, **attributes: Any) -> Any:
    pads = (kernel // 2,) * 4
    return ops.conv(x, array(seed, channels, x.shape[1], kernel, kernel) / 5, None, pads=pads, **attributes)


def norm(x: Any, seed: int) -> Any:
    c = x.shape[1]
    return ops.batch_norm(x, array(seed, c), array(seed + 1, c), array(seed + 2, c), np.abs(array(seed + 3, c)) + 0.5)


def residual(batch: Any = 2) -> Graph:
    """conv, norm, relu twice, a sum that the base computes, and a conv with a norm but no relu."""
    g = Graph("residual")
    x = g.input("x", "float32", (batch, 5, 9, 7))
    y = ops.relu(norm(conv(x, 16, 1), 2))
    z = ops.relu(norm(conv(y, 16, 3), 4))
    g.outputs = [norm(conv(ops.add(z, y), 20, 5, 1), 6)]
    return g


def agrees(m: Any, g: Graph, *inputs: np.ndarray, runs: int = 1) -> None:
    expected = interpret.run(g, inputs)
    for _ in range(runs):
        for ours, theirs in zip(m.run(*inputs), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max(initial=0)))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_claimed_runs_as_a_step_and_the_rest_on_the_base(level: int, threads: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(renorm.runtime.threads, "working", lambda n: n)
    g = residual()
    m = renorm.compile(g, target=target([conv_norm_relu]), opt_level=level, threads=threads)
    agrees(m, g, array(0, 2, 5, 9, 7), runs=3)
    names = [str(k) for k in m.report.kernels]
    assert names[:2] == [FUSED, f"{FUSED}_1"]
    assert [n.fate for n in m.report.norms[:2]] == ["unit", "unit"]
    assert [n.into for n in m.report.norms[:2]] == [(FUSED,), (f"{FUSED}_1",)]
    assert m.report.norms[2].fate == ("folded" if level >= 2 else "unpacked")
    assert isinstance(m, renorm.Module)
    times = profile(m, array(0, 2, 5, 9, 7), repeats=15)
    assert [t.kernel for t in times] == names
    assert all(t.seconds > 0 for t in times[:2])


def test_its_text_is_the_generators() -> None:
    m = renorm.compile(residual(), target=target([conv_norm_relu]))
    assert "batch_norm(" in m.kernel(FUSED).source
    with pytest.raises(renorm.errors.InvalidInput, match="has no loops"):
        _ = m.kernel(FUSED).loops
    assert "for " in m.kernel("conv2d").loops


def test_the_group_is_a_graph_of_its_own() -> None:
    seen: list[Graph] = []

    def codegen(group: Graph) -> Interpreted:
        seen.append(group)
        return Interpreted(group)

    renorm.compile(residual(), target=target([conv_norm_relu], codegen))
    first = seen[0]
    assert [n.op.name for n in first.nodes] == ["conv", "batch_norm", "relu"]
    assert [v.name for v in first.inputs] == ["x"]
    assert len(first.constants) == 5
    assert first.outputs[0].type == first.nodes[-1].output.type
    assert first.inputs[0].graph is first


def test_larger_patterns_win_in_whatever_order_they_are_declared() -> None:
    def conv_only(x: Any, w: Any, b: Any) -> Any:
        return ops.conv(x, w, b)

    def sum_left(x: Any, y: Any, z: Any) -> Any:
        return ops.add(ops.add(x, y), z)

    def sum_right(x: Any, y: Any, z: Any) -> Any:
        return ops.add(x, ops.add(y, z))

    g = residual()
    y = conv(g.inputs[0], 20, 7, 1)
    g.outputs.append(ops.add(ops.add(y, y), ops.add(y, g.outputs[0])))
    found = set()
    patterns = [conv_norm, "batch_norm", conv_norm_relu, conv_only, sum_left, sum_right]
    for order in list(permutations(patterns))[::61]:
        m = analyze(g, target=target(list(order)))[1]
        found.add(tuple((str(k), k.nodes) for k in m.kernels))
    assert len(found) == 1
    names = [name for name, _ in found.pop()]
    assert names[:2] == [FUSED, f"{FUSED}_1"]
    assert "fused_conv2d_batch_norm" in names


@pytest.mark.parametrize("kept", [("batch_norm",), ("batch_norm_1",), ("relu", "conv_2")])
def test_keep_holds_beside_what_is_claimed(kept: tuple[str, ...]) -> None:
    g = residual()
    m = renorm.compile(g, target=target([conv_norm_relu]), keep=kept)
    agrees(m, g, array(0, 2, 5, 9, 7))
    assert [str(k) for k in m.report.kernels][:2] == [FUSED, f"{FUSED}_1"]
    fates = [n.fate for n in m.report.norms]
    assert fates == ["unit", "unit", "unit" if "batch_norm" in kept else "fused" if "conv_2" in kept else "folded"]


def test_a_unit_by_name_is_asked_for_alone() -> None:
    g = residual()
    m = renorm.compile(g, target=target(["batch_norm", "add"]))
    agrees(m, g, array(0, 2, 5, 9, 7))
    names = [str(k) for k in m.report.kernels]
    assert names.count("add") == 1
    assert sum(n.startswith("batch_norm") for n in names) == 3
    assert "batch_norm(" in m.kernel("batch_norm").source


def test_a_refusal_leaves_the_group_to_smaller_patterns_and_then_to_the_base() -> None:
    def codegen(group: Graph) -> Interpreted | str:
        narrow = group.inputs[0].shape[1] == 5
        return f"{group.inputs[0].shape[1]} channels: 5 is all I take" if not narrow else Interpreted(group)

    def picky(group: Graph) -> Interpreted | str:
        return "I have no relu" if group.nodes[-1].op.name == "relu" else Interpreted(group)

    g, x = residual(), array(0, 2, 5, 9, 7)
    m = renorm.compile(g, target=target([conv_norm_relu, "batch_norm"], codegen))
    agrees(m, g, x)
    assert [n.fate for n in m.report.norms] == ["unit", "folded", "folded"]
    assert ("target my_npu", "relu_1", "16 channels: 5 is all I take") in m.report.refusals
    assert ("target my_npu", "batch_norm_2", "20 channels: 5 is all I take") in m.report.refusals

    m = renorm.compile(g, target=target([conv_norm_relu, conv_norm], picky))
    agrees(m, g, x)
    names = [str(k) for k in m.report.kernels]
    assert sum(n.startswith("fused_conv2d_batch_norm") for n in names) == 3
    assert not any("batch_norm_relu" in n for n in names)
    assert ("target my_npu", "relu", "I have no relu") in m.report.refusals


def test_an_error_in_codegen_names_node_op_types_file_and_line() -> None:
    def broken(group: Graph) -> Interpreted:
        raise KeyError("no such engine")

    with pytest.raises(renorm.errors.UserCodeError) as caught:
        renorm.compile(residual(), target=target([conv_norm_relu], broken))
    text = str(caught.value)
    assert "node 'relu'" in text
    assert "conv + batch_norm + relu" in text
    assert "no such engine" in text
    assert "f32[2, 5, 9, 7]" in text
    assert f"{Path(__file__).name}:{broken.__code__.co_firstlineno + 1} in broken" in text
    with pytest.raises(renorm.errors.UserCodeError, match="gave int"):
        renorm.compile(residual(), target=target([conv_norm_relu], lambda group: 3))  # pyright: ignore[reportArgumentType]


class Failing(Interpreted):
    is_broken = False

    def run(self, inputs: Any, outputs: Any) -> None:
        if self.is_broken:
            raise ZeroDivisionError("the engine is on fire")
        super().run(inputs, outputs)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_at_run_time_comes_out_of_run_and_leaves_the_module_sound(threads: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(renorm.runtime.threads, "working", lambda n: n)
    made: list[Failing] = []

    def codegen(group: Graph) -> Failing:
        made.append(Failing(group))
        return made[-1]

    g, x = residual(), array(0, 2, 5, 9, 7)
    m = renorm.compile(g, target=target([conv_norm_relu], codegen), threads=threads)
    made[0].is_broken = True
    with pytest.raises(renorm.errors.UserCodeError) as caught:
        m.run(x)
    assert f"kernel {FUSED}: external code failed: ZeroDivisionError: the engine is on fire" in str(caught.value)
    assert "x f32[2, 5, 9, 7]" in str(caught.value)
    assert f"{Path(__file__).name}:" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert made[1].calls == 0  # nothing is called on what was not computed
    made[0].is_broken = False
    agrees(m, g, x, runs=2)


def test_a_finalizer_that_runs_a_network_takes_no_error_of_another() -> None:
    other = renorm.compile(residual(), target=target([conv_norm_relu]), threads=1)
    x, found = array(0, 2, 5, 9, 7), list[np.ndarray]()

    class Ending:
        def __del__(self) -> None:
            found.extend(other.run(x))

    class Dropping(Interpreted):
        def run(self, inputs: Any, outputs: Any) -> None:
            ending = Ending()
            raise ValueError(f"no {ending}")

    m = renorm.compile(residual(), target=target([conv_norm_relu], Dropping), threads=1)
    with pytest.raises(renorm.errors.UserCodeError, match="ValueError: no"):
        m.run(x)
    np.testing.assert_array_equal(found[0], other.run(x)[0])


def test_an_error_holds_no_memory_of_the_network() -> None:
    class Wrapping(Interpreted):
        def run(self, inputs: Any, outputs: Any) -> None:
            try:
                self.deeper(inputs, outputs)
            except ZeroDivisionError as error:
                raise ValueError("no") from error

        def deeper(self, inputs: Any, outputs: Any) -> None:
            outputs[0][...] = 1 / 0

    m = renorm.compile(residual(), target=target([conv_norm_relu], Wrapping), threads=1)
    with pytest.raises(renorm.errors.UserCodeError, match="ValueError: no") as caught:
        m.run(array(0, 2, 5, 9, 7))
    error, names = caught.value.__cause__, list[str]()
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            names.append(frame.f_code.co_name)
            assert not {"inputs", "outputs", "arrays", "x", "y"} & set(frame.f_locals)
        error = error.__cause__
    assert names == ["_call", "_compute", "call", "run", "run", "deeper"]


def test_a_child_of_fork_does_not_wait_for_a_thread_that_is_inside() -> None:
    program = """
import os, threading, warnings
import numpy as np
import renorm
from tests.driver.external_targets import Interpreted, target
from renorm import ops
from renorm.graph.ir import Graph

warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads is what this is about
inside, leave = threading.Event(), threading.Event()
parent = os.getpid()

class Slow(Interpreted):
    def run(self, inputs, outputs):
        super().run(inputs, outputs)
        if os.getpid() == parent:
            inside.set()
            leave.wait(60)

g = Graph("slow")
g.outputs = [ops.exp(g.input("x", "float32", (3,)))]
m = renorm.compile(g, target=target(["exp"], Slow), threads=1)
x = np.float32([0, 1, 2])
t = threading.Thread(target=m.run, args=(x,))
t.start()
inside.wait(60)
child = os.fork()
if not child:
    os._exit(0 if np.allclose(m.run(x)[0], np.exp(x)) else 1)
assert os.waitpid(child, 0)[1] == 0
leave.set()
t.join()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


def test_an_interrupt_inside_comes_out_as_it_is() -> None:
    class Interrupted(Interpreted):
        def run(self, inputs: Any, outputs: Any) -> None:
            raise KeyboardInterrupt

    m = renorm.compile(residual(), target=target([conv_norm_relu], Interrupted))
    with pytest.raises(KeyboardInterrupt):
        m.run(array(0, 2, 5, 9, 7))


def test_external_code_may_run_a_network_itself(monkeypatch: Any) -> None:
    monkeypatch.setattr(renorm.runtime.threads, "working", lambda n: n)
    monkeypatch.setattr(renorm.runtime.module, "WORTH_SHARING", 0)

    class Nested(Interpreted):
        def __init__(self, graph: Graph):
            super().__init__(graph)
            self.module = renorm.compile(graph, threads=2)

        def run(self, inputs: Any, outputs: Any) -> None:
            self.module.run(*inputs, out=list(outputs))

    g = residual(6)
    m = renorm.compile(g, target=target([conv_norm_relu], Nested), threads=2)
    agrees(m, g, array(0, 6, 5, 9, 7), runs=5)


@pytest.mark.parametrize("threads", [(1, 1), (2, 3), (1, 2)])
def test_networks_whose_external_codes_run_each_other_do_not_wait_for_ever(threads: tuple[int, int]) -> None:
    meeting, depth, modules, wrong = threading.Barrier(2, timeout=20), threading.local(), list[Any](), list[str]()

    class Crossing(Interpreted):
        place, busy = 0, False

        def run(self, inputs: Any, outputs: Any) -> None:
            depth.now = getattr(depth, "now", 0) + 1
            if depth.now == 1:
                meeting.wait()  # each thread is in one of them now
                (found,) = modules[1 - self.place].run(*inputs)
                if not np.allclose(found, (np.exp, np.tanh)[1 - self.place](inputs[0]) + inputs[0], atol=1e-5):
                    wrong.append(f"{found} inside")
            if self.busy:
                wrong.append("two threads at once")
            self.busy = True
            super().run(inputs, outputs)
            self.busy = False
            depth.now -= 1

    for place, (op, count) in enumerate(zip((ops.exp, ops.tanh), threads)):
        g = Graph(op.__name__)
        x = g.input("x", "float32", (64, 40))
        g.outputs = [ops.add(op(x), x)]
        modules.append(renorm.compile(g, target=target(["exp", "tanh"], Crossing), threads=count))
        modules[-1]._entries[0]._code.place = place

    def work(place: int) -> None:
        for seed in range(20):
            x = array(seed, 64, 40)
            meeting.wait()
            (found,) = modules[place].run(x)
            if not np.allclose(found, (np.exp, np.tanh)[place](x) + x, atol=1e-5):
                wrong.append("outside")

    workers = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(30)
    assert not any(w.is_alive() for w in workers)
    assert wrong == []


def test_several_python_threads_call_one_module() -> None:
    g = residual()
    m = renorm.compile(g, target=target([conv_norm_relu]), threads=1)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            agrees(m, g, array(seed, 2, 5, 9, 7), runs=5)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not errors


def branches(batch: int) -> Graph:
    """Everything that could make memory of external code strided, shared or written over."""
    g = Graph("branches")
    x = g.input("x", "float32", (batch, 8, 12, 16))
    a = ops.relu(norm(conv(x, 16, 1), 2))
    b = ops.relu(norm(conv(x, 24, 3), 4))
    joined = ops.concat([a, ops.sigmoid(b), a], axis=1)  # parts that external code wrote
    halves = ops.split(joined, num_outputs=2, axis=1)
    c = ops.relu(norm(conv(halves[0], 16, 5), 6))  # reads a part of what was joined
    d = ops.relu(norm(conv(ops.slice(x, [2], [7], [1]), 16, 7), 8))
    e = ops.tanh(ops.add(c, d))  # may be written over an operand
    flat = ops.reshape(ops.relu(norm(conv(e, 4, 9), 10)), [batch, -1])
    g.outputs = [flat, c, ops.concat([c, d, halves[1]], axis=1)]
    return g


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("level", [0, 2, 3])
def test_memory_of_external_code_is_dense_and_its_own(batch: int, level: int) -> None:
    g = branches(batch)
    m = renorm.compile(g, target=target([conv_norm_relu]), opt_level=level)
    agrees(m, g, array(0, batch, 8, 12, 16), runs=2)
    assert sum(str(k).startswith(FUSED) for k in m.report.kernels) == 5


def test_a_network_that_is_external_throughout(tmp_path: Path) -> None:
    g = Graph("whole")
    x = g.input("x", "float32", (2, 3, 5, 5))
    g.outputs = [ops.relu(norm(conv(x, 4, 1), 2))]
    m = renorm.compile(g, target=target([conv_norm_relu]))
    agrees(m, g, array(0, 2, 3, 5, 5))
    y = np.empty((2, 4, 5, 5), np.float32)
    m.run(array(0, 2, 3, 5, 5), out=[y])
    np.testing.assert_array_equal(y, m.run(array(0, 2, 3, 5, 5))[0])
    m.save(tmp_path / "m.renorm")
    np.testing.assert_array_equal(renorm.load(tmp_path / "m.renorm").run(array(0, 2, 3, 5, 5))[0], y)


def test_symbolic_extents_ask_the_generator_for_each_shape() -> None:
    g = residual(Sym("N"))
    m = renorm.compile(g, target=target([conv_norm_relu]))
    assert [n.fate for n in m.report.norms] == ["unit", "unit", "folded"]
    for n in (1, 3):
        agrees(m, residual(n), array(n, n, 5, 9, 7))


def test_a_base_may_be_another_machine(tmp_path: Path) -> None:
    where = renorm.Target(
        "board", base="llvm -mtriple=aarch64-linux-gnu", supports=[conv_norm_relu], codegen=Interpreted
    )
    m = renorm.compile(residual(), target=where)
    m.save(tmp_path / "m.renorm")
    assert [k.target for k in m.report.kernels] == ["board", "board", "", ""]
    assert isinstance(m, renorm.Module)
    if m.program.machine.arch != os.uname().machine:
        with pytest.raises(renorm.errors.InvalidTarget, match="another machine"):
            m.run(array(0, 2, 5, 9, 7))


def test_an_op_that_does_not_exist_is_no_unit() -> None:
    with pytest.raises(renorm.errors.UnsupportedOp, match="batch_norm"):
        renorm.compile(residual(), target=target(["batchnorm"]))


@pytest.mark.parametrize("level", [0, 3])
def test_rewrites_are_verified_around_what_is_claimed(level: int) -> None:
    g = residual()
    m = renorm.compile(g, target=target([conv_norm_relu]), opt_level=level, verify=True)
    agrees(m, g, array(0, 2, 5, 9, 7))
    assert [k.target for k in m.report.kernels][:2] == ["my_npu", "my_npu"]
    assert not [r for r in m.report.refusals if "reverted" in r[2]]


# --- artifacts --------------------------------------------------------------------------------------------------------

ENGINE = """
import numpy as np
import renorm

class Scaling(renorm.ExternalCode):
    loader = "engine"
    def __init__(self, factor):
        self.factor = factor
    def run(self, inputs, outputs):
        outputs[0][...] = inputs[0] * self.factor
    def save(self):
        return self.factor.tobytes()

def load(data):
    return Scaling(np.frombuffer(data, np.float32))

def codegen(group):
    (factor,) = group.constants.values()
    return Scaling(factor.data.reshape(-1))
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: Any) -> Any:
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "engine-1.dist-info").mkdir()  # as installing a package writes it
    (tmp_path / "engine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 1\n")
    points = ("engine = engine:load", "gone = nowhere.engine:load", "lacks = engine:open", "codegen = engine:codegen")
    text = "\n".join(["[renorm.external]", *points, "bytes = os:fsencode"])
    (tmp_path / "engine-1.dist-info" / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("engine")
    del sys.modules["engine"]


def test_an_artifact_needs_the_loader_and_no_compiler(engine: Any, tmp_path: Path) -> None:
    g = Graph("scaled")
    x = g.input("x", "float32", (4, 6))
    g.outputs = [ops.exp(ops.mul(ops.sigmoid(x), np.array([1.5], np.float32)))]
    m = renorm.compile(g, target=target(["mul"], engine.codegen))
    path = tmp_path / "m.renorm"
    m.save(path)
    a = array(0, 4, 6)
    np.save(tmp_path / "x.npy", a)
    script = f"""
import sys
import numpy as np
import renorm
m = renorm.load({str(path)!r})
np.save({str(tmp_path / "y.npy")!r}, m.run(np.load({str(tmp_path / "x.npy")!r}))[0])
m.save({str(tmp_path / "again.renorm")!r})
assert not {{"llvmlite", "onnx", "renorm.graph", "renorm.driver"}} & set(sys.modules), sorted(sys.modules)
"""
    source = str(Path(renorm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(tmp_path)])}
    subprocess.run([sys.executable, "-W", "error", "-c", script], env=environment, check=True, timeout=60)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), m.run(a)[0])
    assert (tmp_path / "again.renorm").read_bytes() == path.read_bytes()


def test_what_cannot_be_saved_or_loaded_says_so(engine: Any, tmp_path: Path, monkeypatch: Any) -> None:
    g = Graph("scaled")
    g.outputs = [ops.mul(g.input("x", "float32", (4, 6)), np.array([1.5], np.float32))]
    m = renorm.compile(g, target=target(["mul"], engine.codegen))
    path = tmp_path / "m.renorm"
    m.save(path)
    for loader, words in [
        ("gone", "No module named 'nowhere'"),
        ("lacks", "has no attribute 'open'"),
        ("engine:load", "no loader is known as 'engine:load'"),
        ("os:system", "register it: renorm.register_loader('os:system', ...)"),
        ("codegen", "loader 'codegen' failed"),
        ("bytes", "loader 'bytes' gave bytes"),
    ]:
        monkeypatch.setattr(engine.Scaling, "loader", loader)
        renorm.compile(g, target=target(["mul"], engine.codegen)).save(path)
        with pytest.raises(renorm.errors.InvalidArtifact, match="code of another package") as caught:
            renorm.load(path)
        assert words in str(caught.value)
    monkeypatch.setattr(engine.Scaling, "loader", "")
    with pytest.raises(renorm.errors.InvalidArtifact, match="names no loader"):
        renorm.compile(g, target=target(["mul"], engine.codegen)).save(path)
    monkeypatch.setattr(engine.Scaling, "loader", "engine")
    monkeypatch.setattr(engine.Scaling, "save", lambda self: 1 / 0)
    with pytest.raises(renorm.errors.InvalidArtifact, match="ZeroDivisionError"):
        renorm.compile(g, target=target(["mul"], engine.codegen)).save(path)
    for wrong, words in [(4, "save gave int, expected bytes"), ([1, 2], "save gave list"), (None, "gave NoneType")]:
        monkeypatch.setattr(engine.Scaling, "save", lambda self, wrong=wrong: wrong)
        with pytest.raises(renorm.errors.InvalidArtifact, match=words):
            renorm.compile(g, target=target(["mul"], engine.codegen)).save(path)


def test_a_file_does_not_choose_what_is_imported(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "chosen.py").write_text("import os\nos.environ['CHOSEN'] = 'yes'\n")
    m = renorm.compile(residual(), target=target([conv_norm_relu]))
    assert isinstance(m, renorm.Module)
    path = tmp_path / "m.renorm"
    loaders = ["os:system", "chosen:load", "builtins:eval", "chosen", ""]
    for loader in loaders:
        m.program = replace(m.program, externals=tuple(replace(e, loader=loader) for e in m.program.externals))
        m.save(path)
        with pytest.raises(renorm.errors.InvalidArtifact, match="no loader is known as"):
            renorm.load(path)
        inspect([str(path), "--json"], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["report"]["kernels"]
    assert "CHOSEN" not in os.environ
    assert "chosen" not in sys.modules


def test_the_targets_that_come_with_renorm_have_a_loader() -> None:
    for name in PROVIDED:
        module, _, function = LOADERS[name].partition(":")
        assert getattr(import_module(module), function)


def test_a_program_whose_external_code_reaches_outside_is_refused() -> None:
    m = renorm.compile(residual(), target=target([conv_norm_relu]))
    assert isinstance(m, renorm.Module)
    program = m.program
    first, *others = program.externals
    wide = replace(first.outputs[0], shape=(1 << 20,))
    for wrong, words in [
        (replace(first, outputs=(wide,)), "reaches outside"),
        (replace(first, inputs=(wide,)), "reaches outside"),
        (replace(first, inputs=()), "2 arguments, external code takes 1"),
    ]:
        broken = replace(program, externals=(wrong, *others))
        with pytest.raises(renorm.errors.InvalidArtifact, match=words):
            broken.verify(99, program.weight_bytes, 2)
    with pytest.raises(renorm.errors.InvalidArtifact, match="external codes"):
        program.verify(99, program.weight_bytes, 1)


# --- random networks --------------------------------------------------------------------------------------------------

NAMED = ("conv", "batch_norm", "relu", "add", "mul", "concat", "transpose", "softmax", "gemm", "slice", "reshape")


@pytest.mark.parametrize("seed", [400, 401, *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(402, 420))])
def test_random_files_whose_ops_are_claimed_here_and_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = network(seed)
    oracle = Oracle.of(n)
    names = [str(s) for s in rng.choice(NAMED, 4, replace=False)]
    where = target([*names, conv_norm_relu, conv_norm])
    shapes = {name: a.shape for name, a in n.feeds.items()}
    for level in (int(rng.integers(0, 3)), 3):
        m = renorm.compile(n.model, target=where, opt_level=level, shapes=shapes, threads=2)
        assert not oracle.differs(m.run(**n.feeds))


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.sets(st.sampled_from(NAMED), min_size=1), st.sampled_from([0, 1, 2, 3]))
def test_random_graphs_whose_ops_are_claimed(drawn: Any, names: set[str], level: int) -> None:
    g, inputs = drawn
    m = renorm.compile(g, target=target([*sorted(names), conv_norm_relu, conv_norm]), opt_level=level)
    for ours, theirs in zip(m.run(*inputs), interpret.run(g, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * max(1.0, np.abs(theirs).max(initial=0)))
