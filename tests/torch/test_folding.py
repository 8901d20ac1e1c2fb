"""Norms of modules: what folds, what does not and why, and the way back. The oracle is the model itself in float64."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import renorm.torch as ours
from renorm.errors import InvalidInput, VerificationError


def drawn(model: nn.Module, seed: int = 3, scale_zero: bool = True) -> nn.Module:
    """A model in eval mode with statistics and parameters at random: scales of both signs, and one that is 0."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * (0.5 if p.dim() > 1 else 1.0))
        for m in model.modules():
            var = getattr(m, "running_var", None)
            if isinstance(var, Tensor):
                var.copy_(torch.rand(var.shape, generator=g) + 0.2)
                m.running_mean.copy_(torch.randn(var.shape, generator=g))  # type: ignore[union-attr]
                if isinstance(weight := m._parameters.get("weight"), Tensor) and scale_zero:
                    weight[0] = 0.0
    return model.eval()


def bits(model: nn.Module) -> dict[str, Any]:
    return {name: (t.dtype, t.detach().clone()) for name, t in model.state_dict().items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return [*a] == [*b] and all(a[k][0] == b[k][0] and torch.equal(a[k][1], b[k][1]) for k in a)


def reasons(model: nn.Module, *args: Any, **more: Any) -> dict[str, str]:
    return {n.path: n.reason for n in ours.inspect(model, args, **more).norms if n.fate == "kept"}


def folds(model: nn.Module, *args: Any, gone: int | None = None, **more: Any) -> Any:
    """Fold a model; hold what comes of it against the model in float64; undo it, bit for bit."""
    before, text = bits(model), repr(model)
    known = ours.inspect(model, args)
    result = ours.fold(model, args, **more)
    assert same(bits(model), before), "the argument stays as it is"
    assert repr(model) == text
    assert [n.path for n in known.folded] == [n.path for n in result.report.folded]
    if gone is not None:
        assert len(result.report.folded) == gone, str(result.report)
    for n in result.report.folded:
        assert not isinstance(result.module.get_submodule(n.path), type(model.get_submodule(n.path)))
    wide = copy.deepcopy(model).double()
    given = [a.double() if a.is_floating_point() else a for a in args]
    with torch.no_grad():
        wanted, found = wide(*given), result.module(*args)
        unit = torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
        assert found.dtype == model(*args).dtype
        torch.testing.assert_close(found.double(), wanted.double(), rtol=0, atol=100 * unit * size)
    again = result.unfold()
    assert again is result.module
    assert repr(again) == text
    assert same(bits(again), before)
    assert [*vars(again)] == [*vars(model)]
    return result.report


IMAGE = (2, 4, 7, 6)


def norm_of(rank: int, channels: int) -> nn.Module:
    return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](channels)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("turned", [False, True], ids=["conv", "transposed"])
def test_a_convolution_before(rank: int, groups: int, bias: bool, turned: bool) -> None:
    kind = ("ConvTranspose" if turned else "Conv") + f"{rank}d"
    more: dict[str, Any] = {"output_padding": 1} if turned else {"dilation": 2}
    conv = getattr(nn, kind)(4, 8, 3, stride=2, padding=1, groups=groups, bias=bias, **more)
    model = drawn(nn.Sequential(conv, norm_of(rank, 8), nn.ReLU()))
    report = folds(model, torch.randn(2, 4, *(7, 8, 9)[:rank]), gone=1)
    (norm,) = report.norms
    assert (norm.into, norm.is_before, norm.kind, norm.channels, norm.calls) == (("0",), True, "batch_norm", 8, 1)
    assert norm.parameters == 16 - (0 if bias else 8)
    assert norm.bytes == 4 * (32 - (0 if bias else 8)) + 8
    assert report.verified.wide < 1e-12


def test_a_depthwise_convolution_and_same_padding() -> None:
    conv = nn.Conv2d(4, 8, (3, 5), padding="same", padding_mode="reflect", groups=4, bias=False)
    folds(drawn(nn.Sequential(conv, nn.BatchNorm2d(8, affine=False))), torch.randn(IMAGE), gone=1)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_before(bias: bool) -> None:
    folds(drawn(nn.Sequential(nn.Linear(5, 7, bias=bias), nn.BatchNorm1d(7), nn.ReLU())), torch.randn(3, 5), gone=1)


def test_linear_of_three_axes_has_other_channels_than_its_norm() -> None:
    model = drawn(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(4)))
    assert "the factors fall upon, is not a constant" in reasons(model, torch.randn(3, 4, 5))["1"]
    folds(model, torch.randn(3, 4, 5), gone=0)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_of_three_axes_turned(bias: bool) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(5, 6, bias=bias), nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.fc(x).transpose(1, 2)).relu()

    folds(drawn(Turned()), torch.randn(3, 4, 5), gone=1)


@pytest.mark.parametrize(
    "product", [nn.Conv2d(4, 3, 3, bias=False), nn.Conv2d(4, 6, 1, groups=2)], ids=["conv", "grouped"]
)
def test_a_convolution_after(product: nn.Module) -> None:
    report = folds(drawn(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), product)), torch.randn(IMAGE), gone=1)
    assert report.norms[0].into == ("2",)
    assert not report.norms[0].is_before
    assert "into 2 after it" in str(report)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_after(axes: int, bias: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.fc = nn.BatchNorm1d(5), nn.Linear(5, 3, bias=bias)

        def forward(self, x: Tensor) -> Tensor:
            y = self.bn(x)
            return self.fc(y if axes == 2 else y.transpose(1, 2))

    folds(drawn(Net()), torch.randn(4, 5) if axes == 2 else torch.randn(4, 5, 6), gone=1)


@pytest.mark.parametrize(
    "product", [nn.Conv2d(4, 3, 3, padding=1), nn.ConvTranspose2d(4, 3, 3)], ids=["conv", "transposed"]
)
def test_zeros_at_a_border_are_not_normalized(product: nn.Module) -> None:
    model = drawn(nn.Sequential(nn.BatchNorm2d(4), product))
    assert "border of '1'" in reasons(model, torch.randn(IMAGE))["0"]
    folds(model, torch.randn(IMAGE), gone=0)


def test_a_border_keeps_no_norm_behind_it() -> None:
    tail = nn.Conv2d(4, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3, bias=False)
    report = folds(drawn(nn.Sequential(nn.BatchNorm2d(4), *tail)), torch.randn(IMAGE), gone=1)
    assert "border of '1'" in report.norms[0].reason
    assert report.norms[1].into == ("1",)


def test_a_norm_that_only_scales_folds_in_front_of_padding() -> None:
    model = drawn(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3, padding=1)), scale_zero=False)
    norm: Any = model[0]  # type: ignore[index]
    norm.running_mean.zero_()
    with torch.no_grad():
        norm.bias.zero_()
    folds(model, torch.randn(IMAGE), gone=1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.down = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.down(x)).relu()


def test_residual_blocks_in_lists_and_sequences() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Residual(4), Residual(4)])
            self.head = nn.Sequential(
                nn.Sequential(nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5)), nn.Flatten(), nn.Linear(210, 3)
            )

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    report = folds(drawn(Net()), torch.randn(IMAGE), gone=7)
    assert {n.path: n.into for n in report.norms}["blocks.1.down.1"] == ("blocks.1.down.0",)


def test_norms_in_a_row_and_over_what_leaves_channels_apart() -> None:
    body = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Dropout(), nn.AvgPool2d(2), nn.BatchNorm2d(6)
    model = nn.Sequential(*body, nn.Flatten(2), nn.BatchNorm1d(6))
    report = folds(drawn(model), torch.randn(IMAGE), gone=3)
    assert {n.into for n in report.norms} == {("0",)}


def test_a_norm_folds_into_a_norm() -> None:
    model = drawn(nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.ReLU()))
    report = folds(model, torch.randn(IMAGE), gone=1)
    assert [n.fate for n in report.norms] == ["kept", "folded"]
    assert report.norms[1].into == ("1",)


def test_convolutions_whose_results_are_joined() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.bn = nn.Conv2d(4, 3, 1, bias=False), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(5)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(torch.cat([self.a(x), self.b(x)], 1)).relu()

    assert set(folds(drawn(Joined()), torch.randn(IMAGE), gone=1).norms[0].into) == {"a", "b"}


def test_what_lets_scales_through_and_no_shifts() -> None:
    model: Any = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4), nn.ReLU()), scale_zero=False)
    with torch.no_grad():
        model[2].weight.abs_()
    assert "its shift would stay behind" in reasons(model, torch.randn(IMAGE))["2"]
    folds(model, torch.randn(IMAGE), gone=0)
    model[2].running_mean.zero_()
    with torch.no_grad():
        model[2].bias.zero_()
    folds(model, torch.randn(IMAGE), gone=1)


# --- reasons ----------------------------------------------------------------------------------------------------------


def test_norms_of_dense_networks_stay() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv0, self.norm1, self.conv1 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv0(x)
            return torch.cat([y, self.conv1(F.relu(self.norm1(y)))], 1)

    model = drawn(Dense())
    assert "is also read by" in reasons(model, torch.randn(IMAGE))["norm1"]
    folds(model, torch.randn(IMAGE), gone=0)


@pytest.mark.parametrize(
    "norm",
    [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LayerNorm([4, 7, 6]), nn.RMSNorm(6)],
    ids=lambda m: type(m).__name__,
)
def test_norms_of_what_they_read_stay(norm: nn.Module) -> None:
    model = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), norm))
    (row,) = ours.inspect(model, (torch.randn(IMAGE),)).norms
    assert row.fate == "kept"
    assert "its statistics come from what it reads" in row.reason
    assert row.compiled
    folds(model, torch.randn(IMAGE), gone=0)


def pair(**more: Any) -> Any:
    return drawn(nn.Sequential(nn.Conv2d(4, 4, 3, **more), nn.BatchNorm2d(4), nn.ReLU()))


def in_training(m: Any) -> Any:
    m[1].train()
    return m


def without_statistics(m: Any) -> Any:
    m[1] = nn.BatchNorm2d(4, track_running_stats=False).eval()
    return m


def hooked(place: int, kind: str) -> Callable[[Any], Any]:
    def change(m: Any) -> Any:
        getattr(m[place], f"register_{kind}")(lambda *_: None)
        return m

    return change


def parametrized(apply: Callable[..., Any]) -> Callable[[Any], Any]:
    def change(m: Any) -> Any:
        apply(m[0])
        return m

    return change


def with_old_weight_norm(m: Any) -> Any:
    nn.utils.weight_norm(m[0])
    return m


def with_another_forward(m: Any) -> Any:
    m[0].forward = m[0].forward
    return m


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The tensor attribute")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (in_training, "it is in training mode"),
        (without_statistics, "it tracks no statistics"),
        (hooked(0, "forward_hook"), "'0' has hooks"),
        (hooked(0, "forward_pre_hook"), "'0' has hooks"),
        (hooked(1, "forward_hook"), "'1' has hooks"),
        (hooked(0, "full_backward_hook"), "'0' has hooks"),
        (parametrized(parametrizations.weight_norm), "'0' has parametrizations"),
        (parametrized(parametrizations.spectral_norm), "'0' has parametrizations"),
        (with_old_weight_norm, "'0' has hooks"),
        (with_another_forward, "the forward of '0' was replaced"),
    ],
    ids=["training", "untracked", "hook", "pre", "of norm", "backward", "weight", "spectral", "old weight", "forward"],
)
def test_what_layers_forbid(change: Callable[[Any], Any], reason: str) -> None:
    model = change(pair())
    x = torch.randn(IMAGE)
    assert reason in reasons(model, x)["1"]
    result = ours.fold(model, (x,), inplace=True)
    assert not result.report.folded


def test_hooks_of_what_holds_both_see_the_same() -> None:
    seen = list[Tensor]()

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.tail = nn.Sequential(nn.Conv2d(4, 4, 1)), nn.Sequential(nn.BatchNorm2d(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.tail(self.conv(x))

    model: Any = drawn(nn.Sequential(Stage(), nn.ReLU()))
    model[0].register_forward_hook(lambda m, a, y: seen.append(y))
    folds(model, torch.randn(IMAGE), gone=1)
    model[0].conv.register_forward_hook(lambda *_: None)
    assert reasons(model, torch.randn(IMAGE)) == {"0.tail.0": "'0.conv' has hooks, which would see other values"}


class Calls(nn.Module):
    """Two convolutions and two norms, which `forward` calls as it is told."""

    def __init__(self, how: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.n, self.m = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.how = how

    def forward(self, x: Tensor) -> Any:
        return self.how(self, x)


def test_layers_that_are_called_several_times() -> None:
    x = torch.randn(IMAGE)
    # both calls of the convolution are followed by the same norm
    folds(drawn(Calls(lambda s, x: s.n(s.a(s.n(s.a(x)).relu())).relu())), x, gone=1)
    shared_conv = drawn(Calls(lambda s, x: s.m(s.a(s.n(s.a(x)).relu())).relu()))
    found = reasons(shared_conv, x)
    assert "is read by several calls" in found["n"]
    assert "is read by several calls" in found["m"]
    folds(shared_conv, x, gone=0)
    # a norm after two convolutions is in both
    report = folds(drawn(Calls(lambda s, x: s.n(s.a(x)).relu() + s.n(s.b(x)).relu())), x, gone=1)
    assert set(report.norms[0].into) == {"a", "b"}
    assert report.norms[0].calls == 2
    half = drawn(Calls(lambda s, x: s.n(s.a(x)).relu() + s.n(x.relu()).relu()))
    assert "it is called several times, and does not fold at" in reasons(half, x)["n"]
    folds(half, x, gone=0)


def test_what_else_reads_a_convolution_or_its_weight() -> None:
    x = torch.randn(IMAGE)
    for how in (lambda s, x: s.n(s.a(x)) + s.a(x).mean(), lambda s, x: s.n(s.a(x)) * s.a.weight.mean()):
        model = drawn(Calls(how))
        assert "is read by several calls" in reasons(model, x)["n"]
        folds(model, x, gone=0)

    def twice(s: Any, x: Tensor) -> Tensor:
        y = s.a(x)
        return s.n(y).relu() + y

    assert "is also read by" in reasons(drawn(Calls(twice)), x)["n"]
    result = drawn(Calls(lambda s, x: (lambda y: (s.n(y), y))(s.a(x))))
    assert "is an output of the model" in reasons(result, x)["n"]


def test_what_renorm_does_not_read_is_left_alone() -> None:
    def how(s: Any, x: Tensor) -> Tensor:
        y = s.a(x)
        return s.n(y).relu() + torch.special.i0(y).sum() + s.m(s.b(x))

    model, x = drawn(Calls(how)), torch.randn(IMAGE)
    found = ours.inspect(model, (x,))
    assert [(n.path, n.fate) for n in found.norms] == [("n", "kept"), ("m", "folded")]
    assert "is also read by special_i0, which renorm does not read" in found.norms[0].reason
    assert "renorm.compile: " in str(found)
    folds(model, x, gone=1)


def test_tied_parameters() -> None:
    x = torch.randn(IMAGE)
    model: Any = drawn(Calls(lambda s, x: s.n(s.a(x)).relu() + s.b(x)))
    model.b.bias = model.a.bias
    assert "'a.bias' is read by several calls" in reasons(model, x)["n"]
    model = drawn(Calls(lambda s, x: s.n(s.a(x)).relu()))
    model.b.weight = model.a.weight  # which nobody calls
    assert reasons(model, x)["n"] == "'weight' of 'a' is also 'b.weight'"
    model = drawn(Calls(lambda s, x: s.n(s.a(x)).relu() + s.m(s.b(x))))
    model.m.weight = model.n.weight
    assert "is also" in reasons(model, x)["m"]
    folds(model, x, gone=0)


def test_a_layer_under_two_names_is_one() -> None:
    model: Any = drawn(Calls(lambda s, x: s.n(s.a(x)).relu()))
    model.alias, model.other = model.n, model.a
    before = bits(model)
    result = ours.fold(model, (torch.randn(IMAGE),))
    assert same(bits(model), before)
    assert isinstance(result.module.alias, nn.Identity)
    assert result.module.alias is result.module.n
    result.unfold()
    assert result.module.alias is result.module.n
    assert isinstance(result.module.n, nn.BatchNorm2d)


def test_a_norm_in_the_forward_of_the_model_is_told() -> None:
    def how(s: Any, x: Tensor) -> Tensor:
        return F.batch_norm(s.a(x), s.n.running_mean, s.n.running_var, s.n.weight, s.n.bias)

    model = drawn(Calls(how))
    found = {n.path: n for n in ours.inspect(model, (torch.randn(IMAGE),)).norms}
    assert "only the forward of the model" in found["batch_norm"].reason
    assert found["batch_norm"].compiled == ("folded into a",)
    assert "does not call it" in found["n"].reason
    folds(model, torch.randn(IMAGE), gone=0)


def test_arithmetic_of_the_model_stays() -> None:
    model = drawn(Calls(lambda s, x: s.n(2 * s.a(x) + 1).relu() + s.b((s.m(x) - 0.5) / 3)))
    found = reasons(model, torch.randn(IMAGE))
    assert "a call of the model's forward" in found["n"]
    assert "a call of the model's forward" in found["m"]
    folds(model, torch.randn(IMAGE), gone=0)


def test_weights_that_are_computed() -> None:
    class Quantized(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return F.conv2d(input, torch.fake_quantize_per_tensor_affine(self.weight, 0.1, 0, -128, 127), self.bias)

    class Standardized(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return F.conv2d(input, self.weight - self.weight.mean(), self.bias)

    for conv in (Quantized(4, 4, 1), Standardized(4, 4, 1)):
        model = drawn(nn.Sequential(conv, nn.BatchNorm2d(4)))
        assert "1" in reasons(model, torch.randn(IMAGE))
        folds(model, torch.randn(IMAGE), gone=0)


def test_a_layer_without_room_for_a_bias() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight)

    model = drawn(nn.Sequential(Bare(), nn.BatchNorm2d(4)))
    assert "no layer computes" in reasons(model, torch.randn(IMAGE))["1"]
    folds(model, torch.randn(IMAGE), gone=0)


def test_buffers_are_no_parameters() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kernel", torch.randn(4, 4, 1, 1))
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.kernel, self.bias)  # type: ignore[arg-type]

    assert (
        "'0.kernel' is no parameter"
        in reasons(drawn(nn.Sequential(Fixed(), nn.BatchNorm2d(4))), torch.randn(IMAGE))["1"]
    )


# --- classes of norms -------------------------------------------------------------------------------------------------


class FrozenBatchNorm2d(nn.Module):
    """As torchvision has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.zeros(channels))

    def forward(self, x: Any) -> Any:
        w, b, var, mean = (
            getattr(self, n).reshape(1, -1, 1, 1) for n in ("weight", "bias", "running_var", "running_mean")
        )
        scale = w * (var + 1e-5).rsqrt()
        return x * scale + (b - mean * scale)


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm has it: a norm, and layers after it, in one."""

    def __init__(self, channels: int, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act()

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


def lazy() -> nn.Module:
    norm = nn.LazyBatchNorm2d()
    norm(torch.randn(IMAGE))
    return norm


@pytest.mark.parametrize(
    "made",
    [
        lambda: FrozenBatchNorm2d(4),
        lambda: nn.SyncBatchNorm(4),
        lambda: ours.BatchNorm2d(4),
        lambda: ours.SyncBatchNorm(4),
        lazy,
    ],
)
def test_classes_of_norms(made: Callable[[], nn.Module]) -> None:
    model: Any = drawn(nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), made(), nn.ReLU()))
    if isinstance(model[1], FrozenBatchNorm2d):
        model[1].weight.normal_()
    folds(model, torch.randn(IMAGE), gone=1)


def test_activations_in_a_norm_stay_under_their_names() -> None:
    model = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), BatchNormAct2d(4, lambda: nn.PReLU(4)), nn.Conv2d(4, 4, 1)))
    report = folds(model, torch.randn(IMAGE), gone=1)
    result = ours.fold(drawn(nn.Sequential(nn.Conv2d(4, 4, 1), BatchNormAct2d(4))), (torch.randn(IMAGE),)).module
    assert [name for name, _ in result[1].named_children()] == ["drop", "act"]  # type: ignore[index, union-attr]
    assert report.norms


def test_a_norm_that_does_more() -> None:
    class Shifted(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).clamp(min=0.1)

    class Turned(BatchNormAct2d):
        def forward(self, input: Tensor) -> Tensor:
            return self.act(super(BatchNormAct2d, self).forward(input)) + input

    class Late(BatchNormAct2d):
        def forward(self, input: Tensor) -> Tensor:
            y = super(BatchNormAct2d, self).forward(input)
            return self.drop2(self.act(y))

        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.act, self.drop2 = nn.Tanh(), nn.ReLU()

    x = torch.randn(IMAGE)
    for cls in (Shifted, Turned):
        model = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), cls(4)))
        assert "its forward does more than to normalize" in reasons(model, x)["1"]
        folds(model, x, gone=0)
    folds(drawn(nn.Sequential(nn.Conv2d(4, 4, 1), Late(4))), x, gone=1)

    class Unread(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return torch.special.i0(super().forward(input))

    assert "its forward calls special_i0" in reasons(drawn(nn.Sequential(nn.Conv2d(4, 4, 1), Unread(4))), x)["1"]

    class Between(BatchNormAct2d):
        def forward(self, input: Tensor) -> Any:
            y = super(BatchNormAct2d, self).forward(input)
            return self.act(y), y

    class Backwards(BatchNormAct2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels, nn.Sigmoid)
            self.last = nn.Tanh()

        def forward(self, input: Tensor) -> Tensor:
            return self.act(self.last(super(BatchNormAct2d, self).forward(input)))

    assert "its own layers are called in another order" in reasons(drawn(nn.Sequential(Backwards(4))), x)["0"]
    assert "more is read of it" in reasons(drawn(nn.Sequential(nn.Conv2d(4, 4, 1), Between(4))), x)["1"]
    act: Any = drawn(Calls(lambda s, x: s.n(s.a(x)) + s.n(s.b(x))))
    act.n = drawn(BatchNormAct2d(4))
    assert reasons(act, x)["n"] == "it is called several times, and has layers of its own"
    relu = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), ours.BatchNorm2d(4, relu=True)))
    assert "does more than to normalize: relu" in reasons(relu, x)["1"]


def test_a_lazy_norm_is_told() -> None:
    row = ours.inspect(nn.Sequential(nn.Conv2d(4, 4, 1), nn.LazyBatchNorm2d())).norms[0]
    assert "it is lazy" in row.reason


# --- dtypes, inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(dtype: Any) -> None:
    model = drawn(nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 1))).to(
        dtype
    )
    report = folds(model, torch.randn(IMAGE).to(dtype), gone=1)
    assert report.verified.dtype == str(dtype)[6:]
    assert report.verified.wide < 1e-12


def test_folded_constants_beyond_float16_stay() -> None:
    model: Any = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, eps=1e-12))).half()
    model[1].running_var.fill_(1e-7)
    with torch.no_grad():
        model[1].weight.fill_(500.0)
    assert "beyond float16" in reasons(model, torch.randn(IMAGE).half())["1"]


def test_an_empty_batch_is_told() -> None:
    report = ours.fold(pair(), (torch.randn(0, 4, 7, 6),)).report
    assert len(report.folded) == 1
    assert report.verified is not None
    assert "no elements" in str(report.verified)


def test_a_model_that_computes_in_float32_inside() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = pair(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x).float().mean((2, 3))
            return self.fc(y.to(self.fc.weight.dtype))

    folds(drawn(Net()), torch.randn(IMAGE), gone=1)


def test_a_model_that_does_not_run_in_float64() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = pair()

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise TypeError("float32 alone")
            return self.body(x)

    verified = ours.fold(drawn(Net()), (torch.randn(IMAGE),)).report.verified
    assert verified is not None
    assert verified.wide is None
    assert "float32 alone" in str(verified)


def test_memory_format_gradients_and_identity_of_parameters() -> None:
    model = pair(bias=False).to(memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    weight = model[0].weight
    result = ours.fold(model, (torch.randn(IMAGE),), inplace=True)
    assert result.module is model
    assert model[0].weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not model[0].bias.requires_grad
    result.unfold()
    assert model[0].weight is weight
    assert model[0].bias is None


def test_an_optimizer_goes_on_with_the_same_parameters() -> None:
    model = pair()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ours.fold(model, (torch.randn(IMAGE),), inplace=True)
    before = model[0].weight.detach().clone()
    model(torch.randn(IMAGE)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


def test_statistics_of_what_trains_beside_stay() -> None:
    model: Any = drawn(Calls(lambda s, x: s.n(s.a(x)).relu() + s.m(x)))
    model.m.train()
    before = bits(model)
    report = ours.fold(model, (torch.randn(IMAGE),), inplace=True).report
    assert [n.fate for n in report.norms] == ["folded", "kept"]
    ours.unfold(model)
    assert same(bits(model), before)


def test_dropout_in_training_mode_draws_the_same() -> None:
    model: Any = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 4, 1)))
    model[2].train()
    state = torch.random.get_rng_state()
    assert len(ours.fold(model, (torch.randn(IMAGE, generator=torch.Generator().manual_seed(1)),)).report.folded) == 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_keyword_arguments_and_open_extents() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = pair()

        def forward(self, x: Tensor, *, more: Tensor) -> Tensor:
            return self.body(x) + more

    given = {"more": torch.ones(1)}
    shapes = {"x": {0: torch.export.Dim("n")}, "more": None}
    result = ours.fold(drawn(Net()), (torch.randn(IMAGE),), given, dynamic_shapes=shapes)
    assert len(result.report.folded) == 1
    assert ours.inspect(drawn(Net()), (torch.randn(IMAGE),), given, shapes).folded


# --- errors, the way back ---------------------------------------------------------------------------------------------


def test_control_flow_by_data_is_an_error() -> None:
    model = drawn(Calls(lambda s, x: s.n(s.a(x)) if x.sum() > 0 else x))
    with pytest.raises(InvalidInput, match=r"torch\.export refuses it"):
        ours.fold(model, (torch.randn(IMAGE),))
    with pytest.raises(InvalidInput, match=r"torch\.fx does not trace it"):
        ours.inspect(model)


def test_arguments_are_asked_for() -> None:
    with pytest.raises(InvalidInput, match="give args="):
        ours.fold(pair())
    with pytest.raises(InvalidInput, match="no norm of Sequential: '7'"):
        ours.fold(pair(), (torch.randn(IMAGE),), keep=["7"])


def test_a_forward_that_asks_a_norm_is_an_error_and_changes_nothing() -> None:
    model = drawn(Calls(lambda s, x: s.n(s.a(x)) * s.n.num_features))
    before, text = bits(model), repr(model)
    for inplace in (False, True):
        with pytest.raises(VerificationError, match=r"(?s)num_features.*folded: n: .*keep="):
            ours.fold(model, (torch.randn(IMAGE),), inplace=inplace)
        assert same(bits(model), before)
        assert repr(model) == text
        assert "_renorm_folds" not in vars(model)
    assert ours.fold(model, (torch.randn(IMAGE),), keep=["n"]).report.norms[0].reason == "keep holds 'n'"


def test_what_differs_is_an_error_with_figures() -> None:
    class Odd(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            y = super().forward(input)
            return y if self.bias is None else y + 1e-3

    model = drawn(nn.Sequential(Odd(4, 4, 1, bias=False), nn.BatchNorm2d(4)))
    with pytest.raises(VerificationError, match=r"in float64 result 0 differs by .* 1\.0e-10 is allowed"):
        ours.fold(model, (torch.randn(IMAGE),))
    with pytest.raises(VerificationError, match=r"in float32 result 0 differs by .*, 1\.0e-12 is allowed"):
        ours.fold(pair(), (torch.randn(IMAGE),), tolerance=1e-12)


def test_what_cannot_be_copied_folds_in_place() -> None:
    model: Any = pair()
    model.lock = __import__("threading").Lock()
    with pytest.raises(InvalidInput, match="it cannot be copied"):
        ours.fold(model, (torch.randn(IMAGE),))
    assert ours.fold(model, (torch.randn(IMAGE),), inplace=True).report.folded


def test_unfolding_what_changed_is_an_error() -> None:
    result = ours.fold(pair(), (torch.randn(IMAGE),))
    module: Any = result.module
    with torch.no_grad():
        module[0].weight += 1
    with pytest.raises(InvalidInput, match=r"0\.weight is not what fold made of it"):
        result.unfold()
    assert isinstance(module[1], nn.Identity)
    with pytest.raises(InvalidInput, match="nothing of it was folded"):
        ours.unfold(nn.ReLU())


def test_copies_pickles_and_parts_unfold() -> None:
    model = nn.Sequential(pair(), nn.Flatten())
    before = bits(model)
    ours.fold(model[0], (torch.randn(IMAGE),), inplace=True)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        assert not same(bits(made), before)
        assert same(bits(ours.unfold(made)), before)


def test_folding_twice_unfolds_at_once() -> None:
    model, x = drawn(nn.Sequential(pair(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))), torch.randn(IMAGE)
    before = bits(model)
    once = ours.fold(model, (x,), keep=["2"]).module
    twice = ours.fold(once, (x,))
    assert [n.path for n in twice.report.norms] == ["2"]
    assert same(bits(twice.unfold()), before)


def test_a_mode_that_was_set_since_stays() -> None:
    result = ours.fold(pair(), (torch.randn(IMAGE),))
    result.module.train()
    module: Any = result.unfold()
    assert module[1].training


def test_a_folded_model_saves_exports_and_compiles() -> None:
    import renorm

    model, x = pair(bias=False), torch.randn(IMAGE)
    module = ours.fold(model, (x,)).module
    assert [*module.state_dict()] == ["0.weight", "0.bias"]
    m = renorm.compile(module, args=(x,))
    torch.testing.assert_close(torch.as_tensor(m.run(x)[0]), model(x).detach(), rtol=1e-4, atol=1e-4)


# --- reports ----------------------------------------------------------------------------------------------------------


def test_the_report_is_data_and_text() -> None:
    model = drawn(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)))
    report = ours.inspect(model, (torch.randn(IMAGE),))
    assert str(report).splitlines()[:2] == [
        "Sequential: 2 norms, 1 of them fold, which saves 8 parameters, 72 bytes",
        "  1: torch.BatchNorm2d folded into 0 before it; compiled: folded into 0",
    ]
    assert json.loads(json.dumps(report.to_json()))["norms"][0]["into"] == ["0"]
    verified = ours.fold(model, (torch.randn(IMAGE),)).report
    assert "verified: off by" in str(verified)


def test_without_arguments_neighbours_are_told() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.n, self.b, self.m = (
                nn.Conv2d(4, 4, 1),
                nn.BatchNorm2d(4),
                nn.Conv2d(4, 4, 1),
                nn.BatchNorm2d(4),
            )
            self.fc, self.bn, self.gn, self.unused = (
                nn.Linear(4, 4),
                nn.BatchNorm1d(4),
                nn.GroupNorm(2, 4),
                nn.BatchNorm2d(4),
            )
            self.tied, self.o = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.b(self.n(self.a(x)).relu())
            y = self.gn(self.m(y) + y)
            return self.bn(self.fc(self.o(self.o(y)).mean((2, 3))))

    found = {n.path: n for n in ours.inspect(drawn(Net())).norms}
    assert found["n"].into == ("a",)
    assert "is also read by add" in found["m"].reason
    assert "how many axes 'fc' gives is not known" in found["bn"].reason
    assert "its statistics come from what it reads" in found["gn"].reason
    assert found["unused"].reason == "the model does not call it"
    assert "called 2 times" in found["o"].reason
    hooks: Any = pair()
    hooks[0].register_forward_hook(lambda *_: None)
    assert "has hooks" in ours.inspect(hooks).norms[0].reason
    twice = drawn(Calls(lambda s, x: s.a(s.n(s.a(x)))))
    assert "'a' is called 2 times" in {n.path: n.reason for n in ours.inspect(twice).norms}["n"]
    assert "which is no convolution" in ours.inspect(drawn(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)))).norms[0].reason


def test_the_model_itself() -> None:
    assert "it is the model itself" in ours.inspect(drawn(nn.BatchNorm2d(4)), (torch.randn(IMAGE),)).norms[0].reason


def test_renorm_imports_without_torch() -> None:
    code = """if True:
        import renorm, sys
        assert "torch" not in sys.modules
        import renorm.torch
        assert "renorm.torch.folding" not in sys.modules
        renorm.torch.fold
    """
    subprocess.run([sys.executable, "-c", code], check=True)


# --- chains at random -------------------------------------------------------------------------------------------------

STEPS = (
    "conv",
    "padded",
    "grouped",
    "transposed",
    "norm",
    "frozen",
    "relu",
    "pool",
    "dropout",
    "slope",
    "act",
    "group",
)


def layer(step: str, channels: int, wanted: int, bias: bool) -> tuple[nn.Module, int]:
    """Return a layer, and the channels of its result."""
    match step:
        case "conv" | "padded":
            return nn.Conv2d(channels, wanted, 3, padding=1 if step == "padded" else 0, bias=bias), wanted
        case "grouped":
            return nn.Conv2d(channels, channels * 2, 1, groups=channels, bias=bias), channels * 2
        case "transposed":
            return nn.ConvTranspose2d(channels, wanted, 2, stride=2, bias=bias), wanted
        case "norm":
            return nn.BatchNorm2d(channels, affine=bias), channels
        case "frozen":
            return FrozenBatchNorm2d(channels), channels
        case "act":
            return BatchNormAct2d(channels), channels
        case "group":
            return nn.GroupNorm(2, channels), channels
        case "slope":
            return nn.PReLU(channels), channels
        case _:
            return {"relu": nn.ReLU(), "pool": nn.AvgPool2d(2, 1), "dropout": nn.Dropout()}[step], channels


@st.composite
def chains(draw: st.DrawFn) -> tuple[nn.Module, int]:
    seed, layers, channels = draw(st.integers(0, 999)), list[nn.Module](), 4
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=7)):
        made, channels = layer(step, channels, draw(st.sampled_from((2, 4, 6))), draw(st.booleans()))
        layers.append(made)
    return drawn(nn.Sequential(*layers), seed), seed


def test_a_norm_behind_an_activation_keeps_none_before_it() -> None:
    """The scale of the last one, which is positive, would go through the ReLU; its shift would not."""
    model = nn.Sequential(nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2, affine=False))
    report = folds(drawn(model, 0), torch.randn(1, 4, 8, 9))
    assert [n.fate for n in report.norms] == ["folded", "kept"]


@settings(max_examples=25, deadline=None)
@given(chains())
def test_chains_at_random(chain: tuple[nn.Module, int]) -> None:
    model, seed = chain
    x = torch.randn(1, 4, 18, 19, generator=torch.Generator().manual_seed(seed))
    report = folds(model, x)
    layers = [*model]  # type: ignore[call-overload]
    for n in report.norms:  # right after a product, nothing is in its way
        if n.kind == "batch_norm" and int(n.path) and isinstance(layers[int(n.path) - 1], nn.modules.conv._ConvNd):
            assert n.fate == "folded", str(report)
        assert n.fate == "folded" or n.reason
