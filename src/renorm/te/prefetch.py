"""Prefetches: what a later round of a loop reads is asked for while this one computes.

    s[T].prefetch(W, axis, 1)   a round of `axis` reads so many elements of W: one run of memory, or several
    rounds                      of the loops within `axis`, over which these are spread
    round number r asks for     element number r*elements//rounds of those of the next round, and the lines from there
                                to where round r + 1 begins

The statement stands at the beginning of the innermost loop around T that is not written out, or of a loop of T around
that, where its rounds ask for a line or a few: to ask costs a division. Which loops are within is read from their
order: an axis that was fused is a digit of the fused loop, so that the next round is that of the axis, whichever thread
computes it; after the last round comes what lies behind. Runs with less than a line between them are one; one that is
shorter than a line is asked for at once. Where what a round reads is no run of memory, or lies where data say, and
where sizes are open, by which each round would divide, a hint is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

from renorm.core import dtypes
from renorm.core.errors import InvalidSchedule
from renorm.core.machine import LINE
from renorm.expr.linear import Linear
from renorm.te.axes import axis_values
from renorm.te.bounds import GPU_AXES, Loop, Nest
from renorm.te.loop_algebra import ZERO, LoopAlgebra
from renorm.te.relations import Fuse
from renorm.te.stage import Stage
from renorm.te.tensor import IterVar, Tensor
from renorm.tir.nodes import Buffer, Prefetch

FEW = 4  # lines that one round asks for where it may be an outer one: a core waits for some ten at a time
MOST = 16  # lines that one round may ask for: more are no asking meanwhile


class _Counted(NamedTuple):
    """A loop, or a part of a fused one: what it counts to, and its value. loop: where it is not written out."""

    value: Linear
    extent: Linear
    loop: Loop | None


class _Path(NamedTuple):
    """The loops around an element that a stage computes: those around an axis, the value of that, those within. None of
    them has rounds where some are of a GPU."""

    around: list[_Counted]
    value: Linear
    within: list[_Counted]


def hints(
    algebra: LoopAlgebra,
    nest: Nest,
    nests: Mapping[Tensor, Nest],
    wanted: tuple[Tensor, IterVar, int],
    position: Callable[[Tensor, Sequence[Linear]], Linear],
    buffer: Buffer,
) -> tuple[Loop, list[Prefetch]] | None:
    """Return what asks for a part of a tensor that is read later, and the loop at the beginning of whose rounds that
    stands; None where it is left out. position: gives that of an element in `buffer`."""
    tensor, axis, offset = wanted
    path = _path(algebra, nest, nests, axis)
    if path is None:
        raise InvalidSchedule(
            f"{nest.name}: prefetch for later rounds of {axis.name}, which is no loop around it",
            [f"loops: {', '.join(loop.axis.name for loop in nest.path)}"],
            do="name a loop of this stage, or of one that it is computed in; fuse it, but do not split it",
        )
    panel, line = None, LINE // dtypes.itemsize(buffer.dtype)
    for reader in (nest, *nests.values()):
        reads = [position(t, indices) for t, indices in reader.reads if t is tensor and indices]  # given loops: ()
        around = None if not reads else path if reader is nest else _path(algebra, reader, nests, axis)
        if reads and around is not None:
            panel = _panel(algebra, around, reads, line)
            break
    if panel is None:
        return None
    # loops of one round are not in the code: they must not stand between those of several
    rounds = [c for c in path.within if c.loop is not None and c.extent.number != 1]
    counts, piece = [c.extent.number or 0 for c in rounds], min(line, panel.run)
    if not rounds or 0 in counts:
        return None
    while len(rounds) > 1 and piece * prod(counts) > panel.elements <= FEW * piece * prod(counts[:-1]):
        outer = rounds[-2].loop
        if outer is rounds[-1].loop or not any(outer is x and x.is_emitted for x in nest.loops):
            break
        rounds.pop()
        counts.pop()
    step, last = Fraction(panel.elements, prod(counts)), rounds[-1].loop
    lines = ceil(step / piece)
    if lines > MOST or last is None:
        return None
    number = ZERO
    for c, n in zip(rounds, counts, strict=True):
        number = number * n + c.value
    done = _divided(algebra, number * step.numerator, step.denominator)
    asked = (panel.element(algebra, done.offset(i * piece)).offset(panel.distance * offset) for i in range(lines))
    return last, [Prefetch(buffer, algebra.value(form)) for form in asked]


def _divided(algebra: LoopAlgebra, form: Linear, by: int, op: str = "//") -> Linear:
    found = algebra.applied(op, form, Linear({}, by))
    assert found is not None  # numbers above 0 are divisors
    return found


class _Panel(NamedTuple):
    """What a round reads: runs of memory, the first of which begins at `first`. others: distances of runs, and how many
    are so far apart, nearest first. distance: to what the next round reads."""

    first: Linear
    distance: int
    run: int
    others: list[tuple[int, int]]

    @property
    def elements(self) -> int:
        return self.run * prod(n for _, n in self.others)

    def element(self, algebra: LoopAlgebra, number: Linear) -> Linear:
        """Return the position of an element, counted over the runs."""
        if not self.others:
            return self.first + number
        found = self.first + _divided(algebra, number, self.run, "%")
        rest = _divided(algebra, number, self.run)
        for i, (distance, n) in enumerate(self.others):
            is_last = i + 1 == len(self.others)
            found += (rest if is_last else _divided(algebra, rest, n, "%")) * distance
            rest = _divided(algebra, rest, n)
        return found


def _panel(algebra: LoopAlgebra, path: _Path, reads: Sequence[Linear], line: int) -> _Panel | None:
    """Return what is read while the loops within the axis run; reads: positions of elements, in their variables. line:
    elements of one: runs with less between them are one."""
    starts = sorted({form.constant for form in reads})
    steps = {b - a for a, b in pairwise(starts)}
    position, *rest = sorted(reads, key=lambda form: form.constant)
    if len(steps) > 1 or not all(form.is_parallel(position) for form in rest) or algebra.reads_memory(position):
        return None
    atom = path.value.single()
    within = {a: c.extent.number for c in path.within if (a := c.value.single()) is not None}
    around = {a for c in path.around if (a := c.value.single()) is not None}
    moving = {v for a in within for v in algebra.free(Linear({a: 1}))}
    counted = [(d, len(starts)) for d in steps]
    for x, k in position.terms.items():
        if x in within:
            counted.append((k, within[x] or 0))
        elif x is not atom and x not in around and not algebra.free(Linear({x: 1})).isdisjoint(moving):
            return None
    run, others = 1, list[tuple[int, int]]()
    for k, n in sorted(counted):
        far = others[-1][0] * others[-1][1] if others else run
        if k < 0 or n < 1:
            return None
        if not others and k <= max(run, line):
            run += k * (n - 1)
        elif k < far:
            return None
        elif k == far:
            others[-1] = others[-1][0], others[-1][1] * n
        else:
            others.append((k, n))
    distance = position.terms.get(atom, 0) if atom is not None else 0
    return _Panel(position.without(within), distance, run, others) if distance > 0 else None


def _path(algebra: LoopAlgebra, nest: Nest, nests: Mapping[Tensor, Nest], axis: IterVar) -> _Path | None:
    """Return the loops around `nest`, and its own, in their order; None where the axis is none of them."""
    inner = [x for x in nest.path if x.is_emitted and x.kind not in ("unrolled", "vectorized", "tensorized")]
    innermost = None if not inner or any(loop.kind in GPU_AXES for loop in nest.path) else inner[-1]
    around, within, value, is_round = list[_Counted](), list[_Counted](), None, innermost is not None
    for of, loops in _levels(nest, nests):
        values = axis_values(of.stage, of.extents, {loop.axis: loop.value for loop in of.loops}, algebra)
        for loop in loops:
            for a in _parts(of.stage, loop.axis, axis):
                if a is axis:
                    value = values[a]
                else:
                    counted = _Counted(values[a], of.extents[a], loop if is_round else None)
                    (around if value is None else within).append(counted)
            is_round = is_round and loop is not innermost
    return None if value is None else _Path(around, value, within)


def _levels(nest: Nest, nests: Mapping[Tensor, Nest]) -> list[tuple[Nest, Sequence[Loop]]]:
    """Return the stages in which a stage is computed, outermost first, and itself, with their loops around its
    elements."""
    found: list[tuple[Nest, Sequence[Loop]]] = [(nest, nest.loops)]
    while nest.stage.attach is not None:
        parent = nests[nest.stage.attach[0].tensor]
        found.insert(0, (parent, parent.loops[: nest.position + 1]))
        nest = parent
    return found


def _parts(stage: Stage, loop: IterVar, axis: IterVar) -> list[IterVar]:
    """Return the axes that a loop was fused of, outermost first, down to `axis`; the loop itself where that is none."""
    fused = next((r for r in stage.relations if isinstance(r, Fuse) and r.fused is loop), None)
    parts = (
        [] if fused is None or loop is axis else [*_parts(stage, fused.outer, axis), *_parts(stage, fused.inner, axis)]
    )
    return parts if any(a is axis for a in parts) else [loop]
