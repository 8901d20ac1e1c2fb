"""Bound inference: which region each stage computes, with which loops, under which conditions.

Readers come first: the region of a stage under compute_at is what its readers touch while the loops inside its place
run and the loops around it stand still. Regions are boxes, `low` a form in the loops around, the extent a number or a
form of open extents; they contain all that is read, and may contain more, even elements beyond the tensor where a tile
hangs over an edge.

A condition (Guard) is made only where interval bounds cannot prove it. Conditions of tails keep loops inside their
ranges. Conditions of domains keep a region inside its tensor; a stage that keeps accumulators or values in registers
does without them (Nest.is_speculative), and so do the stages that it reads: it computes its whole tile, does not read
what would be outside (a Load with a predicate), and nothing that is kept depends on the surplus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from renorm.core import dtypes
from renorm.core.errors import InvalidSchedule
from renorm.expr.linear import Linear
from renorm.expr.mixed_radix import Digit
from renorm.expr.nodes import Binary, Call, Const, Expr, Load, Reduce, Select, Var, const
from renorm.te.axes import axis_extents, axis_values, layout
from renorm.te.given_loops import ExternOp
from renorm.te.loop_algebra import ONE, ZERO, LoopAlgebra, are_separate, is_cut_whole
from renorm.te.relations import Split
from renorm.te.stage import Stage
from renorm.te.tensor import ComputeOp, IterVar, Tensor
from renorm.te.translation import Translation, source_of
from renorm.tir.nodes import BLOCK_AXES, PRIVATE, THREAD_AXES, VIRTUAL, Prefetch

GPU_AXES = frozenset((*BLOCK_AXES, *THREAD_AXES))


@dataclass(eq=False)
class Loop:
    """One loop of a nest. value: what its axis is, in terms of var. is_emitted: whether it becomes a For; a loop of
    one round does not, nor does a GPU axis that a loop around it has opened. hints: what each round begins with.
    is_virtual: whether its rounds are virtual threads."""

    axis: IterVar
    var: Var
    extent: Linear
    kind: str
    value: Linear
    is_emitted: bool
    hints: list[Prefetch] = field(default_factory=list[Prefetch])
    is_virtual: bool = False


@dataclass(frozen=True)
class AxisRegion:
    """low .. low + extent - 1 along one axis. is_whole: not cut to what is read, so that reads may fall outside."""

    low: Linear
    extent: Linear
    is_whole: bool


@dataclass(frozen=True)
class Guard:
    """form < bound, or form >= bound where `is_lower`.

    axis: whose value form is, None for a GPU axis around the nest; counted from 0, or in the tensor if `is_domain`.
    """

    form: Linear
    bound: Linear
    axis: IterVar | None = None
    is_lower: bool = False
    is_domain: bool = False

    @property
    def is_reduce(self) -> bool:
        return self.axis is not None and self.axis.kind == "reduce"

    def form_in(self, values: Mapping[IterVar, Linear], env: Mapping[Var, Linear]) -> Linear:
        """The form where the axes have other values."""
        if self.axis is None:
            return self.form
        return env[self.axis.var] if self.is_domain else values[self.axis]


@dataclass(eq=False)
class Nest:
    """The loops of one stage. body: what it stores; of no meaning where loops are given. prefix: loops around it, of
    the stages that it is computed in."""

    stage: Stage
    body: Expr
    prefix: tuple[Loop, ...]
    scope: str
    root: Stage
    region: list[AxisRegion] = field(default_factory=list["AxisRegion"])
    extents: dict[IterVar, Linear] = field(default_factory=dict["IterVar", Linear])
    loops: list[Loop] = field(default_factory=list["Loop"])
    terms: Translation = field(init=False)
    guards: list[Guard] = field(default_factory=list["Guard"])
    domain: list[Guard] = field(default_factory=list["Guard"])
    is_speculative: bool = False
    is_argument: bool = False
    is_conditional: bool = False  # some reads happen under a condition in the body
    reads: list[tuple[Tensor, tuple[Linear, ...]]] = field(default_factory=list["tuple[Tensor, tuple[Linear, ...]]"])
    position: int = -1  # of the loop of the parent that it is computed in
    layout: tuple[int, ...] = ()  # the axes in the order in which memory holds them, outermost first

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def path(self) -> tuple[Loop, ...]:
        return (*self.prefix, *self.loops)

    @property
    def is_empty(self) -> bool:
        return any(r.extent.number == 0 for r in self.region)

    @property
    def reduces_nothing(self) -> bool:
        return any(self.extents[a].number == 0 for a in self.stage.op.reduce_axis)


def tail_guards(
    stage: Stage, extents: Mapping[IterVar, Linear], values: Mapping[IterVar, Linear], algebra: LoopAlgebra
) -> list[Guard]:
    """Conditions that keep every split axis inside its range, where the rounds do not fit it exactly."""
    needed: dict[IterVar, None] = {}
    parent_of_outer: dict[IterVar, IterVar] = {}
    for relation in stage.relations:
        if isinstance(relation, Split):
            parent_of_outer[relation.outer] = relation.parent
            rounds = algebra.scaled(extents[relation.outer], extents[relation.inner])
            if algebra.form_span(rounds - extents[relation.parent])[1] > 0:
                needed[relation.parent] = None
    found: list[Guard] = []
    for axis in needed:
        # outer beyond its range means parent beyond its own: one condition says both
        if parent_of_outer.get(axis) in needed:
            continue
        if not algebra.is_below(values[axis], extents[axis]):
            found.append(Guard(values[axis], extents[axis], axis))
    return found


def root_values(nest: Nest, values: Mapping[IterVar, Linear], algebra: LoopAlgebra) -> dict[Var, Linear]:
    """Return what the variables of a body are: axes counted from the start of the region, or of the reduce axis."""
    env = {a.var: r.low + values[a] for a, r in zip(nest.stage.op.axis, nest.region, strict=True)}
    env.update({a.var: values[a] + algebra.extent(a.min) for a in nest.stage.op.reduce_axis})
    return env


class Inference:
    """Plans the nests of all stages, readers first.

    inlined: computes that have no nest. arguments: what has its whole array outside of all loops. load: makes the read
    of a buffer from the read of a tensor.
    """

    def __init__(
        self,
        algebra: LoopAlgebra,
        inlined: Mapping[Tensor, ComputeOp],
        arguments: Iterable[Tensor],
        load: Callable[[Load, Translation], Expr],
    ):
        self.algebra, self._load = algebra, load
        self.nests: dict[Tensor, Nest] = {}
        self._inlined = inlined
        self._arguments = frozenset(arguments)
        self._readers: dict[Tensor, list[Nest]] = {}
        self._left_out: set[Stage] = set()
        self._launch: dict[tuple[Stage, str], Loop] = {}
        self._launch_stage: dict[tuple[Stage, str], str] = {}

    def plan(self, stage: Stage) -> Nest | None:
        """The nest of a stage whose readers are planned; None where nothing reads a stage under compute_at."""
        nest = self._place(stage)
        if nest is None:
            self._left_out.add(stage)
            return None
        nest.is_argument = stage.tensor in self._arguments
        nest.region = self._region(nest)
        nest.layout = layout(stage, nest.scope)
        if isinstance(stage.op, ExternOp):
            return self._plan_given(nest, stage.op)
        roots = {a: r.extent for a, r in zip(stage.op.axis, nest.region, strict=True)}
        roots.update({a: self.algebra.extent(a.extent) for a in stage.op.reduce_axis})
        nest.extents = axis_extents(stage, roots, self.algebra)
        if self._round_up(nest):
            roots.update({a: r.extent for a, r in zip(stage.op.axis, nest.region, strict=True)})
            nest.extents = axis_extents(stage, roots, self.algebra)
        nest.loops = self._loops(nest)
        values = axis_values(stage, nest.extents, {loop.axis: loop.value for loop in nest.loops}, self.algebra)
        nest.terms = Translation(self.algebra, root_values(nest, values, self.algebra), self._inlined, self._load)
        if not nest.is_empty:
            nest.guards += tail_guards(stage, nest.extents, values, self.algebra)
            nest.domain = self._domain_guards(nest)
            may_speculate = self._read(nest)
            speculates = may_speculate and not self._is_of_matrices(nest) and self._gains_by_speculation(nest)
            nest.is_speculative = bool(nest.domain) and speculates
            if not nest.is_speculative:
                nest.guards += nest.domain
                if nest.domain and not may_speculate:
                    self._keep_inside(stage.tensor)
        self.nests[stage.tensor] = nest
        return nest

    def _plan_given(self, nest: Nest, op: ExternOp) -> Nest:
        stage = nest.stage  # each of its rounds may read all of each input
        nest.layout = tuple(range(stage.tensor.ndim))
        nest.extents = axis_extents(stage, {a: self.algebra.extent(a.extent) for a in op.axis}, self.algebra)
        nest.loops = self._loops(nest)
        values = axis_values(stage, nest.extents, {loop.axis: loop.value for loop in nest.loops}, self.algebra)
        nest.terms = Translation(self.algebra, {a.var: values[a] for a in op.axis}, self._inlined, self._load)
        if not nest.is_empty:
            nest.guards += tail_guards(stage, nest.extents, values, self.algebra)
            for t in op.input_tensors:
                if t in self._inlined:
                    raise InvalidSchedule(
                        f"{t.name} is inlined, but {nest.name}, whose loops are given, reads its array"
                    )
                nest.reads.append((t, ()))
                self._readers.setdefault(t, []).append(nest)
        self.nests[stage.tensor] = nest
        return nest

    def _keep_inside(self, tensor: Tensor) -> None:
        """Readers of what is computed inside its tensor only must not compute beyond theirs from what nobody stored."""
        for reader in self._readers.get(tensor, []):
            if reader.is_speculative:
                reader.is_speculative = False
                reader.guards += reader.domain
                self._keep_inside(reader.stage.tensor)

    def idle_axes(self, nest: Nest) -> list[tuple[str, int]]:
        """Thread axes of the launch, with extents, that run all of a nest that they must not run more than once."""
        if nest.scope in PRIVATE:
            return []
        used = {loop.kind for loop in nest.path}
        launched = [(kind, loop.extent.constant) for (root, kind), loop in self._launch.items() if root is nest.root]
        return [(kind, extent) for kind, extent in launched if kind in THREAD_AXES and kind not in used and extent > 1]

    def _threads(self, axis: IterVar, kind: str, extent: Linear) -> int:
        """Return how many rounds the loop of a GPU axis has."""
        if extent.number is None:
            raise InvalidSchedule(
                f"{axis.name} is bound to {kind}, and its extent is open",
                do="split it by a number, and bind the inner loop",
            )
        return extent.number

    # -- place

    def _place(self, stage: Stage) -> Nest | None:
        body = const(0) if isinstance(stage.op, ExternOp) else stage.op.body
        whole = Nest(stage, body, (), "global", stage)
        if stage.attach is None:
            return whole
        parent_stage, axis = stage.attach
        readers = self._readers.get(stage.tensor, [])
        is_needed = readers or stage.tensor in self._arguments
        parent = self.nests.get(parent_stage.tensor)
        if parent is None:
            if parent_stage.is_inline:
                raise InvalidSchedule(f"{stage.name} is computed at {parent_stage.name}, which is inlined")
            if not readers and parent_stage in self._left_out:
                return whole if is_needed else None
            raise InvalidSchedule(
                f"{stage.name} is computed at {parent_stage.name}, which comes before it",
                [f"read by: {', '.join(n.name for n in readers) or 'nothing'}"],
            )
        position = next((i for i, loop in enumerate(parent.loops) if loop.axis is axis), None)
        if position is None:
            raise InvalidSchedule(
                f"{stage.name} is computed at {axis.name} of {parent_stage.name}, which is no longer a loop of it",
                [f"loops: {', '.join(a.name for a in parent_stage.leaf_iter_vars)}"],
                do="call compute_at after split, fuse and the like",
            )
        prefix = (*parent.prefix, *parent.loops[: position + 1])
        if stage.tensor in self._arguments and (parent.is_empty or any(x.extent.number == 0 for x in prefix)):
            return whole  # no round of these loops comes
        for reader in readers:
            is_behind = stage.tensor in self._arguments and reader.root is not parent.root
            if reader.path[: len(prefix)] != prefix and not is_behind:
                raise InvalidSchedule(
                    f"{stage.name} is computed at {axis.name} of {parent_stage.name}, "
                    f"but {reader.name} reads it outside of that loop",
                    [f"loops around {reader.name}: {', '.join(x.axis.name for x in reader.path) or 'none'}"],
                    do=f"compute {reader.name} inside that loop, too, or {stage.name} further out; or store_root it",
                )
        if not is_needed:
            return None
        nest = Nest(stage, body, prefix, self._scope(stage, prefix, readers), parent.root)
        nest.position = position
        return nest

    def _scope(self, stage: Stage, prefix: tuple[Loop, ...], readers: list[Nest]) -> str:
        in_threads = any(loop.kind in THREAD_AXES for loop in prefix)
        in_blocks = in_threads or any(loop.kind in BLOCK_AXES for loop in prefix)
        bound = next((a for a in stage.leaf_iter_vars if stage.kinds.get(a) in THREAD_AXES), None)
        paths = (r.path for r in readers if r.path[: len(prefix)] == prefix)
        launched = [(x.axis, x.kind) for path in paths for x in path[len(prefix) :] if x.kind in GPU_AXES]
        launched += [(bound, stage.kinds[bound])] if bound is not None else []
        if launched and not in_blocks:
            raise InvalidSchedule(
                f"{stage.name} is computed at {prefix[-1].axis.name}, which runs around blocks and threads of a GPU",
                [f"inside of it: {axis.name}, bound to {kind}" for axis, kind in launched[:1]],
                do="reorder what is bound to blocks and threads outermost, or compute it at root",
            )
        default = "local" if in_threads and bound is None else "shared" if in_blocks else "global"
        scope = stage.scope or default
        if stage.tensor in self._arguments:
            return "global"
        if in_blocks and bound is not None and scope in PRIVATE:
            raise InvalidSchedule(
                f"{stage.name} ({scope}) is each thread's own, but {stage.kinds[bound]} runs its loop {bound.name}",
                do='set_scope("shared"), so that all threads see them, or leave its loops unbound',
            )
        if in_blocks and scope == "global":
            raise InvalidSchedule(
                f"{stage.name} is computed inside blocks of a GPU, where global memory cannot be allocated",
                do='set_scope("shared") or "local", or compute it at root',
            )
        if in_blocks and not in_threads and scope in PRIVATE:
            for reader in readers:
                if any(loop.kind in THREAD_AXES for loop in reader.path[len(prefix) :]):
                    raise InvalidSchedule(
                        f"{stage.name} ({scope}) is a thread's own, but {reader.name} reads it from all of a block",
                        do='set_scope("shared"), or compute it inside the thread loops',
                    )
        return scope

    # -- regions

    def _region(self, nest: Nest) -> list[AxisRegion]:
        shape = [self.algebra.extent(d) for d in nest.stage.tensor.shape]
        whole = [AxisRegion(ZERO, extent, True) for extent in shape]
        if not nest.prefix or any(extent.number == 0 for extent in shape):
            return whole
        around = {loop.var for loop in nest.prefix}
        threads = {loop.var for loop in nest.prefix if loop.kind in THREAD_AXES or loop.is_virtual}
        shared = threads if nest.scope == "shared" else set[Var]()
        found: list[tuple[Linear, Linear]] | None = None
        readers, wanted = list(self._readers.get(nest.stage.tensor, [])), [nest.stage.tensor]
        if nest.stage.like is not None:  # as those read it that it is computed with, not others like itself
            readers += [r for r in self._readers.get(nest.stage.like, []) if r.stage.like is None and r not in readers]
            wanted.append(nest.stage.like)
        for reader in [r for r in readers if r.path[: len(nest.prefix)] == nest.prefix]:
            moving = ({loop.var for loop in reader.path} - around) | shared
            for tensor, indices in reader.reads:
                if not any(tensor is t for t in wanted):
                    continue
                boxes = [self.algebra.relax(self.algebra.rejoined(i), moving) for i in indices]
                if nest.is_argument:  # what is not read is stored by the round whose part it is
                    boxes = [self._read_under(*pair, reader, moving) for pair in zip(indices, boxes, strict=True)]
                found = boxes if found is None else [self._union(a, b) for a, b in zip(found, boxes, strict=True)]
        if found is None:
            return self._argument_region(nest, whole)
        if nest.is_argument:
            cut = [self._clip(*box, extent) for box, extent in zip(found, shape, strict=True)]
            return self._argument_region(nest, cut)
        # what a speculative reader touches beyond an edge is stored, too, unless that would be more than the tensor
        overhangs = not nest.stage.threads and any(r.is_speculative for r in self._readers[nest.stage.tensor])
        return [
            AxisRegion(low, span.offset(1), False)
            if overhangs and self.algebra.is_below(span, extent * 2)
            else self._clip(low, span, extent)
            for (low, span), extent in zip(found, shape, strict=True)
        ]

    def _round_up(self, nest: Nest) -> bool:
        """Gives what is kept close whole rounds of its own splits: a tile of 24 channels in vectors of 16 takes 32
        places in registers, so that no vector is cut. The surplus is computed speculatively.
        """
        if nest.is_argument or nest.stage.threads or nest.scope not in ("register", "local"):
            return False
        cut = {
            r.parent: self.algebra.scaled(nest.extents[r.outer], nest.extents[r.inner])
            for r in nest.stage.relations
            if isinstance(r, Split)
        }
        rounded = [
            AxisRegion(r.low, whole, False)
            if (whole := cut.get(a))
            and self.algebra.is_below(r.extent, whole)
            and self.algebra.is_below(whole, r.extent * 2)
            else r
            for a, r in zip(nest.stage.op.axis, nest.region, strict=True)
        ]
        changed = any(a is not b for a, b in zip(rounded, nest.region))
        nest.region = rounded
        return changed

    def _union(self, a: tuple[Linear, Linear], b: tuple[Linear, Linear]) -> tuple[Linear, Linear]:
        """A box around two: measured from the start of the first."""
        (a_low, a_span), (b_low, b_span) = a, b
        least, most = self.algebra.ends(b_low - a_low)
        start = ZERO if self.algebra.form_span(least)[0] >= 0 else least
        reach = most + b_span
        return a_low + start, (reach if self.algebra.is_below(a_span, reach) else a_span) - start

    def _read_under(
        self, index: Linear, box: tuple[Linear, Linear], reader: Nest, moving: set[Var]
    ) -> tuple[Linear, Linear]:
        """Return the box that a reader touches along an axis where its conditions hold: low + form with form < n."""
        for form, end in _conditions(reader):
            low, span = index - form, end.offset(-1)
            if self.algebra.free(low).isdisjoint(moving) and self.algebra.is_at_most(span - box[1], 0):
                box = low, span
        return box

    def _clip(self, low: Linear, span: Linear, extent: Linear) -> AxisRegion:
        """The part of low .. low + span that is inside the tensor; all of that where little less is read."""
        is_tile = span.number is not None and extent.number is None  # of a number, which the extent may be beyond
        if not is_tile and self.algebra.is_below(extent.offset(-2), span):
            whole = AxisRegion(ZERO, extent, True)
            if low.terms or extent.terms or span.terms:
                return whole
        if low.terms or extent.terms or span.terms:
            return AxisRegion(low, span.offset(1), False)
        first, last = max(0, low.constant), min(extent.constant - 1, low.constant + span.constant)
        if first > last:  # read only where a condition never holds
            return AxisRegion(ZERO, ONE, True)
        inside = first == low.constant and last == low.constant + span.constant
        return AxisRegion(Linear({}, first), Linear({}, last - first + 1), not inside)

    def _argument_region(self, nest: Nest, cut: list[AxisRegion]) -> list[AxisRegion]:
        """An argument must be written as a whole: by disjoint regions, or else completely in every round."""
        shape = [self.algebra.extent(d) for d in nest.stage.tensor.shape]
        loops = [(loop.var, loop.extent) for loop in nest.prefix if loop.extent.number not in (0, 1)]
        digits: list[Digit] = []
        disjoint = True
        for region, extent in zip(cut, shape, strict=True):
            covered, used = self.algebra.covers(region.low, region.extent.offset(-1), extent, loops)
            disjoint = disjoint and covered
            digits += used
        if (disjoint and are_separate(digits)) and all(
            loop.extent.number == 1 or is_cut_whole(loop.var, loop.extent, digits)
            for loop in nest.prefix
            if loop.kind != "serial" and loop.kind != "unrolled"
        ):
            return [AxisRegion(r.low, r.extent, False) for r in cut]
        if any(loop.kind == "parallel" or loop.kind in GPU_AXES for loop in nest.prefix):
            raise InvalidSchedule(
                f"{nest.name} is an argument, and the parts that parallel rounds would compute of it are not disjoint",
                do="compute it at root, or at a loop that cuts it into separate parts",
            )
        return [AxisRegion(ZERO, extent, True) for extent in shape]

    # -- loops

    def _loops(self, nest: Nest) -> list[Loop]:
        loops: list[Loop] = []
        names = {loop.var.name for loop in nest.prefix if loop.is_emitted}
        for axis in nest.stage.leaf_iter_vars:
            kind = nest.stage.kinds.get(axis, "serial")
            extent = nest.extents[axis]
            depth = len(nest.prefix) + len(loops)
            if kind in GPU_AXES:
                loops.append(self._gpu_loop(nest, axis, kind, depth, loops))
                continue
            name = axis.name
            count = 0
            while name in names:
                count += 1
                name = f"{axis.name}_{count}"
            var = Var(name)
            value = self.algebra.declare(var, extent, depth)
            is_emitted = extent.number != 1
            if is_emitted:
                names.add(name)
            loop = Loop(axis, var, extent, kind, value, is_emitted)
            loops.append(replace(loop, kind="unrolled", is_virtual=True) if kind == VIRTUAL else loop)
        if nest.scope == "shared":  # one thread writes where no loop shares the work out
            bound = {loop.kind for loop in loops}
            for loop in nest.prefix:
                if loop.kind in THREAD_AXES and loop.kind not in bound and loop.is_emitted and loop.extent.number != 1:
                    nest.guards.append(Guard(loop.value, ONE))
        return loops

    def _gpu_loop(self, nest: Nest, axis: IterVar, kind: str, depth: int, own: list[Loop]) -> Loop:
        extent = self._threads(axis, kind, nest.extents[axis])
        thread = nest.stage.threads[axis]
        opened = next((loop for loop in (*nest.prefix, *own) if loop.kind == kind), None)
        if nest.stage.attach is not None and (kind in BLOCK_AXES or (opened and nest.scope != "shared")):
            raise InvalidSchedule(
                f"{nest.name} is computed inside {nest.stage.attach[0].name}, whose kernel shares out {kind} already",
                [f"{axis.name} of {nest.name} is bound to {kind}"],
                do=f"leave {axis.name} unbound, or compute {nest.name} at root",
            )
        known = opened or self._launch.get((nest.root, kind))
        launched = 0 if known is None else known.extent.constant
        rounds = max(thread.extent or extent, launched)
        if known and rounds > launched:
            raise InvalidSchedule(
                f"{kind} has two extents in the kernel of {nest.root.name}",
                [f"{self._launch_stage[nest.root, kind]}: {launched}", f"{nest.name}: {rounds}, for {axis.name}"],
                do=f"split {axis.name} by {launched} and bind the inner loop",
            )
        if extent > rounds:
            raise InvalidSchedule(
                f"{nest.name}: {axis.name} does not fit {kind}",
                [f"{axis.name} has {extent} rounds, {kind} has extent {rounds}"],
                do=f"split {axis.name} by {rounds} first",
            )
        if opened:
            loop = Loop(axis, opened.var, opened.extent, kind, opened.value, False)
        else:
            var, threads = Var(kind), Linear({}, rounds)
            loop = Loop(axis, var, threads, kind, self.algebra.declare(var, threads, depth), True)
            self._launch.setdefault((nest.root, kind), loop)
            self._launch_stage.setdefault((nest.root, kind), nest.name)
        if extent < rounds:
            nest.guards.append(Guard(loop.value, Linear({}, extent), axis))
        return loop

    # -- conditions

    def _domain_guards(self, nest: Nest) -> list[Guard]:
        found: list[Guard] = []
        for axis, region, extent in zip(nest.stage.op.axis, nest.region, nest.stage.tensor.shape, strict=True):
            whole = self.algebra.extent(extent)
            value = nest.terms.env[axis.var]
            if self.algebra.form_span(region.low)[0] < 0:
                found.append(Guard(value, ZERO, axis, is_lower=True, is_domain=True))
            if self.algebra.form_span(region.low + region.extent - whole)[1] > 0:
                found.append(Guard(value, whole, axis, is_domain=True))
        return found

    def _gains_by_speculation(self, nest: Nest) -> bool:
        if nest.is_argument:
            return False
        is_kept_close = isinstance(nest.body, Reduce) or nest.scope in ("register", "local")
        return is_kept_close or any(r.is_speculative for r in self._readers.get(nest.stage.tensor, []))

    def _is_of_matrices(self, nest: Nest) -> bool:
        """Return whether a matrix unit holds what a nest computes or reads, or takes it in pairs: none of its
        instructions has loads under conditions. Vectors of 4 bytes have."""
        stage = nest.stage
        if "tensorized" not in stage.kinds.values() or nest.scope == "register":
            return False
        in_tiles = {s.tensor for s in stage.schedule.stages if s.scope == "tile"}
        return dtypes.itemsize(stage.tensor.dtype) < 4 or not in_tiles.isdisjoint(
            [stage.tensor, *(t for t, _ in nest.reads)]
        )

    # -- reads

    def _read(self, nest: Nest) -> bool:
        """Collects what a nest reads; gives whether elements beyond the tensor may be computed, with whatever value."""
        parts: list[Expr] = [nest.body]
        if isinstance(nest.body, Reduce):
            parts = [nest.body.init] if nest.body.init is not None else []
            if not nest.reduces_nothing:
                parts += [nest.body.value, *([nest.body.condition] if nest.body.condition is not None else [])]
        is_harmless = True
        for e, terms in nest.terms.nodes(*parts):
            if isinstance(e, Load):
                source = source_of(e)
                if source in self._inlined:
                    continue
                indices = terms.indices(e)
                nest.reads.append((source, indices))
                readers = self._readers.setdefault(source, [])
                if nest not in readers:
                    readers.append(nest)
                if any(self.algebra.reads_memory(i) for i in indices):
                    is_harmless = False  # an index made of garbage
            elif isinstance(e, Select) or (isinstance(e, Call) and e.name == "if_then_else"):
                nest.is_conditional = True
            elif isinstance(e, Binary) and e.op in ("/", "//", "%") and not isinstance(e.b, Const):
                is_harmless = is_harmless and dtypes.is_float(e.dtype)  # division by a garbage zero traps
        return is_harmless


def _conditions(nest: Nest) -> Iterator[tuple[Linear, Linear]]:
    """Yield forms, with what they are less than wherever a nest reads."""
    yield from ((g.form, g.bound) for g in nest.guards if g.axis is not None and not (g.is_lower or g.is_domain))
    waiting = [nest.body.condition] if isinstance(nest.body, Reduce) and nest.body.condition is not None else []
    while waiting:
        e = waiting.pop()
        if isinstance(e, Binary) and e.op == "&&":
            waiting += (e.a, e.b)
        elif isinstance(e, Binary) and e.op == "<" and dtypes.is_int(e.a.dtype):
            yield nest.terms.linear(e.a), nest.terms.linear(e.b)
