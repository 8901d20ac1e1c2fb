"""Normalizations in pieces: means, mean squares and inverse roots, read off the nodes that exporters write for them.

    Mean        factor * mean(x over axes)
    Centred     sign * (x - mean)
    Moment      factor * mean(c * c over axes), c = x or x - mean
    Root        (moment + epsilon) ** (1/2), or ** (-1/2) where it is inverse
    Standard    sign * c / sqrt(factor * mean(c * c) + epsilon), times and divided by what else stands there

A reading has the nodes it went through, all of which go when it is raised to one op; `problem` is a sentence on why it
is no such norm, though it looks like one. Values are compared as values: equal nodes have become one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isclose, prod

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim
from renorm.graph.ir import Node, Value
from renorm.passes.simplify import VIEWS
from renorm.topi.reduction import reduced_axes

_DEPTH = 8  # nodes in a row that one reading follows

_ROUNDING = 1e-6  # of 1 / n in float32, and then some

Nodes = tuple[Node, ...]


@dataclass(frozen=True)
class Mean:
    x: Value
    axes: tuple[int, ...]
    factor: float
    nodes: Nodes

    def is_as(self, other: Mean) -> bool:
        return self.x is other.x and self.axes == other.axes and self.factor == other.factor


@dataclass(frozen=True)
class Centred:
    x: Value
    mean: Mean
    sign: float
    nodes: Nodes


@dataclass(frozen=True)
class Moment:
    """mean: None where x itself is squared."""

    x: Value
    mean: Mean | None
    axes: tuple[int, ...]
    factor: float
    nodes: Nodes


@dataclass(frozen=True)
class Root:
    moment: Moment
    epsilon: float
    is_inverse: bool
    nodes: Nodes
    problem: str | None = None


@dataclass(frozen=True)
class Standard:
    """rest: other factors, and 1 or -1 for what is divided by."""

    moment: Moment
    epsilon: float
    sign: float
    rest: Sequence[tuple[Value, int]]
    nodes: Nodes
    problem: str | None = None


def number(v: Value | None) -> float | None:
    """The number of which all elements of a constant are; None where it is none."""
    if v is None or v.data is None or (not dtypes.is_float(v.dtype) and not dtypes.is_int(v.dtype)) or not v.data.size:
        return None
    first = v.data.reshape(-1)[0]
    return float(first) if bool(np.all(v.data == first)) else None


def is_kept(shape: Sequence[Dim], x: Sequence[Dim], axes: Sequence[int]) -> bool:
    """Return whether a result of a reduction of x over axes stands beside x as if the axes were still there."""
    found = (*[1] * (len(x) - len(shape)), *shape)
    return found == tuple(1 if a in axes else d for a, d in enumerate(x))


def with_numbers(node: Node) -> Iterator[tuple[Value, float]]:
    """Yield the operands of a node of two, each with the other one's number, where that leaves the shape as it is; of a
    quotient what is divided."""
    a, b = (*node.inputs, None)[:2]
    for v, c in ((a, b),) if node.op.name == "div" else ((a, b), (b, a)):
        found = number(c)
        if v is not None and not v.is_constant and found is not None and v.shape == node.output.shape:
            yield v, found


def _mean(v: Value, depth: int = _DEPTH) -> Mean | None:
    """`mean_of`, whatever became of the axes."""
    node = v.producer
    if node is None or not depth or not node.inputs or node.inputs[0] is None:
        return None
    x, name = node.inputs[0], node.op.name
    if name in VIEWS:
        inner = _mean(x, depth - 1)
        return inner and replace(inner, nodes=(node, *inner.nodes))
    if name in ("mul", "div"):
        for other, n in with_numbers(node):
            inner = _mean(other, depth - 1)
            if inner is not None and n:
                factor = inner.factor * n if name == "mul" else inner.factor / n
                factor = 1.0 if isclose(factor, 1, rel_tol=_ROUNDING) else factor
                return replace(inner, factor=factor, nodes=(node, *inner.nodes))
        return None
    if name == "global_average_pool":
        return Mean(x, tuple(range(2, x.rank)), 1.0, (node,))
    return _reduced(node, x) if name in ("reduce_mean", "reduce_sum", "reduce_sum_square") else None


def _reduced(node: Node, x: Value) -> Mean | None:
    """A reduction as a mean of what it adds up."""
    axes = tuple(sorted(reduced_axes(node.op.values["axes"], x.rank)))
    extents = [x.shape[a] for a in axes]
    if node.op.name == "reduce_mean":
        return Mean(x, axes, 1.0, (node,)) if axes else None
    known = [d for d in extents if isinstance(d, int)]
    return Mean(x, axes, float(prod(known)), (node,)) if axes and len(known) == len(extents) and prod(known) else None


def mean_of(v: Value) -> Mean | None:
    """`v` as a mean beside what it is the mean of."""
    found = _mean(v)
    if found is None or found.nodes[-1].op.name == "reduce_sum_square":
        return None
    return found if is_kept(v.shape, found.x.shape, found.axes) else None


def centred_of(v: Value) -> Centred | None:
    """`v` as a distance from a mean, be that of another tensor."""
    node = v.producer
    if node is None or node.op.name != "sub":
        return None
    a, b = node.inputs
    assert a is not None
    assert b is not None
    found = [
        Centred(x, mean, sign, (node, *mean.nodes))
        for x, m, sign in ((a, b, 1.0), (b, a, -1.0))
        if (mean := mean_of(m)) is not None and x.shape == v.shape
    ]
    return next((c for c in found if c.mean.x is c.x), found[0] if found else None)


def _squared(v: Value) -> tuple[Value, Node] | None:
    node = v.producer
    if node is None or node.op.name not in ("mul", "pow"):
        return None
    a, b = node.inputs
    assert a is not None
    if (node.op.name == "mul" and a is b) or (node.op.name == "pow" and number(b) == 2 and a.shape == v.shape):
        return a, node
    return None


def _moment(v: Value) -> Moment | None:
    """`v` as the mean of squares, whatever became of the axes."""
    mean = _mean(v)
    if mean is None:
        return _difference(v)
    nodes, inner = mean.nodes, mean.x
    if nodes[-1].op.name != "reduce_sum_square":
        square = _squared(inner)
        if square is None:
            return None
        inner, nodes = square[0], (*nodes, square[1])
    centred = centred_of(inner)
    if centred is None:
        return Moment(inner, None, mean.axes, mean.factor, nodes)
    return Moment(centred.x, centred.mean, mean.axes, mean.factor, (*nodes, *centred.nodes))


def _difference(v: Value) -> Moment | None:
    """mean(x * x) - mean(x) * mean(x), which is the mean of (x - mean) * (x - mean)."""
    node = v.producer
    if node is None or node.op.name != "sub":
        return None
    a, b = node.inputs
    assert a is not None
    assert b is not None
    squares, square = _moment(a), _squared(b)
    mean = mean_of(square[0]) if square is not None else None
    if squares is None or squares.mean is not None or square is None or mean is None:
        return None
    if (mean.x, mean.axes, mean.factor, squares.factor) != (squares.x, squares.axes, 1.0, 1.0):
        return None
    return replace(squares, mean=mean, nodes=(node, *squares.nodes, square[1], *mean.nodes))


def _bounded(node: Node) -> tuple[Value, float | None] | None:
    """Return the value that a node bounds below, and the bound; None where it does anything else."""
    x = node.inputs[0] if node.inputs else None
    if node.op.name == "relu" and x is not None:
        return x, 0.0
    if node.op.name == "clip" and x is not None and (len(node.inputs) < 3 or node.inputs[2] is None):
        return x, number(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op.name == "max" and len(node.inputs) == 2:
        return next(iter(with_numbers(node)), None)
    return None


def _under(v: Value) -> Root | None:
    """Return the terms under a root: a moment, and epsilon."""
    moment, node = _moment(v), v.producer
    if moment is not None:
        return Root(moment, 0.0, False, moment.nodes)
    if node is None:
        return None
    bound = _bounded(node)
    if bound is not None:
        inner = _under(bound[0])
        if inner is None:
            return None
        problem = None if bound[1] == 0 else "epsilon bounds the variance below, where a norm adds it"
        return replace(inner, nodes=(node, *inner.nodes), problem=inner.problem or problem)
    if node.op.name != "add":
        return None
    for x, c in (node.inputs, node.inputs[::-1]):
        moment = None if x is None else _added_to(x)
        if moment is None or c is None:
            continue
        epsilon, problem = number(c), moment.problem
        if not c.is_constant:
            problem = f"epsilon {c.name!r} is not a constant"
        elif epsilon is None:
            problem = f"epsilon {c.name!r} is {c.type}, with different elements"
        elif node.output.shape != (x.shape if x is not None else ()):
            problem = f"epsilon {c.name!r} is {c.type}, which broadcasts the variance"
        return Root(moment.moment, epsilon or 0.0, False, (node, *moment.nodes), problem)
    return None


def _added_to(v: Value) -> Root | None:
    """A moment to which epsilon is added, bounded below by 0 or not."""
    moment = _moment(v)
    if moment is not None:
        return Root(moment, 0.0, False, moment.nodes)
    bound = None if v.producer is None else _bounded(v.producer)
    found = None if bound is None else _under(v)
    if found is None or not found.epsilon:
        return found
    return replace(found, problem=found.problem or "epsilon is added twice, with a bound between")


def root_of(v: Value, depth: int = _DEPTH) -> Root | None:
    """`v` as the root of a moment, or its inverse."""
    node = v.producer
    if node is None or not depth:
        return None
    name, x = node.op.name, node.inputs[0] if node.inputs else None
    if x is None:
        return None
    if name in ("sqrt", "rsqrt"):
        return _rooted(_under(x), name == "rsqrt", node)
    if name == "pow" and number(node.inputs[1]) in (0.5, -0.5) and x.shape == v.shape:
        return _rooted(_under(x), number(node.inputs[1]) == -0.5, node)
    if name == "reduce_l2":
        mean = _reduced(node, x)
        return mean and Root(Moment(x, None, mean.axes, mean.factor, (node,)), 0.0, False, (node,))
    if name in VIEWS or name == "expand":
        inner = root_of(x, depth - 1)
        return inner and replace(inner, nodes=(node, *inner.nodes))
    if name == "reciprocal" or (name == "div" and number(x) == 1):
        inner = root_of(x if name == "reciprocal" else node.inputs[1] or x, depth - 1)
        return inner and replace(inner, is_inverse=not inner.is_inverse, nodes=(node, *inner.nodes))
    bound = _bounded(node)
    if bound is not None or name == "add":
        for other, _ in [bound] if bound is not None else with_numbers(node):
            inner = root_of(other, depth - 1)
            if inner is not None and not inner.is_inverse:
                said = "epsilon bounds the root below" if bound is not None else "epsilon stands outside the root"
                return replace(inner, nodes=(node, *inner.nodes), problem=f"{said}: a norm adds it to the variance")
    return None


def _rooted(found: Root | None, is_inverse: bool, node: Node) -> Root | None:
    return found and replace(found, is_inverse=is_inverse, nodes=(node, *found.nodes))


def _factors(node: Node, power: int = 1, depth: int = _DEPTH) -> tuple[list[tuple[Value, int]], list[Node]]:
    """Return the factors of a product, and the nodes that multiply; 1 or -1 for what is divided by."""
    leaves, nodes = list[tuple[Value, int]](), [node]
    for i, v in enumerate(node.inputs):
        assert v is not None
        own = -power if i == 1 and node.op.name == "div" else power
        inner = v.producer
        alone = (
            inner is not None
            and inner.op.name in ("mul", "div")
            and [*islice(v.readers, 2)] == [node]
            and root_of(v) is None
        )
        if depth and inner is not None and alone and node.inputs[0] is not node.inputs[1]:
            more = _factors(inner, own, depth - 1)
            leaves, nodes = leaves + more[0], nodes + more[1]
        else:
            leaves.append((v, own))
    return leaves, nodes


def standard_of(node: Node) -> Standard | None:
    """A product or quotient as something divided by its own deviation, or by its root mean square."""
    if node.op.name not in ("mul", "div"):
        return None
    leaves, nodes = _factors(node)
    roots = [(i, r) for i, (v, p) in enumerate(leaves) if (r := root_of(v)) is not None and r.is_inverse == (p > 0)]
    if len(roots) != 1:
        return None
    at, root = roots[0]
    moment, others = root.moment, [(v, p) for i, (v, p) in enumerate(leaves) if i != at]
    for i, (v, p) in enumerate(others):
        centred = centred_of(v) if p > 0 else None
        if p > 0 and v is moment.x:
            said = None if moment.mean is None else f"{v.name!r} is divided by its deviation, but not centred"
            own = None
        elif centred is not None:
            said, own = _mismatch(centred, moment), centred
        else:
            continue
        rest = [o for j, o in enumerate(others) if j != i]
        inside = dict.fromkeys((*nodes, *root.nodes, *(own.nodes if own is not None else ())))
        said = root.problem or said or _unlike(leaves[at][0], v, moment)
        return Standard(moment, root.epsilon, 1.0 if own is None else own.sign, rest, tuple(inside), said)
    return None


def _mismatch(centred: Centred, moment: Moment) -> str | None:
    """Return why a distance from a mean and a variance do not belong together."""
    mean = centred.mean
    if centred.x is not moment.x:
        return f"the variance is that of {moment.x.name!r}, not of {centred.x.name!r}"
    if mean.x is not centred.x:
        return f"the mean is that of {mean.x.name!r}, not of {centred.x.name!r}"
    if moment.mean is None:
        return f"the mean of squares is that of {moment.x.name!r}, before its mean is subtracted"
    if not mean.is_as(moment.mean):
        return f"two means of {mean.x.name!r} are subtracted, over axes {mean.axes} and {moment.mean.axes}"
    return None


def _unlike(root: Value, c: Value, moment: Moment) -> str | None:
    """Return why a moment is no variance, or no mean square, of what is divided by its root."""
    if moment.mean is not None:
        if moment.mean.x is not moment.x:
            return f"the mean is that of {moment.mean.x.name!r}, not of {moment.x.name!r}"
        if moment.mean.axes != moment.axes:
            return f"the mean is over axes {moment.mean.axes}, the variance over axes {moment.axes}"
        if moment.mean.factor != 1:
            return f"{moment.mean.factor:g} times the mean is subtracted"
        if moment.factor != 1:
            return _biased(moment)
    if moment.factor <= 0:
        return f"the mean of squares is multiplied by {moment.factor:g}"
    if not dtypes.is_float(c.dtype):
        return f"arithmetic of {c.dtype}"
    spread = root.producer
    if spread is not None and spread.op.name == "expand" and root.shape == c.shape and spread.inputs[0] is not None:
        root = spread.inputs[0]  # which arithmetic would do as well
    if not is_kept(root.shape, c.shape, moment.axes):
        return f"the root {root.name!r} {root.type} does not stand beside {c.name!r} {c.type}"
    return None


def _biased(moment: Moment) -> str:
    count = prod(d if isinstance(d, int) else 1 for d in (moment.x.shape[a] for a in moment.axes))
    if count > 1 and isclose(moment.factor, count / (count - 1), rel_tol=_ROUNDING):
        return f"the variance is divided by n - 1 = {count - 1}, and norms divide by n"
    return f"the variance is multiplied by {moment.factor:g}"
