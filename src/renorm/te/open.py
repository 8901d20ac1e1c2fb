"""Open extents: programs some of whose extents are known only when they are called.

An open variable (`te.var("n")`) stands in shapes, in ranges of reduce axes and in bodies, and schedules are written as
for any other program. Loops are made of the variables, or when these have values: `specialize` gives the same program,
and the same schedule, for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from renorm.core.errors import InvalidExpression
from renorm.expr.nodes import Binary, Cast, Const, Expr, Load, OpenVar, Reduce, Var, binary, cast, const
from renorm.expr.rewrite import transform, variables
from renorm.te.arguments import checked
from renorm.te.given_loops import ExternOp
from renorm.te.relations import Fuse, Split
from renorm.te.schedule import Schedule
from renorm.te.stage import Stage
from renorm.te.tensor import ComputeOp, IterVar, PlaceholderOp, Tensor, source_of


@checked("te.", InvalidExpression)
def var(name: str = "tindex", dtype: str = "int32") -> OpenVar:
    """An integer that is known when the function is called: from the shapes of its arrays, or as an argument."""
    made = OpenVar(name, dtype)
    if made.dtype not in ("int32", "int64"):
        raise InvalidExpression(f"te.var {name}: {dtype} is no extent", ["expected int32 or int64"])
    return made


def size_var(name: str = "size", dtype: str = "int32") -> OpenVar:
    """As `var`."""
    return var(name, dtype)


def open_variables(s: Schedule, args: Sequence[Tensor | OpenVar]) -> list[OpenVar]:
    """The open variables of a program, each once."""
    exprs: list[object] = []
    for t in args:
        exprs += t.shape if isinstance(t, Tensor) else [t]
    for stage in s.stages:
        exprs += stage.op.open_variables
        exprs += [x for a in (*stage.op.axis, *stage.op.reduce_axis) for x in (a.min, a.extent)]
        exprs += [d for t in stage.op.input_tensors for d in t.shape]
    found = [v for e in exprs if isinstance(e, Expr) for v in variables(e)]
    return list(dict.fromkeys(v for v in found if isinstance(v, OpenVar)))


def with_bounds(
    s: Schedule, args: Sequence[Tensor], facts: Sequence[Expr]
) -> tuple[Schedule, Sequence[Tensor], Sequence[Expr]]:
    """Return the same program, and facts of its variables, where extents of its arguments are known to be 1 at least:
    who calls a kernel sees to the others, which have nothing to compute, or are compiled by themselves."""
    shapes: list[object] = [d for t in args for d in t.shape]
    bounded = {d: OpenVar(d.name, "int32", 1, d.high) for d in shapes if isinstance(d, OpenVar) and d.low is None}
    if not bounded:
        return s, args, facts
    return (*_copied(s, args, bounded), [_with_values(f, _expressions(bounded)) for f in facts])


def evaluate(extent: int | Expr, values: Mapping[OpenVar, int]) -> int:
    """Return an extent where open variables have these values. Raises InvalidExpression where that is no number."""
    found = _evaluated(extent, values)
    assert isinstance(found, int)
    return found


def _evaluated(extent: int | Expr, values: Mapping[OpenVar, int | OpenVar]) -> int | Expr:
    """An extent with other variables, or numbers, in the place of its own."""
    if isinstance(extent, int):
        return extent
    e = _with_values(extent, _expressions(values))
    others = {v for v in values.values() if isinstance(v, OpenVar)}
    if others and all(isinstance(v, OpenVar) for v in variables(e)):
        return int(e.value) if isinstance(e, Const) else e
    if not isinstance(e, Const):
        raise InvalidExpression(f"the extent {extent} has no value", [f"{v.name} = {n}" for v, n in values.items()])
    return int(e.value)


def _expressions(values: Mapping[OpenVar, int | OpenVar]) -> dict[Var, Expr]:
    return {v: const(n, v.dtype) if isinstance(n, int) else cast(v.dtype, n) for v, n in values.items()}


def _with_values(e: Expr, values: Mapping[Var, Expr], sources: Mapping[Tensor, Tensor] | None = None) -> Expr:
    """`e` with variables and sources of loads replaced; what is constant then is folded."""

    def replaced(x: Expr) -> Expr | None:
        match x:
            case Var():
                return values.get(x)
            case Binary() if isinstance(x.a, Const) and isinstance(x.b, Const):
                return binary(x.op, x.a, x.b)
            case Cast() if isinstance(x.a, Const):
                return cast(x.dtype, x.a)
            case Load() if sources is not None:
                return Load(sources[source_of(x)], x.indices, x.predicate)
            case _:
                return None

    return transform(e, replaced)


@checked("te.", InvalidExpression)
def specialize(s: Schedule, args: Sequence[Tensor], values: Mapping[OpenVar, int]) -> tuple[Schedule, list[Tensor]]:
    """The same program and schedule with values for its open variables, and the tensors that stand for `args` in it.

    Raises InvalidExpression for an extent that becomes negative, InvalidSchedule where a loop becomes longer than the
    thread axis that it is bound to.
    """
    return _copied(s, args, values)


def _copied(
    s: Schedule, args: Sequence[Tensor], values: Mapping[OpenVar, int | OpenVar]
) -> tuple[Schedule, list[Tensor]]:
    """The same program and schedule with numbers, or others, for some open variables."""
    copy = _Copy(values)
    for t in [*args, *(t for stage in s.stages for t in stage.op.input_tensors)]:
        if isinstance(t.op, PlaceholderOp) and t not in copy.tensors:
            copy.tensors[t] = PlaceholderOp(t.op.name, copy.shape(t), t.dtype, t.op.window).tensor
    for stage in s.stages:
        if isinstance(stage.op, ExternOp):
            copy.extern(stage.op)
        else:
            copy.compute(stage.op)
    made = Schedule([copy.tensors[op.tensor].op for op in s.outputs])
    stages = {stage: made[copy.tensors[stage.tensor]] for stage in s.stages}
    made.stages = list(stages.values())
    for old, new in stages.items():
        copy.loops(old, new)
    for old, new in stages.items():
        if old.attach is not None:
            parent, axis = old.attach
            new.attach = (stages[parent], copy.axes[axis])
        new.like = None if old.like is None else copy.tensors[old.like]
        new.prefetches = [(copy.tensors[t], copy.axes[axis], offset) for t, axis, offset in old.prefetches]
    return made, [copy.tensors[t] for t in args]


class _Copy:
    """Tensors and axes of one program, and those that stand for them in another."""

    def __init__(self, values: Mapping[OpenVar, int | OpenVar]):
        self.values = values
        self.constants = _expressions(values)
        self.tensors: dict[Tensor, Tensor] = {}
        self.axes: dict[IterVar, IterVar] = {}

    def extent(self, extent: int | Expr) -> Any:
        """An extent, which counts as an int where it is open."""
        return _evaluated(extent, self.values)

    def shape(self, t: Tensor) -> tuple[int, ...]:
        extents = tuple(self.extent(d) for d in t.shape)
        if any(isinstance(d, int) and d < 0 for d in extents):
            raise InvalidExpression(
                f"{t.name} of shape {list(map(str, t.shape))} would have the shape {list(extents)}",
                [f"{v.name} = {n}" for v, n in self.values.items()],
            )
        return extents

    def extern(self, op: ExternOp) -> None:
        (axis,) = op.axis
        made = op.copied(self.shape(op.tensor), self._rounds(axis), self.tensors)
        self.tensors[op.tensor], self.axes[axis] = made.tensor, made.axis[0]

    def _rounds(self, axis: IterVar) -> Any:
        extent = self.extent(axis.extent)
        return max(0, extent) if isinstance(extent, int) else extent

    def compute(self, op: ComputeOp) -> None:
        self.shape(op.tensor)
        for a in (*op.axis, *op.reduce_axis):
            self.axes[a] = IterVar(a.name, self._rounds(a), a.kind, self.extent(a.min))
        of_axes: dict[Var, Expr] = {a.var: self.axes[a].var for a in (*op.axis, *op.reduce_axis)}
        body = _with_values(op.body, self.constants | of_axes, self.tensors)
        if isinstance(body, Reduce):
            body = Reduce(body.combiner, body.value, [self.axes[a] for a in op.reduce_axis], body.condition, body.init)
        self.tensors[op.tensor] = ComputeOp(op.name, [self.axes[a] for a in op.axis], body, op.tag, op.attrs).tensor

    def loops(self, old: Stage, new: Stage) -> None:
        """All primitives of a stage, but for its place."""
        for r in old.relations:
            if isinstance(r, Split):
                outer, inner = (IterVar(a.name, 0, a.kind) for a in (r.outer, r.inner))
                made = Split(self.axes[r.parent], outer, inner, r.factor, r.nparts)
                outer.extent, inner.extent = made.extents(made.parent.extent)
                self.axes[r.outer], self.axes[r.inner] = outer, inner
            elif isinstance(r, Fuse):
                outer, inner = self.axes[r.outer], self.axes[r.inner]
                made = Fuse(outer, inner, IterVar(r.fused.name, outer.extent * inner.extent, r.fused.kind))
                self.axes[r.fused] = made.fused
            else:
                self.axes[r.axis] = IterVar(r.axis.name, 1, r.axis.kind)
                made = type(r)(self.axes[r.axis])
            new.relations.append(made)
        new.leaf_iter_vars = [self.axes[a] for a in old.leaf_iter_vars]
        new.kinds = {self.axes[a]: kind for a, kind in old.kinds.items()}
        for a, thread in old.threads.items():
            if old.attach is None:
                new._check_thread(self.axes[a], thread)
            new.threads[self.axes[a]] = thread
        new.scope, new.nontemporal, new.window = old.scope, old.nontemporal, old.window
        new.is_double_buffered = old.is_double_buffered
        new.alignments = {self.axes[a]: to for a, to in old.alignments.items()}
        new.is_stored_at_root, new.is_inline = old.is_stored_at_root, old.is_inline
