"""Questions that schedules ask of a tensor program: which stages reduce, what is read how, which axes run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from renorm import te
from renorm.core.dtypes import compute_dtype, itemsize
from renorm.core.target import Target
from renorm.expr.linear import linear, slope
from renorm.expr.nodes import Binary, Const, Expr, Load, Reduce, Var
from renorm.expr.rewrite import depends_on, loads, substitute
from renorm.ops.shared.tags import KEPT, STATISTIC
from renorm.te.tensor import producers_first, source_of

MOST_TERMS = 32  # results of a reduction that are made side by side: each takes a register, and code of its own


def stages(outs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Computed tensors that `outs` depend on, producers first."""
    return [op.tensor for op in producers_first(t.op for t in outs) if isinstance(op, te.ComputeOp)]


def lanes_of(t: te.Tensor, target: Target) -> int:
    """Elements of a vector register, in the dtype that arithmetic on `t` runs in."""
    return target.lanes(itemsize(compute_dtype(t.dtype)))


def is_reduction(t: te.Tensor) -> bool:
    return isinstance(t.op, te.ComputeOp) and bool(t.op.reduce_axis)


def is_statistic(t: te.Tensor) -> bool:
    """Return whether `t` holds few elements, made from reductions, that many read: computed once, never inlined."""
    return t.op.tag == STATISTIC


def terms(t: te.Tensor) -> int:
    """Return how many terms each element of a reduction is made of."""
    return prod(axis.extent for axis in t.op.reduce_axis)


def work(t: te.Tensor) -> int:
    """Elements that a reduction reads."""
    return prod(t.shape) * terms(t)


def body(t: te.Tensor) -> Expr:
    """The scalar expression of one element."""
    assert isinstance(t.op, te.ComputeOp)
    e = t.op.body
    return e.value if isinstance(e, Reduce) else e


def condition(t: te.Tensor) -> Expr | None:
    """Return which terms of a reduction count, where not all do."""
    return t.op.body.condition if isinstance(t.op, te.ComputeOp) and isinstance(t.op.body, Reduce) else None


def reads(t: te.Tensor) -> list[Load]:
    """Loads in the expression of one element."""
    return loads(body(t))


def read_alike(t: te.Tensor, other: te.Tensor) -> te.Tensor | None:
    """Return what to compute `t` with in a loop of `other`: something of its shape of which each element of `t` reads
    the one at its own place, and `other` reads each element for one element of its own, or for one term of a sum. None
    where there is no such thing, or where `t` needs `other`."""
    if other in stages([t]):
        return None
    moving = [k for k, extent in enumerate(t.shape) if extent > 1]
    extents = {a.var: a.extent for a in (*other.op.axis, *other.op.reduce_axis)}

    mine, theirs = ([x for x in stored_reads(u) if source_of(x).shape == t.shape] for u in (t, other))
    for load in mine:
        if all(load.indices[k] is t.op.axis[k].var for k in moving):
            for there in theirs:
                found = [there.indices[k] for k in moving]
                whole = [isinstance(i, Var) and extents.get(i) == t.shape[k] for i, k in zip(found, moving)]
                if there.source is load.source and all(whole) and len({id(i) for i in found}) == len(found):
                    return source_of(load)
    return None


def readers(t: te.Tensor, among: Sequence[te.Tensor]) -> list[te.Tensor]:
    return [u for u in among if any(load.source is t for load in reads(u))]


def coefficient(index: Expr, var: Var) -> int | None:
    """Return how far `index` moves when `var` grows by one; None where that is no constant."""
    return slope(linear(index), var)


def reached(t: te.Tensor, among: Callable[[te.Tensor], bool]) -> list[Load]:
    """Reads of tensors in `among` for one element of `t`, through the stages between: indices are functions of the
    axes of `t`, simplified. Inputs of the program are always among them."""
    ranges = {a.var: (0, a.extent - 1) for a in (*t.op.axis, *t.op.reduce_axis)}
    from renorm.expr.simplify import Simplifier  # a process that makes no schedules is spared its rules

    simplified = Simplifier(ranges)
    found: dict[tuple[int, tuple[int, ...]], Load] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()
    pending = list(reads(t))
    while pending:
        load = pending.pop()
        source = load.source
        assert isinstance(source, te.Tensor)
        indices = tuple(simplified(i) for i in load.indices)
        key = id(source), tuple(id(i) for i in indices)
        if key in seen:
            continue
        seen.add(key)
        if not isinstance(source.op, te.ComputeOp) or among(source):
            found[key] = Load(source, indices)
        else:
            values = {axis.var: i for axis, i in zip(source.op.axis, indices, strict=True)}
            pending += [Load(x.source, tuple(substitute(i, values) for i in x.indices)) for x in reads(source)]
    return list(found.values())


def stored_reads(t: te.Tensor) -> list[Load]:
    """Reads of what is in memory, through stages that are inlined."""
    return reached(t, lambda u: is_reduction(u) or u.op.tag in KEPT)


def blocks(index: Expr, var: Var) -> int | None:
    """Return how far `var` may move, from a multiple of that, before `index` changes: 1, or k where it is read as var
    // k; 0 where `index` does not depend on it, None where that is no constant."""
    if index is var:
        return 1
    if not depends_on(index, var):
        return 0
    match index:
        case Binary(op="//", a=a, b=Const(value=k)) if a is var:
            return int(k)
        case Binary(op="+" | "-", a=a, b=b):
            inside = [blocks(x, var) for x in (a, b)]
        case Binary(op="*", a=a, b=Const()):
            inside = [blocks(a, var)]
        case _:
            return None
    moving = {k for k in inside if k != 0}
    return moving.pop() if len(moving) == 1 else None


def is_apart(index: Expr, t: te.Tensor) -> bool:
    """Return whether no two results of a reduction read the same along an axis indexed so, but for those that read all
    of it alike: the reduction does not run along it, or through k neighbours of which each result has its own."""
    extents = {axis.var: axis.extent for axis in t.op.reduce_axis}
    match index:
        case Binary(op="+", a=Binary(op="*", a=Var(), b=Const(value=k)), b=Var() as part):
            return extents.get(part, 1) <= int(k)
        case _:
            return not any(depends_on(index, v) for v in extents)


def beside(t: te.Tensor) -> list[int]:
    """Return the data axes of a reduction on which no read depends: results beside each other that are made from the
    same data. None where they are so many, as the running sums of a long axis, that they share no registers."""
    found = reads(t)
    axes = [
        k
        for k, axis in enumerate(t.op.axis)
        if axis.extent > 1 and not any(depends_on(i, axis.var) for load in found for i in load.indices)
    ]
    return axes if prod(t.shape[k] for k in axes) <= MOST_TERMS else []


def joint_axes(out: te.Tensor) -> int:
    """Return how many of the last axes of `out` run over memory as one: each operand is read at exactly those axes in
    order and whole, or does not depend on them."""
    own = [axis.var for axis in out.op.axis]
    return min((_joint(load, own, out.shape) for load in stored_reads(out)), default=len(own))


def joint_rows(out: te.Tensor) -> int:
    """Return how many axes before the last run over memory as one, whatever the last one does: each operand is read at
    exactly those and whole after the first of them, or does not depend on them."""
    own = [axis.var for axis in out.op.axis]
    return min((_joint(load, own, out.shape, after=1) for load in stored_reads(out)), default=len(own) - 1)


def in_memory(t: te.Tensor) -> int:
    """Return how many of the last axes lie in memory as those of a row-major array do."""
    window = t.op.window if isinstance(t.op, te.PlaceholderOp) else None
    return len(t.shape) if window is None else window.joint_axes(t.shape)


def _joint(load: Load, axes: list[Var], shape: tuple[int, ...], after: int = 0) -> int:
    """Return how many of `axes`, without the last `after` of them, run over memory as one in what a load reads."""
    source, read, rank = source_of(load), load.indices, len(axes) - after
    memory = in_memory(source)
    for k in range(1, rank + 1):
        run, first = axes[rank - k : rank], len(read) - after - k
        others = (*read[: max(first, 0)], *read[first + k :])
        is_last = k == 1 and not after  # which may be a part of its axis, from anywhere on
        is_aligned = (
            first >= 0
            and memory >= k + after
            and (is_last or source.shape[-k:] == shape[-k:])
            and (coefficient(read[-1], run[0]) == 1 if is_last else all(i is v for i, v in zip(read[first:], run)))
            and not any(depends_on(i, v) for i in others for v in run)
        )
        if not is_aligned and any(depends_on(i, v) for i in read for v in run):
            return k - 1
    return rank
