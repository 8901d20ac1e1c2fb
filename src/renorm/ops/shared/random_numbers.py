"""Random numbers by their counters in given loops (te.extern): the generator "Squares" (Widynski, 2020), whose numbers
depend on a key and a counter alone. Rotations are sums of what a product and a quotient by 2^32 leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te, topi
from renorm.core.dtypes import compute_dtype
from renorm.expr.nodes import Expr, call, cast, const

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Body, Loops

_HALF = 1 << 32
_MASK = (1 << 64) - 1
_ELEMENTS = 1024  # of one round
_DIGITS = 24  # of a number, in bits: what float32 has between 0 and 1, both apart


def key_of(seed: float) -> int:
    """Return the key of a seed: its digits as float32 mixed (splitmix64), and odd."""
    x = (int(np.float32(seed).view(np.uint32)) + 0x9E3779B97F4A7C15) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor & _MASK
    return (x ^ (x >> 31)) | 1


def rounds(shape: Sequence[Any]) -> Any:
    """Return in how many rounds the elements of a shape are made."""
    return math.prod(shape[:-1]) * ((shape[-1] + (_ELEMENTS - 1)) // _ELEMENTS) if shape else 1


def filled(seed: float, is_normal: bool, low: float, span: float) -> Body:
    """The loops of a round: low + span * u, u at least 0 and less than 1, or normal."""

    def body(loops: Loops, inputs: Sequence[Array], output: Array) -> None:
        dtype, shape = compute_dtype(output.dtype), output.shape
        last: Any = shape[-1] if shape else 1
        parts = (last + (_ELEMENTS - 1)) // _ELEMENTS
        line = loops.let(loops.round // parts % math.prod(shape[:-1]), "line") if len(shape) > 1 else const(0)
        first = loops.let(loops.round % parts * _ELEMENTS, "first")
        index = topi.transform.unravel(line, shape[:-1])

        state = loops.allocate((1,), "uint64", "state")

        def uniform(counter: Expr) -> Expr:
            digits = cast(
                "uint32", _squares(loops, state, counter, key_of(seed)) // const(1 << (32 - _DIGITS), "uint64")
            )
            return loops.let(cast(dtype, digits) * const(2.0**-_DIGITS, dtype), "uniform")

        with loops.for_range(first, te.min(first + _ELEMENTS, last)) as k:
            number = loops.let(cast("uint64", line) * cast("uint64", te.const(0) + last) + cast("uint64", k), "number")
            if is_normal:  # Box and Muller, 1958
                u, v = (uniform(number * const(2, "uint64") + const(i, "uint64")) for i in (0, 1))
                distance = call("sqrt", call("log", const(1.0, dtype) - u) * const(-2.0, dtype))
                drawn = distance * call("cos", v * const(2 * math.pi, dtype))
            else:
                drawn = uniform(number)
            output[(*index, k) if shape else ()] = drawn * const(span, dtype) + const(low, dtype)

    return body


def _squares(loops: Loops, state: Array, counter: Expr, key: int) -> Expr:
    """Return 32 random bits, as uint64. state: an element, in which products are on the way, so that estimates of what
    loops do, which know no product that wraps, do not follow them."""
    half, own = const(_HALF, "uint64"), const(key, "uint64")

    def held(value: Expr) -> Expr:
        state[0] = value
        return loops.let(state[0], "held")

    y = held(held(counter) * own)
    z, x = held(y + own), y
    for added in (y, z, y):
        x = held(x * x + added)
        x = held(x // half + x * half)
    return held((x * x + z) // half)


def reference(seed: float, shape: Sequence[int], is_normal: bool) -> Any:
    """Return the numbers by NumPy, before they are scaled."""
    key, half = np.uint64(key_of(seed)), np.uint64(32)
    counters = np.arange(math.prod(shape) * (2 if is_normal else 1), dtype=np.uint64)
    with np.errstate(over="ignore"):
        y = counters * key
        z, x = y + key, y
        for added in (y, z, y):
            x = x * x + added
            x = (x >> half) | (x << half)
        bits = (x * x + z) >> half
    drawn = (bits >> np.uint64(32 - _DIGITS)).astype(np.float64) * 2.0**-_DIGITS
    if is_normal:
        u, v = drawn.reshape(-1, 2).T
        drawn = np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v)
    return drawn.reshape(shape)
