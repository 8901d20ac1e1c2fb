"""Lowering: a schedule and its arguments become one Kernel of loops.

Stages come out producers first, each as a nest

    produce T { for leaves... { if (conditions) T[index] = value } }

with the stages computed inside it in their places. A reduction is its start values, then its rounds:

    for (data loops before the first reduce loop) {
      for (data loops after it, again) { T[index] = identity }
      for (leaves from there on) { T[index] = T[index] + value }
    }

Conditions stand as far out as the loops they depend on allow, but inside the place of every stage computed within, so
that barriers are reached by all threads. What is stored in shared memory is followed by a barrier before it is read,
and preceded by one where the nest around it is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from renorm.core.errors import InvalidSchedule, suggest
from renorm.expr.bounds import Intervals, reads
from renorm.expr.linear import Linear
from renorm.expr.nodes import (
    Binary,
    Expr,
    Load,
    OpenVar,
    Reduce,
    Var,
    all_of,
    as_expr,
    combine,
    const,
    identity_element,
)
from renorm.expr.rewrite import variables
from renorm.te import double_buffers, last_rows, open_tiles, prefetch, storage, virtual_threads
from renorm.te.arguments import checked
from renorm.te.axes import axis_values
from renorm.te.bounds import GPU_AXES, Guard, Inference, Loop, Nest, root_values
from renorm.te.depth import check_depth
from renorm.te.given_loops import Array, ExternOp, Loops
from renorm.te.loop_algebra import ONE, ZERO, LoopAlgebra
from renorm.te.open import open_variables, with_bounds
from renorm.te.places import around, read_by, root_of
from renorm.te.schedule import Schedule
from renorm.te.stage import Stage
from renorm.te.tensor import PlaceholderOp, Tensor
from renorm.te.translation import Translation, source_of
from renorm.te.window import Window
from renorm.tir.nodes import (
    NOTHING,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Kernel,
    Produce,
    Stmt,
    Store,
    expressions,
    seq,
    walk,
)


@checked("te.", InvalidSchedule)
def lower(
    s: Schedule, args: Sequence[Tensor], name: str = "main", *, facts: Sequence[Expr] = (), may_be_empty: bool = False
) -> Kernel:
    """The loops of a schedule as a Kernel whose parameters are `args`, in that order.

    args: placeholders and computed tensors; a computed tensor that is missing is allocated, one that is inlined is
    a parameter that is neither read nor written, a placeholder that is read must be there. Storage of tensors that
    are not arguments is reused once they are dead (te.storage). facts: conditions on open extents that callers see to.
    may_be_empty: extents made of such as may be 0 may be. Raises InvalidSchedule with the stage and what its loops are.
    """
    check_depth(s)
    s, args, facts = with_bounds(s, args, facts)
    return _Lowering(s, list(args), may_be_empty).kernel(name, facts)


class _Lowering:
    def __init__(self, s: Schedule, args: list[Tensor], may_be_empty: bool):
        self.s, self.args, self.algebra = s, args, LoopAlgebra(may_be_empty)
        self.taken: set[str] = set()
        self._check_arguments()
        self.inlined = {stage.tensor: stage.computed("compute_inline") for stage in s.stages if stage.is_inline}
        self.windows = {t: window for t in args if (window := self._window(t))}
        self.buffers: dict[Tensor, Buffer] = {t: self._buffer(t, self._size(t), "global") for t in args}
        self.kept = {x.tensor: x for x in s.stages if x.attach and (x.is_stored_at_root or x.tensor in self.buffers)}
        self.inference = Inference(self.algebra, self.inlined, [*args, *self.kept], self._load)
        self.inside: dict[Stage, list[Nest]] = {}
        self.owner: dict[Translation, Nest] = {}

    def kernel(self, name: str, facts: Sequence[Expr]) -> Kernel:
        roots: list[Nest] = []
        for stage in reversed(self._order()):
            nest = self.inference.plan(stage)
            if nest is None:
                continue
            if stage.attach is None or not nest.prefix:
                roots.append(nest)
            else:
                self.inside.setdefault(stage.attach[0], []).append(nest)
        self._check_placeholders()
        for nests in (roots, *self.inside.values()):
            nests.reverse()  # planned readers first
        for stage in self.s.stages:
            nest = self.inference.nests.get(stage.tensor)
            if nest is not None and stage.tensor not in self.buffers:
                size = self._size(stage.tensor) if nest.is_argument else self._held(nest)
                self.buffers[stage.tensor] = self._buffer(stage.tensor, size, nest.scope)
        body = self._with_places(roots, NOTHING, ())
        for t in self.kept:
            nest = self.inference.nests.get(t)
            if t not in self.args and nest is not None and not nest.is_empty:
                body = Allocate(self.buffers[t], body)
        body = virtual_threads.side_by_side(body, [x for n in self.inference.nests.values() for x in n.loops])
        body = double_buffers.ahead(body, self.s.stages, self.buffers)
        outputs = frozenset(self.buffers[t].name for t in self.args if t in self.inference.nests)
        params = tuple(self.buffers[t] for t in self.args)
        body = storage.reuse(body, {self.buffers[x.tensor] for x in self.s.stages if isinstance(x.op, ExternOp)})
        known = [self.algebra.fact(f) for f in facts]
        extents = self._extents(params, body)
        told = tuple(f for f in known if set(variables(f)) <= set(extents))
        return Kernel(name, params, body, outputs, extents=extents, facts=told)

    def _extents(self, params: Sequence[Buffer], body: Stmt) -> tuple[OpenVar, ...]:
        """Open extents: those of the arguments, and what of them the loops are made of."""
        given = open_variables(self.s, self.args)
        defined = self.algebra.defined
        if not defined:
            return tuple(given)
        used = {v for p in params if isinstance(p.size, Expr) for v in variables(p.size)}
        for s in walk(body):
            used.update(v for e in expressions(s) for v in variables(e))
            if isinstance(s, Allocate) and isinstance(s.buffer.size, Expr):
                used.update(variables(s.buffer.size))
        kept: list[OpenVar] = []
        for v in reversed(defined):  # each is made of earlier ones
            if v in used and v.definition is not None:
                used.update(variables(v.definition))
                kept.append(v)
        return (*given, *reversed(kept))

    def _order(self) -> list[Stage]:
        """Stages that have loops, producers first. Who reads what has its whole array outside of the loop that computes
        it, but stands outside too, comes after that loop.
        """
        stages = {x.tensor: x for x in self.s.stages}
        if not self.kept:
            return [x for x in self.s.stages if not x.is_inline]
        guests = self._guests(stages)
        order: dict[Stage, bool] = {}  # whether all before it are there

        def visit(stage: Stage) -> None:
            if stage in order:
                if not order[stage]:
                    raise InvalidSchedule(
                        f"{stage.name} is needed before the loops in which something that it reads is computed",
                        do="compute that at root, too",
                    )
                return
            order[stage] = False
            for guest in guests.get(stage, []):
                visit(guest)
            for t in read_by(stage, stages):
                if (source := stages.get(t)) is not None:
                    root = root_of(source)
                    if t in self.kept and root is not root_of(stage):
                        visit(root)
                    visit(source)
            del order[stage]
            order[stage] = True

        for stage in self.s.stages:
            if not stage.is_inline:
                visit(stage)
        return list(order)

    def _guests(self, stages: Mapping[Tensor, Stage]) -> dict[Stage, list[Stage]]:
        """Stages that are computed with others, by those: whose loops they stand in, and who reads there what they are
        like, but for what is computed in their own loops. Regions are known of readers first, and so these come
        after."""
        found: dict[Stage, list[Stage]] = {}
        for guest in self.s.stages:
            if guest.like is None or guest.attach is None:
                continue
            for stage in self.s.stages:
                host = guest.attach[0]
                is_inside = stage.like is None and host in around(stage) and guest not in around(stage)
                if stage is host or (is_inside and guest.like in read_by(stage, stages)):
                    found.setdefault(stage, []).append(guest)
        return found

    def _window(self, argument: Tensor) -> Window | None:
        """Return where an argument lies in memory that holds more; None where it lies alone."""
        found = (stage.window for stage in self.s.stages if stage.tensor is argument)
        return argument.op.window if isinstance(argument.op, PlaceholderOp) else next(found, None)

    def _buffer(self, tensor: Tensor, size: Linear, scope: str) -> Buffer:
        name, count = tensor.name, 0
        while name in self.taken:
            count += 1
            name = f"{tensor.name}_{count}"
        self.taken.add(name)
        return Buffer(name, tensor.dtype, self._count(size), scope)

    def _size(self, tensor: Tensor) -> Linear:
        """The elements of the array that an argument is."""
        if tensor in self.windows:
            return self.algebra.extent(self.windows[tensor].size)
        return self.algebra.size(self.algebra.extent(d) for d in tensor.shape)

    def _count(self, extent: Linear) -> int | Expr:
        return self.algebra.expression(extent) if extent.number is None else extent.number

    def _check_arguments(self) -> None:
        computed = {stage.tensor: stage for stage in self.s.stages}
        seen: set[Tensor] = set()
        for t in self.args:
            if not isinstance(t, Tensor):
                raise InvalidSchedule(f"lower: argument {t!r} is not a tensor", do="pass placeholders and results")
            if t in seen:
                raise InvalidSchedule(f"lower: {t.name} comes twice among the arguments")
            seen.add(t)
            if not isinstance(t.op, PlaceholderOp) and t not in computed:
                raise InvalidSchedule(
                    f"lower: {t.name} is not computed by this schedule",
                    [f"stages: {suggest(t.name, [x.name for x in computed])}"],
                )

    def _check_placeholders(self) -> None:
        given = set(self.args)
        missing: dict[Tensor, dict[str, None]] = {}
        for nest in self.inference.nests.values():
            for t, _ in nest.reads:
                if isinstance(t.op, PlaceholderOp) and t not in given:
                    missing.setdefault(t, {})[nest.name] = None
        if missing:
            facts = [f"{t.name} {t.shape} is read by {', '.join(readers)}" for t, readers in missing.items()]
            raise InvalidSchedule("lower: placeholders are missing from the arguments", facts)

    # -- reads

    def _place_of(self, t: Tensor) -> tuple[list[Linear], Sequence[Linear]]:
        """Return where the array of a tensor begins, and its extents."""
        nest = self.inference.nests.get(t)
        if nest is None or nest.is_argument:
            return [ZERO] * len(t.shape), [self.algebra.extent(d) for d in t.shape]
        return [r.low for r in nest.region], [r.extent for r in nest.region]

    def _load(self, e: Load, terms: Translation) -> Load:
        t, indices = source_of(e), terms.indices(e)
        nest = self.owner[terms.outermost]
        position = self.algebra.value(self._position(t, indices))
        guards = self._conditions(e, terms, nest) if nest.is_speculative else []
        guards = self._necessary(guards, position, self.buffers[t])
        conditions = list[Expr]()
        for g, form in guards:
            inside = last_rows.moved_inside(self.algebra, nest, indices, g, form)
            if inside is None:
                conditions.append(self._condition(g, form))
            else:
                indices = inside
        if len(conditions) < len(guards):
            moved = self.algebra.value(self._position(t, indices))
            reduced = nest.body.condition if isinstance(nest.body, Reduce) else None
            own = [] if reduced is None else [c for _, c in self._conjuncts(nest, reduced, of_memory=False)]
            is_certain = reduced is None and not nest.is_conditional
            if is_certain or last_rows.stays_inside(self.algebra, moved, [*conditions, *own], self.buffers[t]):
                position = moved
            else:
                conditions = [self._condition(g, form) for g, form in guards]
        return Load(self.buffers[t], (position,), all_of(*conditions) if conditions else None)

    def _necessary(
        self, guards: list[tuple[Guard, Linear]], position: Expr, buffer: Buffer
    ) -> list[tuple[Guard, Linear]]:
        """Those conditions that keep a read inside its array: what is read in vain may be any element, and a predicate
        is expensive, above all where it differs between the lanes of a vector that is one number spread.
        """
        conditions = {i: self._condition(g, form) for i, (g, form) in enumerate(guards)}
        for i in list(conditions):
            others = [c for k, c in conditions.items() if k != i]
            if Intervals(self.algebra.ranges, others).is_within(position, buffer.size):
                del conditions[i]
        return [guards[i] for i in conditions]

    def _conditions(self, e: Load, terms: Translation, nest: Nest) -> list[tuple[Guard, Linear]]:
        """Return when a stage that computes beyond its tensor may read: where the axes that could lead outside are
        inside."""
        blamed: set[Var] = set()
        for index, (first, extent) in zip(terms.indices(e), self._stored(source_of(e)), strict=True):
            if extent is not None:
                inside = index - first
                if self.algebra.form_span(inside)[0] < 0 or not self.algebra.is_below(inside, extent):
                    blamed |= self.algebra.free(index)
        if not blamed:
            return []
        env = terms.outermost.env
        forms = [(g, g.form_in({}, env)) for g in nest.domain]
        if not nest.is_conditional:  # else what a condition of the body allows may hang on any axis
            forms = [(g, form) for g, form in forms if not blamed.isdisjoint(self.algebra.free(form))]
        return forms

    def _stored(self, t: Tensor) -> list[tuple[Linear, Linear | None]]:
        """For each axis, start and extent of what a tensor's array holds; None where it holds all that is read."""
        nest = self.inference.nests.get(t)
        if nest is None or nest.is_argument or (nest.domain and not nest.is_speculative):
            return [(ZERO, self.algebra.extent(extent)) for extent in t.shape]
        return [(r.low, r.extent if r.is_whole else None) for r in nest.region]

    def _position(self, t: Tensor, indices: Sequence[Linear]) -> Linear:
        """The position of an element in the memory of `t`."""
        lows, extents = self._place_of(t)
        nest, window = self.inference.nests.get(t), self.windows.get(t)
        order = nest.layout if nest is not None and window is None else range(len(extents))
        if window:
            strides = {i: self.algebra.extent(stride) for i, stride in enumerate(window.strides)}
        else:
            stage = None if nest is None or nest.is_argument else nest.stage
            strides = self._row_major(extents, order, stage)[0]
        inside = [i - low for i, low in zip(indices, lows, strict=True)]
        return self.algebra.rejoined(sum((self.algebra.scaled(inside[i], strides[i]) for i in order), ZERO))

    def _held(self, nest: Nest) -> Linear:
        """The elements of the array that holds the region of a stage."""
        return self._row_major([r.extent for r in nest.region], nest.layout, nest.stage)[1]

    def _row_major(
        self, extents: Sequence[Linear], order: Sequence[int], stage: Stage | None = None
    ) -> tuple[dict[int, Linear], Linear]:
        """Return how far apart neighbours along each axis lie, where memory runs through the axes in this order, and
        how many elements that takes. stage: which may ask for more between them."""
        strides, stride = dict[int, Linear](), ONE
        for i in reversed(order):
            if stage is not None and stage.alignments and stage.attach is not None and stride.number is not None:
                factor, offset = stage.alignments.get(stage.op.axis[i], (1, 0))
                stride = stride.offset((offset - stride.number) % factor)
            strides[i] = stride
            stride = self.algebra.scaled(stride, extents[i])
        return strides, stride

    def _condition(self, guard: Guard, form: Linear) -> Expr:
        form, bound = self.algebra.without_division(form, guard.bound)
        moved = self.algebra.value(form.offset(-form.constant))
        end = self.algebra.end(bound.offset(-form.constant), moved.dtype)
        return Binary(">=" if guard.is_lower else "<", moved, end)

    # -- nests

    def _nest(self, nest: Nest) -> Stmt:
        """All loops of a stage, with the stages computed inside."""
        if nest.is_empty:
            return NOTHING
        self.owner[nest.terms] = nest
        if isinstance(nest.stage.op, ExternOp):
            return self._given(nest, nest.stage.op)
        inside = self.inside.get(nest.stage, [])
        body = nest.body
        idle = self.inference.idle_axes(nest)
        index = self._own_index(nest, nest.terms)
        self._prefetch(nest)
        buffer = self.buffers[nest.stage.tensor]
        if not isinstance(body, Reduce):
            conditions = [(self._level(nest.loops, g.form), self._condition(g, g.form)) for g in nest.guards]
            store = Store(buffer, index, nest.terms.value(body), nontemporal=nest.stage.nontemporal)
            idle_rounds = self._idle_rounds(nest, len(nest.loops), inside)
            return self._loops(nest.loops, store, conditions, idle, inside, nest.prefix, idle_rounds=idle_rounds)
        whole = self._sum(nest, nest.loops, body, index, idle, inside)
        if inside:
            return whole

        def shorter(loops: Sequence[Loop]) -> Stmt:
            return self._sum(nest, loops, body, index, idle, ())

        return open_tiles.for_fewer(self.algebra, nest, whole, shorter, self._condition)

    def _given(self, nest: Nest, op: ExternOp) -> Stmt:
        """The rounds of given loops, over the arrays of this kernel."""
        (axis,) = op.axis
        stmt = op.statement(self._array, self.algebra.value(nest.terms.env[axis.var]))
        conditions = [(self._level(nest.loops, g.form), self._condition(g, g.form)) for g in nest.guards]
        return self._loops(nest.loops, stmt, conditions, self.inference.idle_axes(nest))

    def _array(self, loops: Loops, t: Tensor) -> Array:
        """The array of a tensor as given loops read and write it."""
        _, extents = self._place_of(t)
        window = self.windows.get(t)
        if window is None:
            found, _ = self._row_major(extents, range(len(extents)))
            strides = [found[i] for i in range(len(extents))]
        else:
            strides = [self.algebra.extent(stride) for stride in window.strides]
        return Array(loops, self.buffers[t], [self._count(d) for d in extents], [self._count(d) for d in strides])

    def _sum(
        self,
        nest: Nest,
        loops: Sequence[Loop],
        body: Reduce,
        index: Expr,
        idle: Sequence[tuple[str, int]],
        inside: Sequence[Nest],
    ) -> Stmt:
        """The loops of a reduction: start values, and rounds."""
        buffer = self.buffers[nest.stage.tensor]
        first = next(i for i, loop in enumerate(loops) if loop.axis.kind == "reduce")
        deepest = max((child.position for child in inside), default=-1)
        lone = max(deepest, _last_gpu_loop(loops))
        outside: list[tuple[int, Expr]] = []  # around start values and rounds alike
        rounds: list[tuple[int, Expr]] = []
        start: list[Guard] = []
        for g in nest.guards:
            level = max(self._level(loops, g.form), deepest)
            (outside if level < first else rounds).append((level, self._condition(g, g.form)))
            start += [g] if level >= first and not g.is_reduce else []
        update: Stmt = NOTHING
        if not nest.reduces_nothing:
            if body.condition is not None:
                rounds += self._conjuncts(nest, body.condition, of_memory=False)
                inmost = max((level for level, _ in rounds), default=-1)  # what is read lies within all of them
                found = self._conjuncts(nest, body.condition, of_memory=True)
                rounds += [(max(level, inmost), c) for level, c in found]
            value = combine(body.combiner, Load(buffer, (index,)), nest.terms.value(body.value))
            store = Store(buffer, index, value)
            update = self._loops(loops, store, rounds, idle if lone >= first else (), inside, nest.prefix, first)
        both = seq([self._start(nest, loops, body, first, start, idle if lone >= first else ()), update])
        idle = idle if lone < first else ()
        idle_rounds = self._idle_rounds(nest, first, inside)
        return self._loops(loops[:first], both, outside, idle, inside, nest.prefix, idle_rounds=idle_rounds)

    def _prefetch(self, nest: Nest) -> None:
        """Gives loops the hints of what their rounds ask for ahead."""
        nests = self.inference.nests
        for wanted in nest.stage.prefetches if nest.prefix or nest.stage.attach is None else ():
            t = wanted[0]
            is_around = t not in nests or nests[t].stage.attach is None or t in self.kept
            if is_around and t in self.buffers:
                found = prefetch.hints(self.algebra, nest, nests, wanted, self._position, self.buffers[t])
                if found:
                    found[0].hints += found[1]

    def _idle_rounds(self, nest: Nest, end: int, inside: Sequence[Nest]) -> list[tuple[int, Expr]]:
        """Conditions of whole rounds, with the number of the loop."""
        found = open_tiles.idle_rounds(self.algebra, nest, end, inside, self.inside)
        return [(position, self._condition(g, form)) for position, g, form in found]

    def _loops(
        self,
        loops: Sequence[Loop],
        stmt: Stmt,
        conditions: list[tuple[int, Expr]],
        idle: Sequence[tuple[str, int]],
        inside: Sequence[Nest] = (),
        prefix: tuple[Loop, ...] = (),
        begin: int = 0,
        idle_rounds: Sequence[tuple[int, Expr]] = (),
    ) -> Stmt:
        """`stmt` inside the loops from number `begin` on; conditions: with the number of the loop they stand in (-1:
        around all); idle: thread axes of which one thread runs `stmt`; inside: the stages computed in those loops;
        prefix: the loops around; idle_rounds: conditions of whole rounds, with what is computed in them."""
        mine = [child for child in inside if begin <= child.position < len(loops)]
        deepest = max((child.position for child in mine), default=-1)
        lone = max(deepest, _last_gpu_loop(loops))
        for position in range(len(loops) - 1, begin - 1, -1):
            stmt = _guarded(stmt, [c for level, c in conditions if max(level, deepest) == position])
            if position == lone:
                stmt = _by_one_thread(stmt, idle)
            loop = loops[position]
            children = [child for child in mine if child.position == position]
            if children:
                stmt = self._with_places(children, stmt, (*prefix, *loops[: position + 1]))
            stmt = _guarded(stmt, [c for level, c in idle_rounds if level == position])
            if loop.is_emitted:
                stmt = For(loop.var, const(0), as_expr(self._count(loop.extent)), loop.kind, seq([*loop.hints, stmt]))
        stmt = _guarded(stmt, [c for level, c in conditions if max(level, deepest) < begin])
        return _by_one_thread(stmt, idle) if lone < begin else stmt

    def _start(
        self,
        nest: Nest,
        all_loops: Sequence[Loop],
        body: Reduce,
        first: int,
        guards: list[Guard],
        idle: Sequence[tuple[str, int]],
    ) -> Stmt:
        """Stores the start values: the data loops from the first reduce loop on, with variables of their own."""
        loops: list[Loop] = []
        leaves = {loop.axis: loop.value for loop in all_loops[:first]}
        for position, loop in enumerate(all_loops[first:], start=first):
            if loop.axis.kind == "reduce":
                leaves[loop.axis] = ZERO
                continue
            if loop.is_emitted:
                var = Var(loop.kind if loop.kind in GPU_AXES else f"{loop.var.name}.init")
                value = self.algebra.declare(var, loop.extent, len(nest.prefix) + position)
                loop = Loop(loop.axis, var, loop.extent, loop.kind, value, True)
            loops.append(loop)
            leaves[loop.axis] = loop.value
        values = axis_values(nest.stage, nest.extents, leaves, self.algebra)
        terms = Translation(self.algebra, root_values(nest, values, self.algebra), self.inlined, self._load)
        self.owner[terms] = nest
        start = body.init if body.init is not None else identity_element(body.combiner, nest.stage.tensor.dtype)
        stmt: Stmt = Store(self.buffers[nest.stage.tensor], self._own_index(nest, terms), terms.value(start))
        conditions: list[tuple[int, Expr]] = []
        for g in guards:
            form = g.form_in(values, terms.env)
            conditions.append((self._level(loops, form), self._condition(g, form)))
        return self._loops(loops, stmt, conditions, idle)

    def _own_index(self, nest: Nest, terms: Translation) -> Expr:
        indices = [terms.env[a.var] for a in nest.stage.op.axis]
        return self.algebra.value(self._position(nest.stage.tensor, indices))

    def _level(self, loops: Sequence[Loop], form: Linear) -> int:
        """The number of the innermost loop that a form depends on; -1 for none."""
        return _innermost(loops, self.algebra.free(form))

    def _conjuncts(self, nest: Nest, condition: Expr, of_memory: bool) -> list[tuple[int, Expr]]:
        """The parts of a reduction's condition that can fail, each with the loop that it stands in: those that read
        memory, or the others."""
        if isinstance(condition, Binary) and condition.op == "&&":
            return [c for part in (condition.a, condition.b) for c in self._conjuncts(nest, part, of_memory)]
        if reads(condition) != of_memory or nest.terms.decide(condition):
            return []
        return [(_innermost(nest.loops, nest.terms.variables(condition)), nest.terms.value(condition))]

    # -- places

    def _with_places(self, nests: Sequence[Nest], rest: Stmt, path: tuple[Loop, ...]) -> Stmt:
        """`rest` after the stages computed in the same place, with their memory around all; path: the loops around."""
        on_gpu = any(loop.kind in GPU_AXES for loop in path)
        is_repeated = any(loop.is_emitted and loop.kind not in GPU_AXES and not loop.is_virtual for loop in path)
        stmts: list[Stmt] = []
        pending: set[Tensor] = set()  # in shared memory, stored since the last barrier
        for nest in nests:
            is_shared = on_gpu and (nest.scope == "shared" or nest.is_argument)
            if pending and not pending.isdisjoint(self._reads(nest)):
                stmts.append(Barrier())
                pending.clear()
            elif is_shared and is_repeated and not any(isinstance(x, Barrier) for x in stmts):
                stmts.append(Barrier())  # the round before may still be reading
            stmts.append(Produce(nest.stage.tensor.name, self._nest(nest)))
            if is_shared:
                pending.add(nest.stage.tensor)
        if pending:
            stmts.append(Barrier())
        stmt = seq([*stmts, rest])
        for nest in reversed(nests):
            if not nest.is_argument and not nest.is_empty:
                stmt = Allocate(self.buffers[nest.stage.tensor], stmt)
        return stmt

    def _reads(self, nest: Nest) -> set[Tensor]:
        """Tensors that a nest, or a stage computed in it, reads."""
        found = {t for t, _ in nest.reads}
        for child in self.inside.get(nest.stage, []):
            found |= self._reads(child)
        return found


def _innermost(loops: Sequence[Loop], free: Collection[Var]) -> int:
    return max((i for i, loop in enumerate(loops) if loop.is_emitted and loop.var in free), default=-1)


def _last_gpu_loop(loops: Sequence[Loop]) -> int:
    return max((i for i, loop in enumerate(loops) if loop.is_emitted and loop.kind in GPU_AXES), default=-1)


def _by_one_thread(stmt: Stmt, idle: Sequence[tuple[str, int]]) -> Stmt:
    """`stmt` run by the first thread along each of the given axes only."""
    for kind, extent in idle:
        var = Var(kind)
        stmt = For(var, const(0), const(extent), kind, If(Binary("<", var, const(1)), stmt))
    return stmt


def _guarded(stmt: Stmt, conditions: list[Expr]) -> Stmt:
    """Return `stmt` where all conditions hold; those that read memory are asked for where the others hold."""
    for of_memory in (True, False):
        these = [c for c in conditions if reads(c) == of_memory]
        stmt = If(all_of(*these), stmt) if these and stmt is not NOTHING else stmt
    return stmt
