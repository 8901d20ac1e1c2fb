"""GPU: one launch whose blocks have slices of a result of their own: statistics of a slice, then its elements.

    blockIdx.x over slices, or groups of `rows` neighbouring ones
      sums of each thread            its share of the terms, in registers; then in shared memory
      fewer sums, by fewer threads   in shared memory
      each thread of the result      adds those up, and makes statistics of them, for itself
        the elements of the slice    shared out among threads

What further reductions read is computed once for the block, and kept in shared memory. Where slices run along memory,
threadIdx.x runs over elements and threadIdx.y over the slices of a block; where memory runs across them, it is the
other way round: neighbouring threads read neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from renorm import te
from renorm.expr.nodes import Load
from renorm.ops.schedules import cuda, gpu_elements, structure
from renorm.ops.schedules.cpu_neighbours import cut
from renorm.ops.schedules.gpu_shapes import Shape
from renorm.ops.schedules.slices import Slices

PARTIALS = 8  # more partial results than this are added up in two steps
FEW_TERMS = 32  # that a thread adds up as soon as others have made them
COPIES = 2  # blocks that a multiprocessor has shared memory for, where they copy slices
UNROLLED = 16  # rounds whose reads are under way at a time

BLOCK, THREAD, ROUND = "block", "thread", "round"  # where a stage is computed


@dataclass
class Blocks:
    """One launch. inside: reductions, statistics and reused elements that it computes, producers first; what is not
    among them is inlined or computed before. wanted: those whose arrays are read outside, too. copied: what is read
    again and again, from a copy of the slices of a block in shared memory."""

    s: te.Schedule
    out: te.Tensor
    inside: Sequence[te.Tensor]
    slices: Slices
    shape: Shape
    wanted: Sequence[te.Tensor] = ()
    copied: te.Tensor | None = None
    _tiles: dict[te.Tensor, int | None] = field(default_factory=dict["te.Tensor", "int | None"])
    _places: dict[te.Tensor, str] = field(default_factory=dict["te.Tensor", str])

    def schedule(self) -> None:
        """Schedules the launch."""
        self._survey()
        copy = self._cached()
        self._result()
        for t in reversed(self.inside):
            if structure.is_reduction(t):
                self._reduction(t)
            else:
                self._stage(t)
        if copy is not None:
            self._copy(copy)

    # -- what is where

    def _survey(self) -> None:
        """Finds out which axis of each stage follows the slices of a block, and where it is computed: in a thread, or
        in each of its rounds, what only the elements of the result need; the former if all of a slice reads the same.
        Once for a block, all else."""
        kept = [*self.inside, self.out]
        self._tiles[self.out], self._places[self.out] = self.shape.tile, ROUND
        for t in reversed(self.inside):
            found = cuda.kept_reads(self.s, t, kept)
            tiles = [k for u, load in found if (k := self._followed(u, load)) is not None]
            self._tiles[t] = tiles[0] if tiles else None
            in_threads = t not in self.wanted and all(
                self._places[u] != BLOCK and not (structure.is_reduction(u) and self._is_shared_out(u))
                for u, _ in found
            )
            place = THREAD if self._is_of_slice(t) else BLOCK if structure.is_reduction(t) else ROUND
            self._places[t] = place if in_threads else BLOCK

    def _followed(self, reader: te.Tensor, load: Load) -> int | None:
        """Return which index of a read runs over the slices of a block."""
        tile = self._tiles.get(reader)
        if tile is None:
            return None
        var = reader.op.axis[tile].var
        return next((k for k, i in enumerate(load.indices) if structure.blocks(i, var) == 1), None)

    def _is_of_slice(self, t: te.Tensor) -> bool:
        """Return whether all elements of a slice need the same of `t`."""
        indices = [
            i
            for load in structure.reached(self.out, lambda u: u is t or structure.is_reduction(u))
            if load.source is t
            for i in load.indices
        ]
        for axis, block in zip(self.out.op.axis, self.slices.blocks):
            if axis.extent > 1 and any(structure.blocks(i, axis.var) not in {0, block} for i in indices):
                return False
        return True

    # -- stages

    @property
    def _names(self) -> tuple[str, str]:
        """The thread axes within a slice, and over slices."""
        return ("threadIdx.x", "threadIdx.y") if self.shape.along else ("threadIdx.y", "threadIdx.x")

    def _bind_slice(self, t: te.Tensor, axis: te.IterVar) -> None:
        self.s[t].bind(axis, te.thread_axis((0, self.shape.threads), self._names[0]))

    def _bind_rows(self, t: te.Tensor, axis: te.IterVar) -> None:
        self.s[t].bind(axis, te.thread_axis((0, self.shape.rows), self._names[1]))

    def _result(self) -> None:
        """Loops of the result: blocks, slices of a block, threads, rounds."""
        s, out, rows = self.s, self.out, self.shape.rows
        is_point = self.slices.size == 1
        single = s[out].fuse() if is_point or not s[out].op.axis else None
        outer, inner = cut(s, out, self.slices)
        row: list[te.IterVar] = []
        if rows > 1 and self.shape.tile is not None:
            axis = out.op.axis[self.shape.tile]
            tile, within = s[out].split(axis, factor=rows)
            outer = [tile if a is axis else a for a in outer]
            row = [within]
            self._bind_rows(out, within)
        if is_point:
            assert single is not None
            thread, rounds, self.round = single, inner, single
            if not outer:
                outer, rounds = rounds, []
            if not outer:
                outer = [s[out].fuse()]
            s[out].reorder(*outer, *row, thread, *rounds)
        else:
            s[out].reorder(*outer, *row, *inner)
            if not outer:
                outer = [s[out].fuse()]
            inner, lane, width, threads = [*inner], list[te.IterVar](), self._width(), self.shape.threads
            apart = [inner.pop(0)] if self._is_cut_apart(width) else list[te.IterVar]()
            whole = s[out].fuse(*inner)
            if width > 1:
                whole, vector = s[out].split(whole, factor=width)
                s[out].vectorize(vector)
                lane = [vector]
            if any(k > 1 for k in self.slices.blocks) and not apart:
                threads = next(n for n in range(min(threads, whole.extent), 0, -1) if whole.extent % n == 0)
            again, thread = s[out].split(whole, factor=threads)
            s[out].reorder(*row, thread, *apart, again, *lane)
            rounds = rounds_at_once(s, out, again)
            self.round = apart[0] if apart else rounds
        self._bind_slice(out, thread)
        self.block = s[out].fuse(*outer)
        s[out].bind(self.block, te.thread_axis("blockIdx.x"))
        self.thread = thread

    def _is_cut_apart(self, width: int) -> bool:
        """Return whether each of the neighbours that are inside one slice has rounds of its own, with elements enough
        for all threads."""
        first = next((k for k, n in enumerate(self.slices.blocks) if n != 1), None)
        if first is None or self.slices.blocks[first] < 2:
            return False
        rest = self.slices.size // self.slices.blocks[first]
        return rest > 1 and 2 * rest >= width * self.shape.threads

    def _width(self) -> int:
        """Return how many neighbours a thread writes as one."""
        run = prod(self.out.shape[len(self.out.shape) - self.s[self.out].joint_axes() :])
        inner = 1
        for extent, block in zip(reversed(self.out.shape), reversed(self.slices.blocks)):
            if block not in (0, extent):
                inner *= block or 1
                break
            inner *= extent
        for width in gpu_elements.widths(self.out.dtype) if self.shape.along else ():
            if inner % width == 0 and run % width == 0 and inner >= width * self.shape.threads:
                return width
        return 1

    def _place(self, t: te.Tensor) -> None:
        place = self._places[t]
        self.s[t].compute_at(self.s[self.out], {BLOCK: self.block, THREAD: self.thread, ROUND: self.round}[place])
        if t in self.wanted:
            self.s[t].store_root()
        else:
            self.s[t].set_scope("shared" if place == BLOCK else "local")

    def _cached(self) -> te.Tensor | None:
        """The copy in shared memory, if there is to be one: whoever reads that array reads it there."""
        source, tile = self.copied, None
        if source is None:
            return None
        chain = structure.stages([self.out])
        for load in structure.reached(self.out, lambda t: not self.s[t].is_inline):
            if load.source is source:
                tile = self._followed(self.out, load)
        copy = self.s.cache_read(source, "shared", [t for t in chain if source in self.s[t].op.input_tensors])
        self._tiles[copy] = tile
        return copy

    def _copy(self, t: te.Tensor) -> None:
        """Copies the slices of a block: neighbouring threads neighbours, as many at a time as one access may have."""
        s = self.s
        s[t].compute_at(s[self.out], self.block)
        own = list(s[t].op.axis)
        row = self._row(t, own)
        others = [a for a in own if a not in row]
        s[t].reorder(*row, *others)
        whole, vector = s[t].split(s[t].fuse(*others), factor=self._width())
        s[t].vectorize(vector)
        again, thread = s[t].split(whole, factor=self.shape.threads)
        s[t].reorder(*row, thread, again, vector)
        self._bind_slice(t, thread)
        s[t].unroll(again)

    def _stage(self, t: te.Tensor) -> None:
        """A statistic, or what is left of a reduction: once for a block by one thread of each slice. To share its
        elements out among threads would make them read beyond those of the slice."""
        self._place(t)
        if self._places[t] == BLOCK:
            own = list(self.s[t].op.axis)
            row = self._row(t, own)
            self.s[t].reorder(*row, *(a for a in own if a not in row))

    def _row(self, t: te.Tensor, own: Sequence[te.IterVar]) -> list[te.IterVar]:
        """The axis of a stage that runs over the slices of a block, bound, if there is one."""
        tile = self._tiles[t]
        if tile is None or self.shape.rows == 1:
            return []
        self._bind_rows(t, own[tile])
        return [own[tile]]

    def _reduction(self, t: te.Tensor) -> None:
        """A reduction: by each thread alone where it has a slice to itself; else partial results first."""
        if self._is_shared_out(t):
            s, first = self.s, 0 if not self.shape.along else len(t.op.axis)
            _, lane = s[t].split(s[t].fuse(*s[t].op.reduce_axis), factor=self.shape.threads)
            partials = [s.rfactor(t, lane, first)]
            if lane.extent > PARTIALS:
                (whole,) = s[t].op.reduce_axis
                _, lane = s[t].split(whole, factor=_second(lane.extent))
                partials.append(s.rfactor(t, lane, first))
            self._stage(t)
            for partial in reversed(partials):
                self._partial(partial, t, first, has_terms=partial is partials[0])
        else:
            self._stage(t)

    def _is_shared_out(self, t: te.Tensor) -> bool:
        """Return whether threads have a share of the terms of a reduction each; few terms one thread adds up."""
        return structure.terms(t) > min(self.shape.threads, FEW_TERMS) > 1

    def _partial(self, t: te.Tensor, of: te.Tensor, first: int, has_terms: bool) -> None:
        """Partial results of a reduction in shared memory, one for each thread, which adds them up in registers; first:
        the axis that threads follow. Those for neighbouring threads are neighbours. has_terms: results made from the
        same data are made together."""
        s, moved = self.s, int(first == 0)
        register = s.cache_write(t, "local")
        s[t].compute_at(s[self.out], self.block)
        s[t].set_scope("shared")
        tile = self._tiles[of]
        self._tiles[t] = None if tile is None else tile + moved
        terms = [k + moved for k in structure.beside(of)] if has_terms else []
        own = list(s[t].op.axis)
        row, lane, beside = self._row(t, own), own[first], [own[k] for k in terms]
        others = [a for a in own if a not in (*row, lane, *beside)]
        s[t].reorder(*others, *row, lane, *beside)
        self._bind_slice(t, lane)
        for axis in beside:
            s[t].unroll(axis)
        s[register].compute_at(s[t], lane)
        axes = list(s[register].op.axis)
        beside = [axes[k] for k in terms]
        s[register].reorder(*(a for a in axes if a not in beside), *s[register].op.reduce_axis, *beside)
        if has_terms:
            rounds_at_once(s, register, s[register].op.reduce_axis[-1])
        for axis in beside:
            s[register].unroll(axis)


def rounds_at_once(s: te.Schedule, t: te.Tensor, rounds: te.IterVar) -> te.IterVar:
    """Write out rounds of a loop, so that what several of them read is under way at a time. Return their loop, which is
    another one where the rounds are cut."""
    extent = rounds.extent
    if extent > UNROLLED:
        width = next(n for n in range(UNROLLED, 0, -1) if extent % n == 0)
        _, rounds = s[t].split(rounds, factor=width if 2 * width > UNROLLED else UNROLLED // 2)
    s[t].unroll(rounds)
    return rounds


def _second(count: int) -> int:
    """Return how many threads add up so many partial results, so that each has about as many to add as there are
    results then."""
    return 8 if count <= 128 else 16
