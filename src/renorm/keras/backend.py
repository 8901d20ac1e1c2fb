"""On which of its backends Keras must run."""

from __future__ import annotations

import keras

from renorm.core.errors import InvalidInput


def require_torch(what: str) -> None:
    """Raise InvalidInput where Keras does not run on torch."""
    if keras.config.backend() != "torch":
        raise InvalidInput(
            f"{what}: Keras runs on {keras.config.backend()}",
            ["renorm computes layers of Keras on the backend torch"],
            "set KERAS_BACKEND=torch before keras is imported",
        )
