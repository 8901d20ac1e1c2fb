"""Readers of Keras' layers, by families."""

from renorm.frontends.keras.layers import (
    activating,
    attending,
    merging,
    moving,
    norms,
    operations,
    products,
    rearranging,
    recurrent,
    resizing,
    transparent,
    windows,
    wrapping,
)
from renorm.frontends.keras.layers.table import OPERATIONS, TABLE

__all__ = [
    "OPERATIONS",
    "TABLE",
    "activating",
    "attending",
    "merging",
    "moving",
    "norms",
    "operations",
    "products",
    "rearranging",
    "recurrent",
    "resizing",
    "transparent",
    "windows",
    "wrapping",
]
