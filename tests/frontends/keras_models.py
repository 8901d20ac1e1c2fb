"""What tests of Keras' models share: Keras on the backend torch, trained weights, comparison in float64."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("torch", reason="PyTorch is not installed")
keras: Any = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("h5py", reason="h5py is not installed")
if keras.config.backend() != "torch":
    pytest.skip("Keras runs on another backend than torch", allow_module_level=True)

import renorm

WARNINGS = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras' own, of NumPy's protocol
    pytest.mark.filterwarnings("ignore:Layer .* does not support masking"),
    pytest.mark.filterwarnings("ignore:The structure of `inputs`"),  # one array for a list of one
]


def trained(model: Any, seed: int = 7) -> Any:
    """Return a model whose weights are those of no new one: scales and variances are about 1, all else about 0."""
    draw = np.random.default_rng(seed)
    for w in model.weights:
        if "float" not in w.dtype:
            continue
        name = w.path.rpartition("/")[2]
        is_scale = name in ("gamma", "scale") or "variance" in name
        w.assign(draw.uniform(0.5, 1.5, w.shape) if is_scale else draw.normal(0, 0.4, w.shape))
    return model


def data(model: Any, batch: int, extents: Sequence[int] = (5, 7), seed: int = 1) -> list[Any]:
    """Return inputs of a model: what is open has these extents."""
    draw, found = np.random.default_rng(seed), list[Any]()
    for x in model.inputs:
        rest = iter(extents)
        shape = [batch, *(next(rest) if d is None else d for d in x.shape[1:])]
        if "float" in x.dtype:
            found.append(draw.normal(0, 1, shape).astype(x.dtype))
        else:
            found.append((draw.uniform(0, 1, shape) * (2 if x.dtype == "bool" else 9)).astype(x.dtype))
    return found


def wanted(model: Any, given: Sequence[Any]) -> list[Any]:
    found = model(list(given) if len(given) > 1 else given[0], training=False)
    return [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(found)]


def agrees(model: Any, source: Any = None, sizes: Sequence[int] = (1, 3), tolerance: float = 2e-5) -> Any:
    """Compile a source, the model itself where none is given, and compare results for batches of several sizes."""
    m = renorm.compile(model if source is None else source)
    for size in sizes:
        given = data(model, size)
        for a, b in zip(m.run(*given), wanted(model, given), strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(float(np.abs(b).max()), 1e-3))
    return m
