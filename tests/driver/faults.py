"""Faults put into compiled code: the op of one node computes something else where it is compiled, and what it should
where it is interpreted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from renorm import ops, te
from renorm.core.dtypes import numpy_dtype
from renorm.expr.nodes import select
from renorm.graph import registry
from renorm.graph.ir import Graph

Element = Callable[[Any, tuple[Any, ...]], Any]  # from the right element and its index to what is computed instead

CHANNEL, ROW = 17, 3
FAULTS: dict[str, Element] = {
    "zeros": lambda y, at: y * 0,
    "flipped sign": lambda y, at: -y,
    "one wrong channel of 64": lambda y, at: select(at[1] == CHANNEL, y + y, y),
    "one channel of zeros": lambda y, at: select(at[1] == CHANNEL, y * 0, y),
    "one wrong row": lambda y, at: select(at[2] == ROW, -y, y),
    "channels shifted by one": lambda y, at: y,  # see `faulty`
}
COUNTED: dict[str, Element] = {
    **{name: FAULTS[name] for name in ("zeros", "flipped sign", "one wrong channel of 64", "one wrong row")},
    "off by one": lambda y, at: y + 1,
    "one of them off by one": lambda y, at: select(te.all(at[1] == CHANNEL, at[2] == ROW), y + 1, y),
}


@contextmanager
def faulty(name: str, element: Element, op: str = "neg", target: str = "llvm") -> Generator[None]:
    """Inside the block, code compiled for `op` (one of one operand) has this fault."""
    right = type(registry.find(op)()).compute

    def compute(self: Any, x: te.Tensor) -> te.Tensor:
        y = right(self, x)

        def at(*index: Any) -> Any:
            n, c, *rest = index
            return element(y[(n, (c + 1) % x.shape[1], *rest) if name == "channels shifted by one" else index], index)

        return te.compute(x.shape, at, name="wrong")

    registry.override(op, target=target, compute=compute)
    try:
        yield
    finally:
        registry.override(op, target=target)


def network(dtype: str, small: float = 1.0) -> Graph:
    """64 channels, of which `CHANNEL` is `small` times as large as the others; the negation in front of the end may be
    faulty. Of integers: what is computed from them alone."""
    rng, g = np.random.default_rng(3), Graph("to_be_faulty")
    kind = numpy_dtype(dtype)
    x = g.input("x", dtype, (1, 8, 6, 5))
    factors = np.where(np.arange(64)[:, None, None] == CHANNEL, small, 1.0).astype(kind)
    if kind.kind in "iu":
        y = ops.concat(
            [ops.add(ops.mul(x, np.asarray(i + 1, kind)), np.asarray(i % 3, kind)) for i in range(8)], axis=1
        )
        g.outputs = [ops.neg(y)]
        return g
    w = rng.standard_normal((64, 8, 3, 3)).astype(kind)
    parameters = [np.abs(rng.standard_normal(64)).astype(kind) + np.asarray(0.5, kind) for _ in range(4)]
    y = ops.batch_norm(ops.conv(x, w, pads=[1] * 4), *parameters)
    g.outputs = [ops.mul(ops.neg(ops.tanh(y)), factors)]
    return g
