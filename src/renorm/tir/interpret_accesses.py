"""Accesses of the loop interpreter to memory: what the programs call that it makes of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core.errors import InvalidLoops
from renorm.tir.interpret_gpu import Launch, Shadow, at_loops

_POISON = -0x5A5A5A5A  # what a lane of integers holds that was never written


def new(size: int) -> list[Any]:
    """Return memory that nobody wrote."""
    return [None] * size


def outside(name: str, size: int, index: int, loops: dict[str, int]) -> Any:
    raise InvalidLoops(f"{name}[{index}] is outside {name}, which has {size} elements", [at_loops(loops)])


def unwritten(name: str, index: int, loops: dict[str, int]) -> Any:
    raise InvalidLoops(f"{name}[{index}] is read before anything is written there", [at_loops(loops)])


def lanewise(f: Callable[..., Any], *columns: list[Any]) -> list[Any]:
    return [f(*lane) for lane in zip(*columns, strict=True)]


def gather(
    memory: list[Any],
    name: str,
    indices: Any,
    predicate: Any,
    zero: Any,
    loops: dict[str, int],
    shadow: tuple[Launch, Shadow, int] | None,
) -> list[Any]:
    lanes = len(indices)
    wanted = [True] * lanes if predicate is None else predicate if isinstance(predicate, list) else [predicate] * lanes
    result: list[Any] = []
    for i, p in zip(indices, wanted, strict=True):
        if p and not 0 <= i < len(memory):
            outside(name, len(memory), i, loops)
        if shadow and p and not shadow[1].reads(i, shadow[2]):
            shadow[0].race(shadow[1], i, shadow[2], "reads", loops)
        cell = memory[i] if p else zero
        # a lane that was never written may be read beside others, as long as nobody uses it: NaN shows who does
        result.append(cell if cell is not None else zero * np.nan if isinstance(zero, np.floating) else _POISON)
    return result


def scatter(
    memory: list[Any],
    name: str,
    indices: Any,
    values: list[Any],
    predicate: Any,
    convert: Callable[[Any], Any],
    loops: dict[str, int],
    shadow: tuple[Launch, Shadow, int] | None,
) -> None:
    lanes = len(values)
    wanted = [True] * lanes if predicate is None else predicate if isinstance(predicate, list) else [predicate] * lanes
    for i, v, p in zip(indices, values, wanted, strict=True):
        if p:
            if not 0 <= i < len(memory):
                outside(name, len(memory), i, loops)
            if shadow and not shadow[1].writes(i, shadow[2]):
                shadow[0].race(shadow[1], i, shadow[2], "writes", loops)
            memory[i] = convert(v)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_new": new, "_outside": outside, "_unwritten": unwritten, "_lanewise": lanewise, "_gather": gather,
    "_scatter": scatter,
}  # fmt: skip
