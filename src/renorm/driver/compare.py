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
from renorm.core.limits import DEFAULT
from renorm.core.tolerance import Judged, judge
from renorm.driver import bounds, runners
from renorm.driver.compile import compile
from renorm.driver.rounding import Rounding, roundings
from renorm.driver.runners import session
from renorm.frontends import read, tflite
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.passes.sensitivity import Sensitivity, tolerance_of, tolerances

Array = np.ndarray[Any, Any]
REFERENCES = ("ort", "litert", "interpreter")
STEPS = 3  # that outputs of quantized networks may be apart, whose integers a runtime rounds at each operator


@dataclass(frozen=True)
class Difference:
    """How far a tensor is from its reference. error: see core.comparison.difference. largest: absolute value in the
    reference. tolerance: that it was held to, relative to the largest value: of each channel where it follows from the
    dtype, of the tensor where it was given. unchecked: what was not compared, as a part of a sentence. own, departs:
    where it differs from a runtime, the errors of renorm and of the runtime against the definition in float64; it
    agrees where renorm is right by that and the runtime is not."""

    name: str
    error: float
    largest: float
    tolerance: float
    agrees: bool
    unchecked: str = ""
    own: float | None = None
    departs: float | None = None


@dataclass(frozen=True)
class Comparison:
    """reference: what was compared with. first: the first diverging node and its difference, if outputs diverge.
    roundings: the error of each layer whose algorithm rounds differently."""

    reference: str
    outputs: tuple[Difference, ...]
    first: Difference | None = None
    first_op: str = ""
    roundings: tuple[Rounding, ...] = ()

    @property
    def agrees(self) -> bool:
        return all(d.agrees for d in self.outputs)


def _compared(
    v: Value, ours: Array, theirs: Array, tolerance: float | None, own: float, sensitivity: Sensitivity, place: int = 0
) -> Difference:
    """own: the value's tolerance, where `tolerance` is None. sensitivity: of the network, where the value is result
    number `place`."""
    theirs = interpret.narrow(theirs, v.dtype)
    if tolerance is None:
        tolerance, found = own, judge(ours, theirs, own, sensitivity.movements(place))
    else:
        error = difference(ours, theirs)
        found = Judged(error, differing=int(not error <= tolerance))
    return Difference(v.name, found.error, largest(theirs), tolerance, found.agrees, found.reservation)


def _in_steps(name: str, ours: Array, theirs: Array) -> Difference:
    """Of integers in steps; of real numbers behind them in 127ths of the largest."""
    allowed = STEPS if theirs.dtype.kind in "iu" else STEPS / 127
    error = difference(ours, theirs)
    return Difference(name, error, largest(theirs), allowed, error <= allowed)


def _third(found: Difference, own: Difference, other: Difference) -> Difference:
    """A difference from a runtime, with what the definition says of both."""
    return replace(found, own=own.error, departs=other.error, agrees=own.agrees and not other.agrees)


def compare(
    model: Any,
    inputs: Mapping[str, Array],
    *,
    reference: str | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Comparison:
    """Compiles a model, runs it, and compares every output with a reference.

    model: as for `compile`. inputs: one array per input. reference: "ort", "litert", "interpreter", or None:
    "ort" where it runs the model, or else "interpreter". tolerance: relative to the largest value of an output; None
    for what the dtypes and the network's own sensitivity allow (core.tolerance), or STEPS of a quantized network
    beside LiteRT. options: of `compile`. Where a runtime differs, the definition in float64 judges. Raises InvalidInput
    where the reference that is asked for cannot run the model.
    """
    limits = options.get("limits", DEFAULT)
    source = read(model, limits=limits)
    fixed = source.copy(fixed_extents(source.inputs, {name: a.shape for name, a in inputs.items()}, source.name))
    bounds.check(fixed, limits)
    chosen, expected = _expected(model, fixed, inputs, reference)
    module = compile(fixed, **options)
    ours = module.run(*[inputs[v.name] for v in fixed.inputs])
    sensitivity = Sensitivity.of(fixed, inputs)
    is_rounded = chosen == "litert" and fixed.metadata[tflite.KEY].is_quantized
    by_dtype = tolerances(fixed.outputs)
    outputs = tuple(
        _in_steps(v.name, a, b)
        if is_rounded and tolerance is None
        else _compared(v, a, b, tolerance, own, sensitivity, i)
        for i, (v, a, b, own) in enumerate(zip(fixed.outputs, ours, expected, by_dtype, strict=True))
    )
    if chosen != "interpreter" and not is_rounded and not all(d.agrees for d in outputs):
        defined = interpret.run(fixed, inputs)
        outputs = tuple(
            d if d.agrees else _third(d, *(_compared(v, x, c, tolerance, by_dtype[i], sensitivity, i) for x in (a, b)))
            for i, (d, v, a, b, c) in enumerate(zip(outputs, fixed.outputs, ours, expected, defined, strict=True))
        )
    same = {name: options[name] for name in ("target", "opt_level", "keep") if name in options}
    result = Comparison(chosen, outputs, roundings=roundings(fixed, module.graph, inputs, **same))
    if result.agrees:
        return result
    wrong = next(v for v, d in zip(fixed.outputs, outputs) if not d.agrees)
    if wrong.producer is None:
        return result
    node, found = _first_diverging(fixed, wrong.producer, inputs, tolerance, options)
    return replace(result, first=found, first_op=node.op.name)


def _expected(model: Any, graph: Graph, inputs: Mapping[str, Array], reference: str | None) -> tuple[str, list[Array]]:
    """Return the name of what was used, and its outputs in order."""
    if reference not in (None, *REFERENCES):
        raise InvalidInput(f"reference {reference!r} is not one", [f"known: {', '.join(REFERENCES)}"])
    if reference == "litert":
        if tflite.KEY not in graph.metadata:
            raise InvalidInput(f"{graph.name} is no TensorFlow Lite or Circle file", do="take --reference ort")
        return reference, runners.run(reference, model, graph, inputs)[0]
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
    graph: Graph, wrong: Node, inputs: Mapping[str, Array], tolerance: float | None, options: Mapping[str, Any]
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
            sensitivity = Sensitivity([*_ancestors(graph, node), node], values, [node.output])
            y = node.output
            found = _compared(y, ours, values[y], tolerance, tolerance_of(y), sensitivity)
            asked[node.name] = replace(found, name=node.name)
        return asked[node.name]

    current = wrong
    while True:
        before = _ancestors(graph, current)
        low, high = 0, len(before)  # before[:low] agree as far as bisection has asked, before[high:] or current diverge
        while low < high:
            middle = (low + high) // 2
            if not at(before[middle]).agrees:
                high = middle
            else:
                low = middle + 1
        current = before[high] if high < len(before) else current
        producers = [v.producer for v in current.inputs if v is not None and v.producer is not None]
        further = next((p for p in producers if not at(p).agrees), None)
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
