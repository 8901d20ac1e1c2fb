"""The numbers that the article on batch norm in TensorFlow prints, from the inputs that it prints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from renorm import training

f32 = np.float32
X0 = np.array(
    [[[0.16513085, 0.9014813, 0.6309742], [0.4345461, 0.29193902, 0.64250207]],
     [[0.9757855, 0.43509948, 0.6601019], [0.60489583, 0.6366315, 0.6144488]]], f32
).reshape(2, 1, 2, 3)  # fmt: skip
Y0 = np.array(
    [[[-1.2851115, 1.4499114, -0.16879845], [-0.37388456, -1.186722, 0.15376663]],
     [[1.4567168, -0.5674678, 0.6462345], [0.20227909, 0.30427837, -0.6312027]]]
).reshape(2, 1, 2, 3)  # fmt: skip
MEAN, VAR = [0.5450896, 0.5662878, 0.63700676], [0.08641606, 0.05244513, 0.00027721]
RUNNING_MEAN = [0.7725448, 0.7831439, 0.8185034]
RUNNING_VAR = {"keras": [0.543208, 0.5262226, 0.50013864], "tf_fused": [0.5576107, 0.5349634, 0.50018483]}
INVSTD = [3.3822396, 4.325596, 27.981367]
X_INFER = np.array(
    [[[0.8292774, 0.634228, 0.5147276], [0.39108086, 0.5809028, 0.04848182]],
     [[0.1776321, 0.70470166, 0.49190843], [0.3460425, 0.5079107, 0.2216742]]], f32
).reshape(2, 1, 2, 3)  # fmt: skip
Y_INFER = np.array(
    [[[0.1957438, 0.00470471, -0.22726214], [-0.60901, -0.09567499, -1.1527207]],
     [[-1.0010114, 0.13736498, -0.2725562], [-0.69172347, -0.2330758, -0.8089484]]]
).reshape(2, 1, 2, 3)  # fmt: skip
ESTIMATED = [0.72269297, 0.63172865, 0.62922215], [0.29549128, 0.28121024, 0.25281417]

ONES, ZEROS = np.ones(3, f32), np.zeros(3, f32)


def close(got: Any, printed: Any) -> None:
    """As near as the digits that are printed allow. The variance 0.00027721 has five of them."""
    np.testing.assert_allclose(got, printed, rtol=2e-6, atol=5e-9)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("convention", ["keras", "tf_fused"])
def test_training_step(convention: str, fused: bool) -> None:
    """Keras without and with fusing: y is the same, the running variance is not: 4/3 is Bessel's correction."""
    r = training.batch_norm(
        X0, ONES, ZEROS, ONES, ONES, axis=-1, convention=convention, momentum=0.5, epsilon=1e-3, fused=fused
    )
    np.testing.assert_allclose(r.y, Y0, rtol=0, atol=1e-6)
    close(r.batch_mean, MEAN)
    close(r.batch_var, VAR)
    close(r.running_mean, RUNNING_MEAN)
    close(r.running_var, RUNNING_VAR[convention])
    close(r.saved_mean, MEAN)
    close(r.saved_invstd, INVSTD)


def test_parts_of_the_training_step() -> None:
    mean, var, count = training.moments(X0, axis=-1)
    close(mean, MEAN)
    close(var, VAR)
    assert count == 4
    running = training.update(ONES, ONES, mean, var, count, convention="keras", momentum=0.5)
    close(running[0], RUNNING_MEAN)
    close(running[1], RUNNING_VAR["keras"])
    y = training.normalize(X0, mean, var, ONES, ZEROS, epsilon=1e-3, axis=-1)
    np.testing.assert_allclose(y, Y0, rtol=0, atol=1e-6)


def test_inference_with_the_estimated_statistics() -> None:
    mean, var = (np.array(v, f32) for v in ESTIMATED)
    y = training.batch_norm_inference(X_INFER, ONES, ZEROS, mean, var, epsilon=1e-3, axis=-1)
    np.testing.assert_allclose(y, Y_INFER, rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_saved", [True, False])
def test_gradient_of_the_sum(is_saved: bool) -> None:
    r = training.batch_norm(X0, ONES, ZEROS, axis=-1, epsilon=1e-3)
    saved: dict[str, Any] = {"saved_mean": r.saved_mean, "saved_invstd": r.saved_invstd}
    saved = saved if is_saved else {"epsilon": 1e-3}
    dx, dscale, dbias = training.batch_norm_backward(np.ones_like(X0), X0, ONES, **saved, axis=-1)
    np.testing.assert_allclose(dx, 0, atol=1e-6)
    np.testing.assert_allclose(dscale, 0, atol=1e-6)
    np.testing.assert_array_equal(dbias, [4, 4, 4])


def test_update_by_the_statistics_of_two_ranks() -> None:
    group_mean = np.array([0.45652372, 0.5745423, 0.65629953], f32)
    group_var = np.array([0.0657616, 0.0710133, 0.00523123], f32)
    mean, var = training.update(ONES, ONES, group_mean, group_var, 8, convention="keras", momentum=0.5)
    close(mean, [0.7282618, 0.78727114, 0.8281498])
    close(var, [0.5328808, 0.53550667, 0.50261563])
