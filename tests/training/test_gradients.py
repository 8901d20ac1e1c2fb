"""Gradients against PyTorch's autograd in float64: ranks, orders of axes, masks, frozen, ReLU and residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.oracle import Forward, near

from renorm import training

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "float16": 2e-3}
ROUNDING = {"float32": 2.0**-22, "float64": 2.0**-50}  # between orders in which sums are taken
SHAPES = {1: (4, 3, 7), 2: (3, 5, 4, 3), 3: (2, 4, 2, 3, 5)}


class Autograd:
    """A batch norm of PyTorch operations in float64, with everything that ours takes."""

    def __init__(
        self, x: Any, scale: Any, bias: Any, *, axis: int, epsilon: float, mask: Any = None, stored: Any = None,
        residual: Any = None, relu: bool = False,
    ):  # fmt: skip
        self._axis = axis
        self.x, self.scale, self.bias = (
            torch.tensor(v.astype(np.float64), requires_grad=True) for v in (x, scale, bias)
        )
        self.residual = None if residual is None else torch.tensor(residual.astype(np.float64), requires_grad=True)
        last = self.x.movedim(axis, -1)
        if stored is None:
            values = last.reshape(-1, last.shape[-1]) if mask is None else last[torch.tensor(mask)]
            mean, var = values.mean(dim=0), values.var(dim=0, correction=0)
        else:
            mean, var = (torch.tensor(v.astype(np.float64)) for v in stored)
        y = ((last - mean) / torch.sqrt(var + epsilon) * self.scale + self.bias).movedim(-1, axis)
        y = y if self.residual is None else y + self.residual
        self.y = torch.relu(y) if relu else y

    def gradients(self, dy: Any) -> list[Any]:
        given = [self.x, self.scale, self.bias, *([] if self.residual is None else [self.residual])]
        return [g.numpy() for g in torch.autograd.grad(self.y, given, torch.tensor(dy.astype(np.float64)))]


def draw(shape: tuple[int, ...], axis: int, dtype: str, seed: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    parameters = "float64" if dtype == "float64" else "float32"
    x, dy = rng.normal(1, 2, (2, *shape)).astype(dtype)
    scale, bias = rng.normal(size=(2, shape[axis])).astype(parameters)
    return x, dy, scale, bias


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_training(dims: int, axis: int, is_masked: bool) -> None:
    shape = SHAPES[dims]
    x, dy, scale, bias = draw(shape, axis, "float32", dims)
    others = [e for i, e in enumerate(shape) if i != axis % len(shape)]
    mask = np.random.default_rng(3).random(others) < 0.6 if is_masked else None
    peer = Autograd(x, scale, bias, axis=axis, epsilon=1e-5, mask=mask)
    r = training.batch_norm(x, scale, bias, axis=axis, mask=mask)
    near(r.y, peer.y.detach(), 2e-6)
    wanted = peer.gradients(dy)
    ways: list[dict[str, Any]] = [{"saved_mean": r.saved_mean, "saved_invstd": r.saved_invstd}, {"epsilon": 1e-5}]
    for saved in ways:
        found = training.batch_norm_backward(dy, x, scale, **saved, axis=axis, mask=mask)
        for got, right in zip(found, wanted, strict=True):
            near(got, right, TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("axis", [1, -1])
def test_frozen(axis: int, dtype: str) -> None:
    x, dy, scale, bias = draw(SHAPES[2], axis, dtype, 5)
    rng = np.random.default_rng(6)
    stored = rng.normal(size=scale.size).astype(scale.dtype), rng.uniform(0.3, 2, scale.size).astype(scale.dtype)
    peer = Autograd(x, scale, bias, axis=axis, epsilon=1e-3, stored=stored)
    y = training.batch_norm_inference(x, scale, bias, *stored, epsilon=1e-3, axis=axis)
    near(y, peer.y.detach(), TOLERANCE[dtype])
    found = training.batch_norm_backward_frozen(dy, x, scale, *stored, epsilon=1e-3, axis=axis)
    for got, right in zip(found, peer.gradients(dy), strict=True):
        near(got, right, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_relu_behind(dtype: str, has_residual: bool, fused: bool) -> None:
    shape = (3, 6, 5, 7)
    x, dy, scale, bias = draw(shape, 1, dtype, 9)
    residual = np.random.default_rng(10).normal(size=shape).astype(dtype) if has_residual else None
    peer = Autograd(x, scale, bias, axis=1, epsilon=1e-5, residual=residual, relu=True)
    r = training.batch_norm(x, scale, bias, relu=True, residual=residual, fused=fused)
    near(r.y, peer.y.detach(), TOLERANCE[dtype])
    found = training.batch_norm_backward(dy, x, scale, r.saved_mean, r.saved_invstd, y=r.y, residual=has_residual)
    for got, right in zip(found, peer.gradients(dy), strict=True):
        near(got, right, TOLERANCE[dtype])
    if not has_residual:
        return
    stored = r.saved_mean, 1 / r.saved_invstd**2
    peer = Autograd(x, scale, bias, axis=1, epsilon=0.0, residual=residual, relu=True, stored=stored)
    y = training.batch_norm_inference(x, scale, bias, *stored, epsilon=0.0, relu=True, residual=residual)
    near(y, peer.y.detach(), TOLERANCE[dtype])
    found = training.batch_norm_backward_frozen(dy, x, scale, *stored, epsilon=0.0, y=y, residual=True)
    for got, right in zip(found, peer.gradients(dy), strict=True):
        near(got, right, TOLERANCE[dtype])


@pytest.mark.parametrize(("shape", "axis"), [((5, 3, 4, 6), 1), ((70, 33), 1), ((2, 40, 50), -1)])
@pytest.mark.parametrize("is_masked", [False, True])
def test_whole_and_parts_differ_by_rounding_alone(shape: tuple[int, ...], axis: int, is_masked: bool) -> None:
    x, dy, scale, bias = draw(shape, axis, "float32", 4)
    others = [e for i, e in enumerate(shape) if i != axis % len(shape)]
    mask = np.random.default_rng(5).random(others) < 0.5 if is_masked else None
    given: dict[str, Any] = {"axis": axis, "mask": mask}
    whole, parts = (training.batch_norm(x, scale, bias, bias, scale, **given, fused=fused) for fused in (True, False))
    for a, b in zip(whole, parts, strict=True):
        near(a, b, ROUNDING["float32"])
    saved = whole.saved_mean, whole.saved_invstd
    alone = training.batch_norm_backward(dy, x, scale, *saved, **given, comm=training.Alone())
    for a, b in zip(training.batch_norm_backward(dy, x, scale, *saved, **given), alone, strict=True):
        near(a, b, ROUNDING["float32"])


def test_local_sums_add_up_to_those_of_all_ranks() -> None:
    """What an optimizer that adds up the gradients of ranks is given; far from 0, where rounding the mean tells."""
    x, dy, scale, bias = draw((6, 3, 5), 1, "float32", 14)
    x += 1e4
    wanted = Forward(x, scale, bias, 1e-5).gradient(dy)
    parts = [slice(0, 1), slice(1, 6)]

    def rank(comm: Any) -> Any:
        own = parts[comm.rank]
        r = training.batch_norm(x[own], scale, bias, comm=comm)
        saved = r.saved_mean, r.saved_invstd
        return [training.batch_norm_backward(dy[own], x[own], scale, *saved, comm=comm, local=k) for k in (False, True)]

    found = training.Threads(2).run(rank)
    for i in (1, 2):
        near(found[0][0][i], wanted[i], 3e-6)
        np.testing.assert_array_equal(found[0][0][i], found[1][0][i])
        near(found[0][1][i] + found[1][1][i], wanted[i], 3e-6)
        assert np.abs(found[0][1][i] - found[1][1][i]).max() > 0.1
    near(np.concatenate([f[1][0] for f in found]), wanted[0], 3e-6)


@st.composite
def batches(draw: Any) -> tuple[tuple[int, ...], int, str, bool, int]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=5)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return shape, axis, draw(st.sampled_from(["float32", "float64"])), draw(st.booleans()), draw(st.integers(0, 99))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(batches())
def test_any_shape_axis_and_mask(batch: tuple[tuple[int, ...], int, str, bool, int]) -> None:
    """Against NumPy: forward whole and in parts, and backward."""
    shape, axis, dtype, is_masked, seed = batch
    x, dy, scale, bias = draw(shape, axis, dtype, seed)
    mask = None
    if is_masked:
        others = [e for i, e in enumerate(shape) if i != axis % len(shape)]
        mask = np.random.default_rng(seed).random(others) < 0.7
        mask.reshape(-1)[0] = True
    wanted = Forward(x, scale, bias, 1e-3, axis, mask)
    r, parts = (
        training.batch_norm(x, scale, bias, bias, scale, axis=axis, mask=mask, convention="keras", fused=fused)
        for fused in (True, False)
    )
    for a, b in zip(r, parts):
        near(a, b, ROUNDING[dtype])
    tolerance = 3 * TOLERANCE[dtype]
    near(r.y, wanted.y, tolerance)
    near(r.batch_mean, wanted.mean, tolerance)
    near(r.batch_var, wanted.var, tolerance)
    assert r.count == wanted.count
    dx, dscale, dbias = training.batch_norm_backward(dy, x, scale, r.saved_mean, r.saved_invstd, axis=axis, mask=mask)
    near(dbias, wanted.gradient(dy)[2], tolerance)
    limit = tolerance * np.abs(dy).max() * wanted.count
    np.testing.assert_allclose(
        dscale, wanted.gradient(dy)[1], rtol=tolerance, atol=limit * np.abs(wanted.standard).max()
    )
    k = np.abs(wanted.scale * wanted.invstd).max()
    np.testing.assert_allclose(dx, wanted.gradient(dy)[0], rtol=tolerance, atol=limit * k)


def test_bfloat16() -> None:
    import ml_dtypes

    x, dy, scale, bias = draw((4, 6, 9), 1, "float32", 12)
    x, dy, narrow = (v.astype(ml_dtypes.bfloat16) for v in (x, dy, scale))
    wanted = Forward(x, narrow, bias, 1e-5)
    r = training.batch_norm(x, narrow, bias, bias, scale)
    near(r.y, wanted.y, 8e-3)
    assert r.running_var is not None
    assert [v.dtype.name for v in (r.y, r.running_var, r.saved_invstd)] == ["bfloat16", "float32", "float32"]
    near(r.batch_var, wanted.var, 1e-6)
    found = training.batch_norm_backward(dy, x, narrow, r.saved_mean, r.saved_invstd)
    for got, right in zip(found, wanted.gradient(dy), strict=True):
        near(got, right, 8e-3)
    assert [v.dtype.name for v in found] == ["bfloat16"] * 3  # of scale, as autograd wants it
