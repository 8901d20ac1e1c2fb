"""Programs of PyTorch's in which data decide extents, against eager PyTorch: one compilation for all data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

import renorm

X = torch.tensor([[0.5, -1.0, 0.0, 2.0], [0.0, -3.0, 4.0, -0.25], [1.5, 0.0, 0.0, -2.0]])
NONE, ALL = torch.zeros(3, 4), torch.ones(3, 4)
DATA = (X, NONE, ALL, -ALL)
BOXES = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [21, 20, 30, 31], [50, 50, 60, 60]])


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


def agree(module: torch.nn.Module, calls: Sequence[Sequence[torch.Tensor]], dynamic: Any = None) -> None:
    """Compile a module for the first arguments, and hold it to eager for all."""
    made = renorm.compile(module, args=tuple(calls[0]), dynamic_shapes=dynamic)
    for args in calls:
        wanted = module(*args)
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        for y, expected in zip(made.run(*args), wanted, strict=True):
            assert y.shape == tuple(expected.shape)
            np.testing.assert_allclose(y, expected.numpy(), 1e-5, 1e-6)


def _whole(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).to(torch.int64)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x: torch.nonzero(x),
    "nonzero of each axis": lambda x: torch.nonzero(x > 0, as_tuple=True),
    "where": lambda x: torch.where(x < 0),
    "argwhere": lambda x: torch.argwhere(x),
    "mask": lambda x: x[x > 0],
    "mask of rows": lambda x: x[x[:, 0] > 0] * 2,
    "mask of columns": lambda x: x[:, x[0] != 0].sum(1),
    "masked_select": lambda x: torch.masked_select(x, x[0] > 0),
    "what was selected, in a network": lambda x: torch.softmax(x[x[:, 1] <= 0] @ x.t(), -1).relu(),
    "how many": lambda x: torch.ones(x[x > 0].shape[0] * 2 + 1) * x[x > 0].shape[0],
    "reshaped": lambda x: torch.nonzero(x).reshape(-1),
    "stored": lambda x: torch.zeros_like(x).masked_scatter(x > 0, torch.arange(12.0)),
    "two selections": lambda x: torch.cat([x[x > 0], x[x < 0] * 3]),
    "selected of what was selected": lambda x: (lambda y: y[y > 1])(x[x > 0]),
    "values of a mask": lambda x: torch.index_put(x, (x > 0,), x[x > 0] * 2 + 1),
    "added by a mask": lambda x: torch.index_put(x, (x[:, 1] < 0,), x[x[:, 1] < 0], accumulate=True),
    "unique": lambda x: torch.unique(x),
    "unique of whole numbers": lambda x: torch.unique(_whole(x), return_inverse=True, return_counts=True),
    "unique slices": lambda x: torch.unique(_whole(x), dim=1, return_inverse=True, return_counts=True),
    "runs": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "repeated": lambda x: torch.repeat_interleave(_whole(x).abs()[0]),
    "repeated rows": lambda x: torch.repeat_interleave(x, _whole(x).abs()[:, 0], 0),
    "bincount": lambda x: torch.bincount(_whole(x).abs().flatten(), minlength=3),
    "embedded": lambda x: torch.arange(12.0).reshape(6, 2)[_whole(x).abs().flatten()[x.flatten() > 0] % 6],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_extents_that_data_decide(name: str) -> None:
    agree(Of(FUNCTIONS[name]), [[x] for x in DATA])


@pytest.mark.parametrize("name", ["nonzero", "mask", "mask of rows", "two selections", "values of a mask", "runs"])
def test_beside_open_extents(name: str) -> None:
    calls = [[X], [torch.cat([X, -X])], [X[:2]]]
    agree(Of(FUNCTIONS[name]), calls, {"x": ({0: torch.export.Dim("n", min=1)},)})


def test_an_element_is_an_extent() -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
            k: Any = n.item()
            torch._check(k >= 0)
            torch._check(k <= x.shape[0])
            return x[:k] * k, torch.zeros(k + 1)

    agree(Cut(), [[X, torch.tensor(n)] for n in (2, 0, 3, 1)])


def test_an_element_is_a_number() -> None:
    agree(Of(lambda x: x * (x * 2).sum().item()), [[x] for x in DATA])


def test_several_mean_the_same() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            a, b = x[x > 0], (x * 2)[x > 0]
            torch._check(a.shape[0] == b.shape[0])
            return a + b

    agree(Both(), [[x] for x in DATA])


def test_torch_compile_leaves_them_to_pytorch() -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        run = torch.compile(lambda x: (x[x > 0] * 2 + 1).relu(), backend="renorm")
        for x in DATA:
            torch.testing.assert_close(run(x), (x[x > 0] * 2 + 1).relu())


def _nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Greedy suppression, box by box."""
    kept = list[int]()
    for i in np.argsort(-scores.numpy(), kind="stable"):
        low = np.maximum(boxes[i, :2].numpy(), boxes[kept, :2].numpy())
        high = np.minimum(boxes[i, 2:].numpy(), boxes[kept, 2:].numpy())
        common = np.prod(np.maximum(high - low, 0), -1)
        areas = [np.prod((boxes[k, 2:] - boxes[k, :2]).numpy(), -1) for k in (i, kept)]
        if not (common > threshold * (areas[0] + areas[1] - common)).any():
            kept.append(int(i))
    return torch.tensor(kept, dtype=torch.int64)


def test_boxes_that_are_kept() -> None:
    """The operator is torchvision's, which is not installed: a definition of its own."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", _nms, "CPU")
        torch.library.register_fake(
            "torchvision::nms",
            lambda boxes, scores, threshold: boxes.new_empty(
                torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64
            ),
            lib=library,
        )

    def kept(boxes: torch.Tensor, scores: torch.Tensor) -> Any:
        found = torch.ops.torchvision.nms(boxes, scores, 0.5)
        return boxes[found], scores[found], found

    scores = torch.tensor([0.9, 0.8, 0.3, 0.7, 0.6])
    more = torch.tensor(np.random.default_rng(3).uniform(0, 20, (17, 2)).astype(np.float32))
    many = torch.cat([more, more + 8], 1)
    calls = [(BOXES, scores), (BOXES * 0, scores), (BOXES[:2], scores[:2]), (many, torch.linspace(0, 1, 17))]
    dim = torch.export.Dim("n", min=1)
    agree(Of(kept), calls, {"x": ({0: dim}, {0: dim})})
