"""Conventions against the libraries they are named after, with their defaults."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tests.training.oracle import Forward, near

from renorm import training
from renorm.errors import InvalidInput
from renorm.training.conventions import CONVENTIONS

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

f32 = np.float32


@pytest.fixture
def case() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    x = rng.normal(3, 2, (4, 5, 3, 2)).astype(f32)
    scale, bias, mean = rng.normal(size=(3, 5)).astype(f32)
    return {
        "x": x,
        "scale": scale,
        "bias": bias,
        "running_mean": mean,
        "running_var": rng.uniform(0.5, 2, 5).astype(f32),
    }


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("momentum", ["default", 0.3, None])
def test_torch(case: dict[str, Any], momentum: Any, fused: bool) -> None:
    """Three steps, running statistics and the number of batches handed on."""
    layer = torch.nn.BatchNorm2d(5, **({} if momentum == "default" else {"momentum": momentum}))
    state = {k: torch.tensor(case[k]) for k in ("running_mean", "running_var")}
    layer.load_state_dict(
        {**state, "weight": torch.tensor(case["scale"]), "bias": torch.tensor(case["bias"]),
         "num_batches_tracked": torch.tensor(0)}
    )  # fmt: skip
    mean, var, tracked = case["running_mean"], case["running_var"], 0
    for step in range(3):
        x = case["x"] + step
        r = training.batch_norm(
            x, case["scale"], case["bias"], mean, var, num_batches_tracked=tracked, fused=fused,
            **({} if momentum == "default" else {"momentum": momentum}),
        )  # fmt: skip
        near(r.y, layer(torch.tensor(x)).detach(), 2e-6)
        mean, var, tracked = r.running_mean, r.running_var, r.num_batches_tracked
        near(mean, layer.running_mean, 1e-6)
        near(var, layer.running_var, 1e-6)
        assert layer.num_batches_tracked is not None
        assert tracked == int(layer.num_batches_tracked)
    layer.eval()
    y = training.batch_norm_inference(case["x"], case["scale"], case["bias"], mean, var, epsilon=layer.eps)
    near(y, layer(torch.tensor(case["x"])).detach(), 2e-6)


def training_node(**attributes: Any) -> onnx.ModelProto:
    names = ["scale", "bias", "running_mean", "running_var"]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [5]) for n in names]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "new_mean", "new_var")]
    node = helper.make_node(
        "BatchNormalization", ["x", *names], ["y", "new_mean", "new_var"], training_mode=1, **attributes
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5, 3, 2])
    graph = helper.make_graph([node], "g", [x, *inputs], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@pytest.mark.parametrize("given", [{}, {"momentum": 0.25, "epsilon": 0.01}])
@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_onnx(case: dict[str, Any], library: str, given: dict[str, Any]) -> None:
    model = training_node(**given)
    if library == "onnx":
        results = ReferenceEvaluator(model).run(None, case)
    else:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results = session.run(None, case)
    r = training.batch_norm(**case, convention="onnx", **given)
    for got, wanted in zip((r.y, r.running_mean, r.running_var), results, strict=True):
        near(got, wanted, 3e-6)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
@pytest.mark.parametrize("given", [{}, {"momentum": 0.25, "epsilon": 0.1}])
@pytest.mark.parametrize("is_masked", [False, True])
def test_keras(given: dict[str, Any], is_masked: bool) -> None:
    """A step in training, with its defaults, channels last."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    rng = np.random.default_rng(11)
    x = rng.normal(3, 2, (4, 6, 5)).astype(f32)
    scale, bias, mean = rng.normal(size=(3, 5)).astype(f32)
    var = rng.uniform(0.5, 2, 5).astype(f32)
    mask = rng.random((4, 6)) < 0.7 if is_masked else None
    layer = keras.layers.BatchNormalization(**given)
    layer.build(x.shape)
    layer.set_weights([scale, bias, mean, var])
    y = layer(x, training=True, mask=mask)
    r = training.batch_norm(x, scale, bias, mean, var, axis=-1, convention="keras", mask=mask, **given)
    # its masked moments divide by count + 1e-7
    near(r.y, keras.ops.convert_to_numpy(y), 5e-6)
    near(r.running_mean, layer.get_weights()[2], 1e-6)
    near(r.running_var, layer.get_weights()[3], 1e-6)


@pytest.mark.parametrize(
    ("convention", "given", "old", "batch", "corrected", "epsilon"),
    [
        ("torch", {}, 0.9, 0.1, True, 1e-5),
        ("keras", {}, 0.99, 0.01, False, 1e-3),
        ("tf_fused", {}, 0.0, 1.0, True, 1e-4),
        ("tf_fused", {"momentum": 0.25, "epsilon": 1e-3}, 0.75, 0.25, True, 1e-3),
        ("onnx", {}, 0.9, 0.1, False, 1e-5),
        ("cudnn", {"momentum": 0.25, "epsilon": 1e-4}, 0.75, 0.25, True, 1e-4),
        ("cudnn", {"momentum": None, "epsilon": 1e-4, "num_batches_tracked": 4}, 0.8, 0.2, True, 1e-4),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
def test_table(
    case: dict[str, Any], convention: str, given: dict[str, Any], old: float, batch: float, corrected: bool,
    epsilon: float, fused: bool,
) -> None:  # fmt: skip
    """Each row of the table of conventions, by its formula."""
    wanted = Forward(case["x"], case["scale"], case["bias"], epsilon)
    r = training.batch_norm(**case, convention=convention, fused=fused, **given)
    near(r.y, wanted.y, 1e-6)
    near(r.batch_mean, wanted.mean, 1e-7)
    near(r.batch_var, wanted.var, 1e-7)
    near(r.saved_invstd, wanted.invstd, 1e-7)
    near(r.running_mean, old * case["running_mean"] + batch * wanted.mean, 2e-7)
    bessel = 24 / 23 if corrected else 1.0
    near(r.running_var, old * case["running_var"] + batch * bessel * wanted.var, 2e-7)
    assert r.count == 24


def test_cudnn_per_activation(case: dict[str, Any]) -> None:
    """Each of the 30 elements of a sample is a channel, over 4 samples."""
    x = case["x"]
    scale = np.linspace(-1, 2, 30, dtype=f32).reshape(5, 3, 2)
    old = np.full((5, 3, 2), 2, f32)
    r = training.batch_norm(
        x, scale, scale, old, old, convention="cudnn", mode="per_activation", momentum=0.5, epsilon=1e-4
    )
    wanted = Forward(x.reshape(4, 30), scale.ravel(), scale.ravel(), 1e-4)
    near(r.y, wanted.y.reshape(x.shape), 2e-6)
    near(r.running_var, (old + wanted.var.reshape(5, 3, 2) * 4 / 3) / 2, 2e-7)
    assert r.saved_invstd.shape == (5, 3, 2)
    dy = np.random.default_rng(8).normal(size=x.shape).astype(f32)
    found = training.batch_norm_backward(dy, x, scale, epsilon=1e-4, mode="per_activation")
    for got, right in zip(found, wanted.gradient(dy.reshape(4, 30)), strict=True):
        near(got.reshape(-1), right.reshape(-1), 5e-6)
    with pytest.raises(InvalidInput, match=r"per_activation is cudnn's"):
        training.batch_norm(x, convention="torch", mode="per_activation")


def test_tf_fused_with_factor_one_does_not_read_the_old(case: dict[str, Any]) -> None:
    case["running_mean"][:] = np.nan
    case["running_var"][:] = np.inf
    r = training.batch_norm(**case, convention="tf_fused")
    near(r.running_mean, r.batch_mean, 1e-7)
    near(r.running_var, r.batch_var * (24 / 23), 2e-7)


@pytest.mark.parametrize("source", CONVENTIONS)
@pytest.mark.parametrize("target", CONVENTIONS)
def test_convert_goes_on_as_before(case: dict[str, Any], source: str, target: str) -> None:
    """A step in either convention, from a state that was converted, leads to the same state; so does the way back."""
    x, given = case["x"], {"momentum": 0.25, "epsilon": 0.01}
    state = {k: case[k] for k in ("running_mean", "running_var")} | given | {"count": 24}
    moved = training.convert(state, source, target)
    assert moved["epsilon"] == 0.01
    after = []
    for convention, s in ((source, state), (target, moved)):
        r = training.batch_norm(
            x, running_mean=s["running_mean"], running_var=s["running_var"], convention=convention,
            momentum=s["momentum"], epsilon=s["epsilon"],
        )  # fmt: skip
        after.append({**s, "running_mean": r.running_mean, "running_var": r.running_var})
    expected = training.convert(after[0], source, target)
    for key in ("running_mean", "running_var", "momentum"):
        near(after[1][key], expected[key], 4e-7)
    again = training.convert(moved, target, source)
    for key in ("running_mean", "running_var", "momentum", "epsilon"):
        near(again[key], state[key], 2e-7)
        assert np.asarray(again[key]).dtype == np.asarray(state[key]).dtype


@given(
    st.sampled_from(list(CONVENTIONS)),
    st.sampled_from(list(CONVENTIONS)),
    st.floats(0, 1),
    st.floats(0, 1e3),
    st.integers(2, 10**9),
    st.lists(st.floats(0, 1e30), min_size=1, max_size=4),
)
def test_convert_there_and_back(
    source: str, target: str, momentum: float, epsilon: float, count: int, var: list[float]
) -> None:
    """Every field of every pair; the part that a batch has is the same on both sides, and so is what it adds."""
    held = np.array(var)
    state = {"running_mean": held - 1, "running_var": held, "momentum": momentum, "epsilon": epsilon, "count": count}
    there = training.convert(state, source, target)
    of, to = CONVENTIONS[source], CONVENTIONS[target]
    assert to.batch_weight(there["momentum"]) == pytest.approx(of.batch_weight(momentum), abs=1e-15)
    assert (there["epsilon"], there["count"]) == (epsilon, count)
    bessel = count / (count - 1)
    np.testing.assert_allclose(there["running_var"] * bessel**-to.corrected, held * bessel**-of.corrected, rtol=1e-14)
    back = training.convert(there, target, source)
    assert back["momentum"] == pytest.approx(momentum, abs=1e-15)
    np.testing.assert_array_equal(back["running_mean"], held - 1)
    np.testing.assert_allclose(back["running_var"], held, rtol=1e-14)
    if of.corrected != to.corrected:
        del state["count"]
        with pytest.raises(InvalidInput, match="n is not known"):
            training.convert(state, source, target)


def test_convert_takes_what_libraries_hold() -> None:
    """A state_dict of torch, also in bfloat16, into the list of weights that a layer of Keras takes, and back."""
    norm = torch.nn.BatchNorm1d(3, momentum=0.2)
    norm(torch.arange(12.0).reshape(4, 3))
    for dtype in (torch.float32, torch.bfloat16):
        held = {k: v.to(dtype) for k, v in norm.state_dict().items() if k.startswith("running")}
        state = {**held, "momentum": norm.momentum, "epsilon": norm.eps, "count": 4}
        moved = training.convert(state, "torch", "keras")
        wanted = (0.8 + 0.2 * 15 * np.ones(3)) * 3 / 4
        np.testing.assert_allclose(
            moved["running_var"].astype(np.float64), wanted, rtol=1e-6 if dtype.itemsize == 4 else 1e-2
        )
        assert moved["momentum"] == pytest.approx(0.8)
        for key in held:
            assert isinstance(moved[key], np.ndarray)
            assert str(dtype)[6:] == moved[key].dtype.name
        moved["running_mean"][:] = 7  # a copy
    assert norm.running_mean is not None
    assert norm.running_mean[0] == pytest.approx(0.2 * 4.5)
    cumulative = {"momentum": None, "num_batches_tracked": norm.num_batches_tracked}
    assert training.convert(cumulative, "torch", "cudnn")["momentum"] is None


def test_convert_states_the_defaults_of_the_source() -> None:
    assert training.convert({}, "keras", "torch") == {"momentum": pytest.approx(0.01), "epsilon": 1e-3}
    assert training.convert({}, "tf_fused", "onnx") == {"momentum": 0.0, "epsilon": 1e-4}


def test_convert_says_what_it_cannot() -> None:
    var = np.ones(3, f32)
    with pytest.raises(InvalidInput, match="put count= into the state"):
        training.convert({"running_var": var}, "torch", "keras")
    with pytest.raises(InvalidInput, match="no unbiased variance"):
        training.convert({"running_var": var, "count": 1}, "keras", "torch")
    with pytest.raises(InvalidInput, match="nearest: running_var"):
        training.convert({"moving_var": var}, "keras", "torch")
    with pytest.raises(InvalidInput, match="no cumulative mean"):
        training.convert({"momentum": None}, "torch", "keras")
    with pytest.raises(InvalidInput, match="known: torch, keras, tf_fused, onnx, cudnn"):
        training.convert({}, "pytorch", "keras")
