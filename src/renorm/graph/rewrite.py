"""Rewrites of graphs: a pattern, a plan of what comes instead, and the driver that carries plans out.

    class DropDoubleNegation(Rewrite):
        \"\"\"neg(neg(x)) -> x\"\"\"
        def pattern(self, x): return ops.neg(ops.neg(x, name="inner"))
        def plan(self, m): return Refusal("x is complex") if m.x.dtype == "complex64" else Plan(self.rewrite)
        def rewrite(self, m): return m.x

    pattern ─▶ Match ─plan─▶ None      the rule has nothing to say here
                          ├▶ Refusal   a sentence, for the log and the report
                          └▶ Plan      ─objection, make, probe─▶ the graph changes, or a refusal

`plan` decides and has no effects; only `Plan.make` adds nodes, and only the driver takes any away.

A pattern is written by calling the op builders on variables, which are the parameters of `pattern`:
- a variable matches any value, the same one wherever it stands; in the place of an optional operand it matches absence
  too (None);
- a starred parameter (`*xs`) matches all operands of a variadic op, as a list;
- attributes that the pattern gives must be equal, others may be anything; `Op.matching(...)` also leaves out required
  ones;
- an operand the pattern leaves out must be absent; a number or an array matches a constant with these elements;
- both orders are tried where the op is commutative;
- `any_op(name)` matches the first result of any node, `any_result(name)` any of its results, and `node_of(op, ..)` the
  first result of any node of an op, with the first operands as they are given and whatever others.
In the match `m`, variables are Values under their own names and nodes are Nodes under the `name` that the pattern gave
them, or their op's name. The driver refuses what no rule may do (see `Driver.objection`), with a sentence; every
application and every refusal is in the log. The order in which rules are listed does not matter: at each node larger
patterns are tried first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from renorm.core.dims import is_static
from renorm.core.errors import InternalError, InvalidGraph
from renorm.core.lazy import cached_property
from renorm.graph import registry
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.op import OpDef
from renorm.graph.origin import Origin

# --- patterns ---------------------------------------------------------------------------------------------------------


class Pattern:
    """Base of what stands for a value in a pattern. Ops applied to it build larger patterns."""

    def apply_op(self, op: OpDef, operands: Sequence[Any], name: str | None) -> Any:
        flat = any(isinstance(o, list) for o in operands)
        arranged = list(operands) if flat else op.arrange(list(operands))
        arranged = [
            o[0] if isinstance(o, list) and len(o) == 1 and isinstance(o[0], Variable) and o[0].is_variadic else o
            for o in arranged
        ]
        node = Application(op, [_literal(o) for o in arranged], name or op.name)
        count = len(op.parsed.results)
        return Result(node, 0) if count == 1 else tuple(Result(node, i) for i in range(count))


@dataclass(frozen=True, eq=False)
class Variable(Pattern):
    """Any value; `is_variadic`: all values of a variadic operand."""

    name: str
    is_variadic: bool = False


@dataclass(frozen=True, eq=False)
class Literal(Pattern):
    """A constant with exactly these elements (a number matches a constant of any shape that holds only it)."""

    data: np.ndarray[Any, Any]

    def matches(self, value: Value) -> bool:
        if value.data is None or (self.data.ndim and self.data.shape != value.data.shape):
            return False
        return bool(np.all(value.data == self.data))


@dataclass(frozen=True, eq=False)
class Application:
    """A node of the pattern. op: None for any op, whose operands are then not looked at."""

    op: OpDef | None
    operands: list[Any]
    name: str

    def size(self) -> int:
        """Nodes in this pattern; a node that is written twice counts twice."""
        flat = [o for given in self.operands for o in (given if isinstance(given, list) else [given])]
        return 1 + sum(o.node.size() for o in flat if isinstance(o, Result))


@dataclass(frozen=True, eq=False)
class Result(Pattern):
    """One result of a node of the pattern. index: None for any of them."""

    node: Application
    index: int | None


def any_op(name: str) -> Result:
    """The first result of any node; the match has the node under `name`."""
    return Result(Application(None, [], name), 0)


def any_result(name: str) -> Result:
    """Any result of any node; the match has the node under `name`."""
    return Result(Application(None, [], name), None)


def node_of(op: str, *operands: Any, name: str | None = None) -> Result:
    """The first result of any node of an op, whatever its attributes are, and operands after those that are given; the
    match has the node under `name`, or the op's."""
    return Result(Application(registry.find(op).matching(), [_literal(o) for o in operands], name or op), 0)


def _literal(operand: Any) -> Any:
    if isinstance(operand, list):
        return [_literal(o) for o in operand]
    return operand if operand is None or isinstance(operand, Pattern) else Literal(np.asarray(operand))


_Bindings = dict[str, Any]


def _match_value(p: Any, value: Any, bound: _Bindings) -> Iterator[_Bindings]:
    """All ways in which `value` (a Value, None, or a list of Values) is what `p` says."""
    if isinstance(p, Variable):
        if isinstance(value, list) != p.is_variadic:
            return
        seen = bound.get(p.name, bound)  # bound itself stands for `not seen`
        if seen is bound:
            yield {**bound, p.name: value}
        elif seen is value or (isinstance(value, list) and seen == value):
            yield bound
    elif p is None or value is None:
        if p is value:
            yield bound
    elif isinstance(p, list):
        if isinstance(value, list) and len(p) == len(value):
            yield from _match_all(list(zip(p, value)), bound)
    elif isinstance(p, Literal):
        if isinstance(value, Value) and p.matches(value):
            yield bound
    elif isinstance(p, Result) and isinstance(value, Value):
        node = value.producer
        if node is not None and p.index in (None, *(i for i, v in enumerate(node.outputs) if v is value)):
            yield from _match_node(p.node, node, bound)


def _match_all(pairs: list[tuple[Any, Any]], bound: _Bindings) -> Iterator[_Bindings]:
    if not pairs:
        yield bound
        return
    for b in _match_value(*pairs[0], bound):
        yield from _match_all(pairs[1:], b)


def _match_node(p: Application, node: Node, bound: _Bindings) -> Iterator[_Bindings]:
    seen = bound.get(p.name)
    if seen is not None:
        if seen is node:
            yield bound
        return
    if p.op is None:
        yield {**bound, p.name: node}
        return
    if type(node.op) is not type(p.op) or any(getattr(node.op, a) != getattr(p.op, a) for a in p.op.given):
        return
    with_node = {**bound, p.name: node}
    yield from _match_all(list(zip(p.operands, node.operands)), with_node)
    if p.op.commutative and len(p.operands) == 2:
        yield from _match_all(list(zip(p.operands, reversed(node.operands))), with_node)


# --- rules ------------------------------------------------------------------------------------------------------------


class Match:
    """Where a pattern fits: variables and nodes by name. nodes: those of the pattern; for `Plan.make`, of the plan."""

    def __init__(self, graph: Graph, root: Node, bound: _Bindings, nodes: Sequence[Node] | None = None):
        self.graph, self.root, self.bound = graph, root, bound
        matched = (v for v in bound.values() if isinstance(v, Node))
        self.nodes: Sequence[Node] = list(dict.fromkeys(matched)) if nodes is None else nodes

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["bound"][name]
        except KeyError:
            raise AttributeError(f"the pattern has neither a variable nor a node {name!r}") from None

    @property
    def origin(self) -> Sequence[str]:
        """Names of the source nodes that the matched nodes stand for."""
        return merged_origin(self.nodes)


def merged_origin(nodes: Iterable[Node]) -> Sequence[str]:
    return Origin(*(n.origin for n in nodes))


@dataclass(frozen=True, eq=False)
class Plan:
    """The change that a rule makes at a match.

    make: builds, in front of the root, the value that comes instead of the root's; where the root's op has several
    results, all of them in order; or a mapping from each value that is replaced to what replaces it. nodes: those that
    go unless somebody still reads them; None for those of the pattern. about: nodes whose fate is decided; none for the
    root. beside: results of inner nodes that others may go on reading.
    """

    make: Callable[[Match], Any]
    nodes: Sequence[Node] | None = None
    about: Sequence[Node] = ()
    beside: Collection[Value] = ()


@dataclass(frozen=True, eq=False)
class Refusal:
    """Why a match must stay as it is: a sentence that a user can read. about: as in `Plan`."""

    reason: str
    about: Sequence[Node] = ()


class Rewrite:
    """One rule. The first line of its docstring states its algebra.

    constants: variables that must be constants for the pattern to match; a rule that has a sentence for those that are
    none asks `Value.is_constant` in `plan`. shares: the inner nodes may have other readers, and stay for those (for
    rules that read past an inner node without computing it again). brings: an op that it brings in, which the format of
    a file may lack. fate: what the rule does to a normalization it matches, "folded" or "unpacked"; "" where it does
    not take one apart.
    """

    constants: ClassVar[Sequence[str]] = ()
    shares: ClassVar[bool] = False
    brings: ClassVar[str] = ""
    fate: ClassVar[str] = ""
    pattern: Callable[..., Any]

    def plan(self, m: Match) -> Plan | Refusal | None:
        """Return what to do at a match, or why it must stay as it is, which the report says; None where the rule has
        nothing to say, as if the pattern did not match. Change nothing."""
        return Plan(self.rewrite)

    def still_read(self, m: Match, plan: Plan) -> str | None:
        """Return who else reads a value that a plan takes away; None where nobody does."""
        nodes = m.nodes if plan.nodes is None else plan.nodes
        stays = {*plan.beside, *(m.root.outputs if self.replaces_all else m.root.outputs[:1])}
        lost = (v for n in self.leaving(m, nodes) for v in n.outputs if v not in stays)
        return next((r for v in lost if (r := _still_read(v, {*nodes}))), None)

    def leaving(self, m: Match, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return those of a plan's nodes that do not stay for others."""
        return [n for n in nodes if n is m.root or not self.shares]

    def rewrite(self, m: Match) -> Any:
        """Build what comes instead, as `Plan.make` does, for rules whose plan needs nothing but the match."""
        raise NotImplementedError

    @cached_property
    def name(self) -> str:
        """Return the name of the class; with the names that its fields hold, of a rule that exists once per op."""
        held = list(vars(self).values())  # another thread may find another property meanwhile
        fields = [v for v in held if isinstance(v, str)]
        return type(self).__name__ + (f"({', '.join(fields)})" if fields else "")

    @cached_property
    def root(self) -> Application:
        parameters = inspect.signature(self.pattern).parameters.values()
        variables = [Variable(p.name, p.kind is p.VAR_POSITIONAL) for p in parameters]
        made = self.pattern(*variables)
        first = made[0] if isinstance(made, tuple) else made
        if not isinstance(first, Result):
            raise InvalidGraph(f"rewrite {self.name}: its pattern is no application of an op")
        return first.node

    @cached_property
    def replaces_all(self) -> bool:
        """Return whether all results of the root are replaced, not only the first."""
        op = self.root.op
        results = op.parsed.results if op is not None else ()
        return len(results) > 1 or any(r.is_variadic for r in results)

    def matches(self, graph: Graph, node: Node) -> Iterator[Match]:
        """Yield the ways in which the pattern fits with its root at `node`."""
        for bound in _match_node(self.root, node, {}):
            if all(isinstance(v := bound.get(c), Value) and v.is_constant for c in self.constants):
                yield Match(graph, node, bound)

    def decide(self, graph: Graph, node: Node) -> tuple[Match, Plan | Refusal] | None:
        """Return the first match at `node` that the rule has anything to say of, and what."""
        for m in self.matches(graph, node):
            decision = self.plan(m)
            if decision is not None:
                return m, decision
        return None


# --- log --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Applied:
    """A rule that fired. nodes: those it took away; origin: source nodes these stood for; root: those that the nodes
    stood for which the rule was about; into: nodes that came instead; fate: the rule's; error: difference on probe
    inputs relative to the largest value, where it was measured; instead: other rules that were about the same and had
    refused."""

    rule: str
    nodes: tuple[str, ...]
    origin: Sequence[str]
    root: Sequence[str]
    into: tuple[str, ...]
    fate: str = ""
    error: float | None = None
    instead: Sequence[Refused] = ()


@dataclass(frozen=True)
class Refused:
    """A rule that matched and did not fire. node: the root of the match; about: source nodes that the rule would have
    decided about, as in `Applied.root`."""

    rule: str
    node: str
    about: Sequence[str]
    reason: str


@dataclass
class Log:
    """The history of a graph, in order. refused: by rule and node, only as long as the node is there and nothing has
    changed the reason. reverted: rewrites that a probe found to change the numbers, declined: what a target's code
    generator did not take; these stay in the log."""

    applied: list[Applied] = field(default_factory=list[Applied])
    refused: dict[tuple[str, str], Refused] = field(default_factory=dict[tuple[str, str], Refused])
    reverted: dict[tuple[str, str], Refused] = field(default_factory=dict[tuple[str, str], Refused])
    declined: dict[tuple[str, str], Refused] = field(default_factory=dict[tuple[str, str], Refused])
    _at: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])  # rules, by node
    # when each of `refused` was entered, by source nodes that it is about
    _about: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict[str, dict[tuple[str, str], int]])
    _count: int = 0

    @property
    def refusals(self) -> list[Refused]:
        """Everything that did not happen, each once."""
        return list({**self.refused, **self.reverted, **self.declined}.values())

    def refuse(self, one: Refused) -> None:
        """Enters a refusal, in the place of an earlier one of that rule at that node."""
        key = one.rule, one.node
        before = self.refused.get(key)
        self.refused[key] = one
        self._at.setdefault(one.node, {})[one.rule] = None
        self._count += 1
        number = self._count
        for name in before.about if before else ():
            number = self._about[name].pop(key)
        for name in one.about:
            self._about.setdefault(name, {})[key] = number

    def withdraw(self, rule: str, node: str) -> None:
        """Takes a refusal back, if there is one."""
        before = self.refused.pop((rule, node), None)
        if before is not None:
            del self._at[node][rule]
            for name in before.about:
                del self._about[name][rule, node]

    def forget(self, nodes: Iterable[str]) -> None:
        """Takes back what was refused at nodes that are gone."""
        for node in nodes:
            for rule in [*self._at.get(node, ())]:
                self.withdraw(rule, node)

    def refusals_of(self, about: Collection[str]) -> list[Refused]:
        """Refusals of rules about nodes of the source model, in the order in which they were entered."""
        found = {key: number for name in about for key, number in self._about.get(name, {}).items()}
        return [self.refused[key] for key in sorted(found, key=found.__getitem__)]


def _still_read(v: Value, inside: Collection[Node]) -> str | None:
    """Return who reads a value beside the nodes inside; None where nobody does."""
    if v.graph.is_output(v):
        return f"{v.name!r} is an output of the graph"
    others = [*islice((u for u in v.readers if u not in inside), 3)]
    return f"{v.name!r} is also read by {', '.join(repr(u.name) for u in others)}" if others else None


# --- driver -----------------------------------------------------------------------------------------------------------

Probe = Callable[[Mapping[Value, Value], Sequence[Node]], "tuple[float, str | None]"]
"""Measures a rewrite before it becomes final: given what replaces which value, and the new nodes, the relative
difference, and a sentence where it is too large."""


@dataclass
class Driver:
    """Applies rules until none fires.

    kept: says of a node why no rule may touch it, or None. probe: see Probe. log: what is appended to.
    """

    rules: Sequence[Rewrite]
    kept: Callable[[Node], str | None] = lambda node: None
    probe: Probe | None = None
    log: Log = field(default_factory=Log)

    def run(self, graph: Graph) -> int:
        """Rewrites `graph` in place to a fixpoint; gives the number of applications."""
        by_root: dict[type[OpDef], list[Rewrite]] = {}
        for rule in sorted(self.rules, key=lambda r: (-r.root.size(), r.name)):
            if rule.root.op is None:
                raise InvalidGraph(f"rewrite {rule.name}: the root of its pattern must be an op")
            by_root.setdefault(type(rule.root.op), []).append(rule)
        total, limit = 0, 1000 + 100 * len(graph.nodes)
        waiting, is_all = graph.nodes.copy(), True
        while True:
            gone, new = set[Node](), list[Node]()
            for node in waiting:
                if node in gone:
                    continue
                for rule in by_root.get(type(node.op), ()):
                    removed, made = self._attempt(graph, rule, node)
                    if removed:
                        gone.update(removed)
                        new += made
                        total += 1
                        break
            if not gone and is_all:
                return total
            # what was made first, until there is nothing new: a rule may move a node past many, one by one
            waiting, is_all = [n for n in new if n not in gone], False
            if not gone:
                waiting, is_all = graph.nodes.copy(), True
            if total > limit:
                last = self.log.applied[-1]
                raise InternalError(
                    f"rewrites of {graph.name} do not come to an end", [f"last: {last.rule} at {last.nodes[-1]}"]
                )

    def _attempt(self, graph: Graph, rule: Rewrite, node: Node) -> tuple[list[Node], list[Node]]:
        """Nodes that went, and those that came; none where the rule did not fire."""
        found = rule.decide(graph, node)
        if found is None:
            self.log.withdraw(rule.name, node.name)
            return [], []
        m, decision = found
        about = merged_origin(decision.about or [node])
        reason = self.objection(rule, m, decision)
        if reason is None and isinstance(decision, Plan):
            removed, made, reason = self._apply(rule, m, decision, about)
            if reason is None:
                return removed, made
        assert reason is not None
        self.log.refuse(Refused(rule.name, node.name, about, reason))
        return [], []

    def objection(self, rule: Rewrite, m: Match, decision: Plan | Refusal) -> str | None:
        """Return why a rule may not fire: it would touch a kept node, refuses, or would take a value away that somebody
        else reads. None where it may."""
        nodes = decision.nodes if isinstance(decision, Plan) and decision.nodes is not None else m.nodes
        kept = next((r for n in rule.leaving(m, nodes) if (r := self.kept(n))), None)
        return kept or (rule.still_read(m, decision) if isinstance(decision, Plan) else decision.reason)

    def _apply(
        self, rule: Rewrite, m: Match, plan: Plan, about: Sequence[str]
    ) -> tuple[list[Node], list[Node], str | None]:
        graph, m = m.graph, m if plan.nodes is None else Match(m.graph, m.root, m.bound, plan.nodes)
        with graph.at(m.root, m.origin) as made:
            result = plan.make(m)
        if not isinstance(result, dict):
            result = dict(zip(m.root.outputs, result if isinstance(result, (tuple, list)) else [result]))
        pairs: dict[Value, Value] = result
        reason, error = None, None
        for old, new in pairs.items():
            if (
                old.dtype != new.dtype
                or old.rank != new.rank
                or (is_static(old.shape + new.shape) and old.shape != new.shape)
            ):
                raise InternalError(
                    f"rewrite {rule.name} at node {m.root.name!r} changes a type",
                    [f"before {old.type}", f"after  {new.type}"],
                )
            reason = reason or graph.why_not_replace(old, new)
        if reason is None and self.probe is not None:
            error, reason = self.probe(pairs, made)
            if reason:
                reason = f"reverted: {reason}"
                self.log.reverted[rule.name, m.root.name] = Refused(rule.name, m.root.name, about, reason)
        if reason is not None:
            graph.discard(made)
            return [], [], reason
        for old, new in pairs.items():
            graph.replace(old, new)
            if new.producer in made and not graph.is_output(new):  # an output has taken its name over already
                graph.swap_names(old, new)
        beside = [new for old, new in pairs.items() if old.producer is not m.root]
        if beside:  # who reads what was made beside may stand in front of it
            end = graph.position_of(m.root) + 1
            graph.sort(min([end, *(graph.position_of(u) for new in beside for u in new.readers)]), end)
        removed = self._remove_unread(graph, m)
        names = [n.name for n in removed]
        into = self._name(graph, m.root, removed, made)
        others = sorted(self.log.refusals_of(about), key=lambda r: r.node != m.root.name)
        self.log.applied.append(Applied(rule.name, tuple(names), m.origin, about, into, rule.fate, error, others))
        self.log.forget(names)
        return removed, made, None

    @staticmethod
    def _remove_unread(graph: Graph, m: Match) -> list[Node]:
        """Takes out matched nodes that nobody reads any more."""
        removed: list[Node] = []
        waiting = [*m.nodes]
        while waiting:
            unread = [n for n in waiting if not any(v.readers or graph.is_output(v) for v in n.outputs)]
            if not unread:
                break
            graph.discard(unread)
            removed += unread
            waiting = [n for n in waiting if n not in unread]
        return removed

    @staticmethod
    def _name(graph: Graph, root: Node, removed: list[Node], made: list[Node]) -> tuple[str, ...]:
        """New nodes take the names of the nodes they replace: by op, inner ones first, and the last one otherwise the
        root's."""
        free = {n.name: n for n in removed}
        for new in made:
            same = [name for name, n in free.items() if type(n.op) is type(new.op)]
            name = same[-1] if same else root.name if new is made[-1] and root.name in free else None
            if name is not None:
                graph.rename_node(new, name)
                del free[name]
        return tuple(n.name for n in made)
