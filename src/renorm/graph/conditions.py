"""What a graph with open extents takes to be so of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from renorm.core import conditions as algebra
from renorm.core.conditions import Condition, Sum, noted
from renorm.core.dims import Dim, Symbol, substitute, symbols_of, take
from renorm.core.errors import InvalidGraph, InvalidInput, OperandError
from renorm.core.inputs import fixed_extents, given_symbols
from renorm.graph.counts import counted_symbols
from renorm.graph.ir import Graph, Value, knowledge
from renorm.graph.op import Reach
from renorm.graph.typical import TYPICAL, sizes_where

# in Graph.metadata: what factors of extents are else where conditions hold, and of which symbols sums took the place
EQUAL, SUMS = "equal", "sums"
TAKEN = "taken"  # in Graph.metadata: the conditions that symbols and their ranges do not make certain
_MOST_ROUNDS = 8


def conditions_of(graph: Graph) -> dict[Condition, str]:
    """Return what the inputs' extents must fulfil for the graph to have a result, beside the ranges of symbols, and the
    name of the node that says so first: what inference takes to be so, and that no extent is negative."""
    found: dict[Condition, str] = {}
    ranges: dict[Value, Reach] = {}  # of elements that are indices
    for node in graph.nodes:
        with noted() as conditions:
            for type in graph.infer(node):
                for extent in type.shape:
                    take(0, "<=", extent)
            node.op.known_result(*node.arranged(map(knowledge, node.inputs)))
            if (reach := node.op.known_range(node, ranges)) is not None:
                ranges[node.output] = reach
            for demand in node.op.demands(node) if not ranges.keys().isdisjoint(node.inputs) else ():
                if len(demand.extents) == 1 and (reach := ranges.get(demand.operand)) is not None:
                    take(-demand.extents[0], "<=", reach[0])
                    take(reach[1] + 1, "<=", demand.extents[0])
        for condition in conditions:
            found.setdefault(condition, node.name)
    return found


def _step(conditions: Collection[Condition], graph: Graph) -> tuple[dict[Symbol, Dim], list[Condition], Sequence[Sum]]:
    """Return what symbols are by conditions, none where these say no more; the conditions that this does not make
    certain, and the sum that took the place of a symbol."""
    symbols = given_symbols(graph.inputs)
    values, left = algebra.settled(conditions, symbols)
    if values:
        return values, left, ()
    of_shapes = {s for v in graph.inputs for d in v.shape for s in symbols_of(d)}
    counted = counted_symbols(graph)
    early = [c for c in conditions if counted.isdisjoint(c.symbols)]  # what is given is nothing that data decide
    if (told := algebra.quotient(early, (s for s in symbols if s not in of_shapes))) is not None:
        symbol, value = told
        return _replaced(symbol, value, conditions, ())
    if (parted := algebra.parted(early, symbols)) is not None:
        part, by = parted
        return _replaced(part.whole, part.value, (c for c in conditions if c not in by), [part])
    return {}, [], ()


def _replaced(
    symbol: Symbol, value: Dim, conditions: Iterable[Condition], parts: Sequence[Sum]
) -> tuple[dict[Symbol, Dim], list[Condition], Sequence[Sum]]:
    """Return conditions where a symbol is replaced, and its range among them."""
    most = value if symbol.most == inf else int(symbol.most)
    within = (Condition(symbol.least, "<=", value), Condition(value, "<=", most))
    values = {symbol: value}
    return values, [*(c.replaced(values) for c in conditions), *within], parts


@dataclass(frozen=True)
class Settled:
    """A graph with open extents whose conditions hold for all values of its symbols but for those that `conditions`
    lists, by the nodes that say so first. typical: values for which all hold."""

    graph: Graph
    conditions: dict[Condition, str]
    typical: dict[str, int]

    def has_result(self, shapes: Mapping[str, Sequence[int]], elements: Mapping[str, Sequence[int]]) -> bool | None:
        """Return whether there is a result for inputs of these shapes, and of these elements where they decide shapes;
        None where that depends on counts which are not there."""
        try:
            sizes = fixed_extents(self.graph.inputs, shapes, self.graph.name, elements)
        except (InvalidInput, ZeroDivisionError):
            return False
        held = {c.holds(sizes) for c in self.conditions}
        return False if False in held else None if None in held else True


def settled(graph: Graph) -> Settled:
    """Return a graph whose symbols are those that its conditions leave: equal ones are one, what must be a number is
    one, what must be a multiple says so, and ranges are narrow. Raises InvalidGraph where no values fulfil them all,
    OperandError where an extent does not follow from those of the inputs."""
    found, sums = conditions_of(graph), list[Sum]()
    for _ in range(_MOST_ROUNDS):  # what is known of extents lets inference say more
        try:
            values, left, part = _step(found, graph)
            graph = graph.copy(values) if values else graph
        except ZeroDivisionError as error:
            do = "give the shapes of its inputs (shapes=)"
            raise InvalidGraph(f"{graph.name} divides by an extent of 0", list(map(str, found)), do) from error
        if not values:
            break
        sums = [*(replace(s, least=substitute(s.least, values)) for s in sums), *part]
        nodes = {c.replaced(values): node for c, node in found.items()}
        found = conditions_of(graph)
        for c in left:  # of ranges that inference does not know of
            if c.decided() is not True:
                found.setdefault(c, nodes.get(c, graph.inputs[0].name))
    given = set(given_symbols(graph.inputs))
    for v in graph.values():
        if more := {s for d in v.shape for s in symbols_of(d)} - given:
            raise OperandError(
                f"{v!r} has extents that do not follow from those of the inputs: {', '.join(sorted(more))}",
                do="give the shapes (shapes=)",
            )
    typical = sizes_where(graph, found)
    graph.metadata |= {
        TYPICAL: typical,
        EQUAL: algebra.equal_factors(found),
        TAKEN: tuple(found),
        SUMS: [*algebra.bounded_sums(found), *sums],
    }
    return Settled(graph, found, typical)
