"""The fate of each normalization of the source model: the records of `report.norms`, and where tensors went.

What there was is taken down before the first pass; what happened is read off the log of rewrites and the graph: a node
knows the source nodes that it stands for (`Node.origin`), a value the source values that it is (`Value.origin`). What
constants became is read after the passes on models: later ones keep them in other forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from renorm.core import dtypes
from renorm.graph.channels import cancellation
from renorm.graph.ir import Graph, Group, Node
from renorm.graph.op import BROADCAST
from renorm.graph.rewrite import Applied, Refused
from renorm.passes.affine import FROM_BATCH, exact
from renorm.passes.context import Context
from renorm.passes.weight_provenance import Holders
from renorm.runtime.report import ConstantRecord, NormRecord

_GONE = "no output of the network depends on it"
_DYNAMIC = "its statistics come from what it reads, so that constants cannot hold it"


@dataclass(frozen=True)
class Norm:
    """A normalization of the source model. reads: what stands before it, for the reason why it could not be folded;
    is_first: whether that is no node; is_dynamic: whether its statistics come from there. estimate: see `estimate`.
    raised: the source nodes out of which it was made."""

    name: str
    kind: str
    reads: str
    is_first: bool
    is_dynamic: bool
    estimate: float | None
    raised: tuple[str, ...] = ()


def estimate(node: Node) -> float:
    """Return what rounding its constants, or its result, may cost, relative to the largest result.

        u * max_c (|k mean| + |scale| + |bias|) / max_c (|scale| + |bias|),  k = scale / sqrt(var + epsilon)

    with u the unit roundoff of the result's dtype: folded, a norm adds numbers of the size of k * mean that cancel,
    while its results are about bias +- scale. u alone where statistics come from the data, constants are unknown, or it
    stays whole.
    """
    u = dtypes.unit_roundoff(node.output.dtype)
    parameters = [exact(v) for v in node.inputs[1:] if v is not None and v.is_constant]
    if node.op.name != "batch_norm" or is_dynamic(node) or len(parameters) < 4:
        return u
    scale, bias, mean, var = parameters
    return u * cancellation(scale, bias, mean, var, node.op.values["epsilon"])


def is_dynamic(node: Node) -> bool:
    """Return whether statistics come from what a norm reads."""
    return node.op.fusion_of(node.operand_types()) > BROADCAST


@dataclass
class Ledger:
    """The books of one run of the pipeline: opened before the first pass, `close_model` between the passes on models
    and those towards kernels, `records` and `names` after the last one."""

    graph: Graph
    norms: list[Norm] = field(default_factory=list[Norm])
    held: dict[str, list[ConstantRecord]] = field(default_factory=dict[str, list[ConstantRecord]])
    through: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def __post_init__(self) -> None:
        self.holders = Holders(self.graph)
        self.values = [*self.graph.inputs, *(v for n in self.graph.nodes for v in n.outputs)]
        self.tensors = [v.name for v in self.values]
        for v in self.values:
            v.origin = (v.name,)
        for n in self.graph.nodes:
            if n.op.is_normalization and n.inputs:
                self.norms.append(_norm(n, n.name))

    def add_raised(self, graph: Graph, raised: Mapping[str, tuple[str, ...]]) -> None:
        """Enters norms that were made out of pieces. raised: the source nodes that these were, by the norm's name."""
        known = {n.name: n for n in self.norms}
        for node in graph.nodes:
            name = next((name for name in node.origin if name in raised), None) if node.op.is_normalization else None
            if name is not None:
                known[name] = _norm(node, name, raised[name])
        self.norms = [*known.values()]

    def close_model(self, graph: Graph) -> None:
        """Takes down which constants hold a norm, and which nodes only carried it there."""
        names = {n.name for n in self.norms}
        for node in graph.nodes:
            mine = names.intersection(node.origin)
            if node.op.is_normalization:
                mine.discard(node.name)
            if not mine:
                continue
            records = self.holders.records(node)
            for name in mine:
                if records:
                    self.held.setdefault(name, []).extend(records)
                else:
                    self.through.setdefault(name, []).append(node.name)

    def names(self, graph: Graph) -> dict[str, str | None]:
        """For each tensor of the source model the one that it is now."""
        now = {name: v.name for v in graph.values() for name in v.origin}
        return {name: now.get(name) for name in self.tensors}

    def records(self, graph: Graph, context: Context) -> tuple[NormRecord, ...]:
        """One record per normalization, in the order of the source model."""
        names = {n.name for n in self.norms}
        kernel = {n: g for g in graph.groups for n in g.nodes}
        steps: dict[str, list[Applied]] = {}
        for one in context.log.applied:
            for name in names.intersection(one.root) if one.fate else ():
                steps.setdefault(name, []).append(one)
        standing: dict[str, list[Node]] = {}
        for n in graph.nodes:
            for name in names.intersection(n.origin):
                standing.setdefault(name, []).append(n)
        return tuple(
            self._record(norm, names, standing.get(norm.name, []), steps.get(norm.name, []), kernel, context)
            for norm in self.norms
        )

    def _record(
        self,
        norm: Norm,
        names: set[str],
        mine: Sequence[Node],
        steps: Sequence[Applied],
        kernel: dict[Node, Group],
        context: Context,
    ) -> NormRecord:
        error = max((a.error for a in steps if a.error is not None), default=None)

        record = NormRecord(norm.name, norm.kind, "folded", max_error=error, estimate=norm.estimate, raised=norm.raised)
        whole = [n for n in mine if n.op.is_normalization and (n.name == norm.name or not steps)]
        if whole:
            kept = context.kept(whole[0])
            into = (kernel[whole[0]].name,) if whole[0] in kernel else ()
            refusals = sorted(context.log.refusals_of([norm.name]), key=lambda r: r.node != whole[0].name)
            once = dtypes.unit_roundoff(
                whole[0].output.dtype
            )  # the distance from the mean comes first: nothing cancels
            record = replace(record, into=into, estimate=once)
            if kept:
                return replace(record, fate="unit", reason=kept)
            return replace(record, fate="kept", reason=_sentence(norm, refusals), rules=_rules(refusals))
        is_folded = bool(steps) and steps[0].fate == "folded"
        alone = [] if is_folded else [n for n in mine if names.issuperset(n.origin)]
        if not alone:
            return replace(
                record,
                into=tuple(n.name for n in mine if self.holders.of(n)) or tuple(n.name for n in mine),
                reason="" if mine else _GONE if not steps or steps[-1].into else "it changes nothing",
                rules=_rules(steps),
                through=tuple(self.through.get(norm.name, ())),
                constants=tuple(self.held.get(norm.name, ())),
            )
        groups = {g.name: g for n in alone if (g := kernel.get(n)) is not None}
        is_alone = all(norm.name in n.origin for g in groups.values() for n in g.nodes)
        refusals = steps[-1].instead if steps else ()
        return replace(
            record,
            fate="unpacked" if is_alone else "fused",
            into=tuple(groups),
            reason=_sentence(norm, refusals) if context.level >= 2 else f"opt_level {context.level} folds nothing",
            rules=_rules([*refusals, *steps]),
            constants=tuple(r for n in alone for r in self.holders.records(n)),
        )


def _norm(node: Node, name: str, raised: tuple[str, ...] = ()) -> Norm:
    x = node.inputs[0]
    assert x is not None
    before = x.producer
    reads = f"the input {x.name!r} of the graph" if before is None else f"{before.op.name} {before.name!r}"
    return Norm(name, node.op.name, reads, before is None, is_dynamic(node), estimate(node), raised)


def _rules(decisions: Sequence[Applied | Refused]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(d.rule for d in decisions))


def _sentence(norm: Norm, refusals: Sequence[Refused]) -> str:
    """Return why rules refused; with what no rule says, because none matches there."""
    reasons = [r.reason for r in refusals]
    if norm.is_dynamic:
        if not any(r.startswith("its statistics") for r in reasons):
            reasons.insert(0, FROM_BATCH if norm.kind.startswith("batch_norm") else _DYNAMIC)
    elif norm.is_first or not reasons:
        reasons.insert(0, f"it reads {norm.reads}: no node before it could take its scale and shift")
    return "; ".join(dict.fromkeys(reasons))
