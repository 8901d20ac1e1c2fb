"""replace_norms(fuse=True): networks learn the same, in every mode, copied and saved; what is refused, and why."""

from __future__ import annotations

import copy
import io
import random
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.pairs import close
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import renorm.torch as ours


class Basic(nn.Module):
    """As in torchvision: one ReLU in place for several norms, a branch decided by an attribute."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, **norm: Any):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs, **norm)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, **norm)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs, **norm))

    def forward(self, x: Any) -> Any:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """Functions in place of modules, the sum the other way round, and dropout that reads self.training."""

    def __init__(self, channels: int, width: int, **norm: Any):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1), nn.BatchNorm2d(width, **norm), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, groups=2), nn.BatchNorm2d(width, **norm),
        )  # fmt: skip
        self.last = nn.Conv2d(width, channels, 1)
        self.norm = nn.BatchNorm2d(channels, **norm)
        self.rate = 0.0

    def forward(self, x: Any) -> Any:
        y = F.dropout(torch.relu(self.body(x)), self.rate, self.training)
        return F.relu(x + self.norm(self.last(y)), inplace=True)


class Inverted(nn.Module):
    """A sum without a ReLU, as in MobileNet."""

    def __init__(self, channels: int, **norm: Any):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels, **norm)

    def forward(self, x: Any) -> Any:
        return torch.add(x, self.norm(self.conv(x)))


def network(**norm: Any) -> Any:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 5, 3, 2), nn.BatchNorm2d(5, **norm), nn.ReLU()),
        Basic(5, 5, **norm),
        Basic(5, 6, 2, **norm),
        Bottleneck(6, 4, **norm),
        Inverted(6, **norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    ).double()


EXPECTED = {
    "0.1": ("ReLU",),
    "1.bn1": ("ReLU",),
    "1.bn2": ("addition", "ReLU"),
    "2.bn1": ("ReLU",),
    "2.bn2": (),
    "2.downsample.1": ("addition", "ReLU"),
    "3.body.1": ("ReLU",),
    "3.body.4": ("ReLU",),
    "3.norm": ("addition", "ReLU"),
    "4.norm": ("addition",),
}


def fused(model: Any) -> Any:
    ours.replace_norms(model, fuse=True)
    return model


def calls(model: Any) -> list[str]:
    """Names of modules in the order in which they are called."""
    found = list[str]()
    for name, m in model.named_modules():
        m.register_forward_hook(lambda *_, name=name: found.append(name))
    return found


def step(model: Any, x: Any) -> dict[str, Any]:
    model.zero_grad()
    y = model(x)
    (y.sin() * torch.arange(1, y.numel() + 1).reshape(y.shape)).sum().backward()
    gradients = {f"d{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"y": y.detach(), **gradients, **{n: b.clone() for n, b in model.named_buffers()}}


def same(mine: Any, theirs: Any, x: Any, dtype: Any = torch.float64) -> None:
    found, expected = step(mine, x), step(theirs, x)
    assert found.keys() == expected.keys()
    for name, t in expected.items():
        close(found[name], t, dtype, name)


def image(seed: int = 0, dtype: Any = torch.float64) -> Any:
    return torch.randn(3, 3, 15, 12, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    ("memory", "norm"),
    [
        (torch.contiguous_format, {}),
        (torch.channels_last, {"momentum": None}),
        (torch.contiguous_format, {"track_running_stats": False, "affine": False}),
    ],
    ids=str,
)
def test_a_network_learns_the_same(memory: Any, norm: Any) -> None:
    theirs = network(**norm).to(memory_format=memory)
    mine = copy.deepcopy(theirs)
    assert {r.name: r.fused for r in ours.replace_norms(mine, fuse=True)} == EXPECTED
    optimizers = [torch.optim.SGD(m.parameters(), 0.02) for m in (mine, theirs)]
    for seed in range(2):
        same(mine, theirs, image(seed).to(memory_format=memory))
        for o in optimizers:
            o.step()
    mine.eval(), theirs.eval()
    same(mine, theirs, image(3).to(memory_format=memory))
    mine.train(), theirs.train()
    same(mine, theirs, image(4).to(memory_format=memory))


def test_what_is_fused_is_computed_by_one_kernel(monkeypatch: Any) -> None:
    from renorm.torch.direct import Direct

    seen = list[tuple[bool, bool]]()
    real = Direct.forward

    def forward(*args: Any) -> Any:
        *_, residual, _, _, settings = args
        seen.append((residual is not None, settings.relu))
        return real(*args)

    monkeypatch.setattr(Direct, "forward", forward)
    model = fused(network())
    model(image())
    kinds = {(): (False, False), ("ReLU",): (False, True), ("addition",): (True, False)}
    assert sorted(seen) == sorted(kinds.get(f, (True, True)) for f in EXPECTED.values())


def test_frozen_layers_and_parameters() -> None:
    """Some norms infer while the rest trains; some parameters have no gradient."""
    theirs = network()
    step(theirs, image(1))
    mine = fused(copy.deepcopy(theirs))
    for m in (theirs, mine):
        m[1].bn2.eval(), m[2].downsample.eval(), m[0].eval()
        m[1].bn1.weight.requires_grad_(False), m[2].requires_grad_(False)
    same(mine, theirs, image())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_floats(dtype: Any) -> None:
    mine = fused(network().to(dtype))
    wide = network().to(dtype).double()
    x = image(dtype=dtype)
    close(mine(x), wide(x.double()).to(dtype), dtype)


def test_modules_and_their_state_stay() -> None:
    model, plain = network(), network()
    modules, parameters, text = list(model.modules()), list(model.parameters()), repr(model)
    state = {n: t.clone() for n, t in model.state_dict().items()}
    first = ours.replace_norms(model, fuse=True)
    assert ours.replace_norms(model, fuse=True) == []
    assert [str(r) for r in first[2:5]] == [
        "1.bn2: torch.BatchNorm2d -> renorm.BatchNorm2d + addition + ReLU",
        "2.bn1: torch.BatchNorm2d -> renorm.BatchNorm2d + ReLU",
        "2.bn2: torch.BatchNorm2d -> renorm.BatchNorm2d alone: its result is an operand of another norm",
    ]
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert repr(model) == text
    assert isinstance(model[1], Basic)
    assert list(model.state_dict()) == list(state)
    step(model, image())
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(state)
    same(model, network(), image())
    ours.restore(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert [vars(m).keys() for m in model.modules()] == [vars(m).keys() for m in plain.modules()]


def test_norms_that_are_ours_already() -> None:
    model = network()
    assert not any(r.fused or r.refusal for r in ours.replace_norms(model))
    again = ours.replace_norms(model, fuse=True)
    assert {r.name: r.fused for r in again} == EXPECTED
    assert all(r.fused or r.refusal for r in again)
    assert all(r.was == r.now == "renorm.BatchNorm2d" for r in again)


def test_copies_and_files() -> None:
    model = fused(network())
    step(model, image(1))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    before = step(copy.deepcopy(model), image())
    for again in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        again[1].conv1.weight.data *= 1.0  # its own
        found = step(again, image())
        for name, t in before.items():
            close(found[name], t, torch.float64, name)
        assert type(again[1]) is type(model[1])
        assert not {id(m) for m in again.modules()} & {id(m) for m in model.modules()}
        ours.restore(again)
        assert type(again[1]) is Basic
        assert type(model[1]) is not Basic


def test_hooks_see_what_they_would_see() -> None:
    theirs = network()
    mine = fused(copy.deepcopy(theirs))
    seen: dict[str, list[Any]] = {}
    for name, m in (("theirs", theirs), ("mine", mine)):
        for layer in (m[1].bn2, m[2].relu, m[2].downsample, m[4].norm):
            layer.register_forward_hook(lambda _, args, y, name=name: seen.setdefault(name, []).append((args[0], y)))
    x = image()
    seen_by_inplace = step(mine, x), step(theirs, x)
    for (a, b), (c, d) in zip(seen["mine"], seen["theirs"], strict=True):
        assert a.shape == c.shape
        assert b.shape == d.shape
    close(seen["mine"][-1][1], seen["theirs"][-1][1], torch.float64)
    for name, t in seen_by_inplace[1].items():
        close(seen_by_inplace[0][name], t, torch.float64, name)


def test_who_changes_the_model_later_is_heard() -> None:
    x = image()
    theirs = network()
    mine = fused(copy.deepcopy(theirs))
    for m in (theirs, mine):
        m[1].bn2 = nn.Identity()
        m[0].append(nn.Hardtanh())
        m[2].downsample[1] = nn.InstanceNorm2d(6)
        m[3].rate = 0.0
        m[2].relu = nn.Hardtanh()
        m.double()
    same(mine, theirs, x)
    mine[3].rate = 1.0  # dropout leaves nothing, so that inputs of the last convolution are zero
    assert not step(mine, x)["d3.body.1.weight"].any()
    for convert in (ours.SyncBatchNorm, nn.SyncBatchNorm):
        theirs, mine = network(), fused(network())
        same(convert.convert_sync_batchnorm(mine), theirs, x)


class Rule(nn.Module):
    """A norm, and a forward to look at."""

    def __init__(self, forward: Any):
        super().__init__()
        self.norm, self.relu, self.other = nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3)
        self.values: Any = [1.0]
        self.function = forward

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def two_readers(m: Any, x: Any) -> Any:
    y = m.norm(x)
    return m.relu(y) + y


def returned(m: Any, x: Any) -> Any:
    return m.norm(m.relu(x))


def followed(m: Any, x: Any) -> Any:
    return torch.tanh(m.norm(x))


def in_place(m: Any, x: Any) -> Any:
    z = x + 1
    y = z.view(-1, 3)
    y += m.norm(x)
    return m.relu(z) + y


def between(m: Any, x: Any) -> Any:
    z = x + 0
    y = m.norm(x)
    z.mul_(2)
    return m.relu(y + z)


def factor(m: Any, x: Any) -> Any:
    return m.relu(torch.add(m.norm(x), x, alpha=2))


def number(m: Any, x: Any) -> Any:
    return m.relu(m.norm(x) + 1)


def relu_in_place(m: Any, x: Any) -> Any:
    y = m.norm(x)
    y.relu_()
    return y * 2


def control(m: Any, x: Any) -> Any:
    return m.relu(m.norm(x)) if x.sum() > 0 else m.norm(x)


def without_gradient(m: Any, x: Any) -> Any:
    with torch.no_grad():
        x = m.other(x)
    return m.relu(m.norm(x))


def checkpointed(m: Any, x: Any) -> Any:
    return m.relu(m.norm(checkpoint(m.other, x, use_reentrant=False)))


def drawn(m: Any, x: Any) -> Any:
    return m.relu(m.norm(x)) if random.random() < 2 else x


def counted(m: Any, x: Any) -> Any:
    m.count = 1
    return m.relu(m.norm(x))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return 2 * dy


def own_gradient(m: Any, x: Any) -> Any:
    return m.relu(m.norm(Twice.apply(x)))


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (two_readers, "its result has 2 readers"),
        (returned, "its result leaves the forward"),
        (followed, "it is followed by tanh"),
        (in_place, "it is added in place to what others may see"),
        (between, "1 operations stand between it and the addition (mul_, ...)"),
        (factor, "it is added with a factor"),
        (number, "it is added to no other tensor"),
        (relu_in_place, "its result has 2 readers"),
        (control, "Rule.forward stays as it is: torch.fx cannot follow it (TraceError: symbolically traced variables"),
        (without_gradient, "part of it runs in another mode"),
        (checkpointed, "part of it runs in another mode"),
        (own_gradient, "an autograd.Function"),
        (drawn, "it draws random numbers of its own"),
        (counted, "it sets self.count"),
    ],
)
def test_what_is_refused(forward: Any, why: str) -> None:
    theirs = Rule(forward)
    mine = copy.deepcopy(theirs)
    state = random.getstate(), torch.get_rng_state()
    (told,) = ours.replace_norms(mine, fuse=True)
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert told.now == "renorm.BatchNorm1d"
    assert why in str(told.refusal)
    assert type(mine) is Rule
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    same(mine, theirs, x, torch.float32)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_who_follows_the_calls_sees_the_module_s_own() -> None:
    model, x = fused(network()).eval(), image()
    expected = network().eval()(x)
    close(torch.fx.symbolic_trace(model)(x), expected, torch.float64)
    close(torch.jit.trace(model, x)(x), expected, torch.float64)
    close(torch.func.functional_call(model, dict(network().named_parameters()), (x,)), expected, torch.float64)


def test_threads_that_follow_while_others_run() -> None:
    """torch.fx replaces functions of all modules meanwhile; copies are followed when they are first called."""
    model, x = fused(network()).eval(), image()
    expected, found = model(x), list[Any]()
    threads = [threading.Thread(target=lambda: found.extend(copy.deepcopy(model)(x) for _ in range(4))) for _ in "1234"]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 16
    assert all(torch.equal(y, expected) for y in found)
