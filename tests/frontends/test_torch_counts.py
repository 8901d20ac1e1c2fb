"""Programs of PyTorch's in which data decide extents, against eager PyTorch: one compilation for all data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

import renorm
from renorm.driver.module import OpenModule
from renorm.errors import InvalidInput, UnsupportedOp

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


def agree(
    module: torch.nn.Module, calls: Sequence[Sequence[torch.Tensor]], dynamic: Any = None, is_saved: bool = True
) -> Any:
    """Return a module that is compiled for the first arguments, held to eager for all; so is its artifact, which has
    nothing to compile another one with."""
    made = renorm.compile(module, args=tuple(calls[0]), dynamic_shapes=dynamic)
    with TemporaryDirectory() as folder:
        made.save(path := Path(folder, "made.renorm"))
        runs = [made.run, renorm.load(path).run] if is_saved else [made.run]
    for args in calls:
        wanted = module(*args)
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        for run in runs:
            for y, expected in zip(run(*args), wanted, strict=True):
                assert y.shape == tuple(expected.shape)
                np.testing.assert_allclose(y, expected.numpy(), 1e-5, 1e-6)
    return made


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
    "selected and all": lambda x: torch.cat([x * 2, x[x[:, 1] > 0]]),
    "the greatest": lambda x: torch.cat([x[x > 0], x[0]]).topk(1)[0],
    "selected of what was selected, joined": lambda x: torch.cat([(lambda s: s[s > 1])(x[x > 0]), x[x < -1]]),
    "a sum of what was selected twice": lambda x: (lambda s: s[s > 1].sum())(x[x > 0]),
    "in order": lambda x: (lambda s: torch.cat([s[s.argsort()], x[0]]).amax(0))(x[x > 0]),
    "gathered by each column": lambda x: (lambda s: s.gather(0, s.argsort(0)).sum(0))(x[x[:, 0] > 0]),
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


def _columns(x: torch.Tensor) -> torch.Tensor:
    made, kept = x.clone(), x[0] > 0.4
    made[:, kept] = made[:, kept] * 3
    return made


def _slices(x: torch.Tensor) -> torch.Tensor:
    made = torch.stack([x, x + 1, x - 1])
    made[:, x > 0] = made[:, x > 0] * 2
    made[:, x[:, 1] < 0] = 7.0
    return made


FUNCTIONS.update(
    {
        "columns of a mask": _columns,
        "slices of a mask": _slices,
        "std of a selection": lambda x: x[x > 0].std(),
        "a branch of one truth value": lambda x: torch.cond(x[0, :1] > 0, lambda a: a.sum(), lambda a: a.mean(), (x,)),
    }
)


@pytest.mark.filterwarnings("ignore:std")  # PyTorch's, of no degrees of freedom
@pytest.mark.parametrize("name", FUNCTIONS)
def test_extents_that_data_decide(name: str) -> None:
    agree(Of(FUNCTIONS[name]), [[x] for x in DATA])


BESIDE = ("nonzero", "mask", "mask of rows", "two selections", "values of a mask", "runs", "selected and all")


@pytest.mark.parametrize("name", BESIDE)
def test_beside_open_extents(name: str) -> None:
    calls = [[X], [torch.cat([X, -X])], [X[:2]], [-X.abs()]]
    agree(Of(FUNCTIONS[name]), calls, {"x": ({0: torch.export.Dim("n", min=1)},)})


def test_an_element_is_an_extent() -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
            k = cast("int", n.item())
            torch._check(k >= 0)
            torch._check(k <= x.shape[0])
            return x[:k] * k, torch.zeros(k + 1)

    agree(Cut(), [[X, torch.tensor(n)] for n in (2, 0, 3, 1)])


def test_one_value_may_be_for_all_places() -> None:
    def stored(x: torch.Tensor) -> torch.Tensor:
        return x.index_put((x > 0,), x[x < -2.5])

    agree(Of(stored), [[X], [X * 0]], is_saved=False)  # the host stores it where data say so
    with pytest.raises(InvalidInput):  # five places and two values
        renorm.compile(Of(stored), args=(X,)).run(torch.tensor([[1.0, 1, 1, 0], [1, 1, -3, 0], [0, 0, 0, -4]]))


def test_arithmetic_of_extents_that_data_decide_and_open_ones() -> None:
    def made(x: torch.Tensor, t: torch.Tensor) -> Any:
        k = cast("int", t.item())
        torch._check(k >= 0)
        n = x.shape[0]
        sizes = n * k, n + n * k + k + 3, k * k * n, (n + k) // 2, (2 * k + n) % 3
        return [torch.ones(size) for size in sizes]

    calls = [[X, torch.tensor(2)], [torch.cat([X, X]), torch.tensor(0)], [X[:2], torch.tensor(5)]]
    agree(Of(made), calls, {"x": ({0: torch.export.Dim("n", min=1)}, None)})


def test_bincount_of_an_open_extent() -> None:
    x = torch.tensor([1, 0, 3, 1])
    agree(
        Of(lambda x: torch.bincount(x, minlength=x.shape[0])),
        [[x], [x[:2]]],
        {"x": ({0: torch.export.Dim("n", min=1)},)},
    )


def test_steps_that_are_no_whole_numbers() -> None:
    def steps(t: torch.Tensor) -> torch.Tensor:
        k = cast("int", t.item())
        torch._check(k >= 0)
        return torch.arange(0, k, 0.5)

    with pytest.raises(UnsupportedOp, match="no whole number"):
        renorm.compile(Of(steps), args=(torch.tensor(4),))


def test_a_slice_of_known_length_begins_where_data_say() -> None:
    def cut(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        begin = cast("int", n.item())
        torch._check(begin >= 0)
        torch._check(begin <= 1)
        return x[begin : begin + 2]

    agree(Of(cut), [[X, torch.tensor(n)] for n in (1, 0)])


def test_what_may_be_negative() -> None:
    calls = [[X, torch.tensor(n)] for n in (1, -2)]
    agree(Of(lambda x, n: torch.full((2,), n.item()) + x[: n.item()].sum()), calls, is_saved=False)
    with pytest.raises(UnsupportedOp, match=r"torch\._check\(u\d+ >= 0\)"):
        renorm.compile(Of(lambda x, n: torch.nn.functional.pad(x, (0, n.item()))), args=(X, torch.tensor(1)))


@pytest.mark.parametrize("is_open", [False, True])
def test_buffers_are_updated_beside_counts(is_open: bool, tmp_path: Path) -> None:
    """In front of the counts and behind them; norms in training mode among them."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(4))
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            self.seen += x.sum(0)
            y, kept = self.norm(x), x[:, 0] > 0
            self.seen += x[kept].sum(0)
            return x[kept] * self.calls, y[kept], self.seen.clone()

    eager = Counting()
    dynamic = {"x": {0: torch.export.Dim("n", min=2)}} if is_open else None
    module = renorm.compile(deepcopy(eager), args=(X,), dynamic_shapes=dynamic)
    module.save(tmp_path / "counting.renorm")
    loaded = renorm.load(tmp_path / "counting.renorm")
    for x in (X, X * 2, -X.abs(), X.abs(), *((torch.cat([X, -X]), X) if is_open else ())):
        wanted = eager(x)
        for made in (module, loaded):
            for y, expected in zip(made.run(x), wanted, strict=True):
                assert y.shape == tuple(expected.shape)
                np.testing.assert_allclose(y, expected.detach().numpy(), 1e-5, 1e-5)
            for name, buffer in eager.named_buffers():
                np.testing.assert_allclose(made.state[name], buffer.numpy(), 1e-5, 1e-5)


def test_checked_selections_of_nothing() -> None:
    made = renorm.compile(Of(lambda x: (lambda a: a[a > 1])(x[x > 0])), args=(X,), checked=True)
    assert [made.run(x)[0].size for x in (X, NONE, -ALL)] == [3, 0, 0]


def test_an_element_is_a_number() -> None:
    agree(Of(lambda x: x * (x * 2).sum().item()), [[x] for x in DATA])


def test_equal_counts_are_one() -> None:
    module = renorm.compile(Of(lambda x: x[x > 0] * (x * 2)[x > 0].exp() + x[torch.where(x > 0)]), args=(X,))
    assert isinstance(module, OpenModule)
    assert len([e for e in module.report.extents if "counted" in e]) == 1


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


@pytest.fixture
def nms() -> Iterator[Callable[..., Any]]:
    """The operator is torchvision's, which is not installed: a definition of its own."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", _nms, "CPU")

        def shaped(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
            return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

        torch.library.register_fake("torchvision::nms", shaped, lib=library)
    yield torch.ops.torchvision.nms
    library._destroy()


def test_detections_of_several_levels(nms: Callable[..., Any]) -> None:
    """The head of a detector: candidates of each level above a threshold, of which the best are taken, then boxes that
    no better one of their class overlaps. There is one program, which also has results where nothing is found."""

    def detected(*levels: torch.Tensor) -> Any:
        boxes, scores, labels = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
        for x in levels:
            score = x[:, 4:].flatten().sigmoid()
            keep = score > 0.6
            score, index = score[keep], torch.where(keep)[0]
            score, order = score.topk(cast("int", torch.sym_min(index.shape[0], 9)))
            index = index[order]
            middle, size = x[index // 3, :2] * 10, x[index // 3, 2:4].exp()
            boxes.append(torch.cat([middle - size, middle + size], 1))
            scores.append(score)
            labels.append(index % 3)
        found, score, label = torch.cat(boxes), torch.cat(scores), torch.cat(labels)
        apart = torch.cat([found.flatten(), found.new_zeros(1)]).max() + 1
        kept = nms(found + (label * apart)[:, None], score, 0.5)[:11]
        return found[kept], score[kept], label[kept]

    rng = np.random.default_rng(7)
    draws = [[torch.from_numpy(rng.normal(size=(n, 7)).astype(np.float32)) for n in (25, 12, 6)] for _ in range(3)]
    some = [[x - 9 * (i in without) for i, x in enumerate(draws[0])] for without in ((0,), (1, 2), (0, 2), (0, 1, 2))]
    assert isinstance(agree(Of(detected), [*draws, *some]), OpenModule)


def test_boxes_that_are_kept(nms: Callable[..., Any]) -> None:
    def kept(boxes: torch.Tensor, scores: torch.Tensor) -> Any:
        found = nms(boxes, scores, 0.5)
        return boxes[found], scores[found], found

    scores = torch.tensor([0.9, 0.8, 0.3, 0.7, 0.6])
    more = torch.tensor(np.random.default_rng(3).uniform(0, 20, (17, 2)).astype(np.float32))
    many = torch.cat([more, more + 8], 1)
    calls = [(BOXES, scores), (BOXES * 0, scores), (BOXES[:2], scores[:2]), (many, torch.linspace(0, 1, 17))]
    dim = torch.export.Dim("n", min=1)
    agree(Of(kept), calls, {"x": ({0: dim}, {0: dim})})


def test_numbers_are_results() -> None:
    """Whole numbers: of extents that are known, open, and decided by data."""
    module = Of(lambda x: (x * 2, x.shape[1], x.shape[0] + 1, x[x > 0].shape[0] * 2, 2.5, True))
    made = renorm.compile(module, args=(X,), dynamic_shapes={"x": ({0: torch.export.Dim("n", min=2)},)})
    for x in (X, torch.cat([X, -X])):
        y, *numbers = made.run(x)
        np.testing.assert_array_equal(y, x.numpy() * 2)
        kinds = [np.int64, np.int64, np.int64, np.float32, np.bool_]
        assert [(n.shape, n.dtype, n.item()) for n in numbers] == [((), *k) for k in zip(kinds, module(x)[1:])]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_number_is_an_input(is_open: bool) -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> Any:
            return x[:n] * n, torch.zeros(n + 1, 2)

    dynamic = {"x": {0: torch.export.Dim.DYNAMIC} if is_open else None, "n": torch.export.Dim.DYNAMIC}
    made = renorm.compile(Cut(), args=(X, 2), dynamic_shapes=dynamic)
    for n in (1, 2, 3):
        for y, expected in zip(made.run(X, np.array(n)), Cut()(X, n), strict=True):
            assert y.shape == tuple(expected.shape)
            np.testing.assert_array_equal(y, expected.numpy())
    if not is_open:
        with pytest.raises(InvalidInput, match=r"is in \d\.\.3"):
            made.run(X, np.array(4))
