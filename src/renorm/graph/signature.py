"""Signatures: one line that says operands, their types and shapes, and results; unified against actual types.

    signature ::= operands "->" results
    operand   ::= ["*"] name ["?" | "!"] ":" dtype "[" dims "]"
    dims      ::= "..." | dim ("," dim)*        dim ::= integer | NAME | "*" NAME

`?` may be left out, `!` must be known at compile time (`!?` both), `*` before an operand takes any number of them.
dtype is a short name, or a type variable, of the types that the op's `types` list for it, or of any type. An upper-case
name is one extent, the same wherever it stands; `*S` is any number of them; `...` says nothing (a result's shape then
comes from `infer`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from renorm.core import dtypes
from renorm.core.dims import Dim, Shape, format_shape, take
from renorm.core.errors import OperandError
from renorm.graph.types import Operand, TensorType


@dataclass(frozen=True)
class Parameter:
    name: str
    dtype: str  # a short name or a type variable
    dims: tuple[str, ...] | None  # None for "..."
    is_optional: bool = False
    is_static: bool = False
    is_variadic: bool = False


@dataclass
class Bindings:
    """The result of unification. dtypes: type variables; extents: one Dim, or a tuple of them for a starred name."""

    dtypes: dict[str, str] = field(default_factory=dict[str, str])
    extents: dict[str, Dim] = field(default_factory=dict[str, Dim])
    spans: dict[str, Shape] = field(default_factory=dict[str, Shape])
    where: dict[str, str] = field(default_factory=dict[str, str])  # which operand bound a name, for messages


@dataclass(frozen=True)
class Signature:
    operands: tuple[Parameter, ...]
    results: tuple[Parameter, ...]

    def unify(
        self, op: str, operands: Sequence[Operand | Sequence[Operand] | None], types: Mapping[str, Sequence[str]]
    ) -> Bindings:
        """Binds dtypes and extents; raises OperandError that names every mismatch."""
        bound, problems = Bindings(), list[str]()
        for parameter, given in zip(self.operands, operands, strict=True):
            if given is None:
                continue
            for operand in (given,) if isinstance(given, Operand) else given:
                _unify_dtype(parameter, operand, types, bound, problems)
                _unify_shape(parameter, operand, bound, problems)
        if problems:
            shown = [str(o) for g in operands if g is not None for o in ((g,) if isinstance(g, Operand) else g)]
            raise OperandError(f"{op}({', '.join(shown)}): {problems[0]}", problems[1:])
        return bound

    def result_types(self, bound: Bindings) -> list[TensorType | None]:
        """Types of results that the signature alone gives; None where only `infer` knows."""
        found: list[TensorType | None] = []
        for r in self.results:
            dtype = bound.dtypes.get(r.dtype) or (dtypes.BY_SHORT[r.dtype].name if r.dtype in dtypes.BY_SHORT else None)
            if r.dims is None or dtype is None or r.is_variadic:
                found.append(None)
                continue
            shape: list[Dim] = []
            for d in r.dims:
                if d.startswith("*"):
                    shape.extend(bound.spans[d[1:]])
                else:
                    shape.append(int(d) if d.isdigit() else bound.extents[d])
            found.append(TensorType(dtype, tuple(shape)))
        return found


_PARAMETER = re.compile(r"\s*(\*?)(\w+)([!?]*)\s*:\s*(\w+)\s*\[([^\]]*)\]\s*")


def parse(text: str) -> Signature:
    """The Signature that `text` writes; raises OperandError on a mistake in it."""
    sides = text.split("->")
    if len(sides) != 2:
        raise OperandError(f"signature {text!r} needs exactly one '->'")

    def side(s: str) -> tuple[Parameter, ...]:
        found, at = list[Parameter](), 0
        while at < len(s.rstrip()):
            m = _PARAMETER.match(s, at)
            if m is None:
                raise OperandError(f"signature {text!r}: cannot read {s[at:].strip()!r}", do="write name: dtype[dims]")
            star, name, marks, dtype, dims = m.groups()
            listed = None if dims.strip() == "..." else tuple(d.strip() for d in dims.split(",") if d.strip())
            found.append(Parameter(name, dtype, listed, "?" in marks, "!" in marks, bool(star)))
            at = m.end()
            if at < len(s) and s[at] == ",":
                at += 1
        return tuple(found)

    return Signature(side(sides[0]), side(sides[1]))


def _unify_dtype(
    p: Parameter, operand: Operand, types: Mapping[str, Sequence[str]], bound: Bindings, problems: list[str]
) -> None:
    if p.dtype in dtypes.BY_SHORT:
        allowed: Sequence[str] = (dtypes.BY_SHORT[p.dtype].name,)
    elif p.dtype in bound.dtypes:
        if operand.dtype != bound.dtypes[p.dtype]:
            first = bound.where[p.dtype]
            problems.append(f"{operand.name} is {operand.dtype} but {first} is {bound.dtypes[p.dtype]}")
        return
    else:
        allowed = types.get(p.dtype, dtypes.MOVED)
    if operand.dtype not in allowed:
        problems.append(f"{operand.name} is {operand.dtype}, not one of {', '.join(allowed)}")
    elif p.dtype not in dtypes.BY_SHORT:
        bound.dtypes[p.dtype] = operand.dtype
        bound.where[p.dtype] = operand.name


def _unify_shape(p: Parameter, operand: Operand, bound: Bindings, problems: list[str]) -> None:
    if p.dims is None:
        return
    shape, n = operand.shape, len(p.dims)
    stars = [i for i, d in enumerate(p.dims) if d.startswith("*")]
    if (not stars and len(shape) != n) or len(shape) < n - len(stars):
        least = "at least " if stars else ""
        problems.append(f"{operand.name} has rank {len(shape)} {format_shape(shape)}, expected {least}{n - len(stars)}")
        return
    star = stars[0] if stars else n
    tail = n - star - 1 if stars else 0
    pairs = list(zip(p.dims[:star], shape[:star])) + (
        list(zip(p.dims[star + 1 :], shape[len(shape) - tail :])) if stars else []
    )
    for d, extent in pairs:
        if d.isdigit():
            if extent != int(d) and isinstance(extent, int):
                problems.append(f"{operand.name} has {extent} where {d} is expected")
            take(extent, "==", int(d))
            continue
        seen = bound.extents.get(d)
        if seen is None:
            bound.extents[d], bound.where[d] = extent, operand.name
        elif seen != extent and isinstance(seen, int) and isinstance(extent, int):
            problems.append(f"{operand.name} has {d} = {extent} but {bound.where[d]} has {d} = {seen}")
        else:
            take(extent, "==", seen)
            bound.extents[d] = extent if isinstance(extent, int) else seen
    if stars:
        name, span = p.dims[star][1:], tuple(shape[star : len(shape) - tail])
        seen_span = bound.spans.get(name)
        if seen_span is None:
            bound.spans[name], bound.where["*" + name] = span, operand.name
        elif len(seen_span) != len(span) or any(
            a != b and isinstance(a, int) and isinstance(b, int) for a, b in zip(seen_span, span)
        ):
            where = bound.where["*" + name]
            problems.append(
                f"{operand.name} has {name} = {format_shape(span)} but {where} has {format_shape(seen_span)}"
            )
        else:
            for a, b in zip(seen_span, span):
                take(a, "==", b)
