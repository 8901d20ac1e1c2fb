"""Networks in which data decide extents that no kernel is told: kernels up to there, and then the host.

box, mask = network(x)       compiled, for any extents that data decide and kernels are told
part = slice(mask, box)      host: by the references of ops, for what comes; nobody knows before how much that is
y = conv(part, w)            compiled for what comes: products and norms, which would take long in NumPy

Results that the host computes are rounded to their dtypes one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from renorm.core.dims import Symbol, extents_among, symbols_of
from renorm.core.errors import InvalidInput, RenormError, UnsupportedOp
from renorm.core.inputs import given_symbols
from renorm.core.limits import Limits
from renorm.core.stated import Declared, Undecided
from renorm.driver.extents import is_extents
from renorm.driver.host_part import LONGEST, NAMED, HostPart, named, spec
from renorm.driver.hosted import HostedModule
from renorm.driver.options import Options
from renorm.driver.pieces import Compiled, CompiledPiece
from renorm.driver.undecided import require
from renorm.frontends.outline import Piece, Typed, Types
from renorm.graph.counting import cut
from renorm.graph.counts import counted_symbols, counts_read
from renorm.graph.deciding import settle, undecided
from renorm.graph.interpret import ancestors
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.shared.recurrent import OverTime
from renorm.passes.dead_code import discard_dead
from renorm.runtime import threads as teams
from renorm.runtime.artifact import Encoded
from renorm.runtime.piecewise import PiecewiseModule
from renorm.runtime.rounds import Runner
from renorm.runtime.signing import Key
from renorm.runtime.steps import Part, Plan, Whole

_SLOW = frozenset({"deform_conv", "roi_align"})  # beside products, norms and recurrent ops


class GluedModule(HostedModule):
    """A network of which the host computes a part, compiled in this process.

    source: the network. parts: what runs after its beginning, in order: nodes, and whether they are compiled. early:
    the graph of the beginning, and first its module; None where there is nothing to compute. compiled: makes the
    module of a piece. why: why it is no one program. later: names of parts that are compiled for what comes.
    """

    def __init__(
        self,
        source: Graph,
        early: Graph,
        first: Compiled | None,
        parts: Sequence[tuple[bool, list[Node]]],
        compiled: Callable[[Typed], Compiled],
        options: Options,
        why: str,
    ):
        plans, runners, limits = list[Part](), list[Runner](), options.limits
        if first is not None:
            part = Part(f"{source.name}.start", _names(early.inputs), _names(early.outputs))
            beginning = CompiledPiece(Piece(part, lambda *_: early), compiled, limits)
            beginning.first = first
            plans.append(part)
            runners.append(beginning)
        for v in {v for _, nodes in parts for n in nodes for v in n.inputs if v is not None and v.is_constant}:
            v.data = np.array(v.data)  # the file may change until they are needed
        for number, (is_compiled, nodes) in enumerate(parts):
            inputs, outputs = _between(source, nodes)
            name = f"{source.name}.{f'compiled{number}.{nodes[0].name}' if is_compiled else f'host{number}'}"
            part = Part(name, _names(inputs), _names(outputs))
            plans.append(part)
            if is_compiled:
                piece = CompiledPiece(Piece(part, _reader(part, nodes, outputs)), compiled, limits)
                runners.append(piece)
                if options.is_planned:
                    types = {v.name: Declared(v.name, v.dtype, v.shape) for v in inputs}
                    piece.first = compiled(Typed(piece.piece, types))
            else:
                runners.append(HostPart(name, nodes, inputs, outputs, limits))
        steps, results = tuple(map(Whole, range(len(plans)))), tuple(map(spec, source.outputs))
        outputs = tuple((v.name, v.name) for v in source.outputs)
        plan = Plan(source.name, tuple(map(spec, source.inputs)), tuple(plans), steps, outputs, why, results)
        self._source, late = source, plans[len(plans) - len(parts) :]
        self.later = frozenset(p.name for p, (is_compiled, _) in zip(late, parts) if is_compiled)
        PiecewiseModule.__init__(self, plan, runners, teams.resolve(options.threads), limits)

    @property
    def graph(self) -> Graph:
        """The network as it was read."""
        return self._source

    @property
    def outputs(self) -> Any:
        """As shape inference has them: open where data decide."""
        return self.plan.results

    def encoded(self, key: Key | None = None) -> Encoded:
        """Raise InvalidInput: what the host computes is no code."""
        facts = [
            self.obstacle,
            *(line for r in self._runners if isinstance(r, HostPart) for line in r.report.diagnoses),
        ]
        raise InvalidInput(f"{self.name} has parts that are not compiled", facts, "compile the model where it runs")


def glued(
    source: Graph,
    network: Graph | None,
    options: Options,
    compile: Callable[[Graph], Compiled | None],
    piece: Callable[[Typed], Compiled],
    error: RenormError,
    is_counted: bool = True,
) -> GluedModule:
    """Return the module of a network, as much of which as can be is compiled before anything is computed by the host.

    source: the network, cut at counts. network: of whose operands those are constants that follow from numbers; None
    where it cannot be had. compile: the module of its beginning, where counts are not cut yet; None where it needs
    numbers. piece: of a piece. error: why it is no one program. is_counted: what data decide may be extents. Raises
    UnsupportedOp where products would come behind what the host computes, and more may be told of inputs; and where
    there is no such module. Raises Undecided where elements of inputs have to be known.
    """
    if network is not None and is_counted and not isinstance(error, Undecided):
        require(network, is_open=False)
    counted = sorted(counted_symbols(source))
    found = [line if len(line) <= LONGEST else f"{line[:LONGEST]} ..." for line in str(error).splitlines()]
    facts = [f"data decide {named(counted)}"] * bool(counted) + found[:NAMED]
    facts += [f"and {len(found) - NAMED} more lines"] * (len(found) > NAMED)
    why = UnsupportedOp(f"{source.name} does not compile where what data decide is open", facts)
    if network is None or options.state or options.specializations:
        raise why from error

    def beginning(most: int) -> tuple[_Early, Compiled | None] | None:
        early = _Early.of(network, most)
        if not early.late:  # the whole network, which does not compile
            return None
        if not options.is_final and any(early.is_late(n) and _is_slow(n) for n in network.nodes):
            return None
        made = compile(early.graph) if early.graph.outputs else None
        return None if made is None and early.graph.outputs else (early, made)

    try:
        low, high = 0, max(_levels(cut(network)).values(), default=0) if is_counted else 0
    except RenormError:
        low = high = 0
    if (found := beginning(high)) is None:
        if (found := beginning(0) if high else None) is None:
            raise why from error
        while high - low > 1:
            middle = (low + high) // 2
            if (better := beginning(middle)) is None:
                high = middle
            else:
                low, found = middle, better
    early, first = found
    parts = _parts([n for n in network.nodes if early.is_late(n)])
    return GluedModule(network, early.graph, first, parts, piece, options, str(why))


@dataclass(frozen=True)
class _Early:
    """The beginning of a network: nodes whose extents follow from inputs and counts. late: names of all others, and of
    those that read what they make."""

    graph: Graph
    late: frozenset[str]

    @classmethod
    def of(cls, network: Graph, most: int) -> _Early:
        """most: how many counts wait for each other. What waits for more is late."""
        late = set[str]()
        while True:
            graph = _without(network, late)
            try:
                source = cut(graph)
            except RenormError:  # data are no extents
                source = graph
            levels = _levels(source)
            given = {s for s in given_symbols(source.inputs) if levels.get(s, 0) <= most}
            found = {n.name for n in source.nodes if any(True for _ in undecided(n)) or not _needed(n) <= given}
            if not found:
                return cls(graph, frozenset(late))
            late |= found
            for node in network.nodes:
                if any(v is not None and v.producer is not None and v.producer.name in late for v in node.inputs):
                    late.add(node.name)

    def is_late(self, node: Node) -> bool:
        return node.name in self.late


def _without(network: Graph, late: set[str]) -> Graph:
    """Return a network without some nodes, and those that only they need; what they read of it are outputs."""
    made = network.copy()
    going = [n for n in made.nodes if n.name in late]
    left = {v: None for v in made.outputs if v.producer not in going and v not in made.inputs}
    left |= {v: None for n in going for v in n.inputs if v is not None and v.producer not in (None, *going)}
    made.outputs = list(left)
    made.discard(going)
    discard_dead(made)
    settle(made)
    return made


def _levels(source: Graph) -> dict[Symbol, int]:
    """Return for each symbol that only counts tell how many counts wait for each other until it is told."""
    own, level, found = counted_symbols(source), dict[Value, int](), dict[Symbol, int]()
    for v, count in counts_read(source).items():
        before = {x for n in ancestors([count]) for x in n.inputs if x is not None}
        level[v] = 1 + max((level.get(x, 0) for x in before), default=0)
        for s in (s for d in v.deciding for s in symbols_of(d) if s in own):
            found[s] = max(found.get(s, 0), level[v])
    return found


def _needed(node: Node) -> set[Symbol]:
    """Return the symbols in extents of a node's operands and results, and in what it is told."""
    operands = zip(node.op.parsed.operands, node.operands, strict=True)
    told = [v.known for p, v in operands if p.is_static and isinstance(v, Value) and v.known is not None]
    shapes = [d for v in (*node.inputs, *node.outputs) if v is not None for d in v.shape]
    return {s for d in (*(d for k in told for d in extents_among(k.flat)), *shapes) for s in symbols_of(d)}


def _is_slow(node: Node) -> bool:
    """Return whether NumPy would take long for a node, and code can be made for it."""
    op = node.op
    is_slow = op.is_product or op.is_normalization or op.name in _SLOW or isinstance(op, OverTime)
    return is_slow and not any(v is not None and is_extents(v) for v in node.inputs)


def _parts(late: Iterable[Node]) -> list[tuple[bool, list[Node]]]:
    """Return late nodes in parts that run one after the other, each with whether it is compiled."""
    level = dict[Node, int]()
    for node in late:
        before = (v.producer for v in node.inputs if v is not None and v.producer is not None)
        at = max((level.get(p, 0) for p in before), default=0)
        level[node] = at + (bool(at % 2) != _is_slow(node))
    order = sorted(level, key=level.__getitem__)  # which keeps that of nodes within a part
    return [(bool(at % 2), list(nodes)) for at, nodes in groupby(order, key=level.__getitem__)]


def _between(source: Graph, nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """Return what nodes read that others compute, or a call gives, and what others read of theirs."""
    own = set(nodes)
    read = {v: None for n in nodes for v in n.inputs if v is not None and v.producer not in own}
    given = [v for v in read if v.producer is not None or v in source.inputs]
    told = [d for v in read if is_extents(v) and v.known is not None for d in extents_among(v.known.flat)]
    needed = {s for d in told for s in symbols_of(d)}
    given += [v for v in source.inputs if v not in read and not needed.isdisjoint(given_symbols([v]))]
    made = [v for n in nodes for v in n.outputs if source.is_output(v) or not own.issuperset(v.readers)]
    return given, made


def _reader(part: Part, nodes: Sequence[Node], outputs: Sequence[Value]) -> Callable[..., Graph]:
    def read(types: Types | None, elements: Mapping[str, Any], limits: Limits) -> Graph:
        """Return the graph of nodes on inputs of these types."""
        assert types is not None
        made, env = Graph(part.name), dict[Value, Value]()
        made_inputs = {name: made.input(name, types[name].dtype, types[name].shape) for name in part.inputs}
        for v in (v for n in nodes for v in n.inputs if v is not None and v not in env):
            if v.is_constant:
                made.adopt_constant(v, env)
            elif v.name in made_inputs:
                env[v] = made_inputs[v.name]
        for node in nodes:
            made.adopt(node, env)
        made.outputs = [env[v] for v in outputs]
        return made

    return read


def _names(values: Iterable[Value]) -> tuple[str, ...]:
    return tuple(v.name for v in values)
