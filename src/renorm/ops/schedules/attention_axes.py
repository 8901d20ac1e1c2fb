"""The stages of attention, and the axes of its result in the order of those of its sums of values."""

from __future__ import annotations

from collections.abc import Sequence

from renorm import te
from renorm.expr.nodes import Binary, Var
from renorm.ops.schedules import structure
from renorm.ops.shared.tags import ATTENTION, DOTS, MIXED


def stages(chain: Sequence[te.Tensor]) -> tuple[dict[str, te.Tensor], list[te.Tensor]]:
    """Return the stages of attention by their tags, and what there is one of for each query."""
    found = {t.op.tag: t for t in chain if t.op.tag in ATTENTION}
    per_query = [
        t for t in chain if structure.is_statistic(t) or (structure.is_reduction(t) and t.op.tag not in (DOTS, MIXED))
    ]
    return found, per_query


def of(s: te.Schedule, out: te.Tensor, mixed: te.Tensor) -> list[te.IterVar] | None:
    """Return the axes of `out` in the order of those of `mixed`, of which the last two may be one there; None where
    there is no such order."""
    found = [load for load in structure.reached(out, lambda t: t is mixed) if load.source is mixed]
    if len(found) != 1:
        return None
    own = list(s[out].op.axis)
    joint = found[0].indices[-1]
    if isinstance(joint, Binary) and joint.op == "%" and joint.a is own[-1].var:
        own[-1:] = s[out].split(own[-1], factor=mixed.op.attrs.get("width", mixed.shape[-1]))
    named: list[te.IterVar | None] = []
    for index in found[0].indices:
        match index:
            case Var():
                named.append(next((a for a in own if a.var is index), None))
            case Binary(op="//" | "%" as op, a=a) if len(own) > len(out.shape) and a is s[out].op.axis[-1].var:
                named.append(own[-1 if op == "%" else -2])
            case _:
                named.append(None)
    known = [a for a in named if a is not None]
    spare = [a for a in own if not any(a is b for b in known)]
    ones = [*(a.extent for a in spare), *(n for a, n in zip(named, mixed.shape) if a is None)]
    if any(n != 1 for n in ones) or len({id(a) for a in known}) < len(known) or named[-1] is not own[-1]:
        return None
    axes = list[te.IterVar]()
    for axis in named:
        if axis is None and not spare:  # `out` lacks an axis of one element
            one, known[0] = s[out].split(known[0], nparts=1)
            spare = [one]
        axes.append(spare.pop(0) if axis is None else known.pop(0))
    for one in spare[::-1]:  # and has others
        at = next(k for k, a in enumerate(own) if a is one)
        joint = s[out].fuse(one, own[at + 1])
        axes = [joint if a is own[at + 1] else a for a in axes]
        own[at : at + 2] = [joint]
    return axes


def lie_in_rows(queries: te.Tensor, row: te.IterVar, column: te.IterVar) -> bool:
    """Return whether rows of queries lie evenly in memory, and as what they are rounded to."""
    (load,) = structure.stored_reads(queries)
    slopes = [[structure.coefficient(i, a.var) for i in load.indices] for a in (row, column)]
    is_even = all(k is not None for of in slopes for k in of)
    return is_even and load.source.dtype == queries.dtype and slopes[1][-1] == 1 and not any(slopes[1][:-1])
