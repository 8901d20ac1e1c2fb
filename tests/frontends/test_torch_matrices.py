"""Programs of PyTorch's that take matrices apart or rank elements, against eager PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

import renorm
from renorm.errors import UnsupportedOp

OPEN = ({0: torch.export.Dim.AUTO},)
NAN = float("nan")


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def agree(function: Callable[..., Any], calls: Sequence[torch.Tensor], dynamic: Any = None) -> None:
    """Hold one compilation to eager in float64 for all calls."""
    made = renorm.compile(Of(function), args=(calls[0],), dynamic_shapes={"x": dynamic} if dynamic else None)
    for x in calls:
        wanted = function(x.double())
        for y, expected in zip(made.run(x), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            size = expected.abs().nan_to_num(0, 0, 0).max().item() if expected.numel() else 1
            assert y.shape == tuple(expected.shape)
            np.testing.assert_allclose(y, expected.numpy(), rtol=1e-4, atol=1e-5 * max(size, 1e-3))


def _whitened(x: torch.Tensor) -> Any:
    """As decorrelated batch norms do it: by the Cholesky factor of the covariance of channels."""
    n, c, h, w = x.shape
    rows = x.transpose(0, 1).reshape(c, -1)
    centred = rows - rows.mean(1, keepdim=True)
    covariance = centred @ centred.mT / centred.shape[1] + 1e-3 * torch.eye(c, dtype=x.dtype)
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, centred, upper=False)
    return white.reshape(c, n, h, w).transpose(0, 1), torch.logdet(covariance), torch.linalg.inv(covariance)


def test_whitening_of_an_open_batch() -> None:
    agree(_whitened, [drawn(n, 7, 5, 6) for n in (4, 2, 9)], OPEN)


def test_determinants_that_no_float_holds() -> None:
    for x in (torch.eye(400) * 10, drawn(300, 300), drawn(2, 60, 60) * 1e-9):
        agree(lambda x: tuple(torch.linalg.slogdet(x)), [x])
    agree(lambda x: torch.logdet(x @ x.mT + 200 * torch.eye(200, dtype=x.dtype)), [drawn(200, 200)])
    agree(torch.logdet, [-torch.eye(3)])


MATRICES: dict[str, Callable[..., Any]] = {
    "solve": lambda x: torch.linalg.solve(x, x[..., :1] * 2 + 1),
    "solve a vector": lambda x: torch.linalg.solve(x, x[..., 0] + 1),
    "solve from the right": lambda x: torch.linalg.solve(x, x.mT + 1, left=False),
    "powers": lambda x: (torch.linalg.matrix_power(x, 3), torch.linalg.matrix_power(x, -2), x.matrix_power(0)),
    "unit triangles": lambda x: torch.linalg.solve_triangular(x, x + 1, upper=True, unitriangular=True),
    "an upper factor": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4, dtype=x.dtype), upper=True),
    "of a factor": lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(x @ x.mT + torch.eye(4, dtype=x.dtype))),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name: str) -> None:
    agree(MATRICES[name], [drawn(n, 4, 4) for n in (3, 1, 6)], OPEN)


RANKS: dict[str, Callable[..., Any]] = {
    "median": lambda x: (x.median(), x.median(1)[0], x.median(0, keepdim=True)[0]),
    "nanmedian": lambda x: (x.nanmedian(), x.nanmedian(1)[0]),
    "kthvalue": lambda x: (x.kthvalue(2, 1)[0], x.kthvalue(2, 0)[1]),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks(name: str) -> None:
    with_nan = drawn(4, 5)
    with_nan[1, 2:], with_nan[3] = NAN, NAN
    agree(RANKS[name], [drawn(4, 5), drawn(7, 5), *([with_nan] if name != "kthvalue" else [])], OPEN)


def test_bags_of_rows() -> None:
    """Sums, means and maxima of bags of any lengths, of which padding is left out; an empty one is 0."""
    indices, offsets = torch.tensor([1, 5, 2, 2, 9, 0, 1, 3]), torch.tensor([0, 3, 3, 7])
    for mode in ("sum", "mean", "max"):
        options: dict[str, Any]
        for options in ({}, {"padding_idx": 2}, {"padding_idx": -1}):
            bags: Any = torch.nn.EmbeddingBag(10, 3, mode=mode, **options)
            with torch.no_grad():
                made = renorm.compile(bags.eval(), args=(indices, offsets))
                np.testing.assert_allclose(made.run(indices, offsets)[0], bags(indices, offsets).numpy(), rtol=1e-5)


def test_bags_that_end_and_are_weighted() -> None:
    """Leave out what is behind the last offset; add up 16 bits in float32."""
    indices, ends, weights = torch.tensor([1, 5, 2, 2, 9, 0, 1, 3]), torch.tensor([0, 3, 3, 6]), drawn(8)
    bags: Any = torch.nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=True)
    with torch.no_grad():
        made = renorm.compile(bags.eval(), args=(indices, ends), kwargs={"per_sample_weights": weights})
        wanted = bags(indices, ends, per_sample_weights=weights)
        np.testing.assert_allclose(made.run(indices, ends, weights)[0], wanted.numpy(), rtol=1e-5, atol=1e-6)
        many, begin = torch.zeros(600, dtype=torch.int64), torch.tensor([0])
        narrow: Any = torch.nn.EmbeddingBag(2, 3, mode="mean", dtype=torch.bfloat16)
        (y,) = renorm.compile(narrow.eval(), args=(many, begin)).run(many, begin)
        np.testing.assert_allclose(np.asarray(y, np.float32), narrow(many, begin).float().numpy(), rtol=2e-2)


def test_whether_there_is_a_factor() -> None:
    matrices = torch.stack([torch.eye(3), -torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, -1.0]))])
    made = renorm.compile(Of(lambda x: torch.linalg.cholesky_ex(x)[1]), args=(matrices,))
    np.testing.assert_array_equal(made.run(matrices)[0], [0, 1, 3])
    with pytest.raises(UnsupportedOp, match="result 1 of linalg_inv_ex"):
        renorm.compile(Of(lambda x: torch.linalg.inv_ex(x)[1]), args=(matrices,))
