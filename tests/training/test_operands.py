"""What callers may give, and what they are told when it does not fit; nothing that is given is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from renorm import training
from renorm.errors import InvalidInput
from renorm.training.operands import channels_of

f32 = np.float32
X = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(f32)
C3 = np.array([0.5, 1, 2], f32)


def read_only(a: Any) -> Any:
    a = a.copy()
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": X.astype(np.int32)}, r"x is int32\n.*expected one of float32, float64"),
        ({"x": X.astype(">f4")}, "x is >f4"),
        ({"x": [[1.0, 2.0]]}, "x is list, which is neither a NumPy array"),
        ({"x": X[:, :, ::2]}, r"x is not C-contiguous\n.*strides"),
        ({"x": X.transpose(2, 1, 0)}, r"np.ascontiguousarray\(x\)"),
        ({"x": X[0, 0]}, "expected x of rank 2 or more"),
        ({"axis": 3}, r"axis 3 of x \[4, 3, 5\]\n.*an axis of -3 to 2"),
        ({"axis": (0, 2)}, "are not neighbours"),
        ({"axis": 1.5}, r"axis is 1.5\n.*expected an integer"),
        ({"axis": "channels"}, "axis is 'channels'"),
        ({"comm": 3}, r"comm is int\n.*expected a communicator"),
        ({"scale": C3[:2]}, r"scale has shape \[2\]\n.*expected \[3\]"),
        ({"bias": C3.reshape(1, 3)}, r"bias has shape \[1, 3\]"),
        ({"running_mean": C3.astype(np.float64)}, r"running_mean is float64\n.*expected float32"),
        ({"running_var": None}, "go together"),
        ({"running_var": np.arange(3)}, "running_var is int64"),
        ({"mask": np.ones((4, 3, 5), bool)}, r"mask has shape \[4, 3, 5\]\n.*\[4, 5\]: x without its channels"),
        ({"mask": np.full((4, 5), 0.5)}, "mask is float64 with other values than 0 and 1"),
        ({"convention": "pytorch"}, "no convention 'pytorch'\n.*\n.*known: torch, keras, tf_fused, onnx, cudnn"),
        ({"convention": "cudnn"}, "convention 'cudnn' has no default momentum"),
        ({"convention": "cudnn", "momentum": 0.5}, "convention 'cudnn' has no default epsilon"),
        ({"convention": "keras", "momentum": None}, "convention 'keras' has no default momentum"),
        ({"momentum": 1.5}, "momentum is 1.5\n.*expected 0 to 1"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"epsilon": np.nan}, "epsilon is nan"),
        ({"epsilon": "small"}, "epsilon is 'small', not a number"),
        ({"num_batches_tracked": -1, "momentum": None}, "num_batches_tracked is -1"),
        ({"num_batches_tracked": None}, r"num_batches_tracked is None\n.*how many batches were before this one"),
        ({"mode": "instance"}, "mode is 'instance'"),
        ({"out": np.empty((4, 3, 4), f32)}, r"out is float32\[4, 3, 4\]\n.*expected float32\[4, 3, 5\]"),
        ({"out": read_only(X)}, "out is read-only"),
        ({"out": np.empty((4, 3, 10), f32)[:, :, ::2]}, "out is not C-contiguous"),
        ({"residual": X.astype(np.float16)}, r"residual is float16\[4, 3, 5\]"),
    ],
)  # fmt: skip
def test_forward_refuses(changed: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"x": X, "scale": C3, "bias": C3, "running_mean": C3, "running_var": C3, **changed}
    before = {k: np.array(v) for k, v in given.items() if isinstance(v, np.ndarray) and k != "out"}
    with pytest.raises(InvalidInput, match=said):
        training.batch_norm(given.pop("x"), **given)
    for name, old in before.items():
        np.testing.assert_array_equal(changed.get(name, given.get(name, X)), old)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dy": X[:2]}, r"dy is float32\[2, 3, 5\]\n.*expected float32\[4, 3, 5\], as x"),
        ({"dy": X.astype(np.float64)}, r"dy is float64"),
        ({"dy": None}, "dy is None"),
        ({"saved_invstd": None}, "saved_mean and saved_invstd go together"),
        ({"saved_mean": None, "saved_invstd": None}, "neither saved values nor epsilon"),
        ({"saved_mean": C3[:1]}, r"saved_mean has shape \[1\]"),
        ({"y": X[:, :, :1]}, r"y is float32\[4, 3, 1\]"),
        ({"out": [np.empty_like(X), C3, C3]}, "out has an array for dscale or dbias"),
        ({"out": [None] * 5}, "out has 5 arrays"),
        ({"out": read_only(X)}, r"out\[0\] is read-only"),
    ],
)
def test_backward_refuses(changed: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"dy": X, "x": X, "scale": C3, "saved_mean": C3, "saved_invstd": C3, **changed}
    with pytest.raises(InvalidInput, match=said):
        training.batch_norm_backward(given.pop("dy"), **given)


def test_frozen_and_parts_refuse() -> None:
    with pytest.raises(InvalidInput, match="running_mean and running_var are needed"):
        training.batch_norm_backward_frozen(X, X, C3, None, None, epsilon=1e-5)
    with pytest.raises(InvalidInput, match="epsilon is -1"):
        training.batch_norm_inference(X, C3, C3, C3, C3, epsilon=-1)
    with pytest.raises(InvalidInput, match=r"var has shape \[2\]"):
        training.update(C3, C3, C3, C3[:2], 4)
    with pytest.raises(InvalidInput, match="count is -4"):
        training.update(C3, C3, C3, C3, -4)
    with pytest.raises(InvalidInput, match="running_mean is list"):
        training.update([0.0], [1.0], C3, C3, 4)


def test_operands_are_not_modified_and_results_are_fresh() -> None:
    mask = np.random.default_rng(1).random((4, 5)) < 0.5
    given: dict[str, Any] = {"x": X, "scale": C3, "bias": C3, "running_mean": C3, "running_var": C3}
    given = {k: v.copy() for k, v in given.items()}
    for v in given.values():
        v.flags.writeable = False  # what is only read may be read-only
    r = training.batch_norm(**given, mask=mask)
    kept = r.y.copy()
    training.batch_norm(given["x"] * 2, mask=mask)
    np.testing.assert_array_equal(r.y, kept)
    assert r.running_mean is not given["running_mean"]
    np.testing.assert_array_equal(given["x"], X)


@pytest.mark.parametrize("fused", [True, False])
def test_out(fused: bool) -> None:
    y, dx = np.empty_like(X), np.empty_like(X)
    r = training.batch_norm(X, C3, C3, out=y, fused=fused)
    assert r.y is y
    np.testing.assert_array_equal(y, training.batch_norm(X, C3, C3).y)
    found = training.batch_norm_backward(X, X, C3, r.saved_mean, r.saved_invstd, out=dx)
    assert found[0] is dx
    np.testing.assert_array_equal(dx, training.batch_norm_backward(X, X, C3, r.saved_mean, r.saved_invstd)[0])
    dresidual = np.empty_like(X)
    found = training.batch_norm_backward(
        X, X, C3, r.saved_mean, r.saved_invstd, y=y, residual=True, out=[dx, None, None, dresidual]
    )
    assert found[3] is dresidual
    np.testing.assert_array_equal(dresidual, np.where(y > 0, X, 0))
    assert training.batch_norm_inference(X, C3, C3, C3, C3, epsilon=1e-5, out=y) is y


def test_one_array_for_two_results() -> None:
    """The error calls results what the documentation calls them."""
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((2, 3, 4, 5), dtype=np.float32), rng.standard_normal((2, 3, 4, 5), dtype=np.float32)
    r = training.batch_norm(x, relu=True, residual=dy)
    out = np.full_like(x, 7)
    with pytest.raises(InvalidInput, match="dx and dresidual share memory"):
        training.batch_norm_backward(
            dy, x, None, r.saved_mean, r.saved_invstd, y=r.y, residual=True, out=[out, None, None, out]
        )
    assert (out == 7).all()


def test_saved_mean_is_the_backward_pass_own() -> None:
    x = np.random.default_rng(8).standard_normal((2, 3, 4, 5), dtype=np.float32)
    for fused in (True, False):
        r = training.batch_norm(x, fused=fused)
        np.testing.assert_array_equal(r.saved_mean, r.batch_mean)
        assert not np.shares_memory(r.saved_mean, r.batch_mean)


def test_out_over_its_own_input() -> None:
    x = X.copy()
    wanted = training.batch_norm(X, C3, C3).y
    training.batch_norm(x, C3, C3, out=x)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize(("mask", "whole"), [((4, 1), True), ((5,), True), ((1, 5), True), ((), True)])
def test_masks_broadcast(mask: tuple[int, ...], whole: bool) -> None:
    m = np.random.default_rng(2).random(mask) < 0.7 if mask else np.array(whole)
    r = training.batch_norm(X, mask=m)
    full = np.broadcast_to(m, (4, 5))
    np.testing.assert_allclose(r.batch_mean, [X[:, c][full].mean(dtype=float) for c in range(3)], rtol=1e-6)
    assert r.count == full.sum()
    np.testing.assert_array_equal(training.batch_norm(X, mask=m.astype(np.int64)).y, r.y)


def test_tensors_of_torch_are_used_where_they_lie() -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, scale = torch.from_numpy(X.copy()), torch.from_numpy(C3.copy())
    out = torch.empty_like(x)
    r = training.batch_norm(x, scale, scale, scale, scale, out=out)
    assert r.y is out
    np.testing.assert_array_equal(out.numpy(), training.batch_norm(X, C3, C3).y)
    narrow, c3 = torch.from_numpy(X).bfloat16(), scale.bfloat16()  # NumPy has no bfloat16, DLPack has
    r = training.batch_norm(narrow, c3, c3, c3, c3)
    assert r.running_mean is not None
    assert [v.dtype.name for v in (r.y, r.running_mean)] == ["bfloat16", "float32"]
    found = training.batch_norm_backward(narrow, narrow, c3, r.saved_mean, r.saved_invstd)
    assert [v.dtype.name for v in found] == ["bfloat16"] * 3
    assert [v.dtype.name for v in training.update(c3, c3, c3, c3, 4)] == ["float32"] * 2


def test_names_to_keep_are_those_of_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENORM_KEEP", "a_node_of_the_model")
    assert training.batch_norm(np.ones((2, 3, 7), f32)).count == 14


def test_channels_of_any_axis() -> None:
    assert channels_of((2, 3, 4, 5), 1).kernel == (2, 3, 20)
    assert channels_of((2, 3, 4, 5), -1).kernel == (24, 5)
    assert channels_of((2, 3, 4, 5), 0).kernel == (1, 2, 60)
    assert channels_of((2, 3, 1), 1).kernel == (2, 3)
    assert channels_of((2, 3, 4, 5), (1, 2, 3)).kernel == (2, 60)
    assert channels_of((2, 3, 4, 5), (2, -1)).kernel == (6, 20)
