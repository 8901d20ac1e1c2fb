"""Convolutions of training in channels_last, and parts on rows of pixels: the same numbers, where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.test_training_graphs import agree, steps, three
from tests.torch.training_networks import SIZE
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from renorm.torch import convolution_layouts, parts
from renorm.torch.calls import is_batch_norm
from renorm.torch.convolution_layouts import put_channels_last
from renorm.torch.instance_norms import as_group_norms
from renorm.torch.pixels import of_pixels

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ATEN = torch.ops.aten
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_layouts, "LEAST", 1)  # of images as small as these
    torch.compiler.reset()
    torch.manual_seed(0)


def traced(f: Callable[..., Any], *given: Any) -> fx.Graph:
    return make_fx(f, tracing_mode="fake")(*given).graph


def run(calls: fx.Graph, *given: Any) -> list[Any]:
    found = fx.Interpreter(fx.GraphModule({}, calls)).run(*given)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def rows(x: Tensor) -> Tensor:
    """x [N, C, *S] -> [N * S, C]."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


# --- rows of pixels ---------------------------------------------------------------------------------------------------

# (y, x, channels [C], around [C, 1, ..]) -> y
STEPS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "relu": lambda y, x, c, a: y.relu(),
    "silu": lambda y, x, c, a: ATEN.silu(y),
    "add": lambda y, x, c, a: y + x,
    "scaled": lambda y, x, c, a: y * a,
    "viewed": lambda y, x, c, a: y - c.view([1, -1, *[1] * (x.dim() - 2)]),
    "number": lambda y, x, c, a: y * 0.5 + 1,
    "where": lambda y, x, c, a: torch.where(x > 0, y, torch.zeros((), dtype=y.dtype)),
    "cast": lambda y, x, c, a: y.float().double(),
    "cloned": lambda y, x, c, a: y.clone(memory_format=torch.contiguous_format),
    "norm": lambda y, x, c, a: ATEN._native_batch_norm_legit_functional(y, c, c, c, c * c + 1, True, 0.1, 1e-5)[0],
    "bare": lambda y, x, c, a: ATEN._native_batch_norm_legit.no_stats(y, None, None, True, 0.1, 1e-5)[0],
    "gradient": lambda y, x, c, a: ATEN.native_batch_norm_backward(
        y, x, c, c, c, c, c * c + 1, True, 1e-5, [True, True, True]
    )[0],
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    shape=st.tuples(st.integers(1, 4), st.integers(2, 7), *[st.integers(2, 5)] * 3),
    rank=st.integers(4, 5),
    seed=st.integers(0, 99),
)
def test_calls_give_the_same_on_rows(names: list[str], shape: tuple[int, ...], rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    y, x = (
        torch.randn(shape[:rank], generator=generator, dtype=torch.float64).to(memory_format=LAST[rank]) for _ in "yx"
    )
    c = torch.randn(shape[1], generator=generator, dtype=torch.float64)
    a = c.view([-1, *[1] * (rank - 2)])

    def chain(y: Tensor, x: Tensor, c: Tensor, a: Tensor) -> Tensor:
        for name in names:
            y = STEPS[name](y, x, c, a)
        return y

    calls = traced(chain, y, x, c, a)
    made = of_pixels(calls)
    assert made is not None
    assert all(n.meta["val"].dim() < 3 for n in made.nodes if isinstance(n.meta.get("val"), Tensor))
    (found,) = run(made, rows(y), rows(x), c, a.flatten())
    torch.testing.assert_close(found, rows(chain(y, x, c, a)))


def _image(order: Any = torch.channels_last, *shape: int) -> Tensor:
    return torch.randn(shape or (2, 6, 4, 5)).to(memory_format=order)


@pytest.mark.parametrize(
    ("f", "given"),
    [
        (lambda x: x.relu(), [_image(torch.contiguous_format)]),
        (lambda x, y, z: x + y + z, [_image(), *[_image(torch.contiguous_format)] * 2]),
        (lambda x: x.reshape(2, 6, 20), [_image()]),
        (lambda x: x.cumsum(3), [_image()]),
        (lambda x, w: x * w, [_image(), torch.randn(5)]),  # of columns, and no channels
        (lambda x, w: x * w, [_image(), torch.randn(4, 1)]),
        (lambda x, w: x * w, [_image(), torch.randn(1, 1, 4, 5)]),  # of pixels of one image
        (lambda x: ATEN.softmax(x, 1, False), [_image()]),
    ],
    ids=["first", "mostly first", "seen otherwise", "along a row", "columns", "lines", "pixels", "softmax"],
)
def test_others_are_left(f: Callable[..., Any], given: list[Tensor]) -> None:
    assert of_pixels(traced(f, *given)) is None


@pytest.mark.parametrize("name", ["view", "getitem", "native_batch_norm_backward"])
def test_an_input_may_have_the_name_of_a_call(name: str) -> None:
    """As what a part reads has, where another part or PyTorch made it."""
    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last)
    calls = traced(lambda x: x.relu() * 2, x)
    (given,) = (n for n in calls.nodes if n.op == "placeholder")
    given.target = given.name = name
    found = of_pixels(calls)
    assert found is not None
    torch.testing.assert_close(run(found, rows(x))[0], rows(x.relu() * 2))


def test_gates_are_read_by_the_rows_of_their_sample() -> None:
    """Of each channel of a sample one number, and numbers computed of these and of channels."""
    x, y, gate, channel = _image(), _image(), torch.randn(2, 6, 1, 1), torch.randn(1, 6, 1, 1)

    def f(x: Tensor, y: Tensor, gate: Tensor, channel: Tensor) -> Tensor:
        of_samples = (gate * channel).sigmoid().view(2, 6).view(2, 6, 1, 1)
        return x * of_samples + y * (1 - gate)

    made = of_pixels(traced(f, x, y, gate, channel))
    assert made is not None
    (found,) = run(made, rows(x), rows(y), gate.flatten(1), channel.flatten())
    torch.testing.assert_close(found, rows(f(x, y, gate, channel)))


def test_a_gate_is_read_by_images_of_two_sizes() -> None:
    """And one number of a sample by all channels."""
    x, z = _image(), _image(torch.channels_last, 2, 6, 3, 2)
    gate, path = torch.randn(2, 6, 1, 1), torch.randn(2, 1, 1, 1)

    def f(x: Tensor, z: Tensor, gate: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
        return x * gate * path, z * gate * path

    made = of_pixels(traced(f, x, z, gate, path))
    assert made is not None
    found = run(made, rows(x), rows(z), gate.flatten(1), path.flatten(1))
    for y, wanted in zip(found, f(x, z, gate, path), strict=True):
        torch.testing.assert_close(y, rows(wanted))


def test_gates_of_other_samples_are_left() -> None:
    assert (
        of_pixels(traced(lambda x, w: x * w, _image(torch.channels_last, 1, 6, 4, 5), torch.randn(3, 6, 1, 1))) is None
    )


# --- convolutions -----------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Convolutions of many kinds, and a view that only memory with channels first allows; a loss, and an image."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), norm(8), nn.SiLU(), nn.Conv2d(8, 12, 1))
        self.norm, self.up = norm(12), nn.ConvTranspose2d(12, 4, 2, stride=2)
        self.small = nn.Sequential(nn.Conv2d(12, 6, 3, stride=2), norm(6))
        self.out = nn.Linear(4 * 4 * SIZE[0] * SIZE[1], 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = nn.functional.max_pool2d(self.stem(x), 3, stride=1, padding=1)
        y = self.norm(self.deep(y) + torch.cat([y, y[:, :4]], 1)).relu()
        z = self.up(y)
        return self.out(z.flatten(1)).square().mean() + self.small(y).sigmoid().mean(), y.detach()


class Loss(nn.Module):
    """The loss alone."""

    def __init__(self, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.network = Network(norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[0]


def _joint(model: nn.Module, x: Tensor) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return the calls of a step as AOTAutograd traces them, and what they are given."""
    made: Any = aot_export_module(model, [x], trace_joint=True, output_loss_index=0, decompositions={})
    joint, signature = made
    held = dict(model.state_dict())
    given = [*(held[n] for n in (*signature.parameters, *signature.buffers)), x]
    FakeTensorProp(joint).propagate(*given)
    return joint, given


class _Checked(fx.Interpreter):
    """Compares where elements lie with what the graph says. Gradients of batch norms are laid so, as parts do."""

    def run_node(self, n: fx.Node) -> Any:
        made, said = super().run_node(n), n.meta.get("val")
        if not isinstance(made, Tensor) or not isinstance(said, Tensor) or n.op != "call_function":
            return made
        if "getitem" in n.name and is_batch_norm(n.all_input_nodes[0]):
            return torch.empty_strided(made.shape, said.stride(), dtype=made.dtype).copy_(made)
        assert steps(made) == steps(said), n.format_node()
        return made


def _changed(order: torch.memory_format = torch.contiguous_format) -> list[tuple[str, list[Tensor]]]:
    """Change a network's step, whose images lie in an order, hold it against what it was, and return its convolutions
    and their gradients, with the images that these read."""
    joint, given = _joint(Network().train(), torch.randn(3, 3, *SIZE).to(memory_format=order))
    wanted = run(joint.graph, *given)
    put_channels_last(joint)
    for mine, theirs in zip(_Checked(joint).run(*given), wanted):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
        assert steps(mine) == steps(theirs)
    calls = [n for n in joint.graph.nodes if n.op == "call_function" and "convolution" in str(n.target)]
    return [(n.name, [x.meta["val"] for x in n.all_input_nodes[: 1 + ("backward" in n.name)]]) for n in calls]


def _is_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_convolutions_read_channels_last(order: torch.memory_format) -> None:
    found = _changed(order)
    assert len(found) == 10
    assert all(_is_last(x) for _, images in found for x in images)


def test_weights_of_few_pixels_take_channels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_layouts, "LEAST", 100)  # the small one has 72, of 351 that it reads
    found = dict(_changed())
    assert len(found) == 10
    small = [name for name, images in found.items() if not _is_last(images[0])]
    assert len(small) == 2
    assert all(x.is_contiguous() for name in small for x in found[name])
    assert all(_is_last(x) for name in found.keys() - small for x in found[name])


@pytest.mark.parametrize(
    "norm",
    [
        lambda c: nn.GroupNorm(2, c),
        lambda c: nn.InstanceNorm2d(c, track_running_stats=True),
        lambda c: nn.BatchNorm2d(c) if c > 6 else nn.GroupNorm(2, c),
    ],
    ids=["group", "instance", "one of them"],
)
def test_other_norms_keep_channels_first(norm: Callable[[int], nn.Module]) -> None:
    joint, _ = _joint(Network(norm).train(), torch.randn(3, 3, *SIZE))
    before = str(joint.graph)
    put_channels_last(joint)
    assert str(joint.graph) == before


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    joint, _ = _joint(Network().train(), torch.randn(3, 3, *SIZE))
    monkeypatch.setattr(convolution_layouts, "_is_onednns", lambda node: False)
    before = str(joint.graph)
    put_channels_last(joint)
    assert str(joint.graph) == before


class Both(nn.Module):
    """Instance norm of some channels, batch norm of the others."""

    def __init__(self, channels: int, affine: bool):
        super().__init__()
        self.cut = channels // 2 - 1
        self.first, self.rest = nn.InstanceNorm2d(self.cut, affine=affine), nn.BatchNorm2d(channels - self.cut)

    def forward(self, x: Tensor) -> Tensor:
        first, rest = x.split([self.cut, x.shape[1] - self.cut], 1)
        return torch.cat([self.first(first), self.rest(rest)], 1)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True),
    "both": lambda channels: Both(channels, affine=True),
    "both, bare": lambda channels: Both(channels, affine=False),
}


@pytest.mark.parametrize("norm", list(NORMS))
def test_a_network_learns_as_eager(norm: str) -> None:
    agree(*three(Loss(NORMS[norm]).train(), steps=3))


@pytest.mark.parametrize("how", ["functional", "bare", "function", "statistics"])
def test_instance_norms_become_group_norms(how: str) -> None:
    """They read rows; where they update statistics they stay what they are."""
    seen = list[str]()
    w, b, held = torch.randn(6), torch.randn(6), torch.rand(6)

    def run(x: Tensor, mean: Tensor) -> Tensor:
        if how == "functional":
            return nn.functional.instance_norm(x, weight=w, bias=b, eps=0.1)
        if how == "bare":
            return nn.functional.instance_norm(x)
        if how == "function":
            return torch.instance_norm(x, w, None, None, None, True, 0.1, 1e-3, True)
        return nn.functional.instance_norm(x, mean, held.clone(), momentum=0.3)

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        as_group_norms(graph)
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    x, mean = torch.randn(3, 6, 5, 4), torch.randn(6)
    found = torch.compile(run, backend=backend)(x, mean.clone())
    torch.testing.assert_close(found, run(x, mean.clone()))
    assert any("group_norm" in name for name in seen) == (how != "statistics")


@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_parts_copy_nothing(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the graphs of a network with norms of channels: images are read where they lie, and given so; but for the last
    one, whose gradient comes from a number, and has no order of its own."""
    copied, dense = list[tuple[int, ...]](), parts._dense

    def seen(x: Tensor, orders: Any) -> Tensor:
        made = dense(x, orders)
        if made.data_ptr() != x.data_ptr():
            copied.append(tuple(x.shape))
        return made

    def laid_out(y: Tensor, like: Any) -> Tensor:
        copied.append(tuple(y.shape))
        return y

    compiled = torch.compile(Loss(NORMS[norm]).train(), backend="renorm")
    monkeypatch.setattr(parts, "_dense", seen)
    monkeypatch.setattr(parts, "_laid_out", laid_out)
    compiled(torch.randn(3, 3, *SIZE)).backward()
    assert set(copied) == {(3, 6, 6, 4)}
