"""When two kernels have the same code: a key that keeps what a code generator reads and erases names.

Buffers and variables become numbers in order of appearance, parameters their positions. The key also holds the target
(the host's CPU resolved), the version of LLVM and a digest of the compiler's own sources, so that it may outlive the
process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from renorm.core import sources
from renorm.expr.nodes import Binary, Call, Const, Expr, Load, Var
from renorm.expr.rewrite import children as operands
from renorm.tir.nodes import Allocate, Barrier, Buffer, For, Kernel, Let, Prefetch, Stmt, Store, children, expressions

# A digest of all that code depends on below the loops; empty where there is none (see core.sources)
SOURCES = sources.digest("core", "expr", "tir", "codegen")


def digest(kernel: Kernel, *context: str) -> str:
    """Equal for kernels of equal structure in an equal context (target, versions); 64 hexadecimal digits."""
    return hashlib.sha256("\n".join([*context, SOURCES, text(kernel)]).encode()).hexdigest()


def text(kernel: Kernel) -> str:
    """Return the loops with names erased: equal for kernels of equal structure."""
    out: list[str] = []
    numbers: dict[Any, int] = {}
    weights = kernel.attrs.get("weights", ())

    def number(x: Any) -> str:
        return f"%{numbers.setdefault(x, len(numbers))}"

    def declare(b: Buffer) -> None:
        out.append(f"{number(b)} {b.dtype}[{b.size if isinstance(b.size, int) else ''}] {b.scope}")
        if b.name in weights:
            out.append("weight")
        if isinstance(b.size, Expr):
            _expression(b.size, number, out)

    for v in kernel.extents:
        out.append(f"{number(v)} {v.low} {v.high} {v.typical} {v.definition is not None}")
        if v.definition is not None:
            _expression(v.definition, number, out)
    for p in kernel.params:
        declare(p)
    for f in kernel.facts:
        _expression(f, number, out)
    _statement(kernel.body, number, declare, out)
    return "\n".join(out)


def _statement(s: Stmt, number: Callable[[Any], str], declare: Callable[[Buffer], None], out: list[str]) -> None:
    head = type(s).__name__
    match s:
        case For():
            head += f" {number(s.var)} {s.var.dtype} {s.kind}"
        case Let():
            head += f" {number(s.var)} {s.var.dtype} {s.var.lanes}"
        case Store():
            head += f" {number(s.buffer)} {s.predicate is not None} {s.nontemporal}"
        case Prefetch():
            head += f" {number(s.buffer)}"
        case Barrier():
            head += f" {s.scope}"
        case Allocate():
            declare(s.buffer)
            head += f" {number(s.buffer)}"
        case _:
            pass
    out.append(head)
    for e in expressions(s):
        _expression(e, number, out)
    for part in children(s):
        _statement(part, number, declare, out)
    out.append(";")


def _expression(e: Expr, number: Callable[[Any], str], out: list[str]) -> None:
    match e:
        case Var():
            out.append(number(e))
        case Const():
            out.append(f"{e.dtype} {e.value!r}")  # repr keeps -0.0 apart from 0.0
        case Binary():
            out.append(f"{e.op} {e.dtype} {e.lanes}")
        case Call():
            out.append(f"{e.name} {e.dtype} {e.lanes}")
        case Load():
            out.append(f"Load {number(e.source)} {e.predicate is not None}")
        case _:
            out.append(f"{type(e).__name__} {e.dtype} {e.lanes}")
    for part in operands(e):
        _expression(part, number, out)
