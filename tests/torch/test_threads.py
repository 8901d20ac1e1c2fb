"""Kernels run on torch's own threads: as many, and the same bits as on ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from renorm.runtime.openmp import ParallelRegion
from renorm.torch import BatchNorm2d, LayerNorm
from renorm.torch import kernels as torchs
from renorm.training import kernels


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _asked() -> Any:
    """What kernels are asked to run on."""
    return torchs.team()


def _trained(layer: Any, x: Any) -> list[Any]:
    """All that a layer gives, forward and backward."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(torch.sin(y.detach()))
    return [y, x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("build", [lambda: BatchNorm2d(37), lambda: LayerNorm([21, 19])], ids=["batch", "layer"])
def test_bits_are_the_same_on_both_teams(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build()
    x = torch.randn(6, 37, 21, 19, generator=torch.Generator().manual_seed(3))
    found = list[Any]()
    for user in (torchs._OPENMP_USER, None):
        monkeypatch.setattr(torchs, "_OPENMP_USER", user)
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(_trained(layer, x))
            module = next(
                m for k, m in kernels._modules._made.items() if k[2] == _asked() and prod(k[3][0][0]) == x.numel()
            )
            assert module.threads == module._team.threads == n
            assert module._team._region == (_asked() if user and n > 1 else None)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="this PyTorch has no OpenMP")
def test_threads_are_those_of_torchs_openmp() -> None:
    torch.set_num_threads(3)
    region, before = _asked(), threading.active_count()
    assert isinstance(region, ParallelRegion)
    assert region.threads == 3
    _trained(BatchNorm2d(4), torch.randn(6, 4, 5, 5))
    assert threading.active_count() == before


def test_callers_at_once() -> None:
    """Each asks for another number of threads, which torch keeps for each Python thread."""
    layer = BatchNorm2d(6).train()
    x = torch.randn(4, 6, 31, 33, generator=torch.Generator().manual_seed(5))
    expected, wrong = layer(x), list[int]()

    def work(n: int) -> None:
        torch.set_num_threads(n)
        for k in range(30):
            if not torch.equal(layer(x), expected):
                wrong.append(k)

    callers = [threading.Thread(target=work, args=(1 + n % 3,)) for n in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


def test_where_torch_has_no_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    for user, region in ((None, torchs.openmp.region), ("a library", lambda *_: None)):
        monkeypatch.setattr(torchs, "_OPENMP_USER", user)
        monkeypatch.setattr(torchs.openmp, "region", region)
        assert _asked() == 2
