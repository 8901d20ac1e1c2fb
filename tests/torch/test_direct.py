"""Batch norm by addresses gives the bits that it gives by arrays, and leaves to those what it has no words for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from renorm.core.errors import StatisticsWarning
from renorm.torch import BatchNorm1d, BatchNorm2d, batch
from renorm.torch.direct import direct

Tensor = Any
SETTINGS = batch.Settings(1e-5, True, 0.1)


def data(seed: int, *shape: int, dtype: Any = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(channels: int, **changed: Any) -> list[Any]:
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
    return list((named | changed).values())


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
        m.setattr(batch, "direct", lambda *_: None)
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


def test_what_goes_by_addresses() -> None:
    assert direct(*operands(6)) is direct(*operands(6)) is not None
    assert direct(*operands(6, weight=None)) is not direct(*operands(6))
    others: list[dict[str, Any]] = [
        {"settings": SETTINGS._replace(uses_batch=False)},
        {"settings": SETTINGS._replace(comm=object())},
        {"settings": SETTINGS._replace(mask=object())},
        {"x": data(0, 1, 6)},
        {"x": data(0, 0, 6)},
        {"weight": data(1, 12)[::2]},
        {"weight": data(1, 5)},
        {"bias": data(1, 6, 1)},
        {"mean": data(1, 6, dtype=torch.float64)},
        {"var": data(1, 6, dtype=torch.bfloat16)},
        {"mean": None},
    ]
    assert [direct(*operands(6, **changed)) for changed in others] == [None] * len(others)


def test_a_wrong_shape_has_words_and_changes_nothing() -> None:
    x, weight, bias, residual, mean, var, settings = operands(6, bias=data(2, 7))
    kept = mean.clone()
    with pytest.raises(Exception, match="bias has shape"):
        batch.normalize_batch(x, mean, var, weight, bias, settings, residual)
    assert torch.equal(mean, kept)


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
