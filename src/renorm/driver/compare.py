"""Compare what two computations of a network make of the same inputs: compiled code with a runtime or the interpreter,
or two files of any format, whose tensors are taken by position and their names compared apart."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from renorm.core.difference import Difference, differ, largest
from renorm.core.dims import fixed_extents
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT, Limits
from renorm.core.tolerance import STEPS, Tolerance
from renorm.driver import bounds, runners
from renorm.driver.compile import compile
from renorm.driver.divergence import badness, first_diverging_node, first_diverging_tensor
from renorm.driver.draws import Draw, fit
from renorm.driver.rounding import Rounding, roundings
from renorm.frontends import read, tflite
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.sensitivity import Sensitivity

Array = np.ndarray[Any, Any]
REFERENCES = ("ort", "litert", "interpreter")


@dataclass(frozen=True)
class Comparison:
    """before, after: how each was computed; reference: the name of the runtime before. outputs: the worst of all draws,
    by position. names: (what, before, after) of inputs and outputs that are named otherwise. first: where outputs
    differ, the first tensor or node that does, if one was found; first_node, first_op: the node that computes it, and
    its op. roundings: the error of each layer whose algorithm rounds differently."""

    before: str
    after: str
    outputs: tuple[Difference, ...]
    reference: str = ""
    draws: int = 1
    names: tuple[tuple[str, str, str], ...] = ()
    first: Difference | None = None
    first_node: str = ""
    first_op: str = ""
    roundings: tuple[Rounding, ...] = ()

    @property
    def agrees(self) -> bool:
        return all(d.agrees for d in self.outputs)


def compare(
    model: Any,
    inputs: Mapping[str, Array],
    *,
    reference: str | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Comparison:
    """Compile a model, run it, and compare every output with a reference.

    model: as for `compile`. inputs: one array per input. reference: "ort", "litert", "interpreter", or None: "ort"
    where it runs the model, else "interpreter". tolerance: relative to the largest value of an output; None for what
    the dtypes and the sensitivity of the network allow (core.tolerance), or STEPS of a quantized network beside LiteRT.
    options: of `compile`. Where a runtime differs, the definition in float64 judges both. Raise InvalidInput where the
    reference that is asked for cannot run the model.
    """
    limits, allowed = options.get("limits", DEFAULT), Tolerance(relative=tolerance, steps=tolerance or 0.0)
    source = read(model, limits=limits)
    graph = source.copy(fixed_extents(source.inputs, {name: a.shape for name, a in inputs.items()}, source.name))
    bounds.check(graph, limits)
    chosen, (expected, by) = _run_reference(model, graph, inputs, reference)
    module = compile(graph, **options)
    ours = module.run(*[inputs[v.name] for v in graph.inputs])
    definition = Sensitivity.of(graph, inputs)
    is_quantized = chosen == "litert" and graph.metadata[tflite.KEY].is_quantized

    def output(place: int, found: Array, right: Array) -> Difference:
        v = graph.outputs[place]
        right = interpret.narrow(right, v.dtype)
        tolerated = allowed
        if is_quantized and tolerance is None:  # steps of real numbers are 127ths of the largest, or of 1 at least
            tolerated = Tolerance(0.0 if largest(right) else STEPS / 127, STEPS / 127, STEPS)
        return differ(v.name, right, found, tolerated, partial(definition.judge, place, expected=right))

    outputs = list(map(output, range(len(ours)), ours, expected))
    for i, found in enumerate(outputs if chosen != "interpreter" and not is_quantized else ()):
        if not found.agrees:
            own, other = (output(i, array, definition.expected(i)) for array in (ours[i], expected[i]))
            excused = own.agrees and not other.agrees
            outputs[i] = replace(found, own=own.error, departs=other.error, is_excused=excused)
    same = {name: options[name] for name in ("target", "opt_level", "keep") if name in options}
    layers = roundings(graph, module.graph, inputs, **same)
    result = Comparison(by, "renorm", tuple(outputs), chosen, roundings=layers)
    wrong = next((v for v, d in zip(graph.outputs, outputs) if not d.agrees), None)
    if wrong is None or wrong.producer is None:
        return result
    node, first = first_diverging_node(graph, wrong.producer, inputs, allowed, options)
    return replace(result, first=first, first_node=node.name, first_op=node.op.name)


def compare_draws(
    before: tuple[Sequence[Draw], str],
    after: tuple[Sequence[Draw], str],
    allowed: Tolerance,
    model: Any = None,
    changed: Any = None,
    limits: Limits = DEFAULT,
) -> Comparison:
    """Compare what two networks make of the same inputs.

    before, after: draws, and how they were computed. model: what gave `before`, whose sensitivity counts where
    `allowed` leaves it to the dtype. changed: what gave `after`, in which the first tensor that differs is searched
    for; None where it is not. Raise InvalidInput where the networks have different numbers of outputs.
    """
    graph = read(model, limits=limits) if model is not None and allowed.relative is None else None
    outputs = list[Difference]()
    for old, new in zip(before[0], after[0], strict=True):
        if len(old.outputs) != len(new.outputs):
            raise InvalidInput(
                f"the networks have {len(old.outputs)} and {len(new.outputs)} outputs",
                [f"{side} {', '.join(n for n, _ in d.outputs)}" for side, d in (("before", old), ("after ", new))],
            )
        definition = Sensitivity.of(*fit(graph, old.inputs, limits)) if graph is not None else None
        found = [
            differ(n, a, b, allowed, definition and partial(definition.judge, i, expected=a), m)
            for i, ((n, a), (m, b)) in enumerate(zip(old.outputs, new.outputs))
        ]
        outputs = [max(pair, key=badness) for pair in zip(outputs, found)] if outputs else found
    renamed = _renamed(before[0][0], after[0][0])
    result = Comparison(before[1], after[1], tuple(outputs), draws=len(after[0]), names=tuple(renamed))
    if result.agrees or changed is None:
        return result
    first = first_diverging_tensor(model, changed, before[0], allowed, limits)
    if first is None:
        return result
    node, difference = first
    return replace(result, first=difference, first_node=node.name, first_op=node.op.name)


def _run_reference(
    model: Any, graph: Graph, inputs: Mapping[str, Array], reference: str | None
) -> tuple[str, runners.Run]:
    """Return the name of the runtime that was used, and what it gives."""
    if reference not in (None, *REFERENCES):
        raise InvalidInput(f"reference {reference!r} is not one", [f"known: {', '.join(REFERENCES)}"])
    is_flat = tflite.KEY in graph.metadata
    if reference == "litert" and not is_flat:
        raise InvalidInput(f"{graph.name} is no TensorFlow Lite or Circle file", do="take --reference ort")
    if reference is None and not is_flat and importlib.util.find_spec("onnxruntime"):
        with suppress(InvalidInput):
            return "ort", runners.run("ort", model, graph, inputs)
    reference = reference or "interpreter"
    return reference, runners.run(reference, model, graph, inputs)


def _renamed(before: Draw, after: Draw) -> list[tuple[str, str, str]]:
    sides = [("input", [*before.inputs], [*after.inputs])]
    sides.append(("output", [n for n, _ in before.outputs], [n for n, _ in after.outputs]))
    return [(f"{what} {i}", a, b) for what, x, y in sides for i, (a, b) in enumerate(zip(x, y)) if a != b]
