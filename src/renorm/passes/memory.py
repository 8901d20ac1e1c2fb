"""Memory plan: where in one arena each buffer lies, given when it is alive.

    plan : [Buffer] -> offsets, such that bytes alive at the same step do not overlap

A buffer may be alive in parts: the place of a concat is one buffer, and until its second half is written other buffers
may lie there. Greedy in an order: each buffer at the lowest offset where nothing that lives with it is in the way. The
first orders are by size, by how long a buffer lives, and by both; from the best of them on, whoever sticks out most
goes first, again and again, until the plan is as small as any can be or enough was tried. The lower bound is the most
bytes alive at one step, which no plan can go below. Where too many live together to compare them in pairs, each is
placed when it comes to be, in the smallest gap.

    plan_open : [Buffer], typical sizes -> who lies below whom; runtime.program.place says where, for all sizes

Of a plan for typical sizes only the order is kept: of two buffers that live together, which lies below. Each then lies
as low as those below it allow (a longest path), so that no sizes make bytes overlap that are alive at the same step.
Where sizes become known while steps run, those that are known first lie below: their places hang on no others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from renorm.core.dims import Dim, Symbol, bounds, integer, substitute, symbols_of
from renorm.core.intervals import Spans
from renorm.runtime import program
from renorm.runtime.program import Above, align

_COMPARED = 64  # pairs of parts of two buffers, of which the farthest apart are looked for
_TRIES, _PAIRS = 100, 1_000_000  # at most: orders, and pairs of buffers compared for them, which takes some 0.2 s


@dataclass(frozen=True)
class Lifetime:
    """Bytes alive from the launch `first`, which writes them, to the launch `last`, which reads them last. offset:
    where they begin in their buffer."""

    bytes: int
    first: int
    last: int
    offset: int = 0


@dataclass(frozen=True)
class OpenLifetime:
    """A Lifetime of open extents."""

    bytes: Dim
    first: int
    last: int
    offset: Dim = 0

    def at(self, values: Mapping[str, int]) -> Lifetime:
        """Return it where symbols have these values."""
        size, offset = (integer(substitute(d, values)) for d in (self.bytes, self.offset))
        return Lifetime(size, self.first, self.last, offset)


Buffer = Sequence[Lifetime]  # parts that do not overlap
OpenBuffer = Sequence[OpenLifetime]


@dataclass(frozen=True)
class MemoryPlan:
    """offsets: bytes from the start of the arena, one for each buffer. size: bytes of the arena. lower_bound: bytes
    any plan needs."""

    offsets: tuple[int, ...]
    size: int
    lower_bound: int


def plan(buffers: Sequence[Buffer]) -> MemoryPlan:
    """Aligned offsets for all buffers; one of no bytes lies at 0."""
    held = [_Held(parts) for parts in buffers]
    bound = _most_alive([part for h in held for part in h.parts])
    if _living_together(held) > _PAIRS:
        best, size = _placed_in_time(held)
        return MemoryPlan(tuple(best), size, bound)
    order = _by_measure(held, _MEASURES[0])
    best, size = _placed(held, order)
    for measure in _MEASURES[1:]:
        if size > bound:
            tried = _by_measure(held, measure)
            offsets, reached = _placed(held, tried)
            if reached < size:
                best, size, order = offsets, reached, tried
    tries = min(_TRIES, _PAIRS // max(1, len(held)) ** 2)
    offsets = best
    while size > bound and tries > 0 and len(order) > 1:
        tries -= 1
        top = max(order, key=lambda i: offsets[i] + held[i].size)
        if order[0] == top:  # it sticks out wherever it goes: the next, which it pushed up, goes before it
            top = max(order[1:], key=lambda i: offsets[i] + held[i].size)
        order.remove(top)
        order.insert(0, top)
        offsets, reached = _placed(held, order)
        if reached < size:
            best, size = offsets, reached
    return MemoryPlan(tuple(best), size, bound)


class _Held:
    """A buffer. parts: those of some bytes, each up to a multiple of ALIGNMENT where its buffer ends."""

    def __init__(self, parts: Buffer):
        self.size = align(max((p.offset + p.bytes for p in parts), default=0))
        end = max((p.offset + p.bytes for p in parts), default=0)
        self.parts = [
            Lifetime(p.bytes + (self.size - end if p.offset + p.bytes == end else 0), p.first, p.last, p.offset)
            for p in parts
            if p.bytes
        ]
        self.first = min((p.first for p in self.parts), default=0)
        self.last = max((p.last for p in self.parts), default=0)
        self.steps = self.last - self.first + 1


@dataclass(frozen=True)
class OpenPlan:
    """buffers: in an order in which each lies above earlier ones. places: of each that was given, where it stands among
    those. size, lower_bound: as of a MemoryPlan, at the typical sizes."""

    buffers: tuple[program.Buffer, ...]
    places: tuple[int, ...]
    size: int
    lower_bound: int


def plan_open(
    buffers: Sequence[OpenBuffer],
    sizes: Sequence[Dim],
    typical: Mapping[str, int],
    late: Mapping[Symbol, int] = MappingProxyType({}),
) -> OpenPlan:
    """Return who lies below whom. sizes: of whole buffers, in bytes. typical: values of the symbols in them. late: when
    a symbol is known, of those that are not from the beginning."""
    ranks = [max((late.get(s, 0) for s in symbols_of(d)), default=0) for d in sizes]
    fixed = [[part.at(typical) for part in parts] for parts in buffers]
    first = plan(fixed)
    pairs = _pairs(buffers) if _living_together([_Held(b) for b in fixed]) <= _PAIRS else None
    if pairs is None:  # one above the other, whether they live together or not
        order = sorted(range(len(buffers)), key=ranks.__getitem__)
        rows = [[Above(k - 1, sizes[order[k - 1]])] if k else [] for k in range(len(order))]
    else:
        order = _upwards(pairs, fixed, first.offsets, ranks)
        rows = _above(order, pairs, buffers, sizes)
    places = [0] * len(order)
    for i, buffer in enumerate(order):
        places[buffer] = i
    made = tuple(program.Buffer(sizes[b], tuple(row)) for b, row in zip(order, rows))
    gaps = [integer(substitute(a.end - a.begin, typical)) for b in made for a in b.above]
    at = [integer(substitute(b.size, typical)) for b in made]
    size = program.place(at, [[a.buffer for a in b.above] for b in made], gaps)[1]
    return OpenPlan(made, tuple(places), size, first.lower_bound)


_Pairs = dict[tuple[int, int], list[tuple[int, int]]]  # of buffers, the first less: their parts that live together


def _pairs(buffers: Sequence[OpenBuffer]) -> _Pairs:
    found, held = _Pairs(), Spans[tuple[int, int]]()  # by their steps
    for j, parts in enumerate(buffers):
        for q, part in enumerate(parts):
            for i, p in held.meeting(part.first, part.last + 1) if part.bytes != 0 else ():
                found.setdefault((i, j), []).append((p, q))
        for q, part in enumerate(parts):
            if part.bytes != 0:
                held.add(part.first, part.last + 1, (j, q))
    return found


def _upwards(pairs: _Pairs, fixed: Sequence[Buffer], offsets: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """Return all buffers by ranks, and then in an order in which, as far as that goes, each stands behind those that it
    lies above."""
    above, left = [set[int]() for _ in fixed], [0] * len(fixed)  # left: how many of those below it do not stand yet
    for (i, j), parts in pairs.items():
        sides = {offsets[i] + fixed[i][p].offset < offsets[j] + fixed[j][q].offset for p, q in parts}
        is_below = sides == {True} or (len(sides) > 1 and offsets[i] <= offsets[j])
        is_below = is_below if ranks[i] == ranks[j] else ranks[i] < ranks[j]
        low, high = (i, j) if is_below else (j, i)
        above[low].add(high)
        left[high] += 1
    ready = [(ranks[i], at, i) for i, at in enumerate(offsets) if not left[i]]
    heapify(ready)
    lowest = iter(sorted(range(len(fixed)), key=lambda i: (ranks[i], offsets[i])))
    order = dict[int, None]()
    while len(order) < len(fixed):
        # none is ready where parts lie between each other's
        i = heappop(ready)[2] if ready else next(i for i in lowest if i not in order)
        if i not in order:
            order[i] = None
            for j in above[i]:
                left[j] -= 1
                if not left[j]:
                    heappush(ready, (ranks[j], offsets[j], j))
    return list(order)


def _above(
    order: Sequence[int], pairs: _Pairs, buffers: Sequence[OpenBuffer], sizes: Sequence[Dim]
) -> list[list[Above]]:
    """Return what each buffer lies above, but for what follows from the rest."""
    position = {b: k for k, b in enumerate(order)}
    below = [dict[int, list[Above]]() for _ in order]  # of each, by position
    for (i, j), parts in pairs.items():
        low, high = (i, j) if position[i] < position[j] else (j, i)
        at = position[low]
        if len(parts) > _COMPARED:
            found = [Above(at, sizes[low])]
        else:
            meeting = [(buffers[i][p], buffers[j][q]) for p, q in parts]
            meeting = meeting if low == i else [(p, q) for q, p in meeting]
            found = _farthest(dict.fromkeys(Above(at, p.offset + p.bytes, q.offset) for p, q in meeting))
        below[position[high]][at] = found

    def follows(k: int, a: Above) -> bool:
        """Return whether the k-th lies above another one by as much, which lies above this one."""
        gap = a.end - a.begin
        return any(
            c > a.buffer
            and any(not over.begin for over in above)
            and any(other.end - other.begin == gap for other in below[c].get(a.buffer, ()))
            for c, above in below[k].items()
        )

    return [[a for others in row.values() for a in others if not follows(k, a)] for k, row in enumerate(below)]


def _farthest(rows: Iterable[Above]) -> list[Above]:
    """Those that are not certain to follow from another one."""
    found = list[Above]()
    for a in rows:
        gap = a.end - a.begin
        if not any(bounds(b.end - b.begin - gap)[0] >= 0 for b in found):
            found = [b for b in found if bounds(gap - b.end + b.begin)[0] < 0] + [a]
    return found


# what makes a buffer go before others
_MEASURES: tuple[Callable[[_Held], int], ...] = (lambda h: h.size, lambda h: h.steps, lambda h: h.size * h.steps)


def _by_measure(held: Sequence[_Held], measure: Callable[[_Held], int]) -> list[int]:
    """The largest first, then those that come first."""
    return sorted(range(len(held)), key=lambda i: (-measure(held[i]), held[i].first, i))


def _placed(held: Sequence[_Held], order: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of all buffers, placed in this order, and the size of the arena."""
    offsets, end = [0] * len(held), 0
    placed = Spans[tuple[int, int]]()  # by their steps: begin, end
    for i in order:
        own = held[i]
        # offsets of the buffer at which a part of it would lie on something that lives with it: [low, high)
        taken = sorted(
            (begin - part.offset - part.bytes + 1, stop - part.offset)
            for part in own.parts
            for begin, stop in placed.meeting(part.first, part.last + 1)
        )
        at = 0
        for low, high in taken:
            if low > at:
                break
            at = max(at, align(high))
        offsets[i] = at
        for p in own.parts:
            placed.add(p.first, p.last + 1, (at + p.offset, at + p.offset + p.bytes))
        end = max(end, at + own.size)
    return offsets, end


def _living_together(held: Sequence[_Held]) -> int:
    """Pairs of buffers of which both are alive at one step, at least in parts."""
    ends = sorted(h.last for h in held)
    begins = sorted(h.first for h in held)
    return sum(i - bisect_left(ends, begin) for i, begin in enumerate(begins))


def _placed_in_time(held: Sequence[_Held]) -> tuple[list[int], int]:
    """Offsets of all buffers, placed as they come to be, larger ones first, and the size of the arena."""
    offsets, alive, gaps = [0] * len(held), list[tuple[int, int]](), _Gaps()
    for i in sorted(range(len(held)), key=lambda i: (held[i].first, -held[i].size)):
        while alive and alive[0][0] < held[i].first:
            gone = heappop(alive)[1]
            gaps.give(offsets[gone], held[gone].size)
        if held[i].size:
            offsets[i] = gaps.take(held[i].size)
            heappush(alive, (held[i].last, i))
    return offsets, gaps.end


class _Gaps:
    """Free bytes before `end`, the end of the arena. No two gaps touch."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # size, begin; sorted
        self._ends: dict[int, int] = {}  # by begin
        self._begins: dict[int, int] = {}  # by end

    def take(self, size: int) -> int:
        """Return where `size` bytes are free: in the smallest gap that has them, else at the end."""
        at = bisect_left(self._by_size, (size,))
        begin = self._by_size[at][1] if at < len(self._by_size) else self._begins.get(self.end, self.end)
        end = self._ends.get(begin, begin)
        if end > begin:
            self._close(begin)
        self.end = max(self.end, begin + size)
        if end > begin + size:
            self._open(begin + size, end)
        return begin

    def give(self, begin: int, size: int) -> None:
        """Makes bytes free again."""
        end = begin + size
        if begin in self._begins:
            self._close(begin := self._begins[begin])
        if end in self._ends:
            end = self._close(end)
        self._open(begin, end)

    def _open(self, begin: int, end: int) -> None:
        self._ends[begin], self._begins[end] = end, begin
        insort(self._by_size, (end - begin, begin))

    def _close(self, begin: int) -> int:
        """Return where the gap ended that began there."""
        end = self._ends.pop(begin)
        del self._begins[end]
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        return end


def _most_alive(parts: Sequence[Lifetime]) -> int:
    change: dict[int, int] = {}
    for p in parts:
        change[p.first] = change.get(p.first, 0) + p.bytes
        change[p.last + 1] = change.get(p.last + 1, 0) - p.bytes
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return align(most)
