"""Layers of experts, whose rows are multiplied by the matrix of their group, against float64."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch
import torch.nn.functional as F

import renorm
from renorm.errors import UnsupportedOp

FALLBACK = torch.library.Library("transformers", "FRAGMENT")
if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):  # that of transformers, where grouped_mm has no kernel
    FALLBACK.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    FALLBACK.impl(
        "grouped_mm_fallback", lambda x, w, offs: x.new_empty((x.shape[0], w.shape[2])), "CompositeExplicitAutograd"
    )


class Experts(torch.nn.Module):
    """Rows in the order of their groups, times the matrices of these."""

    def __init__(self, count: int, width: int, channels: int, dtype: torch.dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(count, channels, width).to(dtype))

    def forward(self, x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        count = self.weight.shape[0]
        groups, order = torch.sort(groups, stable=True)
        rows = torch.histc(groups.float(), bins=count, min=0, max=count - 1)
        ends, weight = torch.cumsum(rows, 0, dtype=torch.int32), self.weight.transpose(1, 2)
        if x.dtype == torch.bfloat16:
            return F.grouped_mm(x[order], weight, offs=ends)
        return torch.ops.transformers.grouped_mm_fallback(x[order], weight, ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "width", "channels"), [(4, 16, 24), (1, 8, 8), (9, 8, 40)])
def test_rows_of_groups(count: int, width: int, channels: int, dtype: torch.dtype) -> None:
    experts = Experts(count, width, channels, dtype)
    dims = {0: torch.export.Dim("rows", min=1, max=4096)}
    given = torch.randn(5, width).to(dtype), torch.randint(0, count, (5,))
    made = renorm.compile(experts, args=given, dynamic_shapes=(dims, dims))
    bound = 1e-5 if dtype == torch.float32 else 0.05
    for rows, most in ((1, count), (2, count), (7, 1), (33, count), (64, max(1, count - 1))):
        x, groups = torch.randn(rows, width).to(dtype), torch.randint(0, most, (rows,))
        held, order = torch.sort(groups, stable=True)
        wanted = torch.einsum("sk,snk->sn", x[order].double(), experts.weight[held].double()).detach().numpy()
        (found,) = made.run(x, groups)
        np.testing.assert_allclose(found.astype(np.float64), wanted, atol=bound, rtol=0.01)


def test_products_without_groups_and_those_that_are_not_read() -> None:
    x, w = (torch.randn(3, 8, 16).to(torch.bfloat16) for _ in range(2))

    class Of(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return F.grouped_mm(x, w.transpose(1, 2))

    (found,) = renorm.compile(Of(), args=(x, w)).run(x, w)
    np.testing.assert_allclose(
        found.astype(np.float64), (x.double() @ w.double().transpose(1, 2)).numpy(), atol=0.1, rtol=0.01
    )

    class Ragged(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return F.grouped_mm(x, w, offs=ends)

    ends = torch.tensor([8, 16], dtype=torch.int32)
    with pytest.raises(UnsupportedOp, match="grouped products of rank 2 and 2"):
        renorm.compile(Ragged(), args=(x[0], w[0].transpose(0, 1), ends))
