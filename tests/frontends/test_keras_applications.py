"""Small networks of keras.applications through .keras files, and what becomes of their norms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.keras_models import WARNINGS, keras

import renorm

pytestmark = [*WARNINGS, pytest.mark.slow]

from benchmarks.keras_networks import built, images, of_training  # which imports Keras: after the above has skipped

ALL = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("name", "size", "norms"),
    [
        ("MobileNetV2", 96, {"batch_norm folded": 52}),
        ("MobileNetV3Small", 64, {"batch_norm folded": 34}),
        ("EfficientNetB0", 64, {"batch_norm folded": 50}),
        pytest.param(
            "DenseNet121", 64, {"batch_norm folded": 59, "batch_norm fused": 62}, marks=pytest.mark.exhaustive
        ),
        pytest.param("NASNetMobile", 96, {"batch_norm folded": 192}, marks=ALL),
        ("ConvNeXtTiny", 64, {"batch_norm folded": 1, "layer_norm kept": 23}),
    ],
)
def test_applications_agree_with_keras(name: str, size: int, norms: Any, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    more = {"alpha": 0.35} if name == "MobileNetV2" else {}
    model = built(name, input_shape=(size, size, 3), **more)
    of_training(model, batch=16)
    model.save(tmp_path / "m.keras")
    m = renorm.compile(tmp_path / "m.keras")
    assert Counter(f"{n.kind} {n.fate}" for n in m.report.norms) == norms
    for batch in (1, 3):
        x = images(model, batch, batch)
        wanted = np.asarray(keras.ops.convert_to_numpy(model(x, training=False)))
        np.testing.assert_allclose(m.run(x)[0], wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()))
