"""Reads the text form of graphs (grammar in graph.text) back into a graph.

Types are inferred anew and compared with the written ones; constants of many elements are looked up by name in the
arrays given and compared with their digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, format_shape, static
from renorm.core.errors import ParseError, RenormError, suggest
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.layout import Blocked
from renorm.graph.op import OpDef
from renorm.graph.text import digest
from renorm.graph.types import TensorType

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)|(?P<newline>\n)|(?P<comment>//[
    ](?=[\w"]))|(?P<string>"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")|(?P<arrow>->)|(?P<divide>//)
    |(?P<digest>\#[0-9a-f]+)|(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<infinity>-inf)
    |(?P<word>[A-Za-z_?][\w.?]*)|(?P<mark>[-%(){}\[\]:,=+*])""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"-?\d+")
T = TypeVar("T")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int
    column: int


def parse(
    text: str, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, ops: Mapping[str, type[OpDef]] | None = None
) -> Graph:
    """Return the graph that `text` writes. constants: elements of those that are written as a digest, by name. ops: by
    name, beside those that are registered. Raises ParseError with line and column; constants that are missing are named
    all at once."""
    try:
        return _Parser(text, constants or {}, ops or {}).graph()
    except RecursionError:
        raise ParseError("the text has too many brackets within each other") from None


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, np.ndarray[Any, Any]], ops: Mapping[str, type[OpDef]]):
        self._tokens, self._at = _tokens(text), 0
        self._given, self._ops = constants, ops
        self._graph = Graph()
        self._values: dict[str, Value] = {}
        self._missing: list[str] = []

    # --- tokens

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _fail(self, message: str, token: _Token | None = None, do: str | None = None) -> ParseError:
        t = token or self._next
        return ParseError(f"line {t.line}, column {t.column}: {message}", do=do)

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _is(self, text: str) -> bool:
        return self._next.text == text and self._next.kind != "string"

    def _accept(self, text: str) -> bool:
        if self._is(text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> _Token:
        if not self._is(text):
            raise self._fail(f"expected {text!r}, found {self._next.text or 'the end of the text'!r}")
        return self._take()

    def _list(self, item: Callable[[], T], close: str = ")") -> list[T]:
        """Return items separated by commas, up to the mark that closes them."""
        found: list[T] = []
        while not self._accept(close):
            found.append(item())
            if not self._is(close):
                self._expect(",")
        return found

    def _name(self) -> str:
        token = self._take()
        if token.kind not in ("string", "word"):
            raise self._fail(f"expected a name, found {token.text!r}", token)
        return _plain(token)

    # --- grammar

    def graph(self) -> Graph:
        graph = self._graph
        self._expect("graph")
        graph.name = self._name()
        self._expect("(")
        self._list(self._input)
        self._expect("->")
        self._expect("(")
        outputs = self._list(lambda: (self._expect("%"), self._name()))
        graph.metadata = self._attributes() if self._attributes_follow() else {}
        self._expect("{")
        graph.reserve(self._results_named())
        while not self._accept("}"):
            if self._is("const"):
                self._constant()
            elif self._is("kernel"):
                self._take()
                group = Group(self._name(), [])
                self._expect("{")
                while not self._accept("}"):
                    group.nodes.append(self._node())
                graph.groups.append(group)
            else:
                self._node()
        if self._next.kind != "end":
            raise self._fail(f"expected the end of the text, found {self._next.text!r}")
        if self._missing:
            raise ParseError(
                f"graph {graph.name}: elements of {len(self._missing)} constants are not given",
                self._missing,
                "give them by name: parse(text, constants={name: array})",
            )
        graph.outputs += [self._known(token, name) for token, name in outputs]
        return graph

    def _input(self) -> None:
        token = self._next
        name, type = self._name(), self._type()
        self._define(token, name, self._graph.input(name, type.dtype, type.shape))

    def _attributes_follow(self) -> bool:
        """Two braces in a row open attributes and the body; one opens the body. Attributes begin with `name =`."""
        return self._is("{") and self._tokens[self._at + 2].text == "=" and self._tokens[self._at + 1].kind == "word"

    def _results_named(self) -> list[str]:
        """Return all names after a %, so that no name that is made up on the way takes one of them."""
        return [_plain(b) for a, b in zip(self._tokens, self._tokens[1:]) if a.text == "%" and a.kind == "mark"]

    def _define(self, token: _Token, name: str, value: Value) -> None:
        if name in self._values:
            raise self._fail(f"%{name} is defined twice", token)
        self._values[name] = value

    def _known(self, token: _Token, name: str) -> Value:
        if name not in self._values:
            raise self._fail(f"%{name} is not defined above; nearest: {suggest(name, self._values) or 'none'}", token)
        return self._values[name]

    def _type(self) -> TensorType:
        self._expect(":")
        token = self._take()
        if token.text not in dtypes.BY_SHORT:
            raise self._fail(f"{token.text!r} is not a dtype", token, f"known: {', '.join(dtypes.BY_SHORT)}")
        self._expect("[")
        return TensorType(dtypes.BY_SHORT[token.text].name, tuple(self._list(self._extent, "]")))

    def _layout(self) -> Blocked | None:
        if not self._accept("blocked"):
            return None
        self._expect("(")
        axis = self._number()
        self._expect(",")
        lanes = self._number()
        self._expect(")")
        return Blocked(axis, lanes)

    def _number(self) -> int:
        token = self._take()
        if not token.text.isdecimal():
            raise self._fail(f"expected a number, found {token.text!r}", token)
        return int(token.text)

    def _extent(self) -> Dim:
        total = self._product()
        while self._accept("+"):
            total = total + self._product()
        return total

    def _product(self) -> Dim:
        total = self._atom()
        while self._accept("*"):
            total = total * self._atom()
        return total

    def _atom(self) -> Dim:
        token = self._take()
        if token.text == "(":
            left = self._extent()
            self._expect(")")
            operator = self._take()
            if operator.text not in ("//", "%"):
                raise self._fail(f"expected '//' or '%', found {operator.text!r}", operator)
            self._expect("(")
            right = self._extent()
            self._expect(")")
            return left // right if operator.text == "//" else left % right
        if _INTEGER.fullmatch(token.text):
            return int(token.text)
        if token.kind != "word":
            raise self._fail(f"expected an extent, found {token.text!r}", token)
        return Sym(token.text)

    def _constant(self) -> None:
        self._expect("const")
        token = self._expect("%")
        name, type = self._name(), self._type()
        self._expect("=")
        if not type.is_static:
            raise self._fail(f"%{name} is {type}, and a constant has no open extents", token)
        shape = static(type.shape)
        if self._next.kind == "digest":
            written = self._take().text[1:]
            data = self._given.get(name)
            if data is None:
                self._missing.append(f"%{name}: {type}")
                data = np.zeros(shape, dtypes.numpy_dtype(type.dtype))
            elif (dtypes.from_numpy(data.dtype), data.shape) != (type.dtype, shape):
                raise self._fail(
                    f"%{name} is {type}, but the array given is {data.dtype}{format_shape(data.shape)}", token
                )
            elif digest(data) != written:
                raise self._fail(f"%{name} has digest {written}, but the array given has {digest(data)}", token)
        else:
            elements = self._literal()
            try:
                data = np.asarray(elements, dtypes.numpy_dtype(type.dtype)).reshape(shape)
            except (TypeError, ValueError) as error:
                raise self._fail(f"%{name} is {type}: {error}", token) from None
        source = self._name() if self._comment() else ""
        self._define(token, name, self._graph.constant(data, name, source, exact=True))

    def _node(self) -> Node:
        start = self._next
        results = [self._result()]
        while self._accept(","):
            results.append(self._result())
        self._expect("=")
        at = self._next
        name = self._name()
        op = self._ops.get(name)
        try:
            op = op or registry.find(name)
        except RenormError as error:
            raise self._fail(str(error), at) from None
        self._expect("(")
        operands = self._list(self._operand)
        attributes = self._attributes() if self._attributes_follow() else {}
        node_name, origin = None, ()
        if self._comment():
            node_name = self._name()
            origin = tuple(self._list(self._name)) if self._accept("(") else ()
        operands += [None] * (len(op.parsed.operands) - len(operands))
        try:
            made = self._graph.apply(
                op(**attributes), operands, name=node_name, outputs=[r[1] for r in results], origin=origin
            )
        except RenormError as error:
            raise self._fail(str(error), start) from error
        values = made if isinstance(made, tuple) else (made,)
        if len(values) != len(results):
            raise self._fail(f"{name} has {len(values)} results, {len(results)} are written", start)
        for value, (token, result, type, layout) in zip(values, results):
            if not _agree(value.type, type):
                raise self._fail(f"%{result} is written as {type} but is {value.type}", token)
            value.layout = layout
            value.type = type  # symbols of extents that nobody knows keep the names they have in the text
            self._define(token, result, value)
        node = values[0].producer
        assert node is not None
        return node

    def _result(self) -> tuple[_Token, str, TensorType, Blocked | None]:
        return self._expect("%"), self._name(), self._type(), self._layout()

    def _operand(self) -> Any:
        if self._accept("-"):
            return None
        if self._accept("["):
            return self._list(lambda: self._known(self._expect("%"), self._name()), "]")
        return self._known(self._expect("%"), self._name())

    def _comment(self) -> bool:
        if self._next.kind == "comment":
            self._at += 1
            return True
        return False

    def _attributes(self) -> dict[str, Any]:
        self._expect("{")
        return dict(self._list(self._attribute, "}"))

    def _attribute(self) -> tuple[str, Any]:
        name = self._name()
        self._expect("=")
        return name, self._literal()

    def _literal(self) -> Any:
        token = self._take()
        if token.text == "[" and token.kind == "mark":
            return self._list(self._literal, "]")
        if token.kind == "string":
            return json.loads(token.text)
        if token.kind == "number":
            return int(token.text) if _INTEGER.fullmatch(token.text) else float(token.text)
        words = {"true": True, "false": False, "none": None, "inf": np.inf, "-inf": -np.inf, "nan": np.nan}
        if token.text not in words:
            raise self._fail(f"expected a value, found {token.text!r}", token)
        return words[token.text]


def _plain(token: _Token) -> str:
    return json.loads(token.text) if token.kind == "string" else token.text


def _agree(inferred: TensorType, written: TensorType) -> bool:
    """Equal up to extents that inference could not name."""
    return (
        inferred.dtype == written.dtype
        and inferred.rank == written.rank
        and all(a == b or (isinstance(a, Sym) and isinstance(b, Sym)) for a, b in zip(inferred.shape, written.shape))
    )


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at, line, start = 0, 1, 0
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None:
            raise ParseError(f"line {line}, column {at - start + 1}: cannot read {text[at : at + 10]!r}")
        kind = m.lastgroup or ""
        if kind == "newline":
            line, start = line + 1, m.end()
        elif kind != "space":
            found.append(_Token(kind, m.group(), line, at - start + 1))
        at = m.end()
    end = _Token("end", "", line, at - start + 1)
    return [*found, end, end, end]
