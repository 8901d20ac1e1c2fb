"""Models of Keras in memory: cells in cells, and layers of renorm's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.keras_models import WARNINGS, agrees, keras

from renorm.keras import BatchNormalization

pytestmark = WARNINGS
L = keras.layers


@pytest.mark.parametrize("wrapped", [list, L.StackedRNNCells], ids=["list", "stacked"])
@pytest.mark.parametrize("kinds", [("LSTM", "GRU"), ("LSTM", "LSTM")], ids="-".join)
def test_cells(wrapped: Any, kinds: tuple[str, str], tmp_path: Path) -> None:
    cells = [getattr(L, f"{kind}Cell")(n) for kind, n in zip(kinds, (3, 2))]
    model = keras.Sequential([keras.Input((5, 4)), L.RNN(wrapped(cells))])
    agrees(model)
    model.save(path := tmp_path / "cells.keras")
    agrees(model, str(path))


@pytest.mark.parametrize("suffix", ["", ".keras", ".h5"])
def test_renorms_own_batch_norm_folds(suffix: str, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((8,)), L.Dense(4), BatchNormalization(name="bn")])
    model.layers[-1].set_weights([np.random.default_rng(i).uniform(0.5, 2, 4) for i in range(4)])
    path = tmp_path / f"own{suffix}"
    if suffix:
        model.save(path)
    m = agrees(model, str(path) if suffix else None)
    assert {n.fate for n in m.report.norms} == {"folded"}
