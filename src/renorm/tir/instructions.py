"""Instructions of statements that no loop stands in, counted by what executes them.

What is computed twice counts once, as does an address that is read twice. Vectors that lie across two cache lines are
two accesses. Elements that are some steps apart are whole vectors, and shuffles that pick from them; other elements are
an access each (codegen.llvm.memory).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log2

from renorm.core import dtypes
from renorm.core.machine import Machine
from renorm.expr.nodes import Binary, Call, Cast, Const, Expr, Load, Not, Select, Var
from renorm.expr.rewrite import children, without_lanes
from renorm.tir.footprints import LINE, Group, Place, Places, Span, is_same, spans
from renorm.tir.nodes import Buffer, Store

_QUOTIENT = 5.0  # cycles of quotients and roots of 32 bytes (uops.info: vdivps ymm, Skylake to Golden Cove)
# Products of vectors that functions take, as the polynomials of codegen.llvm.math
_FUNCTIONS = {"exp": 14, "sigmoid": 16, "tanh": 20, "erf": 22, "log": 20, "pow": 40}
_FUNCTION = 30
_CHEAP = frozenset(
    {"abs", "floor", "ceil", "round", "trunc", "likely", "isnan", "isinf", "fma", "if_then_else", "sign", "bitcast"}
)
_MOST_STEPS = 4  # between elements of which whole vectors are read
# Cycles that an instruction on numbers takes from products of 64 bytes, beside which it runs: Intel's share ports with
# these. Sapphire Rapids: loops of 16 products take 10 to 15 % longer than without what counts their rounds
_NUMBER = 0.3


@dataclass(eq=False)
class Region:
    """Instructions of one round. often: how often in a round what is counted now is done. sums: by place, what is added
    to it one after the other. spans: what is touched."""

    products: float = 0.0
    arithmetic: float = 0.0
    quotients: float = 0.0  # cycles
    loads: float = 0.0
    stores: float = 0.0
    shuffles: float = 0.0
    numbers: float = 0.0  # on no vectors
    often: float = 1.0
    sums: dict[tuple[Buffer, Place], float] = field(default_factory=dict[tuple[Buffer, Place], float])
    spans: dict[Group, set[Span]] = field(default_factory=dict[Group, set[Span]])
    seen: set[object] = field(default_factory=set[object])

    @property
    def all(self) -> float:
        return self.products + self.arithmetic + self.loads + self.stores + self.shuffles + self.numbers

    def busy(self, machine: Machine) -> dict[str, float]:
        """Return for how many cycles of a round what executes them is busy."""
        vectors = (self.products + self.arithmetic) / machine.products
        if machine.vector_bytes == LINE:
            vectors += machine.loaded / machine.products * self.loads + _NUMBER * self.numbers
        return {
            "multiply-adds" if self.products >= self.arithmetic else "arithmetic": vectors,
            "quotients": self.quotients,
            "loads": self.loads / machine.loads,
            "stores": self.stores,
            "shuffles": self.shuffles,
            "instructions": self.all / machine.issue,
        }


class Counter:
    """Counts into regions. same: buffers that lie where others do."""

    def __init__(self, width: int, places: Places, same: Mapping[Buffer, Buffer]):
        self._width, self._places, self._same = width, places, same

    def store(self, s: Store, region: Region) -> None:
        operands = (s.value.a, s.value.b) if isinstance(s.value, Binary) else ()
        held = next((x for x in operands if isinstance(x, Load) and x.source is s.buffer), None)
        if held is not None:
            place = self._places.of(s.buffer, s.index)
            if held.indices[0] is s.index or is_same(place, self._places.of(s.buffer, held.indices[0])):
                region.sums[s.buffer, place] = region.sums.get((s.buffer, place), 0.0) + region.often
        self.value(s.value, region)
        if s.predicate is not None:
            region.arithmetic += region.often
        self._access(s.buffer, s.index, region, True)

    def touch(self, buffer: Buffer, index: Expr, region: Region) -> None:
        """Note what an access touches."""
        buffer = self._same.get(buffer, buffer)
        terms, first, step, lanes = self._places.of(buffer, index)
        group = buffer, terms, ()
        region.spans.setdefault(group, set[Span]()).update(spans(first, step, lanes, dtypes.itemsize(buffer.dtype)))

    def _access(self, buffer: Buffer, index: Expr, region: Region, is_store: bool) -> None:
        if buffer.scope == "register":
            return
        terms, first, step, lanes = place = self._places.of(buffer, index)
        name = buffer, place, is_store
        if name in region.seen:
            return
        region.seen.add(name)
        self.touch(buffer, index, region)
        size, often = dtypes.itemsize(buffer.dtype), region.often
        count, steps = max(1, ceil(lanes * size / self._width)), abs(step) // size
        if lanes == 1 or step == 0:
            accesses = count
        elif steps == 1:
            aligned = first % self._width == 0 and all(k % self._width == 0 for _, k in terms)
            accesses = count * (1.0 if aligned or lanes * size < self._width else 1.0 + self._width / LINE)
            region.shuffles += often * count * (step < 0)
        elif steps <= _MOST_STEPS and not is_store:
            accesses = count * steps
            region.shuffles += often * accesses
        else:
            accesses = lanes
            region.shuffles += often * lanes * (2 if is_store else 1)
        if is_store:
            region.stores += often * accesses
        else:
            region.loads += often * accesses

    def value(self, e: Expr, region: Region) -> None:
        """Count what computes a value. Indices are computed outside of loops, mostly, and count nothing."""
        stack, often, seen = [e], region.often, region.seen
        while stack:
            x = stack.pop()
            if x in seen or isinstance(x, (Const, Var)):
                continue
            seen.add(x)
            if isinstance(x, Load):
                if isinstance(x.source, Buffer):
                    self._access(x.source, x.indices[0], region, False)
                continue
            parts = children(x)
            if isinstance(x, Call):
                if x.name in ("sqrt", "rsqrt"):
                    region.quotients += often * self._quotient(x)
                else:
                    count = 1 if x.name in _CHEAP else _FUNCTIONS.get(x.name, _FUNCTION)
                    region.arithmetic += often * count * self._vectors(x)
            elif isinstance(x, (Binary, Select, Cast, Not)):
                product = _product(x)
                if product is not None:
                    region.products += often * self._vectors(x)
                    parts = (*children(product), *(y for y in parts if y is not product))
                elif isinstance(x, Binary) and x.op == "/" and dtypes.is_float(x.dtype) and not _is_power(x.b):
                    region.quotients += often * self._quotient(x)
                elif x.lanes > 1 or dtypes.is_float(x.dtype):
                    region.arithmetic += often * self._vectors(x)
                else:
                    region.numbers += often
            stack += parts

    def _quotient(self, e: Expr) -> float:
        return _QUOTIENT * max(1.0, e.lanes * dtypes.itemsize(e.dtype) / 32)

    def _vectors(self, e: Expr) -> float:
        return max(1, ceil(e.lanes * dtypes.itemsize(e.dtype) / self._width))


def _product(x: Expr) -> Binary | None:
    """Return the product with which a sum or difference becomes one multiply-add."""
    if not (isinstance(x, Binary) and x.op in ("+", "-") and dtypes.is_float(x.dtype)):
        return None
    return next((y for y in (x.a, x.b) if isinstance(y, Binary) and y.op == "*"), None)


def _is_power(e: Expr) -> bool:
    """Return whether a quotient by this is a product."""
    e = without_lanes(e)
    return isinstance(e, Const) and float(e.value) > 0 and log2(float(e.value)).is_integer()
