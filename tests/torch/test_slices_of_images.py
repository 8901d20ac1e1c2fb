"""Norms of some channels read them where they lie in the image, which alone is kept for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from tests.exhaustive import one_of
from tests.torch.test_pixels import Both
from tests.torch.test_training_graphs import agree, compiled_kernels, three
from tests.torch.training_networks import CHANNELS, SIZE
from torch import Tensor, nn

from renorm.torch import compilations, convolution_layouts, training_graphs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ORDERS = {"last": 1, "first": 10**6}  # pixels from which images are channels_last
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "none": nn.Identity,
    "two": lambda: nn.Sequential(nn.Hardswish(), nn.Tanh()),
}


@pytest.fixture(autouse=True)
def begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    compilations._EQUAL.clear()
    torch.manual_seed(0)
    monkeypatch.setattr(training_graphs, "LEAST", 1)


class Chunks(nn.Module):
    """Batch norms of chunks of channels, one of which another call reads too."""

    def __init__(self, channels: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels // 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1)
        return torch.cat([self.norms[0](first), self.norms[1](second) + second], 1)


class Turned(nn.Module):
    """Norms of channels that lie elsewhere in the result, and of a slice with a step."""

    def __init__(self, channels: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (channels // 2, (channels + 1) // 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norms[1](x[:, ::2]), self.norms[0](x[:, 1::2])], 1)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "both": lambda c: Both(c, affine=True),
    "chunks": Chunks,
    "turned": Turned,
}


def network(norm: str, activation: str) -> nn.Module:
    convolutions = [nn.Conv2d(a, CHANNELS, 3, padding=1) for a in (3, CHANNELS)]
    made = [convolutions[0], NORMS[norm](CHANNELS), ACTIVATIONS[activation](), convolutions[1]]

    class Loss(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().mean()

    return Loss(*made).train()


CASES = [
    *((norm, "relu", order) for norm in NORMS for order in ORDERS),
    *(("both", activation, "last") for activation in ACTIVATIONS if activation != "relu"),
]


@pytest.mark.parametrize(("norm", "activation", "order"), one_of(2, CASES))
def test_a_network_learns_as_eager(norm: str, activation: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_layouts, "LEAST", ORDERS[order])
    agree(*three(network(norm, activation), steps=3))


def kept(module: nn.Module, x: Tensor) -> list[int]:
    """Return the sizes of different memory that the backward pass is given, parameters' not."""
    own, seen = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *module.buffers())}, dict[int, int]()

    def pack(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = torch.compile(module, backend="renorm")(x)
    loss.backward()
    return sorted(n for at, n in seen.items() if at not in own)


@pytest.mark.parametrize("order", list(ORDERS))
def test_images_are_kept_once(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images, what the norms read, what the second convolution reads and gives, statistics: no slice, no copy."""
    monkeypatch.setattr(convolution_layouts, "LEAST", ORDERS[order])
    x = torch.randn(4, 3, *SIZE)
    image = 4 * CHANNELS * SIZE[0] * SIZE[1]
    found = kept(network("both", "relu"), x)
    assert [n for n in found if n > 4 * CHANNELS] == [x.numel(), image, image, image]


@pytest.mark.parametrize("order", list(ORDERS))
def test_kernels_read_slices_where_they_lie(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_layouts, "LEAST", ORDERS[order])
    made = compiled_kernels(monkeypatch)
    torch.compile(network("both", "relu"), backend="renorm")(torch.randn(4, 3, *SIZE)).backward()
    names = [k.name for m in made for k in m.report.kernels]
    assert "fused_slice_batch_norm_training" in names
    assert "fused_slice_slice_slice_batch_norm_gradient" in names
    if order == "last":
        assert "fused_slice_reshape_group_norm_training" in names
        assert "fused_slice_reshape_group_norm_gradient" in names


def test_a_graph_whose_norms_read_no_slices_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate reads one half of the channels, the other one is multiplied."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 2 * CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.first(x).chunk(2, 1)
            return self.norm(a * b.sigmoid()).square().mean()

    seen, slices = list[bool](), training_graphs.slice_for_norms

    def compared(joint: Any) -> None:
        before = str(joint.graph)
        slices(joint)
        seen.append(str(joint.graph) == before)

    monkeypatch.setattr(training_graphs, "slice_for_norms", compared)
    torch.compile(Gated().train(), backend="renorm")(torch.randn(4, 3, *SIZE)).backward()
    assert seen == [True]
