"""Programs of torch.export, read and compiled, against eager PyTorch in float64."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import renorm
from renorm.errors import InvalidInput, InvalidModel, LimitExceeded, UnsupportedOp
from renorm.frontends.torch import read
from renorm.frontends.torch.overloads import TABLE

BATCH = ({0: Dim("batch", min=1)},)


def trained(module: nn.Module) -> nn.Module:
    """A module whose norms have statistics and parameters that are not those of a new one."""
    generator = torch.Generator().manual_seed(7)
    for m in module.modules():
        for name, low, high in (("running_mean", -0.5, 0.5), ("running_var", 0.5, 1.5), ("weight", 0.5, 1.5)):
            held = getattr(m, name, None)
            if isinstance(held, torch.Tensor) and "Norm" in type(m).__name__:
                with torch.no_grad():
                    held.uniform_(low, high, generator=generator)
    return module.eval()


def agrees(module: nn.Module, *shapes: Sequence[int], dynamic: Any = None, sizes: Sequence[int] = ()) -> Any:
    """Compile a module for arguments of these shapes, and compare results, also for other extents of the first axis."""
    given = [torch.randn(*s) for s in shapes]
    m = renorm.compile(module, args=tuple(given), dynamic_shapes=dynamic)
    for size in sizes or (shapes[0][0],):
        given = [torch.randn(size, *s[1:]) for s in shapes]
        found = m.run(*given)
        with torch.no_grad():
            wanted = module.double()(*(x.double() for x in given))
        module.float()
        for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=1e-5 * float(b.abs().max()))
    return m


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.gn, self.inn = nn.GroupNorm(3, 12), nn.InstanceNorm2d(12, affine=True)
        self.ln, self.rms, self.fc = nn.LayerNorm(12), nn.RMSNorm(12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inn(self.gn(self.stem(x)))
        y = F.interpolate(y, scale_factor=2, mode="bilinear").flatten(2).transpose(1, 2)
        return self.fc(self.rms(self.ln(y)).mean(1)).softmax(-1)


def test_norms_are_whole_and_called_by_their_modules() -> None:
    m = agrees(trained(Norms()), (2, 3, 7, 9), dynamic=BATCH, sizes=(1, 2, 5))
    fates = {n.name: n for n in m.report.norms}
    assert [*fates] == ["stem.1", "gn", "inn", "ln", "rms"]
    assert str(fates["stem.1"]) == "stem.1: batch_norm folded into stem.0"


def test_attention_is_whole() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attn = nn.LayerNorm(24), nn.MultiheadAttention(24, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return x + self.attn(y, y, y, need_weights=False)[0]

    block = Block().eval()
    graph = renorm.read(torch.export.export(block, (torch.randn(2, 9, 24),), dynamic_shapes=BATCH))
    assert [n.name for n in graph.nodes if n.op.name == "attention"] == ["attn.scaled_dot_product_attention"]
    agrees(block, (2, 9, 24), dynamic=BATCH, sizes=(1, 3))


def test_parameters_are_seen_where_they_lie() -> None:
    net = trained(Norms())
    program = torch.export.export(net, (torch.randn(2, 3, 7, 9),))
    held: list[Any] = [v.data for v in read(program).constants.values()]
    for p in net.parameters():
        assert any(np.shares_memory(p.detach().numpy(), a) for a in held), tuple(p.shape)
    assert not any(
        np.shares_memory(p.detach().numpy(), v.data)
        for v in renorm.read(program).constants.values()
        for p in net.parameters()
        if v.data is not None
    )


def test_tied_parameters_are_one_constant() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    net, x = Tied(), torch.tensor([[1, 2], [3, 10]])
    graph = renorm.read(torch.export.export(net, (x,)))
    assert sum(v.shape == (11, 6) for v in graph.constants.values()) == 1
    np.testing.assert_allclose(renorm.compile(net, args=(x,)).run(x)[0], net(x).detach(), rtol=1e-5, atol=1e-6)


def test_buffers_that_are_updated_are_state() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.bn = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.bn(x) * self.calls

    net = Counted()
    m = renorm.compile(net, args=(torch.randn(6, 4),))
    for _ in range(3):
        x = torch.randn(6, 4)
        (y,) = m.run(x)
        np.testing.assert_allclose(y, net(x).detach(), rtol=1e-5, atol=1e-5)
    for name, buffer in net.named_buffers():
        np.testing.assert_allclose(m.state[name], buffer, rtol=1e-5, atol=1e-6, err_msg=name)


class Cached(nn.Module):
    """One token of a decoder, whose keys and values lie in buffers of all positions."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 3, 8, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, 1, 3, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.keys[:, :, at] = k
        self.values.index_copy_(2, at, v)
        mask = (torch.arange(8) <= at)[None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask).transpose(1, 2).flatten(2)


def test_a_cache_of_all_positions_is_state() -> None:
    module = Cached().eval()
    eager = copy.deepcopy(module)
    m = renorm.compile(module, args=(torch.randn(1, 1, 12), torch.tensor([0])))
    for step in range(5):
        x, at = torch.randn(1, 1, 12), torch.tensor([step])
        with torch.no_grad():
            wanted = eager(x, at)
        np.testing.assert_allclose(m.run(x, at)[0], wanted.numpy(), rtol=0, atol=1e-5)
    for name, held in eager.named_buffers():
        np.testing.assert_allclose(m.state[name], held.numpy(), rtol=0, atol=1e-6)


def test_running_statistics_that_nothing_counts_are_state() -> None:
    """The schema of batch_norm does not say that it writes to them."""

    class Functional(nn.Module):
        mean: torch.Tensor
        var: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x, self.mean, self.var, training=True)

    net, x = Functional(), torch.randn(6, 4)
    m = renorm.compile(net, args=(x,))
    np.testing.assert_allclose(m.run(x)[0], net(x), rtol=1e-5, atol=1e-5)
    for name, buffer in net.named_buffers():
        np.testing.assert_allclose(m.state[name], buffer, rtol=1e-5, atol=1e-6, err_msg=name)


def test_instance_norm_that_updates_statistics_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="updates running statistics"):
        renorm.compile(nn.InstanceNorm1d(4, track_running_stats=True), args=(torch.randn(2, 4, 5),))


def test_writes_in_place_are_what_pytorch_makes_of_them() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[:, 1:3] *= 2
            y[:, 0] = 7
            y[:, ::2] += 1
            return F.relu(y, inplace=True)

    agrees(Writing(), (3, 6, 5), dynamic=BATCH, sizes=(1, 3))


def test_a_program_file(tmp_path: Path) -> None:
    net, x = trained(Norms()), torch.randn(2, 3, 7, 9)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    np.testing.assert_allclose(renorm.compile(tmp_path / "net.pt2").run(x)[0], net(x).detach(), atol=1e-5)
    (tmp_path / "bad.pt2").write_bytes(b"no program")
    with pytest.raises(InvalidModel, match=r"bad\.pt2"):
        renorm.compile(tmp_path / "bad.pt2")
    with pytest.raises(LimitExceeded, match="file_bytes"):
        renorm.compile(tmp_path / "net.pt2", limits=renorm.Limits(file_bytes=100))


def test_everything_that_is_not_read_is_one_error() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = torch.linalg.det(x)
            return torch.special.i0(x).sum() + a + torch.special.i1(x).sum()

    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Odd()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(x)

    with pytest.raises(UnsupportedOp) as caught:
        renorm.compile(Holding(), args=(torch.randn(3, 3),))
    said = str(caught.value)
    for name in ("i0", "i1", "inside"):
        assert name in said
    assert len(re.findall(rf"{re.escape(Path(__file__).name)}:\d+", said)) >= 2


def test_what_cannot_be_exported_says_pytorchs_reason() -> None:
    class Deciding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(InvalidInput, match=r"Deciding: torch\.export refuses"):
        renorm.compile(Deciding(), args=(torch.randn(3),))


def test_a_module_needs_arguments() -> None:
    with pytest.raises(InvalidInput, match="args"):
        renorm.compile(nn.Linear(3, 2))


def test_dropout_in_training_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="dropout in training"):
        renorm.compile(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), args=(torch.randn(2, 3),))


def test_known_ranges_are_those_of_the_program() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2, 3).sum(1)

    n = Dim("n", min=4, max=64)
    m = renorm.compile(Halves(), args=(torch.randn(8, 3),), dynamic_shapes=({0: 2 * n},))
    x = torch.randn(12, 3)
    np.testing.assert_allclose(m.run(x)[0], Halves()(x), rtol=1e-6, atol=1e-6)
    for rows in (6, 130, 9):
        with pytest.raises(InvalidInput, match="axis 0"):
            m.run(torch.randn(rows, 3))


ODD: list[Callable[..., Any]] = [  # of NaN, which some keep and some do not
    torch.sign, torch.sgn, F.hardshrink, F.softshrink, lambda x: F.threshold(x, 0.1, 2.0), F.relu6, F.hardtanh
]  # fmt: skip
ALL = slice(None)


def stored(x: torch.Tensor, places: Any, values: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[places] = values
    return made


CALLS: list[tuple[Callable[..., Any], list[Sequence[int]]]] = [
    (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), [(2, 3, 7, 5)]),
    (lambda x: F.adaptive_max_pool2d(x, (3, 2)), [(2, 3, 7, 5)]),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [(2, 3, 8, 9)]),
    (lambda x: F.unfold(x, 3, dilation=2, padding=1, stride=2), [(2, 3, 9, 8)]),
    (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), [(2, 8, 3, 5)]),
    (lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), [(2, 3, 6, 5)]),
    (lambda x: F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True), [(2, 3, 9, 8)]),
    (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), [(2, 3, 6, 5)]),
    (lambda x: torch.roll(x, (1, -2), (1, 2)), [(2, 5, 7)]),
    (lambda x: x.unfold(1, 3, 2).flip(-1), [(2, 9, 4)]),
    (lambda x: x[:, torch.tensor([2, 0]), torch.tensor([[1], [3]])], [(2, 4, 5, 3)]),
    (lambda x: torch.std_mean(x, (1, 2), keepdim=True), [(2, 5, 7)]),
    (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), [(2, 3, 9, 8), (2, 3, 9, 8)]),
    (lambda x: F.conv_transpose2d(x, torch.ones(3, 2, 3, 3), stride=2, padding=1, output_padding=1), [(2, 3, 5, 4)]),
    (lambda x: F.conv1d(x, torch.ones(4, 3, 5), padding="same", dilation=2), [(2, 3, 19)]),
    (lambda x: torch.expm1(x * 1e-4) / 1e-4, [(2, 9)]),
    (lambda x: torch.log1p(x.abs() * 1e-5) * 1e5, [(2, 9)]),
    (lambda x: torch.einsum("bij,bkj->bik", x, x), [(2, 4, 5)]),
    (lambda x: F.instance_norm(x[None], weight=torch.arange(4.0), bias=torch.ones(4))[0], [(4, 16)]),
    *((lambda x, f=f: f(torch.where(x > 1, torch.nan, x)), [(3, 40)]) for f in ODD),
    (lambda x, t: F.grid_sample(x, F.affine_grid(t, x.shape, False), align_corners=False), [(2, 3, 7, 5), (2, 2, 3)]),
    (
        lambda x, t: F.grid_sample(x, F.affine_grid(t, [2, 3, 4, 6], True), "nearest", "border", True),
        [(2, 3, 7, 5), (2, 2, 3)],
    ),
    (lambda x: stored(x, (ALL, torch.tensor([2, 0, -1])), torch.ones(3, 1)), [(2, 4, 5)]),
    (lambda x: x.index_put((torch.tensor([[1], [0]]), torch.tensor([2, -1])), x[0, 1], accumulate=True), [(2, 4, 2)]),
    (lambda x: stored(x, (ALL, torch.tensor([1, 0]), torch.tensor([2, 3])), torch.ones(2)), [(2, 4, 5)]),
    (lambda x: stored(x, (torch.tensor([1, 0]), ALL, torch.tensor([2, 3])), torch.ones(2, 4)), [(2, 4, 5)]),
    (lambda x: x.scatter_reduce(1, (x > 0).long(), x, "mean", include_self=False), [(3, 5)]),
    (lambda x: x.topk(2, -1)[0] + x.sort(-1)[0][..., :2], [(2, 4, 5)]),
]


@pytest.mark.parametrize("case", CALLS, ids=range(len(CALLS)))
def test_call(case: tuple[Callable[..., Any], list[Sequence[int]]]) -> None:
    compute, shapes = case

    class Applied(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return compute(*tensors)

    class InDouble(Applied):
        def double(self) -> Any:
            return self

    module = InDouble()
    given = [torch.randn(*s) for s in shapes]
    found = renorm.compile(module, args=tuple(given)).run(*given)
    wanted = module(*given)
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=2e-5 * max(float(b.abs().nan_to_num().max()), 1))


def test_each_name_is_an_overload_of_pytorchs() -> None:
    """A misspelt one would never be read."""
    unknown = [n for n in TABLE if not n.startswith(("torchvision.", "transformers.")) and not _exists(n)]
    assert unknown == []


def _exists(name: str) -> bool:
    library = torch.ops.prims if name.startswith("prims.") else torch.ops.aten
    packet, _, overload = name.removeprefix("prims.").partition(".")
    return hasattr(getattr(library, packet, None), overload)
