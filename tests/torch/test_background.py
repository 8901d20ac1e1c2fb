"""A shape that comes for the first time: torch computes until kernels are there, and nobody waits unless told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.pairs import agree, close, pair
from torch.utils.checkpoint import checkpoint

import renorm.torch as ours
from renorm.runtime.module import Module
from renorm.training import background, kernels

PATIENCE_S = 300.0
LAYERS: dict[str, Any] = {
    "BatchNorm1d": ((11,), {}),
    "InstanceNorm1d": ((11,), {"affine": True, "track_running_stats": True}),
    "GroupNorm": ((1, 11), {}),
    "LayerNorm": ((11,), {}),
    "RMSNorm": ((11, 1e-6), {}),
}
_sizes = count(3)  # shapes that no other test here has


@pytest.fixture(autouse=True)
def it_is_on(kernels_are_waited_for: None) -> None:
    ours.set_background(True)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[background.Background]:
    """A process of this test, which it may end."""
    made = background.Background()
    monkeypatch.setattr(kernels, "BACKGROUND", made)
    monkeypatch.setattr("renorm.torch.kernels.BACKGROUND", made)
    yield made
    made._lose()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels' ops."""
    names, run_at = list[str](), Module.run_at

    def counted(self: Module, *args: Any) -> None:
        names.append(self.name)
        run_at(self, *args)

    monkeypatch.setattr(Module, "run_at", counted)
    return names


def data() -> Any:
    return torch.randn(next(_sizes), 11, 11, generator=torch.Generator().manual_seed(0))


def step(layer: Any, x: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.pow(2).sum().backward()
    return [y.detach(), x.grad, *[p.grad for p in layer.parameters()], *[b.clone() for b in layer.buffers()]]


@pytest.mark.parametrize("kind", LAYERS)
def test_torch_computes_until_kernels_are_there(kind: str, ran: list[str]) -> None:
    args, options = LAYERS[kind]
    x, (theirs, mine) = data(), pair(kind, *args, **options)
    for a, b in zip(step(mine, x), step(theirs, x), strict=True):
        assert torch.equal(a, b)
    assert not ran
    for _ in range(2):  # the forward pass asks for its kernel, then the backward pass
        assert ours.wait(PATIENCE_S)
        for a, b in zip(step(mine, x), step(theirs, x), strict=True):
            close(a.double(), b.double(), torch.float32)
    assert ["gradient" in op for op in ran] == [False, False, True]
    for m in (mine, theirs):
        m.eval()
    step(mine, x)
    assert ours.wait(PATIENCE_S)
    for a, b in zip(step(mine, x), step(theirs, x), strict=True):
        close(a.double(), b.double(), torch.float32)


def test_a_forward_by_kernels_has_a_backward_by_torch() -> None:
    """Until the second kernel is there; with a ReLU and a residual in the first."""
    x, dy = data(), torch.randn(11, 11)
    layer, theirs = ours.BatchNorm1d(11, relu=True), torch.nn.BatchNorm1d(11)
    residual = torch.randn(x.shape, requires_grad=True)
    layer(x, residual)
    assert ours.wait(PATIENCE_S)
    found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = layer(found, residual), (theirs(expected) + residual).relu()
    assert type(y.grad_fn).__name__ == "_BatchNormBackward"
    close(y, z, torch.float32)
    given = torch.autograd.grad(y, [found, residual, *layer.parameters()], dy.expand(y.shape))
    wanted = torch.autograd.grad(z, [expected, residual, *theirs.parameters()], dy.expand(y.shape))
    for a, b in zip(given, wanted, strict=True):
        close(a, b, torch.float32)


@pytest.mark.parametrize("asks", ["set_background", "deterministic", "checkpoint"])
def test_who_asks_waits(asks: str, ran: list[str]) -> None:
    theirs, mine = pair("LayerNorm", 11)
    x = data()
    try:
        if asks == "set_background":
            ours.set_background(False)
        elif asks == "deterministic":
            torch.use_deterministic_algorithms(True)
        if asks == "checkpoint":
            checkpoint(mine, x.requires_grad_(), use_reentrant=False).sum().backward()
        else:
            agree(theirs, mine, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert ran[0] == "group_norm_training"


def test_a_process_that_dies_loses_nothing(own: background.Background, ran: list[str]) -> None:
    theirs, mine = pair("LayerNorm", 11)
    x = data()
    mine(x)
    assert own._process is not None
    os.kill(own._process.pid, signal.SIGKILL)
    own._process.wait()
    agree(theirs, mine, x)
    agree(theirs, mine, data())
    assert "group_norm_gradient" in ran


def test_no_process_can_be_started(own: background.Background, monkeypatch: pytest.MonkeyPatch, ran: list[str]) -> None:
    monkeypatch.setattr("sys.executable", "")
    agree(*pair("LayerNorm", 11), data())
    assert ran
    assert ours.wait()


def test_what_the_process_says_makes_no_sense(own: background.Background, ran: list[str]) -> None:
    theirs, mine = pair("LayerNorm", 11)
    x = data()
    mine(x)
    own._read += b"\1" + bytes(7) + b"?"
    agree(theirs, mine, x)
    assert ran


def test_a_fork_has_no_part_in_it(own: background.Background) -> None:
    """The parent goes on, the child starts anew, and the process ends when its parent has no more to ask."""
    _, mine = pair("LayerNorm", 11)
    mine(data())
    (key,) = own._asked
    pid = os.fork()
    if pid == 0:  # torch computes nothing there: its threads are gone
        try:
            own.start_over()
            fine = own.answer(key) is None and own.finish(PATIENCE_S) and own.answer(key) != b""
            own._lose()
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert own.finish(PATIENCE_S)
    assert os.waitpid(pid, 0)[1] == 0
    process: Any = own._process
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0


def test_waiting_has_an_end(own: background.Background) -> None:
    _, mine = pair("LayerNorm", 11)
    mine(data())
    begun = time.monotonic()
    assert not ours.wait(0)
    assert time.monotonic() - begun < 60
