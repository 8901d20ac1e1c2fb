"""External code in networks on a GPU: it runs on the host, between launches, on what these wrote."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.driver.external_targets import Interpreted, conv_norm, conv_norm_relu
from tests.driver.random_networks import network
from tests.driver.test_external import NAMED, agrees, array, branches, residual
from tests.driver.test_random_networks import Oracle
from tests.gpu import host_device
from tests.gpu.fake_driver import CUBIN, FakeDriver, floats
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import HostDevice
from tests.gpu.test_networks import in_training

import renorm
from renorm import ops
from renorm.core import locks
from renorm.core.dims import Sym
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InvalidArtifact, InvalidTarget, ReentrancyError, UserCodeError
from renorm.driver.module import CompiledGpuModule, CompiledModule
from renorm.graph.ir import Graph
from renorm.runtime.external import Caller
from renorm.runtime.gpu import api, driver
from renorm.runtime.gpu.arrays import DeviceArray
from renorm.runtime.gpu.loaded import Loaded
from renorm.runtime.launches import Launch
from renorm.runtime.program import Argument, Code, External, Machine, Program, Step, TensorSpec
from renorm.targets import find

GPU = "cuda -arch=host"
FUSED = "fused_conv2d_batch_norm_relu"

Codegen = Callable[[Graph], renorm.ExternalCode | str]


@pytest.fixture(autouse=True)
def host() -> Any:
    host_device.register()
    return host_device.host()


def target(supports: list[Any], codegen: Codegen = Interpreted) -> renorm.Target:
    return renorm.Target("my_npu", base=GPU, supports=supports, codegen=codegen)


def compiled(g: Graph, supports: list[Any], codegen: Codegen = Interpreted, **options: Any) -> CompiledGpuModule:
    m = renorm.compile(g, target=target(supports, codegen), **options)
    assert isinstance(m, CompiledGpuModule)
    return m


def x(seed: int = 0, batch: int = 2) -> np.ndarray:
    return array(seed, batch, 5, 9, 7)


class Failing(Interpreted):
    """What it raises, as long as it is given something to raise."""

    error: BaseException | None = None

    def run(self, inputs: Any, outputs: Any) -> None:
        if self.error is not None:
            raise self.error
        super().run(inputs, outputs)


# --- targets ----------------------------------------------------------------------------------------------------------


def test_a_target_is_put_on_another_machine() -> None:
    there = find("tandem, cuda -arch=sm_75")
    assert there.kind == "tandem"
    assert there.supports == find("tandem").supports
    assert str(there.machine_target) == "cuda -arch=sm_75"
    assert find("tandem,cuda -arch=sm_75") == there
    assert find("tandem").base == "llvm"
    assert str(find(renorm.Target("mine", base="cuda")).machine_target).startswith("cuda -arch=sm_")
    assert find("tandem, llvm -mcpu=haswell").has == find("llvm -mcpu=haswell").has
    assert find("llvm -mattr=+avx2,+fma").features == ("+avx2", "+fma")
    for text, words in [
        ("llvm, cuda", "llvm runs whole networks"),
        ("cuda, tandem", "cuda runs whole networks"),
        ("onednn, tandem", "must be a machine"),
        ("onednn,", "must be a machine"),
        ("onednn, tandem, cuda", "must be a machine"),
        ("tandm, cuda", "tandem"),
        ("tandem, cuda -arc=1", "cannot read '-arc=1'"),
    ]:
        with pytest.raises(InvalidTarget, match=words):
            find(text)


@needs_compiler
@pytest.mark.parametrize("name", ["tandem", "onednn"])
def test_the_targets_that_come_with_renorm(name: str, tmp_path: Path) -> None:
    try:
        m = renorm.compile(residual(), target=f"{name}, {GPU}")
    except InvalidTarget as missing:
        pytest.skip(missing.headline)
    cpu = renorm.compile(residual(), target=name)
    assert [k.target for k in m.report.kernels] == [k.target for k in cpu.report.kernels]
    np.testing.assert_allclose(m.run(x())[0], cpu.run(x())[0], rtol=0, atol=1e-4 * np.abs(cpu.run(x())[0]).max())
    m.save(tmp_path / "m.renorm")
    np.testing.assert_array_equal(renorm.load(tmp_path / "m.renorm").run(x())[0], m.run(x())[0])


# --- runs -------------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_what_is_claimed_runs_on_the_host_and_the_rest_on_the_gpu(level: int) -> None:
    g, made = residual(), list[Interpreted]()

    def codegen(group: Graph) -> Interpreted:
        made.append(Interpreted(group))
        return made[-1]

    m = compiled(g, [conv_norm_relu], codegen, opt_level=level)
    for seed in range(3):
        agrees(m, g, x(seed))
    assert [k.name for k in m.report.kernels][:2] == [FUSED, f"{FUSED}_1"]
    assert [c.calls for c in made] == [3, 3]
    assert [n.fate for n in m.report.norms] == ["unit", "unit", "folded" if level >= 2 else "unpacked"]
    assert "batch_norm(" in m.kernel(FUSED).source
    assert "__global__" in m.kernel(m.report.kernels[-1].name).source


@needs_compiler
def test_kept_norms_stay_whole_beside_what_is_claimed() -> None:
    g = residual()
    m = compiled(g, [conv_norm_relu], keep=["batch_norm"])
    assert [k.target for k in m.report.kernels if "batch_norm" in k.name] == ["my_npu", "my_npu", ""]
    assert [n.fate for n in m.report.norms] == ["unit", "unit", "unit"]
    agrees(m, g, x())


@needs_compiler
@pytest.mark.parametrize("batch", [1, 3])
def test_operands_are_dense_and_their_own(batch: int) -> None:
    g = branches(batch)
    m = compiled(g, [conv_norm_relu])
    agrees(m, g, array(0, batch, 8, 12, 16), runs=2)
    assert sum(k.name.startswith(FUSED) for k in m.report.kernels) == 5


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("extent", [0, 1, 7])
def test_dtypes_and_sizes(dtype: str, extent: int) -> None:
    g = Graph("dtypes")
    a = g.input("a", dtype, (extent, 3))
    whole = ops.cast(a, to="float32")
    g.outputs = [
        ops.cast(ops.add(ops.where(ops.cast(a, to="bool"), whole, np.full((1, 1), -1, np.float32)), whole), to="int32")
    ]
    m = compiled(g, ["where", "cast"])
    assert {k.target for k in m.report.kernels} == {"my_npu", ""}
    given = np.random.default_rng(extent).integers(0, 3, (extent, 3)).astype(numpy_dtype(dtype))
    expected = np.where(given.astype(bool), given.astype(np.float32), -1) + given.astype(np.float32)
    np.testing.assert_array_equal(m.run(given)[0], expected.astype(np.int32))


@needs_compiler
def test_arrays_on_the_gpu(host: HostDevice) -> None:
    g = residual()
    m = compiled(g, [conv_norm_relu])
    expected = m.run(x())[0]
    for stream in (None, 0, 7):
        given = DeviceArray(m.inputs[0], 0, host, 0)
        host.write(given.address, x(), 0)
        (y,) = m.run(given, stream=stream)
        assert isinstance(y, DeviceArray)
        np.testing.assert_array_equal(y.numpy(), expected)
        out = DeviceArray(m.outputs[0], 0, host, 0)
        assert m.run(given, out=[out], stream=stream)[0] is out
        np.testing.assert_array_equal(out.numpy(), expected)
        np.testing.assert_array_equal(given.numpy(), x())


@needs_compiler
def test_a_network_that_is_external_throughout(tmp_path: Path) -> None:
    g = Graph("whole")
    g.outputs = [ops.exp(g.input("a", "float32", (3, 5)))]
    m = compiled(g, ["exp"])
    assert [k.target for k in m.report.kernels] == ["my_npu"]
    a = array(0, 3, 5)
    np.testing.assert_allclose(m.run(a)[0], np.exp(a), rtol=1e-6)
    m.save(tmp_path / "m.renorm")
    np.testing.assert_array_equal(renorm.load(tmp_path / "m.renorm").run(a)[0], m.run(a)[0])


@needs_compiler
@pytest.mark.parametrize("is_verified", [False, True])
def test_symbolic_extents_ask_the_generator_for_each_shape(is_verified: bool) -> None:
    m = renorm.compile(residual(Sym("N")), target=target([conv_norm_relu]), verify=is_verified)
    for n in (1, 3):
        agrees(m, residual(n), x(n, n))


def in_training_behind_exp() -> Any:
    """A batch norm in training mode, of exp(x)."""
    model = in_training(np.random.default_rng(0))
    model.graph.node[0].input[0] = "z"
    model.graph.node.insert(0, onnx.helper.make_node("Exp", ["x"], ["z"]))
    return model


def _compiled(model: Any, **options: Any) -> CompiledModule:
    m = renorm.compile(model, **options)
    assert isinstance(m, CompiledModule)
    return m


@needs_compiler
def test_running_statistics_are_state() -> None:
    model, a = in_training_behind_exp(), array(0, 4, 3, 5, 6)
    ours, theirs = (_compiled(model, target=t, train_state=True) for t in (target(["exp"]), "llvm"))
    assert [k.target for k in ours.report.kernels].count("my_npu") == 1
    for i in range(3):
        for one, other in zip(ours.run(a + i), theirs.run(a + i), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        for name in theirs.state:
            np.testing.assert_allclose(ours.state[name], theirs.state[name], rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("level", [0, 3])
def test_it_is_verified_around_what_is_claimed(level: int) -> None:
    g = residual()
    m = compiled(g, [conv_norm_relu], opt_level=level, verify=True)
    agrees(m, g, x())
    assert m.report.verified is not None
    assert [said.split(" (")[0] for said in m.report.verified.unchecked] == [
        f"external code of kernel '{FUSED}'", f"external code of kernel '{FUSED}_1'",
    ]  # fmt: skip
    assert not [r for r in m.report.refusals if "reverted" in r[2]]


@needs_compiler
def test_several_python_threads_call_one_module() -> None:
    g, errors = residual(), list[BaseException]()
    m = compiled(g, [conv_norm_relu])

    def work(seed: int) -> None:
        try:
            agrees(m, g, x(seed), runs=4)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not errors


@needs_compiler
@pytest.mark.parametrize("seed", [400, 402, 405, 411])
def test_random_files_whose_ops_are_claimed_here_and_there(seed: int) -> None:
    n, rng = network(seed), np.random.default_rng(seed)
    names = [str(s) for s in rng.choice(NAMED, 4, replace=False)]
    shapes = {name: a.shape for name, a in n.feeds.items()}
    m = renorm.compile(n.model, target=target([*names, conv_norm_relu, conv_norm]), shapes=shapes)
    assert not (wrong := Oracle.of(n).differs(m.run(**n.feeds))), wrong


# --- errors, and who calls whom ---------------------------------------------------------------------------------------


@needs_compiler
def test_an_error_ends_the_run_and_leaves_the_module_sound(host: HostDevice) -> None:
    made = list[Failing]()

    def codegen(group: Graph) -> Failing:
        made.append(Failing(group))
        return made[-1]

    g = residual()
    m = compiled(g, [conv_norm_relu], codegen)
    agrees(m, g, x())
    gc.collect()
    live = host.live
    for place, error in [(0, ZeroDivisionError("on fire")), (1, ZeroDivisionError("on fire"))]:
        made[place].error, launches, calls = error, host.launches, made[1].calls
        with pytest.raises(UserCodeError) as caught:
            m.run(x(1))
        failed = FUSED + "_1" * place
        assert f"kernel {failed}: external code failed: ZeroDivisionError: on fire" in str(caught.value)
        assert f"{Path(__file__).name}:" in str(caught.value)
        assert caught.value.__cause__ is error
        assert (host.launches, made[1].calls) == (launches, calls)  # what is behind it has not begun
        made[place].error = None
        agrees(m, g, x(2), runs=2)
    made[1].error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        m.run(x())
    made[1].error = None
    agrees(m, g, x(3))
    del caught, error
    gc.collect()
    assert host.live == live


@needs_compiler
def test_a_failed_run_leaves_state_as_it_was() -> None:
    made = list[Failing]()

    def codegen(group: Graph) -> Failing:
        made.append(Failing(group))
        return made[-1]

    m = _compiled(in_training_behind_exp(), target=target(["exp"], codegen), train_state=True)
    a = array(1, 4, 3, 5, 6)
    m.run(a)
    before = {name: np.array(m.state[name]) for name in m.state}
    for code in made:
        code.error = ValueError("no")
    with pytest.raises(UserCodeError):
        m.run(a + 1)
    for name, values in before.items():
        np.testing.assert_array_equal(m.state[name], values)


@needs_compiler
def test_external_code_may_run_other_modules() -> None:
    class Nested(Interpreted):
        def __init__(self, graph: Graph):
            super().__init__(graph)
            self.modules = [renorm.compile(graph, target=t) for t in ("llvm", GPU, target(["relu"]))]

        def run(self, inputs: Any, outputs: Any) -> None:
            for module in self.modules:
                module.run(*inputs, out=list(outputs))

    g = residual()
    agrees(compiled(g, [conv_norm_relu], Nested), g, x(), runs=2)


@needs_compiler
@pytest.mark.parametrize("is_strict", [False, True])
def test_external_code_does_not_run_who_called_it(monkeypatch: pytest.MonkeyPatch, is_strict: bool) -> None:
    monkeypatch.setattr(locks, "strict", is_strict)
    modules = list[Any]()

    class Again(Interpreted):
        def run(self, inputs: Any, outputs: Any) -> None:
            modules.pop().run(*inputs) if modules else super().run(inputs, outputs)

    g = Graph("again")
    a = g.input("a", "float32", (3, 5))
    g.outputs = [ops.tanh(ops.exp(a))]
    m = compiled(g, ["exp"], Again)
    modules.append(m)
    with pytest.raises(UserCodeError, match="in use by a call that waits for this one") as caught:
        m.run(array(0, 3, 5))
    assert isinstance(caught.value.__cause__, ReentrancyError)
    agrees(m, g, array(0, 3, 5))


@needs_compiler
def test_modules_whose_external_codes_run_each_other_do_not_wait_for_ever() -> None:
    meeting, crossed = threading.Barrier(2, timeout=20), threading.Event()
    depth, modules, errors = threading.local(), list[Any](), list[BaseException]()

    class Crossing(Interpreted):
        def run(self, inputs: Any, outputs: Any) -> None:
            depth.now = getattr(depth, "now", 0) + 1
            if depth.now == 1 and not crossed.is_set():
                meeting.wait()  # each thread is in one of them now
                modules[self.graph.nodes[0].op.name == "exp"].run(*inputs)
            super().run(inputs, outputs)
            depth.now -= 1

    a = array(0, 3, 5)
    for op in (ops.exp, ops.tanh):
        g = Graph(op.__name__)
        g.outputs = [ops.neg(op(g.input("a", "float32", (3, 5))))]
        modules.append(compiled(g, [op.__name__], Crossing))

    def work(module: Any) -> None:
        try:
            module.run(a)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(m,), daemon=True) for m in modules]
    for w in workers:
        w.start()
    for w in workers:
        w.join(30)
    assert not any(w.is_alive() for w in workers)
    assert errors  # one of them was told, at least
    assert all(isinstance(e, UserCodeError) and isinstance(e.__cause__, ReentrancyError) for e in errors)
    crossed.set()
    for module, function in zip(modules, (np.exp, np.tanh)):
        np.testing.assert_allclose(module.run(a)[0], -function(a), rtol=1e-5)


@needs_compiler
def test_code_that_cannot_be_loaded_is_told_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interpreted, "loader", "nobody has it")
    compiled(residual(), [conv_norm_relu]).save(tmp_path / "m.renorm")
    m = renorm.load(tmp_path / "m.renorm")
    assert [k.target for k in m.report.kernels][:2] == ["my_npu", "my_npu"]
    m.save(tmp_path / "again.renorm")
    assert (tmp_path / "again.renorm").read_bytes() == (tmp_path / "m.renorm").read_bytes()
    with pytest.raises(InvalidArtifact, match="no loader is known as 'nobody has it'"):
        m.run(x())


# --- times ------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_times_of_launches_and_of_external_code(host: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    g = residual()
    m = compiled(g, [conv_norm_relu])
    with pytest.raises(InvalidTarget, match="tells no times"):
        m.kernel_times(x())

    def tell(call: Callable[[], None], repeats: int) -> list[float]:
        for _ in range(repeats):
            call()
        return [3e-6, 1e-6, 2e-6]

    monkeypatch.setattr(HostDevice, "time", staticmethod(tell), raising=False)
    found, whole = m.launch_times(x(), repeats=3)
    assert [t.kernel for t in found][:2] == [FUSED, f"{FUSED}_1"]
    assert [len(t.seconds) for t in found] == [3] * len(found)
    for t in found[:2]:
        assert not t.grid
        assert 0 < t.seconds[0] <= t.median <= t.seconds[-1]
    for t in found[2:]:
        assert len(t.grid) == len(t.block) == 3
        assert t.median == 2e-6
        assert t.function in m.kernel(t.kernel).source
    assert len(whole) == 3
    assert [name for name, _ in m.kernel_times(x())] == [t.kernel for t in found]
    agrees(m, g, x(1))


# --- order: on a driver that does nothing before somebody waits -------------------------------------------------------

N = 96


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    real: Any = pytest.importorskip("cuda.bindings.driver")

    def add_one(threads: int, y: int, a: int) -> None:
        floats(y, threads)[:] = floats(a, threads) + 1

    def twice(threads: int, y: int, a: int) -> None:
        floats(y, threads)[:] = floats(a, threads) * 2

    found = FakeDriver(real, {"add_one": add_one, "twice": twice})
    monkeypatch.setattr(api, "bindings", lambda: found)
    monkeypatch.setattr(api, "_started_in", 0)
    monkeypatch.setattr(driver, "_devices", {})
    yield found
    driver._devices.clear()
    gc.collect()


class Negating(renorm.ExternalCode):
    def __init__(self) -> None:
        self.calls, self.last = 0, 99

    def run(self, inputs: Any, outputs: Any) -> None:
        self.calls += 1
        if self.calls > self.last:
            raise ValueError("one too many")
        outputs[0][...] = -inputs[0]


def around(code: Negating) -> Loaded:
    """y = -(2 (-(x + 1))) + 1: a launch, external code, a launch, external code, a launch."""
    spec = TensorSpec("x", "float32", (N,))
    external, grid, block = External("", (spec,), (spec,)), (N // 32, 1, 1), (32, 1, 1)
    codes = [Code(0, (1,), launches=(Launch(name, grid, block, (0, 1)),)) for name in ("add_one", "twice")]
    a, b, x, y = Argument("arena", 0), Argument("arena", 512), Argument("input", 0), Argument("output", 0)
    program = Program(
        machine=Machine("cuda", "sm_90"),
        inputs=(spec,),
        outputs=(TensorSpec("y", "float32", (N,)),),
        codes=(*codes, Code(0, (1,), is_external=True)),
        steps=(
            Step("one", 0, (a, x)), Step("minus", 2, (a, b)), Step("two", 1, (a, b)),
            Step("minus_1", 2, (a, b)), Step("one_1", 0, (y, b)),
        ),
        externals=(external,),
        arena_bytes=1024,
    )  # fmt: skip
    program.verify(1, 0, 1)
    return Loaded(driver.device(0), program, [CUBIN], [], [Caller(code, external, "minus")])


def test_it_reads_what_launches_before_it_wrote_and_those_behind_it_what_it_wrote(fake: FakeDriver) -> None:
    code = Negating()
    loaded = around(code)
    device, bases = loaded.device, {(kind, 0): loaded.staging(kind, 0) for kind in ("input", "output")}
    found = np.zeros(N, np.float32)
    for i, stream in enumerate((device.stream, 77, 77)):
        values = np.arange(N, dtype=np.float32) + i
        device.write(bases["input", 0], values, stream)
        loaded.launch(bases, stream)
        assert code.calls == 2 * i + 2  # it is done; what is behind it, when somebody waits
        assert not (floats(bases["output", 0], N) == 2 * (values + 1) + 1).any()
        device.read(found, bases["output", 0], stream)
        device.wait(stream)
        np.testing.assert_array_equal(found, 2 * (values + 1) + 1)
    assert fake.called.count("cuGraphInstantiate") == 3  # one for each run of launches
    assert fake.called.count("cuGraphLaunch") == 9


def test_times_on_a_driver(fake: FakeDriver) -> None:
    code = Negating()
    loaded = around(code)
    loaded.launch({(kind, 0): loaded.staging(kind, 0) for kind in ("input", "output")}, 0)
    found = loaded.times(3)
    assert [t.kernel for t in found] == ["one", "minus", "two", "minus_1", "one_1"]
    assert [t.function for t in found] == ["add_one", "", "twice", "", "add_one"]
    for t in found[::2]:  # 2 ms are what the fake tells
        assert (t.seconds, t.grid, t.block) == ((0.002,) * 3, (N // 32, 1, 1), (32, 1, 1))
        assert (t.shared, t.registers) == (4096, 40)
    for t in found[1::2]:
        assert len(t.seconds) == 3
        assert min(t.seconds) > 0
        assert t.registers is None
    assert code.calls == 2 * (1 + 3)
    assert loaded.whole(2) == [0.002, 0.002]


def test_where_it_fails_nothing_goes_on(fake: FakeDriver) -> None:
    code = Negating()
    loaded = around(code)
    device, bases = loaded.device, {(kind, 0): loaded.staging(kind, 0) for kind in ("input", "output")}
    values, found = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    device.write(bases["input", 0], values, 77)
    code.last = 1
    with pytest.raises(UserCodeError, match="kernel minus: external code failed: ValueError: one too many"):
        loaded.launch(bases, 77)
    before = list(fake.called)
    device.wait(77)
    assert fake.called[len(before) :].count("cuMemcpyDtoHAsync") == 0
    assert before.count("cuGraphLaunch") == 2
    code.last = 99
    loaded.launch(bases, 77)
    device.read(found, bases["output", 0], 77)
    device.wait(77)
    np.testing.assert_array_equal(found, 2 * (values + 1) + 1)
    memory = len(fake.memory)
    loaded.close()
    assert len(fake.memory) == memory - 4  # weights, arena, an input and an output
    assert not fake.contexts
