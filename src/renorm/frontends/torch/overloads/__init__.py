"""Readers of ATen's overloads, by families."""

from renorm.frontends.torch.overloads import (
    comparing,
    counting,
    elementwise,
    gradients,
    making,
    moving,
    norms,
    picking,
    products,
    recurrent,
    reducing,
    resizing,
    storing,
    windows,
)
from renorm.frontends.torch.overloads.table import TABLE

__all__ = [
    "TABLE",
    "comparing",
    "counting",
    "elementwise",
    "gradients",
    "making",
    "moving",
    "norms",
    "picking",
    "products",
    "recurrent",
    "reducing",
    "resizing",
    "storing",
    "windows",
]
