"""Runtimes by name, renorm itself among them, that run a model so that its outputs can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.difference import move_axes, type_of
from renorm.core.errors import InvalidInput
from renorm.core.inputs import fixed_extents
from renorm.core.limits import DEFAULT, Limits
from renorm.driver import bounds
from renorm.driver.compile import compile
from renorm.driver.draws import Draw
from renorm.driver.worker import onnxruntime_session
from renorm.frontends import onnx as onnx_frontend
from renorm.frontends import read, tflite
from renorm.graph import interpret
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
Run = tuple[list[Array], str]
"""The outputs in order, and how they were computed, for people to read."""


def run(name: str, model: Any, graph: Graph, inputs: Inputs, **options: Any) -> Run:
    """Run a model on one array per input. graph: the model as it was read, of fixed shapes. options: of `compile`, for
    "renorm". Raise InvalidInput where a runtime is not installed, or does not run the model."""
    if name not in RUNNERS:
        raise InvalidInput(f"nothing that runs a model is called {name!r}", [f"known: {', '.join(RUNNERS)}"])
    if name in ("interpreter", "renorm"):
        return RUNNERS[name](model, graph, inputs, **options)
    try:
        return RUNNERS[name](model, graph, inputs)
    except ImportError:
        package = _PACKAGES[name]
        raise InvalidInput(f"{package} is not installed", do=f"pip install {package}") from None
    except Exception as error:  # runtimes have exception trees of their own
        raise InvalidInput(f"{name} does not run {graph.name}", str(error).splitlines()) from error


def run_draws(model: Any, draws: Sequence[Draw], runner: str, **options: Any) -> tuple[list[Draw], str]:
    """Return inputs, by the names that the model has for them, with its outputs, and how these were computed. options:
    of `compile`."""
    limits, by, found = options.get("limits", DEFAULT), "", list[Draw]()
    graph = read(model, limits=limits)
    for draw in draws:
        fixed, inputs = fit(graph, draw.inputs, limits)
        arrays, by = run(runner, model, fixed, inputs, **options)
        found.append(Draw(inputs, [(v.name, a) for v, a in zip(fixed.outputs, arrays, strict=True)]))
    return found, by


def fit(graph: Graph, inputs: Mapping[str, Array], limits: Limits = DEFAULT) -> tuple[Graph, dict[str, Array]]:
    """Return the graph for inputs of these shapes, and the inputs under its names: by name where all names are the
    same, otherwise by position; axes are moved where one has channels last. Raise InvalidInput where they do not fit.
    """
    problems, held = list[str](), dict[str, Array]()
    if {v.name for v in graph.inputs} == {*inputs}:
        inputs = {v.name: inputs[v.name] for v in graph.inputs}
    for i, (v, name) in enumerate(zip_longest(graph.inputs, inputs)):
        if v is None or name is None:
            problems.append(f"input {i}: {'there is none' if v is None else v.type}, {name or 'nothing'} is given")
            continue
        arranged = move_axes(inputs[name], v.shape)
        if arranged is None or dtypes.from_numpy(inputs[name].dtype) != v.dtype:
            problems.append(f"input {i} {v.name!r} is {v.type}; what is given is {type_of(inputs[name])}")
        else:
            held[v.name] = arranged[0]
    if problems:
        raise InvalidInput(f"{graph.name}: inputs do not fit", problems, "compare networks that take the same inputs")
    shapes, elements = {n: a.shape for n, a in held.items()}, {n: a.reshape(-1).tolist() for n, a in held.items()}
    graph = graph.copy(fixed_extents(graph.inputs, shapes, graph.name, elements))
    bounds.check(graph, limits)
    return graph, held


def _interpreter(model: Any, graph: Graph, inputs: Inputs, **options: Any) -> Run:
    own = {v.name: inputs[v.name] for v in graph.inputs}  # others are constants of the graph
    return interpret.run(graph, own), "renorm's interpreter, in float64"


def _renorm(model: Any, graph: Graph, inputs: Inputs, **options: Any) -> Run:
    module = compile(graph, **options)
    return module.run(*[inputs[v.name] for v in graph.inputs]), f"renorm, opt_level {options.get('opt_level', 3)}"


def session(model: Any, threads: int = 0) -> Any:
    """Return an onnxruntime session for a model: a path, bytes, a ModelProto, or a Graph, which is written as ONNX."""
    if isinstance(model, Graph):
        model = onnx_frontend.write(model)
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    return onnxruntime_session(str(model) if isinstance(model, Path) else model, threads)


def _ort(model: Any, graph: Graph, inputs: Inputs) -> Run:
    is_onnx = onnx_frontend.KEY in graph.metadata and not isinstance(model, Graph)
    opened = session(model if is_onnx else graph)
    found = opened.run([v.name for v in graph.outputs], {v.name: inputs[v.name] for v in opened.get_inputs()})
    return found, "ONNX Runtime" + ("" if is_onnx else ", of the network written as ONNX")


def _litert(model: Any, graph: Graph, inputs: Inputs) -> Run:
    """Run LiteRT without delegates, whose kernels would round differently."""
    runtime: Any = import_module("ai_edge_litert.interpreter")
    content, said = _flat(model, graph, b"TFL3")
    plain = runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    made = runtime.Interpreter(model_content=content, experimental_op_resolver_type=plain)
    details, arrays = made.get_input_details(), [inputs[v.name] for v in graph.inputs]
    for d, x in zip(details, arrays, strict=True):
        made.resize_tensor_input(d["index"], x.shape)
    made.allocate_tensors()
    for d, x in zip(details, arrays, strict=True):
        made.set_tensor(d["index"], x)
    made.invoke()
    return [made.get_tensor(o["index"]) for o in made.get_output_details()], f"LiteRT{said}"


def _circle(model: Any, graph: Graph, inputs: Inputs) -> Run:
    runtime: Any = import_module("tico.circle.runtime")
    content, said = _flat(model, graph, b"CIR0")
    found = runtime.CircleReferenceRuntime(content).run([inputs[v.name] for v in graph.inputs])
    return [np.asarray(a) for a in found.outputs], f"tico's CircleReferenceRuntime{said}"


def _flat(model: Any, graph: Graph, identifier: bytes) -> tuple[bytes, str]:
    """Return the content of a file with that identifier, the model's own where it has it, and what was written."""
    held: Any = graph.metadata.get(tflite.KEY)
    if held is None or held.identifier != identifier or isinstance(model, Graph):
        return tflite.write(graph, identifier=identifier), f", of the network written as {tflite.FORMATS[identifier]}"
    return bytes(model) if isinstance(model, (bytes, bytearray, memoryview)) else Path(model).read_bytes(), ""


RUNNERS: dict[str, Callable[..., Run]] = {
    "interpreter": _interpreter,
    "renorm": _renorm,
    "ort": _ort,
    "litert": _litert,
    "circle": _circle,
}
_PACKAGES = {"ort": "onnxruntime", "litert": "ai-edge-litert", "circle": "tico"}
