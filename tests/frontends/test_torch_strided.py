"""Views by strides: windows that overlap, repeated elements, gaps, any order of axes, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
from torch import nn

import renorm
from renorm.core.errors import RenormError


class Strided(nn.Module):
    """A view by strides of what lies in memory in another order of axes than it has."""

    def __init__(self, order: list[int], size: list[int], stride: list[int], offset: int):
        super().__init__()
        self.order, self.how = order, (size, stride, offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = (x * 2).permute(self.order).contiguous().permute(np.argsort(self.order).tolist())
        return torch.as_strided(inner, *self.how) + 1


@st.composite
def views(draw: st.DrawFn) -> tuple[Strided, torch.Tensor]:
    size = draw(st.lists(st.integers(1, 4), max_size=4))
    stride, step = list[int](), 1
    for n in size:  # each axis beside the one before it, across it, or a part of it
        stride.append(draw(st.sampled_from([step, max(1, step // 2), 2 * step, step + 1, 0, draw(st.integers(1, 9))])))
        step = max(step, stride[-1] * n)
    axes = draw(st.permutations(range(len(size))))
    size, stride = [size[a] for a in axes], [stride[a] for a in axes]
    offset = draw(st.integers(0, 3))
    reach = offset + sum((n - 1) * s for n, s in zip(size, stride))
    inner = draw(st.lists(st.integers(1, 3), max_size=2))
    shape = [reach // int(np.prod(inner)) + draw(st.integers(1, 2)), *inner]
    return Strided(list(draw(st.permutations(range(len(shape))))), size, stride, offset), torch.randn(shape)


@given(views())
@settings(deadline=None, max_examples=30)
def test_views_by_strides(case: tuple[Strided, torch.Tensor]) -> None:
    module, x = case
    (found,) = renorm.compile(module, args=(x,)).run(x.numpy())
    np.testing.assert_array_equal(found, module(x).numpy())


@pytest.mark.parametrize("size", [[0], [2, 0, 3]])
def test_of_no_elements(size: list[int]) -> None:
    module, x = Strided([0], size, [1] * len(size), 0), torch.randn(3)
    assert renorm.compile(module, args=(x,)).run(x.numpy())[0].shape == tuple(size)


class Tail(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.as_strided(x[2:], (3,), (1,), 0)


class Gaps(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.as_strided(x[::2], (3,), (1,))


@pytest.mark.parametrize(("module", "why"), [(Tail(), "elements -2 to 0 in memory"), (Gaps(), "gaps in memory")])
def test_memory_that_an_operand_does_not_have_is_refused(module: nn.Module, why: str) -> None:
    with pytest.raises(RenormError, match=why):
        renorm.compile(module, args=(torch.randn(8),))
