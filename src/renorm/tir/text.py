"""Loop programs as text, in the style of TVM's articles; tir.parse reads the full form back, and has the grammar.

    kernel scale(X: float32[64], Y: float32[64]) -> (Y) {
      // attr [T] storage_scope = "local"
      allocate T[float32 * 8]                        of the rest of its block
      for (i, 0, 8) {                                parallel, vectorized, unrolled likewise
        produce T {
          for (j, 0, 8) {
            prefetch X[((i*8) + 16)]
            T[j] = (X[((i*8) + j)]*2f)
          }
        }
        if ((i < 5)) {
          nontemporal Y[ramp((i*8), 1, 8)] = T[ramp(0, 1, 8)]
        } else {
          let k = (i + 1) {
            Y[(k*8) if (k < 8)] = 0f                 stored where the predicate holds
          }
        }
      }
      // attr [iter_var(b, , blockIdx.x)] thread_extent = 4
      barrier(shared)                                the axis b runs over the rest of its block
    }

A variable whose type is not int32 shows it: `for (i: int64, (int64)0, (int64)8) {`. Names that meet in one scope are
told apart by a suffix (`compute`, `compute_1`), so a name means one thing wherever it is read.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Union

from renorm.core import dtypes
from renorm.expr.nodes import INTRINSICS, Const, Expr, Load, OpenVar, Source, Var, all_of
from renorm.expr.rewrite import walk as walk_expr
from renorm.expr.text import PREFIX, access_text, text
from renorm.tir.nodes import (
    BLOCK_AXES,
    KINDS,
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
    expressions,
    set_printer,
    walk,
)

WORDS = frozenset({"kernel", "for", "if", "else", "let", "allocate", "barrier", "produce", "nontemporal", "prefetch"})
RESERVED = WORDS | {"true", "false", "select", "ramp", *PREFIX, *KINDS, *INTRINSICS, *dtypes.BY_NAME}
_Named = Union[Var, Source]


def simple(kernel: Kernel) -> str:
    """The allocations and the body alone, as the articles print them."""
    printer = _Printer()
    with printer.scope((*kernel.extents, *kernel.params)):
        printer.block(kernel.body, 0)
    return printer.result()


def full(kernel: Kernel) -> str:
    """The whole kernel; tir.parse.parse(full(k)) is a kernel with the same text and meaning."""
    printer = _Printer()
    with printer.scope((*kernel.extents, *kernel.params)):
        params = ", ".join(f"{printer.name(b)}: {b.dtype}[{printer.size(b)}]" for b in kernel.params)
        outputs = ", ".join(printer.name(b) for b in kernel.params if b.name in kernel.outputs)
        extents = ", ".join(printer.extent(v) for v in kernel.extents)
        name = printer.identifier(kernel.name) + (f"[{extents}]" if extents else "")
        facts = f" if {printer.expr(all_of(*kernel.facts))}" if kernel.facts else ""
        printer.line(0, f"kernel {name}({params}) -> ({outputs}){facts} {{")
        printer.block(kernel.body, 1)
        printer.line(0, "}")
    return printer.result()


def _print(x: Kernel | Stmt) -> str:
    if isinstance(x, Kernel):
        return full(x)
    printer = _Printer()
    with printer.scope(_free(x)):
        printer.block(x, 0)
    return printer.result()


def _free(s: Stmt) -> list[_Named]:
    """Variables and buffers that a statement uses or binds anywhere: each gets its plain name first if it is free."""
    bound: set[int] = set()
    used: dict[int, _Named] = {}
    for x in walk(s):
        match x:
            case For(var=var) | Let(var=var):
                bound.add(id(var))
            case Allocate(buffer=buffer):
                bound.add(id(buffer))
            case Store(buffer=buffer) | Prefetch(buffer=buffer):
                used[id(buffer)] = buffer
            case _:
                pass
        for e in expressions(x):
            for node in walk_expr(e):
                if isinstance(node, Var):
                    used[id(node)] = node
                elif isinstance(node, Load):
                    used[id(node.source)] = node.source
    return [x for identity, x in used.items() if identity not in bound]


class _Printer:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._live: dict[str, int] = {}

    def result(self) -> str:
        return "\n".join(self._lines)

    def line(self, depth: int, content: str) -> None:
        self._lines.append("  " * depth + content)

    @staticmethod
    def identifier(name: str) -> str:
        """`name` with what no identifier may hold replaced."""
        cleaned = re.sub(r"[^A-Za-z0-9_.]", "_", name) or "_"
        return cleaned if re.match(r"[A-Za-z_]", cleaned) else f"_{cleaned}"

    @contextmanager
    def scope(self, bound: Iterable[_Named]) -> Generator[None]:
        """Inside it, each of `bound` has a name that nothing else visible has."""
        before: list[tuple[_Named, str | None, str]] = []
        for x in bound:
            base = self.identifier(x.name)
            chosen, count = base, 0
            # x8( ) is a vector; axes such as blockIdx.x may name the variable bound to them, as TVM's do
            while chosen in self._live or (chosen in RESERVED and "Idx" not in chosen) or re.fullmatch(r"x\d+", chosen):
                count += 1
                chosen = f"{base}_{count}"
            before.append((x, self._names.get(id(x)), chosen))
            self._names[id(x)] = chosen
            self._live[chosen] = id(x)
        yield
        for x, old, chosen in reversed(before):
            del self._live[chosen]
            if old is None:
                del self._names[id(x)]
            else:
                self._names[id(x)] = old

    def name(self, x: _Named) -> str:
        return self._names.get(id(x)) or self.identifier(x.name)

    def expr(self, e: Expr) -> str:
        return text(e, self.name)

    def block(self, s: Stmt, depth: int) -> None:
        """The statements of a block. What reigns over the rest of its block gets braces where something follows it."""
        stmts = s.stmts if isinstance(s, Seq) else (s,)
        for i, x in enumerate(stmts):
            reigns = isinstance(x, Allocate) or (isinstance(x, For) and self._is_attribute(x))
            if isinstance(x, Seq) or (reigns and i + 1 < len(stmts)):
                self.line(depth, "{")
                self.block(x, depth + 1)
                self.line(depth, "}")
            else:
                self.statement(x, depth)

    def braced(self, depth: int, head: str, body: Stmt) -> None:
        self.line(depth, f"{head} {{")
        self.block(body, depth + 1)
        self.line(depth, "}")

    @staticmethod
    def _is_attribute(loop: For) -> bool:
        return loop.kind in BLOCK_AXES + THREAD_AXES and isinstance(loop.start, Const) and loop.start.value == 0

    def statement(self, s: Stmt, depth: int) -> None:
        match s:
            case For() if self._is_attribute(s):
                extent = self.expr(s.extent)
                with self.scope((s.var,)):
                    axis = f"iter_var({self._typed(s.var)}, , {s.kind})"
                    self.line(depth, f"// attr [{axis}] thread_extent = {extent}")
                    self.block(s.body, depth)
            case For():
                start, extent = self.expr(s.start), self.expr(s.extent)
                word = "for" if s.kind == "serial" else s.kind
                with self.scope((s.var,)):
                    self.braced(depth, f"{word} ({self._typed(s.var)}, {start}, {extent})", s.body)
            case Store():
                index = access_text(self.expr(s.index), s.predicate, self.name)
                word = "nontemporal " if s.nontemporal else ""
                self.line(depth, f"{word}{self.name(s.buffer)}[{index}] = {self.expr(s.value)}")
            case Prefetch():
                self.line(depth, f"prefetch {self.name(s.buffer)}[{self.expr(s.index)}]")
            case Let():
                value = self.expr(s.value)
                with self.scope((s.var,)):
                    self.braced(depth, f"let {self.name(s.var)} = {value}", s.body)
            case If():
                self.line(depth, f"if ({self.expr(s.condition)}) {{")
                self.block(s.then, depth + 1)
                if s.otherwise is not None:
                    self.line(depth, "} else {")
                    self.block(s.otherwise, depth + 1)
                self.line(depth, "}")
            case Allocate(buffer=buffer):
                with self.scope((buffer,)):
                    name = self.name(buffer)
                    self.line(depth, f'// attr [{name}] storage_scope = "{buffer.scope}"')
                    self.line(depth, f"allocate {name}[{buffer.dtype} * {self.size(buffer)}]")
                    self.block(s.body, depth)
            case Barrier():
                self.line(depth, f"barrier({s.scope})")
            case Produce():
                self.braced(depth, f"produce {self.identifier(s.name)}", s.body)
            case Seq():
                self.block(s, depth)
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def size(self, buffer: Buffer) -> str:
        """The number of elements of a buffer."""
        return self.expr(buffer.size) if isinstance(buffer.size, Expr) else str(buffer.size)

    def extent(self, v: OpenVar) -> str:
        """An open extent with its bounds, and what defines it."""
        bounds = "" if v.low is None else str(v.low) if v.high is None else f"{v.low}, {v.high}"
        return f"{self.name(v)}({bounds})" + ("" if v.definition is None else f" = {self.expr(v.definition)}")

    def _typed(self, var: Var) -> str:
        return self.name(var) if var.dtype == "int32" else f"{self.name(var)}: {var.dtype}"


set_printer(_print)
