"""A kernel cut into its phases and workspaces, as codegen.abi has them."""

from __future__ import annotations

from dataclasses import dataclass

from renorm.expr import rewrite
from renorm.expr.nodes import Expr, OpenVar, Var
from renorm.tir.nodes import Allocate, Buffer, For, Kernel, Let, Produce, Seq, Stmt, constant, seq, walk


@dataclass(frozen=True)
class Phase:
    """One phase of a kernel: a parallel loop at its root, or statements that one thread runs.

    extent: of the loop, an expression of the kernel's open extents where they have a say. lets: scalars bound around
    it, outermost first. They read no memory, so that each phase can compute them anew.
    """

    extent: int | Expr
    body: For | Stmt
    lets: tuple[tuple[Var, Expr], ...] = ()

    @property
    def loop(self) -> For | None:
        """The parallel loop, or None for a serial phase."""
        return self.body if isinstance(self.body, For) and self.body.kind == "parallel" else None


def cut(kernel: Kernel) -> tuple[tuple[Phase, ...], tuple[Buffer, ...]]:
    """The phases of a kernel and the buffers that need workspaces, both in program order."""
    phases: list[Phase] = []
    workspaces: list[Buffer] = []
    serial: list[Stmt] = []
    lets: list[tuple[Var, Expr]] = []

    def close_serial() -> None:
        if serial:
            phases.append(Phase(1, seq(serial), tuple(lets)))
            serial.clear()

    def visit(s: Stmt) -> None:
        match s:
            case Seq():
                for part in s.stmts:
                    visit(part)
            case Produce():
                visit(s.body)
            case Allocate() if s.buffer.scope == "global":
                workspaces.append(s.buffer)
                visit(s.body)
            case Let() if not rewrite.loads(s.value) and any(_is_phase(x) for x in walk(s.body)):
                close_serial()
                lets.append((s.var, s.value))
                visit(s.body)
                close_serial()
                lets.pop()
            case For() if _is_phase(s):
                close_serial()
                extent = constant(s.extent)
                phases.append(Phase(s.extent if extent is None else extent, s, tuple(lets)))
            case _:
                serial.append(s)

    visit(kernel.body)
    close_serial()
    return tuple(p for p in phases if isinstance(p.extent, Expr) or p.extent > 0), tuple(workspaces)


def _is_phase(s: Stmt) -> bool:
    """Return whether a statement is a parallel loop whose extent is known before the kernel runs."""
    if not isinstance(s, For) or s.kind != "parallel":
        return False
    return all(isinstance(v, OpenVar) and v.low is not None for v in rewrite.variables(s.extent))
