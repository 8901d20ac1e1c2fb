"""CUDA C from the loops that the LLVM generator reads too. Needs neither CUDA nor a GPU: the result is text.

nest at the root                   a __global__ function, a launch of its own; each sees what the last one wrote
blockIdx.*, threadIdx.* loop       the CUDA variable of that name; the launch has the largest extent of each axis
allocate at the root               a parameter of every launch that touches it: memory that the caller provides
shared, local, register allocate   a __shared__ array, an array of a thread; where the former take more than a block
                                   has without asking, parts of one array that the launch asks for
barrier                            __syncthreads(), behind __pipeline_wait_prior(0) where copies may be on their way
store to memory of scope staged    __pipeline_memcpy_async where that copies 4, 8 or 16 bytes (cp.async)
vectorized loop                    accesses of up to 16 bytes where memory lies so (vectors.py), else unrolled
tensorized loops                   instructions of tensor cores where warps can run them so (tensor_cores.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from renorm.codegen.cuda import tensor_cores, vectors
from renorm.codegen.cuda.expressions import TYPES, Expressions
from renorm.codegen.cuda.vectors import Run, Runs
from renorm.core.dtypes import itemsize
from renorm.core.errors import InternalError, InvalidLoops
from renorm.core.gpu import facts
from renorm.core.spans import Span, is_finite
from renorm.core.target import Target
from renorm.expr.bounds import interval
from renorm.expr.nodes import Call, Const, Expr, Load, Var
from renorm.expr.rewrite import depends_on, loads
from renorm.tir.nodes import (
    BLOCK_AXES,
    STAGED,
    THREAD_AXES,
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
    constant,
    expressions,
)
from renorm.tir.nodes import walk as walk_stmt
from renorm.tir.verify import verify
from renorm.tir.verify_gpu import shared_places

_HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}

SHARED = "renorm_shared"  # all of the shared memory that a launch asks for
STATIC = facts("").static
LEAST_COPY = 4  # bytes that go to shared memory on their own
_WIDE = {2: "short", 4: "int", 8: "int2", 16: "int4"}  # by the bytes of an access


@dataclass(frozen=True)
class Launch:
    """One __global__ function. grid, block: extents x, y, z. params: buffers in the order of its parameters, of which
    some are read and some written."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: tuple[Buffer, ...]
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()
    shared: int = 0  # bytes that the launch asks for


@dataclass(frozen=True)
class CudaKernel:
    """A kernel as CUDA C. workspace: root-level buffers that the caller must provide beside the kernel's parameters."""

    name: str
    source: str
    launches: tuple[Launch, ...]
    workspace: tuple[Buffer, ...]
    arch: str


def generate(kernel: Kernel, target: Target) -> CudaKernel:
    """The CUDA C of a kernel. Raises InvalidLoops where a stage is bound to no thread, or a launch is larger than a
    GPU takes.
    """
    verify(kernel, target)
    workspace, nests = _roots(kernel.body)
    launches: list[Launch] = []
    functions: list[str] = []
    needed: dict[str, str] = {}
    stem = "".join(c if c.isalnum() else "_" for c in kernel.name)
    for i, nest in enumerate(nests):
        name = f"{stem}_kernel{i}"  # never `main`, which C keeps for itself
        emitter = _Function(name, nest, [*kernel.params, *workspace], target.arch)
        functions.append(emitter.text)
        needed.update(emitter.needed)
        launches.append(emitter.launch)
    touched = {b.dtype for n in nests for s in walk_stmt(n) for b in _buffers(s)}
    headers = [f"#include <{_HEADERS[d]}>" for d in sorted(touched & set(_HEADERS))]
    if any("__pipeline" in f for f in functions):
        headers.append("#include <cuda_pipeline_primitives.h>")
    own = [needed[k] for k in sorted(needed)]
    source = "\n\n".join(part for part in ("\n".join(headers), "\n".join(own), *functions) if part) + "\n"
    return CudaKernel(kernel.name, source, tuple(launches), tuple(workspace), target.arch)


def _roots(s: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """Global buffers allocated at the root, and the statements that are launches."""
    match s:
        case Allocate() if s.buffer.scope == "global":
            buffers, nests = _roots(s.body)
            return [s.buffer, *buffers], nests
        case Seq():
            parts = [_roots(c) for c in s.stmts]
            return [b for bs, _ in parts for b in bs], [n for _, ns in parts for n in ns]
        case Produce():
            return _roots(s.body) if isinstance(s.body, (Seq, Allocate, Produce)) else ([], [s.body])
        case _:
            return [], [s]


def _buffers(s: Stmt) -> Iterator[Buffer]:
    if isinstance(s, Store):
        yield s.buffer
    for e in expressions(s):
        for load in loads(e):
            assert isinstance(load.source, Buffer)
            yield load.source


class _Function(Expressions):
    """One __global__ function."""

    def __init__(self, name: str, nest: Stmt, known: list[Buffer], arch: str):
        used = list(dict.fromkeys(b for s in walk_stmt(nest) for b in _buffers(s)))
        # beyond the last element there may be those of a block
        super().__init__(is_long=any((b.nbytes or 0) // itemsize(b.dtype) > 1 << 30 for b in used))
        self._arch = arch
        self._threads = {axis: list[Var]() for axis in THREAD_AXES}
        self._varying = set[Var]()  # what is not the same in all threads
        self._diverging = 0  # conditions and loops around, which some threads may not enter
        self._lines: list[str] = []
        self._extents = dict[str, int]()  # of the axes that it has
        written = {s.buffer for s in walk_stmt(nest) if isinstance(s, Store)}
        read = {load.source for s in walk_stmt(nest) for e in expressions(s) for load in loads(e)}
        params = tuple(b for b in known if b in used)
        shown = [
            f"{'' if b in written else 'const '}{TYPES[b.dtype]}* "
            # what a thread reads that another one wrote before a barrier must not be taken to be nobody else's: the
            # compiler would read it before the barrier
            f"{'' if b in written and b in read else '__restrict__ '}{self._name(b, b.name)}"
            for b in params
        ]
        self._copies = facts(arch).copies and any(b.scope == STAGED for b in used)
        self._places = self._shared_places(nest)
        if self._asked:
            self._line(1, f"extern __shared__ __align__(16) unsigned char {SHARED}[];")
        self._statement(nest, 1)
        grid_x, grid_y, grid_z = (self._extents.get(a, 1) for a in BLOCK_AXES)
        x, y, z = (self._extents.get(a, 1) for a in THREAD_AXES)
        reads, writes = (tuple(b for b in params if b in those) for those in (read, written))
        self.launch = Launch(name, (grid_x, grid_y, grid_z), (x, y, z), params, reads, writes, self._asked)
        threads = x * y * z
        head = f'extern "C" __global__ void __launch_bounds__({threads}) {name}({", ".join(shown)}) {{'
        self.text = "\n".join([head, *self._lines, "}"])

    def _line(self, depth: int, text: str) -> None:
        self._lines.append("  " * depth + text)

    def _statement(self, s: Stmt, depth: int) -> None:
        match s:
            case Seq():
                for c in s.stmts:
                    self._statement(c, depth)
            case Produce():
                self._statement(s.body, depth)
            case Allocate():
                self._allocate(s.buffer, depth)
                self._statement(s.body, depth)
            case Let():
                name = self._name(s.var, s.var.name)
                kind = self._index if s.var.dtype == "int32" else TYPES[s.var.dtype]
                self._line(depth, f"const {kind} {name} = {self._expr(s.value)};")
                self._know(s.var, interval(s.value, self._bounds))
                if self._varies(s.value):
                    self._varying.add(s.var)
                self._statement(s.body, depth)
            case If():
                self._line(depth, f"if ({self._expr(s.condition)}) {{")
                varies = self._varies(s.condition)
                self._diverging += varies
                self._statement(s.then, depth + 1)
                if s.otherwise is not None:
                    self._line(depth, "} else {")
                    self._statement(s.otherwise, depth + 1)
                self._diverging -= varies
                self._line(depth, "}")
            case For():
                self._loop(s, depth)
            case Store():
                self._store(s, depth)
            case Barrier():
                if self._copies:
                    self._line(depth, "__pipeline_commit();")
                    self._line(depth, "__pipeline_wait_prior(0);")
                self._line(depth, "__syncthreads();")
            case Prefetch():
                pass  # while a block waits for memory, another one computes
            case _:
                raise InternalError(f"CUDA C has no form for {type(s).__name__}")

    def _shared_places(self, nest: Stmt) -> dict[Buffer, int]:
        """Where shared arrays lie in the memory that the launch asks for; none where a block has enough without."""
        places, total = shared_places(nest)
        self._asked = total if total > STATIC else 0
        return places if self._asked else {}

    def _allocate(self, b: Buffer, depth: int) -> None:
        kind, name = TYPES[b.dtype], self._name(b, b.name)
        if b in self._places:
            self._line(depth, f"{kind}* const {name} = ({kind}*)({SHARED} + {self._places[b]});")
        else:
            scope = "__shared__ __align__(16) " if b.is_shared else ""
            self._line(depth, f"{scope}{kind} {name}[{b.size}];")

    def _know(self, var: Var, span: Span) -> None:
        """Keeps the range of a variable, where it has one."""
        if is_finite(span):
            self._bounds[var] = int(span[0]), int(span[1])

    def _loop(self, s: For, depth: int) -> None:
        start, extent = constant(s.start), constant(s.extent)
        if s.kind in BLOCK_AXES + THREAD_AXES:
            if extent is None or start != 0:
                raise InvalidLoops(
                    f"loop {s.var.name} over {s.kind} has extent {s.extent}, which must be a constant from 0"
                )
            self._bounds[s.var] = (0, extent - 1)
            name = self._name(s.var, s.var.name)
            if self._extents.setdefault(s.kind, extent) != extent:  # all threads would run the smaller one
                raise InvalidLoops(f"{s.kind} has extents {self._extents[s.kind]} and {extent} in one launch")
            self._line(depth, f"{{ const {self._index} {name} = {s.kind};")
            if s.kind in THREAD_AXES:
                self._threads[s.kind].append(s.var)
                self._varying.add(s.var)
            self._statement(s.body, depth + 1)
            self._line(depth, "}")
            if s.kind in THREAD_AXES:
                self._threads[s.kind].remove(s.var)
            return
        if s.kind == "tensorized" and (product := self._product(s)):
            self._multiply(product, depth)
            return
        if s.kind == "vectorized" and (found := vectors.runs(s)):
            if not self._copy_vector(s, found, depth):
                self._know(s.var, (0, found.extent - 1))
                self._vector(s, found, depth)
            return
        first, end = interval(s.start, self._bounds), interval(s.start + s.extent, self._bounds)
        self._know(s.var, (first[0], end[1] - 1))
        name = self._name(s.var, s.var.name)
        begin, end = self._expr(s.start), self._expr(s.start + s.extent)
        if s.kind in ("unrolled", "vectorized", "tensorized"):
            self._line(depth, "#pragma unroll")
        varies = self._varies(s.start, s.extent)
        if varies:
            self._varying.add(s.var)
        self._diverging += varies
        self._line(depth, f"for ({self._index} {name} = {begin}; {name} < {end}; ++{name}) {{")
        self._statement(s.body, depth + 1)
        self._line(depth, "}")
        self._diverging -= varies

    def _varies(self, *values: Expr) -> bool:
        """Return whether threads may have different values."""
        return any(bool(loads(e)) or any(depends_on(e, v) for v in self._varying) for e in values)

    # -- tensor cores

    def _product(self, s: For) -> tensor_cores.Product | None:
        """Return what all lanes of a warp do together for tensorized loops, where all of them come there."""
        if self._diverging:
            return None
        others = self._varying.difference(*self._threads.values())
        return tensor_cores.product(s, self._threads, self._extents, others, self._arch)

    def _multiply(self, product: tensor_cores.Product, depth: int) -> None:
        self._line(depth, "{")
        columns, *rows = (
            self._lane_terms(f, first, product.terms, depth + 1)
            for f in (product.columns, product.rows)
            for first in f.first
        )
        name = self._stored(tensor_cores.definition(product.dtype, self._arch))
        sums = [f"{self._name(product.held, product.held.name)}[{self._expr(i)}]" for i in product.sums]
        both = 2, 4 // itemsize(product.dtype)  # registers of a row or column, terms in each
        for k in range(0, product.terms, prod(both)):
            places = [k + i * both[1] for i in range(both[0])]
            registers = [f"*(const unsigned*)({x} + {p})" for p in places for x in rows]
            registers += [f"*(const unsigned*)({columns} + {p})" for p in places]
            self._line(depth + 1, f"{name}({', '.join([*sums, *registers])});")
        self._line(depth, "}")

    def _lane_terms(self, factor: tensor_cores.Factor, first: Expr, terms: int, depth: int) -> str:
        """Load a lane's terms of a row or column; return where they are."""
        run = vectors.run(factor.buffer, first, factor.term, terms)
        name = self._registers(factor.buffer, terms, depth)
        if run is not None:
            self._copy(run, terms, name, depth, to_memory=False)
            return name
        k = self._name(factor.term, factor.term.name)
        self._line(depth, "#pragma unroll")
        source = f"{self._name(factor.buffer, factor.buffer.name)}[{self._expr(first)}]"
        self._line(depth, f"for (int {k} = 0; {k} < {terms}; ++{k}) {name}[{k}] = {source};")
        return name

    def _vector(self, s: For, found: Runs, depth: int) -> None:
        """The rounds of a loop between accesses to whole runs of memory."""
        lane = self._name(s.var, s.var.name)
        self._line(depth, "{")
        held = dict(self._held)
        for which, run in found.loads.items():
            name = self._registers(run.buffer, found.extent, depth + 1)
            self._copy(run, found.extent, name, depth + 1, to_memory=False)
            self._held[which] = f"{name}[{lane}]"
        out = self._registers(found.written.buffer, found.extent, depth + 1) if found.written else ""
        self._line(depth + 1, "#pragma unroll")
        self._line(depth + 1, f"for (int {lane} = 0; {lane} < {found.extent}; ++{lane}) {{")
        target = f"{out}[{lane}]" if out else f"{self._name(found.store.buffer, '')}[{self._expr(found.store.index)}]"
        self._line(depth + 2, f"{target} = {self._narrowed(found.store)};")
        self._line(depth + 1, "}")
        if found.written:
            self._copy(found.written, found.extent, out, depth + 1, to_memory=True)
        self._held = held
        self._line(depth, "}")

    def _registers(self, buffer: Buffer, extent: int, depth: int) -> str:
        """Declare registers for a run of a buffer."""
        name = self._fresh(f"{buffer.name}_run")
        self._line(depth, f"alignas(16) {TYPES[buffer.dtype]} {name}[{extent}];")
        return name

    def _copy(self, run: Run, extent: int, name: str, depth: int, to_memory: bool) -> None:
        kind = _WIDE[run.piece * itemsize(run.buffer.dtype)]
        for i in range(0, extent, run.piece):
            there = f"{self._name(run.buffer, run.buffer.name)} + ({self._expr(run.base)}){f' + {i}' if i else ''}"
            here = f"{name} + {i}" if i else name
            if to_memory:
                self._line(depth, f"*({kind}*)({there}) = *({kind}*)({here});")
            else:
                self._line(depth, f"*({kind}*)({here}) = *(const {kind}*)({there});")

    # -- copies that are on their way until the next barrier

    def _copy_vector(self, s: For, found: Runs, depth: int) -> bool:
        """Have a vectorized loop be such copies, where it copies whole runs; return whether it does."""
        copied = self._copied(found.store)
        if copied is None or found.written is None or (copied[0] is not None and depends_on(copied[0], s.var)):
            return False
        source = vectors.run(found.written.buffer, copied[1].indices[0], s.var, found.extent)
        piece = 0 if source is None else min(source.piece, found.written.piece)
        if source is None or piece * itemsize(source.buffer.dtype) < LEAST_COPY:
            return False
        for i in range(0, found.extent, piece):
            self._copy_ahead(found.store.buffer, found.written.base + i, copied, source.base + i, piece, depth)
        return True

    def _copied(self, s: Store) -> tuple[Expr | None, Load] | None:
        """Return the condition on which a store to staged memory copies an element of global memory, and that; None
        where it does something else. Without the condition it stores a zero."""
        condition, value = None, s.value
        match value:
            case Call(name="if_then_else", args=(first, second, Const(value=0))):
                condition, value = first, second
            case _:
                pass
        if not self._copies or s.buffer.scope != STAGED or s.predicate is not None or not isinstance(value, Load):
            return None
        b = value.source
        is_plain = isinstance(b, Buffer) and b.scope == "global" and b.dtype == s.buffer.dtype
        return (condition, value) if is_plain and value.predicate is None else None

    def _copy_ahead(
        self, to: Buffer, index: Expr, copied: tuple[Expr | None, Load], first: Expr, count: int, depth: int
    ) -> None:
        condition, source = copied[0], copied[1].source
        assert isinstance(source, Buffer)
        there = f"{self._name(to, to.name)} + ({self._expr(index)})"
        here, size = f"{self._name(source, source.name)} + ({self._expr(first)})", count * itemsize(to.dtype)
        text = f"__pipeline_memcpy_async({there}, {here}, {size});"
        if condition is not None:
            text = f"if ({self._expr(condition)}) {text} else *({_WIDE[size]}*)({there}) = {{}};"
        self._line(depth, text)

    def _store(self, s: Store, depth: int) -> None:
        copied = self._copied(s) if itemsize(s.buffer.dtype) >= LEAST_COPY else None
        if copied is not None:
            self._copy_ahead(s.buffer, s.index, copied, copied[1].indices[0], 1, depth)
            return
        text = f"{self._name(s.buffer, s.buffer.name)}[{self._place(s.index)}] = {self._narrowed(s)};"
        self._line(depth, text if s.predicate is None else f"if ({self._expr(s.predicate)}) {text}")
