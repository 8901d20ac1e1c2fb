"""torch.cond, map and scan in programs of torch.export, against eager PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from torch._higher_order_ops.map import map as _map
from torch._higher_order_ops.scan import scan

import renorm
from renorm.errors import UnsupportedOp

map_slices: Any = _map  # its annotations take no functions of slices


class Of(torch.nn.Module):
    """A function, with a layer that it may call."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        torch.manual_seed(5)
        self.function, self.layer, self.norm = function, torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(self, *x)


def _chosen(m: Of, x: torch.Tensor, y: torch.Tensor) -> Any:
    def taken(a: torch.Tensor, b: torch.Tensor) -> Any:
        return m.layer(a).relu() + b, a + 1

    def other(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.cond(b.sum() > 1, lambda a, b: a * 3, lambda a, b: b.heaviside(a), (a, b)), b * 2

    return torch.cond(x.sum() > 0, taken, other, (x, y))


def _sums(m: Of, x: torch.Tensor, h: torch.Tensor) -> Any:
    return scan(lambda carried, row: (torch.tanh(m.layer(carried) + row), carried * 2), h, x, dim=0)


def _products(m: Of, x: torch.Tensor, y: torch.Tensor) -> Any:
    return map_slices(lambda row, other: (m.layer(row) * other).softmax(-1), x, y)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "cond": (_chosen, (2, 3), (2, 3)),
    "map": (_products, (4, 2, 3), (2, 3)),
    "scan": (_sums, (5, 2, 3), (2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_bodies(name: str) -> None:
    function, *shapes = CASES[name]
    module, rng = Of(function).eval(), np.random.default_rng(2)
    draws = [[torch.from_numpy(rng.normal(size=s).astype(np.float32)) for s in shapes] for _ in range(5)]
    with torch.no_grad():
        compiled = renorm.compile(module, args=tuple(draws[0]))
        for args in (*draws, *([-x.abs() for x in args] for args in draws)):
            wanted = module(*args)
            wanted = wanted if isinstance(wanted, (tuple, list)) else [wanted]
            for y, expected in zip(compiled.run(*args), wanted, strict=True):
                np.testing.assert_allclose(y, expected.numpy(), 1e-5, 1e-6)


def test_branches_that_write_to_nothing_are_read_as_they_are() -> None:
    """PyTorch would refuse to make functional what reads a view of an input."""

    def chosen(m: Of, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: a + x[:1], lambda a: a - x[1:2], (x,))

    x = torch.randn(2, 3)
    with torch.no_grad():
        compiled = renorm.compile(Of(chosen).eval(), args=(x,))
        for given in (x.abs(), -x.abs()):
            np.testing.assert_array_equal(compiled.run(given)[0], Of(chosen)(given).numpy())


def test_norms_in_branches_fold() -> None:
    def chosen(m: Of, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: m.norm(m.layer(a)), lambda a: a * 2, (x,))

    with torch.no_grad():
        compiled = renorm.compile(Of(chosen).eval(), args=(torch.randn(2, 3),))
    assert [n.fate for n in compiled.report.norms] == ["folded"]


def test_what_is_wrong_in_a_body_says_where() -> None:
    with pytest.raises(UnsupportedOp, match="node 'special_i0'") as refused, torch.no_grad():
        renorm.compile(
            Of(lambda m, x: torch.cond(x.sum() > 0, lambda a: torch.special.i0(a), lambda a: a + 1, (x,))),
            args=(torch.randn(2, 3),),
        )
    assert "also" not in str(refused.value)


@pytest.mark.parametrize("compare", ["gt", "ge", "lt", "le", "eq", "ne"])
def test_extents_choose_a_branch(compare: str) -> None:
    def chosen(m: Any, x: torch.Tensor) -> Any:
        truth = getattr(operator, compare)(x.shape[0], 4)
        return torch.cond(truth, lambda x: m.norm(m.layer(x)), lambda x: x.relu() - x.shape[0], (x,))

    dynamic = {"x": ({0: torch.export.Dim("n", min=2, max=20)},)}
    module = Of(chosen).eval()
    with torch.no_grad():
        compiled = renorm.compile(module, args=(torch.randn(6, 3),), dynamic_shapes=dynamic)
        for n in (2, 4, 5, 9):
            x = torch.randn(n, 3)
            np.testing.assert_allclose(compiled.run(x)[0], module(x).numpy(), rtol=1e-5, atol=1e-5)
