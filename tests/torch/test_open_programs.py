"""Programs of open extents: their numbers, views and parts, at several shapes, as eager PyTorch has them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
import torch.nn.functional as F
from tests.torch.test_dynamo import told
from torch import Tensor, nn

import renorm
import renorm.torch
from renorm.driver.module import OpenModule

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
AUTO = torch.export.Dim.AUTO
SHAPES = ((4, 5), (7, 6), (3, 9))


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


class Calls(nn.Module):
    def __init__(self, f: Callable[[Tensor], Any]):
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Any:
        return self.f(x)


def gram(x: Tensor) -> Tensor:
    return x @ x.T / (x.shape[0] * x.shape[1])


def adaptive(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3)


def causal(x: Tensor) -> Tensor:
    rows, keys = x.shape
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    return x.masked_fill(~mask, -1e9).softmax(-1)


NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "divided": lambda x: x / x.shape[0],
    "a bound": lambda x: x.clamp(None, x.shape[0] - 4),
    "a remainder": lambda x: (x * 10).floor() % x.shape[1],
    "variance": lambda x: x.var(1),
    "positions": lambda x: x + torch.arange(x.shape[1]) / x.shape[1],
    "gram": gram,
    "adaptive": adaptive,
    "causal": causal,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("level", [0, 3])
def test_extents_are_numbers(name: str, level: int) -> None:
    """Nothing in memory holds them: a kernel is told."""
    module = Calls(NUMBERS[name])
    m = renorm.compile(module, args=(torch.randn(5, 7),), dynamic_shapes=(({0: AUTO, 1: AUTO}),), opt_level=level)
    fast = torch.compile(module, backend="renorm", dynamic=True)
    for shape in SHAPES:
        x = torch.randn(shape)
        expected = module(x.double()).float()
        torch.testing.assert_close(torch.tensor(m.run(x)[0]), expected, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)


def test_kernels_that_are_kept_are_told_their_own_extents() -> None:
    """Equal but for the extents that they are told."""
    for f in (lambda x: x / x.shape[0], lambda x: x / x.shape[1], lambda x: x / (x.shape[0] + 1)):
        m = renorm.compile(Calls(f), args=(torch.randn(5, 7),), dynamic_shapes=(({0: AUTO, 1: AUTO}),))
        x = torch.randn(3, 8)
        torch.testing.assert_close(torch.tensor(m.run(x)[0]), f(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_images_are_made_larger(mode: str) -> None:
    module = Calls(lambda x: F.interpolate(x, scale_factor=2.0, mode=mode))
    fast = torch.compile(module, backend="renorm", dynamic=True)
    for height, width in ((6, 7), (9, 11)):
        x = torch.randn(2, 3, height, width)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)


def test_a_number_that_no_tensor_has_stays_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    def f(i: Tensor, x: Tensor) -> Tensor:
        return (i + 1).clamp(None, x.shape[0] - 1)

    fast = torch.compile(f, backend="renorm", dynamic=True)
    for n in (4, 6):
        assert torch.equal(fast(torch.arange(8), torch.randn(n, 5)), f(torch.arange(8), torch.randn(n, 5)))
    assert "which no tensor that they read has" in told(caplog)


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda x: x[:, x.shape[1] // 2 :],
    "chunks": lambda x: x.chunk(2, -1),
    "spread": lambda x: x[:, :1].expand(-1, x.shape[1]),
    "beside another": lambda x: (x[:, x.shape[1] // 2 :], x.relu()),
    "of a result": lambda x: (y := x.relu(), y[:, 1:], y.T),
    "turned": lambda x: x.T,
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_may_be_views(name: str) -> None:
    """Of inputs, and of other results: AOTAutograd makes them again by their strides and offsets."""
    f = VIEWS[name]
    fast = torch.compile(f, backend="renorm")
    with torch.no_grad():
        for shape in ((2, 4), (3, 6), (5, 8)):
            x = torch.randn(shape)
            found, wanted = (y if isinstance(y, tuple) else (y,) for y in (fast(x), f(x)))
            for a, b in zip(found, wanted, strict=True):
                assert torch.equal(a, b)
                assert a.stride() == b.stride()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.GroupNorm(4, 8)], ids=["batch", "group"])
@pytest.mark.parametrize("trains", [True, False])
def test_images_of_several_sizes(norm: nn.Module, trains: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A part behind a strided convolution reads extents of (1 + s)//2, which tell nobody what s is."""
    parts = [nn.Conv2d(3, 8, 3, 2, 1), norm, nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)]
    module = copy.deepcopy(nn.Sequential(*parts)).train(trains)
    eager = copy.deepcopy(module)
    fast = torch.compile(module, backend="renorm")
    for size in ((32, 32), (40, 24), (17, 35)):
        x = torch.randn(2, 3, *size)
        with torch.set_grad_enabled(trains):
            y, expected = fast(x), eager(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        if trains:
            y.square().sum().backward()
            expected.square().sum().backward()
    for a, b in zip(module.parameters(), eager.parameters(), strict=True):
        assert a.grad is None or b.grad is None or torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    assert "stay PyTorch's" not in told(caplog)


def test_state_beside_open_extents() -> None:
    """Statistics of training, at several batches and heights, by one set of kernels."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    expected = copy.deepcopy(module).double()
    m = renorm.compile(module, args=(torch.randn(3, 3, 8, 8),), dynamic_shapes=({0: AUTO, 2: AUTO},))
    assert isinstance(m, OpenModule)
    for n, height in ((3, 8), (1, 11), (5, 6)):
        x = torch.randn(n, 3, height, 8)
        torch.testing.assert_close(torch.tensor(m.run(x)[0]), expected(x.double()).float(), rtol=1e-4, atol=1e-5)
    for name, held in m.state.items():
        wanted = expected.state_dict()[name]
        torch.testing.assert_close(torch.tensor(held).to(wanted.dtype), wanted, rtol=1e-5, atol=1e-6)
