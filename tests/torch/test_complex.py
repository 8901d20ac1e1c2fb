"""Complex numbers in torch.compile: inside of a part, and where they come into one and go out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from tests.torch.test_dynamo import told
from torch import Tensor, nn

import renorm.torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


class Calls(nn.Module):
    def __init__(self, f: Callable[..., Any], **buffers: Tensor):
        super().__init__()
        self.f = f
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, *x: Tensor) -> Any:
        return self.f(self, *x)


def run(module: nn.Module, *calls: tuple[Tensor, ...], dynamic: bool | None = False) -> None:
    compiled = torch.compile(module, backend="renorm", dynamic=dynamic)
    for xs in calls:
        with torch.no_grad():
            wanted, found = module(*xs), compiled(*xs)
        assert found.dtype == wanted.dtype
        assert found.is_conj() == wanted.is_conj()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_inside_of_a_part(caplog: pytest.LogCaptureFixture) -> None:
    turns = torch.polar(torch.ones(9, 4), torch.randn(9, 4))

    def rotated(m: Any, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2)) * m.turns[: x.shape[1]]
        return torch.view_as_real(z).flatten(2)

    with caplog.at_level(logging.INFO, "renorm.torch"):
        run(Calls(rotated, turns=turns), (torch.randn(2, 9, 8),))
    assert "in 1 parts" in told(caplog)


@pytest.mark.parametrize("dynamic", [False, True])
def test_in_and_out(dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    module = Calls(lambda m, z: (z * z.conj() + 2j * z).mT)
    calls = [(torch.randn(n, 4, dtype=torch.complex64),) for n in (3, 5)]
    strided = (torch.randn(8, 3, dtype=torch.complex64).T[:, ::2],)
    images = torch.randn(2, 3, 5, 7, dtype=torch.complex64).to(memory_format=torch.channels_last)
    run(Calls(lambda m, z: (z * 2 + 1) * z), (images,), dynamic=dynamic)
    with caplog.at_level(logging.INFO, "renorm.torch"):
        run(module, *calls, strided, dynamic=dynamic)
        run(Calls(lambda m, z: torch.special.i0(z.real) * (z + 1).exp()), *calls, dynamic=dynamic)
    assert "stay PyTorch's" not in told(caplog)


def test_long_transforms_stay_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    """Leave them to PyTorch, which has the faster algorithm; compile what is computed of them."""
    module = Calls(lambda m, x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x).conj()).relu() + 1)
    with caplog.at_level(logging.INFO, "renorm.torch"):
        run(module, (torch.randn(3, 16),))
    assert "stay PyTorch's" not in told(caplog)
    whole = told(caplog)
    caplog.clear()
    with caplog.at_level(logging.INFO, "renorm.torch"):
        run(module, (torch.randn(3, 64),))
    assert "in 2 parts" in told(caplog) != whole


def test_of_no_elements() -> None:
    run(Calls(lambda m, z: z * 2j), (torch.randn(0, 4, dtype=torch.complex64),))
    calls = [(torch.randn(n, 4, dtype=torch.complex64),) for n in (3, 0, 5)]
    run(Calls(lambda m, z: z * 2j + 1), *calls, dynamic=True)


def test_data_that_choose_places_beside_fixed_extents() -> None:
    """Steps of such a part wait for counts, though all that comes in and goes out is of known extents."""

    def stored(m: Any, x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x.clone()
        y[mask] = values
        y[x > 0.5] += 2
        return y

    mask = torch.tensor([True, False, True, False, False, True])
    run(Calls(stored), (torch.randn(6), mask, torch.randn(3)), (torch.ones(6), mask, torch.randn(3)))


def test_frames_of_an_open_length() -> None:
    """A part reads a signal of s + 16 elements, and its result has 1 + s // 4: s was told by nothing it read."""
    framed = Calls(
        lambda m, x: torch.stft(x, 16, 4, window=m.window, return_complex=True).abs().log1p(), window=torch.ones(16)
    )
    run(framed, *((torch.randn(2, n),) for n in (40, 57)), dynamic=True)


def test_norms_of_a_model_with_complex_numbers() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(torch.view_as_real(torch.fft.fft(x) * 1j).mT)).relu()

    module, x = Mixed().eval(), torch.randn(5, 16)
    with torch.no_grad():
        module.norm.weight.uniform_(0.5, 2)
        made = renorm.torch.fold(module, (x,))
        assert not any(isinstance(m, nn.BatchNorm1d) for m in made.module.modules())
        torch.testing.assert_close(made.module(x), module(x), rtol=1e-4, atol=1e-5)
