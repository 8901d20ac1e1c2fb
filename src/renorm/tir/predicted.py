"""How long loops take on one core, and what bounds them, as code generators read them.

    cycles(region) = max over what executes instructions of the cycles for which it is busy, and sums that wait
    cycles(loop)   = rounds * (cycles of the region in it and of the loops in it) + its end
    cycles(stage)  = cycles of its loops, then for each cache the part of the time for its bytes that is not hidden
    cycles(kernel) = sum over stages

A region is what stands in a loop and in no loop within it (tir.instructions). A stage is a loop whose rounds take less
than some thousand cycles, with all in it: bytes (tir.footprints) come while something is computed. A round that takes
longer consists of stages. A sum waits for itself where one sum fills the window in which a core looks for instructions;
of shorter ones several go on at the same time:

    waits = additions * latency * min(1, instructions of the whole sum / window)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from renorm.core.dtypes import itemsize
from renorm.core.machine import FEWEST, FILL, Machine
from renorm.expr.nodes import Expr, Var
from renorm.expr.rewrite import loads
from renorm.tir.footprints import Bytes, Places, Touched
from renorm.tir.instructions import Counter, Region
from renorm.tir.nodes import Allocate, Buffer, For, If, Let, Prefetch, Stmt, Store, children, walk
from renorm.tir.rounds import written_out
from renorm.tir.sampled import Samples

CYCLE = 0.29  # ns: Sapphire Rapids with vectors of 64 bytes; others 0.2 to 0.35
_WINDOW = 512.0  # instructions: Golden Cove; Zen 4 320, Skylake 224
_STAGE = 2000.0  # cycles of a round of a stage at most
_PAIRS = 2.0  # cycles of a product of pairs, where it takes longer than a multiply-add
_LOOP = 2.0  # instructions that count rounds
# Cycles of the end of a loop: as foreseen, and where it has more rounds than a predictor of branches remembers
_END, _UNFORESEEN, _REMEMBERED = 2.0, 15.0, 32
# The part of the time for bytes that does not pass while something is computed, or other bytes come. Over the 1076
# kernels of benchmarks.predictions 0.3 fits best, with 0.1 to 0.5 nearly as good
_LATE = 0.3
# Bytes that are read in the time of one that is written: a line is read before, and goes back. To the third cache it
# does so meanwhile (copies of 8 MB move 29 GB/s towards the core, as reading alone does), to memory it does not (15
# of reading, 7.5 of writing); to the second a line takes as long as three (copies of 0.5 MB: 14 bytes per cycle)
_WRITTEN = 3.0, 1.0, 2.0
_BEHIND = "second-level cache", "third-level cache", "memory"  # what is behind each cache


@dataclass(frozen=True)
class Predicted:
    """cycles: of one core. bound: what most of them are for, in words."""

    cycles: float
    bound: str


@dataclass(eq=False)
class _Stage:
    """cycles: by what is busy. misses: bytes from beyond each cache."""

    cycles: dict[str, float]
    misses: list[Bytes]


@dataclass(eq=False)
class _Part:
    touched: Touched
    stages: list[_Stage]


class Prediction:
    """Of statements at typical extents. lets: scalars bound around them. same: buffers that lie where others do."""

    def __init__(
        self,
        machine: Machine,
        body: Stmt,
        lets: Sequence[tuple[Var, Expr]] = (),
        same: Mapping[Buffer, Buffer] | None = None,
    ):
        self._machine = machine
        self._caches = [FILL * level.nbytes for level in machine.caches]
        self._places, self._samples = Places(), Samples()
        self._counter = Counter(machine.vector_bytes, self._places, same or {})
        self._around: list[tuple[Var, float]] = []  # loops and their rounds
        self._depths: dict[Buffer, int] = {}  # how many loops are around an allocation
        for var, value in lets:
            self._bind(var, value)
        stores = (s for s in walk(body) if isinstance(s, Store) and not s.nontemporal)
        self._written = {(same or {}).get(s.buffer, s.buffer) for s in stores}
        self._whole = self._inside(body)

    def at(self, far: Callable[[Buffer], Sequence[float]]) -> Predicted:
        """far: of a buffer, which part of it each cache does not have when the kernel begins."""
        cycles = dict[str, float]()
        for stage in self._whole.stages:
            for what, n in self._waited(stage, far).items():
                cycles[what] = cycles.get(what, 0.0) + n
        return Predicted(sum(cycles.values()), max(cycles, key=lambda what: cycles[what], default="nothing"))

    def _waited(self, stage: _Stage, far: Callable[[Buffer], Sequence[float]]) -> dict[str, float]:
        """Return the cycles of a stage by what they are for, with waits for bytes."""
        found, machine, touched = dict(stage.cycles), self._machine, self._whole.touched
        meanwhile = sum(found.values())
        for c, level in enumerate((*machine.caches[1:], machine.memory)):
            nbytes = 0.0
            for b, n in stage.misses[c].items():
                if n:  # the first time that it is touched, it may be there
                    n -= n * touched.bytes[b] / touched.misses[c][b] * (1.0 - far(b)[c])
                    nbytes += n * (_WRITTEN[c] if b in self._written else 1.0)
            spent = nbytes / level.rate
            wait = max(0.0, spent - meanwhile) + _LATE * min(spent, meanwhile)
            if wait:
                found[_BEHIND[c]] = wait
                meanwhile += wait
        return found

    def _bind(self, var: Var, value: Expr) -> None:
        self._places.bind(var, value)
        self._samples.bind(var, value)

    def _inside(self, body: Stmt, together: int = 0) -> _Part:
        """Return what one round of a loop takes, so many of which stand together, or all statements."""
        region, loops = Region(), list[_Part]()
        self._visit(body, region, loops)
        region.numbers += _LOOP / together if together else 0.0
        own = Touched(region.spans)
        own.misses = [own.bytes for _ in self._caches]
        parts = [_Part(own, [_Stage(self._cycles(region), own.misses)]), *loops]
        touched = Touched.joined([p.touched for p in parts], self._caches)
        stages = [s for p in parts for s in p.stages]
        before = [
            {b: sum(p.touched.misses[c].get(b, 0.0) for p in parts) for b in m} for c, m in enumerate(touched.misses)
        ]
        _scale(stages, before, touched.misses)
        if sum(sum(s.cycles.values()) for s in stages) < _STAGE:
            stages = [_Stage(_sum(s.cycles for s in stages), touched.misses)]
        return _Part(touched, stages)

    def _loop(self, s: For) -> _Part | None:
        rounds = self._samples.enter(s)
        if not rounds:
            return None
        self._around.append((s.var, rounds))
        part = self._inside(s.body, written_out(s, self._machine.vector_bytes))
        self._around.pop()
        touched = part.touched.repeated(self._places, s.var, rounds, self._caches)
        for stage in part.stages:
            stage.cycles = {what: rounds * n for what, n in stage.cycles.items()}
        _scale(part.stages, part.touched.misses, touched.misses)
        end = _END if rounds <= _REMEMBERED else _UNFORESEEN
        first = part.stages[0]
        first.cycles = _sum((first.cycles, {"ends of loops": end}))
        return _Part(touched, part.stages)

    def _visit(self, s: Stmt, region: Region, loops: list[_Part]) -> None:
        match s:
            case For(kind="tensorized"):
                loops.append(self._tensorized(s))
            case For():
                part = self._loop(s)
                loops += [] if part is None else [part]
            case If():
                self._branches(s, region, loops)
            case Let():
                self._bind(s.var, s.value)
                self._counter.value(s.value, region)
                self._visit(s.body, region, loops)
            case Allocate():
                self._depths[s.buffer] = len(self._around)
                self._visit(s.body, region, loops)
            case Store():
                self._counter.store(s, region)
            case Prefetch():
                region.loads += region.often
            case _:
                for part in children(s):
                    self._visit(part, region, loops)

    def _branches(self, s: If, region: Region, loops: list[_Part]) -> None:
        self._counter.value(s.condition, region)
        region.numbers += region.often
        often = region.often
        for branch, holds in zip(children(s), (True, False)):
            with self._samples.where(s.condition, holds) as share:
                if share:
                    region.often, within = often * share, list[_Part]()
                    self._visit(branch, region, within)
                    for part in within:
                        for stage in part.stages:
                            stage.cycles = {what: n * region.often for what, n in stage.cycles.items()}
                            stage.misses = [{b: n * region.often for b, n in m.items()} for m in stage.misses]
                        part.touched.misses = [{b: n * region.often for b, n in m.items()} for m in part.touched.misses]
                    loops += within
        region.often = often

    def _cycles(self, region: Region) -> dict[str, float]:
        """Return the cycles of a region by what bounds it; nothing where there is nothing."""
        waits = 0.0
        for (buffer, (terms, *_)), n in region.sums.items():
            within = self._around[self._depths.get(buffer, 0) :]
            moving = frozenset[Var]().union(*(self._places.variables(atom) for atom, _ in terms))
            whole = region.all * prod(rounds for var, rounds in within if var not in moving)
            waits = max(waits, n * self._machine.latency * min(1.0, whole / _WINDOW))
        busy = region.busy(self._machine) | {"sums that wait": waits}
        most = max(busy, key=lambda what: busy[what])
        return {most: busy[most]} if busy[most] else {}

    def _tensorized(self, s: For) -> _Part:
        """Return what loops take that a matrix unit or instructions for pairs run."""
        nest, body = [s], s.body
        while isinstance(body, For):
            nest.append(body)
            body = body.body
        rounds = [self._samples.enter(loop) for loop in nest]
        region, unit, size = Region(), self._machine.matrix, prod(rounds)
        for store in (x for x in walk(body) if isinstance(x, Store)):
            for buffer, index in (
                (store.buffer, store.index),
                *((x.source, x.indices[0]) for x in loads(store.value) if isinstance(x.source, Buffer)),
            ):
                self._counter.touch(buffer, index, region)
        touched = Touched(region.spans)
        touched.misses = [touched.bytes for _ in self._caches]
        for loop, n in zip(reversed(nest), reversed(rounds)):
            touched = touched.repeated(self._places, loop.var, max(1.0, n), self._caches)
        if any(isinstance(x, Store) and x.buffer.scope == "register" for x in walk(body)):
            cycles = 1 / self._machine.products if self._machine.dots else _PAIRS
        elif unit is None:
            cycles = size / self._machine.products
        else:
            is_product = len(nest) > 2
            held = [itemsize(x.dtype) for x in walk(body) if isinstance(x, Store) for x in loads(x.value)]
            terms = unit.columns * 4 // min(held, default=4) if is_product else 1
            cycles = max(FEWEST, size / (unit.columns * terms))
        return _Part(touched, [_Stage({"products of matrices": cycles}, touched.misses)])


def _scale(stages: Sequence[_Stage], before: Sequence[Bytes], after: Sequence[Bytes]) -> None:
    """Share out to stages what comes from beyond caches after all."""
    for stage in stages:
        stage.misses = [
            {b: n * new[b] / old[b] if n else 0.0 for b, n in own.items()}
            for own, old, new in zip(stage.misses, before, after)
        ]


def _sum(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    found = dict[str, float]()
    for part in parts:
        for what, n in part.items():
            found[what] = found.get(what, 0.0) + n
    return found
