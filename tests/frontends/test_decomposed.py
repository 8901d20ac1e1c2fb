"""Calls without a reader, which PyTorch makes of others that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.export import Dim

import renorm
from renorm.errors import RenormError, UnsupportedOp
from renorm.frontends.torch.overloads import TABLE


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given)


def soft_union(a: Tensor, b: Tensor) -> Tensor:
    return torch.logaddexp(torch.nan_to_num(a), b).sum(-1)


def program(function: Callable[..., Any], *given: Tensor, open_axis: int | None = None) -> torch.export.ExportedProgram:
    axes = None if open_axis is None else ({open_axis: Dim.DYNAMIC},) * len(given)
    return torch.export.export(Called(function), given, dynamic_shapes=None if axes is None else (axes,))


def agrees(found: Any, wanted: Tensor) -> None:
    assert np.abs(found - wanted.numpy()).max(initial=0) <= 1e-5 * max(1, wanted.abs().max())


def test_of_open_extents() -> None:
    assert not {"logaddexp.default", "nan_to_num.default"} & {*TABLE}
    m = renorm.compile(program(soft_union, torch.randn(8, 24), torch.randn(8, 24), open_axis=0))
    for n in (2, 7, 33):
        a, b = torch.randn(n, 24), torch.randn(n, 24)
        agrees(m.run(a.numpy(), b.numpy())[0], soft_union(a.double(), b.double()))


@pytest.mark.parametrize(
    ("function", "is_read"),
    [
        (lambda a: a.roll(-5, 0), True),
        (lambda a: torch.xlogy(2, a).heaviside(a), True),
        (lambda a: torch.select_scatter(a, torch.ones(4), 0, 1), True),
        (lambda a: torch.diag_embed(a.t()), False),
        (lambda a: F.adaptive_avg_pool1d(a.t(), 3), False),
        (lambda a: F.interpolate(a.t()[None], scale_factor=1.5), False),
    ],
    ids=["roll", "elements", "scatter", "diag_embed", "pool", "resize"],
)
def test_extents_stay_open_and_the_program_as_it_is(function: Callable[..., Any], is_read: bool) -> None:
    """Read by a reader of its own, or refuse, what PyTorch would decompose for the one size that it has seen."""
    made = program(function, torch.rand(6, 4), open_axis=0)
    m = renorm.compile(made) if is_read else None
    if m is None:
        with pytest.raises(RenormError):
            renorm.compile(made)
    for n in (7, 12):
        x = torch.rand(n, 4)
        wanted = function(x)
        agrees(made.module()(x).numpy(), wanted)
        if m is not None:
            agrees(m.run(x.numpy())[0], wanted)


def test_results_keep_the_programs_names() -> None:
    made = program(lambda a, b: (torch.logaddexp(a, b) + a, (a * b).abs() + 1), torch.rand(3), torch.rand(3))
    assert [x.name for x in renorm.compile(made).outputs] == ["add", "add_1"]


def test_a_form_that_is_refused_does_not_refuse_others() -> None:
    made = program(lambda x: torch.linalg.matrix_norm(x, "nuc") + torch.linalg.matrix_norm(x, "fro"), torch.rand(3, 3))
    with pytest.raises(UnsupportedOp) as raised:
        renorm.read(made)
    assert "also" not in str(raised.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: F.cross_entropy(a, torch.arange(4), label_smoothing=0.1),
        lambda a: F.unfold(a[None], 3),
        lambda a: F.margin_ranking_loss(a[0], a[1], torch.ones(6)),
        lambda a: torch.nanmean(a, 1),
        lambda a: torch.cdist(a, a[:3]),
    ],
    ids=["cross_entropy", "unfold", "margin", "nanmean", "cdist"],
)
def test_what_writes_inside_and_forms_that_a_reader_does_not_know(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 6)
    (found,) = renorm.compile(program(function, x)).run(x.numpy())
    agrees(found, function(x))


def test_nodes_are_called_by_the_module_that_makes_the_call() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.union = Called(soft_union)

        def forward(self, *given: Tensor) -> Tensor:
            return self.union(*given)

    names = [n.name for n in renorm.read(torch.export.export(Outer(), (torch.randn(3, 5), torch.randn(3, 5)))).nodes]
    assert len(names) > 5
    assert all(n.startswith("union.") for n in names)


def test_what_is_lacking_is_named_beside_what_was_called_and_nothing_else() -> None:
    lacking = program(lambda x: torch.trapezoid(torch.logaddexp(torch.special.i0(x), x)), torch.rand(3))
    with pytest.raises(
        UnsupportedOp, match=r"not read special_i0\.default, which PyTorch makes of prims\.bessel_i0\.default"
    ) as raised:
        renorm.read(lacking)
    assert "also" not in str(raised.value)


def test_a_compiled_graph_takes_them_along() -> None:
    model = torch.compile(soft_union, backend="renorm")
    with torch.no_grad():
        for n in (5, 9, 17):
            a, b = torch.randn(n, 8), torch.randn(n, 8)
            agrees(model(a, b).numpy(), soft_union(a.double(), b.double()))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.roll(-5, 0) * 2, lambda x: torch.cat([F.adaptive_avg_pool1d(x.t(), k) for k in (1, 2, 3)], 1)],
    ids=["roll", "pools"],
)
def test_sizes_are_not_guarded(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = torch.compile(function, backend="renorm", dynamic=True)
    with torch.no_grad():
        for n in (6, 7, 12, 9, 16, 25):
            x = torch.randn(n, 4)
            agrees(model(x).numpy(), function(x))
    assert counters["stats"]["unique_graphs"] == 1


def test_an_operator_of_ones_own_has_no_decomposition() -> None:
    @torch.library.custom_op("decomposed::odd", mutates_args=())
    def odd(x: Tensor) -> Tensor:
        return x.clone()

    @odd.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    with pytest.raises(UnsupportedOp, match=r"does not read decomposed\.odd\.default"):
        renorm.read(program(lambda x: odd(x), torch.rand(3)))
