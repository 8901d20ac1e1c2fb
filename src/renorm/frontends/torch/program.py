"""Programs of torch.export: of a module, of a .pt2 file, or made by the caller.

What a program does to its buffers (running statistics, counters) is state: they are the last inputs of the graph, and
what they become its last outputs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from renorm.core.errors import InvalidInput, InvalidModel, UnsupportedOp, raised_at
from renorm.core.limits import DEFAULT, Limits
from renorm.frontends import BUFFERS
from renorm.frontends.diagnosis import diagnose
from renorm.frontends.problems import Problem
from renorm.frontends.torch import bodies, hosting
from renorm.frontends.torch.extents import Extents
from renorm.frontends.torch.reader import Reader, array_of, overload
from renorm.graph.ir import Graph

R = TypeVar("R", bound=Reader)


def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """Return what torch.export makes of a module for arguments like these, with the axes open that `dynamic_shapes`
    names as torch.export takes it. Raises InvalidInput with PyTorch's reason where it refuses."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(
            f"args= are given for {type(module).__name__}", ["torch.nn.Module is exported for them"], "leave args= out"
        )
    given = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    try:
        with torch.no_grad():
            return torch.export.export(module, given, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    except Exception as error:  # whatever the module's own code, Dynamo or the exporter raises
        raise InvalidInput(
            f"{type(module).__name__}: torch.export refuses it: {_first_line(error)}",
            [raised_at(error)],
            "mend what PyTorch names, or export another part of the model",
        ) from error


def read(source: Any, *, is_mapped: bool = True, limits: Limits = DEFAULT) -> Graph:
    """Return the graph of a program: an ExportedProgram, or the path of a .pt2 file. Its constants are the tensors of
    the program, where they lie: copied unless is_mapped. Raises UnsupportedOp that names every call which renorm cannot
    express, with its module and source line; LimitExceeded."""
    if isinstance(source, (str, os.PathLike)) and os.path.exists(source):
        limits.check(_called(source), [("file_bytes", os.path.getsize(source), "")])
    program = functional(source)
    signature, calls = program.graph_signature, program.graph
    limits.check(_called(source), [("nodes", len(calls.nodes), "")])
    reader, results, held = entered(program, Reader(_called(source), calls, Extents(program.range_constraints)))
    for spec in signature.output_specs:
        if spec.kind.name not in ("USER_OUTPUT", "BUFFER_MUTATION"):
            error = UnsupportedOp(f"the program writes to {spec.target!r} ({spec.kind.name.lower()})")
            reader.problems.append(Problem(error))
    try:
        graph = reader.read(results)
    except UnsupportedOp:
        constants, ranges = {n: _tensor(program, t) for n, t in _targets(program).items()}, program.range_constraints
        given = [n for n in calls.nodes if n.op == "placeholder" and n not in constants]
        inputs = {n: n.name for n in given if isinstance(n.meta.get("val"), torch.Tensor)}
        updated = [*held]
        hosting.require(reader, program.graph_module, inputs, constants, results, lambda: Extents(ranges), updated)
        raise
    if held:
        graph.metadata[BUFFERS] = {target: array_of(tensor) for target, tensor in held.items()}
    if not is_mapped:
        for constant in graph.constants.values():
            constant.data = np.array(constant.data)
    diagnose(graph)
    return graph


def entered(program: torch.export.ExportedProgram, reader: R) -> tuple[R, list[Any], dict[str, torch.Tensor]]:
    """Give a reader the inputs and the constants of a program. Return it, the program's results, then what its buffers
    become, and those buffers by name: the last inputs."""
    signature = program.graph_signature
    updated = {str(s.target): s.arg.name for s in signature.output_specs if s.kind.name == "BUFFER_MUTATION"}
    targets = {n.name: t for n, t in _targets(program).items()}
    tensors = {t: _tensor(program, t) for t in targets.values()}
    nodes = {n.name: n for n in program.graph.nodes if n.op in ("placeholder", "call_function")}
    given = [n for n in nodes.values() if n.op == "placeholder"]
    for node in (n for n in given if n.name not in targets):
        reader.input(node)
    held = {targets[n.name]: n for n in given if targets.get(n.name) in updated}
    for target, node in held.items():  # after the program's own inputs
        reader.input(node, target)
    for node in (n for n in given if n.name in targets and n not in held.values()):
        reader.constant(node, targets[node.name], tensors[targets[node.name]])
    for node in program.graph.nodes:
        if node.op == "get_attr":
            reader.attribute(node, getattr(program.graph_module, str(node.target)))
    (out,) = (n.args[0] for n in program.graph.nodes if n.op == "output")
    results = [r for s, r in zip(signature.output_specs, out) if s.kind.name == "USER_OUTPUT"]
    return reader, [*results, *(nodes[updated[target]] for target in held)], {t: tensors[t] for t in held}


def _targets(program: torch.export.ExportedProgram) -> dict[torch.fx.Node, str]:
    """Return which parameter, buffer or constant a placeholder is."""
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.target is not None}
    return {n: targets[n.name] for n in program.graph.nodes if n.op == "placeholder" and n.name in targets}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _called(source: Any) -> str:
    return os.path.basename(source) if isinstance(source, (str, os.PathLike)) else "program"


def functional(source: Any) -> torch.export.ExportedProgram:
    """Return the program of a source, functional: nothing in it writes to a tensor in place."""
    program = source
    if isinstance(source, (str, os.PathLike)):
        try:
            program = torch.export.load(source)
        except Exception as error:
            path = os.fspath(source)
            why = f"{path}: no program of torch.export: {_first_line(error)}"
            raise InvalidModel(why, [raised_at(error)]) from error
    if not isinstance(program, torch.export.ExportedProgram):
        raise InvalidInput(
            f"{type(source).__name__}: a module is exported for arguments",
            do="give them: renorm.compile(module, args=(x,))",
        )
    if not any(map(_writes, program.graph.nodes)):
        return program
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own functions, which it calls
            return program.run_decompositions({})
    except Exception as error:  # whatever PyTorch takes offence at, in a file that it has read
        raise InvalidModel(
            f"{_called(source)}: PyTorch cannot decompose the program: {_first_line(error)}", [raised_at(error)]
        ) from error


def _writes(node: torch.fx.Node) -> bool:
    """Return whether a node writes in place, or one of a graph that it calls, or is of torch.vmap, whose calls are of
    one slice. The schema of batch_norm does not say that it updates running statistics."""
    if getattr(node.target, "__module__", "") == "torch._functorch.predispatch":
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable or (
            node.target is torch.ops.aten.batch_norm.default and bool(node.args[5])
        )
    if node.op == "get_attr":
        held = getattr(node.graph.owning_module, str(node.target), None)
        return isinstance(held, torch.fx.GraphModule) and any(map(_writes, held.graph.nodes))
    is_higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return is_higher and not (bodies.reads(node.target) or overload(node) in hosting.STEPS)


def _tensor(program: torch.export.ExportedProgram, target: str) -> torch.Tensor:
    found = program.state_dict.get(target)
    found = program.constants.get(target) if found is None else found
    if not isinstance(found, torch.Tensor):
        raise InvalidModel(f"the program has no tensor {target!r}")
    return found
