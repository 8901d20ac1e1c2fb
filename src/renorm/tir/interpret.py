"""The interpreter of loop programs, the oracle for everything that rewrites loops or generates code.

A kernel becomes Python source, one line per statement, that follows the IR to the letter:
- every access is checked against its buffer, and memory of an Allocate is empty until it is written;
- float32 and float64 round after each operation; 16-bit floats are rounded where they are stored or cast to, and
  computed in float32; transcendental functions are computed in float64 and rounded once; `round` goes to even;
- integers that were read from memory wrap in their type, index arithmetic does not;
- parallel loops run backwards, so that iterations which are not independent show;
- GPU axes run block by block, every thread a generator that stops at barriers, in an order of choice; accesses to
  shared and global memory that race are found in every order (interpret_gpu.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidInput, InvalidLoops
from renorm.expr.bounds import reads
from renorm.expr.linear import INDEX_TYPES
from renorm.expr.nodes import (
    ARITHMETIC,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    Var,
    const,
)
from renorm.expr.rewrite import substitute
from renorm.expr.simplify import simplify
from renorm.tir import arithmetic, interpret_accesses
from renorm.tir.interpret_gpu import Launch, Shadow
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
    walk,
)

_AXES = BLOCK_AXES + THREAD_AXES


def run(
    kernel: Kernel,
    arrays: Sequence[np.ndarray[Any, Any]],
    extents: Sequence[int] = (),
    order: int = 0,
    races: bool = True,
) -> None:
    """Runs the kernel on one array per parameter, in order; what it stores to is written back into the arrays.
    extents: the open ones that are given, in order. order: a seed of the order of blocks and threads of GPU axes, 0 for
    that of their numbers. races: whether to look for races between them.

    Arrays may have any shape; their elements in C order are the buffer, and the same memory is the same buffer. Raises
    InvalidInput for arrays that do not fit, InvalidLoops for an access outside a buffer, a read of memory never
    written, a barrier that not all threads reach, a race.
    """
    if len(extents) != len(kernel.given):
        names = ", ".join(v.name for v in kernel.given)
        raise InvalidInput(f"kernel {kernel.name} takes {len(kernel.given)} extents, not {len(extents)}", [names])
    if len(arrays) != len(kernel.params):
        raise InvalidInput(f"kernel {kernel.name} takes {len(kernel.params)} arrays, not {len(arrays)}")
    sizes = buffer_sizes(kernel, extents)
    for buffer, size, array in zip(kernel.params, sizes, arrays, strict=True):
        if array.dtype != dtypes.numpy_dtype(buffer.dtype) or array.size < size:
            raise InvalidInput(
                f"kernel {kernel.name}: parameter {buffer.name} takes {buffer.dtype}[{size}]",
                [f"got {array.dtype}[{array.size}]"],
            )
    same = _same(arrays)
    memory: list[list[Any]] = []
    for i, first in enumerate(same):
        longest = max((j for j, other in enumerate(same) if other == first), key=sizes.__getitem__)
        cells = arrays[longest].reshape(-1)[: sizes[longest]]
        memory.append(memory[first] if first < i else arithmetic.cells(cells, kernel.params[i].dtype))
    source = _Source(kernel, same, order, races)
    with np.errstate(all="ignore"):
        source.function()(*extents, *memory)
    written = {id(s.buffer) for s in walk(kernel.body) if isinstance(s, Store)}
    for buffer, size, array, values in zip(kernel.params, sizes, arrays, memory, strict=True):
        if id(buffer) in written:
            # integers at once in their type: NumPy would make float64 of a list that spans int64 and uint64
            kind = None if dtypes.is_float(buffer.dtype) else array.dtype
            array.flat[:size] = np.array(values[:size], kind).astype(array.dtype)


def _same(arrays: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    """Return, for each array, the number of the first one that is the same memory read as the same type."""
    found: dict[Any, int] = {}
    return [
        found.setdefault((a.ctypes.data, a.dtype) if a.size and a.flags.c_contiguous else i, i)
        for i, a in enumerate(arrays)
    ]


def buffer_sizes(kernel: Kernel, extents: Sequence[int]) -> list[int]:
    """Return how many elements each parameter has where the given extents have these values."""
    values: dict[Var, Expr] = {v: const(n, v.dtype) for v, n in zip(kernel.given, extents, strict=True)}
    for v in kernel.extents:
        if v.definition is not None:
            values[v] = simplify(substitute(v.definition, values))
    found: list[int] = []
    for p in kernel.params:
        size = simplify(substitute(p.size, values)) if isinstance(p.size, Expr) else const(p.size)
        assert isinstance(size, Const)
        found.append(int(size.value))
    return found


def python_source(kernel: Kernel) -> str:
    """The program that `run` executes."""
    return _Source(kernel).text()


class _Source:
    """Python source of a kernel: integers are Python's, floats NumPy scalars, vectors lists, buffers lists of cells."""

    def __init__(self, kernel: Kernel, same: Sequence[int] = (), order: int = 0, races: bool = True):
        self._kernel, self._order, self._races = kernel, order, races
        # buffers whose accesses are noted in the launch that is written, and the names of their shadows
        self._shadows: dict[Buffer, str] = {}
        self._same = {p: kernel.params[first] for p, first in zip(kernel.params, same)}
        self._lines: list[str] = []
        self._depth = 1
        self._names: dict[int, str] = {}
        self._loops: list[Var] = []
        self._axes = set[Var]()
        self._constants: dict[tuple[str, str], str] = {}
        self._globals: dict[str, Any] = dict(arithmetic.FUNCTIONS)
        self._globals |= interpret_accesses.FUNCTIONS | {"_Launch": Launch, "_Shadow": Shadow}
        self._count = itertools.count()
        self._has_axes = _has_axes(kernel.body)
        self._in_region = False
        self._buffers = list(kernel.params)  # global ones, so far
        for v in kernel.given:
            self._bind(v)
        for p in kernel.params:
            self._bind(p)
        for v in kernel.extents:
            if v.definition is not None:
                value = self._value(v.definition)
                self._emit(f"{self._bind(v)} = {value}")
        self._stmt(kernel.body)

    def text(self) -> str:
        params = ", ".join(self._names[id(p)] for p in (*self._kernel.given, *self._kernel.params))
        return "\n".join([f"def _kernel({params}):", *self._lines, "    return None"])

    def function(self) -> Callable[..., None]:
        exec(compile(self.text(), f"<kernel {self._kernel.name}>", "exec"), self._globals)
        return self._globals["_kernel"]

    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _fresh(self, stem: str) -> str:
        return f"{stem}{next(self._count)}"

    def _bind(self, x: Var | Buffer) -> str:
        name = self._fresh(re.sub(r"\W", "_", x.name) + "_")
        self._names[id(x)] = name if name[0].isalpha() or name[0] == "_" else f"_{name}"
        return self._names[id(x)]

    def _name(self, x: Any) -> str:
        if id(x) not in self._names:
            raise InvalidLoops(f"kernel {self._kernel.name}: {x.name} is used where nothing defines it")
        return self._names[id(x)]

    def _block(self, s: Stmt) -> None:
        self._depth += 1
        before = len(self._lines)
        self._stmt(s)
        if len(self._lines) == before:
            self._emit("pass")
        self._depth -= 1

    # ---- statements

    def _stmt(self, s: Stmt) -> None:
        if self._has_axes and not self._in_region and isinstance(s, (For, If)) and _has_axes(s):
            self._region(s)
            return
        match s:
            case Seq(stmts=stmts):
                for x in stmts:
                    self._stmt(x)
            case Produce(body=body):
                self._stmt(body)
            case For():
                self._for(s)
            case Let(var=var, value=value, body=body):
                value_text = self._value(value)
                self._emit(f"{self._bind(var)} = {value_text}")
                self._stmt(body)
            case If():
                self._emit(f"if {self._value(s.condition)}:")
                self._block(s.then)
                if s.otherwise is not None:
                    self._emit("else:")
                    self._block(s.otherwise)
            case Allocate(buffer=buffer, body=body):
                size = self._size(buffer)
                if not self._in_region:
                    self._buffers.append(buffer)
                    self._emit(f"{self._bind(buffer)} = _new({size})")
                elif buffer.is_shared or buffer.scope == "global":
                    # empty in each round of the loops around, though it is one piece of memory: whose accesses may
                    # race with those of the round before
                    rounds = [self._names[id(v)] for v in self._loops if v not in self._axes]
                    self._emit(f"{self._bind(buffer)} = {self._of_block(f'_new({size})', rounds)}")
                    if self._races:
                        self._note(buffer, self._of_block(f"_Shadow({buffer.name!r}, {size}, _launch)", []))
                else:
                    self._emit(f"{self._bind(buffer)} = _new({size})")
                self._stmt(body)
            case Barrier():
                if self._in_region:
                    self._emit(f"yield {next(self._count)}")
                    self._emit("_me = _launch.now + _number")
            case Store():
                self._store(s)
            case Prefetch():
                self._emit("pass")
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def _for(self, s: For) -> None:
        start, extent = self._index(s.start), self._index(s.extent)
        if s.kind in _AXES:
            # an axis of the region around: threads beyond this loop's extent leave it out
            var = self._bind(s.var)
            self._axes.add(s.var)
            self._emit(f"{var} = _{s.kind.replace('.', '_')} + {start}")
            self._emit(f"if {var} < {start} + {extent}:")
        else:
            var = self._bind(s.var)
            span = f"range({start}, {start} + {extent})"
            self._emit(f"for {var} in {f'reversed({span})' if s.kind == 'parallel' else span}:")
        self._loops.append(s.var)
        self._block(s.body)
        self._loops.pop()

    def _region(self, s: Stmt) -> None:
        """A nest with GPU axes: a generator for one thread, and its launch."""
        extents = dict.fromkeys(_AXES, 1)
        for x in walk(s):
            if isinstance(x, For) and x.kind in _AXES:
                extent = constant(x.extent)
                if extent is None:
                    raise InvalidLoops(
                        f"kernel {self._kernel.name}: the extent of {x.kind} is not a constant: {x.extent}"
                    )
                extents[x.kind] = max(extents[x.kind], extent)
        self._emit(f"_launch = _Launch({self._kernel.name!r}, {tuple(extents.values())}, {self._order})")
        if self._races:
            self._note_written(s)
        thread = self._fresh("_thread")
        self._emit(f"def {thread}({', '.join('_' + a.replace('.', '_') for a in _AXES)}, _memory, _number):")
        self._in_region = True
        self._depth += 1
        self._emit("_me = _launch.now + _number")
        self._stmt(s)
        self._emit("return")
        self._emit("yield")  # a generator even where there is no barrier
        self._depth -= 1
        self._in_region = False
        self._shadows.clear()
        self._emit(f"_launch.run({thread})")

    def _note_written(self, s: Stmt) -> None:
        """Shadows of the global buffers that a launch writes: reads alone never race."""
        written = {self._same.get(x.buffer, x.buffer) for x in walk(s) if isinstance(x, Store)}
        for b in self._buffers:
            first = self._same.get(b, b)
            if first in self._shadows:
                self._shadows[b] = self._shadows[first]
            elif first in written:
                self._note(b, f"_Shadow({b.name!r}, len({self._name(b)}), _launch)")

    def _note(self, buffer: Buffer, shadow: str) -> None:
        """Have accesses to a buffer noted in a shadow."""
        name = self._shadows[buffer] = self._fresh("_s")
        self._emit(f"{name} = {shadow}")
        self._emit(f"{name}_r, {name}_w = {name}.read, {name}.written")

    def _of_block(self, made: str, rounds: list[str]) -> str:
        """What a block has once in a round: made by its first thread that comes here."""
        key = f"({', '.join([str(next(self._count)), *rounds])},)"
        return f"_memory.get({key}) or _memory.setdefault({key}, {made})"

    def _size(self, buffer: Buffer) -> str:
        return self._value(buffer.size) if isinstance(buffer.size, Expr) else str(buffer.size)

    def _where(self) -> str:
        """The loop variables of this place, for messages."""
        return "{" + ", ".join(f"{v.name!r}: {self._names[id(v)]}" for v in self._loops) + "}"

    def _shadow(self, buffer: Buffer, me: str = "_me") -> str:
        """What accesses to vectors note themselves with."""
        return f"(_launch, {self._shadows[buffer]}, {me})" if buffer in self._shadows else "None"

    def _store(self, s: Store) -> None:
        memory, (name, size) = self._name(s.buffer), (s.buffer.name, self._size(s.buffer))
        convert = arithmetic.store_function(s.buffer.dtype)
        me = "(_me + _launch.count)" if s.buffer.scope == STAGED else "_me"
        if s.index.lanes > 1 or s.value.lanes > 1:
            predicate = "None" if s.predicate is None else self._value(s.predicate)
            self._emit(
                f"_scatter({memory}, {name!r}, {self._index(s.index)}, {self._value(s.value)}, {predicate}, {convert}, "
                f"{self._where()}, {self._shadow(s.buffer, me)})"
            )
            return
        if s.predicate is not None:
            self._emit(f"if {self._value(s.predicate)}:")
            self._depth += 1
        at = self._fresh("_i")
        self._emit(f"{at} = {self._index(s.index)}")
        self._emit(f"if not 0 <= {at} < {size}: _outside({name!r}, {size}, {at}, {self._where()})")
        if shadow := self._shadows.get(s.buffer):
            self._emit(f"if {shadow}_w[{at}] != {me} and not {shadow}.writes({at}, {me}):")
            self._emit(f"    _launch.race({shadow}, {at}, {me}, 'writes', {self._where()})")
        self._emit(f"{memory}[{at}] = {convert}({self._value(s.value)})")
        if s.predicate is not None:
            self._depth -= 1

    # ---- expressions

    def _index(self, e: Expr) -> str:
        """An expression whose integer arithmetic never wraps."""
        return self._expr(e, True)

    def _value(self, e: Expr) -> str:
        return self._expr(e, False)

    def _expr(self, e: Expr, exact: bool) -> str:
        match e:
            case Const():
                return self._constant(e)
            case Var():
                return self._name(e)
            case Binary(op=op, a=a, b=b):
                data = e.dtype not in INDEX_TYPES or (reads(e) and not exact)
                wraps = op in ARITHMETIC and dtypes.is_int(e.dtype) and data
                if op in ("//", "%") and not wraps and dtypes.is_int(a.dtype) and isinstance(b, Const) and b.value > 0:
                    return self._apply(f"({{}} {op} {{}})", (a, b), exact, e.lanes)  # as Python's, and much quicker
                return self._apply(arithmetic.binary(op, a.dtype, wraps), (a, b), exact, e.lanes)
            case Not(a=a):
                return self._apply("(not {})", (a,), exact, e.lanes)
            case Select():
                return self._apply("_select({}, {}, {})", (e.condition, e.then, e.otherwise), exact, e.lanes)
            case Cast(a=a):
                return self._apply(arithmetic.cast(a.dtype, e.dtype), (a,), exact, e.lanes)
            case Call(name="if_then_else", args=(condition, then, otherwise)) if condition.lanes == 1:
                # only this side runs; the other may hold an access outside its buffer
                chosen = f"{self._expr(then, exact)} if {self._expr(condition, False)}"
                return f"({chosen} else {self._expr(otherwise, exact)})"
            case Call(name=name, args=args):
                return self._apply(arithmetic.call(name, args[0].dtype), args, exact, e.lanes)
            case Load():
                return self._load(e)
            case Ramp(base=base, stride=stride, lanes=lanes):
                b, k = self._expr(base, exact), self._expr(stride, exact)
                return f"_ramp({b}, {k}, {lanes})"
            case Broadcast(value=value, lanes=lanes):
                return f"[{self._expr(value, exact)}] * {lanes}"
            case _:
                raise InvalidLoops(f"kernel {self._kernel.name}: {type(e).__name__} does not belong in loops: {e}")

    def _apply(self, template: str, args: Sequence[Expr], exact: bool, lanes: int) -> str:
        texts = [self._expr(a, exact) for a in args]
        if lanes == 1:
            return template.format(*texts)
        names = [self._fresh("_l") for _ in args]
        columns = ", ".join(
            t if a.lanes > 1 else f"[{t}] * {lanes}" for t, a in zip(texts, args, strict=True)
        )  # a scalar beside vectors counts for every lane
        return f"_lanewise(lambda {', '.join(names)}: {template.format(*names)}, {columns})"

    def _constant(self, e: Const) -> str:
        if not dtypes.is_float(e.dtype):
            return repr(e.value) if not isinstance(e.value, int) or e.value >= 0 else f"({e.value})"
        key = (e.dtype, repr(e.value))
        if key not in self._constants:
            self._constants[key] = self._fresh("_c")
            self._globals[self._constants[key]] = arithmetic.rounded(float(e.value), e.dtype)
        return self._constants[key]

    def _load(self, e: Load) -> str:
        buffer = e.source
        if not isinstance(buffer, Buffer) or len(e.indices) != 1:
            raise InvalidLoops(f"kernel {self._kernel.name}: {e} is not an access to a buffer by one index")
        memory, name, size = self._name(buffer), buffer.name, self._size(buffer)
        index = self._index(e.indices[0])
        predicate = "None" if e.predicate is None else self._value(e.predicate)
        zero = self._constant(Const(0, e.dtype))
        if e.lanes > 1:
            shadow = self._shadow(buffer)
            return f"_gather({memory}, {name!r}, {index}, {predicate}, {zero}, {self._where()}, {shadow})"
        at = self._fresh("_i")
        inside = f"{memory}[{at}] if 0 <= ({at} := {index}) < {size}"
        if shadow := self._shadows.get(buffer):
            raced = f"_launch.race({shadow}, {at}, _me, 'reads', {self._where()})"
            inside += f" and ({shadow}_r[{at}] == _me or {shadow}.reads({at}, _me) or {raced})"
        read = f"({inside} else _outside({name!r}, {size}, {at}, {self._where()}))"
        if buffer not in self._kernel.params:
            cell = self._fresh("_v")
            read = f"({cell} if ({cell} := {read}) is not None else _unwritten({name!r}, {at}, {self._where()}))"
        return read if e.predicate is None else f"({read} if {predicate} else {zero})"


def _has_axes(s: Stmt) -> bool:
    return any(isinstance(x, For) and x.kind in _AXES for x in walk(s))
