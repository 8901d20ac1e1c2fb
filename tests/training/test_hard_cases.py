"""Data on which variances are lost, overflow or vanish; batches without values, or with one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.training.oracle import Forward, near

from renorm import training
from renorm.core.lru import Latest
from renorm.errors import InvalidInput, StatisticsWarning
from renorm.training.conventions import CONVENTIONS

f32 = np.float32
FUSED = pytest.mark.parametrize("fused", [True, False])
CALLER = {"cudnn": {"momentum": 0.1, "epsilon": 1e-5}}


def both_ways(x: Any, dy: Any, tolerance: float, epsilon: float = 1e-5, **given: Any) -> training.BatchNorm:
    """Forward and backward against NumPy in float64, from saved statistics and without."""
    rng = np.random.default_rng(1)
    scale, bias = rng.normal(size=(2, x.shape[1])).astype(f32)
    wanted = Forward(x, scale, bias, epsilon)
    r = training.batch_norm(x, scale, bias, epsilon=epsilon, **given)
    near(r.y, wanted.y, tolerance)
    near(r.saved_invstd, wanted.invstd, 1e-6)
    ways: list[dict[str, Any]] = [{"saved_mean": r.saved_mean, "saved_invstd": r.saved_invstd}, {"epsilon": epsilon}]
    for saved in ways:
        found = training.batch_norm_backward(dy, x, scale, **saved)
        for got, right in zip(found, wanted.gradient(dy), strict=True):
            near(got, right, tolerance)
    return r


@FUSED
def test_mean_of_ten_thousand_deviations(fused: bool) -> None:
    """Its float32 mean is half a thousandth of a deviation off: y does not show it, nor does the gradient."""
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(16, 5, 9)) * 1e-2 + rng.uniform(90, 110, (5, 1))).astype(f32)
    both_ways(x, rng.normal(size=x.shape).astype(f32), 3e-6, fused=fused)


@FUSED
def test_eighty_thousand(fused: bool) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(80000, 80004, (8, 3, 11)).astype(f32)
    both_ways(x, rng.normal(size=x.shape).astype(f32), 3e-6, fused=fused)


@FUSED
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_constant_channels(dtype: str, fused: bool) -> None:
    """The answer is the bias, exactly; whatever the constant, the count and the dtype."""
    values = np.array([0.1, -80001.3, 1e-30, 7.7])
    x = np.broadcast_to((values if dtype != "float16" else values[[0, 3, 3, 0]]).reshape(1, 4, 1), (13, 4, 77))
    x = np.ascontiguousarray(x).astype(dtype)
    parameters = np.float64 if dtype == "float64" else f32
    scale, bias = np.random.default_rng(4).normal(size=(2, 4)).astype(parameters)
    r = training.batch_norm(x, scale, bias, fused=fused)
    np.testing.assert_array_equal(r.y, np.broadcast_to(bias.astype(dtype).reshape(1, 4, 1), x.shape))
    np.testing.assert_array_equal(r.batch_var, 0)
    np.testing.assert_array_equal(r.batch_mean, x[0, :, 0].astype(parameters))


@FUSED
def test_values_of_1e30(fused: bool) -> None:
    """Squares exceed float32: the running variance becomes infinite, and that is said; all else is right."""
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(6, 4, 10)) * 1e30).astype(f32)
    x[:, 0] *= 1e-30
    dy = rng.normal(size=x.shape).astype(f32)
    both_ways(x[:, 1:].copy(), dy[:, 1:].copy(), 3e-6, fused=fused)
    with pytest.warns(StatisticsWarning, match=r"^bn3: running_var of channel 1, 2, 3 is beyond float32"):
        r = training.batch_norm(x, None, None, np.zeros(4, f32), np.ones(4, f32), fused=fused, name="bn3")
    assert r.running_mean is not None
    assert r.running_var is not None
    assert np.isinf(r.running_var).tolist() == [False, True, True, True]
    assert np.isfinite(r.running_mean).all()
    again = training.batch_norm(x, None, None, r.running_mean, r.running_var, fused=fused)  # said once
    assert again.running_var is not None
    assert np.isinf(again.running_var[1])


@FUSED
def test_ninety_thousand_values_of_float16(fused: bool) -> None:
    rng = np.random.default_rng(6)
    x = rng.uniform(200, 201, (9, 2, 100, 100)).astype(np.float16)
    r = training.batch_norm(x, fused=fused)
    wanted = Forward(x, None, None, 1e-5)
    near(r.batch_mean, wanted.mean, 1e-7)
    near(r.batch_var, wanted.var, 1e-6)
    near(r.y, wanted.y, 1e-3)


@FUSED
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_one_value_per_channel(convention: str, fused: bool) -> None:
    """PyTorch refuses it; elsewhere y is the bias, and the variance 0."""
    x = np.array([[3.5, -2.0]], f32)
    mean, var, bias = np.zeros(2, f32), np.ones(2, f32), np.array([0.25, 7], f32)
    given: dict[str, Any] = {"convention": convention, "fused": fused, **CALLER.get(convention, {})}
    if convention == "torch":
        with pytest.raises(InvalidInput, match="one value per channel"):
            training.batch_norm(x, None, bias, mean, var, **given)
        with pytest.raises(InvalidInput, match="one value per channel"):
            training.update(mean, var, x[0], np.zeros(2), 1)
        assert (mean.tolist(), var.tolist()) == ([0, 0], [1, 1])
        mask = np.zeros((4,), bool)
        mask[2] = True
        with pytest.raises(InvalidInput, match="one value per channel"):
            training.batch_norm(np.ones((4, 2), f32), None, bias, mean, var, mask=mask)
        return
    r = training.batch_norm(x, None, bias, mean, var, **given)
    np.testing.assert_array_equal(r.y, bias.reshape(1, 2))
    np.testing.assert_array_equal(r.batch_var, 0)
    rule = CONVENTIONS[convention]
    weight = rule.batch_weight(given.get("momentum", rule.momentum))
    near(r.running_mean, weight * x[0], 1e-6)
    near(r.running_var, np.full(2, 1 - weight), 1e-6)


@FUSED
@pytest.mark.parametrize(
    ("shape", "convention"), [((0, 3), "torch"), ((2, 3, 0), "keras"), ((0, 3, 4), "tf_fused"), ((0, 3), "cudnn")]
)
def test_empty_batch(convention: str, shape: tuple[int, ...], fused: bool) -> None:
    x = np.empty(shape, f32)
    mean, var = np.array([1, -2, 3], f32), np.array([2, 0.5, 1], f32)
    given: dict[str, Any] = {"convention": convention, "fused": fused, **CALLER.get(convention, {})}
    r = training.batch_norm(x, None, None, mean, var, num_batches_tracked=4, **given)
    assert (r.y.shape, r.count, r.num_batches_tracked) == (shape, 0, 4)
    np.testing.assert_array_equal(r.running_mean, mean)
    np.testing.assert_array_equal(r.running_var, var)
    ways: list[dict[str, Any]] = [{"saved_mean": r.saved_mean, "saved_invstd": r.saved_invstd}, {"epsilon": 1e-5}]
    for saved in ways:
        dx, dscale, dbias = training.batch_norm_backward(x, x, None, **saved)
        assert dx.shape == shape
        np.testing.assert_array_equal([dscale, dbias], 0)
    given["epsilon"] = 0.0
    r = training.batch_norm(x, **given)
    for comm in (None, training.Alone()):
        found = training.batch_norm_backward(
            x, x, None, r.saved_mean, r.saved_invstd, comm=comm, local=comm is not None
        )
        np.testing.assert_array_equal(found[1:], 0)
    frozen = training.batch_norm_backward_frozen(x, x, None, mean, np.zeros_like(var), epsilon=0.0)
    np.testing.assert_array_equal(frozen[1:], 0)
    m = training.moments(x)
    assert m.count == 0
    for got, old in zip(training.update(mean, var, *m, convention="keras"), (mean, var), strict=True):
        np.testing.assert_array_equal(got, old)


@FUSED
@pytest.mark.parametrize("convention", ["torch", "keras"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mask_that_leaves_nothing_is_an_empty_batch(convention: str, ranks: int, fused: bool) -> None:
    """y and gradients are those of mean 0 and variance 0, as in Keras 3; the state stays as it is, on all ranks."""
    rng = np.random.default_rng(10)
    x, dy = rng.normal(size=(2, 3, 2, 4)).astype(f32)
    mean, var = np.array([1, -2], f32), np.array([2, 0.5], f32)
    mask = np.zeros((3, 4), bool)

    def rank(comm: Any) -> None:
        own, kept = (x[:0], None) if comm.rank else (x, mask)  # the other rank has no samples
        r = training.batch_norm(own, None, None, mean, var, mask=kept, comm=comm if ranks > 1 else None,
                                convention=convention, epsilon=1e-3, num_batches_tracked=7, fused=fused)  # fmt: skip
        near(r.y, own / np.sqrt(1e-3), 1e-6)
        assert (r.count, r.num_batches_tracked) == (0, 7)
        for found, old in ((r.running_mean, mean), (r.running_var, var), (r.batch_mean, [0, 0]), (r.batch_var, [0, 0])):
            np.testing.assert_array_equal(found, old)
        found = training.batch_norm_backward(
            dy[: len(own)], own, None, r.saved_mean, r.saved_invstd, mask=kept, comm=comm if ranks > 1 else None
        )
        near(found[0], dy[: len(own)] / np.sqrt(1e-3), 1e-6)
        near(found[1], (dy * x).sum((0, 2)) / np.sqrt(1e-3), 1e-5)
        near(found[2], dy.sum((0, 2)), 1e-5)

    training.Threads(ranks).run(rank)


@FUSED
def test_nan_and_infinity_propagate_as_in_numpy(fused: bool) -> None:
    x = np.random.default_rng(7).normal(size=(4, 3, 5)).astype(f32)
    x[1, 0, 2], x[2, 1, 4] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = Forward(x, None, None, 1e-5)
    r = training.batch_norm(x, None, None, np.zeros(3, f32), np.ones(3, f32), fused=fused)
    near(r.y, wanted.y, 1e-6)
    near(r.batch_mean[2:], wanted.mean[2:], 1e-6)
    np.testing.assert_array_equal(r.batch_mean[:2], [np.nan, np.inf])
    assert r.running_var is not None
    np.testing.assert_array_equal(np.isnan(r.running_var), [True, True, False])
    mask = np.ones((4, 5), bool)
    mask[1, 2] = mask[2, 4] = False
    near(training.moments(x, mask=mask).mean, np.array([x[:, c][mask].mean(dtype=float) for c in range(3)]), 1e-12)


def test_epsilon_of_zero_and_tiny_variances() -> None:
    rng = np.random.default_rng(8)
    x = (rng.normal(size=(32, 3)) * 1e-15).astype(f32)
    both_ways(x, rng.normal(size=x.shape).astype(f32), 3e-6, epsilon=0.0)
    both_ways(x, rng.normal(size=x.shape).astype(f32), 3e-6, epsilon=1e-12)


@pytest.mark.parametrize("shape", [(9, 5, 33, 31), (700, 40), (2, 3, 20000)])
def test_same_bits_for_any_number_of_threads(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from renorm.training import kernels

    rng = np.random.default_rng(9)
    x, dy = rng.normal(5, 1, (2, *shape)).astype(f32)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(kernels, "_modules", Latest("a kernel", 512))
        monkeypatch.setenv("RENORM_NUM_THREADS", str(threads))
        r = training.batch_norm(x)
        found.append([*r[3:7], r.y, *training.batch_norm_backward(dy, x, None, r.saved_mean, r.saved_invstd)])
        assert {m.threads for m in kernels._modules.all()} == {threads}
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("comm", [None, training.Alone()], ids=["whole", "parts"])
def test_gradients_beyond_their_dtype_are_infinite_without_a_warning(comm: Any) -> None:
    """What scales a loss looks for them."""
    x = np.random.default_rng(10).normal(size=(32, 3)).astype(np.float16)
    dy = np.full_like(x, 6e4)
    found = training.batch_norm_backward(dy, x, np.ones(3, np.float16), epsilon=1e-3, comm=comm, local=comm is not None)
    assert found[2].dtype == np.float16
    assert np.isinf(found[2]).all()
