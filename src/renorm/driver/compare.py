"""Compare what two computations of a network make of the same inputs: compiled code with a runtime or the interpreter,
or two files of any format, whose tensors are taken by position and their names compared apart."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from renorm.core.difference import Difference, differ, largest, relative_error
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT, Limits
from renorm.core.stated import Stated
from renorm.core.tolerance import STEPS, Tolerance
from renorm.driver import runners
from renorm.driver.compile import analyze, compile
from renorm.driver.divergence import compiled_graph, first_diverging_node, first_diverging_tensor
from renorm.driver.draws import Draw
from renorm.driver.held_errors import HeldError, held_errors
from renorm.driver.module import CompiledModule, SpecializingModule
from renorm.driver.runners import fit
from renorm.driver.state import first_run
from renorm.frontends import read, tflite
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.ops.shared.tiled import Tiled
from renorm.passes.sensitivity import Sensitivity

Array = np.ndarray[Any, Any]
REFERENCES = ("ort", "litert", "interpreter")


@dataclass(frozen=True)
class Rounding:
    """The error of a layer whose algorithm rounds differently. node: as the network names it; algorithm: its label.
    l2: norm of the error relative to the norm of the result; largest: the largest error relative to the largest
    element."""

    node: str
    algorithm: str
    l2: float
    largest: float


@dataclass(frozen=True)
class Comparison:
    """before, after: how each was computed; reference: the name of the runtime before. outputs: the worst of all draws,
    by position. names: (what, before, after) of inputs and outputs that are named otherwise. first: where outputs
    differ, the first tensor that does, if one was found. roundings: the error of each layer whose algorithm rounds
    differently. held: the errors of values between kernels, where memory holds some in fewer digits."""

    before: str
    after: str
    outputs: tuple[Difference, ...]
    reference: str = ""
    draws: int = 1
    names: tuple[tuple[str, str, str], ...] = ()
    first: Difference | None = None
    roundings: tuple[Rounding, ...] = ()
    held: tuple[HeldError, ...] = ()

    @property
    def agrees(self) -> bool:
        return all(d.agrees for d in self.outputs)


def compare(
    model: Any,
    inputs: Mapping[str, Array],
    *,
    reference: str | None = None,
    tolerance: float | None = None,
    bound: Collection[str] = (),
    **options: Any,
) -> Comparison:
    """Compile a model, run it, and compare every output with a reference.

    model: as for `compile`. inputs: one array per input. bound: names of those whose elements are constants of what is
    compiled. reference: "ort", "litert", "interpreter", or None: "ort"
    where it runs the model, else "interpreter". tolerance: relative to the largest value of an output; None for what
    the dtypes and the sensitivity of the network allow (core.tolerance), or STEPS of a quantized network beside LiteRT.
    options: of `compile`. Where a runtime differs, the definition in float64 judges both. Raise InvalidInput where the
    reference that is asked for cannot run the model.
    """
    return next(_compare_calls(model, [inputs], None, reference, tolerance, bound, options))


def compare_open(
    model: Any,
    calls: Iterable[Mapping[str, Array]],
    *,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    reference: str | None = None,
    tolerance: float | None = None,
    bound: Collection[str] = (),
    **options: Any,
) -> Iterator[Comparison]:
    """Compile a model once, with the open extents that `shapes` leaves, and compare it at each call in turn. calls: one
    array per input each. The others are those of `compare`."""
    return _compare_calls(model, calls, {"shapes": shapes}, reference, tolerance, bound, options)


def _compare_calls(
    model: Any,
    calls: Iterable[Mapping[str, Array]],
    stated: Mapping[str, Any] | None,
    reference: str | None,
    tolerance: float | None,
    bound: Collection[str],
    options: Mapping[str, Any],
) -> Iterator[Comparison]:
    """stated: shapes for which it is compiled once; None: it is compiled for those of each call."""
    limits, allowed = options.get("limits", DEFAULT), Tolerance(relative=tolerance, steps=tolerance or 0.0)
    source, module = None, None
    for given in calls:
        elements = {name: given[name] for name in given if name in bound}
        own = {name: array for name, array in given.items() if name not in bound}
        if source is None:
            source = first_run(read(model, inputs=elements, limits=limits, **(stated or {})))
            module = compile(source, **options) if stated is not None else None
        graph, inputs = fit(source, own, limits)
        chosen, expected = _run_reference(model, graph, {**inputs, **elements}, reference)
        compiled = compile(graph, **options) if module is None else module
        parts = graph if module is None else source
        yield _compared(graph, compiled, parts, inputs, chosen, expected, allowed, options)


def _compared(
    graph: Graph,
    module: CompiledModule | SpecializingModule,
    parts: Graph,
    inputs: Mapping[str, Array],
    chosen: str,
    reference: runners.Run,
    allowed: Tolerance,
    options: Mapping[str, Any],
) -> Comparison:
    """Compare what a module gives with what the reference called `chosen` did. parts: the graph of whose parts the
    first node that differs is found."""
    expected, by = reference
    ours = module.run(*[inputs[v.name] for v in graph.inputs])
    definition = Sensitivity.of(graph, inputs)
    rounding = definition.of_compiled(compiled_graph(module, inputs), inputs)
    is_quantized = chosen == "litert" and graph.metadata[tflite.KEY].is_quantized

    def output(place: int, found: Array, right: Array) -> Difference:
        v = graph.outputs[place]
        right = interpret.narrow(right, v.dtype)
        tolerated = allowed
        # steps of real numbers are 127ths of the largest, or of 1 at least
        if is_quantized and allowed.relative is None:
            tolerated = Tolerance(0.0 if largest(right) else STEPS / 127, STEPS / 127, STEPS)
        return differ(v.name, right, found, tolerated, partial(rounding.judge, place, expected=right))

    outputs = list(map(output, range(len(ours)), ours, expected))
    for i, found in enumerate(outputs if chosen != "interpreter" and not is_quantized else ()):
        if not found.agrees:
            own, other = (output(i, array, definition.expected(i)) for array in (ours[i], expected[i]))
            excused = own.agrees and not other.agrees
            outputs[i] = replace(found, own=own.error, departs=other.error, is_excused=excused)
    wrong = next((v.producer for v, d in zip(graph.outputs, outputs) if not d.agrees), None)
    first = first_diverging_node(graph, wrong, inputs, allowed, options, parts) if wrong is not None else None
    same = {name: options[name] for name in ("target", "opt_level", "keep") if name in options}
    made = compiled_graph(module, inputs)
    layers = _roundings(graph, made, inputs, **same)
    held = held_errors(graph, made, module.report.precisions, inputs, **same)
    return Comparison(by, "renorm", tuple(outputs), chosen, first=first, roundings=layers, held=held)


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
        outputs = [max(pair, key=lambda d: d.badness) for pair in zip(outputs, found)] if outputs else found
    differs = changed is not None and not all(d.agrees for d in outputs)
    first = first_diverging_tensor(model, changed, before[0], allowed, limits) if differs else None
    names = tuple(_renamed(before[0][0], after[0][0]))
    return Comparison(before[1], after[1], tuple(outputs), draws=len(after[0]), names=names, first=first)


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


def _roundings(source: Graph, compiled: Graph, inputs: Mapping[str, Array], **options: Any) -> tuple[Rounding, ...]:
    """Return one record for each node that `precision="exact"` would have computed otherwise, in their order. A node
    reads what the network, computed in float64, gives it to read, rounded to float32.

    source: with fixed extents; compiled: what the passes made of it. options: `target`, `opt_level` and `keep` that it
    was compiled with.
    """
    tiled, found = [n for n in compiled.nodes if isinstance(n.op, Tiled)], list[Rounding]()
    if not tiled:
        return ()
    direct = analyze(source, **options, precision="exact")[0]
    values, nodes = interpret.evaluate(direct, inputs), {n.name: n for n in direct.nodes}
    for node in (n for n in tiled if n.name in nodes):  # with numbers, passes may decide otherwise
        x = nodes[node.name].inputs[0]
        assert x is not None
        given = values[x].astype(np.float32)
        expected = interpret.apply(nodes[node.name], {**values, x: given.astype(np.float64)})[0]
        alone = Graph(node.name)
        constants = [None if v is None else alone.constant(v.data) for v in node.inputs[1:]]
        alone.outputs = [alone.apply(node.op, [alone.input("x", x.dtype, x.shape), *constants])]
        (got,) = compile(alone, target=options.get("target", "llvm"), opt_level=2).run(given)
        l2 = float(np.linalg.norm(got - expected) / (np.linalg.norm(expected) or 1.0))
        found.append(Rounding(node.name, node.op.label(node.operand_types()), l2, relative_error(got, expected)))
    return tuple(found)


def _renamed(before: Draw, after: Draw) -> list[tuple[str, str, str]]:
    sides = [("input", [*before.inputs], [*after.inputs])]
    sides.append(("output", [n for n, _ in before.outputs], [n for n, _ in after.outputs]))
    return [(f"{what} {i}", a, b) for what, x, y in sides for i, (a, b) in enumerate(zip(x, y)) if a != b]
