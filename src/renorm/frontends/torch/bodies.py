"""Calls of torch.cond, map and scan: graphs of their own, read into the graph around them.

cond(p, f, g, x)       both branches, and one of the results by element: where(p, f(x), g(x))
map(f, xs, y)          f once for each slice of xs along their first axis, whose extent is known
scan(f, init, xs, y)   the same, each round with what the round before carries
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from renorm import ops
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.pairs import Pair, on_parts
from renorm.graph.ir import Value

MOST = 100_000  # nodes of a graph with bodies, which may hold others


@dataclass(frozen=True)
class Body:
    """A graph as a function of operands. read: reads it into the graph around it, and returns its results."""

    calls: torch.fx.GraphModule
    read: Callable[[torch.fx.GraphModule, Sequence[Any]], list[Any]]

    def __call__(self, *operands: Any) -> list[Any]:
        return self.read(self.calls, operands)


def reads(target: Any) -> bool:
    """Return whether calls of this are read here."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.__name__ in _READERS


def results(name: str, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a call, by its name. Raises UnsupportedOp."""
    return _READERS[name](*operands)


def _cond(condition: bool | Value, taken: Body, otherwise: Body, operands: Sequence[Any] = ()) -> list[Any]:
    if isinstance(condition, bool):
        return (taken if condition else otherwise)(*operands)
    truth = ops.reshape(condition, np.zeros(0, np.int64))  # of one element
    return [_either(truth, a, b) for a, b in zip(taken(*operands), otherwise(*operands), strict=True)]


def _either(condition: Value, a: Any, b: Any) -> Any:
    if isinstance(a, (Value, Pair)) and type(a) is type(b):
        return a if a is b else on_parts(lambda a, b: ops.where(condition, a, b), a, b)
    if not isinstance(a, (Value, Pair)) and not isinstance(b, (Value, Pair)) and a == b:
        return a
    raise UnsupportedOp(f"data choose between {a} and {b}")


def _map(body: Body, slices: Sequence[Any], operands: Sequence[Any] = ()) -> list[Any]:
    rounds = [body(*_slices(slices, i), *operands) for i in range(_rounds(slices, body))]
    return [_stacked(made) for made in zip(*rounds)]


def _scan(body: Body, begin: Sequence[Any], slices: Sequence[Any], operands: Sequence[Any] = ()) -> list[Any]:
    carried, rounds = [*begin], list[list[Any]]()
    for i in range(_rounds(slices, body)):
        made = body(*carried, *_slices(slices, i), *operands)
        carried = made[: len(begin)]
        rounds.append(made[len(begin) :])
    return [*carried, *map(_stacked, zip(*rounds))]


_READERS: dict[str, Callable[..., list[Any]]] = {"cond": _cond, "map_impl": _map, "scan": _scan}


def _rounds(slices: Sequence[Any], body: Body) -> int:
    first, *_ = slices[0] if isinstance(slices[0], Pair) else slices
    extent, calls = first.shape[0], len(body.calls.graph.nodes)
    if not isinstance(extent, int):
        raise UnsupportedOp(
            f"it goes over an axis of extent {extent}, which is open", do="export it with that one known"
        )
    if not extent:
        raise UnsupportedOp("it goes over an axis of extent 0, of which its results have nothing to be made of")
    if extent * calls > MOST:
        raise UnsupportedOp(f"{extent} rounds of {calls} calls are more than {MOST:,}")
    return extent


def _slices(values: Sequence[Any], i: int) -> list[Any]:
    return [on_parts(lambda v: ops.gather(v, np.array(i), axis=0), v) for v in values]


def _stacked(values: Sequence[Any]) -> Any:
    return on_parts(lambda *vs: ops.concat([ops.unsqueeze(v, axes=(0,)) for v in vs], axis=0), *values)
