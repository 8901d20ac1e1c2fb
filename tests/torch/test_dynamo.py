"""torch.compile(backend="renorm"), and compiled modules inside programs of PyTorch."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from torch import nn

import renorm
import renorm.torch
from renorm.torch import compilations, constants, recomputation, training_graphs

# what PyTorch itself warns of while it captures is not ours
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def net() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    for buffer in norm.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        norm,
        nn.ReLU(inplace=True),
        nn.GroupNorm(2, 8),
        nn.Flatten(),
        nn.Linear(8 * 30, 5),
        nn.LayerNorm(5),
    )
    return made.eval()


def agree(module: nn.Module, compiled: Any, *xs: torch.Tensor) -> None:
    """Within 1e-4 of the largest result, as networks are held to."""
    with torch.no_grad():
        wanted = module(*xs)
        torch.testing.assert_close(compiled(*xs), wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.name == "renorm.torch")


def test_a_whole_network_is_one_part(caplog: pytest.LogCaptureFixture) -> None:
    module = net()
    compiled = torch.compile(module, backend="renorm")
    with caplog.at_level(logging.INFO, "renorm.torch"):
        agree(module, compiled, torch.randn(2, 3, 5, 6))
    assert "in 1 parts" in told(caplog)


def test_a_dynamic_batch_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    monkeypatch.setattr(compilations, "compile", lambda g, **o: calls.append(g) or renorm.compile(g, **o))
    module = net()
    compiled = torch.compile(module, backend="renorm", dynamic=True)
    for size in (2, 3, 7):
        agree(module, compiled, torch.randn(size, 3, 5, 6))
    assert len(calls) == 1


def test_what_is_not_read_stays_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.a(x))
            return torch.tanh(self.b(torch.special.i0(y))) + y

    module = Odd()
    compiled = torch.compile(module, backend="renorm")
    with caplog.at_level(logging.INFO, "renorm.torch"):
        agree(module, compiled, torch.randn(4, 6))
    assert "i0.default" in told(caplog)
    assert "in 2 parts" in told(caplog)


class Constants(nn.Module):
    """Makes constants in forward, as models of text make what stands for hidden scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = torch.tensor(0.1)
        y = torch.where(x > low, x, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        return torch.relu(torch.special.i0(y - low) * low).maximum(low)  # of which PyTorch keeps i0


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - torch.tensor(3.0), (x,))
        return torch.softmax(y, -1)


@pytest.mark.parametrize(("module", "parts"), [(Constants(), 2), (Branches(), 1)], ids=["constants", "branches"])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_constants_and_bodies_are_read(
    module: nn.Module, parts: int, with_gradients: bool, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.compile(module, backend="renorm")
    with caplog.at_level(logging.INFO, "renorm.torch"):
        for x in (torch.rand(4, 6), -torch.rand(4, 6)):
            if with_gradients:
                torch.testing.assert_close(compiled(x.requires_grad_()), module(x))
            else:
                agree(module, compiled, x)
    assert with_gradients or f"in {parts} parts" in told(caplog)
    assert told(caplog).count("stays PyTorch's") == (parts == 2 and not with_gradients)


def test_what_reads_something_that_is_not_read_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float8_e4m3fn).view(torch.uint8).float() + 1

    with caplog.at_level(logging.INFO, "renorm.torch"), torch.no_grad():
        x = torch.randn(4, 6)
        torch.testing.assert_close(torch.compile(odd, backend="renorm")(x), odd(x))
    assert "it reads _to_copy, which renorm does not" in told(caplog)
    assert "in 1 parts" in told(caplog)  # of what PyTorch gives


def test_parameters_that_are_written_to_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    module = net()
    compiled, x = torch.compile(module, backend="renorm"), torch.randn(2, 3, 5, 6)
    agree(module, compiled, x)
    with caplog.at_level(logging.INFO, "renorm.torch"):
        for step in range(3):
            with torch.no_grad():
                for p in module.parameters():
                    p.add_(0.1 * (step + 1))
            agree(module, compiled, x)
    assert told(caplog).count("written to") == 2  # compiled anew, then inputs for good


def test_what_is_written_through_data_is_seen() -> None:
    """No version counts it: averages of weights, target networks, clipped weights."""
    module, xs = net(), torch.randn(2, 3, 5, 6)
    compiled = torch.compile(module, backend="renorm")
    for _ in range(4):
        agree(module, compiled, xs)
        for p in module.parameters():
            p.data.mul_(0.5).add_(0.01)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


def blocks(count: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Return blocks, which Dynamo captures once for all of them, and the same compiled one by one."""
    module = nn.Sequential(*(Block() for _ in range(count))).eval()
    plain = copy.deepcopy(module)
    for block in module:
        block.compile(backend="renorm")
    return plain, module


def test_blocks_have_constants_of_their_own(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    monkeypatch.setattr(compilations, "compile", lambda g, **o: made.append(g) or renorm.compile(g, **o))
    plain, compiled = blocks(3)
    with caplog.at_level(logging.INFO, "renorm.torch"):
        for _ in range(3):
            agree(plain, compiled, torch.randn(2, 6))
        assert len(made) == 3
        assert "written" not in told(caplog)
        for changes in range(2):  # of one block: it alone is compiled anew, then those after it, with an input
            with torch.no_grad():
                for block in (plain[1], compiled[1]):
                    next(block.parameters()).mul_(1.5)
            agree(plain, compiled, torch.randn(2, 6))
            assert len(made) == (4, 6)[changes]
    assert "1 of them as inputs" in told(caplog)


def test_parameters_in_other_places_are_seen() -> None:
    plain, compiled = blocks(2)
    for _ in range(3):
        agree(plain, compiled, torch.randn(2, 6))
        for own, other in zip(plain.parameters(), compiled.parameters(), strict=True):
            own.data = own.data + 0.5
            other.data = own.data.clone()


def test_constants_of_many_modules_are_inputs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "SETS", 2)
    plain, compiled = blocks(4)
    with caplog.at_level(logging.INFO, "renorm.torch"):
        for _ in range(2):
            agree(plain, compiled, torch.randn(2, 6))
    assert told(caplog).count("many modules call one part: their 4 parameters are inputs") == 1


def test_constants_of_modules_that_are_gone_are_let_go_of(caplog: pytest.LogCaptureFixture) -> None:
    """Models that are built, evaluated and dropped; of one call each, in the end."""
    seen = list[Any]()
    with caplog.at_level(logging.INFO, "renorm.torch"):
        for calls in (2, 2, 2, 2, 1, 1, 1, 1):
            plain, compiled = blocks(1)
            for _ in range(calls):
                agree(plain, compiled, torch.randn(2, 6))
            seen.append(weakref.ref(compiled[0].get_parameter("linear.weight").untyped_storage()))
            del plain, compiled
            gc.collect()
            assert "are inputs" not in told(caplog) or len(seen) > 6
    assert sum(x() is not None for x in seen) <= 1
    assert told(caplog).count("are inputs") == 1


def test_norms_that_are_frozen(caplog: pytest.LogCaptureFixture) -> None:
    """Of what they were trained on, with gradients for what stands around them."""
    module, x = net(), torch.randn(2, 3, 5, 6, requires_grad=True)
    weights = torch.randn(2, 5)
    (torch.compile(module, backend="renorm")(x) * weights).sum().backward()
    found = [x.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    x.grad = None
    (module(x) * weights).sum().backward()
    for a, b in zip(found, [x.grad, *(p.grad for p in module.parameters())], strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))
    assert "stay PyTorch's" not in told(caplog)


def test_with_gradients() -> None:
    module = net()
    compiled, x = torch.compile(module, backend="renorm"), torch.randn(2, 3, 5, 6)
    compiled(x).sum().backward()
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    module(x).sum().backward()
    for a, b in zip(found, (p.grad for p in module.parameters()), strict=True):
        torch.testing.assert_close(a, b)


def test_results_keep_the_order_of_memory() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    for p in module.parameters():
        p.data = p.data.contiguous(memory_format=torch.channels_last if p.dim() == 4 else torch.contiguous_format)
    compiled = torch.compile(module, backend="renorm")
    x = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last)
    agree(module, compiled, x)
    with torch.no_grad():
        assert compiled(x).stride() == module(x).stride()


@pytest.mark.parametrize("channels", [5, 6])
@pytest.mark.parametrize("norm", [nn.InstanceNorm1d, nn.GroupNorm])
def test_training_with_open_extents(norm: Any, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of norms whose channels only a scale tells, or nobody, and of views of memory in another order than stated."""
    for module, of in ((training_graphs, "LEAST"), (recomputation, "LEAST")):
        monkeypatch.setattr(module, of, 1)
    for affine in (True, False):
        given = (1, channels) if norm is nn.GroupNorm else (channels,)
        own = nn.Sequential(norm(*given, affine=affine), nn.Mish(), nn.Linear(6, 4)).train()
        compiled = torch.compile(own, backend="renorm", dynamic=True)
        for n in (4, 3):
            x = torch.randn(n, channels, 6, requires_grad=True)
            found, wanted = (
                torch.autograd.grad(f(x).transpose(0, 1).flatten(1).square().sum(), [x, *own.parameters()])
                for f in (compiled, own)
            )
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def test_views_of_memory_in_another_order_than_stated() -> None:
    """PyTorch's own gradient of softplus is contiguous, where the graph says that it lies as its input."""
    linear, x = nn.Linear(6, 6), torch.randn(2, 6, 4, 6, requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(linear(x).permute(2, 0, 3, 1))

    found = torch.autograd.grad(torch.compile(run, backend="renorm", dynamic=True)(x).sum(), [x, linear.weight])
    for a, b in zip(found, torch.autograd.grad(run(x).sum(), [x, linear.weight]), strict=True):
        torch.testing.assert_close(a, b)


ORDERS: dict[str, Any] = {
    "matrix": lambda x: x.flatten(1).relu().t() + 1,
    "tokens": lambda x: (x.flatten(2).sigmoid() * 2).transpose(1, 2).exp(),
    "volume": lambda x: (x.unflatten(1, (2, -1)) * 2).permute(3, 0, 4, 2, 1).exp(),
    "slice": lambda x: x.relu().permute(2, 3, 0, 1)[1:, :2] * 2,
    "sequence of six axes": lambda x: x.reshape(1, *x.shape[:2], 1, *x.shape[2:]).permute(5, 0, 2, 4, 1, 3).relu(),
}


def test_a_part_of_a_result_has_the_gaps_that_it_has_there() -> None:
    compiled, x = torch.compile(lambda x: (x + 1).relu()[:, 1:3], backend="renorm"), torch.randn(3, 4, 5, 6)
    assert compiled(x).stride() == (120, 30, 6, 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", sorted(ORDERS))
def test_results_of_any_rank_keep_the_order_of_memory(kind: str, dynamic: bool) -> None:
    compiled = torch.compile(ORDERS[kind], backend="renorm", dynamic=dynamic)
    for size in (5, 7):
        x = torch.randn(3, 4, size, 6)
        found, wanted = compiled(x), ORDERS[kind](x)
        torch.testing.assert_close(found, wanted)
        steps = [(a, b) for a, b, n in zip(found.stride(), wanted.stride(), wanted.shape) if n != 1]
        assert all(a == b for a, b in steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(16, 12), nn.LayerNorm(12), nn.GELU()).eval().to(dtype)
    compiled, x = torch.compile(module, backend="renorm"), torch.randn(5, 16, dtype=dtype)
    with torch.no_grad():
        found, wanted = compiled(x), module(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2 if dtype != torch.float32 else 1e-4, atol=2e-2)


def test_a_compiled_module_is_a_layer() -> None:
    module, x = net(), torch.randn(2, 3, 5, 6)
    batch = torch.export.Dim("batch", min=1)
    layer = renorm.compile(module, args=(x,), dynamic_shapes=({0: batch},)).as_torch()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(x * 2).softmax(-1)

    around = Around()
    with torch.no_grad():
        wanted = module(x * 2).softmax(-1)
        torch.testing.assert_close(around(x), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.compile(around, backend="eager")(x), wanted, rtol=1e-4, atol=1e-5)
        program = torch.export.export(around, (x,), dynamic_shapes=({0: batch},))
        other = torch.randn(5, 3, 5, 6)
        torch.testing.assert_close(program.module()(other), module(other * 2).softmax(-1), rtol=1e-4, atol=1e-5)


def test_a_layer_is_copied_and_kept(tmp_path: Any) -> None:
    x = torch.randn(2, 4)
    layer = renorm.compile(nn.Linear(4, 3), args=(x,)).as_torch()
    whole = nn.Sequential(layer)
    torch.save(whole, tmp_path / "whole.pt")
    for other in (copy.deepcopy(whole), torch.load(tmp_path / "whole.pt", weights_only=False)):
        assert other[0] is not layer
        assert torch.equal(other(x), layer(x))


def test_a_copied_layer_has_state_of_its_own() -> None:
    x = torch.randn(3, 4)
    layer = renorm.compile(nn.BatchNorm1d(4).train(), args=(x,)).as_torch()
    other = copy.deepcopy(layer)
    layer(x)
    before, after = (m.compiled.state["running_mean"] for m in (other, layer))
    assert not np.array_equal(before, after)
    other(x)
    assert np.array_equal(other.compiled.state["running_mean"], after)


def test_a_loaded_module_is_a_layer(tmp_path: Any) -> None:
    module, x = net(), torch.randn(2, 3, 5, 6)
    renorm.compile(module, args=(x,)).save(tmp_path / "net.renorm")
    layer = renorm.load(tmp_path / "net.renorm").as_torch()
    np.testing.assert_allclose(layer(x).numpy(), module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
