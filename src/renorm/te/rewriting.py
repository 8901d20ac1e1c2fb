"""Schedule primitives that add a stage: cache_read, cache_write, rfactor. Their contracts are on Schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from renorm.core.errors import InvalidSchedule
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr, Load, Reduce, Var, all_of
from renorm.expr.rewrite import substitute, transform
from renorm.te.relations import Fuse, Split
from renorm.te.tensor import ComputeOp, IterVar, Operation, Tensor
from renorm.tir.nodes import SCOPES, STAGED

if TYPE_CHECKING:
    from renorm.te.schedule import Schedule
    from renorm.te.stage import Stage


def replace_loads(body: Expr, f: Callable[[Load], Expr | None]) -> Expr:
    """`body` with loads replaced where `f` gives something."""
    return transform(body, lambda e: f(e) if isinstance(e, Load) else None)


def cache_read(
    s: Schedule, tensor: Tensor, scope: str, readers: Sequence[Tensor | Operation] | Tensor | Operation
) -> Tensor:
    check_scope(f"cache_read of {tensor.name}", scope)
    stages = [s[r] for r in ([readers] if isinstance(readers, (Tensor, Operation)) else readers)]
    for stage in stages:
        if tensor not in stage.op.input_tensors:
            raise InvalidSchedule(
                f"cache_read of {tensor.name}: {stage.name} does not read it",
                [f"{stage.name} reads {', '.join(t.name for t in stage.op.input_tensors) or 'nothing'}"],
            )
    if not stages:
        raise InvalidSchedule(f"cache_read of {tensor.name}: no readers are given")
    axis = [IterVar(f"ax{i}", extent, "data") for i, extent in enumerate(tensor.shape)]
    copy = ComputeOp(f"{tensor.name}.{scope}", axis, Load(tensor, [a.var for a in axis])).tensor
    ops = [stage.computed("cache_read") for stage in stages]
    bodies = [replace_loads(op.body, lambda e: Load(copy, e.indices) if e.source is tensor else None) for op in ops]
    s.insert(min(s.stages.index(stage) for stage in stages), _compute_op(copy)).scope = scope
    for stage, op, body in zip(stages, ops, bodies, strict=True):
        stage.op = op.with_body(body)
    return copy


def cache_write(s: Schedule, tensor: Tensor, scope: str, joined: int = 1, ahead: int = 0) -> Tensor:
    check_scope(f"cache_write of {tensor.name}", scope)
    stage = s[tensor]
    old = stage.computed("cache_write")
    _check_untouched("cache_write", stage)
    end = len(old.axis) - ahead
    if not 1 <= joined <= max(1, end) or ahead < 0:
        own = f"joined={joined}" + (f", ahead={ahead}" if ahead else "")
        raise InvalidSchedule(f"cache_write of {old.name}: {own}, but it has {len(old.axis)} axes")
    whole, apart = old.axis[max(0, end - joined) : end], [*old.axis[: max(0, end - joined)], *old.axis[end:]]
    axis = [IterVar(a.name, a.extent, "data") for a in apart]
    values: dict[Var, Expr] = {a.var: b.var for a, b in zip(apart, axis, strict=True)}
    indices: list[Expr] = [a.var for a in apart]
    if whole:
        one = IterVar(".".join(a.name for a in whole), prod(a.extent for a in whole), "data")
        axis.insert(len(axis) - ahead, one)
        place, index = one.var, whole[0].var
        for a in whole[1:]:
            index = index * a.extent + a.var
        indices.insert(len(indices) - ahead, index)
        for a in reversed(whole[1:]):
            values[a.var] = place % max(1, a.extent)
            place = place // max(1, a.extent)
        values[whole[0].var] = place
    cached = ComputeOp(f"{old.name}.{scope}", axis, substitute(old.body, values), old.tag, old.attrs).tensor
    s.insert(s.stages.index(stage), _compute_op(cached)).scope = scope
    stage.op = old.with_body(Load(cached, indices))
    stage.leaf_iter_vars = list(old.axis)
    return cached


def rfactor(s: Schedule, tensor: Tensor, axis: IterVar, factor_axis: int = 0) -> Tensor:
    stage = s[tensor]
    old = stage.computed("rfactor")
    reduction = old.body
    if not isinstance(reduction, Reduce):
        raise InvalidSchedule(f"rfactor of {old.name}, which is not a reduction")
    stage._loop(axis, "rfactor")
    if axis.kind != "reduce":
        raise InvalidSchedule(f"rfactor of {old.name}: {axis.name} is not a reduce axis")
    if reduction.init is not None:
        raise InvalidSchedule(f"rfactor of {old.name}: it starts from {reduction.init}, which partial results cannot")
    rank = len(old.axis)
    if not -rank - 1 <= factor_axis <= rank:
        raise InvalidSchedule(f"rfactor of {old.name}: there is no axis {factor_axis} among {rank + 1}")
    factor_axis %= rank + 1

    loops = [a for a in stage.leaf_iter_vars if a.kind == "reduce"]
    # partial results: the factored loop is a data axis, the other reduce loops are reduce axes
    own = {a: IterVar(a.name, a.extent, "data" if a is axis else "reduce") for a in loops}
    data = [IterVar(a.name, a.extent, "data") for a in old.axis]
    roots, guards = reduce_roots(stage, {a: b.var for a, b in own.items()})
    values: dict[Var, Expr] = {a.var: b.var for a, b in zip(old.axis, data, strict=True)}
    values.update(roots)
    value = substitute(reduction.value, values)
    conditions = [*guards] if reduction.condition is None else [*guards, substitute(reduction.condition, values)]
    condition = all_of(*conditions) if conditions else None
    remaining = [own[a] for a in loops if a is not axis]
    if not remaining:  # nothing is left to reduce in the first step; one round keeps it a reduction with a condition
        remaining = [IterVar(f"{axis.name}.one", 1, "reduce")]
    partial_axes = [*data[:factor_axis], own[axis], *data[factor_axis:]]
    body = Reduce(reduction.combiner, value, remaining, condition)
    partial = ComputeOp(f"{old.name}.rf", partial_axes, body, old.tag, old.attrs).tensor
    s.insert(s.stages.index(stage), _compute_op(partial))

    # their reduction: takes the place of the outermost reduce loop
    last = IterVar(f"{axis.name}.v", axis.extent, "reduce")
    indices = [a.var for a in old.axis]
    load = Load(partial, [*indices[:factor_axis], last.var, *indices[factor_axis:]])
    stage.op = old.with_body(Reduce(reduction.combiner, load, [last]))
    position = stage.leaf_iter_vars.index(loops[0])
    leaves = [a for a in stage.leaf_iter_vars if a.kind != "reduce"]
    leaves.insert(position, last)
    stage.leaf_iter_vars = leaves
    stage.relations = [r for r in stage.relations if not _is_reduce_relation(r)]
    return partial


def reduce_roots(stage: Stage, leaves: dict[IterVar, Expr]) -> tuple[dict[Var, Expr], list[Expr]]:
    """Reduce axes of a compute in terms of its reduce loops, and when those are inside their ranges."""
    value = dict(leaves)
    guards: list[Expr] = []
    for relation in reversed(stage.relations):
        if isinstance(relation, Split) and relation.parent.kind == "reduce":
            outer, inner = relation.outer, relation.inner
            value[relation.parent] = value[outer] * inner.extent + value[inner]
            if not same_extent(outer.extent * inner.extent, relation.parent.extent):
                guards.append(value[relation.parent] < relation.parent.extent)
        elif isinstance(relation, Fuse) and relation.fused.kind == "reduce":
            width = relation.inner.extent if isinstance(relation.inner.extent, Expr) else max(1, relation.inner.extent)
            value[relation.outer] = value[relation.fused] // width
            value[relation.inner] = value[relation.fused] % width
    return {a.var: value[a] if same_extent(a.min, 0) else value[a] + a.min for a in stage.op.reduce_axis}, guards


def _is_reduce_relation(relation: object) -> bool:
    axis = getattr(relation, "parent", None) or getattr(relation, "fused", None)
    return isinstance(axis, IterVar) and axis.kind == "reduce"


def _compute_op(tensor: Tensor) -> ComputeOp:
    assert isinstance(tensor.op, ComputeOp)
    return tensor.op


def check_scope(what: str, scope: str) -> None:
    """Raise InvalidSchedule for a name that is not one of a memory."""
    known = [s for s in SCOPES if s != STAGED]  # which double_buffer makes of shared memory
    if scope not in known:
        raise InvalidSchedule(f"{what}: {scope!r} is not a scope", [f"known: {', '.join(known)}"])


def _check_untouched(primitive: str, stage: Stage) -> None:
    if stage.relations or stage.leaf_iter_vars != [*stage.op.axis, *stage.op.reduce_axis] or stage.kinds:
        raise InvalidSchedule(
            f"{primitive} of {stage.name}: its loops have been changed already",
            [f"loops: {', '.join(a.name for a in stage.leaf_iter_vars)}"],
            do=f"call {primitive} before split, fuse, reorder and the like",
        )
    if stage.is_inline:
        raise InvalidSchedule(f"{primitive} of {stage.name}, which is inlined and has no array")


def check_prefetch(stage: Stage, axis: IterVar, offset: int) -> None:
    if offset < 1:
        raise InvalidSchedule(f"{stage.name}: prefetch for {offset} rounds later", ["expected an int from 1 up"])
    around: Stage | None = stage
    while around is not None:
        fused = (a for r in around.relations if isinstance(r, Fuse) for a in (r.outer, r.inner))
        if axis in (*around.leaf_iter_vars, *fused):
            return
        around = around.attach[0] if around.attach else None
    raise InvalidSchedule(
        f"{stage.name}: prefetch for later rounds of {axis.name}, which is no loop around it",
        do="compute_at comes first, where it is a loop of the stage that this one is computed in",
    )
