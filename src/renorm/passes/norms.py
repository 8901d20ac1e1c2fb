"""What became of each normalization of the source model: the records of `report.norms`.

The list of normalizations is taken before the first pass; what happened to each is read off the log of rewrites and
the graph after the last one. A node knows which source nodes it stands for (`Node.origin`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from renorm.graph.ir import Graph, Node
from renorm.graph.op import BROADCAST
from renorm.graph.rewrite import Applied
from renorm.passes.context import Context
from renorm.runtime.report import NormRecord

_DYNAMIC = "its statistics come from what it reads, so that constants cannot hold it"


@dataclass(frozen=True)
class Norm:
    """A normalization of the source model. reads: what stands before it, for the reason why it could not be folded;
    is_dynamic: whether its statistics come from there."""

    name: str
    kind: str
    reads: str
    is_dynamic: bool


def norms_of(graph: Graph) -> list[Norm]:
    """The normalizations of a graph, in order."""
    found: list[Norm] = []
    for n in graph.nodes:
        x = n.inputs[0] if n.inputs else None
        if n.op.is_normalization and x is not None:
            before = x.producer
            reads = f"the input {x.name!r} of the graph" if before is None else f"{before.op.name} {before.name!r}"
            found.append(Norm(n.name, n.op.name, reads, n.op.fusion_of(n.operand_types()) > BROADCAST))
    return found


def records(norms: Sequence[Norm], graph: Graph, context: Context) -> tuple[NormRecord, ...]:
    """One record per normalization, in the order of the source model."""
    names = {n.name for n in norms}
    kernel = {n: g.name for g in graph.groups for n in g.nodes}
    return tuple(_record(norm, names, graph, kernel, context) for norm in norms)


def _record(norm: Norm, norms: set[str], graph: Graph, kernel: dict[Node, str], context: Context) -> NormRecord:
    mine = [n for n in graph.nodes if norm.name in n.origin]
    steps = [a for a in context.log.applied if norm.name in a.root and a.fate]
    error = max((a.error for a in steps if a.error is not None), default=None)
    whole = [n for n in mine if n.op.is_normalization and (n.name == norm.name or not steps)]
    if whole:
        kept = context.kept(whole[0])
        into = (kernel[whole[0]],) if whole[0] in kernel else ()
        return NormRecord(
            norm.name, norm.kind, "unit" if kept else "kept", into, kept or _why_whole(norm, whole[0], context), error
        )
    is_folded = bool(steps) and steps[0].fate == "folded"
    alone = [] if is_folded else [n for n in mine if norms.issuperset(n.origin)]
    if not alone:
        into = tuple(n.name for n in mine)
        reason = "" if into else "no output of the network depends on it"
        return NormRecord(norm.name, norm.kind, "folded", into, reason, error)
    kernels = tuple(dict.fromkeys(kernel[n] for n in alone if n in kernel))
    others = [n for g in graph.groups if g.name in kernels for n in g.nodes if norm.name not in n.origin]
    fate = "fused" if others else "unpacked"
    return NormRecord(norm.name, norm.kind, fate, kernels, _why_not_folded(norm, steps, context), error)


def _why_not_folded(norm: Norm, steps: Sequence[Applied], context: Context) -> str:
    if context.level < 2:
        return f"opt_level {context.level} folds nothing"
    if norm.is_dynamic:
        return _DYNAMIC
    reasons = [r for a in steps for r in a.instead]
    return reasons[-1] if reasons else f"it reads {norm.reads}: no node before it could take its scale and shift"


def _why_whole(norm: Norm, node: Node, context: Context) -> str:
    refusals = context.log.refusals_of(norm.name)
    if refusals:
        return "; ".join(dict.fromkeys(r.reason for r in refusals if r.node == node.name)) or refusals[0].reason
    return _DYNAMIC
