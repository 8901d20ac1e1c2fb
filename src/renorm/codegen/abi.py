"""How a compiled kernel is called: the contract between code generators and the runtime.

A kernel is cut at its root into phases. Each parallel loop at the root is one phase, whose extent is its trip count; a
run of other statements between them is one phase of extent 1. Phase k is the function

    void phase<k>(void **args, int64_t lo, int64_t hi, int64_t thread)

which runs the iterations [lo, hi) of its loop, counted from 0; iterations are independent, so threads may share them
out as they like. Phase k may begin when all that wrote what it reads, and all that read or wrote what it writes, is
done: `accesses` says which arguments those are. `args` holds one pointer per parameter in
order, then one per workspace (the global buffers that the kernel allocates at its root), then, where scratch > 0, the
base of the threads' private memory: the thread numbered t owns the `scratch` bytes at base + t * scratch.

A parameter or workspace that the kernel writes overlaps no other, but for the pairs in `in_place`: one array may be
passed as the parameter that is written and as one that is read. Parameters need the alignment of their elements only;
workspaces and the scratch base are aligned to ALIGNMENT bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from renorm.core import dtypes
from renorm.expr import rewrite
from renorm.expr.nodes import Expr, Var
from renorm.tir.nodes import Allocate, Buffer, For, Kernel, Let, Produce, Seq, Stmt, constant, seq, walk

ALIGNMENT = 64  # bytes: one cache line, and the widest vector register


@dataclass(frozen=True)
class Access:
    """What a phase does to the arguments (parameters, then workspaces), by their indices in order.

    nanoseconds: about how long one iteration takes (codegen.accesses).
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    nanoseconds: float


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel.

    name: the kernel's. object: a relocatable ELF file that defines phase0, phase1, ...; it has no undefined symbols
    and no writable data. phases: the extent of each; accesses: what each touches. in_place: pairs (written, read) of
    parameters that may be one array, see codegen.in_place. workspace: bytes of each workspace. scratch: bytes per
    thread, a multiple of ALIGNMENT. spills: how many instructions of hot loops move vector registers to or from the
    stack. llvm: the LLVM IR before optimisation. loops: the loop program it was made from, as text.
    """

    name: str
    object: bytes
    phases: tuple[int, ...]
    accesses: tuple[Access, ...]
    in_place: tuple[tuple[int, int], ...]
    workspace: tuple[int, ...]
    scratch: int
    spills: int
    llvm: str
    loops: str

    @property
    def nanoseconds(self) -> int:
        """About how long one thread takes for all phases."""
        return round(sum(extent * access.nanoseconds for extent, access in zip(self.phases, self.accesses)))


@dataclass(frozen=True)
class Phase:
    """One phase of a kernel: a parallel loop at its root, or statements that one thread runs.

    lets: scalars bound around it, outermost first. They read no memory, so that each phase can compute them anew.
    """

    extent: int
    body: For | Stmt
    lets: tuple[tuple[Var, Expr], ...] = ()

    @property
    def loop(self) -> For | None:
        """The parallel loop, or None for a serial phase."""
        return self.body if isinstance(self.body, For) and self.body.kind == "parallel" else None


def bytes_of(buffer: Buffer) -> int:
    return buffer.size * dtypes.itemsize(buffer.dtype)


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
                phases.append(Phase(constant(s.extent) or 0, s, tuple(lets)))
            case _:
                serial.append(s)

    visit(kernel.body)
    close_serial()
    return tuple(p for p in phases if p.extent > 0), tuple(workspaces)


def _is_phase(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == "parallel" and constant(s.extent) is not None
