"""Normalizations: every form that ONNX gave them, hard numbers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.nodes import by_loops, by_onnxruntime, by_reference, by_renorm, model, normal, read

from renorm.core.errors import RenormError
from renorm.ops.batch_norm import BatchNorm
from renorm.ops.group_norm import GroupNorm
from renorm.ops.instance_norm import InstanceNorm
from renorm.ops.layer_norm import LayerNorm
from renorm.ops.rms_norm import RmsNorm

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

F = torch.nn.functional
STATISTICS = ("scale", "bias", "mean", "var")


def batch_norm_operands(shape: tuple[int, ...], parameters: tuple[int, ...] | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    drawn = {n: normal(rng, *(parameters or (shape[1],))) for n in STATISTICS}
    return {"x": normal(rng, *shape), **drawn, "var": np.abs(drawn["var"]) + np.float32(0.1)}


def by_formula(o: dict[str, Any], epsilon: float = 1e-5) -> Any:
    """Stored statistics, in float64; parameters broadcast from axis 1 on."""
    x, *rest = (o[n].astype(np.float64) for n in ("x", *STATISTICS))
    scale, bias, mean, var = (p.reshape(*p.shape, *[1] * (x.ndim - 1 - p.ndim)) for p in rest)
    return scale * (x - mean) / np.sqrt(var + epsilon) + bias


def torch_of(o: dict[str, Any]) -> list[Any]:
    return [torch.from_numpy(a.astype(np.float64)) for a in o.values()]


# --- batch normalization at every opset -------------------------------------------------------------------------------

INFERENCE = [
    (1, {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}),
    (6, {"is_test": 1}),
    (6, {"is_test": 1, "spatial": 1, "momentum": 0.5}),
    (7, {}),
    (7, {"spatial": 1}),
    (9, {"momentum": 0.5}),
    (14, {}),
    (14, {"training_mode": 0}),
    (15, {"epsilon": 0.1}),
]


@pytest.mark.parametrize(("opset", "attributes"), INFERENCE, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4), (4, 3), (1, 3, 2, 2, 2)])
def test_batch_norm_at_every_opset(opset: int, attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    operands = batch_norm_operands(shape)
    proto = model("BatchNormalization", opset, operands, constant=STATISTICS, **attributes)
    expected = by_formula(operands, attributes.get("epsilon", 1e-5))
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)
    assert [n.op.name for n in read(proto).nodes] == ["batch_norm"]


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_norm_agrees_with_onnxruntime(opset: int) -> None:
    operands = batch_norm_operands((2, 3, 4, 5))
    proto = model("BatchNormalization", opset, operands)
    np.testing.assert_allclose(by_renorm(proto, operands)[0], by_onnxruntime(proto, operands)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("opset", "attributes"), [(1, {"is_test": 1}), (6, {"is_test": 1}), (7, {})], ids=str)
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_without_spatial_every_activation_has_its_own_statistics(
    opset: int, attributes: dict[str, Any], rank: int
) -> None:
    shape = (2, 3, 4, 5)[:rank]
    operands = batch_norm_operands(shape, shape[1:])
    proto = model("BatchNormalization", opset, operands, constant=STATISTICS, spatial=0, **attributes)
    np.testing.assert_allclose(by_renorm(proto, operands)[0], by_formula(operands), rtol=1e-5, atol=1e-5)
    assert [n.op.name for n in read(proto).nodes].count("batch_norm") == 1


def test_a_vector_has_one_channel() -> None:
    operands = batch_norm_operands((6, 1)) | {"x": normal(np.random.default_rng(1), 6)}
    proto = model("BatchNormalization", 15, operands, constant=STATISTICS)
    expected = by_formula(operands | {"x": operands["x"][:, None]})[:, 0]
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)


TRAINING = [(7, {}, 5), (9, {}, 5), (14, {"training_mode": 1}, 1), (15, {"training_mode": 1}, 3)]


@pytest.mark.parametrize(("opset", "attributes", "count"), TRAINING, ids=str)
def test_training_mode_normalizes_with_the_batch(opset: int, attributes: dict[str, Any], count: int) -> None:
    """Outputs that are listed but read by nobody make the mode, not a refusal."""
    operands = batch_norm_operands((2, 3, 4, 5))
    outputs = ("y", "m", "v", "sm", "sv")[:count]
    proto = model("BatchNormalization", opset, operands, outputs, STATISTICS, ("y",), **attributes)
    x, scale, bias, *_ = torch_of(operands)
    expected = F.batch_norm(x, None, None, scale, bias, training=True).numpy()
    np.testing.assert_allclose(by_renorm(proto, operands)[0], expected, rtol=1e-5, atol=1e-5)
    (node,) = read(proto).nodes
    assert isinstance(node.op, BatchNorm)
    assert node.op.training_mode
    values = [operands[n] for n in ("x", *STATISTICS)]
    np.testing.assert_allclose(by_loops(BatchNorm, *values, training_mode=True), expected, rtol=1e-4, atol=1e-5)


UPDATED = [
    (1, {"is_test": 0}, 5),
    (6, {"momentum": 0.3}, 5),
    (7, {}, 5),
    (9, {"momentum": 0.25, "epsilon": 1e-3}, 5),
    (13, {}, 4),
    (14, {"training_mode": 1}, 3),
    (15, {"training_mode": 1, "momentum": 0.0}, 3),
]


def updated(o: dict[str, Any], momentum: float = 0.9, epsilon: float = 1e-5) -> list[Any]:
    """y, running mean and variance, those of the batch: momentum * old + (1 - momentum) * batch, of the population."""
    x, scale, bias, mean, var = (o[n].astype(np.float64) for n in ("x", *STATISTICS))
    axes = tuple(a for a in range(x.ndim) if a != 1)
    batch = x.mean(axes), x.var(axes)
    y = by_formula({"x": x, "scale": scale, "bias": bias, "mean": batch[0], "var": batch[1]}, epsilon)
    return [y, *(momentum * old + (1 - momentum) * new for old, new in zip((mean, var), batch)), *batch]


@pytest.mark.parametrize(("opset", "attributes", "count"), UPDATED, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3), (2, 3, 1, 2, 2)], ids=str)
def test_statistics_are_results_where_they_are_asked_for(
    opset: int, attributes: dict[str, Any], count: int, shape: tuple[int, ...]
) -> None:
    operands = batch_norm_operands(shape)
    outputs = ("y", "m", "v", "sm", "sv")[:count]
    proto = model("BatchNormalization", opset, operands, outputs, STATISTICS, **attributes)
    wanted = {k: v for k, v in attributes.items() if k in ("momentum", "epsilon")}
    for ours, expected in zip(by_renorm(proto, operands), updated(operands, **wanted)[:count], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    (node,) = read(proto).nodes
    assert node.op.name == "batch_norm_training"
    if opset >= 14:
        for ours, theirs in zip(by_renorm(proto, operands), by_onnxruntime(proto, operands), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_chosen_few_statistics() -> None:
    operands = batch_norm_operands((2, 3, 4))
    proto = model("BatchNormalization", 9, operands, ("y", "", "v", "", "sv"), STATISTICS)
    for ours, expected in zip(by_renorm(proto, operands), [updated(operands)[i] for i in (0, 2, 4)], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_updated_statistics_of_every_activation_have_the_shape_of_a_sample() -> None:
    operands = batch_norm_operands((4, 3, 2), (3, 2))
    proto = model("BatchNormalization", 7, operands, ("y", "m", "v", "sm", "sv"), STATISTICS, spatial=0)
    flat = {n: a.reshape(-1) if n != "x" else a.reshape(4, 6) for n, a in operands.items()}
    for ours, expected in zip(by_renorm(proto, operands), updated(flat), strict=True):
        assert ours.shape == ((4, 3, 2) if expected.ndim == 2 else (3, 2))
        np.testing.assert_allclose(ours.ravel(), expected.ravel(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("opset", "narrow"), [(9, STATISTICS), (14, ("scale", "bias")), (15, ())], ids=str)
def test_updated_statistics_have_the_dtype_of_those_that_are_given(opset: int, narrow: tuple[str, ...]) -> None:
    operands = batch_norm_operands((8, 3, 4))
    operands = {n: a.astype(np.float16) if n in ("x", *narrow) else a for n, a in operands.items()}
    outputs = ("y", "m", "v", "sm", "sv")[: 5 if opset < 14 else 3]
    mode: dict[str, Any] = {"training_mode": 1} if opset > 13 else {}
    proto = model("BatchNormalization", opset, operands, outputs, STATISTICS, **mode)
    kinds = [operands["x"].dtype, *[operands["mean"].dtype] * 2, *[operands["x"].dtype] * 2]
    for ours, expected, kind in zip(by_renorm(proto, operands), updated(operands), kinds):
        assert ours.dtype == kind
        np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-3)


def test_is_test_alone_chooses_until_opset_6() -> None:
    operands = batch_norm_operands((2, 3, 4))
    for opset in (1, 6):
        proto = model("BatchNormalization", opset, operands, constant=STATISTICS)
        np.testing.assert_allclose(by_renorm(proto, operands)[0], updated(operands)[0], rtol=1e-5, atol=1e-5)
        (node,) = read(proto).nodes
        assert isinstance(node.op, BatchNorm)
        assert node.op.training_mode


@pytest.mark.parametrize(
    ("opset", "attributes", "count", "because"),
    [(6, {"is_test": 1}, 5, "is_test is 1"), (15, {"training_mode": 0}, 3, "training_mode is 0"), (14, {}, 2, "is 0")],
)
def test_statistics_of_inference_are_refused(opset: int, attributes: dict[str, Any], count: int, because: str) -> None:
    operands = batch_norm_operands((2, 3, 4))
    outputs = ("y", "m", "v", "sm", "sv")[:count]
    with pytest.raises(RenormError, match="exist in training mode only") as error:
        read(model("BatchNormalization", opset, operands, outputs, STATISTICS, **attributes))
    assert because in str(error.value)


# --- the other normalizations against torch ---------------------------------------------------------------------------


def affine(shape: tuple[int, ...], *parameters: int) -> dict[str, Any]:
    rng = np.random.default_rng(len(shape))
    return {"x": normal(rng, *shape), "scale": normal(rng, *parameters), "bias": normal(rng, *parameters)}


@pytest.mark.parametrize("opset", [1, 6, 22])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 7), (1, 3, 2, 3, 4)])
def test_instance_norm(opset: int, shape: tuple[int, ...]) -> None:
    o = affine(shape, shape[1])
    extra: dict[str, Any] = {"consumed_inputs": [0, 0, 0]} if opset == 1 else {}
    proto = model("InstanceNormalization", opset, o, epsilon=1e-3, **extra)
    x, scale, bias = torch_of(o)
    expected = F.instance_norm(x, weight=scale, bias=bias, eps=1e-3).numpy()
    np.testing.assert_allclose(by_renorm(proto, o)[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_loops(InstanceNorm, *o.values(), epsilon=1e-3), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_layer_norm_and_its_statistics(axis: int) -> None:
    shape = (2, 3, 4, 5)
    o = affine(shape, *shape[axis % 4 :])
    proto = model("LayerNormalization", 17, o, ("y", "m", "s"), axis=axis, epsilon=1e-3)
    x, scale, bias = torch_of(o)
    inner = list(shape[axis % 4 :])
    expected = F.layer_norm(x, inner, scale, bias, 1e-3).numpy()
    y, mean, invstd = by_renorm(proto, o)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip((y, mean, invstd), by_onnxruntime(proto, o)):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        by_loops(LayerNorm, *o.values(), axis=axis, epsilon=1e-3), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("are_constant", [True, False])
def test_group_norm_per_group_and_per_channel(are_constant: bool) -> None:
    constant = ("scale", "bias") if are_constant else ()
    o = affine((2, 6, 4, 5), 6)
    x, scale, bias = torch_of(o)
    expected = F.group_norm(x, 3, scale, bias, 1e-3).numpy()
    proto = model("GroupNormalization", 21, o, constant=constant, num_groups=3, epsilon=1e-3)
    np.testing.assert_allclose(by_renorm(proto, o)[0], expected, rtol=1e-5, atol=1e-5)
    loops = by_loops(GroupNorm, *o.values(), num_groups=3, epsilon=1e-3)
    np.testing.assert_allclose(loops, expected, rtol=1e-4, atol=1e-5)
    old = o | {n: o[n][:3] for n in ("scale", "bias")}
    expected = F.group_norm(x, 3, scale[:3].repeat_interleave(2), bias[:3].repeat_interleave(2), 1e-3).numpy()
    proto = model("GroupNormalization", 18, old, constant=constant, num_groups=3, epsilon=1e-3)
    np.testing.assert_allclose(by_renorm(proto, old)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm(axis: int) -> None:
    shape = (2, 3, 4)
    rng = np.random.default_rng(0)
    o = {"x": normal(rng, *shape), "scale": normal(rng, *shape[axis % 3 :])}
    x, scale = torch_of(o)
    expected = F.rms_norm(x, list(shape[axis % 3 :]), scale, 1e-3).numpy()
    proto = model("RMSNormalization", 23, o, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(by_renorm(proto, o)[0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_loops(RmsNorm, *o.values(), axis=axis, epsilon=1e-3), expected, rtol=1e-4, atol=1e-5)


# --- hard numbers -----------------------------------------------------------------------------------------------------

ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
HARD = {
    "near 80000": 80000 + np.arange(4.0).repeat(8),
    "mean is 10000 deviations": 10000 + np.random.default_rng(0).standard_normal(64),
    "huge": np.random.default_rng(1).uniform(-1e30, 1e30, 64),
    "tiny": np.random.default_rng(2).uniform(-1e-18, 1e-18, 64),
    "one far out": np.concatenate([np.full(63, 1e-3), [3e4]]),
}


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
@pytest.mark.parametrize("kind", HARD)
def test_moments_of_hard_numbers_are_those_of_float64(kind: str, epsilon: float) -> None:
    x = HARD[kind].astype(np.float32)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean()) / np.sqrt(wide.var() + epsilon)
    n = x.size
    made = {
        "instance": by_loops(InstanceNorm, x.reshape(1, 1, -1), ONE, ZERO, epsilon=epsilon),
        "batch": by_loops(BatchNorm, x.reshape(-1, 1), ONE, ZERO, ZERO, ONE, epsilon=epsilon, training_mode=True),
        "layer": by_loops(LayerNorm, x.reshape(1, -1), np.ones(n, np.float32), None, epsilon=epsilon),
        "group": by_loops(GroupNorm, x.reshape(1, 2, -1), ONE.repeat(2), ZERO.repeat(2), num_groups=1, epsilon=epsilon),
    }
    for name, y in made.items():
        # float32 elements keep six digits of the largest one, whatever the mean is
        np.testing.assert_allclose(y.reshape(-1), expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("value", [0.7, 0.1, -3.3e20, 1e-30, 0.0])
@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_a_constant_slice_gives_exactly_the_bias(value: float, count: int) -> None:
    x = np.full((2, 3, count), value, np.float32)
    scale, bias = np.array([3.7, -1e3, 0.3], np.float32), np.array([0.1, -0.7, 1e-8], np.float32)
    y = by_loops(InstanceNorm, x, scale, bias, epsilon=1e-12)
    np.testing.assert_array_equal(y, np.broadcast_to(bias[:, None], x.shape))
    row = np.full(count, 0.3, np.float32)
    np.testing.assert_array_equal(by_loops(LayerNorm, x, row, row), np.broadcast_to(row, x.shape))


def test_many_float16_values_lose_nothing() -> None:
    x = (100 + np.random.default_rng(0).standard_normal(90_000)).astype(np.float16).reshape(1, 1, 300, 300)
    one, zero = np.ones(1, np.float16), np.zeros(1, np.float16)
    expected = by_reference(InstanceNorm, x, one, zero)
    y = by_loops(InstanceNorm, x, one, zero)
    np.testing.assert_array_equal(y, expected.astype(np.float16))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_own_slice_only(bad: float) -> None:
    x = normal(np.random.default_rng(0), 2, 2, 5)
    x[0, 1, 3] = bad
    two = np.ones(2, np.float32)
    y = by_loops(InstanceNorm, x, two, two)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(by_reference(InstanceNorm, x, two, two)))
    assert np.isnan(y[0, 1]).all()
    assert np.isfinite(y[0, 0]).all()
    assert np.isfinite(y[1]).all()


def test_stored_statistics_may_be_extreme() -> None:
    rng = np.random.default_rng(0)
    x = normal(rng, 4, 5)
    scale = np.array([1, -2, 0, 1, 1], np.float32)
    mean = np.array([0, 1, 5, 1e4, 0], np.float32)
    var = np.array([0, 1e-38, 1, 1e-4, 1e38], np.float32)
    operands = (x, scale, np.ones(5, np.float32), mean, var)
    y, expected = by_loops(BatchNorm, *operands, epsilon=1e-12), by_reference(BatchNorm, *operands, epsilon=1e-12)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
