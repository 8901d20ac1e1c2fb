"""How long a kernel takes on one core, and what bounds it, from its loops as code generators read them.

    cycles(region)   = max(multiply-adds, arithmetic, loads, stores, shuffles, instructions, sums that wait)
    cycles(loop)     = rounds * (cycles of what stands in it and of the loops in it) + what its end costs
    cycles(kernel)   = sum over stages of cycles, and of waits for bytes from each cache, Level.wait

A region is what stands in a loop and in no loop within it. A stage is a loop with all in it that takes less than some
thousand cycles a round: there, bytes come while something is computed; what takes longer has stages of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2, prod

import numpy as np

from renorm.core import dtypes
from renorm.core.machine import FILL, Level, Machine
from renorm.expr.nodes import Binary, Broadcast, Call, Cast, Const, Expr, Load, Not, OpenVar, Ramp, Select, Var
from renorm.expr.rewrite import children as parts_of
from renorm.expr.rewrite import without_lanes
from renorm.tir.footprints import Bytes, Group, Places, Span, Touched, spans
from renorm.tir.nodes import Allocate, Buffer, For, If, Let, Prefetch, Stmt, Store, children, walk
from renorm.tir.scope import typical

_NS = 0.29  # of a cycle
_DIVIDE = 5.0  # cycles of a quotient or root of 32 bytes (uops.info: vdivps ymm, Skylake to Golden Cove)
_FUNCTIONS = {"exp": 14, "sigmoid": 16, "tanh": 20, "erf": 22, "log": 20, "pow": 40}  # products of vectors of each
_FUNCTION = 30  # of others
_CHEAP = frozenset({"abs", "floor", "ceil", "round", "trunc", "likely", "isnan", "isinf", "fma", "if_then_else", "sign"})
_MOST_STEPS = 4  # between lanes, up to which whole vectors are read and shuffled: codegen.llvm.memory
# Cycles that a vector of 64 bytes and an instruction of scalars take of products of such vectors, beside which they
# run: both share ports with these (Sapphire Rapids: 24 products and 10 loads take 13.2 cycles, not 12)
_BESIDE, _SCALAR = 0.13, 0.3
_END = 15.0  # cycles of a loop's end, which is not foreseen, and of what it fills first
_STAGE = 2000.0
_WRITTEN = [2, 1, 2]
_WINDOW = 512.0
_LATE = [0.2, 0.1, 0.5]
_ROUND = 2  # instructions of a loop
_POINTS = 256
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
_AT: dict[str, Callable[..., np.ndarray]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": lambda a, b: a // np.where(b == 0, 1, b), "%": lambda a, b: a % np.where(b == 0, 1, b),
    "min": np.minimum, "max": np.maximum, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "==": np.equal, "!=": np.not_equal, "&&": np.logical_and, "||": np.logical_or,
}  # fmt: skip


@dataclass(frozen=True)
class Predicted:
    """cycles: of a core. bound: by what, in words."""

    cycles: float
    bound: str


@dataclass(eq=False)
class _Region:
    """Instructions by what executes them, of one round."""

    products: float = 0.0
    arithmetic: float = 0.0
    divisions: float = 0.0  # cycles
    loads: float = 0.0
    wide: float = 0.0  # loads of vectors and numbers that are spread
    stores: float = 0.0
    shuffles: float = 0.0
    scalars: float = 0.0
    matrix: float = 0.0  # cycles
    sums: dict[tuple[Buffer, object], int] = field(default_factory=dict[tuple[Buffer, object], int])
    spans: dict[Group, set[Span]] = field(default_factory=dict[Group, set[Span]])
    seen: set[object] = field(default_factory=set[object])
    often: float = 1.0  # how many times in a round what is counted now is done


@dataclass(eq=False)
class _Stage:
    cycles: dict[str, float]
    misses: list[Bytes]


@dataclass(eq=False)
class _Part:
    touched: Touched
    stages: list[_Stage]


class Prediction:
    """Of one kernel or phase. weights: parameters that lie where a whole network's weights do."""

    def __init__(self, machine: Machine):
        self._machine, self._width = machine, machine.vector_bytes
        self._caches = [FILL * level.nbytes for level in machine.caches]
        self._places = Places()
        self._written = set[Buffer]()
        self._points = dict[Expr, np.ndarray]()
        self._here = np.ones(_POINTS, bool)
        self._loops = list[tuple[Var, float]]()
        self._held = dict[Buffer, int]()  # how many loops are around where it begins

    def _spread(self) -> np.ndarray:
        """Return numbers from 0 to 1, others for each loop, that are spread evenly together."""
        k = len(self._points) + 1
        return np.modf(np.arange(_POINTS) * float(np.sqrt(_PRIMES[k % len(_PRIMES)])) + 0.5 / _POINTS)[0]

    def _at(self, e: Expr) -> np.ndarray:
        """Return an expression of loop variables at the points."""
        match e:
            case OpenVar():
                return np.int64(typical(e))
            case Var():
                return self._points.get(e, np.int64(0))
            case Const():
                return np.int64(e.value)
            case Binary(op=op) if op in _AT:
                return _AT[op](self._at(e.a), self._at(e.b))
            case Not():
                return ~(self._at(e.a) != 0)
            case Cast():
                return self._at(e.a)
            case Call(name="likely"):
                return self._at(e.args[0])
            case Select():
                return np.where(self._at(e.condition) != 0, self._at(e.then), self._at(e.otherwise))
            case _:
                return np.int64(1)

    def of(self, body: Stmt, far: Callable[[Buffer], Sequence[float]], same: dict[Buffer, Buffer] | None = None) -> Predicted:
        """far: of a buffer, whether it is beyond each of the caches when the kernel begins."""
        self._same = same or {}
        self._written = {self._same.get(s.buffer, s.buffer) for s in walk(body) if isinstance(s, Store) and not s.nontemporal}
        part = self._inside(body, None, 1)
        cycles = dict[str, float]()
        for stage in part.stages:
            for what, n in self._waited(stage, part, far).items():
                cycles[what] = cycles.get(what, 0.0) + n
        bound = max(cycles, key=lambda what: cycles[what], default="nothing")
        return Predicted(sum(cycles.values()), bound)

    def _waited(self, stage: _Stage, whole: _Part, far: Callable[[Buffer], Sequence[bool]]) -> dict[str, float]:
        """Return the cycles of a stage by what they are for, with waits for bytes."""
        found, m = dict(stage.cycles), self._machine
        levels: list[tuple[str, Level]] = [
            ("second-level cache", m.caches[1]), ("third-level cache", m.caches[2]), ("memory", m.memory)
        ]  # fmt: skip
        total = sum(found.values())
        for c, (name, level) in enumerate(levels):
            nbytes = 0.0
            for b, n in stage.misses[c].items():
                first = min(whole.touched.bytes.get(b, 0.0), whole.touched.misses[c].get(b, 0.0))
                once = n * first / whole.touched.misses[c][b] if whole.touched.misses[c].get(b) else 0.0
                n -= once * (1 - far(b)[c])
                nbytes += n * (_WRITTEN[c] if b in self._written else 1)
            spent = nbytes / level.rate
            wait = max(0.0, spent - total) + _LATE[c] * min(spent, total)
            if wait:
                found[name] = found.get(name, 0.0) + wait
                total += wait
        return found

    def _inside(self, body: Stmt, loop: For | None, rounds: float) -> _Part:
        """Return what a loop takes, or all, where it is no loop."""
        region, parts = _Region(), list[_Part]()
        self._visit(body, region, parts)
        own = Touched(region.spans)
        own.misses = [dict(own.bytes) for _ in self._caches]
        stages = [_Stage(self._cycles(region, loop), own.misses), *(s for p in parts for s in p.stages)]
        touched = Touched.joined([own, *(p.touched for p in parts)], self._caches)
        apart = [own, *(p.touched for p in parts)]
        for c, held in enumerate(touched.misses):
            for b, n in held.items():
                before = sum(p.misses[c].get(b, 0.0) for p in apart)
                if before != n and before:
                    for s in stages:
                        if b in s.misses[c]:
                            s.misses[c] = {**s.misses[c], b: s.misses[c][b] * n / before}
        if sum(sum(s.cycles.values()) for s in stages) < _STAGE:
            stages = [_merged(stages, len(self._caches))]
        if loop is None:
            return _Part(touched, stages)
        whole = touched.repeated(self._places, loop.var, rounds, self._caches)
        for s in stages:
            s.cycles = {what: rounds * n for what, n in s.cycles.items()}
            s.misses = [
                {b: n * whole.misses[c][b] / held[b] if (held := touched.misses[c])[b] else 0.0 for b, n in own.items()}
                for c, own in enumerate(s.misses)
            ]
        stages[0].cycles["ends of loops"] = stages[0].cycles.get("ends of loops", 0.0) + (_END if rounds > 32 else 2)
        return _Part(whole, stages)

    def _visit(self, s: Stmt, region: _Region, parts: list[_Part]) -> None:
        match s:
            case For(kind="tensorized"):
                self._matrix(s, region)
            case For():
                counts, first = np.maximum(0, self._at(s.extent)), self._at(s.start)
                rounds = float(np.mean(counts[self._here])) if counts.ndim else float(counts)
                if rounds:
                    self._points[s.var] = first + np.floor(counts * self._spread()).astype(np.int64)
                    self._loops.append((s.var, rounds))
                    parts.append(self._inside(s.body, s, rounds))
                    self._loops.pop()
            case If():
                self._value(s.condition, region)
                region.scalars += region.often
                before, often, holds = self._here, region.often, self._at(s.condition) != 0
                for branch, where in zip(children(s), (before & holds, before & ~holds)):
                    share = float(where.sum() / max(1, before.sum()))
                    if share:
                        self._here, region.often, own = where, often * share, list[_Part]()
                        self._visit(branch, region, own)
                        parts += (_scaled(p, region.often) for p in own)
                self._here, region.often = before, often
            case Let():
                self._places.bind(s.var, s.value)
                self._points[s.var] = self._at(s.value)
                self._value(s.value, region)
                self._visit(s.body, region, parts)
            case Allocate():
                self._held[s.buffer] = len(self._loops)
                self._visit(s.body, region, parts)
            case Store():
                self._store(s, region)
            case Prefetch():
                region.loads += region.often * (1)
            case _:
                for part in children(s):
                    self._visit(part, region, parts)

    def _store(self, s: Store, region: _Region) -> None:
        value, name = s.value, None
        if isinstance(value, Binary) and value.op in ("+", "max", "min", "*"):
            for x in (value.a, value.b):
                if isinstance(x, Load) and x.source is s.buffer:
                    place = self._places.of(s.buffer, s.index)
                    if self._places.of(s.buffer, x.indices[0]) == place:
                        name = s.buffer, place
        if name:
            region.sums[name] = region.sums.get(name, 0) + 1
        self._value(value, region)
        if s.predicate is not None:
            region.arithmetic += region.often * (1)
        if s.buffer.scope != "register":
            self._access(s.buffer, s.index, region, True)

    def _access(self, buffer: Buffer, index: Expr, region: _Region, is_store: bool) -> None:
        buffer = self._same.get(buffer, buffer)
        terms, first, step, lanes = self._places.of(buffer, index)
        size = dtypes.itemsize(buffer.dtype)
        name = buffer, terms, first, step, lanes, is_store
        if name in region.seen:
            return
        region.seen.add(name)
        group = buffer, terms, ()
        region.spans[group] = region.spans.get(group, set[Span]()) | spans(first, step, lanes, size)
        count = max(1, ceil(lanes * size / self._width))
        if lanes > 1 and abs(step) == size:
            aligned = all(k % self._width == 0 for _, k in terms) and first % self._width == 0
            crossing = 0.0 if aligned or lanes * size < self._width else self._width / 64
            n = count * (1 + crossing)
            region.shuffles += region.often * (count * (step < 0))
        elif lanes > 1 and step and abs(step) // size <= _MOST_STEPS and not is_store:
            n = count * abs(step) // size
            region.shuffles += region.often * (n)
        elif lanes > 1 and step:
            n = lanes
            region.shuffles += region.often * (lanes * (2 if is_store else 1))
        else:
            n = count
        if is_store:
            region.stores += region.often * (n)
        else:
            region.loads += region.often * (n)
            region.wide += region.often * (n)

    def _value(self, e: Expr, region: _Region) -> None:
        """Count what computes a value."""
        stack = [e]
        while stack:
            x = stack.pop()
            if x in region.seen:
                continue
            region.seen.add(x)
            match x:
                case Load(source=Buffer() as b):
                    if b.scope != "register":
                        self._access(b, x.indices[0], region, False)
                    continue
                case Ramp() | Broadcast():
                    pass
                case Call(name="if_then_else"):
                    region.scalars += region.often * (1)
                case Call():
                    if x.name in ("sqrt", "rsqrt"):
                        region.divisions += region.often * (self._divisions(x))
                    elif x.name in _CHEAP:
                        region.arithmetic += region.often * (self._vectors(x))
                    else:
                        region.arithmetic += region.often * (self._vectors(x) * _FUNCTIONS.get(x.name, _FUNCTION))
                        region.divisions += region.often * (self._divisions(x) if x.name in ("sigmoid", "tanh") else 0.0)
                case Binary(op="/") if dtypes.is_float(x.dtype) and not _is_power(x.b):
                    region.divisions += region.often * (self._divisions(x))
                case Binary(op="+" | "-") if dtypes.is_float(x.dtype) and (p := _product(x)) is not None:
                    region.products += region.often * (self._vectors(x))
                    stack += parts_of(p)
                    stack += (y for y in (x.a, x.b) if y is not p)
                    continue
                case Binary() | Select() | Cast() | Not():
                    if x.lanes > 1 or dtypes.is_float(x.dtype):
                        region.arithmetic += region.often * (self._vectors(x))
                    else:
                        region.scalars += region.often * (1)
                case _:
                    pass
            stack += parts_of(x)

    def _divisions(self, e: Expr) -> float:
        return _DIVIDE * max(1.0, e.lanes * dtypes.itemsize(e.dtype) / 32)

    def _vectors(self, e: Expr) -> float:
        return max(1, ceil(e.lanes * dtypes.itemsize(e.dtype) / self._width))

    def _matrix(self, s: For, region: _Region) -> None:
        raise NotImplementedError

    def _cycles(self, r: _Region, loop: For | None) -> dict[str, float]:
        """Return the cycles of one round by what bounds it; nothing where there is nothing."""
        m = self._machine
        vectors = r.products + r.arithmetic
        r.scalars += _ROUND if loop is not None else 0
        instructions = vectors + r.loads + r.stores + r.shuffles + r.scalars
        waits = 0.0
        for (buffer, (terms, *_)), n in r.sums.items():
            around = self._loops[self._held.get(buffer, 0) :]
            carried = [k for var, k in around if not any(var in self._places.variables(a) for a, _ in terms)]
            waits = max(waits, n * m.latency * min(1.0, instructions * prod(carried) / _WINDOW))
        beside = _BESIDE * r.wide + _SCALAR * r.scalars if self._width == 64 else 0.0
        busy = {
            "multiply-adds" if r.products >= r.arithmetic else "arithmetic": vectors / m.products + beside,
            "divisions": r.divisions,
            "loads": r.loads / m.loads,
            "stores": r.stores,
            "shuffles": r.shuffles,
            "instructions": instructions / m.issue,
            "sums that wait": waits,
            "products of matrices": r.matrix,
        }
        most = max(busy, key=lambda what: busy[what])
        return {most: busy[most]} if busy[most] else {}


def _product(x: Binary) -> Binary | None:
    """Return the product that an addition becomes one multiply-add with."""
    return next((y for y in (x.a, x.b) if isinstance(y, Binary) and y.op == "*"), None)


def _merged(stages: Iterable[_Stage], caches: int) -> _Stage:
    found = _Stage({}, [{} for _ in range(caches)])
    for s in stages:
        for held, own in zip((found.cycles, *found.misses), (s.cycles, *s.misses)):
            for k, n in own.items():
                held[k] = held.get(k, 0.0) + n  # type: ignore
    return found


def _scaled(p: _Part, share: float) -> _Part:
    """Return what is done in a part of all rounds."""
    for s in p.stages:
        s.cycles = {what: n * share for what, n in s.cycles.items()}
        s.misses = [{b: n * share for b, n in m.items()} for m in s.misses]
    p.touched.misses = [{b: n * share for b, n in m.items()} for m in p.touched.misses]
    return p


def _is_power(e: Expr) -> bool:
    """Return whether a quotient by this is a product."""
    e = without_lanes(e)
    return isinstance(e, Const) and float(e.value) > 0 and log2(float(e.value)).is_integer()
