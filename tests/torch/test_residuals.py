"""Batch norms that add a residual and rectify, beside torch's layers one after the other in float64."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.pairs import close, pair
from torch import nn

import renorm.torch as ours

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def data(shape: Any, seed: int, last: bool = False, dtype: Any = torch.float64) -> Any:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.3).to(dtype)
    return x.to(memory_format=FORMATS[len(shape)]) if last and len(shape) > 3 else x


def results(layer: Any, x: Any, residual: Any, dy: Any, relu: bool | None) -> dict[str, Any]:
    """y, gradients and state after a step. relu: behind the layer; None: the layer does all itself."""
    layer = copy.deepcopy(layer)
    x, residual = (None if t is None else t.detach().clone().requires_grad_() for t in (x, residual))
    if relu is None:
        y = layer(x) if residual is None else layer(x, residual)
    else:
        y = layer(x) if residual is None else layer(x) + residual
        y = y.relu() if relu else y
    y.backward(dy.to(y.dtype))
    gradients = {f"d{name}": p.grad for name, p in layer.named_parameters()}
    found = {"y": y, "dx": x.grad, **gradients, **dict(layer.named_buffers())}
    return found if residual is None else found | {"dresidual": residual.grad}


@settings(max_examples=12, deadline=None)
@given(
    shape=st.tuples(st.integers(2, 5), st.integers(1, 9), *[st.integers(1, 6)] * 3),
    rank=st.integers(2, 5),
    last=st.booleans(),
    last_residual=st.booleans(),
    relu=st.booleans(),
    adds=st.booleans(),
    is_training=st.booleans(),
    affine=st.booleans(),
    tracked=st.booleans(),
    momentum=st.sampled_from([0.1, None]),
    seed=st.integers(0, 99),
)
def test_fused_batch_norm(
    shape: Any,
    rank: int,
    last: bool,
    last_residual: bool,
    relu: bool,
    adds: bool,
    is_training: bool,
    affine: bool,
    tracked: bool,
    momentum: Any,
    seed: int,
) -> None:
    options = {"momentum": momentum, "affine": affine, "track_running_stats": tracked, "dtype": torch.float64}
    shape = shape[:rank]
    theirs, _ = pair(f"BatchNorm{max(1, rank - 2)}d", shape[1], **options)
    if tracked:
        theirs.running_mean.copy_(torch.arange(shape[1]) / 3)
        theirs.running_var.copy_(torch.arange(shape[1]) + 0.5)
    mine = getattr(ours, type(theirs).__name__)(shape[1], **options, relu=relu)
    mine.load_state_dict(theirs.state_dict())
    for m in (theirs, mine):
        m.train(is_training)
    x, dy = data(shape, seed, last), data(shape, seed + 1, last)
    residual = data(shape, seed + 2, last_residual) if adds else None
    expected, found = results(theirs, x, residual, dy, relu), results(mine, x, residual, dy, None)
    assert found.keys() == expected.keys()
    for name, t in expected.items():
        close(found[name], t, torch.float64, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_narrow_floats_round_once(dtype: Any) -> None:
    theirs, _ = pair("BatchNorm2d", 5)
    mine = ours.BatchNorm2d(5, relu=True)
    mine.load_state_dict(theirs.state_dict())
    x, residual, dy = (data((3, 5, 4, 7), seed, dtype=dtype) for seed in range(3))
    wide = results(copy.deepcopy(theirs).double(), x.double(), residual.double(), dy.double(), True)
    for name, t in results(mine, x, residual, dy, None).items():
        assert t.dtype == (dtype if name in ("y", "dx", "dresidual") else t.dtype)
        close(t.double(), wide[name].double(), dtype, name)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    "residual",
    [torch.randn(1, 3, 1, 1), torch.randn(2, 3, 4, 5).double(), torch.randn(4, 2, 3, 4, 5), 0.5],
    ids=["broadcast", "other dtype", "more axes", "number"],
)
def test_what_does_not_fit_torch_adds(residual: Any, relu: bool) -> None:
    theirs, _ = pair("BatchNorm2d", 3)
    mine = ours.BatchNorm2d(3, relu=relu)
    mine.load_state_dict(theirs.state_dict())
    x = data((2, 3, 4, 5), 0, dtype=torch.float32)
    expected = theirs(x) + residual
    y = mine(x, residual)
    assert y.dtype == expected.dtype
    close(y.float(), (expected.relu() if relu else expected).float(), torch.float32)


@pytest.mark.parametrize("relu", [False, True])
def test_what_torch_computes_is_added_and_rectified_too(relu: bool) -> None:
    theirs, _ = pair("BatchNorm1d", 3, momentum=1.5)
    mine = ours.BatchNorm1d(3, momentum=1.5, relu=relu)
    mine.load_state_dict(theirs.state_dict())
    x, residual = data((4, 3), 0, dtype=torch.float32), data((4, 3), 1, dtype=torch.float32)
    expected = theirs(x) + residual
    close(mine(x, residual), expected.relu() if relu else expected, torch.float32)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_are_those_of_the_function(mode: str, relu: bool) -> None:
    layer = ours.BatchNorm2d(3, dtype=torch.float64, relu=relu)
    getattr(layer, mode)()
    layer.track_running_stats = mode == "eval"
    x, residual = data((2, 3, 2, 3), 0).requires_grad_(), data((2, 3, 2, 3), 1).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x, residual))


@pytest.mark.parametrize("relu", [False, True])
def test_only_the_residual_wants_a_gradient(relu: bool) -> None:
    layer = ours.BatchNorm1d(3, affine=False, relu=relu)
    x, residual = data((5, 3), 0, dtype=torch.float32), data((5, 3), 1, dtype=torch.float32).requires_grad_()
    y = layer(x, residual)
    y.sum().backward()
    close(residual.grad, (y > 0).float() if relu else torch.ones(5, 3), torch.float32)
    assert not layer(x, residual.detach()).requires_grad


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_have_gradients(mode: str) -> None:
    layer = getattr(ours.BatchNorm1d(3, relu=True, dtype=torch.float64), mode)()
    theirs = getattr(torch.nn.BatchNorm1d(3, dtype=torch.float64), mode)()
    operands = [data((5, 3), seed).requires_grad_() for seed in range(2)]
    results = []
    for y in (layer(*operands), (theirs(operands[0]) + operands[1]).relu()):
        first = torch.autograd.grad((y**3).sum(), operands, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum((g**2).sum() for g in first), operands)])
    for mine, expected in zip(*results, strict=True):
        close(mine, expected, torch.float64)


def test_nothing_is_kept_but_operands_and_result() -> None:
    """What torch keeps for its norm, and for its ReLU."""
    layer, kept = ours.BatchNorm2d(3, relu=True), list[Any]()
    x, residual = (data((2, 3, 4, 5), seed, dtype=torch.float32).requires_grad_() for seed in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = layer(x, residual)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in (x, y, layer.weight)}


def test_an_option_of_the_layer() -> None:
    """In its printed form, copies and files; parameters are as without."""
    layer, plain = ours.BatchNorm2d(3, relu=True), nn.BatchNorm2d(3)
    assert repr(layer) == repr(plain).replace(")", ", relu=True)")
    assert list(layer.state_dict()) == list(plain.state_dict())
    x = data((2, 3, 4, 5), 0, dtype=torch.float32)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), ours.SyncBatchNorm(3, relu=True)):
        close(again(x), plain(x).relu(), torch.float32)
    model = nn.Sequential(layer, ours.BatchNorm2d(3))
    assert [r.name for r in ours.restore(model)] == ["1"]  # torch's has no ReLU
    assert type(layer) is ours.BatchNorm2d
    converted = ours.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))
    close(converted(x), plain(x).relu(), torch.float32)
