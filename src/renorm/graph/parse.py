"""Reads the text form of graphs, which graph.text writes, back into a graph.

Types are inferred anew and compared with the written ones; constants of many elements are looked up by name in the
arrays given and compared with their digest.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from math import inf, prod
from typing import Any

import numpy as np
from lark import Token

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, format_shape, maximum, minimum, static
from renorm.core.errors import ParseError, suggest
from renorm.core.parsing import TextReader, whole_word
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.layout import Layout
from renorm.graph.op import OpDef
from renorm.graph.text import digest
from renorm.graph.types import TensorType

_WORDS = {"true": True, "false": False, "none": None, "inf": np.inf, "-inf": -np.inf, "nan": np.nan}
GRAMMAR = (
    r"""
start: title "(" inputs ")" "->" "(" outputs ")" [attributes] "{" (constant | extents | node | kernel)* "}"
title: "graph" NAME
inputs: _list{input}
input: INPUT ":" type ["=" "[" _list{extent} "]"]
outputs: _list{VALUE}
constant: "const" VALUE ":" type "=" (literal | DIGEST) ["//" NAME]
extents: "extents" VALUE ":" type "=" "[" _list{extent} "]"
kernel: "kernel" NAME "{" node* "}"

node: results "=" OP "(" operands ")" [attributes] ["//" NAME [origin]]
results: result ("," result)*
result: VALUE ":" type [layout]
layout: blocks ["as" DTYPE] | "as" DTYPE -> held
blocks: "blocked" "(" AXIS "," LANES ")"
operands: _list{operand}
operand: VALUE -> known | "-" -> absent | "[" _list{VALUE} "]" -> variadic
attributes: "{" attribute ("," attribute)* ","? "}"
attribute: (NAME | CONST | EXTENTS | KERNEL) "=" literal
?literal: NUMBER | STRING | WORD | "[" _list{literal} "]" -> elements
origin: "(" _list{NAME} ")"

type: DTYPE "[" _list{extent} "]"
?extent: product | extent "+" product -> sum
?product: factor | product "*" factor
?factor: INTEGER | symbol | quotient | extreme
symbol: SYMBOL [RANGE]
quotient: "(" extent ")" (DIVIDED | REMAINDER) "(" extent ")"
extreme: SYMBOL "(" extent "," extent ")"

_list{item}: (item ("," item)* ","?)?

NAME: SYMBOL | STRING
INPUT: NAME
OP: NAME
SYMBOL: /[A-Za-z_?][\w.?]*/
STRING: /"(?:[^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u[0-9a-fA-F]{4})*"/
VALUE: "%" /[ \t\r\n]*/ NAME
NUMBER: /-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?/
INTEGER: /-?\d+(?![\d.]|[eE][+-]?\d)/
RANGE: /:\d*\.\.\d*/
AXIS: /\d+/
LANES: /\d+/
DIGEST: /#[0-9a-f]+/
CONST: "const"
KERNEL: "kernel"
EXTENTS: "extents"
DIVIDED: "//"
REMAINDER: "%"
%ignore /[ \t\r\n]+/
"""
    + f"""
DTYPE: {whole_word(dtypes.BY_SHORT)}
WORD: {whole_word(_WORDS)}
"""
)


def parse(
    text: str, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, ops: Mapping[str, type[OpDef]] | None = None
) -> Graph:
    """Return the graph that `text` writes. constants: elements of those that are written as a digest, by name. ops: by
    name, beside those that are registered. Raises ParseError with line and column; constants that are missing are named
    all at once."""
    return _GraphReader(text, constants or {}, ops or {}).read()


class _GraphReader(TextReader):
    kind = "graph"
    grammar = GRAMMAR
    phrases = {
        "NUMBER WORD STRING LSQB": "a value",
        "CONST EXTENTS KERNEL VALUE": "a constant, a node, a kernel",
        "INTEGER SYMBOL LPAR": "an extent",
        "NAME": "a name",
        "INPUT": "the name of an input",
        "OP": "the name of an op",
        "VALUE": "the name of a value (%name)",
        "DTYPE": f"a dtype ({', '.join(dtypes.BY_SHORT)})",
        "AXIS": "a number",
        "LANES": "a number",
        "DIGEST": "a digest",
    }

    def __init__(self, text: str, constants: Mapping[str, np.ndarray[Any, Any]], ops: Mapping[str, type[OpDef]]):
        super().__init__(text)
        self._given, self._ops = constants, ops
        self._graph = Graph()
        self._values: dict[str, Value] = {}
        self._symbols: dict[str, Sym] = {}
        self._missing: list[str] = []

    # --- the graph

    def start(self, title: None, inputs: Any, outputs: list[Token], attributes: Any, *items: Any) -> Graph:
        if self._missing:
            raise ParseError(
                f"graph {self._graph.name}: elements of {len(self._missing)} constants are not given",
                self._missing,
                "give them by name: parse(text, constants={name: array})",
            )
        self._graph.metadata = attributes or {}
        self._graph.outputs += map(self.known, outputs)
        return self._graph

    def title(self, name: str) -> None:
        self._graph.name = name

    def input(self, token: Token, type: TensorType, *elements: Dim | None) -> None:
        name, deciding = _name(token), [e for e in elements if e is not None]
        if deciding and (not type.is_static or prod(static(type.shape)) != len(deciding)):
            raise self.fail(token, f"{name} is {type}, which does not have {len(deciding)} elements")
        with self.located(token):
            self._values[name] = self._graph.input(name, type.dtype, type.shape)
            self._values[name].deciding = deciding

    def constant(self, token: Token, type: TensorType, elements: Any, source: str | None) -> None:
        name = _name(token)
        if not type.is_static:
            raise self.fail(token, f"%{name} is {type}, and a constant has no open extents")
        try:
            if isinstance(elements, Token):
                data = self._looked_up(token, type, elements[1:])
            else:
                data = np.asarray(elements, dtypes.numpy_dtype(type.dtype)).reshape(static(type.shape))
        except (TypeError, ValueError, OverflowError) as error:
            raise self.fail(token, f"%{name} is {type}: {error}") from None
        with self.located(token):
            self._values[name] = self._graph.constant(data, name, source or "", exact=True)

    def extents(self, token: Token, type: TensorType, *elements: Dim) -> None:
        name = _name(token)
        if not type.is_static or prod(static(type.shape)) != len(elements):
            raise self.fail(token, f"%{name} is {type}, which does not have {len(elements)} elements")
        held = np.empty(len(elements), dtype=object)
        held[:] = elements
        made = self._graph.open_constant(held.reshape(static(type.shape)), name, type.dtype)
        if made.name != name or made.is_constant:
            raise self.fail(token, f"%{name} are extents of no symbol, or those of %{made.name}")
        self._values[name] = made

    def _looked_up(self, token: Token, type: TensorType, written: str) -> np.ndarray[Any, Any]:
        name = _name(token)
        data = self._given.get(name)
        if data is None:
            self._missing.append(f"%{name}: {type}")
            return np.broadcast_to(np.zeros((), dtypes.numpy_dtype(type.dtype)), static(type.shape))  # takes no memory
        if (dtypes.from_numpy(data.dtype), data.shape) != (type.dtype, type.shape):
            raise self.fail(token, f"%{name} is {type}, but the array given is {data.dtype}{format_shape(data.shape)}")
        if digest(data) != written:
            raise self.fail(token, f"%{name} has digest {written}, but the array given has {digest(data)}")
        return data

    def kernel(self, name: str, *nodes: Node) -> None:
        self._graph.groups.append(Group(name, list(nodes)))

    # --- nodes

    def node(
        self, results: list[Any], op_name: Token, operands: list[Any], attributes: Any, name: str | None, origin: Any
    ) -> Node:
        with self.located(op_name):
            op = self._ops.get(_name(op_name)) or registry.find(_name(op_name))
        operands += [None] * (len(op.parsed.operands) - len(operands))
        first, written = results[0][0], [_name(value) for value, _, _ in results]
        with self.located(first):
            made = self._graph.apply(
                op(**attributes or {}), operands, name=name, outputs=written, origin=tuple(origin or ())
            )
        made = made if isinstance(made, tuple) else (made,)
        if len(made) != len(results):
            raise self.fail(first, f"{op.name} has {len(made)} results, {len(results)} are written")
        for value, (token, type, layout) in zip(made, results):
            if not _agree(value.type, type):
                raise self.fail(token, f"%{value.name} is written as {type} but is {value.type}")
            value.layout = layout
            value.type = type  # symbols of extents that nobody knows keep the names they have in the text
            self._values[value.name] = value
        return made[0].producer

    def known(self, token: Token) -> Value:
        name = _name(token)
        if name not in self._values:
            nearest = suggest(name, self._values) or "none"
            raise self.fail(token, f"%{name} is not defined above; nearest: {nearest}")
        return self._values[name]

    def absent(self) -> None: ...

    def variadic(self, *values: Token) -> list[Value]:
        return [self.known(v) for v in values]

    def attributes(self, *attributes: tuple[str, Any]) -> dict[str, Any]:
        return dict(attributes)

    def blocks(self, axis: int, lanes: int) -> tuple[int, int]:
        return axis, lanes

    def layout(self, blocks: tuple[int, int], dtype: Token | None) -> Layout:
        return Layout(*blocks, dtype and dtypes.lookup(dtype).name)

    def held(self, dtype: Token) -> Layout:
        return Layout(dtype=dtypes.lookup(dtype).name)

    AXIS = LANES = TextReader.integer

    def NAME(self, name: Token) -> str:
        return _name(name)

    CONST = EXTENTS = KERNEL = NAME  # they may be names of attributes

    def NUMBER(self, number: Token) -> int | float:
        return self.integer(number) if number.lstrip("-").isdecimal() else float(number)

    def STRING(self, string: Token) -> str:
        return json.loads(string)

    def WORD(self, word: Token) -> float | bool | None:
        return _WORDS[word]

    # --- types

    def type(self, dtype: Token, *extents: Dim) -> TensorType:
        return TensorType(dtypes.BY_SHORT[dtype].name, extents)

    def quotient(self, dividend: Dim, operator: Token, divisor: Dim) -> Dim:
        if divisor == 0:
            raise self.fail(operator, f"{dividend} is divided by 0")
        return dividend // divisor if operator == "//" else dividend % divisor

    sum = staticmethod(operator.add)
    product = staticmethod(operator.mul)
    INTEGER = TextReader.integer

    def extreme(self, name: Token, a: Dim, b: Dim) -> Dim:
        if name not in ("min", "max"):
            raise self.fail(name, f"{name} is neither min nor max")
        return minimum(a, b) if name == "min" else maximum(a, b)

    def symbol(self, name: Token, numbers: Token | None) -> Sym:
        if numbers is not None:
            least, _, most = numbers[1:].partition("..")
            self._symbols[name] = Sym(str(name), int(least or 0), int(most) if most else inf)
        return self._symbols.setdefault(name, Sym(str(name)))


def _name(token: Token) -> str:
    """Return the name that a token writes, bare or as a string; after a % where it is a value's."""
    text = token[1:].lstrip() if token.type == "VALUE" else token
    return json.loads(text) if text[0] == '"' else str(text)


def _agree(inferred: TensorType, written: TensorType) -> bool:
    """Equal up to extents that inference could not name."""
    return (
        inferred.dtype == written.dtype
        and inferred.rank == written.rank
        and all(a == b or (isinstance(a, Sym) and isinstance(b, Sym)) for a, b in zip(inferred.shape, written.shape))
    )
