"""Scalar functions under the names that articles of TVM 0.4 to 0.6 use: tvm.intrin.power, tvm.intrin.sqrt."""

from __future__ import annotations

from renorm.te.math import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    floor,
    fma,
    fmod,
    if_then_else,
    isnan,
    likely,
    log,
    popcount,
    power,
    round,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tan,
    tanh,
    trunc,
)

__all__ = [
    "abs", "ceil", "cos", "erf", "exp", "floor", "fma", "fmod", "if_then_else", "isnan", "likely", "log", "popcount",
    "power", "round", "rsqrt", "sigmoid", "sin", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
