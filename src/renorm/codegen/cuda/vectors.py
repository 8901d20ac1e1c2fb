"""Vectorized loops as accesses of up to 16 bytes: which loads and stores of a loop are one run of memory.

    for (v, 0, n)  y[b + v] = f(x[a + v], z[c])     one access to x[a .. a+n), one to y[b .. b+n)

where a and b are multiples of the elements of an access. Memory that a thread has for itself lies in registers, and has
no such accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from renorm.core.dtypes import itemsize
from renorm.expr.linear import linear
from renorm.expr.nodes import Call, Const, Expr, Load, Select, Var
from renorm.expr.rewrite import children, depends_on, key, substitute
from renorm.expr.simplify import simplify
from renorm.runtime.launches import ALIGNED
from renorm.tir.nodes import Buffer, For, Produce, Stmt, Store, constant

WIDEST = ALIGNED  # bytes of an access


@dataclass(frozen=True)
class Run:
    """Elements of a buffer that lie one after the other. base: index of the first; piece: elements of an access."""

    buffer: Buffer
    base: Expr
    piece: int


@dataclass(frozen=True)
class Runs:
    """The accesses of a vectorized loop of `extent` rounds. loads: by the structure of their indices; written: None
    where the store is no run."""

    store: Store
    extent: int
    loads: dict[object, Run]
    written: Run | None


def of_load(load: Load) -> object:
    """Return what is equal for loads of the same element."""
    return load.source, key(load.indices[0])


def runs(loop: For) -> Runs | None:
    """Return the runs of a loop; None where it has none, or is more than one store."""
    body: Stmt = loop.body
    while isinstance(body, Produce):
        body = body.body
    extent = constant(loop.extent)
    if not isinstance(body, Store) or body.predicate is not None or extent is None or constant(loop.start) != 0:
        return None
    loads: dict[object, Run] = {}
    for load in _certain(body.value):
        if isinstance(load.source, Buffer) and (found := run(load.source, load.indices[0], loop.var, extent)):
            loads[of_load(load)] = found
    written = run(body.buffer, body.index, loop.var, extent)
    return Runs(body, extent, loads, written) if loads or written else None


def run(buffer: Buffer, index: Expr, var: Var, extent: int) -> Run | None:
    """Return the elements that an index goes through as a variable goes from 0 to an extent, in memory that threads
    share; None where they are not side by side, or no two of them are aligned."""
    if not (buffer.is_shared or buffer.scope == "global"):
        return None
    form = linear(index)
    others = [k for atom, k in form.terms.items() if atom is not var]
    if form.terms.get(var) != 1 or any(depends_on(atom, var) for atom in form.terms if atom is not var):
        return None
    piece = gcd(WIDEST // itemsize(buffer.dtype), extent, form.constant, *others)
    return Run(buffer, simplify(substitute(index, {var: Const(0, var.dtype)})), piece) if piece > 1 else None


def _certain(e: Expr) -> Iterator[Load]:
    """Yield the loads that each round makes, whatever conditions are."""
    match e:
        case Load():
            if e.predicate is None:
                yield e
        case Select():
            yield from _certain(e.condition)
        case Call(name="if_then_else"):
            yield from _certain(e.args[0])
        case _:
            for c in children(e):
                yield from _certain(c)
