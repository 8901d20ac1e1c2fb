"""Reads loop programs: parse(text) gives the Kernel that tir.text.full prints.

Parentheses may be left out where C's precedence gives the same tree. `//` at the beginning of a line starts a comment,
except `// attr [...]`, which carries meaning; elsewhere it divides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from lark import Token

from renorm.core import dtypes
from renorm.core.parsing import TextReader, whole_word
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
    OpenVar,
    Ramp,
    Select,
    Var,
)
from renorm.expr.rewrite import conjuncts
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
    Prefetch,
    Produce,
    Stmt,
    Store,
    seq,
)
from renorm.tir.verify_types import type_text

T = TypeVar("T")
_KINDS = {"for": "serial"} | {kind: kind for kind in KINDS if kind != "serial"}
_ARGUMENTS = INTRINSICS | dict.fromkeys(PREFIX, 2) | {"select": 3, "ramp": 3}  # name -> how many
_SUFFIXES = {"f": "float32", "h": "float16"}
GRAMMAR = (
    r"""
start: "kernel" NAME ["[" extents "]"] "(" parameters ")" "->" "(" outputs ")" [predicate] _braced
extents: extent ("," extent)*
extent: NAME "(" [signed] ["," signed] ")" ["=" expression]
signed: [MINUS] INTEGER
parameters: (parameter ("," parameter)*)?
parameter: NAME ":" DTYPE "[" size "]"
?size: INTEGER | KNOWN -> known | "(" expression ")"
outputs: (output ("," output)*)?
output: KNOWN

_braced: "{" block "}"
block: statement* rest?
rest: (allocation | axis) block -> bound
?statement: _braced
    | (loop | let) _braced -> bound
    | "produce" NAME _braced -> produce
    | "if" LPAR expression ")" _braced ["else" _braced] -> branch
    | "barrier" "(" NAME ")" -> barrier
    | "prefetch" buffer "[" expression "]" -> prefetch
    | [NONTEMPORAL] element "=" expression -> store
loop: KIND "(" variable "," expression "," expression ")"
let: "let" NAME "=" expression
allocation: [_ATTR "[" KNOWN "]" "storage_scope" "=" SCOPE] "allocate" KNOWN "[" DTYPE "*" size "]"
axis: _ATTR "[" "iter_var" "(" variable "," "," AXIS ")" "]" "thread_extent" "=" expression
variable: NAME [":" DTYPE]
element: buffer "[" expression [predicate] "]"
predicate: IF expression
buffer: KNOWN

?expression: conjunction | expression OR conjunction -> binary
?conjunction: equality | conjunction AND equality -> binary
?equality: relation | equality EQUALITY relation -> binary
?relation: sum | relation RELATION sum -> binary
?sum: product | sum SUM product -> binary
?product: operand | product PRODUCT operand -> binary
?operand: "(" expression ")"
    | KNOWN -> known
    | [MINUS] NUMBER -> number
    | "(" DTYPE ")" [MINUS] (NUMBER | NOT_FINITE) -> constant
    | NOT operand -> negation
    | element -> load
    | DTYPE "(" expression ")" -> cast
    | KNOWN "(" (expression ("," expression)*)? ")" -> call

NAME: /[A-Za-z_][\w.]*/
KNOWN: NAME
INTEGER: /\d+(?![\w.])/
NUMBER: /(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?[fh]?(?![\w.])/
NOT_FINITE: /(inf|nan)(?![\w.])/
OR: "||"
AND: "&&"
EQUALITY: "==" | "!="
RELATION: "<" | "<=" | ">" | ">="
SUM: "+" | "-"
PRODUCT: "*" | "/" | "//" | "%"
MINUS: "-"
NOT: "!"
LPAR: "("
IF: "if"
NONTEMPORAL: "nontemporal"
_ATTR.2: /^[^\S\n]*\/\/ attr\b(?= *\[)/m
COMMENT.1: /^[^\S\n]*\/\/(?! attr\b *\[)[^\n]*/m
%ignore COMMENT
%ignore /\n|[^\S\n]+/
"""
    + f"""
KIND.1: {whole_word(_KINDS)}
AXIS: {whole_word(KINDS)}
SCOPE: {whole_word(SCOPES)} | /"(?:{"|".join(SCOPES)})"/
DTYPE.1: {whole_word(dtypes.BY_NAME)}
"""
)


def parse(source: str) -> Kernel:
    """Return the kernel that the text describes; ParseError says line, column and what was expected."""
    return _KernelReader(source).read()


class _KernelReader(TextReader):
    kind = "loops"
    grammar = GRAMMAR
    phrases = {
        "BARRIER ALLOCATE _ATTR IF KIND LBRACE KNOWN LET NONTEMPORAL PREFETCH PRODUCE": "a statement",
        "NOT DTYPE KNOWN LPAR MINUS NUMBER": "an expression",
        "OR AND EQUALITY RELATION SUM PRODUCT": "an operator",
        "NOT_FINITE MINUS NUMBER": "a number",
        "NAME": "a name",
        "KNOWN": "a name",
        "DTYPE": "a dtype",
        "INTEGER KNOWN LPAR": "a number of elements",
        "NUMBER": "a number",
        "SCOPE": f"a scope ({', '.join(SCOPES)})",
        "AXIS": "a GPU axis",
    }

    def __init__(self, text: str):
        super().__init__(text)
        self._scope: dict[str, Var | Buffer] = {}
        self._hidden: list[tuple[str, Var | Buffer | None]] = []  # name of each binding, and what it meant outside

    # --- kernel and statements

    def start(
        self,
        name: str,
        extents: list[OpenVar] | None,
        parameters: list[Buffer],
        outputs: list[str],
        known: Expr | None,
        body: Stmt,
    ) -> Kernel:
        facts = () if known is None else tuple(conjuncts(known))
        return Kernel(name, tuple(parameters), body, frozenset(outputs), extents=tuple(extents or ()), facts=facts)

    def extent(self, name: str, low: int | None, high: int | None, definition: Expr | None) -> OpenVar:
        self._scope[name] = found = OpenVar(name, "int32", low, high, definition)
        return found

    def signed(self, minus: Token | None, number: int) -> int:
        return -number if minus else number

    def parameter(self, name: str, dtype: str, size: int | Expr) -> Buffer:
        self._scope[name] = buffer = Buffer(name, dtype, size)
        return buffer

    def output(self, name: Token) -> str:
        if name not in self._scope:
            raise self.unexpected(name, "the name of a parameter")
        return str(name)

    def _bind(self, x: Var | Buffer, statement: Callable[..., Stmt], *parts: Any) -> Callable[[Stmt], Stmt]:
        self._hidden.append((x.name, self._scope.get(x.name)))
        self._scope[x.name] = x
        return partial(statement, *parts)

    def bound(self, statement: Callable[[Stmt], Stmt], body: Stmt) -> Stmt:
        name, before = self._hidden.pop()
        if before is None:
            del self._scope[name]
        else:
            self._scope[name] = before
        return statement(body)

    def block(self, *statements: Stmt) -> Stmt:
        return seq(statements)

    def loop(self, kind: Token, var: Var, start: Expr, extent: Expr) -> Callable[[Stmt], Stmt]:
        return self._bind(var, For, var, start, extent, _KINDS[kind])

    def axis(self, var: Var, kind: Token, extent: Expr) -> Callable[[Stmt], Stmt]:
        return self._bind(var, For, var, Const(0, var.dtype), extent, str(kind))

    def let(self, name: str, value: Expr) -> Callable[[Stmt], Stmt]:
        var = Var(name, value.dtype, value.lanes)
        return self._bind(var, Let, var, value)

    def allocation(self, scoped: Any, scope: Any, name: Token, dtype: str, size: int | Expr) -> Callable[[Stmt], Stmt]:
        if scoped and scoped != name:
            raise self.unexpected(name, f"{str(scoped)!r}, whose scope this is")
        buffer = Buffer(str(name), dtype, size, scope.strip('"') if scope else "global")
        return self._bind(buffer, Allocate, buffer)

    def variable(self, name: str, dtype: str | None) -> Var:
        return Var(name, dtype or "int32")

    def branch(self, bracket: Token, condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
        return If(self.predicate(bracket, condition), then, otherwise)

    def store(self, nontemporal: Token | None, element: list[Any], value: Expr) -> Stmt:
        buffer, index, predicate = element
        return Store(buffer, index, value, predicate, nontemporal is not None)

    def predicate(self, before: Token, condition: Expr) -> Expr:
        """Return a condition, which follows a token; refuse an expression that is none."""
        if condition.dtype != "bool":
            behind = self._text[before.end_pos :]
            begin = len(self._text) - len(behind.lstrip())
            raise self.unexpected(begin, "a condition", f"an expression of type {condition.dtype}")
        return condition

    produce, barrier, prefetch = staticmethod(Produce), staticmethod(Barrier), staticmethod(Prefetch)
    NAME = DTYPE = staticmethod(str)
    INTEGER = TextReader.integer

    def buffer(self, name: Token) -> Buffer:
        return self._known(name, Buffer, "a buffer")

    def _known(self, name: Token, kind: type[T], what: str) -> T:
        found = self._scope.get(name)
        if not isinstance(found, kind):
            known = ", ".join(name for name, x in self._scope.items() if isinstance(x, kind)) or "none"
            raise self.unexpected(name, f"{what} (there are {known})")
        return found

    # --- expressions

    def binary(self, a: Expr, op: Token, b: Expr) -> Expr:
        boolean = op in LOGICAL
        if (a.dtype, a.lanes) != (b.dtype, b.lanes) or (boolean and a.dtype != "bool"):
            expected = "conditions" if boolean else "operands of one type"
            raise self.unexpected(op, expected, f"{type_text(a)} {op} {type_text(b)}")
        if op in ARITHMETIC and a.dtype == "bool":
            raise self.unexpected(op, "numbers", f"bool {op} bool")
        return Binary(str(op), a, b)

    def negation(self, mark: Token, operand: Expr) -> Expr:
        return Not(self.predicate(mark, operand))

    def known(self, name: Token) -> Expr:
        return Const(name == "true", "bool") if name in ("true", "false") else self._known(name, Var, "a variable")

    def load(self, element: list[Any]) -> Expr:
        buffer, index, predicate = element
        return Load(buffer, (index,), predicate)

    def number(self, minus: Token | None, digits: Token) -> Const:
        return self.constant(None, minus, digits)

    def constant(self, dtype: str | None, minus: Token | None, digits: Token) -> Const:
        sign = -1 if minus else 1
        suffix = digits[-1] if digits.type == "NUMBER" and digits[-1] in _SUFFIXES else ""
        number = digits.removesuffix(suffix)
        dtype = dtype or _SUFFIXES.get(suffix) or ("int32" if number.isdecimal() else "float64")
        if dtypes.is_float(dtype):
            return Const(sign * float(number), dtype)
        if not number.isdecimal():
            raise self.unexpected(digits, f"an integer of type {dtype}")
        return Const(sign * self.integer(digits), dtype)

    cast = staticmethod(Cast)

    def call(self, name: Token, *args: Expr) -> Expr:
        copies = re.fullmatch(r"x(\d+)", name)
        count = 1 if copies else _ARGUMENTS.get(name)
        if count is None:
            raise self.unexpected(name, "a function")
        if len(args) != count:
            raise self.fail(name, f"{name} takes {count} arguments, not {len(args)}")
        if copies:
            return Broadcast(args[0], int(copies[1]))
        if name in PREFIX:
            return self.binary(args[0], name, args[1])
        if name == "select":
            return Select(*args)
        if name == "ramp":
            base, stride, lanes = args
            if not isinstance(lanes, Const) or not dtypes.is_int(lanes.dtype):
                raise self.unexpected(name, "a number of lanes as last argument of ramp", str(lanes))
            return Ramp(base, stride, int(lanes.value))
        return Call(str(name), args)
