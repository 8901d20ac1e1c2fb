"""Networks of keras.applications with random weights, through .keras files to renorm with a dynamic batch, against
Keras itself on the backend torch: docs/keras.md has the results.

    pip install ".[bench,keras,hdf5]"
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import renorm
from benchmarks.machine import commit, now
from benchmarks.outcome import TOLERANCE, Outcome
from renorm.core.errors import RenormError

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

SIZES = (1, 2)  # of the batch, which is open in the file
OPEN = 224  # pixels, where a network leaves its extents open


def names() -> list[str]:
    """Return the networks of keras.applications."""
    return sorted(n for n in dir(keras.applications) if n[0].isupper() and callable(getattr(keras.applications, n)))


def built(name: str, **options: Any) -> Any:
    """Return a new network. Keras refuses NASNet on the backend torch, where it computes what it does on others."""
    if not name.startswith("NASNet"):
        return getattr(keras.applications, name)(weights=None, classifier_activation=None, **options)
    network: Any = import_module("keras.src.applications.nasnet").NASNet
    filters, blocks, stem, size = (1056, 4, 32, 224) if name == "NASNetMobile" else (4032, 6, 96, 331)
    options = {"input_shape": (size, size, 3), **options}
    return network(
        penultimate_filters=filters, num_blocks=blocks, stem_block_filters=stem, skip_reduction=size == 331,
        filter_multiplier=2, weights=None, classifier_activation=None, default_size=size, **options,
    )  # fmt: skip


def images(model: Any, batch: int, seed: int) -> Any:
    """Return images as the network wants them: from 0 to 255 where it scales them itself."""
    shape = (batch, *(d or OPEN for d in model.input_shape[1:]))
    x = np.random.default_rng(seed).uniform(0, 255, shape).astype(np.float32)
    has_own = any(layer.__class__.__name__ == "Rescaling" for layer in model.layers)
    return x if has_own else x / np.float32(127.5) - 1


def of_training(model: Any, batch: int = 2) -> None:
    """Give norms statistics of data, scales and shifts that are not those of a new network, and what begins as zeros
    other numbers. With statistics that are just drawn, deep networks make large errors of rounding alone."""
    draw = np.random.default_rng(0)
    for w in model.weights:
        name = w.path.rpartition("/")[2]
        if name in ("gamma", "variance"):
            w.assign(draw.uniform(0.5, 1.5, w.shape))
        elif name in ("beta", "bias", "mean"):
            w.assign(draw.normal(0, 0.1, w.shape))
    norms = [layer for layer in model.layers if layer.__class__.__name__ == "BatchNormalization"]
    momenta = [n.momentum for n in norms]
    for n in norms:
        n.momentum = 0.0
    if norms:
        model(images(model, batch, 0), training=True)
    for n, momentum in zip(norms, momenta):
        n.momentum = momentum
        mean, var = (np.asarray(keras.ops.convert_to_numpy(w)) for w in (n.moving_mean, n.moving_variance))
        n.moving_mean.assign(mean + draw.normal(0, 0.1, mean.shape) * np.sqrt(var))
        spread = var + (0.1 * mean) ** 2  # two images may lie close together, which magnifies rounding
        # not below the data's: a norm that scales up in a hundred layers one after the other magnifies it too
        n.moving_variance.assign(spread * draw.uniform(1.0, 2.0, var.shape))


def measured(name: str, size: int | None = None) -> Outcome:
    """Return what became of a network; never raises. size: of the images, instead of the network's own."""
    found, clock = Outcome("keras", name), time.perf_counter
    try:
        keras.utils.set_random_seed(0)
        shape = {} if size is None else {"input_shape": (size, size, 3)}
        model = built(name, **shape)
        of_training(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            t0 = clock()
            m = renorm.compile(path)
            found.seconds = {"compile": round(clock() - t0, 2)}
        found.compiled(m.report)
        found.error = max(_error(model, m, batch) for batch in SIZES)
    except RenormError as error:
        found.said = str(error)
    except Exception as error:  # of Keras
        found.said = f"{type(error).__name__}: {error}"[:500]
    return found


def _error(model: Any, m: Any, batch: int) -> float:
    x = images(model, batch, batch)
    wanted: Any = keras.ops.convert_to_numpy(model(x, training=False))
    return float(np.abs(m.run(x)[0] - wanted).max() / np.abs(wanted).max())


def run(chosen: list[str], into: Path, tell: Callable[[str], None]) -> None:
    """Write what became of networks, all where none is named, to a file."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    outcomes = list[Outcome]()
    for name in chosen or names():
        outcomes.append(o := measured(name))
        what = f"{o.error:.1e}" if o.error == o.error else o.said.splitlines()[0]
        tell(f"{name}: {what}; {', '.join(f'{n} {k}' for k, n in o.norms.items())}; {o.seconds.get('compile')} s")
        packages = {p: version(p) for p in ("keras", "torch")}
        said = {"commit": commit(), "when": now(), "packages": packages, "networks": [asdict(o) for o in outcomes]}
        into.write_text(json.dumps(said, indent=1))
    tell(f"{sum(o.is_right for o in outcomes)} of {len(outcomes)} agree to {TOLERANCE:g}")
