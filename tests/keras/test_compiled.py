"""Compiled modules as layers of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.keras_models import WARNINGS, agrees, keras, trained

import renorm
from renorm.errors import InvalidInput

pytestmark = WARNINGS
L = keras.layers


def inner() -> Any:
    x = keras.Input((9, 7, 3))
    y = L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(x))
    return trained(keras.Model(x, [L.ReLU()(y), L.GlobalAveragePooling2D()(y)]))


def test_a_module_in_a_model() -> None:
    model = inner()
    layer = renorm.compile(model).as_keras()
    x = keras.Input((9, 7, 3))
    image, vector = layer(L.Rescaling(0.5)(x))
    assert (image.shape, vector.shape) == ((None, 9, 7, 4), (None, 4))
    around = keras.Model(x, L.Dense(2)(L.Concatenate()([L.GlobalMaxPooling2D()(image), vector])))
    for batch in (1, 5):
        given = np.random.default_rng(batch).normal(0, 1, (batch, 9, 7, 3)).astype(np.float32)
        first, second = model(given * 0.5, training=False)
        wanted = around.layers[-1](keras.ops.concatenate([keras.ops.max(first, (1, 2)), second], -1))
        found = keras.ops.convert_to_numpy(around(given, training=False))
        np.testing.assert_allclose(found, keras.ops.convert_to_numpy(wanted), rtol=1e-4, atol=1e-5)
    assert not layer.weights


def test_a_loaded_module(tmp_path: Any) -> None:
    model = inner()
    renorm.compile(model).save(tmp_path / "m.renorm")
    layer = renorm.load(tmp_path / "m.renorm").as_keras()
    given = np.ones((2, 9, 7, 3), np.float32)
    for found, wanted in zip(layer(given), model(given, training=False), strict=True):
        np.testing.assert_allclose(found, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_it_is_in_no_file(tmp_path: Any) -> None:
    x = keras.Input((9, 7, 3))
    around = keras.Model(x, renorm.compile(inner()).as_keras()(x)[1])
    with pytest.raises(InvalidInput, match="in no file"):
        around.save(tmp_path / "around.keras")


def test_other_inputs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="2 inputs are given, the module has 1"):
        renorm.compile(inner()).as_keras()([keras.Input((9, 7, 3))] * 2)
    agrees(inner())
