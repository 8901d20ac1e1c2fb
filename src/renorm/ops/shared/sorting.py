"""Sorting in given loops (te.extern): entries, numbers of elements beside their keys, merged run by run.

sort(loops, entries, spare, begin, end, before)     entries[begin:end] in order; equal ones stay in theirs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from renorm import te
from renorm.core import dtypes
from renorm.expr.nodes import Expr, Not, Var, all_of, any_of, call, cast, select

if TYPE_CHECKING:  # loads the loop IR, which a network out of the cache does without
    from renorm.te.given_loops import Array, Loops

Before = Callable[[Expr, Expr], Expr]  # whether a key comes before another one

_BLOCK, _LANES = 64, 16  # entries that are sorted by counting which come before, and how many of them side by side
_LEVELS = 16  # in each of which runs become four times as long


@dataclass(frozen=True)
class Entries:
    """Numbers of elements and their keys; most: how many there is room for."""

    places: Array
    keys: Array
    most: Any

    @staticmethod
    def of(loops: Loops, most: Any, dtype: str, name: str) -> Entries:
        """Return room for entries whose keys have a dtype."""
        places = loops.allocate((most,), "int32", f"{name}.places")
        return Entries(places, loops.allocate((most,), key_dtype(dtype), f"{name}.keys"), most)

    def put(self, at: Expr, place: Expr, key: Expr) -> None:
        """Store an entry at an index that is known to be inside."""
        self.places[at] = place
        self.keys[at] = key

    def inside(self, index: Expr, end: Expr) -> Expr:
        """Return the index, or that of the last entry before `end`: beyond it is what no merge compares."""
        return te.max(te.min(te.min(index, end - 1), self.most - 1), 0)


def key_dtype(dtype: str) -> str:
    """Return the dtype in which elements are compared."""
    return dtypes.compute_dtype(dtype)


def order(dtype: str, largest: bool) -> Before:
    """Return the order by size, the largest or the smallest first. NaN is larger than any number."""
    if not dtypes.is_float(dtype):
        return (lambda a, b: a > b) if largest else (lambda a, b: a < b)
    if largest:
        return lambda a, b: all_of(Not(a <= b), Not(call("isnan", b)))
    return lambda a, b: all_of(Not(a >= b), Not(call("isnan", a)))


def sort(loops: Loops, entries: Entries, spare: Entries, begin: Expr, end: Expr, before: Before) -> None:
    """Sort entries[begin:end] stably, from the bottom up: blocks, then runs of two, of four. spare: as much room."""
    _sort_blocks(loops, entries, begin, end, before)
    width = loops.allocate((1,), "int64", "width")
    width[0] = _BLOCK
    with loops.for_range(0, _LEVELS, "level"):
        w = loops.let(width[0], "w")
        with loops.if_scope(w < end - begin):
            _pass(loops, entries, spare, begin, end, w, before)
            _pass(loops, spare, entries, begin, end, loops.let(w * 2, "w"), before)
            width[0] = w * 4


def _sort_blocks(loops: Loops, entries: Entries, begin: Expr, end: Expr, before: Before) -> None:
    """Sort each block of entries: one comes behind as many as come before it, which vectors count."""
    block = Entries.of(loops, _BLOCK, entries.keys.dtype, "block")
    ranks, rank = loops.allocate((_BLOCK,), "int32", "ranks"), loops.allocate((_LANES,), "int32", "rank")
    with loops.for_range(0, (end - begin + (_BLOCK - 1)) // _BLOCK, "number") as number:
        first = loops.let(begin + number * _BLOCK, "first")
        count = loops.let(te.min(end - first, _BLOCK), "count")
        with loops.for_range(0, _BLOCK, "j") as j:  # those beyond the end are the last one again
            at = loops.let(entries.inside(first + j, end), "at")
            block.put(j, entries.places[at], entries.keys[at])
        with loops.for_range(0, _BLOCK // _LANES, "part") as part:
            with loops.for_range(0, _LANES, "lane", "vectorized") as lane:
                rank[lane] = 0
            with loops.for_range(0, te.min(count, _BLOCK)) as i:
                key = loops.let(block.keys[i], "key")
                with loops.for_range(0, _LANES, "lane", "vectorized") as lane:
                    j = part * _LANES + lane
                    own = block.keys[j]
                    comes = select(i < j, Not(before(own, key)), before(key, own))
                    rank[lane] = rank[lane] + cast("int32", comes)
            with loops.for_range(0, _LANES, "lane", "vectorized") as lane:
                ranks[part * _LANES + lane] = rank[lane]
        with loops.for_range(0, te.min(count, _BLOCK), "j") as j:
            to = loops.let(first + ranks[j], "to")
            with loops.if_scope(to >= 0, to < entries.most):
                entries.put(to, block.places[j], block.keys[j])


def _pass(loops: Loops, source: Entries, target: Entries, begin: Expr, end: Expr, width: Var, before: Before) -> None:
    """Merge neighbouring runs of as many entries as `width`, from one array to the other; a lone one is copied."""
    pair = loops.let(width * 2, "pair")
    with loops.for_range(0, (end - begin + (pair - 1)) // pair, "run") as run:
        low = loops.let(begin + run * pair, "low")
        middle, high = loops.let(te.min(low + width, end), "middle"), loops.let(te.min(low + pair, end), "high")
        merge(loops, source, target, low, middle, high, high, before)


def merge(
    loops: Loops, source: Entries, target: Entries, low: Expr, middle: Expr, high: Expr, end: Expr, before: Before
) -> None:
    """Store the first of what source[low:middle] and source[middle:high] hold together in target[low:end]. Of equal
    ones those of the first come first."""
    left = loops.allocate((1,), "int64", "left")
    left[0] = low
    with loops.if_scope(low >= 0, end <= target.most), loops.for_range(low, end, "o") as o:
        p = loops.let(left[0], "p")
        q = loops.let(o + middle - p, "q")
        at_p, at_q = loops.let(source.inside(p, middle), "at"), loops.let(source.inside(q, high), "at")
        a, b = loops.let(source.keys[at_p], "a"), loops.let(source.keys[at_q], "b")
        is_second = loops.let(all_of(q < high, any_of(p >= middle, before(b, a))), "second")
        target.put(o, select(is_second, source.places[at_q], source.places[at_p]), select(is_second, b, a))
        left[0] = p + cast("int64", Not(is_second))
