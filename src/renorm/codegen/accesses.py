"""Accesses of each phase of a kernel, and about how long it takes.

The time is an estimate from the loop program, good to a factor of three: enough to choose how much work a thread takes
at once, and to tell what is not worth sharing. It counts instructions per vector, not the operands of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from renorm.codegen.abi import Access
from renorm.codegen.phases import Phase
from renorm.core import dtypes
from renorm.expr import rewrite
from renorm.expr.nodes import Binary, Call, Cast, Expr, Load, Not, Select
from renorm.tir.nodes import Buffer, For, If, Stmt, Store, children, expressions, walk
from renorm.tir.scope import typical

VECTOR = 32  # bytes of a vector; wider ones make the estimate long, not wrong
CYCLE = 0.2  # ns
# Cycles. An operation, two of which start in each; a function as a polynomial; a store to memory that others read,
# which a cache line travels for
_OPERATION, _FUNCTION, _LOAD, _STORE, _ROUND = 0.25, 12.0, 0.25, 8.0, 0.5
_MATRIX = 256.0  # times as much as one after the other that a matrix unit computes in a cycle
_PAIRS = 2.0  # cycles of a vector of products of pairs, and of what it loads
_CHEAP = frozenset({"abs", "floor", "ceil", "round", "trunc", "sqrt", "if_then_else", "likely", "isnan", "isinf"})


def access(phase: Phase, arguments: Sequence[Buffer]) -> Access:
    """arguments: parameters, then workspaces."""
    position = {b: i for i, b in enumerate(arguments)}
    reads, writes = set[int](), set[int]()
    for s in walk(phase.body):
        if isinstance(s, Store) and s.buffer in position:
            writes.add(position[s.buffer])
        for e in expressions(s):
            sources = {load.source for load in rewrite.loads(e)}
            reads.update(k for b, k in position.items() if b in sources)
    body = phase.loop.body if phase.loop else phase.body
    return Access(tuple(sorted(reads)), tuple(sorted(writes)), round(_cycles(body) * CYCLE, 1))


def _cycles(s: Stmt) -> float:
    match s:
        case For(kind="tensorized") if any(isinstance(x, Store) and x.buffer.scope == "register" for x in walk(s)):
            return _PAIRS
        case For(kind="tensorized") if not (isinstance(s.body, For) and s.body.kind == s.kind):
            return max(0, typical(s.extent)) * _cycles(s.body) / _MATRIX
        case For():
            return max(0, typical(s.extent)) * (_cycles(s.body) + _ROUND)
        case If():
            return max(_cycles(s.then), _cycles(s.otherwise) if s.otherwise is not None else 0.0)
        case _:
            own = sum(_expression(e, set()) for e in expressions(s))
            if isinstance(s, Store) and s.buffer.scope == "global":
                own += _STORE * _vectors(s.value)
            return own + sum(_cycles(part) for part in children(s))


def _expression(e: Expr, seen: set[int]) -> float:
    """seen: what was counted before; a shared part is computed once."""
    if id(e) in seen:
        return 0.0
    seen.add(id(e))
    match e:
        case Call():
            own = _OPERATION if e.name in _CHEAP else _FUNCTION
        case Load():
            own = _LOAD if not isinstance(e.source, Buffer) or e.source.scope == "global" else 0.0
        case Binary(op="pow"):
            own = 2 * _FUNCTION
        case Binary() | Select() | Cast() | Not():
            own = _OPERATION if e.lanes > 1 or dtypes.lookup(e.dtype).kind == "float" else 0.0
        case _:
            own = 0.0
    parts = () if isinstance(e, Load) else rewrite.children(e)  # addresses are mostly computed outside of loops
    return own * _vectors(e) + sum(_expression(part, seen) for part in parts)


def _vectors(e: Expr) -> float:
    return max(1.0, e.lanes * dtypes.itemsize(e.dtype) / VECTOR)
