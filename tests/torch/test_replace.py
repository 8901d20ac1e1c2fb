"""replace_norms and restore: which layers, what stays, and that networks learn the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.pairs import close
from torch import nn

import renorm.torch as ours


class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x: Any) -> Any:
        return x + self.norm(self.body(x))


def network() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Block(8),
        nn.InstanceNorm2d(8, affine=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 5),
        nn.BatchNorm1d(5, momentum=None),
    )


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_network_learns_the_same(memory: Any) -> None:
    theirs = network().to(memory_format=memory)
    mine = copy.deepcopy(theirs)
    ours.replace_norms(mine)
    draw = torch.Generator().manual_seed(3)
    losses: dict[str, list[float]] = {}
    optimizers = {n: torch.optim.SGD(m.parameters(), 0.05) for n, m in (("theirs", theirs), ("mine", mine))}
    for _ in range(6):
        x, t = torch.randn(4, 3, 9, 10, generator=draw), torch.randn(4, 5, generator=draw)
        for name, m in (("theirs", theirs), ("mine", mine)):
            optimizers[name].zero_grad()
            loss = ((m(x.to(memory_format=memory)) - t) ** 2).mean()
            loss.backward()
            optimizers[name].step()
            losses.setdefault(name, []).append(loss.item())
    assert losses["mine"] == pytest.approx(losses["theirs"], rel=1e-5)
    assert losses["mine"][-1] != losses["mine"][0]
    theirs.load_state_dict(mine.state_dict())
    for m in (theirs, mine):
        m.eval()
    x = torch.randn(4, 3, 9, 10, generator=draw)
    close(mine(x), theirs(x), torch.float32)


def test_layers_stay_the_same_objects() -> None:
    model = network()
    parameters, modules, before = list(model.parameters()), list(model.modules()), repr(model)
    told = ours.replace_norms(model)
    assert [str(r) for r in told] == [
        "1: torch.BatchNorm2d -> renorm.BatchNorm2d",
        "3.body.1: torch.BatchNorm2d -> renorm.BatchNorm2d",
        "3.norm: torch.GroupNorm -> renorm.GroupNorm",
        "4: torch.InstanceNorm2d -> renorm.InstanceNorm2d",
        "7: torch.LayerNorm -> renorm.LayerNorm",
        "9: torch.BatchNorm1d -> renorm.BatchNorm1d",
    ]
    assert ours.replace_norms(model) == []
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert len(ours.restore(model)) == len(told)
    assert repr(model) == before
    assert ours.restore(model) == []


def test_norms_that_stay_have_a_row() -> None:
    class LayerNorm2d(nn.LayerNorm):
        """As timm's."""

        def forward(self, input: Any) -> Any:
            return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class FrozenNorm(nn.Module):
        pass

    class PreNorm(nn.Sequential):
        pass

    class OurOwn(ours.BatchNorm2d):
        pass

    parametrized = nn.GroupNorm(1, 3)
    nn.utils.parametrize.register_parametrization(parametrized, "weight", nn.Identity())
    lazy = nn.LazyBatchNorm2d()
    model = nn.Sequential(
        LayerNorm2d(3), lazy, parametrized, FrozenNorm(), PreNorm(nn.ReLU(), nn.RMSNorm(3)), OurOwn(3)
    )
    assert list(map(str, ours.replace_norms(model))) == [
        "0: tests.LayerNorm2d stays: it is a subclass of torch.LayerNorm, which may compute something else",
        "1: torch.LazyBatchNorm2d stays: it is lazy: call the model once before, so that it has its parameters",
        "2: torch.ParametrizedGroupNorm stays: it has parametrizations: replace norms first, and register them then",
        "3: tests.FrozenNorm stays: renorm has no layer for tests.torch.test_replace.FrozenNorm",
        "4.1: torch.RMSNorm -> renorm.RMSNorm",
    ]
    lazy(torch.zeros(2, 3, 4, 4))
    assert [r.now for r in ours.replace_norms(model) if r.name == "1"] == ["renorm.BatchNorm2d"]
    assert [r.name for r in ours.restore(model)] == ["1", "4.1"]


def test_the_model_itself() -> None:
    model = nn.BatchNorm1d(3)
    (told,) = ours.replace_norms(model)
    assert type(model) is ours.BatchNorm1d
    assert str(told) == "(the model): torch.BatchNorm1d -> renorm.BatchNorm1d"


def test_what_is_saved_of_one_loads_in_the_other() -> None:
    theirs, mine = network(), network()
    ours.replace_norms(mine)
    with torch.no_grad():
        for t in theirs.state_dict().values():
            t.copy_(torch.randn(t.shape))
    mine.load_state_dict(theirs.state_dict())
    again = network()
    again.load_state_dict(mine.state_dict())
    for a, b in zip(theirs.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
