"""CUDA C from the loops that the LLVM generator reads too. Needs neither CUDA nor a GPU: the result is text.

    nest at the root                   a __global__ function, a launch of its own; each sees what the last one wrote
    blockIdx.*, threadIdx.* loop       the CUDA variable of that name; the launch has the largest extent of each axis
    allocate at the root               a parameter of every launch that touches it: memory that the caller provides
    shared, local, register allocate   a __shared__ array, an array of a thread; where the former take more than a block
                                       has without asking, parts of one array that the launch asks for
    barrier                            __syncthreads()
    vectorized loop                    accesses of up to 16 bytes where memory lies so (vectors.py), else unrolled

float16 and bfloat16 are storage: they widen to float when loaded and round when stored. Elements of at most 8 bits that
are storage, too, stay bytes until they are cast (stored_types.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf, isnan

from renorm.codegen.cuda import stored_types, vectors
from renorm.codegen.cuda.vectors import Run, Runs
from renorm.core import dtypes
from renorm.core.dtypes import itemsize
from renorm.core.errors import InternalError, InvalidLoops
from renorm.core.gpu import facts
from renorm.core.spans import Span, is_finite
from renorm.core.target import Target
from renorm.expr.bounds import interval
from renorm.expr.nodes import (
    INTRINSICS,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
    integer_limits,
)
from renorm.expr.rewrite import loads
from renorm.tir.nodes import (
    BLOCK_AXES,
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

_TYPES = {
    "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "bool": "bool",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint64": "unsigned long long", "uint32": "unsigned int", "uint16": "unsigned short", "uint8": "unsigned char",
    **stored_types.TYPES,
}  # fmt: skip
_WIDEN = {"float16": "__half2float", "bfloat16": "__bfloat162float"}
_NARROW = {"float16": "__float2half_rn", "bfloat16": "__float2bfloat16_rn"}
_HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}

SHARED = "renorm_shared"  # all of the shared memory that a launch asks for
STATIC = facts("").static
_WIDE = {2: "short", 4: "int", 8: "int2", 16: "int4"}  # by the bytes of an access

# intrinsics whose C name differs from ours; float gets an `f` after it
_C_NAMES = {"abs": "fabs", "round": "rint"}
_BITCAST = {
    "int32": "__float_as_int",
    "int64": "__double_as_longlong",
    "float32": "__int_as_float",
    "float64": "__longlong_as_double",
}
_OWN = {
    "sigmoid": "{t} {name}({t} x) {{ return 1 / (1 + exp{f}(-x)); }}",
    "sign": "{t} {name}({t} x) {{ return x > 0 ? 1 : x < 0 ? -1 : x; }}",  # NaN and zeros as they are
    "min": "{t} {name}({t} a, {t} b) {{ return a != a || a < b ? a : b; }}",  # NaN propagates, as in NumPy
    "max": "{t} {name}({t} a, {t} b) {{ return a != a || a > b ? a : b; }}",
    # GPUs err by 2 units in the last place, which an integer power must not become another integer for
    "shift_left": "{t} {name}({t} a, {t} b) {{ "
    "return b < 0 || b >= (int)sizeof({t}) * 8 ? 0 : ({t})((unsigned long long)a << b); }}",
    "shift_right": "{t} {name}({t} a, {t} b) {{ "
    "return b < 0 || b >= (int)sizeof({t}) * 8 ? (a < 0 ? -1 : 0) : a >> b; }}",
    "pow": "{t} {name}({t} a, {t} b) {{ const {t} r = pow(a, b), n = rint(r); "
    "return fabs(r - n) <= 4.5e-16 * fabs(n) ? n : r; }}",
    "quotient": "{t} {name}({t} a, {t} b) {{ "  # -2**31 / -1 wraps
    "return b == 0 ? 0 : b < 0 && b == -1 ? ({t})(0ULL - (unsigned long long)a) : a / b; }}",
    "floordiv": "{t} {name}({t} a, {t} b) {{ "
    "if (b == 0) return 0; if (b < 0 && b == -1) return ({t})(0ULL - (unsigned long long)a); "
    "{t} q = a / b; return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }}",
    "floormod": "{t} {name}({t} a, {t} b) {{ "
    "if (b == 0 || (b < 0 && b == -1)) return 0; {t} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}",
}
# what no buffer or variable may be called: words of C++, and names that the text uses
_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const const_cast
    constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false float
    for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast return short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq renorm_shared threadIdx blockIdx blockDim gridDim int2 int4 isnan isinf fabs rint
    exp exp2 log log2 sqrt pow sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf floor ceil trunc round
    abs min max fabsf rintf NULL
"""
RESERVED = frozenset((*_WORDS.split(), *INTRINSICS, *(f"{name}f" for name in INTRINSICS)))
# a float as an integer: the nearest one of its type towards zero, 0 for NaN
_SATURATED = "{t} {name}({s} x) {{ return x != x ? 0 : x <= {below} ? {low} : x >= {above} ? {high} : ({t})x; }}"
_BITWISE = {"bitwise_and": " & ", "bitwise_or": " | ", "bitwise_xor": " ^ "}
_INFIX = frozenset({"+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=", "&&", "||"})


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
        emitter = _Function(name, nest, [*kernel.params, *workspace])
        functions.append(emitter.text)
        needed.update(emitter.needed)
        launches.append(emitter.launch)
    touched = {b.dtype for n in nests for s in walk_stmt(n) for b in _buffers(s)}
    headers = [f"#include <{_HEADERS[d]}>" for d in sorted(touched & set(_HEADERS))]
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


class _Function:
    """One __global__ function."""

    def __init__(self, name: str, nest: Stmt, known: list[Buffer]):
        self.needed: dict[str, str] = {}
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._taken = set(RESERVED)
        self._bounds: dict[Var, tuple[int, int]] = {}
        self._extents = dict[str, int]()  # of the axes that it has
        self._held: dict[object, str] = {}  # elements that are in registers
        used = list(dict.fromkeys(b for s in walk_stmt(nest) for b in _buffers(s)))
        written = {s.buffer for s in walk_stmt(nest) if isinstance(s, Store)}
        read = {load.source for s in walk_stmt(nest) for e in expressions(s) for load in loads(e)}
        # beyond the last element there may be those of a block
        is_long = any((b.nbytes or 0) // itemsize(b.dtype) > 1 << 30 for b in used)
        self._index = "long long" if is_long else "int"  # of indices; what is reckoned with them is as wide
        params = tuple(b for b in known if b in used)
        shown = [
            f"{'' if b in written else 'const '}{_TYPES[b.dtype]}* "
            # what a thread reads that another one wrote before a barrier must not be taken to be nobody else's: the
            # compiler would read it before the barrier
            f"{'' if b in written and b in read else '__restrict__ '}{self._name(b, b.name)}"
            for b in params
        ]
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

    def _name(self, what: object, hint: str) -> str:
        if id(what) not in self._names:
            self._names[id(what)] = self._fresh(hint)
        return self._names[id(what)]

    def _fresh(self, hint: str) -> str:
        base = "".join(c if c.isalnum() else "_" for c in hint).lstrip("0123456789") or "v"
        base = f"v_{base}" if base.startswith(("__", "renorm_")) else base  # the language's, and those of the text
        name, n = base, 0
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._taken.add(name)
        return name

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
                kind = self._index if s.var.dtype == "int32" else _TYPES[s.var.dtype]
                self._line(depth, f"const {kind} {name} = {self._expr(s.value)};")
                self._know(s.var, interval(s.value, self._bounds))
                self._statement(s.body, depth)
            case If():
                self._line(depth, f"if ({self._expr(s.condition)}) {{")
                self._statement(s.then, depth + 1)
                if s.otherwise is not None:
                    self._line(depth, "} else {")
                    self._statement(s.otherwise, depth + 1)
                self._line(depth, "}")
            case For():
                self._loop(s, depth)
            case Store():
                self._store(s, depth)
            case Barrier():
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
        kind, name = _TYPES[b.dtype], self._name(b, b.name)
        if b in self._places:
            self._line(depth, f"{kind}* const {name} = ({kind}*)({SHARED} + {self._places[b]});")
        else:
            scope = "__shared__ __align__(16) " if b.scope == "shared" else ""
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
            self._statement(s.body, depth + 1)
            self._line(depth, "}")
            return
        if s.kind == "vectorized" and (found := vectors.runs(s)):
            self._know(s.var, (0, found.extent - 1))
            self._vector(s, found, depth)
            return
        first, end = interval(s.start, self._bounds), interval(s.start + s.extent, self._bounds)
        self._know(s.var, (first[0], end[1] - 1))
        name = self._name(s.var, s.var.name)
        begin, end = self._expr(s.start), self._expr(s.start + s.extent)
        if s.kind in ("unrolled", "vectorized"):
            self._line(depth, "#pragma unroll")
        self._line(depth, f"for ({self._index} {name} = {begin}; {name} < {end}; ++{name}) {{")
        self._statement(s.body, depth + 1)
        self._line(depth, "}")

    def _vector(self, s: For, found: Runs, depth: int) -> None:
        """The rounds of a loop between accesses to whole runs of memory."""
        lane = self._name(s.var, s.var.name)
        self._line(depth, "{")
        held = dict(self._held)
        for which, run in found.loads.items():
            name = self._run(run, found.extent, depth + 1)
            self._copy(run, found.extent, name, depth + 1, to_memory=False)
            self._held[which] = f"{name}[{lane}]"
        out = self._run(found.written, found.extent, depth + 1) if found.written else ""
        self._line(depth + 1, "#pragma unroll")
        self._line(depth + 1, f"for (int {lane} = 0; {lane} < {found.extent}; ++{lane}) {{")
        target = f"{out}[{lane}]" if out else f"{self._name(found.store.buffer, '')}[{self._expr(found.store.index)}]"
        self._line(depth + 2, f"{target} = {self._narrowed(found.store)};")
        self._line(depth + 1, "}")
        if found.written:
            self._copy(found.written, found.extent, out, depth + 1, to_memory=True)
        self._held = held
        self._line(depth, "}")

    def _run(self, run: Run, extent: int, depth: int) -> str:
        """Declare registers for a run."""
        name = self._fresh(f"{run.buffer.name}_run")
        self._line(depth, f"alignas(16) {_TYPES[run.buffer.dtype]} {name}[{extent}];")
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

    def _narrowed(self, s: Store) -> str:
        value = self._expr(s.value)
        return f"{_NARROW[s.buffer.dtype]}({value})" if s.buffer.dtype in _NARROW else value

    def _store(self, s: Store, depth: int) -> None:
        text = f"{self._name(s.buffer, s.buffer.name)}[{self._expr(s.index)}] = {self._narrowed(s)};"
        self._line(depth, text if s.predicate is None else f"if ({self._expr(s.predicate)}) {text}")

    def _expr(self, e: Expr) -> str:
        match e:
            case Var():
                return self._name(e, e.name)
            case Const():
                return _constant(e)
            case Binary():
                return self._binary(e)
            case Not():
                return f"(!{self._expr(e.a)})"
            case Select():
                return f"({self._expr(e.condition)} ? {self._expr(e.then)} : {self._expr(e.otherwise)})"
            case Cast():
                return self._cast(e)
            case Call():
                return self._call(e)
            case Load():
                assert isinstance(e.source, Buffer)
                text = self._held.get(vectors.of_load(e)) if self._held else None
                text = text or f"{self._name(e.source, e.source.name)}[{self._expr(e.indices[0])}]"
                text = f"{_WIDEN[e.dtype]}({text})" if e.dtype in _WIDEN else text
                return text if e.predicate is None else f"({self._expr(e.predicate)} ? {text} : 0)"
            case Broadcast():
                return self._expr(e.value)
            case _:
                raise InternalError(f"CUDA C has no form for the expression {e}")

    def _own(self, name: str, dtype: str) -> str:
        """The name of a device function of ours, which is then defined in the source."""
        kind = _register(dtype)
        kind = "int64" if kind == "int32" and self._index != "int" else kind
        full = name if kind == "float32" else f"{name}_{kind}"
        values = {"t": _TYPES[kind], "f": "f" if kind == "float32" else "", "name": f"renorm_{full}"}
        self.needed[full] = "static __device__ __forceinline__ " + _OWN[name].format(**values)
        return f"renorm_{full}"

    def _binary(self, e: Binary) -> str:
        a, b = self._expr(e.a), self._expr(e.b)
        is_float = _register(e.a.dtype) in ("float32", "float64")
        match e.op:
            case "//" | "%":
                if interval(e.a, self._bounds)[0] >= 0 and interval(e.b, self._bounds)[0] > 0:
                    return f"({a} {'/' if e.op == '//' else '%'} {b})"  # C truncates, which is the same for these
                return f"{self._own('floordiv' if e.op == '//' else 'floormod', e.dtype)}({a}, {b})"
            case "/" if not is_float and interval(e.b, self._bounds)[0] <= 0:
                return f"{self._own('quotient', e.dtype)}({a}, {b})"
            case "min" | "max":
                return f"{self._own(e.op, e.dtype)}({a}, {b})"
            case "pow" if is_float:
                return (
                    f"powf({a}, {b})" if _register(e.dtype) == "float32" else f"{self._own('pow', e.dtype)}({a}, {b})"
                )
            case "pow":
                return self._integer_power(e)
            case "&&" | "||" as op if not loads(e):  # both sides cost less than a branch
                return f"({a} {op[0]} {b})"
            case op if op in _INFIX:
                return f"({a} {op} {b})"
            case _:
                raise InternalError(f"CUDA C has no operator {e.op!r}")

    def _integer_power(self, e: Binary) -> str:
        exponent = constant(e.b)
        if exponent is None or exponent < 0:
            raise InvalidLoops(f"integer power {e} needs a constant exponent that is not negative")
        return "(" + " * ".join([self._expr(e.a)] * exponent) + ")" if exponent else "1"

    def _cast(self, e: Cast) -> str:
        text, source = self._expr(e.a), e.a.dtype
        if dtypes.is_stored(source):
            text, source = f"{self._stored(stored_types.decoder(source))}({text})", dtypes.compute_dtype(source)
        if dtypes.is_stored(e.dtype):
            is_float = dtypes.is_float(e.dtype)
            if is_float and source == "float64":
                text = f"{self._stored(stored_types.odd())}({text})"
            text = self._as(text, source, "float32" if is_float else "int32")
            return f"{self._stored(stored_types.encoder(e.dtype))}({text})"
        return self._as(text, source, e.dtype)

    def _stored(self, function: tuple[str, str]) -> str:
        """The name of a device function for what is stored only, which is then defined in the source."""
        name, text = function
        self.needed[name] = text
        return name

    def _as(self, text: str, source: str, dtype: str) -> str:
        """`text`, of dtype source, as another dtype."""
        if dtype == "bool":
            return f"({text} != 0)"
        if dtype in _NARROW:  # round to the narrow type, go on in float
            return f"{_WIDEN[dtype]}({_NARROW[dtype]}((float){text}))"
        if dtypes.is_float(source) and not dtypes.is_float(dtype):
            return f"{self._saturated(_register(source), dtype)}({text})"
        return f"(({_TYPES[_register(dtype)]}){text})"

    def _saturated(self, source: str, dtype: str) -> str:
        """The name of a device function that makes an integer of a float."""
        low, high = integer_limits(dtype)
        name, suffix = f"renorm_{dtype}_of_{source}", "f" if source == "float32" else ""
        ends = {"below": f"{float(low)!r}{suffix}", "above": f"{float(high + 1)!r}{suffix}"}
        ends |= {"low": f"({_TYPES[dtype]}){_integer(low)}", "high": f"({_TYPES[dtype]}){_integer(high)}"}
        text = _SATURATED.format(t=_TYPES[dtype], s=_TYPES[source], name=name, **ends)
        self.needed[name] = "static __device__ __forceinline__ " + text
        return name

    def _call(self, e: Call) -> str:
        args = [self._expr(a) for a in e.args]
        dtype = _register(e.dtype)
        suffix = "f" if dtype == "float32" else ""
        match e.name:
            case "likely":
                return args[0]
            case "if_then_else":
                return f"({args[0]} ? {args[1]} : {args[2]})"
            case "isnan" | "isinf":
                return f"{e.name}({args[0]})"
            case "bitcast":
                return f"{_BITCAST[e.dtype]}({args[0]})"
            case "popcount":
                return f"__popcll({args[0]})"
            case "bitwise_and" | "bitwise_or" | "bitwise_xor":
                return f"({_BITWISE[e.name].join(args)})"
            case "sigmoid" | "sign" | "shift_left" | "shift_right":
                return f"{self._own(e.name, e.dtype)}({', '.join(args)})"
            case "abs" if dtype not in ("float32", "float64"):
                return f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
            case name:
                return f"{_C_NAMES.get(name, name)}{suffix}({', '.join(args)})"


def _register(dtype: str) -> str:
    """The type that a value of `dtype` has once it is loaded."""
    return "float32" if dtype in _WIDEN else dtype


def _integer(n: int) -> str:
    """A literal: -2**63 and what lies above 2**63 have no simple ones."""
    if n == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{n}ULL" if n >= 2**63 else f"{n}LL" if abs(n) >= 2**31 else str(n)


def _constant(e: Const) -> str:
    if dtypes.is_stored(e.dtype):
        return stored_types.constant(e.value, e.dtype)
    if isinstance(e.value, bool):
        return "true" if e.value else "false"
    if isinstance(e.value, int):
        return _integer(e.value)
    single = _register(e.dtype) == "float32"
    if isnan(e.value):
        return "__int_as_float(0x7fc00000)" if single else "__longlong_as_double(0x7ff8000000000000LL)"
    if isinf(e.value):
        text = "__int_as_float(0x7f800000)" if single else "__longlong_as_double(0x7ff0000000000000LL)"
        return text if e.value > 0 else f"(-{text})"
    text = repr(e.value)
    text = text if any(c in text for c in ".en") else text + ".0"
    return f"({text}{'f' if single else ''})" if e.value < 0 else text + ("f" if single else "")
