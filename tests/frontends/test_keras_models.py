"""Whole models of Keras, from files of both formats and from memory, against Keras itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from tests.frontends import onnx_runtime
from tests.frontends.keras_models import WARNINGS, agrees, data, keras, trained, wanted

import renorm
from renorm.cli import main

pytestmark = WARNINGS
L, K = keras.layers, keras.ops


def block(name: str, channels: int) -> Any:
    x = keras.Input((None, None, channels), name=f"{name}_in")
    y = L.Conv2D(channels, 3, padding="same", use_bias=False, name="conv")(x)
    y = L.BatchNormalization(name="bn")(y)
    return keras.Model(x, L.Activation("relu", name="act")(y), name=name)


def nested() -> Any:
    """Two levels of models, one of which is called twice."""
    inner = block("block", 6)
    x = keras.Input((9, 13, 3), name="image")
    y = inner(inner(L.Conv2D(6, 1, name="stem")(x)))
    head = keras.Sequential(
        [keras.Input((9, 13, 6)), block("own", 6), L.GlobalAveragePooling2D(), L.Dense(4, name="fc")], name="head"
    )
    return keras.Model(x, head(y), name="whole")


def shared() -> Any:
    """A layer that is called three times, on inputs of several sizes."""
    conv, norm = L.Conv2D(5, 3, padding="same", name="conv"), L.BatchNormalization(name="bn")
    a, b = keras.Input((9, 13, 3), name="a"), keras.Input((5, 7, 3), name="b")
    ya, yb = norm(conv(a)), norm(conv(b))
    pooled = L.GlobalMaxPooling2D(name="pool")
    return keras.Model([a, b], [L.Concatenate(name="both")([pooled(ya), pooled(yb)]), ya])


def encoder_and_decoder() -> Any:
    """Models that are parts of another one, whose layers they share."""
    x = keras.Input((6,), name="x")
    code = L.Dense(3, activation="relu", name="code")(x)
    encoder = keras.Model(x, code, name="encoder")
    z = keras.Input((3,), name="z")
    decoder = keras.Model(z, L.Dense(6, name="out")(z), name="decoder")
    return keras.Model(x, [decoder(encoder(x)), code])


def tied() -> Any:
    """A layer of a model that is a layer of another one, too: a file has its weights once."""
    dense = L.Dense(6, name="tied")
    x, z = keras.Input((6,), name="x"), keras.Input((6,), name="z")
    inner = keras.Model(z, L.Dense(3, name="own")(dense(z)), name="inner")
    return keras.Model(x, inner(dense(x)), name="outer")


def named_ends() -> Any:
    a, b = keras.Input((7, 6), name="second"), keras.Input((7, 6), name="first")
    y = L.MultiHeadAttention(2, 3, name="heads")(a, value=b, use_causal_mask=True)
    inputs = {"second": a, "first": b}
    return keras.Model(inputs, {"z": L.Dense(2, name="dz")(y), "y": L.Dense(3, name="dy")(y)})


def sequential() -> Any:
    return keras.Sequential([keras.Input((9, 13, 3)), L.Conv2D(4, 3), L.Flatten(), L.Dense(2)])


def built_later() -> Any:
    model = keras.Sequential([L.Conv2D(4, 3), L.BatchNormalization(), L.GlobalAveragePooling2D()])
    model.build((None, 9, 13, 3))
    return model


def only_operations() -> Any:
    a = keras.Input((7, 6), name="a")
    return keras.Model(a, [K.exp(a) + 1.0, a])


MODELS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (nested, shared, encoder_and_decoder, tied, sequential, built_later, only_operations)
}
UNREAD = {("encoder_and_decoder", "keras"), ("only_operations", "h5")}  # of such files by Keras itself


@pytest.mark.parametrize(("name", "form"), [p for p in product(MODELS, ("memory", "keras", "h5")) if p not in UNREAD])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_agree_with_keras(name: str, form: str, tmp_path: Path) -> None:
    model = trained(MODELS[name]())
    source: Any = model
    if form != "memory":
        source = tmp_path / f"model.{form}"
        model.save(source)
    agrees(model, source)


def test_named_inputs_and_outputs(tmp_path: Path) -> None:
    model = trained(named_ends())
    model.save(tmp_path / "m.keras")
    for source in (model, tmp_path / "m.keras"):
        m = renorm.compile(source)
        assert [v.name for v in m.inputs] == ["first", "second"]
        draw = np.random.default_rng(0)
        given: Any = {v.name: draw.normal(size=(3, 7, 6)).astype(np.float32) for v in m.inputs}
        found = dict(zip([v.name for v in m.outputs], m.run(**given)))
        theirs = model(given)
        for name, key in (("dy", "y"), ("dz", "z")):
            np.testing.assert_allclose(found[name], theirs[key].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_norms_are_called_by_paths_of_layers() -> None:
    m = renorm.compile(trained(nested()))
    assert [str(n) for n in m.report.norms] == [
        "block/bn: batch_norm folded into block/conv",
        "block/bn_2: batch_norm folded into block/conv_2",
        "head/own/bn: batch_norm folded into head/own/conv",
    ]


def test_open_planes() -> None:
    x = keras.Input((None, None, 3), name="image")
    y = L.Conv2D(6, 3, strides=2, padding="same", name="conv")(x)
    y = L.BatchNormalization(name="bn")(y)
    y = L.Add()([y, L.DepthwiseConv2D(3, padding="same")(y)])
    y = L.UpSampling2D(2)(L.MaxPooling2D(2, padding="same")(y))
    model = trained(keras.Model(x, [y, L.Dense(3)(L.GlobalAveragePooling2D()(y))]))
    m = renorm.compile(model)
    assert str(m.inputs[0].shape) != ""
    for batch, h, w in ((1, 9, 13), (3, 8, 6), (2, 21, 5)):
        given = data(model, batch, (h, w))
        for a, b in zip(m.run(*given), wanted(model, given), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(np.abs(b).max()))


def test_open_sentences() -> None:
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = L.Embedding(20, 6, name="embed")(tokens)
    y = L.LayerNormalization(name="ln")(L.Add()([x, L.MultiHeadAttention(2, 3, name="mha")(x, x)]))
    model = trained(keras.Model(tokens, L.Conv1D(4, 3, padding="same")(y)))
    m = renorm.compile(model)
    for batch, steps in ((1, 5), (3, 8)):
        given = data(model, batch, (steps,))
        (b,) = wanted(model, given)
        np.testing.assert_allclose(m.run(*given)[0], b, rtol=0, atol=2e-5 * float(np.abs(b).max()))


def test_mixed_precision_is_computed_in_the_dtype_of_weights(tmp_path: Path) -> None:
    x = keras.Input((9, 13, 3))
    y = L.BatchNormalization(dtype="mixed_float16")(L.Conv2D(4, 3, dtype="mixed_float16")(x))
    model = trained(keras.Model(x, L.GlobalAveragePooling2D(dtype="mixed_float16")(y)))
    model.save(tmp_path / "m.keras")
    m = renorm.compile(tmp_path / "m.keras")
    (given,) = data(model, 2)
    (b,) = wanted(model, [given])
    assert m.outputs[0].dtype == "float32"
    np.testing.assert_allclose(m.run(given)[0], b, rtol=0, atol=5e-3 * float(np.abs(b).max()))


def test_float64(tmp_path: Path) -> None:
    """Against NumPy: Keras on the backend torch rounds to float32 in between."""
    x = keras.Input((7,), dtype="float64")
    y = L.BatchNormalization(dtype="float64", name="bn")(L.Dense(5, dtype="float64", name="fc")(x))
    model = trained(keras.Model(x, y))
    model.save(tmp_path / "m.keras")
    (given,) = data(model, 3)
    kernel, bias, gamma, beta, mean, var = (keras.ops.convert_to_numpy(w) for w in model.weights)
    exact = (given @ kernel + bias - mean) / np.sqrt(var + 1e-3) * gamma + beta
    for source in (model, tmp_path / "m.keras"):
        (found,) = renorm.compile(source).run(given)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-13 * np.abs(exact).max())


def test_files_of_keras_2(tmp_path: Path) -> None:
    """Lists of calls instead of objects, names of weights with :0, a model in a model whose calls count from 1."""
    import h5py

    def layer(kind: str, name: str, inbound: Any, **config: Any) -> Any:
        return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": inbound}

    def given(name: str, shape: Any) -> Any:
        return layer("InputLayer", name, [], batch_input_shape=[None, *shape], dtype="float32")

    def functional(layers: Any, ends: Any) -> Any:
        return {"layers": layers, "input_layers": ends[0], "output_layers": ends[1]}

    inner = functional(
        [given("z", (4,)), layer("Dense", "fc", [[["z", 0, 0, {}]]], units=4, activation="relu", use_bias=True)],
        ([["z", 0, 0]], [["fc", 0, 0]]),
    )
    whole = functional(
        [
            given("x", (4,)),
            layer("Functional", "inner", [[["x", 0, 0, {}]], [["inner", 1, 0, {}]]], **inner),
            layer("Add", "sum", [[["inner", 1, 0, {}], ["inner", 2, 0, {}]]]),
        ],
        ([["x", 0, 0]], [["sum", 0, 0], ["inner", 2, 0]]),
    )
    draw = np.random.default_rng(0)
    kernel, bias = draw.normal(size=(4, 4)).astype(np.float32), draw.normal(size=4).astype(np.float32)
    with h5py.File(tmp_path / "old.h5", "w") as root:
        root.attrs["model_config"] = json.dumps(layer("Functional", "whole", [], **whole))
        group = root.create_group("model_weights/inner")
        group.attrs["weight_names"] = [b"fc/kernel:0", b"fc/bias:0"]
        group["fc/kernel:0"], group["fc/bias:0"] = kernel, bias
    x = draw.normal(size=(3, 4)).astype(np.float32)
    once = np.maximum(x @ kernel + bias, 0)
    twice = np.maximum(once @ kernel + bias, 0)
    found = renorm.compile(tmp_path / "old.h5").run(x)
    np.testing.assert_allclose(found[0], once + twice, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], twice, rtol=1e-5, atol=1e-5)


def test_options_of_the_command_line(tmp_path: Path) -> None:

    model = trained(sequential())
    model.save(tmp_path / "m.keras")
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "m.keras")])
    assert shown.exit_code == 0, shown.output
    renorm.optimize(tmp_path / "m.keras", tmp_path / "m.onnx")
    given = data(model, 2)
    found = renorm.compile(tmp_path / "m.onnx").run(*given)
    np.testing.assert_allclose(found[0], wanted(model, given)[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(renorm.errors.InvalidInput, match="does not write files of this format"):
        renorm.optimize(tmp_path / "m.keras", tmp_path / "n.keras")


OPEN = {
    "dilated": lambda: L.Conv2D(4, 3, dilation_rate=2, padding="same"),
    "halves": lambda: L.AveragePooling2D(1, strides=3, padding="same"),
    "windows": lambda: L.MaxPooling2D((1, 2), strides=(2, 3), padding="same"),
    "repeated": lambda: L.UpSampling2D((2, 3)),
    "resized": lambda: L.UpSampling2D(2, interpolation="bilinear"),
    "cropped": lambda: L.CenterCrop(3, 4),
}


@pytest.mark.parametrize("plane", [(None, None), (7, 6)], ids=["open", "known"])
@pytest.mark.parametrize("name", OPEN)
def test_onnx_runtime_runs_what_is_written(name: str, plane: Any, tmp_path: Path) -> None:
    """Windows that it does not pad by itself, and operands that are computed of open extents."""
    x = keras.Input((*plane, 3), name="x")
    model = trained(keras.Model(x, OPEN[name]()(x)))
    renorm.optimize(model, tmp_path / "m.onnx")
    given = data(model, 2, (7, 6))
    (found,) = onnx_runtime.run(onnx_runtime.session(onnx.load(tmp_path / "m.onnx")), {"x": given[0]})
    np.testing.assert_allclose(found, wanted(model, given)[0], rtol=1e-5, atol=1e-5)


def test_onnx_runtime_runs_recurrent_layers_that_are_written(tmp_path: Path) -> None:
    x = keras.Input((7, 3), name="x")
    sequence, *states = L.LSTM(5, return_sequences=True, return_state=True)(x)
    both = L.Bidirectional(L.GRU(4, return_sequences=True))(sequence)
    model = trained(keras.Model(x, [both, *states, L.SimpleRNN(3, go_backwards=True)(both)]))
    renorm.optimize(model, tmp_path / "m.onnx")
    given = data(model, 2)
    found = onnx_runtime.run(onnx_runtime.session(onnx.load(tmp_path / "m.onnx")), {"x": given[0]})
    for a, b in zip(found, wanted(model, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
