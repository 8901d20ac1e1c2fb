"""Reading loop programs: parse(text) gives the Kernel that tir.text.full prints (grammar there).

Parentheses may be left out where C's precedence gives the same tree. `//` at the beginning of a line starts a comment,
except `// attr [...]`, which carries meaning; elsewhere it divides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from renorm.core import dtypes
from renorm.core.errors import ParseError, RenormError
from renorm.expr.nodes import (
    ARITHMETIC,
    INTRINSICS,
    LOGICAL,
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
)
from renorm.expr.text import PREFIX
from renorm.tir.nodes import (
    KINDS,
    SCOPES,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Produce,
    Stmt,
    Store,
    seq,
)
from renorm.tir.verify_types import type_text

T = TypeVar("T")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?[fh]?(?![\w.]))
      | (?P<name>[A-Za-z_][\w.]*)
      | (?P<string>"[^"\n]*")
      | (?P<mark>->|&&|\|\||==|!=|<=|>=|//|[-+*/%<>!(){}\[\],:=])""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"(?P<attr>//[ ]attr\b(?=[ ]*\[))|(?P<space>//[^\n]*)")
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "//", "%"))
_PRECEDENCE = {op: level for level, ops in enumerate(_LEVELS, 1) for op in ops}
_LOOPS = {"for": "serial"} | {kind: kind for kind in KINDS if kind != "serial"}


def parse(source: str) -> Kernel:
    """The kernel that the text describes; raises ParseError with line, column and what was expected."""
    try:
        return _Parser(source).kernel()
    except RecursionError:
        raise ParseError("the text has too many brackets or blocks within each other") from None


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, source: str):
        self._source = source
        self._scope: dict[str, Var | Buffer] = {}
        self._tokens: list[_Token] = []
        at = 0
        while at < len(source):
            begins_line = not source[source.rfind("\n", 0, at) + 1 : at].strip()
            found = (_COMMENT.match(source, at) if begins_line else None) or _TOKEN.match(source, at)
            if found is None:
                self._fail(at, "a name, a number or a mark", repr(source[at]))
            kind = str(found.lastgroup)
            if kind != "space":
                self._tokens.append(_Token(kind, found.group(), at))
            at = found.end()
        self._tokens.append(_Token("end", "end of text", len(source)))
        self._at = 0

    # ---- tokens

    def _fail(self, at: int, expected: str, found: str) -> NoReturn:
        before = self._source[:at]
        line, column = before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1
        shown = self._source.splitlines()[line - 1] if self._source.splitlines()[line - 1 : line] else ""
        raise ParseError(
            f"loops: line {line}, column {column}: expected {expected}, found {found}",
            [shown, " " * (column - 1) + "^"],
            "the grammar is in the docstring of renorm.tir.text",
        )

    def _expected(self, expected: str) -> NoReturn:
        token = self._peek
        self._fail(token.at, expected, token.text if token.kind == "end" else repr(token.text))

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._peek
        self._at += 1
        return token

    def _is(self, text: str, ahead: int = 0) -> bool:
        token = self._tokens[min(self._at + ahead, len(self._tokens) - 1)]
        return token.text == text and token.kind in ("mark", "name")

    def _take(self, text: str) -> bool:
        if self._is(text):
            self._at += 1
            return True
        return False

    def _require(self, *texts: str) -> None:
        for text in texts:
            if not self._take(text):
                self._expected(repr(text))

    def _name(self, what: str) -> str:
        if self._peek.kind != "name":
            self._expected(what)
        return self._next().text

    def _integer(self, what: str) -> int:
        if self._peek.kind != "number" or not self._peek.text.isdigit():
            self._expected(what)
        return int(self._next().text)

    def _dtype(self) -> str:
        if self._peek.text not in dtypes.BY_NAME:
            self._expected("a dtype")
        return self._next().text

    @contextmanager
    def _bound(self, name: str, x: Var | Buffer) -> Generator[None]:
        before = self._scope.get(name)
        self._scope[name] = x
        yield
        if before is None:
            del self._scope[name]
        else:
            self._scope[name] = before

    def _buffer(self) -> Buffer:
        token = self._peek
        found = self._scope.get(self._name("the name of a buffer"))
        if not isinstance(found, Buffer):
            known = [name for name, x in self._scope.items() if isinstance(x, Buffer)]
            self._fail(token.at, f"a buffer (there are {', '.join(known) or 'none'})", repr(token.text))
        return found

    # ---- kernel and statements

    def kernel(self) -> Kernel:
        self._require("kernel")
        name = self._name("the name of the kernel")
        self._require("(")
        params = self._list(self._parameter)
        self._scope |= {p.name: p for p in params}
        self._require("->", "(")
        outputs = self._list(self._output)
        body = self._braced()
        if self._peek.kind != "end":
            self._expected("end of text")
        return Kernel(name, tuple(params), body, frozenset(outputs))

    def _list(self, item: Callable[[], T]) -> list[T]:
        """Items up to the closing parenthesis."""
        items: list[T] = []
        while not self._take(")"):
            if items:
                self._require(",")
            items.append(item())
        return items

    def _parameter(self) -> Buffer:
        name = self._name("the name of a parameter")
        self._require(":")
        dtype = self._dtype()
        self._require("[")
        buffer = Buffer(name, dtype, self._integer("the number of elements"))
        self._require("]")
        return buffer

    def _output(self) -> str:
        if not isinstance(self._scope.get(self._peek.text), Buffer):
            self._expected("the name of a parameter")
        return self._next().text

    def _braced(self) -> Stmt:
        self._require("{")
        body = self._rest()
        self._require("}")
        return body

    def _rest(self) -> Stmt:
        """Statements up to the end of the block."""
        stmts: list[Stmt] = []
        while not self._is("}") and self._peek.kind != "end":
            stmts.append(self._statement())
        return seq(stmts)

    def _statement(self) -> Stmt:
        token = self._peek
        if token.kind == "attr":
            return self._attribute()
        if token.text == "{":
            return self._braced()
        if token.text in _LOOPS:
            return self._loop(_LOOPS[self._next().text])
        match token.text:
            case "allocate":
                return self._allocate("global")
            case "if":
                self._next()
                self._require("(")
                condition = self._bool()
                self._require(")")
                then = self._braced()
                return If(condition, then, self._braced() if self._take("else") else None)
            case "let":
                self._next()
                name = self._name("the name of a variable")
                self._require("=")
                value = self._expr()
                var = Var(name, value.dtype, value.lanes)
                with self._bound(name, var):
                    return Let(var, value, self._braced())
            case "produce":
                self._next()
                return Produce(self._name("the name of a stage"), self._braced())
            case "barrier":
                self._next()
                self._require("(")
                scope = self._name("a scope")
                self._require(")")
                return Barrier(scope)
            case _:
                return self._store()

    def _attribute(self) -> Stmt:
        self._next()
        self._require("[")
        if not self._is("iter_var"):
            name = self._name("iter_var(...) or the name of a buffer")
            self._require("]", "storage_scope", "=")
            scope = self._next().text.strip('"')
            if scope not in SCOPES:
                self._at -= 1
                self._expected(f"a scope ({', '.join(SCOPES)})")
            if not self._is("allocate") or not self._is(name, 1):
                self._expected(f"'allocate {name}'")
            return self._allocate(scope)
        self._require("iter_var", "(")
        var = self._loop_variable()
        self._require(",", ",")
        if self._peek.text not in KINDS:
            self._expected("a GPU axis")
        kind = self._next().text
        self._require(")", "]", "thread_extent", "=")
        extent = self._expr()
        with self._bound(var.name, var):
            return For(var, Const(0, var.dtype), extent, kind, self._rest())

    def _loop_variable(self) -> Var:
        name = self._name("the name of a variable")
        return Var(name, self._dtype() if self._take(":") else "int32")

    def _loop(self, kind: str) -> Stmt:
        self._require("(")
        var = self._loop_variable()
        self._require(",")
        start = self._expr()
        self._require(",")
        extent = self._expr()
        self._require(")")
        with self._bound(var.name, var):
            return For(var, start, extent, kind, self._braced())

    def _allocate(self, scope: str) -> Stmt:
        self._require("allocate")
        name = self._name("the name of a buffer")
        self._require("[")
        dtype = self._dtype()
        self._require("*")
        buffer = Buffer(name, dtype, self._integer("the number of elements"), scope)
        self._require("]")
        with self._bound(name, buffer):
            return Allocate(buffer, self._rest())

    def _store(self) -> Stmt:
        nontemporal = self._take("nontemporal")
        if self._peek.kind != "name":
            self._expected("a statement")
        buffer = self._buffer()
        self._require("[")
        index, predicate = self._access()
        self._require("=")
        return Store(buffer, index, self._expr(), predicate, nontemporal)

    def _access(self) -> tuple[Expr, Expr | None]:
        index = self._expr()
        predicate = self._bool() if self._take("if") else None
        self._require("]")
        return index, predicate

    # ---- expressions

    def _bool(self) -> Expr:
        at = self._peek.at
        condition = self._expr()
        if condition.dtype != "bool":
            self._fail(at, "a condition", f"an expression of type {condition.dtype}")
        return condition

    def _expr(self, least: int = 1) -> Expr:
        left = self._unary()
        while self._peek.kind == "mark" and _PRECEDENCE.get(self._peek.text, 0) >= least:
            token = self._next()
            left = self._combine(token, left, self._expr(_PRECEDENCE[token.text] + 1))
        return left

    def _combine(self, token: _Token, a: Expr, b: Expr) -> Expr:
        op = token.text
        boolean = op in LOGICAL
        if (a.dtype, a.lanes) != (b.dtype, b.lanes) or (boolean and a.dtype != "bool"):
            shown = f"{type_text(a)} {op} {type_text(b)}"
            self._fail(token.at, "conditions" if boolean else "operands of one type", shown)
        if op in ARITHMETIC and a.dtype == "bool":
            self._fail(token.at, "numbers", f"bool {op} bool")
        return Binary(op, a, b)

    def _unary(self) -> Expr:
        if self._take("!"):
            at = self._peek.at
            operand = self._unary()
            if operand.dtype != "bool":
                self._fail(at, "a condition", f"an expression of type {operand.dtype}")
            return Not(operand)
        token = self._peek
        if token.kind == "number" or token.text == "-":
            return self._number(None)
        if token.text == "(":
            if self._tokens[self._at + 1].text in dtypes.BY_NAME and self._is(")", 2):
                self._next()
                dtype = self._dtype()
                self._require(")")
                return self._number(dtype)
            self._next()
            inner = self._expr()
            self._require(")")
            return inner
        if token.kind != "name":
            self._expected("an expression")
        if self._is("(", 1):
            return self._application()
        if self._is("[", 1):
            source = self._buffer()
            self._require("[")
            index, predicate = self._access()
            return Load(source, (index,), predicate)
        self._next()
        if token.text in ("true", "false"):
            return Const(token.text == "true", "bool")
        found = self._scope.get(token.text)
        if not isinstance(found, Var):
            known = [name for name, x in self._scope.items() if isinstance(x, Var)]
            self._fail(token.at, f"a variable (there are {', '.join(known) or 'none'})", repr(token.text))
        return found

    def _number(self, dtype: str | None) -> Const:
        sign = -1 if self._take("-") else 1
        token = self._peek
        if dtype is not None and token.text in ("inf", "nan") and dtypes.is_float(dtype):
            return Const(sign * float(self._next().text), dtype)
        if token.kind != "number":
            self._expected("a number")
        self._next()
        digits, suffix = (token.text[:-1], token.text[-1]) if token.text[-1] in "fh" else (token.text, "")
        whole = digits.isdigit()
        dtype = dtype or {"f": "float32", "h": "float16"}.get(suffix) or ("int32" if whole else "float64")
        if dtypes.is_float(dtype):
            return Const(sign * float(digits), dtype)
        if not whole:
            self._fail(token.at, f"an integer of type {dtype}", repr(token.text))
        return Const(sign * int(digits), dtype)

    def _application(self) -> Expr:
        token = self._next()
        self._require("(")
        name = token.text
        args = self._list(self._expr)
        try:
            return self._applied(token, name, args)
        except (RenormError, IndexError, ValueError) as problem:
            if isinstance(problem, ParseError):
                raise
            found = problem.headline if isinstance(problem, RenormError) else f"{len(args)} arguments"
            self._fail(token.at, f"arguments that fit {name}", found)

    def _applied(self, token: _Token, name: str, args: list[Expr]) -> Expr:
        if name in dtypes.BY_NAME:
            (operand,) = args
            return Cast(name, operand)
        if name in PREFIX:
            a, b = args
            return self._combine(_Token("mark", name, token.at), a, b)
        if name == "select":
            condition, then, otherwise = args
            return Select(condition, then, otherwise)
        if name == "ramp":
            base, stride, lanes = args
            return Ramp(base, stride, self._lanes(token, lanes))
        if re.fullmatch(r"x\d+", name):
            (value,) = args
            return Broadcast(value, int(name[1:]))
        if name not in INTRINSICS:
            self._fail(token.at, "a function", repr(name))
        return Call(name, args)

    def _lanes(self, token: _Token, lanes: Expr) -> int:
        if not isinstance(lanes, Const):
            self._fail(token.at, "a number of lanes as last argument of ramp", str(lanes))
        return int(lanes.value)
