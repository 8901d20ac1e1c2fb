"""Decide which norm layers of a model fold into which of its parameters: by the passes on graphs, on a graph of what
the model computes, and held against what its layers can express.

    capture ─FoldBatchNorm, FoldInFront─▶ graph ─compare─▶ parameters with other elements, layers that are not called
                     ▲                                  │
                     └──────── norms that must stay ◀───┘ a call that no layer makes, a weight that others read, hooks

The model's own forward stays, so that the folded graph must have the calls of the captured one but for norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from renorm.core.errors import InternalError
from renorm.graph.ir import Graph, Node, Value
from renorm.passes import fold
from renorm.passes.affine import scaling
from renorm.passes.constants import FoldConstants
from renorm.passes.context import Context
from renorm.passes.norm_fates import Ledger
from renorm.passes.rewriting import ApplyRules
from renorm.runtime.report import NormRecord
from renorm.torch.capture import Capture
from renorm.torch.folded_graphs import (
    Array,
    Site,
    chain,
    exact,
    grouped,
    is_same,
    make_norm,
    map_of,
    place,
    roots,
    standing,
    why_not_in_turn,
)
from renorm.torch.layers import norm_layers, why_layer_stays, why_unchanged, why_watched

_RULES = tuple(r for r in fold.RULES if isinstance(r, (fold.FoldBatchNorm, fold.FoldInFront)))
_SUMS = tuple(r for r in fold.RULES if isinstance(r, fold.FoldAdd))  # of a linear layer's bias and a shift after it
NO_LAYER = "it is no layer of its own: only the forward of the model could leave it out"


@dataclass(frozen=True)
class Change:
    """A parameter that holds norms. path, name: of its layer, and its own there. exact: elements in float64; rounded:
    in the dtype of the parameter."""

    path: str
    name: str
    exact: Array
    rounded: Array


@dataclass
class Plan:
    """changes: parameters with other elements. gone: norm layers that go, and the layers that hold them then.
    is_before: whether these stand before the norm. reasons: why others stay. kinds: of all. paths: the layer of each
    node."""

    changes: list[Change] = field(default_factory=list[Change])
    gone: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    is_before: dict[str, bool] = field(default_factory=dict[str, bool])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    paths: dict[str, str] = field(default_factory=dict[str, str])


def planned(model: nn.Module, capture: Capture, keep: Sequence[str] = ()) -> Plan:
    """Return which norms of a model fold. keep: paths of layers that stay."""
    return _Planner(model, capture, keep).plan()


class _Planner:
    def __init__(self, model: nn.Module, capture: Capture, keep: Sequence[str]):
        self.model, self.capture, self.source = model, capture, capture.graph
        first = {m: path for path, m in model.named_modules()}
        self._first = {path: first[m] for path, m in model.named_modules(remove_duplicate=False)}
        self.paths = {n: self._first.get(path, path) for n, path in capture.paths.items()}
        self.layers = norm_layers(model)
        self.roots = roots(self.source)
        FoldConstants().run(self.source, Context())
        self._raise_frozen()
        self.nodes = {n.name: n for n in self.source.nodes}
        self.places = {n.name: i for i, n in enumerate(self.source.nodes)}
        self.norms = [n for n in self.source.nodes if n.op.is_normalization]
        self.units = self._kept(keep)

    def plan(self) -> Plan:
        while True:
            graph = self.source.copy()
            ledger, context = Ledger(graph), Context(units=dict(self.units))
            for rules in (_RULES, _SUMS):
                ApplyRules(rules).run(graph, context)
            ledger.close_model(graph)
            self._name_sums(graph)
            records = ledger.records(graph, context)
            changed, wrong = self._compare(graph)
            if not wrong:
                return self._planned(graph, changed, records)
            new = {name: reason for name, reason in wrong.items() if name not in self.units}
            if not new:
                facts = [f"{name}: {reason}" for name, reason in wrong.items()]
                raise InternalError(f"{type(self.model).__name__}: what must stay went", facts)
            self.units |= new

    # --- before -------------------------------------------------------------------------------------------------------

    def _raise_frozen(self) -> None:
        """Make one batch norm of the calls of a layer that spells it out: x * scale + bias, of its constants."""
        for path, layer in self.layers.items():
            own = [n for n in self.source.nodes if self.paths.get(n.name) == path]
            if any(n.op.is_normalization for n in own):
                continue
            for calls in grouped(own, lambda n: self.capture.rounds[n.name]):
                found = chain(calls)
                if found is not None and found[1].axis == 1 and (own := map_of(layer, found[0])) is not None:
                    make_norm(calls, found[0], *own)

    def _kept(self, keep: Sequence[str]) -> dict[str, str]:
        """Return why nodes stay that folding would take away, without a look at what stands around them."""
        found = dict[str, str]()
        for n in self.source.nodes:
            path = self.paths.get(n.name, "")
            if n.op.name in ("batch_norm", "batch_norm_training"):
                reason = f"keep holds {path!r}" if path in keep else self._why_stays(path)
            else:
                reason = None if self._is_bias(n.name) or scaling(n) is None else "a call of the model's forward"
            if reason:
                found[n.name] = reason
        return found

    def _why_stays(self, path: str) -> str | None:
        layer = self.layers.get(path)
        if layer is None:
            return NO_LAYER
        if reason := why_layer_stays(self.model, path, layer):
            return reason
        if unread := [call for at, call in self.capture.unread if at == path or at.startswith(f"{path}.")]:
            return f"its forward calls {unread[0]}, which renorm does not read"
        own = [n for n in self.source.nodes if self.paths[n.name] == path]
        more = [n.op.name for n in own if not n.op.is_normalization]
        if more:
            return f"its forward does more than to normalize: {', '.join(dict.fromkeys(more))}"
        inside = [
            (n, p[len(path) + 1 :]) for n in self.source.nodes if (p := self.paths[n.name]).startswith(f"{path}.")
        ]
        if inside and len(own) > 1:
            return "it is called several times, and has layers of its own"
        order = [name for name, _ in layer.named_children()]
        return why_not_in_turn(own[0], [n for n, _ in inside], [p.partition(".")[0] for _, p in inside], order)

    # --- after --------------------------------------------------------------------------------------------------------

    def _compare(self, graph: Graph) -> tuple[dict[str, dict[Site, Value]], dict[str, str]]:
        """Return for each parameter the constants that are read in its place, and nodes that must stay, with the reason
        each, which stands there for all that went into a place."""
        after, changed, wrong = {n.name: n for n in graph.nodes}, dict[str, dict[Site, Value]](), dict[str, str]()
        behind = ""  # of a node that differs because another one does: that is at fault
        gone = {n.name for n in self.source.nodes if n.name not in after}
        for name in gone:
            if not self.nodes[name].op.is_normalization and not self._is_absent(name):
                wrong[name] = "a layer's own call"
        for n in graph.nodes:
            was = self.nodes.get(n.name)
            if was is None or not is_same(n, was, gone):
                behind = self._no_such_call(n)
                wrong |= self._blamed(n, behind)
                continue
            for i, (v, before) in enumerate(zip(n.inputs, was.inputs)):
                if v is None or before is None or not v.is_constant or v.name == before.name:
                    continue
                root, _ = self.roots.get((n.name, i), ("", False))
                if root not in self.capture.parameters:
                    wrong |= self._blamed(n, f"an operand of {n.name!r} is computed, and no parameter", True)
                else:
                    changed.setdefault(root, {})[n.name, i] = v
        for y, before in zip(graph.outputs, self.source.outputs):
            maker = y.producer
            if maker is not None and place(y) != place(standing(before, gone)):
                behind = self._no_such_call(maker)
                wrong |= self._blamed(maker, behind)
        for root, sites in changed.items():
            if reason := self._why_parameter_stays(root, sites):
                for name, _ in sites:
                    wrong |= self._blamed(after[name], reason, True)
        for norm in (n for n in self.norms if n.name in gone):
            if reason := self._why_seen(norm, graph):
                wrong[norm.name] = reason
        for path in {self.paths[name] for name in gone} & set(self.layers):
            stays = [n for n in self.norms if self.paths[n.name] == path and n.name not in gone]
            if stays:
                reason = f"it is called several times, and does not fold at {stays[0].name!r}"
                wrong |= {n.name: reason for n in self.norms if self.paths[n.name] == path and n.name in gone}
        if behind and not wrong:
            wrong = {n.name: behind for n in self.norms if n.name in gone}
        return changed, wrong

    def _name_sums(self, graph: Graph) -> None:
        """Give a sum in the place of that of a linear layer, with a shift in it, the name of that."""
        names = {n.name for n in graph.nodes}
        own = [n for n in self.source.nodes if self._is_bias(n.name) and n.name not in names]
        gone = {place(v): n for n in own for v in n.inputs[:1] if v is not None}
        for n in (n for n in graph.nodes if n.op.name == "add" and n.name not in self.nodes):
            x = n.inputs[0]
            if x is not None and place(x) in gone:
                graph.rename_node(n, gone.pop(place(x)).name)

    def _is_bias(self, name: str) -> bool:
        return self.capture.overloads.get(name) == "linear" and self.nodes[name].op.name == "add"

    def _is_absent(self, name: str) -> bool:
        """Return whether a node adds the zeros of a layer that has no bias."""
        return self._is_bias(name) and self.roots.get((name, 1), ("", False))[0] in self.capture.biases

    def _blamed(self, n: Node, reason: str, all_of_them: bool = False) -> dict[str, str]:
        """Return the norms that went into a node, or what else did: that in whose place it stands; of those in front of
        it the first, since without it those behind may do."""
        norms = [name for name in n.origin if name in self.nodes and self.nodes[name].op.is_normalization]
        at = self.places.get(n.name, max((self.places[m.name] for m in self._padded(n)), default=0))
        fronts = sorted((m for m in norms if self.places[m] < at and not all_of_them), key=self.places.__getitem__)
        others = [name for name in n.origin if name in self.nodes and scaling(self.nodes[name]) is not None]
        own = [name for name in norms if name == n.name and not all_of_them and not self._padded(n)]
        blamed = own or fronts[:1] or norms or others
        return {name: reason for name in blamed if name not in self.units}

    def _no_such_call(self, n: Node) -> str:
        if n.op.name == "add" and (padded := self._padded(n)):
            return f"its shift is not the same at the border of {padded[0].name!r}, so that no bias is it"
        if n.op.name == "add":
            after = [name for name in n.origin if name in self.nodes][-1]
            return f"its shift would stay behind {after!r} as an addition, which the model has no layer for"
        return f"folded, {n.name!r} would be {n.op.name} of other operands, which no layer computes"

    def _padded(self, n: Node) -> list[Node]:
        """Return what pads among the products that a node is made of."""
        made_of = [self.nodes[name] for name in n.origin if name in self.nodes]
        return [m for m in made_of if m.op.name == "conv_transpose" or any(m.op.values.get("pads", ()))]

    def _parameter(self, root: str) -> tuple[str, str]:
        """Return the path of the layer that holds a parameter, and its name there."""
        path, _, name = self.capture.parameters[root][0].rpartition(".")
        return self._first.get(path, path), name

    def _why_parameter_stays(self, root: str, sites: Mapping[Site, Value]) -> str | None:
        readers = [site for site, (name, _) in self.roots.items() if name == root]
        path, name = self._parameter(root)
        shown = f"{path}.{name}".strip(".")
        if root in self.capture.outside:
            return f"{shown!r} is also read by {self.capture.outside[root]}, which renorm does not read"
        values = [exact(v) for v in sites.values()]
        if len(readers) > len(sites) or any(not np.array_equal(a, values[0], equal_nan=True) for a in values[1:]):
            calls = ", ".join(repr(node) for node, _ in readers[:3])
            return f"{shown!r} is read by several calls, which would need different ones: {calls}"
        layer = self.model.get_submodule(path)
        if root in self.capture.biases:
            return why_unchanged(self.model, path, ())
        if type(layer._parameters.get(name)) is not nn.Parameter:
            return f"{shown!r} is no parameter"
        held = layer._parameters[name]
        if held is not None and held.numel() != values[0].size:
            return f"{shown!r} would have another shape"
        return why_unchanged(self.model, path, (name,))

    def _why_seen(self, norm: Node, graph: Graph) -> str | None:
        """Return who sees values that a fold changes: hooks of layers that hold a part of what it changes."""
        changed = {self.paths[n.name] for n in graph.nodes if norm.name in n.origin and n.name in self.paths}
        inside = [path.split(".") if path else [] for path in (*changed, self.paths[norm.name])]
        common = next((i for i, names in enumerate(zip(*inside)) if len({*names}) > 1), min(map(len, inside)))
        for parts in inside:
            for depth in range(common + 1, len(parts) + 1):
                if reason := why_watched(self.model, ".".join(parts[:depth])):
                    return reason
        return None

    def _planned(
        self, graph: Graph, changed: Mapping[str, Mapping[Site, Value]], records: Iterable[NormRecord]
    ) -> Plan:
        plan, holders = Plan(paths=self.paths), dict[str, dict[str, int]]()
        for root, sites in changed.items():
            (name, i), v = next(iter(sites.items()))
            path, parameter = self._parameter(root)
            layer = self.model.get_submodule(path)
            held = layer._parameters.get(parameter)
            wide, rounded = exact(v), v.data
            assert rounded is not None
            if self.roots[name, i][1]:
                wide, rounded = wide.T, rounded.T
            shape = wide.size if held is None else held.shape
            plan.changes.append(Change(path, parameter, wide.reshape(shape), rounded.reshape(shape)))
            for node in (n for n in graph.nodes if any(n.name == site for site, _ in sites)):
                for norm in node.origin:
                    holders.setdefault(norm, {})[path] = self.places[node.name]
        for record in records:
            path = self.paths[record.name]
            name = path if path in self.layers else record.name
            plan.kinds[name] = record.kind
            if record.fate != "folded":
                if name not in plan.reasons or record.name in self.units:
                    plan.reasons[name] = self._told(record.reason)
                continue
            into = holders.get(record.name, {})
            plan.gone[name] = tuple(dict.fromkeys((*plan.gone.get(name, ()), *into)))
            plan.is_before[name] = all(at < self.places[record.name] for at in into.values())
        return plan

    def _told(self, reason: str) -> str:
        for name, call in self.capture.outside.items():
            reason = reason.replace(
                f"{name!r} is an output of the graph", f"{name!r} is also read by {call}, which renorm does not read"
            )
        return reason.replace("of the graph", "of the model")
