"""Layers, and graphs of torch.compile, on tensors of a GPU, in whose place the CPU stands: their CUDA C, compiled by
g++, runs on the memory of CPU tensors, forward and backward, and gives what torch gives in float64. With a GPU, on
tensors that are there."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.gpu import host_device
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_memory import GuardedMemory, Region
from tests.torch.gpu_ranks_program import LAYERS as SYNCHRONIZED
from tests.torch.gpu_ranks_program import PARTS
from tests.torch.gpu_ranks_program import step as steps
from tests.torch.pairs import TOLERANCE, pair

import renorm
from renorm.core.errors import InvalidInput, OutOfMemory
from renorm.runtime.gpu.module import GpuModule
from renorm.torch import BatchNorm2d, batch, gpus, kernels
from renorm.training.kernels import Gpu, NotYet

Tensor = Any
ROOT = Path(__file__).parents[2]
HOST = Gpu(host_device.ARCH, 7)


class _Lent(Region):
    """Memory of a tensor, of which nobody knows where it ends. It keeps its elements."""

    @property
    def is_whole(self) -> bool:
        return True

    def __post_init__(self) -> None:
        """Nothing is poisoned."""

    def contents(self) -> bytes:
        return b""


class Memory(GuardedMemory):
    """Memory of the device, and of tensors: whatever it did not allocate."""

    def at(self, address: int) -> Region | None:
        return super().at(address) or _Lent(address, 1 << 40, address, address, 0)


ON_HOST = pytest.param("in its place", marks=needs_compiler)
ON_GPU = pytest.param("GPU", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"))


@pytest.fixture(params=[ON_HOST, ON_GPU])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Return the device of PyTorch that tensors are moved to."""
    if request.param == "GPU":
        yield "cuda"
        return
    host_device.register()
    if not isinstance((device := host_device.host(HOST.index))._memory, Memory):  # kernels are kept, and their memory
        device._memory = Memory()
    for user in ("kernels", "parts", "compiled"):
        monkeypatch.setattr(f"renorm.torch.{user}.gpu_of", lambda _: HOST)
    monkeypatch.setattr("renorm.torch.kernels.stream_of", lambda _: 0)
    monkeypatch.setattr("renorm.training.graphs.asked", lambda *_: None)  # another process has no such architecture
    yield "cpu"
    device.wait(0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the modules that ran on a GPU."""
    found, run_at = list[str](), GpuModule.run_at

    def noted(self: GpuModule, addresses: list[int], stream: int = 0) -> None:
        found.append(self.name)
        run_at(self, addresses, stream)

    monkeypatch.setattr(GpuModule, "run_at", noted)
    return found


def drawn(seed: int, shape: tuple[int, ...], dtype: Any, form: str) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if form == "channels last":
        return x.to(memory_format=torch.channels_last)
    if form == "beside":  # begins where no thread may begin to read 16 bytes
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(shape)
    return x.transpose(-1, -2) if form == "strided" else x


def step(layer: Any, x: Tensor, dy: Tensor) -> list[Tensor]:
    """All that a layer makes of a step, on the CPU."""
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(dy)
    found = [y, x.grad, *(p.grad for p in layer.parameters()), *layer.buffers()]
    return [t.detach().cpu() for t in found]


LAYERS = [
    ("BatchNorm2d", (6,), {}),
    ("BatchNorm2d", (6,), {"affine": False, "track_running_stats": False}),
    ("BatchNorm2d", (6,), {"momentum": None}),
    ("InstanceNorm2d", (6,), {"affine": True, "track_running_stats": True}),
    ("GroupNorm", (2, 6), {}),
    ("LayerNorm", ((5, 7),), {}),
    ("RMSNorm", ((7,),), {"eps": 1e-6}),
]
FORMS = ["contiguous", "channels last", "beside", "strided"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "arguments", "settings"), LAYERS, ids=[f"{k}-{i}" for i, (k, *_) in enumerate(LAYERS)]
)
def test_layers(kind: str, arguments: Any, settings: Any, form: str, place: str, runs: list[str]) -> None:
    shape = (3, 6, 7, 5) if form == "strided" else (3, 6, 5, 7)
    theirs, ours = pair(kind, *arguments, **settings)
    oracle, ours = theirs.double(), ours.to(place)
    for seed in range(2):
        x, dy = drawn(seed, shape, torch.float32, form), drawn(seed + 5, shape, torch.float32, form)
        oracle.zero_grad()
        ours.zero_grad()
        found, expected = step(ours, x.to(place), dy.to(place)), step(oracle, x.double(), dy.double())
        for a, b in zip(found, expected, strict=True):
            bound = TOLERANCE[torch.float32] * max(1.0, b.abs().max().item())
            torch.testing.assert_close(a.double(), b.double(), rtol=0.0, atol=bound)
    assert len(runs) == 4  # two steps, forward and backward


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(dtype: Any, place: str, runs: list[str]) -> None:
    theirs, ours = pair("BatchNorm2d", 6)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    x, dy = (drawn(k, (3, 6, 5, 7), dtype, "") for k in range(2))
    found, expected = (
        step(ours.to(place, wide), x.to(place), dy.to(place)),
        step(theirs.double(), x.double(), dy.double()),
    )
    for a, b in zip(found, expected, strict=True):
        bound = TOLERANCE[dtype] * max(1.0, b.abs().max().item())
        torch.testing.assert_close(a.double(), b.double(), rtol=0.0, atol=bound)
    assert len(runs) == 2


def test_frozen_with_relu_and_residual(place: str, runs: list[str]) -> None:
    layer: Any = BatchNorm2d(6, relu=True).eval()
    with torch.no_grad():
        layer.running_var.uniform_(0.5, 2)
        layer.running_mean.normal_()
    exact = torch.nn.BatchNorm2d(6).eval()
    exact.load_state_dict(layer.state_dict())
    given = [drawn(k, (3, 6, 5, 7), torch.float32, "").to(place).requires_grad_() for k in range(2)]
    wide = [t.detach().cpu().double().requires_grad_() for t in given]
    dy = drawn(2, (3, 6, 5, 7), torch.float32, "")
    y, expected = layer.to(place)(*given), (exact.double()(wide[0]) + wide[1]).relu()
    y.backward(dy.to(place))
    expected.backward(dy.double())
    for a, b in zip([y, *(t.grad for t in given)], [expected, *(t.grad for t in wide)]):
        torch.testing.assert_close(a.detach().cpu().double(), b.detach(), rtol=0.0, atol=1e-5)
    assert len(runs) == 2


def test_statistics_in_float16_are_converted(place: str) -> None:
    layer: Any = BatchNorm2d(6).to(place, torch.float16)
    x = drawn(0, (3, 6, 5, 7), torch.float16, "").to(place)
    layer(x)
    mean = x.double().mean((0, 2, 3))
    torch.testing.assert_close(layer.running_mean.double(), mean * 0.1, rtol=0.0, atol=1e-3)


def test_what_does_not_fit_is_refused_and_changes_nothing(place: str) -> None:
    x = drawn(0, (3, 6, 5, 7), torch.float32, "").to(place)
    mean, var = torch.zeros(6, device=place), torch.ones(6, device=place)
    with pytest.raises(InvalidInput, match=r"weight has shape \[5\]"):
        batch.normalize_batch(x, mean, var, torch.ones(5, device=place), None, batch.Settings(1e-5, True, 0.1))
    assert not mean.any()


def test_memory_that_torch_keeps_and_nobody_uses_is_given_back_first(
    place: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied, run_at = list[int](), GpuModule.run_at

    def short(self: GpuModule, addresses: list[int], stream: int = 0) -> None:
        if not emptied:
            raise OutOfMemory("the GPU has no memory for 4096 bytes")
        run_at(self, addresses, stream)

    monkeypatch.setattr(GpuModule, "run_at", short)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(runs)))
    theirs, ours = pair("GroupNorm", 3, 6)
    x = drawn(0, (2, 6, 4, 4), torch.float32, "").to(place)
    torch.testing.assert_close(ours.to(place)(x), theirs.to(place)(x))
    assert emptied == [0]
    assert len(runs) == 1


class Residual(torch.nn.Module):
    """Norms of planes, of rows and of the batch, a residual, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1)
        self.norm, self.other = torch.nn.BatchNorm2d(8), torch.nn.GroupNorm(2, 8)
        self.last, self.rows = torch.nn.Linear(8, 5), torch.nn.LayerNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.other(self.second(x)) + x)
        return self.rows(self.last(x.mean((2, 3))))


@pytest.fixture
def anew() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("anew")
def test_graphs_of_inference(place: str, runs: list[str]) -> None:
    """One part, that a GPU runs; at other shapes, and with other weights too."""
    module = Residual().eval().to(place)
    compiled: Any = torch.compile(module, backend="renorm")
    with torch.no_grad():
        for size in (2, 3, 3, 4):
            x = torch.randn(size, 3, 40, 40).to(place)
            expected = copy.deepcopy(module).cpu().double()(x.cpu().double())
            y = compiled(x)
            assert y.device.type == place
            torch.testing.assert_close(y.cpu().double(), expected, rtol=0.0, atol=1e-4)
        before = len(runs)
        module.first.weight.mul_(2)
        expected = copy.deepcopy(module).cpu().double()(x.cpu().double())
        torch.testing.assert_close(compiled(x).cpu().double(), expected, rtol=0.0, atol=1e-4)
        assert len(runs) > before


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("anew")
def test_graphs_of_training(place: str, runs: list[str]) -> None:
    """Around norms a GPU runs renorm's kernels, forward and backward; statistics follow."""
    module = Residual().to(place)
    exact = copy.deepcopy(module).cpu().double()
    compiled: Any = torch.compile(module, backend="renorm")
    for _ in range(2):
        x, dy = torch.randn(4, 3, 16, 16), torch.randn(4, 5)
        for m, given in ((compiled, (x.to(place), dy.to(place))), (exact, (x.double(), dy.double()))):
            m.zero_grad()
            m(given[0]).backward(given[1])
        pairs = [(a.grad, b.grad) for a, b in zip(module.parameters(), exact.parameters(), strict=True)]
        for a, b in [*pairs, *zip(module.buffers(), exact.buffers(), strict=True)]:
            bound = 1e-4 * max(1.0, float(b.abs().max()))
            torch.testing.assert_close(a.cpu().double(), b.double(), rtol=0.0, atol=bound)
    assert len(runs) >= 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("anew")
def test_graphs_of_training_with_autocast(place: str, runs: list[str]) -> None:
    """As near to float64 as eager PyTorch is."""
    module = Residual().to(place)
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).cpu().double()
    compiled: Any = torch.compile(module, backend="renorm")
    x, dy = torch.randn(4, 3, 16, 16), torch.randn(4, 5)
    for m in (compiled, eager):
        with torch.autocast(place, torch.bfloat16):
            y = m(x.to(place))
        y.float().backward(dy.to(place))
    exact(x.double()).backward(dy.double())
    for a, b, c in zip(*(m.parameters() for m in (module, eager, exact)), strict=True):
        ours, theirs = (float((t.grad.cpu().double() - c.grad).abs().max()) for t in (a, b))
        assert ours <= 2 * theirs + 2e-2 * float(c.grad.abs().max())
    assert len(runs) >= 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("anew")
def test_a_module_as_a_layer(place: str) -> None:
    """Compiled with a program of PyTorch's around it."""
    layer = torch.nn.GroupNorm(3, 6).eval()
    gpu = kernels.gpu_of(torch.empty(1, device=place))
    assert gpu is not None
    own = renorm.compile(layer, args=(torch.zeros(2, 6, 4, 4),), target=f"cuda -arch={gpu.arch}").as_torch()
    whole: Any = torch.compile(torch.nn.Sequential(own, torch.nn.Softmax(1)), backend="eager", fullgraph=True)
    x = torch.randn(2, 6, 4, 4)
    with torch.no_grad():
        y = whole(x.to(place))
        assert y.device.type == place
        torch.testing.assert_close(y.cpu(), layer(x).softmax(1))


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_75"])
def test_a_target_for_another_place_leaves_calls_to_torch(
    target: str, place: str, runs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    module = Residual().eval().to(place)
    compiled: Any = torch.compile(module, backend="renorm", options={"target": target})
    x = torch.randn(2, 3, 8, 8).to(place)
    with torch.no_grad(), caplog.at_level("WARNING", "renorm.torch"):
        torch.testing.assert_close(compiled(x), module(x))
    assert f"stay PyTorch's: target '{target}', tensors on a GPU" in caplog.text
    assert not runs


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("anew")
def test_images_that_are_channels_last(place: str, runs: list[str]) -> None:
    """Results lie as eager PyTorch's do."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval().to(place)
    compiled: Any = torch.compile(module.to(memory_format=torch.channels_last), backend="renorm")
    x = torch.randn(2, 3, 9, 9).to(place, memory_format=torch.channels_last)
    with torch.no_grad():
        y, expected = compiled(x), module(x)
    torch.testing.assert_close(y, expected)
    assert y.stride() == expected.stride()
    assert y.device == expected.device
    assert runs


def test_torch_computes_while_kernels_are_compiled(
    place: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(key: Any) -> Any:
        raise NotYet

    monkeypatch.setattr("renorm.torch.kernels._is_background_on", True)
    monkeypatch.setattr("renorm.training.kernels.early", asked)
    theirs, ours = pair("GroupNorm", 3, 6)
    x = drawn(0, (2, 6, 4, 4), torch.float32, "").to(place)
    torch.testing.assert_close(ours.to(place)(x), theirs.to(place)(x))
    assert not runs


def test_tensors_of_several_places_go_to_torch() -> None:
    """Nor does renorm take those of a GPU without its driver."""
    meta = torch.empty(2, 6, device="meta")
    assert gpus.gpu_of(meta) is None
    assert not gpus.is_together(meta, meta)
    gpus._gpu.cache_clear()
    if not torch.cuda.is_available():
        assert gpus._gpu(0) is None


@needs_compiler
def test_batches_of_two_gpus_are_one(tmp_path: Path) -> None:
    """Of 2 and of 3 samples, in processes that exchange over gloo: as one layer on all of them, in float64."""
    call = [sys.executable, "-m", "tests.torch.gpu_ranks_program", str(tmp_path)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*call, str(rank)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(len(PARTS))
    ]
    said = [p.communicate(timeout=300)[1] for p in processes]
    assert [p.returncode for p in processes] == [0] * len(PARTS), "\n".join(said)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(PARTS))]
    for i, settings in enumerate(SYNCHRONIZED):
        whole = BatchNorm2d(6, **settings).double()
        expected = steps(whole, slice(0, 5), torch.contiguous_format, i == 2)
        grads = [p.grad for p in whole.parameters()]
        for made, _, buffers in (rank[i] for rank in ranks):
            for a, b in zip(buffers, whole.buffers(), strict=True):
                torch.testing.assert_close(a.double(), b.double(), rtol=0.0, atol=1e-6)
            assert len(made) == len(expected)
        for k, b in enumerate(expected):
            together = torch.cat([rank[i][0][k] for rank in ranks])
            torch.testing.assert_close(together.double(), b, rtol=0.0, atol=1e-5)
        for k, b in enumerate(grads):
            added = torch.stack([rank[i][1][k] for rank in ranks]).sum(0)
            torch.testing.assert_close(added.double(), b, rtol=0.0, atol=1e-5)
