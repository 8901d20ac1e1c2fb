"""NVIDIA's driver as runs use it: memory, code, graphs, errors; on the fake of it, and on a GPU where there is one."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.gpu.fake_driver import CUBIN, FakeDriver, floats

import renorm
from renorm.codegen.cuda import nvrtc
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InternalError, InvalidArtifact, InvalidInput, InvalidTarget, OutOfMemory, RenormError
from renorm.runtime.gpu import api, driver
from renorm.runtime.gpu.device import Call

real: Any = pytest.importorskip("cuda.bindings.driver")

N = 160  # threads of each launch
SOURCE = """
extern "C" __global__ void add_one(float* y, const float* x) {
  const int i = blockIdx.x * 32 + threadIdx.x; y[i] = x[i] + 1.0f;
}
extern "C" __global__ void twice(float* y, const float* x) {
  const int i = blockIdx.x * 32 + threadIdx.x; y[i] = x[i] * 2.0f;
}
extern "C" __global__ void astray(float* y, const float* x) { *(volatile float*)8 = x[threadIdx.x]; }
"""


def _add_one(threads: int, y: int, x: int) -> None:
    floats(y, threads)[:] = floats(x, threads) + 1


def _twice(threads: int, y: int, x: int) -> None:
    floats(y, threads)[:] = floats(x, threads) * 2


@dataclass
class Place:
    """A GPU with code for it. fake: None where it is real."""

    device: driver.DriverDevice
    code: bytes
    fake: FakeDriver | None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    found = FakeDriver(real, {"add_one": _add_one, "twice": _twice})
    monkeypatch.setattr(api, "bindings", lambda: found)
    monkeypatch.setattr(api, "_started_in", 0)
    monkeypatch.setattr(driver, "_devices", {})
    yield found
    driver._devices.clear()
    gc.collect()  # what errors keep is given back to this driver and not to the next one


def _gpu() -> driver.DriverDevice:
    if not renorm.cuda(0).exist:
        pytest.skip("no NVIDIA GPU")
    if not nvrtc.identity():
        pytest.skip("no NVRTC")
    return driver.device(0)


@pytest.fixture(params=["fake", "gpu"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "gpu":
        gpu = _gpu()
        yield Place(gpu, nvrtc.assemble(SOURCE, gpu.arch), None)
        return
    fake = request.getfixturevalue("fake")
    yield Place(driver.device(0), CUBIN, fake)
    assert not fake.contexts, "a context is left current"


def _numbers(count: int) -> Any:
    return np.random.default_rng(count).standard_normal(count).astype(np.float32)


def _calls(place: Place, *launches: tuple[str, int, int]) -> list[Call]:
    library = place.device.load(place.code)
    return [Call(place.device.function(library, name), (N // 32, 1, 1), (32, 1, 1), (y, x)) for name, y, x in launches]


def test_what_a_gpu_is(place: Place) -> None:
    properties = place.device.properties()
    assert driver.device(0) is place.device
    assert properties.name == place.device.name
    assert properties.arch == place.device.arch
    assert re.fullmatch(r"sm_\d+[af]?", place.device.arch)
    assert properties.multiprocessors > 0
    assert 0 < properties.free <= properties.total
    assert float(properties.driver) >= 12
    assert renorm.cuda(0).exist or place.fake
    renorm.cuda(0).sync()
    place.device.synchronize()


# pieces of copies are 4 MiB: the last array has three of them and three bytes, and the fake holds none so large
@pytest.mark.parametrize("nbytes", [0, 1, 37, 65536, 65537, 900_001, (12 << 20) + 3])
def test_bytes_come_back(place: Place, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.fake_driver.TOTAL", 1 << 25)
    given = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    kept, back = given.copy(), np.zeros_like(given)
    at = place.device.allocate(nbytes)
    other = place.device.allocate(nbytes)
    place.device.write(at, given, 0)
    given[:] = 0  # it may change afterwards
    place.device.copy(other, at, nbytes, 0)
    place.device.read(back, other, 0)
    place.device.wait(0)
    assert np.array_equal(back, kept)
    place.device.free(at)
    place.device.free(other)


@pytest.mark.parametrize("dtype", ["float16", "bool", "int64", "bfloat16"])
def test_dtypes_and_shapes_come_back(place: Place, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    for shape in ((), (3, 5), (2, 0)):
        given = np.asarray(_numbers(15)[: int(np.prod(shape))].reshape(shape) * 3).astype(kind)
        back = np.zeros(shape, kind)
        at = place.device.allocate(given.nbytes)
        place.device.write(at, given, 0)
        place.device.read(back, at, 0)
        place.device.wait(0)
        assert np.array_equal(back, given)
        place.device.free(at)
    with pytest.raises(InvalidInput, match="not C-contiguous"):
        place.device.write(place.device.allocate(64), np.zeros((4, 4), np.float32).T[1:], 0)


def test_many_copies_at_once(place: Place) -> None:
    device, arrays = place.device, [_numbers(100 + i) for i in range(30)]
    at = [device.allocate(x.nbytes) for x in arrays]
    for x, address in zip(arrays, at):
        device.write(address, x, 0)
    back = [np.zeros_like(x) for x in arrays]
    for x, address in zip(back, at):
        device.read(x, address, 0)
    device.wait(0)
    assert all(map(np.array_equal, arrays, back))
    if place.fake:  # blocks of page-locked memory are kept
        before = place.fake.called.count("cuMemAllocHost")
        for _ in range(5):
            for x, address in zip(back, at):
                device.write(address, x, 0)
                device.read(x, address, 0)
            device.wait(0)
        assert place.fake.called.count("cuMemAllocHost") <= before + 8
        assert all(map(np.array_equal, arrays, back))
    for address in at:
        device.free(address)


def test_failed_copies_lose_no_block(fake: FakeDriver) -> None:
    device, x, back = driver.device(0), _numbers(10), np.zeros(10, np.float32)
    at = device.allocate(x.nbytes)

    def round_trip() -> None:
        device.write(at, x, 0)
        device.read(back, at, 0)
        device.wait(0)

    fake.failing = {"cuEventCreate": 1}
    with pytest.raises(InternalError):
        round_trip()
    assert not fake.page_locked
    fake.failing = {}
    for _ in range(10):  # until blocks are used again
        round_trip()
    held = set(fake.page_locked)
    for function in (
        *("cuMemcpyHtoDAsync", "cuEventRecord", "cuMemcpyDtoHAsync"),
        *("cuEventSynchronize", "cuStreamSynchronize"),
    ):
        for _ in range(20):
            fake.failing = {function: 1}
            with pytest.raises(InternalError):
                round_trip()
            fake.failing = {}
        for _ in range(10):
            back[:] = 0
            round_trip()
            assert np.array_equal(back, x)
        assert len(set(fake.page_locked) - held) <= 8, function
        held |= set(fake.page_locked)


def test_a_wait_leaves_what_other_threads_read_since(fake: FakeDriver) -> None:
    device = driver.device(0)
    x, first, second = _numbers(10), np.zeros(10, np.float32), np.zeros(10, np.float32)
    at = device.allocate(x.nbytes)
    device.write(at, x, 0)
    device.read(first, at, 0)
    synchronize = fake._cuStreamSynchronize

    def late(stream: int) -> Any:  # another thread reads before this one looks for what it can finish
        synchronize(stream)
        reader = threading.Thread(target=device.read, args=(second, at, 0))
        reader.start()
        reader.join()

    fake.__dict__["_cuStreamSynchronize"] = late
    device.wait(0)
    assert np.array_equal(first, x)
    assert not second.any()
    fake.__dict__["_cuStreamSynchronize"] = synchronize
    device.wait(0)
    assert np.array_equal(second, x)


def test_a_graph_runs_in_order_and_takes_other_arguments(place: Place) -> None:
    device, x, other = place.device, _numbers(N), _numbers(N + 1)[:N]
    given, given_later, middle, result = (device.allocate(x.nbytes) for _ in range(4))
    device.write(given, x, 0)
    device.write(given_later, other, 0)
    chain = ("add_one", middle, given), ("twice", result, middle), ("add_one", result, result)
    graph = device.graph(_calls(place, *chain))
    y, y_later = np.zeros_like(x), np.zeros_like(x)
    graph.launch(0)
    device.read(y, result, 0)
    graph.update(0, (middle, given_later))
    graph.launch(0)
    device.read(y_later, result, 0)
    device.wait(0)
    assert np.array_equal(y, (x + np.float32(1)) * np.float32(2) + np.float32(1))
    assert np.array_equal(y_later, (other + np.float32(1)) * np.float32(2) + np.float32(1))
    assert all(seconds > 0 for seconds in device.time(lambda: graph.launch(0), 3))
    with pytest.raises(InternalError, match="launch 1 of a graph: 1 arguments"):
        graph.update(1, (middle,))
    graph.close()
    graph.close()
    for address in (given, given_later, middle, result):
        device.free(address)
    if place.fake:
        assert not place.fake.graphs
        assert not place.fake.memory


def test_what_is_dropped_is_given_back(fake: FakeDriver) -> None:
    device = driver.device(0)
    at = device.allocate(N * 4)
    graph = device.graph(_calls(Place(device, CUBIN, fake), ("twice", at, at)))
    assert "cuModuleUnload" not in fake.called  # the graph needs it
    del graph
    assert [name for name in fake.called if name in ("cuGraphDestroy", "cuGraphExecDestroy", "cuModuleUnload")] != []
    assert "cuModuleUnload" in fake.called
    assert not fake.graphs


def test_out_of_memory(place: Place) -> None:
    before = place.device.properties()
    with pytest.raises(OutOfMemory) as error:
        place.device.allocate(before.total * 2 + 1)
    assert f"{before.total * 2 + 1:,} bytes" in str(error.value)
    assert f"of {before.total:,} bytes" in str(error.value)
    assert isinstance(error.value, MemoryError)
    if place.fake:  # others may be at work on a GPU
        assert place.device.properties().free >= before.free
    place.device.free(place.device.allocate(64))  # one that fits is given as before


def test_code_of_another_gpu(place: Place) -> None:
    code = b"\x7fELF of another" if place.fake else nvrtc.assemble(SOURCE, _another(place.device.arch))
    with pytest.raises(InvalidArtifact, match=place.device.arch) as error:
        place.device.load(code)
    assert "-arch=" in str(error.value)
    for damaged in (b"", b"PK\3\4", b"// PTX"):
        with pytest.raises(InvalidArtifact, match="no cubin"):
            place.device.load(damaged)


def _another(arch: str) -> str:
    """An architecture whose code this one does not run: the major numbers differ."""
    return "sm_80" if not arch.startswith("sm_8") else "sm_90"


def test_no_such_function(place: Place) -> None:
    with pytest.raises(InternalError, match="NOT_FOUND"):
        place.device.function(place.device.load(place.code), "absent")


def test_no_such_gpu(place: Place) -> None:
    for index in (4096, -1):
        with pytest.raises(InvalidTarget, match=rf"no cuda\({index}\)"):
            driver.device(index)
    assert not renorm.cuda(4096).exist


def _use_all() -> None:
    """What a run does, and what a report asks."""
    device = driver.device(0)
    at = device.allocate(N * 4)
    graph = device.graph(_calls(Place(device, CUBIN, None), ("twice", at, at), ("add_one", at, at)))
    device.write(at, np.ones(N, np.float32), 0)
    graph.update(1, (at, at))
    graph.launch(0)
    device.copy(at, at, 4, 0)
    device.read(np.zeros(N, np.float32), at, 0)
    device.wait(0)
    device.synchronize()
    device.properties()
    device.time(lambda: None, 1)
    device.read(large := np.zeros((4 << 20) + 4, np.uint8), device.allocate(large.nbytes), 0)


# nobody waits for these, or what they say is asked for: cuEventQuery by the wait after it
_LOOSE = {"cuCtxPopCurrent", "cuEventDestroy", "cuEventQuery", "cuGraphDestroy", "cuGraphExecDestroy", "cuModuleUnload"}


def test_each_return_code_is_looked_at(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.fake_driver.TOTAL", 1 << 25)
    _use_all()
    functions = set(fake.called) - _LOOSE
    assert len(functions) > 25
    for function in functions:
        monkeypatch.setattr(api, "_started_in", 0)
        driver._devices.clear()
        fake.failing = {function: 1}
        with pytest.raises(RenormError) as error:
            _use_all()
        assert f"{function}: what 1 means" in str(error.value), function
        fake.failing = {}
        assert not fake.contexts, function


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (2, OutOfMemory, "free: "),
        (100, InvalidTarget, "CUDA_ERROR_NO_DEVICE"),
        (35, InvalidTarget, "nvidia-smi"),
        (3, InvalidTarget, "os.fork"),
        (101, InvalidTarget, "INVALID_DEVICE"),
        (209, InvalidArtifact, "the driver runs CUDA 13.0"),
        (222, InvalidArtifact, "no newer than its driver"),
        (214, RenormError, "ECC"),
        (700, InternalError, "compute-sanitizer"),
        (719, InternalError, "LAUNCH_FAILED"),
        (1, InternalError, "INVALID_VALUE"),
        (99999, InternalError, "CUresult 99999"),
    ],
)
def test_what_codes_mean(fake: FakeDriver, code: int, kind: type[RenormError], message: str) -> None:
    of_start = code in (100, 35, 3)
    error = api.failure("cuInit" if of_start else "cuStreamSynchronize", code)
    assert type(error) is kind
    assert message in str(error)
    assert ("cuInit: " if of_start else "cuStreamSynchronize: ") in str(error)


def test_a_failed_run_is_told_and_its_arrays_stay(fake: FakeDriver) -> None:
    device, y = driver.device(0), np.zeros(4, np.float32)
    at = device.allocate(16)
    device.write(at, np.ones(4, np.float32), 0)
    device.read(y, at, 0)
    fake.failing = {"cuStreamSynchronize": 700}
    with pytest.raises(InternalError, match="ILLEGAL_ADDRESS"):
        device.wait(0)
    fake.failing = {}
    device.wait(0)
    assert not y.any()


def _in_child(work: Any, results: Any) -> None:
    try:
        work()
        results.put("")
    except BaseException as error:
        results.put(f"{type(error).__name__}: {error}")


def _forked(work: Any) -> str:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(work, results))
    child.start()
    said = results.get(timeout=60)
    child.join()
    return said


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_fork_is_told(place: Place) -> None:
    device = place.device
    at = device.allocate(16)
    for work in (lambda: driver.device(0), lambda: device.allocate(4), lambda: device.wait(0), driver.count):
        said = _forked(work)
        assert said.startswith("InvalidTarget: CUDA cannot be used in this process: its parent")
        assert f"CUDA was started in {os.getpid()}" in said
        assert "spawn" in said

    def give_back() -> None:
        device.free(at)
        assert not place.fake or "cuMemFree" not in place.fake.called
        assert not renorm.cuda(0).exist

    assert _forked(give_back) == ""
    device.free(at)  # still this process's
    if place.fake:
        assert at not in place.fake.memory


def test_a_machine_without_a_driver() -> None:
    try:
        real.cuInit(0)
    except RuntimeError:
        pass
    else:
        pytest.skip("there is a driver")
    with pytest.raises(InvalidTarget, match="no NVIDIA GPU can be used") as error:
        driver.device(0)
    assert "cuInit: " in str(error.value)
    assert "install NVIDIA's driver" in str(error.value)
    assert not renorm.cuda(0).exist
    renorm.cuda(0).sync()


def test_without_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    monkeypatch.setattr(api, "_started_in", 0)
    monkeypatch.setattr(driver, "_devices", {})
    api.bindings.cache_clear()
    with pytest.raises(InvalidTarget, match=r"pip install 'renorm\[cuda\]'"):
        driver.device(0)
    monkeypatch.setattr("renorm.runtime.device._has_driver", lambda: True)
    assert not renorm.cuda(0).exist


def test_arrays_are_on_cpus() -> None:
    with pytest.raises(InvalidTarget, match=r"no arrays on cuda\(0\)"):
        renorm.cuda(0).require()
    with pytest.raises(InvalidTarget, match=r"no arrays on cpu\(1\)"):
        renorm.cpu(1).require()
    renorm.cpu(0).require()


def _astray() -> None:
    gpu = driver.device(0)
    at = gpu.allocate(N * 4)
    gpu.graph(_calls(Place(gpu, nvrtc.assemble(SOURCE, gpu.arch), None), ("astray", at, at))).launch(0)
    gpu.wait(0)


def test_an_address_astray_on_a_gpu() -> None:
    """In a process of its own, which loses CUDA by that."""
    _gpu()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(_astray, results))
    child.start()
    said = results.get(timeout=120)
    child.join()
    assert said.startswith("InternalError: code on the GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS")
