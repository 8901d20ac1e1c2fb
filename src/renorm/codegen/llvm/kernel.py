"""Loop programs to LLVM modules: one function for each phase of a kernel (see codegen.abi)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from renorm.codegen.llvm import types
from renorm.codegen.llvm.dots import Dots
from renorm.codegen.llvm.expressions import Expressions
from renorm.codegen.llvm.matrices import Matrices
from renorm.codegen.llvm.memory import NONTEMPORAL, Storage
from renorm.codegen.llvm.ssa import I64, PTR, Function, Value, constant
from renorm.codegen.llvm.subtarget import subtarget
from renorm.codegen.llvm.turned import Turns
from renorm.codegen.phases import Phase
from renorm.core import dots, dtypes
from renorm.core.errors import InternalError, InvalidLoops
from renorm.core.target import Target
from renorm.expr import rewrite
from renorm.expr.linear import INDEX_TYPES
from renorm.expr.nodes import Cast, Expr, Load, Var, as_expr
from renorm.runtime.program import ALIGNMENT, align
from renorm.tir import rounds
from renorm.tir.nodes import (
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Produce,
    Seq,
    Stmt,
    Store,
    children,
    expressions,
    walk,
)

STACK_BYTES = 4096  # a larger buffer inside a phase lives in scratch


def module(
    kernel: Kernel, target: Target, phases: Sequence[Phase], workspaces: Sequence[Buffer]
) -> tuple[str, int | Expr]:
    """The LLVM IR of a prepared kernel (tir.passes), and the bytes of scratch that each thread needs. No name of the
    kernel is in it, so that equal programs give equal text.
    """
    scratch, stride = _scratch_offsets(phases)
    functions: list[str] = []
    tables: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for k, phase in enumerate(phases):
        emitter = _PhaseEmitter(k, kernel, target, (*kernel.params, *workspaces), scratch, stride)
        functions.append(emitter.emit(phase))
        tables.update(emitter.f.tables)
        metadata.update(emitter.f.metadata)
    attributes = ["nounwind", '"no-builtins"', '"no-jump-tables"="true"', f'"tune-cpu"="{subtarget(target).tuned}"']
    if target.vector_bytes == 64:  # else LLVM would prefer half of the register
        attributes += ['"prefer-vector-width"="512"', '"min-legal-vector-width"="512"']
    tail = f"attributes #0 = {{ {' '.join(attributes)} }}\n!0 = !{{}}\n!{NONTEMPORAL} = !{{i32 1}}\n"
    return "\n\n".join([*tables.values(), *functions, tail + "\n".join(metadata.values())]), stride


def _on_stack(buffer: Buffer) -> bool:
    return buffer.nbytes is not None and buffer.nbytes <= STACK_BYTES


def _scratch_offsets(phases: Sequence[Phase]) -> tuple[dict[Buffer, int | Expr], int | Expr]:
    """Return where in scratch each large buffer of a phase lives, and where scratch ends. Buffers that are not alive
    together share; those whose size is open lie after the others, and share with none."""
    offsets: dict[Buffer, int | Expr] = {}
    of_open_size: list[Buffer] = []
    end = 0

    def visit(s: Stmt, used: int) -> None:
        nonlocal end
        if isinstance(s, Allocate) and not _on_stack(s.buffer):
            if s.buffer.nbytes is None:
                of_open_size.append(s.buffer)
            else:
                offsets[s.buffer] = used
                used += align(s.buffer.nbytes)
                end = max(end, used)
        for part in children(s):
            visit(part, used)

    for phase in phases:
        visit(phase.body, 0)
    total: int | Expr = end
    for buffer in dict.fromkeys(of_open_size):
        offsets[buffer] = total
        total = total + _aligned_bytes(buffer)
    return offsets, total


def _aligned_bytes(buffer: Buffer) -> Expr:
    """Return the bytes of a buffer of open size, up to a multiple of ALIGNMENT."""
    nbytes = buffer.size * dtypes.itemsize(buffer.dtype)
    return as_expr((nbytes + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)


class _PhaseEmitter:
    """Emits the function of phase `number`. arguments: the buffers that `args` points to, in order."""

    def __init__(
        self,
        number: int,
        kernel: Kernel,
        target: Target,
        arguments: Sequence[Buffer],
        scratch: dict[Buffer, int | Expr],
        stride: int | Expr,
    ):
        parameters = ["ptr noalias readonly %args", "i64 %lo", "i64 %hi", "i64 %thread"]
        self.f = Function(f"phase{number}", parameters, "#0", target.vector_bytes == 64)
        self._kernel = kernel
        self.x = Expressions(self.f, propagates=target.machine == "aarch64")
        self._vector_bytes = target.vector_bytes
        self._matrices = Matrices(self.f, self.x) if target.has_tiles else None
        self._dots = Dots(self.f, self.x, [dot for dot in dots.ALL if target.has_dot(dot)])
        self._turns = Turns(self.f, self.x)
        # scratch in bfloat16 is there for matrix units, to which subnormal numbers are 0
        self._loses_subnormals = target.has_tiles and target.has_dot(dots.PAIRS)
        self._arguments = arguments
        self._scratch = scratch
        self._stride = stride
        self._stored: dict[int, frozenset[Buffer]] = {}

    def emit(self, phase: Phase) -> str:
        self._bind_arguments(phase)
        for var, value in phase.lets:
            self._bind(var, value)
        self._body(phase)
        if any(isinstance(s, Store) and s.nontemporal for s in walk(phase.body)):
            self.f.effect("fence seq_cst")  # such stores keep no order: other threads see them from here on
        if self._matrices is not None:
            self._matrices.release()
        return self.f.text()

    def _body(self, phase: Phase) -> None:
        loop = phase.loop
        if loop is None:
            self.statement(phase.body)
            return
        start = self.x.indices.linear(loop.start)
        low, high = Value("%lo", I64), Value("%hi", I64)
        with self.f.loop(low, high, at_least_once=False) as i:
            self._enter(loop.body)
            last = inf if isinstance(phase.extent, Expr) else phase.extent - 1
            self.x.indices.bindings[loop.var] = start + self.x.indices.form_of(i, (0, last))
            self.statement(loop.body)

    def _bind_arguments(self, phase: Phase) -> None:
        indices, count = self.x.indices, len(self._arguments)
        for k, v in enumerate(self._kernel.given, start=count):
            address = self.f.offset(Value("%args", PTR), "ptr", constant(I64, k))
            value = self.f.effect(f"load i64, ptr {address.text}, align 8, !invariant.load !0", I64)
            indices.bindings[v] = indices.form_of(value, v.span)
        for v in self._kernel.extents:
            if v.definition is not None:
                value = indices.value(indices.linear(v.definition))
                indices.bindings[v] = indices.form_of(value, v.span)
        used = _buffers(phase)
        for k, buffer in enumerate(self._arguments):
            if buffer in used:
                size = None if isinstance(buffer.size, Expr) else buffer.size
                self.x.memory.places[buffer] = Storage(self._argument(k), buffer.dtype, size, is_private=False)
        large = [buffer for buffer in self._scratch if buffer in used]
        if large:  # placed here, before all statements: copies of an unrolled loop's body share the memory
            base = self._argument(count + len(self._kernel.given))
            mine = self.f.op("mul", Value("%thread", I64), self._number(self._stride))
            base = self.f.offset(base, "i8", mine)
            for buffer in large:
                pointer = self.f.offset(base, "i8", self._number(self._scratch[buffer]))
                size = None if isinstance(buffer.size, Expr) else buffer.size
                place = Storage(pointer, buffer.dtype, size, False, self._loses_subnormals)
                self.x.memory.places[buffer] = place

    def _number(self, size: int | Expr) -> Value:
        if isinstance(size, Expr):
            return self.x.indices.value(self.x.indices.linear(size))
        return constant(I64, size)

    def _argument(self, k: int) -> Value:
        address = self.f.offset(Value("%args", PTR), "ptr", constant(I64, k))
        return self.f.effect(f"load ptr, ptr {address.text}, align 8, !invariant.load !0", PTR)

    # statements ------------------------------------------------------------------------------------------------------

    def statement(self, s: Stmt) -> None:
        match s:
            case Seq():
                for part in s.stmts:
                    self.statement(part)
            case Produce():
                self.statement(s.body)
            case Store():
                self._store(s)
            case Prefetch():
                self.x.memory.prefetch(self.x.memory.places[s.buffer], s.index)
            case For():
                self._for(s)
            case If():
                self._if(s)
            case Let():
                self._bind(s.var, s.value)
                self.statement(s.body)
            case Allocate():
                self._allocate(s)
            case Barrier():
                raise InvalidLoops(
                    f"kernel {self._kernel.name}: a barrier between threads of a block, which a CPU does not have",
                    do='use target="cuda"',
                )
            case _:
                raise InternalError(f"no code for the statement {type(s).__name__}")

    def _store(self, s: Store) -> None:
        x = self.x
        x.renew()
        place = x.memory.places.get(s.buffer)
        if place is None:
            raise InternalError(f"store to {s.buffer.name}, which is neither a parameter nor allocated")
        mask = None if s.predicate is None else self.f.splat(x.value(s.predicate), s.index.lanes)
        if mask is not None and mask.number is not None and not mask.number:
            return
        value = s.value
        is_stored_narrow = place.dtype in ("float16", "bfloat16")
        if is_stored_narrow and isinstance(value, Cast) and value.dtype == place.dtype and value.a.dtype == "float32":
            value = value.a  # to store is to round
        x.memory.store(place, s.index, x.value(value), mask, s.nontemporal)

    def _bind(self, var: Var, value: Expr) -> None:
        self.x.renew()
        if var.lanes == 1 and var.dtype in INDEX_TYPES:
            self.x.indices.bindings[var] = self.x.indices.linear(value)
        else:
            self.x.lets[var] = self.f.splat(self.x.value(value), var.lanes)

    def _for(self, s: For) -> None:
        if s.kind.startswith(("blockIdx", "threadIdx")):
            raise InvalidLoops(
                f"kernel {self._kernel.name}: loop {s.var.name} is bound to {s.kind}, which a CPU does not have",
                do='use target="cuda", or a schedule without bind',
            )
        units = (self._matrices, self._dots, self._turns) if s.kind == "tensorized" else ()
        if any(unit is not None and unit.emit(s) for unit in units):
            return
        indices = self.x.indices
        start, extent = indices.linear(s.start), indices.linear(s.extent)
        if extent.number is not None and extent.number <= 0:
            return
        entered = indices.form_span(extent)[0] > 0
        end = start + extent
        bounds = indices.form_span(start)[0], indices.form_span(end.offset(-1))[1]
        several = rounds.written_out(s, self._vector_bytes)
        with self.f.loop(indices.value(start), indices.value(end), entered, several) as i:
            self._enter(s.body)
            indices.bindings[s.var] = indices.form_of(i, bounds)
            self.statement(s.body)
        self.x.memory.forget(self._stored_in(s.body))

    def _enter(self, body: Stmt) -> None:
        """At the head of a loop: what its body stores may have changed since before."""
        self.x.renew()
        self.x.memory.enter(self._stored_in(body))

    def _stored_in(self, body: Stmt) -> list[Storage]:
        key = id(body)
        if key not in self._stored:
            self._stored[key] = frozenset(s.buffer for s in walk(body) if isinstance(s, Store))
        places = self.x.memory.places
        return [places[b] for b in self._stored[key] if b in places]

    def _if(self, s: If) -> None:
        self.x.renew()
        condition = self.x.value(s.condition)
        if condition.number is not None:
            chosen = s.then if condition.number else s.otherwise
            if chosen is not None:
                self.statement(chosen)
            return
        with self.f.branch(condition) as branch:
            self.statement(s.then)
        if s.otherwise is not None:
            with self.f.otherwise(branch):
                self.statement(s.otherwise)

    def _allocate(self, s: Allocate) -> None:
        buffer, places = s.buffer, self.x.memory.places
        if buffer.scope == "tile" and self._matrices is not None and self._matrices.begin(s):
            self.statement(s.body)
            return
        if buffer not in places:  # else in scratch, or a copy of an unrolled loop's body: nothing is known about it yet
            assert not isinstance(buffer.size, Expr)  # what is on the stack has bytes
            pointer = self.f.allocate(types.memory_type(buffer.dtype).element, max(1, buffer.size), ALIGNMENT)
            places[buffer] = Storage(pointer, buffer.dtype, buffer.size, True, self._loses_subnormals)
        self.x.memory.enter([places[buffer]])
        self.statement(s.body)


def _buffers(phase: Phase) -> set[object]:
    """Everything that a phase reads, writes or allocates."""
    used = set[object]()
    pending: list[Expr] = []
    for s in walk(phase.body):
        if isinstance(s, (Store, Allocate, Prefetch)):
            used.add(s.buffer)
        pending.extend(expressions(s))
    while pending:
        e = pending.pop()
        if isinstance(e, Load):
            used.add(e.source)
        pending.extend(rewrite.children(e))
    return used
