"""Capture what a model computes, as a graph whose nodes know the module that calls them.

Calls that renorm does not read are left out, and what they read is a result of the graph, so that nothing may change
it. A product without a bias has one of zeros, where its layer has room for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from renorm.frontends.torch.extents import Extents
from renorm.frontends.torch.program import entered, functional
from renorm.frontends.torch.reader import Reader, overload, where
from renorm.graph.ir import Graph, Node, Value

_PRODUCTS = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_BIAS = 2  # which argument of a product


@dataclass
class Capture:
    """graph: the calls. paths: the module of each node; rounds: the same, and the how manieth call of that module.
    overloads: what of ATen's a node is. parameters: names in the model of each constant, by the constant's. biases:
    constants of zeros that no layer has yet. outside: values that calls read which renorm does not, and what these are.
    unread: modules of these calls, and what they are."""

    graph: Graph
    paths: dict[str, str] = field(default_factory=dict[str, str])
    rounds: dict[str, str] = field(default_factory=dict[str, str])
    overloads: dict[str, str] = field(default_factory=dict[str, str])
    parameters: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    biases: set[str] = field(default_factory=set[str])
    outside: dict[str, str] = field(default_factory=dict[str, str])
    unread: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class _Reader(Reader):
    """Remembers the call that each node is of."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.sources = dict[str, fx.Node]()

    def _name(self, node: fx.Node, made: Sequence[Node]) -> None:
        super()._name(node, made)
        self.sources |= {n.name: node for n in made}


def captured(model: nn.Module, exported: torch.export.ExportedProgram) -> Capture:
    """Return what a model computes, as it was exported; of that program nothing else can be made afterwards."""
    program = functional(exported)
    added = _with_biases(program, model)
    reader, results, _ = entered(program, _Reader("program", program.graph, Extents(program.range_constraints)))
    for node, (name, zeros) in added.items():
        reader.constant(node, name, zeros)
    reader.probe()
    found = Capture(reader.graph)
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.target is not None}
    for node, made in reader.made.items():
        if isinstance(made, Value) and made.is_constant and node.name in targets:
            found.parameters.setdefault(made.name, []).append(targets[node.name])
        elif isinstance(made, Value) and node in added:
            found.parameters[made.name] = [added[node][0]]
            found.biases.add(made.name)
    for node in program.graph.nodes:
        if node.op == "call_function" and not _is_read(node, reader):
            call = overload(node).removesuffix(".default")
            found.unread.append((where(node), call))
            for v in (v for a in node.all_input_nodes for v in _values(reader.made.get(a))):
                found.outside.setdefault(v.name, call)
                _give(found.graph, v)
    for v in (v for r in results if isinstance(r, fx.Node) for v in _values(reader.made.get(r))):
        _give(found.graph, v)
    for name, node in reader.sources.items():
        found.paths[name], found.overloads[name] = where(node), overload(node).removesuffix(".default")
        found.rounds[name] = next(reversed(node.meta.get("nn_module_stack") or {"": None}))
    return found


def _is_read(node: fx.Node, reader: Reader) -> bool:
    is_checked_only = node.meta.get("val") is None and not node.users
    return is_checked_only or (node in reader.made and node not in reader.refused)


def _values(made: Any) -> Iterator[Value]:
    for v in made if isinstance(made, (list, tuple)) else [made]:
        if isinstance(v, Value):
            yield v


def _give(graph: Graph, v: Value) -> None:
    if v.producer is not None and not graph.is_output(v):
        graph.outputs = [*graph.outputs, v]


def _with_biases(program: torch.export.ExportedProgram, model: nn.Module) -> dict[fx.Node, tuple[str, torch.Tensor]]:
    """Give products of a program biases, which are inputs of its graph: return these with their names and zeros."""
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.target is not None}
    inputs, added = dict[str, fx.Node](), dict[fx.Node, tuple[str, torch.Tensor]]()
    for node in [n for n in program.graph.nodes if overload(n).partition(".")[0] in _PRODUCTS]:
        weight = node.args[1]
        target = targets.get(weight.name, "") if isinstance(weight, fx.Node) else ""
        path, _, name = str(target).rpartition(".")
        if [*node.args[_BIAS : _BIAS + 1]] not in ([], [None]) or name != "weight" or not takes_bias(model, path):
            continue
        bias = f"{path}.bias".strip(".")
        if bias not in inputs:
            layer: Any = model.get_submodule(path)
            channels = getattr(layer, "out_channels", None) or layer.out_features
            with program.graph.inserting_before(next(iter(program.graph.nodes))):
                inputs[bias] = program.graph.placeholder(f"bias_{len(inputs)}")
            added[inputs[bias]] = bias, torch.zeros(channels, dtype=layer.weight.dtype)
        node.args = (*node.args[:_BIAS], inputs[bias], *node.args[_BIAS + 1 :])
    return added


def takes_bias(model: nn.Module, path: str) -> bool:
    """Return whether a layer has no bias, and its forward reads one where there is one."""
    layer = model.get_submodule(path)
    is_product = isinstance(layer, (nn.modules.conv._ConvNd, nn.Linear))
    reads = "bias" in type(layer).forward.__code__.co_names
    return is_product and reads and layer._parameters.get("bias", layer) is None
