"""TensorFlow Lite files that are no one graph: loops that data end and branches that data choose, as steps of an
outline.

    WHILE   before  x -> c = condition(x)        body  x' -> y = body(x'), c = condition(y)        as long as c
    IF      before  x -> c                       then or else  x -> y

Subgraphs stand beside the operators around them: what these are given are tensors of the outer ones, but for what a
round makes anew. A piece is a subgraph of all these tensors, and some of the operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.limits import Limits
from renorm.frontends import hosting
from renorm.frontends.diagnosis import diagnose
from renorm.frontends.outline import Outline, Reading, Types
from renorm.frontends.problems import Problem
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.model import Section, options_of
from renorm.frontends.tflite.operators import READ
from renorm.frontends.tflite.operators.control import CASE, DECIDED, WHILE
from renorm.frontends.tflite.tensors import DTYPES
from renorm.graph.ir import Graph
from renorm.runtime.steps import Body, Choice, Rounds, Step

if TYPE_CHECKING:
    from renorm.frontends.tflite.reader import Reader

_RUN = (*DECIDED, "CALL", "STABLEHLO_COMPOSITE")  # others have a function of numbers in a subgraph
_DRAWS = ("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM")


def require(reader: Reader) -> None:
    """Raise Hosted where nothing is wrong but that data end loops and choose branches."""
    hosted, section, model = {*reader.hosted.values()}, reader.section, reader.model
    if not hosted or len(reader.hosted) < len(reader.problems):
        return
    for operator in (section.operators[number] for number in hosted):
        kind = model.kind(operator)
        if kind not in DECIDED or (kind == CASE and len(_called(operator)) != 2):
            return
    if section is model.main:  # pieces are of the same subgraphs
        found = _Survey(reader)
        found.size(0, ())
        if model.assigned() or any(t["is_variable"] for i in found.sizes for t in model.section(i).tensors):
            why = "variables that runs hand on, beside loops and branches that data decide, are not read"
            reader.problems.append(Problem(UnsupportedOp(why, do="export variables as inputs and outputs")))
        if len(reader.hosted) < len(reader.problems):
            return
    cut = _Cut(reader)
    outline = cut.read(hosted)
    between = {name for part in outline.plan.parts for name in (*part.inputs, *part.outputs)}
    if all(reader.types.get(cut.tensors[name]["type"]) in DTYPES for name in between):  # no complex numbers
        raise hosting.hosted(outline, reader.problems, reader.label)


def _called(operator: Table) -> list[int]:
    """Return the numbers of the subgraphs that an operator runs: condition and body, then and else."""
    options = options_of(operator)
    if options is None:
        return []
    named = [f for f in options.schema.tables[options.name] if f is not None and "subgraph" in f.name]
    return [int(i) for f in named for i in (options.items(f.name) if f.is_vector else [options[f.name]])]


class _Survey:
    """Note now what is wrong with subgraphs that are read later. sizes: see `size`."""

    def __init__(self, reader: Reader):
        self._reader, self.sizes = reader, dict[int, int]()

    def size(self, index: int, around: tuple[int, ...]) -> int:
        """Return how many operators a subgraph has, with those that these run. around: subgraphs that run it. Raises
        InvalidModel, LimitExceeded."""
        reader, label = self._reader, f"subgraph {index}"
        if index in around:
            raise InvalidModel(f"{reader.label}: {label} runs itself")
        reader.limits.check(reader.label, [("nesting", len(around), label)])
        if index not in self.sizes:
            section, size = reader.model.section(index), 1
            ends = [i for side in ("inputs", "outputs") for i in section.table.items(side)]
            ends += [max(i, 0) for o in section.operators for side in ("inputs", "outputs") for i in o.items(side)]
            if any(not 0 <= i < len(section.tensors) for i in ends):
                raise InvalidModel(f"{reader.label}: {label} has {len(section.tensors)} tensors, and lists others")
            for number, operator in enumerate(section.operators):
                kind = reader.model.kind(operator)
                if kind not in READ and index:  # those of the first one are noted
                    missing = UnsupportedOp(f"renorm does not read {kind}", do="export the model without it")
                    reader.problems.append(Problem(missing, f"{kind}_{number}", label, kind))
                size += 1 + sum(self.size(i, (*around, index)) for i in _called(operator) if kind in _RUN)
                reader.limits.check(reader.label, [("expansions", size, label)])
            self.sizes[index] = size
        return self.sizes[index]


@dataclass(frozen=True, eq=False)
class _Operator:
    """kind, mark: see `Section`. place: among all operators. table: with the numbers of tensors among all."""

    kind: str
    mark: tuple[str, int]
    place: int
    table: Table
    input: tuple[str, ...]
    output: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.mark[0]}{self.kind}_{self.mark[1]}"


_Scope = hosting.Scope[_Operator]


class _Cut(hosting.Cut[_Operator]):
    """Hold what is cut out of the network of a reader, piece by piece. tensors: all of them, by names of their own."""

    def __init__(self, reader: Reader):
        super().__init__(reader.graph)
        self._reader, self._model = reader, reader.model
        self.tensors, self._held = dict[str, Table](), dict[str, int]()
        self._numbers, self._count, self._once = dict[str, int](), 0, list[_Operator]()
        self._conditions = dict[int, str]()  # of first rounds, by ids of operators

    def read(self, hosted: set[int]) -> Outline:
        """Return the outline. hosted: places of operators that are steps."""
        section, wanted, nodes = self._reader.section, set[int](), list[_Operator]()
        ends = [[int(i) for i in section.table.items(side)] for side in ("inputs", "outputs")]
        names = self._named(section, {i: self._tensor(section, i, "") for i in ends[0]}, "")
        for number, operator in enumerate(section.operators):
            node = self._operator(operator, section.marks[number], names)
            nodes.append(node)
            if node.kind == "CALL_ONCE":
                self._once.append(node)
            if number in hosted:
                wanted.add(id(node))
                fixed = self._fixed(node) if node.kind in WHILE else {}
                names |= {int(i): node.input[k] for k, i in enumerate(operator.items("outputs")) if k in fixed}
        producers = {out: n for n in nodes for out in n.output}
        outputs = [(section.names[i], names[i]) for i in ends[1]]
        return self.outline(nodes, wanted, _Scope(producers, self._held, frozenset(self._reader.values)), outputs)

    def _tensor(self, section: Section, i: int, place: str) -> str:
        """Add a tensor of a subgraph, and return its name among all."""
        name, table = place + section.names[i], section.tensors[i]
        while name in self.tensors:
            name += "_"
        self._numbers[name] = len(self.tensors)
        self.tensors[name] = Table("Tensor", table.schema, {**table.fields, "name": name})
        return name

    def _named(self, section: Section, given: Mapping[int, str], place: str) -> dict[int, str]:
        """Return the names among all of the tensors of a subgraph, of which these are given."""
        made = {int(i) for operator in section.operators for i in operator.items("outputs")}
        names = {i: given.get(i) or self._tensor(section, i, place) for i in range(len(section.tensors))}
        constant = [i for i in names if i not in given and i not in made and section.elements(i) is not None]
        self._held |= {names[i]: i for i in constant}
        return names

    def _operator(self, table: Table, mark: tuple[str, int], names: Mapping[int, str]) -> _Operator:
        ends = [["" if i < 0 else names[int(i)] for i in table.items(side)] for side in ("inputs", "outputs")]
        numbers = [np.asarray([self._numbers.get(n, -1) for n in end], np.int32) for end in ends]
        fields = {**table.fields, "inputs": numbers[0], "outputs": numbers[1]}
        made = Table("Operator", table.schema, fields)
        self._count += 1
        return _Operator(self._model.kind(table), mark, self._count, made, tuple(ends[0]), tuple(ends[1]))

    def _beside(self, index: int, given: Sequence[str], place: str) -> tuple[list[_Operator], list[str]]:
        """Return the operators of a subgraph that is given these tensors, and its results."""
        section = self._model.section(index)
        inputs, outputs = ([int(i) for i in section.table.items(side)] for side in ("inputs", "outputs"))
        if len(inputs) != len(given) or "" in given:
            count = sum(name != "" for name in given)
            raise InvalidModel(f"subgraph {index} has {len(inputs)} inputs, and is given {count}")
        names = self._named(section, dict(zip(inputs, given)), f"{place}/")
        made = [self._operator(o, (f"{place}/", k), names) for k, o in enumerate(section.operators)]
        return made, [names[i] for i in outputs]

    def _fixed(self, node: _Operator) -> dict[int, str]:
        """Return what each round of a loop hands on as it is, by places."""
        table = self._model.section(_called(node.table)[1]).table
        both = zip(table.items("inputs"), table.items("outputs"), node.input)
        return {k: name for k, (i, out, name) in enumerate(both) if i == out}

    # --- steps --------------------------------------------------------------------------------------------------------

    def is_drawn(self, node: _Operator) -> bool:
        return node.kind in _DRAWS

    def begins(self, node: _Operator) -> Sequence[_Operator]:
        if node.kind not in WHILE:
            return ()
        made, self._conditions[id(node)] = self._condition(node, node.input, f"{node.name}.condition0")
        return made

    def _condition(self, node: _Operator, given: Sequence[str], place: str) -> tuple[list[_Operator], str]:
        made, results = self._beside(_called(node.table)[0], given, place)
        if len(results) != 1:
            raise InvalidModel(f"{node.name}: its condition has {len(results)} results")
        return made, results[0]

    def step(self, node: _Operator, scope: _Scope) -> Step:
        if node.kind in WHILE:
            return self._rounds(node, scope)
        found = _called(node.table)  # then, else
        bodies = list[Body]()
        for index, which in zip(found[::-1] if node.kind == CASE else found, ("then", "else")):
            place = f"{node.name}.{which}"
            made, results = self._beside(index, node.input[1:], place)
            bodies.append(self.body(place, _within(scope, made), results))
            hosting.check_results(node.kind, node.name, len(node.output), bodies[-1])
        return Choice(node.name, node.kind, node.input[0], (bodies[0], bodies[1]), node.output)

    def _rounds(self, node: _Operator, scope: _Scope) -> Step:
        index, place, fixed = _called(node.table)[1], f"{node.name}.body", self._fixed(node)
        section = self._model.section(index)
        inputs = [int(i) for i in section.table.items("inputs")]
        formal = {i: self._tensor(section, i, f"{place}/") for i in inputs}
        states = [k for k in range(len(node.input)) if k not in fixed]
        made, results = self._beside(index, [fixed.get(k) or formal[i] for k, i in enumerate(inputs)], place)
        if not len(results) == len(inputs) == len(node.input):
            counts = f"{len(inputs)} values and makes {len(results)}"
            raise InvalidModel(f"{node.name}: a round takes {counts}, of {len(node.input)}")
        last, going = self._condition(node, results, f"{node.name}.condition")
        body = self.body(place, _within(scope, [*made, *last]), [going, *(results[k] for k in states)])
        hosting.check_results(node.kind, node.name, len(node.output), body, 1 - len(fixed))
        return Rounds(
            *(node.name, node.kind, None, self._conditions[id(node)], tuple(node.input[k] for k in states)),
            *(None, None, tuple(formal[inputs[k]] for k in states), body),
            tuple(node.output[k] for k in states if k < len(node.output)),
        )

    def reading(
        self, name: str, nodes: Sequence[_Operator], held: Mapping[str, Any], ends: tuple[Sequence[str], ...]
    ) -> Reading:
        reader, (inputs, given, outputs) = self._reader, ends
        order = sorted({*nodes, *self._once}, key=lambda n: n.place)

        def read(types: Types | None, elements: Mapping[str, Any], limits: Limits) -> Graph:
            def numbers(names: Sequence[str]) -> Any:
                return np.asarray([self._numbers[n] for n in names], np.int32)

            fields = {"name": f"{reader.graph.name}.{name}", "tensors": [*self.tensors.values()]}
            fields |= {"operators": [n.table for n in order], "outputs": numbers(outputs)}
            fields |= {"inputs": numbers([*inputs, *given])}
            section = Section(self._model, Table("SubGraph", self._model.schema, fields), [n.mark for n in order])
            shapes = {} if types is not None else {n: s for n, s in reader.shapes.items() if n in (*inputs, *given)}
            own = {n: reader.values[n] for n in given} | dict(elements)
            graph = type(reader)(self._model, shapes, own, limits, section, types).read()
            diagnose(graph)
            return graph

        return read


def _within(scope: _Scope, operators: Sequence[_Operator]) -> _Scope:
    return replace(scope, producers={**scope.producers, **{out: n for n in operators for out in n.output}})
