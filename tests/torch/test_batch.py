"""Batch norm on one rank, by addresses of tensors, gives the bits that renorm.training gives on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.torch.pairs import close

from renorm.core.errors import InvalidInput, StatisticsWarning
from renorm.torch import BatchNorm1d, BatchNorm2d, batch

Tensor = Any
SETTINGS = batch.Settings(1e-5, True, 0.1)


def data(seed: int, *shape: int, dtype: Any = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(channels: int, **changed: Any) -> Any:
    """x, weight, bias, residual, running mean and variance, settings."""
    named: dict[str, Any] = {
        "x": data(0, 4, channels, 5, 7),
        "weight": data(1, channels),
        "bias": data(2, channels),
        "residual": None,
        "mean": data(3, channels),
        "var": data(4, channels).abs(),
        "settings": SETTINGS,
    }
    return tuple((named | changed).values())


def trained(layer: Any, x: Tensor, residual: Tensor | None, dy: Tensor) -> list[Tensor]:
    """All that a layer makes of two steps."""
    layer, found = layer(), list[Tensor]()
    for _ in range(2):
        given = [t.detach().requires_grad_() for t in (x, residual) if t is not None]
        y = layer(*given)
        y.backward(dy)
        found += [y.detach(), *[t.grad for t in given], *[p.grad.clone() for p in layer.parameters()]]
    return [*found, *layer.buffers()]


def by_arrays(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> Any:
    with monkeypatch.context() as m:
        m.setattr(batch, "_kernels", lambda *_: batch._over_ranks)
        return run()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", [{}, {"affine": False}, {"track_running_stats": False, "relu": True}], ids=str)
@pytest.mark.parametrize("form", ["contiguous", "channels last", "strided", "added"])
def test_bits(dtype: Any, settings: dict[str, Any], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy, residual = (data(k, 3, 6, 5, 7, dtype=dtype) for k in range(3))
    if form == "channels last":
        x, dy = (t.to(memory_format=torch.channels_last) for t in (x, dy))
    elif form == "strided":
        x, dy = data(0, 3, 6, 7, 5, dtype=dtype).transpose(2, 3), data(1, 1, 1, 5, 7, dtype=dtype).expand(3, 6, 5, 7)
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    def run() -> list[Tensor]:
        residuals = residual if form == "added" else None
        return trained(lambda: BatchNorm2d(6, dtype=wide, **settings), x, residuals, dy)

    found, expected = run(), by_arrays(monkeypatch, run)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.dtype is b.dtype
        assert a.stride() == b.stride()
        assert torch.equal(a, b)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_parameters_that_kernels_cannot_read_where_they_lie(
    parameters: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow ones, or with strides (None)."""
    names = "weight", "bias", "mean", "var"

    def run() -> list[Tensor]:
        given = {n: data(k, 6, dtype=parameters or torch.float32).abs() for k, n in enumerate(names)}
        if parameters is None:
            given = {n: torch.stack([t, t], 1)[:, 0] for n, t in given.items()}
        for n in names[:2]:
            given[n] = given[n].detach().requires_grad_()
        x, weight, bias, residual, mean, var, settings = operands(6, x=data(0, 4, 6, 5, 7, dtype=dtype), **given)
        y = batch.normalize_batch(x.requires_grad_(), mean, var, weight, bias, settings, residual)
        y.backward(data(9, *y.shape, dtype=dtype))
        return [y.detach(), x.grad, weight.grad, bias.grad, mean, var]

    for a, b in zip(run(), by_arrays(monkeypatch, run), strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_mask(last: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = data(7, 4, 5, 7).numpy() > 0
    x, dy = (data(k, 4, 5, 7, 6, dtype=dtype).movedim(3, 1) for k in range(2))
    x, dy = (t if last else t.contiguous() for t in (x, dy))
    wide = torch.promote_types(dtype, torch.float32)

    def run() -> list[Tensor]:
        given = [data(k, 6, dtype=wide) for k in range(2)]
        kept = [data(k, 6, dtype=wide).abs() for k in range(2, 4)]
        found = [t.detach().requires_grad_() for t in (x, *given)]
        settings = SETTINGS._replace(mask=mask, convention="keras")
        y = batch.normalize_batch(found[0], kept[0], kept[1], found[1], found[2], settings)
        y.backward(dy)
        return [y.detach(), *[t.grad for t in found], *kept]

    for a, b in zip(run(), by_arrays(monkeypatch, run), strict=True):
        assert torch.equal(a, b)
    none = SETTINGS._replace(mask=mask & False, convention="keras")
    mean, var = data(2, 6, dtype=wide), data(3, 6, dtype=wide)
    kept = mean.clone(), var.clone()
    batch.normalize_batch(x, mean, var, None, None, none)
    assert all(map(torch.equal, (mean, var), kept))


def test_a_gradient_that_negates_what_lies_in_memory_under_a_mask() -> None:
    x, dy = data(0, 9, 6).requires_grad_(), torch._neg_view(data(1, 9, 6))
    settings, found = SETTINGS._replace(mask=np.ones(9, bool), momentum=None), list[Tensor]()
    for given in (dy, dy.resolve_neg()):
        y = batch.normalize_batch(x, None, None, None, None, settings)
        found += torch.autograd.grad(y, x, given)
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(4, 6, 5, 7), (1, 6), (0, 6, 3)], ids=str)
def test_running_statistics_as_constants(dtype: Any, shape: tuple[int, ...]) -> None:
    """Beside float64; of an empty batch too."""
    wide = torch.promote_types(dtype, torch.float32)
    mean, var, weight, bias = data(1, 6, dtype=wide), data(2, 6, dtype=wide).abs(), data(3, 6), data(4, 6)
    x, residual, dy = (data(k, *shape, dtype=dtype) for k in range(3))
    settings = batch.Settings(1e-3, False, relu=True)
    found = [t.to(wide).requires_grad_() for t in (weight, bias)]
    given = [t.detach().requires_grad_() for t in (x, residual)]
    y = batch.normalize_batch(given[0], mean, var, found[0], found[1], settings, given[1])
    y.backward(dy)
    exact = [t.detach().double().requires_grad_() for t in (*given, *found)]
    plain = torch.nn.functional.batch_norm(exact[0], mean.double(), var.double(), exact[2], exact[3], False, 0, 1e-3)
    expected = (plain + exact[1]).relu()
    expected.backward(dy.double())
    close(y, expected.to(dtype), dtype)
    for a, b in zip((*given, *found), exact):
        close(a.grad, b.grad.to(a.dtype), dtype)


def test_kernels_of_a_form_are_kept() -> None:
    assert batch._kernels(operands(6)) is batch._kernels(operands(6))
    assert batch._kernels(operands(6, weight=None)) is not batch._kernels(operands(6))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bias": data(2, 7)}, r"bias has shape \[7\]"),
        ({"weight": data(2, 6, 1)}, r"weight has shape \[6, 1\]"),
        ({"var": data(2, 5)}, r"running_var has shape \[5\]"),
        ({"mean": data(1, 6, dtype=torch.float64)}, "running_mean is float64"),
        ({"mean": None}, "running_mean is None, running_var given"),
        (
            {"var": None, "mean": None, "settings": batch.Settings(1e-5, False)},
            "running_mean is None, running_var None",
        ),
        ({"x": data(0, 1, 6)}, r"x float32\[1, 6\] has one value per channel"),
        (
            {"settings": SETTINGS._replace(mask=np.eye(4, 1, dtype=bool)[:, :, None] * np.eye(5, 7, -4, bool))},
            "has one",
        ),
        ({"settings": SETTINGS._replace(momentum=1.5)}, "momentum is 1.5"),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_what_is_wrong_has_words_and_changes_nothing(wrong: dict[str, Any], words: str) -> None:
    x, weight, bias, residual, mean, var, settings = operands(6, **wrong)
    kept = [None if t is None else t.clone() for t in (mean, var)]
    with pytest.raises(InvalidInput, match=words):
        batch.normalize_batch(x, mean, var, weight, bias, settings, residual)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip((mean, var), kept))


def test_a_variance_beyond_float16_is_told() -> None:
    layer = BatchNorm2d(6).half()
    with pytest.warns(StatisticsWarning, match="BatchNorm2d: running_var of channel 2 is beyond float16"):
        layer((data(0, 4, 6, 5, 7) * torch.tensor([1, 1, 3e3, 1, 1, 1])[:, None, None]).half())
    assert torch.isinf(layer.running_var).tolist() == [k == 2 for k in range(6)]


def test_autograd_sees_that_statistics_have_changed() -> None:
    layer, x = BatchNorm2d(6).eval(), data(0, 4, 6, 5, 7)
    frozen = layer(x)
    layer.train()(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        frozen.sum().backward()


def test_a_variance_beyond_its_dtype_is_told() -> None:
    layer = BatchNorm2d(6)
    with pytest.warns(StatisticsWarning, match="BatchNorm2d: running_var of channel 2 "):
        layer(data(0, 4, 6, 5, 7) * torch.tensor([1, 1, 1e25, 1, 1, 1])[:, None, None])
    assert torch.isinf(layer.running_var).tolist() == [k == 2 for k in range(6)]
    assert layer.num_batches_tracked == 1
    layer(data(0, 4, 6, 5, 7))  # what is infinite already is told once


def test_tensors_that_negate_what_lies_in_memory() -> None:
    layer, theirs = BatchNorm1d(6), torch.nn.BatchNorm1d(6)
    x, dy = (torch._neg_view(data(k, 9, 6)) for k in range(2))
    assert x.is_neg()
    for given in (x, x.resolve_neg()):
        found, expected = (m(t) for m, t in ((layer, given.detach()), (theirs, given.resolve_neg())))
        torch.testing.assert_close(found, expected)
        for y in (found, expected):
            y.backward(dy)
    torch.testing.assert_close(layer.weight.grad, theirs.weight.grad)


def test_forward_and_backward_on_other_numbers_of_threads() -> None:
    before, found = torch.get_num_threads(), list[list[Tensor]]()
    try:
        for first, then in ((1, 1), (2, 3), (3, 1)):
            layer, x = BatchNorm2d(37), data(0, 6, 37, 21, 19).requires_grad_()
            torch.set_num_threads(first)
            y = layer(x)
            torch.set_num_threads(then)
            y.backward(torch.sin(y.detach()))
            found.append([y, x.grad, *(p.grad for p in layer.parameters())])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


def test_inference_mode() -> None:
    layer, x = BatchNorm2d(6), data(0, 4, 6, 5, 7)
    expected = torch.nn.functional.batch_norm(x, torch.zeros(6), torch.ones(6), training=True)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x), expected)
