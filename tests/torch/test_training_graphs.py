"""torch.compile(backend="renorm") with gradients: around norms renorm runs the graphs, forward and backward."""

from __future__ import annotations

import copy
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from tests.torch.training_networks import ACTIVATIONS, CHANNELS, RANKS, SIZE, Block, Network, learned
from torch import Tensor, fx, nn

import renorm
from renorm.torch import compilations, convolution_layouts, recomputation, training_graphs
from renorm.torch.compilations import Compilation
from renorm.torch.regions import regions

ROOT = Path(__file__).parents[2]
# what PyTorch itself warns of while it captures is not ours
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def begin_anew() -> None:
    torch.compiler.reset()
    compilations._EQUAL.clear()
    torch.manual_seed(0)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small activations made again, too."""
    monkeypatch.setattr(recomputation, "LEAST", 1)


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.name == "renorm.torch")


def compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return where the modules of parts are collected."""
    made, module = list[Any](), Compilation.module
    monkeypatch.setattr(Compilation, "module", lambda self: made.append(module(self)) or made[-1])
    return made


def steps(x: Tensor) -> list[int]:
    """Return the strides of axes that have more than one element."""
    return [s for s, n in zip(x.stride(), x.shape) if n != 1]


def agree(found: dict[str, Tensor], eager: dict[str, Tensor], exact: dict[str, Tensor], least: float = 1e-5) -> None:
    """No further from float64 than a few times what eager PyTorch is, of the largest element; `least` is allowed."""
    assert found.keys() == exact.keys()
    for name, wanted in exact.items():
        if not wanted.is_floating_point():
            assert torch.equal(found[name], wanted), name
            continue
        assert found[name].dtype == eager[name].dtype, name
        assert steps(found[name]) == steps(eager[name]), name
        scale = float(wanted.abs().max()) + 1e-6
        own, other = (float((v[name].double() - wanted).abs().max()) / scale for v in (found, eager))
        assert own <= 4 * other + least, f"{name}: {own}, and eager PyTorch {other}"


def kept(run: Any, *given: Tensor) -> int:
    """Return how many tensors as large as the first one the backward pass is given."""
    packed = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        run(*given)
    return len({t.untyped_storage().data_ptr() for t in packed if t.numel() >= given[0].numel()})


def three(module: nn.Module, **how: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return what is learned: compiled, eager, and in float64."""
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    found = learned(module, torch.compile(module, backend="renorm"), **how)
    wanted = learned(eager, eager, **how)
    how.pop("autocast", None)
    return found, wanted, learned(exact, exact, **how)


def _in_order(module: nn.Module, order: torch.memory_format) -> nn.Module:
    for p in module.parameters():
        p.data = p.data.contiguous(memory_format=order) if p.dim() == 4 else p.data
    return module


def test_ten_steps_are_eagers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "renorm.torch"):
        agree(*three(Network().train()))
    assert "7 of 7 norms" in told(caplog)  # PyTorch takes RMS norms apart
    assert "stay PyTorch's" not in told(caplog)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_steps_with_all_made_again_that_can_be(order: torch.memory_format) -> None:
    agree(*three(_in_order(Network().train(), order), order=order, steps=3))


def test_channels_last() -> None:
    agree(*three(_in_order(Network().train(), torch.channels_last), order=torch.channels_last, steps=3))


@pytest.mark.slow
def test_checkpointed() -> None:
    """As without: eager PyTorch would update running statistics in the second forward pass, too."""
    module = Network().train()
    again = copy.deepcopy(module)
    again.checkpointed = True
    found = learned(again, torch.compile(again, backend="renorm"), steps=3)
    agree(found, *three(module, steps=3)[1:])


@pytest.mark.slow
def test_autocast() -> None:
    found, eager, exact = three(Network().train(), autocast=torch.bfloat16, steps=2)
    agree(found, eager, exact, least=2e-2)


def test_functional_call() -> None:
    module = Network().train()
    held = {k: v.detach().clone() for k, v in module.state_dict().items()}
    parameters = {k: v.requires_grad_() for k, v in held.items() if v.is_floating_point() and "running" not in k}

    def run(given: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, given, (x,))

    x = torch.randn(4, 3, *SIZE)
    made = []
    for call in (run, torch.compile(run, backend="renorm")):
        own = {k: v.detach().clone().requires_grad_() for k, v in parameters.items()}
        call(own, x).square().mean().backward()
        made.append({k: v.grad for k, v in own.items()})
    for name, wanted in made[0].items():
        assert wanted is not None
        torch.testing.assert_close(made[1][name], wanted, rtol=1e-3, atol=1e-5 + 1e-4 * float(wanted.abs().max()))


@pytest.mark.slow
def test_three_ranks_learn_alike(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    for kind in ("eager", "compiled"):
        (tmp_path / kind).mkdir()
        call = [sys.executable, "-m", "tests.torch.training_networks", str(tmp_path / kind), kind]
        processes = [
            subprocess.Popen(call, cwd=ROOT, env=environment | {"RANK": str(r)}, stderr=subprocess.PIPE, text=True)
            for r in range(RANKS)
        ]
        said = [p.communicate(timeout=400)[1] for p in processes]
        assert [p.returncode for p in processes] == [0] * RANKS, "\n".join(said)
    for rank in range(RANKS):
        eager, found = (dict(np.load(tmp_path / kind / f"{rank}.npz")) for kind in ("eager", "compiled"))
        for name, wanted in eager.items():
            largest = float(np.abs(wanted).max())
            np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-4 * largest + 1e-6, err_msg=name)


def test_relu_and_residual_are_in_the_norms_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled_kernels(monkeypatch)
    block = Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).train()
    x = torch.randn(5, CHANNELS, *SIZE, requires_grad=True)
    torch.compile(block, backend="renorm")(x).square().sum().backward()
    kernels = sorted(k.name for m in made for k in m.report.kernels)
    assert kernels == ["batch_norm_gradient", "batch_norm_gradient", "batch_norm_training", "batch_norm_training"]


class _Downsampling(nn.Module):
    """act(norm(conv(x)) + norm(conv(x)))"""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(CHANNELS, 16, 1, stride=2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        first, second = (norm(conv(x)) for conv, norm in zip(self.convs, self.norms))
        return (first + second).relu()


def test_modules_keep_no_image_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no image in arenas: what one norm gives another is a tensor."""
    made = compiled_kernels(monkeypatch)
    x = torch.randn(5, CHANNELS, *SIZE, requires_grad=True)
    y = torch.compile(_Downsampling().train(), backend="renorm")(x)
    y.square().sum().backward()
    assert len(made) == 4
    assert max(m.report.memory.arena for m in made) < y.numel() * y.element_size()


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
def test_activations(kind: str) -> None:
    agree(*three(_After(Block(nn.BatchNorm2d(CHANNELS), nn.GroupNorm(4, CHANNELS), kind)).train(), steps=2))


class _After(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, CHANNELS, 1), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_results_of_norms_are_not_kept(norm: str) -> None:
    """Of norm and activation the backward pass is given the norm's input alone."""
    made = {
        "batch": lambda: nn.BatchNorm2d(CHANNELS),
        "group": lambda: nn.GroupNorm(2, CHANNELS),
        "layer": lambda: nn.LayerNorm([*SIZE]),
    }[norm]()
    module = nn.Sequential(made, nn.SiLU())
    x = torch.randn(4, CHANNELS, *SIZE, requires_grad=True)
    assert kept(torch.compile(module, backend="renorm"), x) == 1


@pytest.mark.parametrize("kind", ["relu", "silu", "relu6", "hardswish", "elu", "mish"])
@pytest.mark.parametrize("least", [1, 10**6], ids=["last", "first"])
@pytest.mark.usefixtures("little_memory")
def test_activations_of_batch_norms_are_not_kept(kind: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of convolution, norm, activation, convolution the backward pass is given what the first and the norm read."""
    monkeypatch.setattr(convolution_layouts, "LEAST", least)  # pixels from which images are channels_last
    convs = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2)]
    module = nn.Sequential(convs[0], nn.BatchNorm2d(CHANNELS), ACTIVATIONS[kind](), convs[1])
    x = torch.randn(4, CHANNELS, *SIZE, requires_grad=True)
    assert kept(torch.compile(module, backend="renorm"), x) == 2


@pytest.mark.parametrize("kind", ["relu", "silu", "hardswish"])
@pytest.mark.usefixtures("little_memory")
def test_activations_are_made_again(kind: str) -> None:
    agree(*three(_After(Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS), kind)).train(), steps=3))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_of_a_chain_of_sums_every_other_one_is_kept(blocks: int) -> None:
    """Of each block what its norms read; u, relu(norm(x) + u) and so on are made again of x and the sum before."""
    inner = [Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)) for _ in range(blocks)]
    module = nn.Sequential(*inner, nn.Conv2d(CHANNELS, CHANNELS, 1))
    x = torch.randn(4, CHANNELS, *SIZE, requires_grad=True)
    assert kept(torch.compile(module.train(), backend="renorm"), x) == 1 + 2 * blocks + blocks // 2
    agree(*three(_After(module).train(), steps=2))


@pytest.mark.usefixtures("little_memory")
def test_what_products_read_of_a_layer_norm_is_made_again() -> None:
    module = nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, CHANNELS), nn.GELU(), nn.Linear(CHANNELS, 1))
    x = torch.randn(5, 60, CHANNELS, requires_grad=True)
    assert kept(torch.compile(module.train(), backend="renorm"), x) == 2  # x, and what GELU reads


class _Norm(nn.Module):
    """Run `between` after a convolution and a batch norm, and another convolution after it."""

    held: Tensor

    def __init__(self, between: Any):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS)
        self.last, self.between = nn.Conv2d(CHANNELS, CHANNELS, 1), between
        self.register_buffer("held", torch.randn(1, CHANNELS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.norm(self.first(x))))


def _halved(own: _Norm, y: Tensor) -> Tensor:
    """Reads a buffer, and then changes it."""
    y = (y + own.held).relu()
    with torch.no_grad():
        own.held.mul_(0.5)
    return y


def _average(own: _Norm, y: Tensor) -> Tensor:
    z = (y - own.held).tanh()
    with torch.no_grad():
        own.held[:, 1:].lerp_(y.mean((0, 2, 3), keepdim=True)[:, 1:], 0.3)
    return z


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("between", [_halved, _average])
def test_a_buffer_that_is_written_to_is_read_as_it_was(between: Any) -> None:
    agree(*three(_Norm(between).train(), steps=3))


def _gated(own: _Norm, y: Tensor) -> Tensor:
    for _ in range(12):
        y = y * y.sigmoid()
    return y


@pytest.mark.usefixtures("little_memory")
def test_what_is_made_again_does_not_grow_with_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is read twice, by values that are made again, too."""
    calls, make = list[fx.Node](), recomputation._made_again

    def counted(*given: Any) -> tuple[fx.Node, list[fx.Node]]:
        made, own = make(*given)
        calls.extend(own)
        return made, own

    monkeypatch.setattr(recomputation, "_made_again", counted)
    agree(*three(_Norm(_gated).train(), steps=2))
    assert 12 < len(calls) < 1000  # 2^12 if each reader had its own


def _tokens(own: _Norm, y: Tensor) -> Tensor:
    norm = nn.functional.layer_norm(y.flatten(2).transpose(1, 2), (CHANNELS,))
    z = norm.relu().view(-1, CHANNELS) @ torch.eye(CHANNELS, dtype=y.dtype)
    return z.view(len(y), -1, CHANNELS).transpose(1, 2).reshape(y.shape)


def _turned(own: _Norm, y: Tensor) -> Tensor:
    """Return a value that is made again in memory [rows, columns, N, C], of which the backward pass takes a view."""
    z = (y.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1) * 2).tanh()
    weights = torch.ones(y.shape[1], 4, dtype=y.dtype)
    return y + (z.permute(2, 3, 0, 1).view(-1, y.shape[1]) @ weights).relu().sum() * 1e-3


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("between", [_tokens, _turned])
def test_what_is_made_again_lies_in_memory_as_it_did(between: Any) -> None:
    agree(*three(_Norm(between).train(), steps=2))


class _NormOfTokens(nn.Module):
    """A batch norm of rank 3, whose gradient lies in memory as [N, tokens, channels]: the graph views it so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 40), nn.BatchNorm1d(40), nn.LazyLinear(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x.flatten(2).transpose(1, 2)).transpose(1, 2)).relu().flatten(1))


def test_gradients_of_tokens_lie_in_memory_as_said() -> None:
    module = _NormOfTokens().train()
    module(torch.randn(2, 3, *SIZE))
    agree(*three(module, steps=2))


def test_small_parts_of_many_images_are_kept() -> None:
    """Halves of a sum of images, which others than norms made."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 1) for _ in range(4))
            self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            y, found = torch.zeros_like(x), list[Tensor]()
            for conv, norm in zip(self.convs, self.norms):
                y = y + norm(conv(x)).relu()
                a, b = y.chunk(2, 1)
                found.append(a * b)
            return torch.cat(found, 1)

    x = torch.randn(4, CHANNELS, *SIZE, requires_grad=True)
    module = Halves().train()
    assert kept(torch.compile(module, backend="renorm"), x) <= kept(module, x)


def test_small_activations_are_kept() -> None:
    """A call takes longer than moving them."""
    module = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), nn.ReLU())
    module.append(nn.Conv2d(CHANNELS, CHANNELS, 1))
    x = torch.randn(4, CHANNELS, *SIZE, requires_grad=True)
    assert kept(torch.compile(module.train(), backend="renorm"), x) == 3


@pytest.mark.usefixtures("little_memory")
def test_an_activation_that_is_a_result_is_kept() -> None:
    """It is there in any case."""

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)
            self.last = nn.Conv2d(CHANNELS, CHANNELS, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.norm(self.first(x)).relu()
            return y, self.last(y)

    packed = list[int]()
    module = Given().train()
    x = torch.randn(4, 3, *SIZE)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.data_ptr()) or t, lambda t: t):
        y, z = torch.compile(module, backend="renorm")(x)
    assert y.data_ptr() in packed
    (y.square().mean() + z.square().mean()).backward()
    assert module.first.weight.grad is not None


def test_norms_that_are_frozen() -> None:
    module = Network().train()
    for part in module.modules():
        if isinstance(part, Block):
            part.norm1.eval()
    agree(*three(module, steps=3))


def test_bytes_are_those_of_kernels(caplog: pytest.LogCaptureFixture) -> None:
    """Norm, addition and ReLU read x and r and write y; one by one they read four tensors and write three. The kernel
    of the gradient reads dy, x and y and writes two; one by one they read four and write two."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(CHANNELS)

        def forward(self, x: Tensor, r: Tensor) -> Tensor:
            return (self.norm(x) + r).relu()

    x, r = (torch.randn(64, CHANNELS, *SIZE, requires_grad=True) for _ in range(2))
    with caplog.at_level(logging.INFO, "renorm.torch"):
        torch.compile(Joined().train(), backend="renorm")(x, r).sum().backward()
    said = [float(n) for n in re.findall(r"([-\d.]+) MB", told(caplog))]
    tensor = x.numel() * 4 / 1e6
    np.testing.assert_allclose(said, [(7 - 3) * tensor, (6 - 5) * tensor], atol=0.06)


def test_backward_graphs_are_there_before_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What making them takes does not lie between tensors of the step."""
    made, cut = list[Any](), training_graphs.cut
    monkeypatch.setattr(training_graphs, "cut", lambda *given: made.append(cut(*given)) or made[-1])
    run = torch.compile(Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).train(), backend="renorm")
    run(torch.randn(5, CHANNELS, *SIZE, requires_grad=True))
    assert len(made) == 2


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_where_parts_are_compiled(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = list[Any]()
    if where == "here":
        monkeypatch.setattr("renorm.training.graphs.asked", lambda graph, options: None)
    monkeypatch.setattr("renorm.torch.compilations.compile", lambda g, **o: here.append(g) or renorm.compile(g, **o))
    agree(*three(_After(Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS))).train(), steps=2))
    assert bool(here) == (where == "here")


def test_a_residual_that_is_made_of_the_norm_itself() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.first(x))
            return (y + y.sigmoid()).relu() + (y + y).relu()

    agree(*three(Twice().train(), steps=2))


def test_what_is_called_norm_and_is_none() -> None:
    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)
            self.last = nn.utils.parametrizations.weight_norm(nn.Linear(CHANNELS, 5))

        def forward(self, x: Tensor) -> Tensor:
            y = nn.functional.normalize(self.norm(self.first(x)), dim=1)
            return self.last(nn.functional.local_response_norm(y, 3).mean((2, 3))) + y.norm()

    agree(*three(Cosine().train(), steps=3), least=1e-4)  # all of the gradient of y.norm() cancels in normalize's


def test_scaled_gradients() -> None:
    """GradScaler finds what is infinite in gradients, and skips that step."""
    module, scaler = Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).train(), torch.amp.GradScaler("cpu")
    run, optimizer = torch.compile(module, backend="renorm"), torch.optim.SGD(module.parameters(), lr=0.1)
    held = [p.detach().clone() for p in module.parameters()]
    for scale in (float("inf"), 1.0):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = run(torch.randn(5, CHANNELS, *SIZE))
        scaler.scale((y.float() * scale).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        is_same = all(torch.equal(a, b) for a, b in zip(held, module.parameters()))
        assert is_same == (scale != 1.0)


def test_a_backward_pass_runs_again() -> None:
    module = _After(Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS))).train()
    loss = torch.compile(module, backend="renorm")(torch.randn(5, 3, *SIZE)).square().mean()
    first, second = (torch.autograd.grad(loss, [*module.parameters()], retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_double_backward_is_an_error_of_pytorchs() -> None:
    module = Block(nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(CHANNELS)).train()
    x = torch.randn(5, CHANNELS, *SIZE, requires_grad=True)
    y = torch.compile(module, backend="renorm")(x)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        dx.sum().backward()


def test_empty_batches_and_new_sizes() -> None:
    module = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), nn.GroupNorm(2, CHANNELS), nn.SiLU()).train()
    run = torch.compile(module, backend="renorm")
    for size in (4, 7, 0, 3):
        x = torch.randn(size, 3, *SIZE)
        y = run(x)
        y.sum().backward()
        torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)


# --- regions ----------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[fx.GraphModule, set[fx.Node]]:
    """Return a random graph, and calls of it that may be in regions."""
    draw, graph = np.random.default_rng(seed), fx.Graph()
    made = [graph.placeholder(f"x{i}") for i in range(3)]
    may = set[fx.Node]()
    for _ in range(int(draw.integers(4, 40))):
        read = tuple(made[int(draw.integers(max(0, len(made) - 8), len(made)))] for _ in range(2))
        made.append(graph.call_function(torch.add, read))
        if draw.random() < 0.6:
            may.add(made[-1])
    graph.output(made[-1])
    return fx.GraphModule(nn.Module(), graph), may


@pytest.mark.parametrize("seed", range(60))
def test_regions_can_run_one_after_the_other(seed: int) -> None:
    calls, may = drawn(seed)
    singles = {n for i, n in enumerate(calls.graph.nodes) if i % 3 == seed % 2}
    late = {n for i, n in enumerate(calls.graph.nodes) if i % 4 == seed % 5}
    found = regions(calls, may.__contains__, singles.__contains__, late.__contains__)
    assert all(len(singles.intersection(region)) < 2 for region in found)
    assert all(len(region) == 1 or region[-1] not in late for region in found)  # nothing of theirs read them
    of = {n: i for i, region in enumerate(found) for n in region}
    assert of.keys() == may
    ready, waiting = set[fx.Node](), list(calls.graph.nodes)
    while waiting:  # whole regions at once, when all that they read from outside is there
        held = len(waiting)
        for node in waiting:
            region = found[of[node]] if node in of else [node]
            if all(m in ready or m in region for n in region for m in n.all_input_nodes):
                ready.update(region)
        waiting = [n for n in waiting if n not in ready]
        assert len(waiting) < held, "regions wait for each other"
