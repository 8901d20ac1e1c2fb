"""A compiled network beside a reference: ONNX Runtime where it is installed and reads the model, else the interpreter.

Where outputs diverge, the first diverging node is looked for: one whose result differs though the results it reads
agree.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from renorm.core.comparison import difference, largest
from renorm.core.dims import fixed_extents
from renorm.core.errors import InvalidInput
from renorm.driver.compile import compile
from renorm.driver.rounding import Rounding, roundings
from renorm.driver.runners import session
from renorm.frontends import read
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value

Array = np.ndarray[Any, Any]
REFERENCES = ("ort", "interpreter")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Difference:
    """How far a tensor is from its reference. error: see core.comparison.difference."""

    name: str
    error: float
    largest: float  # absolute value in the reference


@dataclass(frozen=True)
class Comparison:
    """reference: what was compared with. first: the first diverging node and its difference, if outputs diverge.
    roundings: the error of each layer whose algorithm rounds differently."""

    reference: str
    tolerance: float
    outputs: tuple[Difference, ...]
    first: Difference | None = None
    first_op: str = ""
    roundings: tuple[Rounding, ...] = ()

    @property
    def agrees(self) -> bool:
        return all(d.error <= self.tolerance for d in self.outputs)


def _compared(name: str, ours: Array, theirs: Array) -> Difference:
    return Difference(name, difference(ours, theirs), largest(theirs))


def compare(
    model: Any,
    inputs: Mapping[str, Array],
    *,
    reference: str | None = None,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> Comparison:
    """Compiles a model, runs it, and compares every output with a reference.

    model: as for `compile`. inputs: one array per input. reference: "ort", "interpreter", or None: the first that
    works. options: of `compile`. Raises InvalidInput where the reference that is asked for cannot run the model.
    """
    source = read(model)
    fixed = source.copy(fixed_extents(source.inputs, {name: a.shape for name, a in inputs.items()}, source.name))
    chosen, expected = _expected(model, fixed, inputs, reference)
    module = compile(fixed, **options)
    ours = module.run(*[inputs[v.name] for v in fixed.inputs])
    outputs = tuple(_compared(v.name, a, b) for v, a, b in zip(fixed.outputs, ours, expected))
    same = {name: options[name] for name in ("target", "opt_level", "keep") if name in options}
    result = Comparison(chosen, tolerance, outputs, roundings=roundings(fixed, module.graph, inputs, **same))
    if result.agrees:
        return result
    wrong = next(v for v, d in zip(fixed.outputs, outputs) if d.error > tolerance)
    if wrong.producer is None:
        return result
    node, found = _first_diverging(fixed, wrong.producer, inputs, tolerance, options)
    return replace(result, first=Difference(node.name, found.error, found.largest), first_op=node.op.name)


def _expected(model: Any, graph: Graph, inputs: Mapping[str, Array], reference: str | None) -> tuple[str, list[Array]]:
    """What was used, and its outputs in order."""
    if reference not in (None, *REFERENCES):
        raise InvalidInput(f"reference {reference!r} is not one", [f"known: {', '.join(REFERENCES)}"])
    if reference == "ort" or (reference is None and importlib.util.find_spec("onnxruntime")):
        try:
            return "ort", session(model).run([v.name for v in graph.outputs], dict(inputs))
        except ImportError:
            raise InvalidInput("onnxruntime is not installed", do='pip install "renorm[demo]"') from None
        except Exception as error:  # onnxruntime has an exception tree of its own, derived from Exception
            if reference == "ort":
                raise InvalidInput("onnxruntime does not run this model", str(error).splitlines()) from error
    return "interpreter", interpret.run(graph, inputs)


def _first_diverging(
    graph: Graph, wrong: Node, inputs: Mapping[str, Array], tolerance: float, options: Mapping[str, Any]
) -> tuple[Node, Difference]:
    """A node whose result diverges while every node it reads from agrees, among those that lead to `wrong`.

    The network that ends at a node is compiled by itself, so each question costs a compilation; bisection over the
    topological order asks few of them. Where branches make it miss, it starts anew from a node that does diverge.
    """
    values = interpret.evaluate(graph, inputs)
    asked: dict[str, Difference] = {}

    def at(node: Node) -> Difference:
        if node.name not in asked:
            ours = _ending_at(graph, node.output, inputs, options)
            asked[node.name] = _compared(node.name, ours, values[node.output])
        return asked[node.name]

    current = wrong
    while True:
        before = _ancestors(graph, current)
        low, high = 0, len(before)  # before[:low] agree as far as bisection has asked, before[high:] or current diverge
        while low < high:
            middle = (low + high) // 2
            if at(before[middle]).error > tolerance:
                high = middle
            else:
                low = middle + 1
        current = before[high] if high < len(before) else current
        producers = [v.producer for v in current.inputs if v is not None and v.producer is not None]
        further = next((p for p in producers if at(p).error > tolerance), None)
        if further is None:
            return current, at(current)
        current = further


def _ending_at(graph: Graph, value: Value, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> Array:
    """The value as the network compiled up to it gives it."""
    part = graph.copy()
    end = next(v for v in part.values() if v.name == value.name)
    part.outputs = [end]
    return compile(part, **options).run(*[inputs[v.name] for v in part.inputs])[0]


def _ancestors(graph: Graph, node: Node) -> list[Node]:
    """Nodes that lead to `node`, in order."""
    wanted = {v for v in node.inputs if v is not None}
    found: list[Node] = []
    for n in reversed(graph.nodes[: graph.nodes.index(node)]):
        if any(v in wanted for v in n.outputs):
            found.append(n)
            wanted.update(v for v in n.inputs if v is not None)
    return found[::-1]
