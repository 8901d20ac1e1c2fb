"""The first place where two computations of a network differ: a node of compiled code, or a tensor of another file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from renorm.core.difference import Difference, differ
from renorm.core.limits import DEFAULT, Limits
from renorm.core.tolerance import Tolerance
from renorm.driver.compile import compile
from renorm.driver.draws import Draw
from renorm.driver.hosted import HostedModule
from renorm.driver.module import CompiledModule, SpecializingModule
from renorm.driver.runners import fit
from renorm.frontends import read, tflite
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.passes.sensitivity import Sensitivity

Array = np.ndarray[Any, Any]


def first_diverging_node(
    graph: Graph,
    wrong: Node,
    inputs: Mapping[str, Array],
    allowed: Tolerance,
    options: Mapping[str, Any],
    compiled: Graph | None = None,
) -> Difference:
    """Return the difference of a node whose compiled result differs while all that it reads agrees, among those that
    lead to `wrong`.

    graph: of fixed shapes. compiled: the same with open extents, where the code in question is open.

    The network that ends at a node is compiled by itself, so each question costs a compilation; bisection over the
    topological order asks few of them. Where branches make it miss, it starts anew from a node that does diverge.
    """
    values = interpret.evaluate(graph, inputs)

    @cache
    def at(node: Node) -> Difference:
        part = (compiled or graph).copy()
        part.outputs = part.node(node.name).outputs
        module = compile(part, **options)
        given = {v.name: inputs[v.name] for v in part.inputs}
        found, made = module.run(*given.values()), (compiled_graph(module, given), given)
        differences = [_differ(v, array, values, allowed, made) for v, array in zip(node.outputs, found, strict=True)]
        return replace(max(differences, key=lambda d: d.badness), name=node.name, node=node.name, op=node.op.name)

    while True:
        before = interpret.ancestors([v for v in wrong.inputs if v is not None])
        first = bisect_left(before, True, key=lambda n: not at(n).agrees)
        wrong = before[first] if first < len(before) else wrong
        producers = [v.producer for v in wrong.inputs if v is not None and v.producer is not None]
        further = next((n for n in producers if not at(n).agrees), None)
        if further is None:
            return at(wrong)
        wrong = further


def compiled_graph(module: CompiledModule | SpecializingModule, inputs: Mapping[str, Array]) -> Graph:
    """Return what passes made of a network, whose extents may be open, for inputs of these shapes; one of which the
    host computes a part as it was read."""
    if isinstance(module, HostedModule):
        return module.graph
    return (module.specialized(**inputs) if isinstance(module, SpecializingModule) else module).graph


def first_diverging_tensor(
    before: Any, after: Any, draws: Sequence[Draw], allowed: Tolerance, limits: Limits = DEFAULT
) -> Difference | None:
    """Return the difference of the first tensor of `after` that differs from the one of its name and shape in `before`;
    None where there is none. The interpreter computes both."""
    for draw in draws:
        old, new = (interpret.evaluate(*fit(read(m, limits=limits), draw.inputs, limits)) for m in (before, after))
        known = {(name, old[v].shape): v for name, v in _named(old) if not v.is_constant}
        for name, v in _named(new):
            same = known.get((name, new[v].shape))
            if v.producer is None or same is None:
                continue
            found = _differ(same, interpret.narrow(new[v], v.dtype), old, allowed)
            if not found.agrees:
                return replace(found, name=name, after=name, node=v.producer.name, op=v.producer.op.name)
    return None


def _differ(
    v: Value,
    found: Array,
    values: Mapping[Value, Array],
    allowed: Tolerance,
    made: tuple[Graph, Mapping[str, Array]] | None = None,
) -> Difference:
    """Return the difference of a value from its definition. values: all of its graph. made: what
    passes made of the part of the network that ends with its node, and that part's inputs."""
    definition = interpret.narrow(values[v], v.dtype)
    by_dtype = differ(v.name, definition, found, allowed)
    if by_dtype.agrees or allowed.relative is not None:
        return by_dtype
    results = v.producer.outputs if v.producer else [v]
    sensitivity = Sensitivity(results, interpret.ancestors(results), values)
    sensitivity = sensitivity.of_compiled(*made) if made else sensitivity
    return differ(v.name, definition, found, allowed, partial(sensitivity.judge, results.index(v)))


def _named(values: Mapping[Value, Array]) -> Iterator[tuple[str, Value]]:
    """Return every value and the name that the file has for it, which may be that of several."""
    for v in values:
        source: Any = v.graph.metadata.get(tflite.KEY)
        name, _ = source.forms.get(v.name, (v.name, False)) if source is not None else (v.name, False)
        yield name, v
