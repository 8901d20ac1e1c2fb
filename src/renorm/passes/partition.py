"""Partitioning: what a target runs whole is set aside before anything is unpacked or folded.

`Target.supports` lists ops by name, and patterns: functions of any values, written with the op builders. Of what
overlaps the larger pattern wins; of equally large ones, the one whose text comes first: the order in which a target
lists them does not matter.

A target with a code generator (`Target.codegen`) is asked for each match: `codegen(group)`, where `group` is the match
as a graph of its own (graph.external), gives a renorm.ExternalCode, or a sentence that says why it does not take the
group. Then the next smaller pattern is tried, and in the end the nodes belong to the base, as if no pattern had
matched; the sentence is among the report's refusals. Where extents are symbolic nobody is asked: the module asks for
each shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from renorm.core.errors import RenormError, UserCodeError, raised_at
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.external import standalone
from renorm.graph.ir import External, Graph, Node
from renorm.graph.rewrite import Application, Driver, Literal, Plan, Refused, Result, Rewrite, Variable, merged_origin
from renorm.passes.context import Claim, Context
from renorm.runtime.external import ExternalCode


@dataclass(frozen=True)
class KeepUnits:
    """node -> the same node, which no pass takes apart, for the ops that `Target.supports` names"""

    def run(self, graph: Graph, context: Context) -> None:
        target, names = context.target, _names(context.target)
        for node in graph.nodes:
            if node.op.name in names:
                context.units[node.name] = f"target {target.kind} has {node.op.name} as a unit"


@dataclass(frozen=True)
class ClaimGroups:
    """nodes -> the same nodes as one kernel, which no pass takes apart, for the patterns in `Target.supports`"""

    def run(self, graph: Graph, context: Context) -> None:
        claimed: set[Node] = set()
        for nodes in _matches(graph, context.target):
            if not claimed.intersection(nodes) and self._claim(graph, nodes, context):
                claimed.update(nodes)

    def _claim(self, graph: Graph, nodes: list[Node], context: Context) -> bool:
        """Return whether the target runs these nodes as one."""
        target, root = context.target, nodes[-1]
        found = external(nodes, target)
        if isinstance(found, str):
            rule = f"target {target.kind}"
            context.log.declined[rule, root.name] = Refused(rule, root.name, merged_origin(nodes), found)
            if len(nodes) == 1:
                context.units.pop(root.name, None)
            return False
        is_group = len(nodes) > 1 or root.name not in context.units
        if is_group:
            reason = f"target {target.kind} runs {' + '.join(n.op.name for n in nodes)} as one"
            context.units.update((n.name, reason) for n in nodes)
        if found or is_group:  # an op that is named may share the kernels of the base
            context.claims.append(Claim(tuple(n.name for n in nodes), found))
        return True


def external(nodes: list[Node], target: Target) -> External | str | None:
    """Return what runs nodes that a target has matched, or its reason not to. None: its base, or it cannot be asked
    yet.

    Raises UserCodeError where the target's code generator fails.
    """
    values = [v for n in nodes for v in (*n.inputs, *n.outputs) if v is not None]
    if target.codegen is None or not all(v.type.is_static for v in values):
        return None
    alone = standalone(nodes, "_".join(n.op.label(n.operand_types()) for n in nodes))
    try:
        made = target.codegen(alone.graph)
    except Exception as error:
        raise _failed(nodes, target, error) from error
    if isinstance(made, str):
        return made
    if not isinstance(made, ExternalCode):
        raise UserCodeError(
            f"node {nodes[-1].name!r}: codegen of target {target.kind} gave {type(made).__name__}",
            ["expected a renorm.ExternalCode, or a sentence why the group is not taken"],
        )
    return External(made, alone.reads)


def _failed(nodes: list[Node], target: Target, error: Exception) -> UserCodeError:
    what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
    ops = " + ".join(n.op.name for n in nodes)
    facts = [
        f"node {n.name!r}: {n.op.name} of {', '.join('-' if t is None else str(t) for t in n.operand_types())}"
        for n in nodes
    ]
    return UserCodeError(
        f"node {nodes[-1].name!r}: codegen of target {target.kind} failed on {ops}: {what}", [*facts, raised_at(error)]
    )


@dataclass(frozen=True)
class Unit(Rewrite):
    """A pattern that a target runs as one: a function of pattern variables, written with the op builders."""

    written: Callable[..., Any]

    def pattern(self) -> Any:
        parameters = inspect.signature(self.written).parameters.values()
        return self.written(*(Variable(p.name, p.kind is p.VAR_POSITIONAL) for p in parameters))


def _names(target: Target) -> set[str]:
    return {registry.find(s).name for s in target.supports if isinstance(s, str)}


def _matches(graph: Graph, target: Target) -> Iterator[list[Node]]:
    """Nodes that a target runs as one, in graph order, larger groups first; they may overlap."""
    units = [Unit(s) for s in target.supports if callable(s)]
    driver = Driver(units)
    for unit in sorted(units, key=lambda u: (-u.root.size(), _text(u.root, {}))):
        for node in graph.nodes:
            m = next(unit.matches(graph, node), None)
            if m is not None and driver.objection(unit, m, Plan(unit.rewrite)) is None:
                yield sorted(m.nodes, key=graph.position_of)
    names = _names(target)
    for node in graph.nodes:
        if node.op.name in names:
            yield [node]


def _text(p: Any, numbers: dict[int, int]) -> str:
    """A pattern as text that does not depend on how its variables and nodes are named: what is written twice has a
    number."""
    if isinstance(p, Result):
        return f"{p.index}:{_text(p.node, numbers)}"
    if isinstance(p, list):
        return f"[{', '.join(_text(o, numbers) for o in p)}]"
    if isinstance(p, Literal):
        return repr(p.data.tolist())
    if p is None or id(p) in numbers:
        return "-" if p is None else f"%{numbers[id(p)]}"
    numbers[id(p)] = len(numbers)
    if not isinstance(p, Application) or p.op is None:
        return f"%{numbers[id(p)]}"
    given = {a: getattr(p.op, a) for a in sorted(p.op.given)}
    return f"{p.op.name}{given or ''}({', '.join(_text(o, numbers) for o in p.operands)})"
