"""When two groups have the same kernel: a key of what lowering reads of a group, names erased.

Values become numbers in order of appearance. A group in which a user's code takes part (an override, an op from
another package) has no key: nothing would tell when that code changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import extents, records
from renorm.core.dims import Dim, Sym, Symbol, static, substitute, substitute_shape
from renorm.core.target import Target
from renorm.driver.extents import OwnSymbols, is_extents
from renorm.driver.lowering import SCALAR, LoweredGroup, Parameter, group_results
from renorm.graph import registry
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.strided_region import strides
from renorm.runtime.report import WorkRecord
from renorm.topi.layout import Blocking


def group_values(group: Group) -> list[Value]:
    """Return all values of a group, each once, in order of appearance: what the numbers of a key and a Lowering
    mean."""
    return list(dict.fromkeys(v for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None))


def group_key(graph: Graph, group: Group, target: Target, users: dict[Value, list[Node]], *context: str) -> str | None:
    """Equal where lowering gives kernels of equal structure; 64 hexadecimal digits, or None where there is no key.
    context: the target (the host's CPU resolved) and versions."""
    numbers = {v: i for i, v in enumerate(group_values(group))}
    own = OwnSymbols(graph, group)
    numbered = _numbered(own)
    try:
        tokens = [_node(n, numbers, target) for n in group.nodes]
        values = [_value(v, lambda d: substitute(own.of(d), numbered)) for v in numbers]
    except _NoKeyError:
        return None
    results = [numbers[v] for v in group_results(graph, group, users)]
    empty = [[one.is_made, *(s in one.symbols for s in own.values)] for one in own.empty]
    facts = [[c.relation, *(extents.plain(substitute(d, numbered)) for d in (c.left, c.right))] for c in own.facts]
    text = json.dumps([context, tokens, values, results, list(own.typical.values()), empty, facts])
    return hashlib.sha256(text.encode()).hexdigest()


class _NoKeyError(Exception):
    pass


def _numbered(own: OwnSymbols) -> dict[Symbol, Dim]:
    """Return symbols whose names are numbers, for those of a group, in their order."""
    return {s: Sym(Symbol(str(i), s.least, s.most)) for i, s in enumerate(own.values)}


def _node(node: Node, numbers: dict[Value, int], target: Target) -> Any:
    kind = type(node.op)
    if not registry.is_own(kind) or registry.overridden(node.op.name, target) != registry.Override():
        raise _NoKeyError
    operands: list[Any] = []
    for parameter, operand in zip(node.op.parsed.operands, node.operands, strict=True):
        for v in operand if isinstance(operand, list) else [operand]:
            operands.append(None if v is None else [numbers[v], _elements(v) if parameter.is_static else None])
        operands.append(parameter.name)
    attributes = {k: _attribute(v) for k, v in sorted(node.op.values.items())}
    return [kind.__module__, kind.__qualname__, attributes, operands, [numbers[v] for v in node.outputs]]


def _attribute(value: Any) -> Any:
    if value is None or type(value) in (int, float, bool, str):
        return [type(value).__name__, repr(value)]
    if isinstance(value, tuple):
        return [_attribute(v) for v in value]
    raise _NoKeyError


def _value(v: Value, numbered: Callable[[Dim], Dim]) -> Any:
    shape = [extents.plain(numbered(d)) for d in v.shape]
    is_scalar = v.is_constant and prod(static(v.shape)) == SCALAR
    held = _elements(v) if is_scalar else None
    if is_extents(v) and v.known is not None:
        held = [extents.plain(numbered(d)) for d in v.known.flat]
    return [v.dtype, shape, repr(v.layout), strides(v), v.is_constant, held]


def _elements(v: Value) -> Any:
    """Return all elements of what lowering reads at compile time."""
    if (data := v.told) is None:
        raise _NoKeyError
    return [str(data.dtype), data.shape, hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()]


@dataclass(frozen=True)
class KernelCall:
    """A kernel of the program and what its parameters are: first what it reads, then what it writes. work: what
    it must do at least. extents: of the network, for which its own stand."""

    name: str
    reads: tuple[Parameter, ...]
    writes: tuple[Value, ...]
    work: WorkRecord
    extents: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class Read:
    """The value that a parameter reads, as a number instead of a name. form: as of a Parameter."""

    value: int
    form: Blocking | None


@dataclass(frozen=True)
class Lowering:
    """A lowered group, names erased.

    structure: of its kernel (codegen.structural_hash). reads: of each parameter. writes: numbers of values. work: as in
    KernelCall. extents: the same, of the group's own symbols, which are numbered in their order.
    """

    structure: str
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    work: WorkRecord
    extents: tuple[Dim, ...] = ()

    @staticmethod
    def of(graph: Graph, group: Group, structure: str, lowered: LoweredGroup) -> Lowering:
        numbers = {v: i for i, v in enumerate(group_values(group))}
        reads = tuple(Read(numbers[p.value], p.form) for p in lowered.reads)
        symbols = _numbered(OwnSymbols(graph, group))
        extents, work = substitute_shape(lowered.extents, symbols), lowered.work.substituted(symbols)
        return Lowering(structure, reads, tuple(numbers[v] for v in lowered.writes), work, extents)

    def call(self, graph: Graph, group: Group) -> KernelCall:
        """Return how a group of the same key is run."""
        values = group_values(group)
        reads = tuple(Parameter(values[r.value], r.form) for r in self.reads)
        own = {str(i): d for i, d in enumerate(OwnSymbols(graph, group).values.values())}
        extents, work = substitute_shape(self.extents, own), self.work.substituted(own)
        return KernelCall(group.name, reads, tuple(values[i] for i in self.writes), work, extents)

    def encode(self) -> bytes:
        return json.dumps(records.plain(self), separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> Lowering:
        """Return the group that `encode` wrote."""
        return records.record(Lowering, json.loads(data))
