"""Graph to TensorFlow Lite or Circle, in the format of the file it was read from.

Names of inputs and outputs are the graph's; an activation that alone reads a result becomes part of the operator that
makes it; versions of operators are the lowest that have what is used. What the model says beside its operators stays:
description, metadata, signatures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from renorm.core.errors import RenormError, UnsupportedOp
from renorm.frontends import BUFFERS
from renorm.frontends.files import replaced
from renorm.frontends.problems import Problem, together
from renorm.frontends.tflite import counted
from renorm.frontends.tflite.activations import cutting
from renorm.frontends.tflite.emission import Emission
from renorm.frontends.tflite.flatbuffer import Table, encode
from renorm.frontends.tflite.model import KEY, Model, assemble
from renorm.frontends.tflite.operators import WRITTEN
from renorm.frontends.tflite.quantized import parameter
from renorm.frontends.tflite.schema import Schema, schema
from renorm.frontends.tflite.subgraph import Subgraph
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.names import Names

_IDENTIFIERS = {".tflite": b"TFL3", ".circle": b"CIR0"}


def write(graph: Graph, path: str | os.PathLike[str] | None = None, *, identifier: bytes | None = None) -> bytes:
    """Return the graph as a file, also written to `path` if given: whole or not at all.

    The format is that of the identifier or of the path's suffix, otherwise that of the source. Raises
    UnsupportedOp that names every node which the format cannot express.
    """
    source: Model | None = graph.metadata.get(KEY)
    if identifier is None:
        identifier = _identifier(graph, path)
    content = encode(identifier, _Writer(graph, identifier, source).model(), graph.name)
    if path is not None:
        save(content, path)
    return content


def identifier_of(path: str | os.PathLike[str]) -> bytes | None:
    """That of the format which a suffix names."""
    return _IDENTIFIERS.get(Path(path).suffix.lower())


def vocabulary(graph: Graph, path: str | os.PathLike[str]) -> Callable[[str], bool]:
    """Return whether the format has an op: norms with statistics of their own are Circle's."""
    codes = schema(_identifier(graph, path)).enums["BuiltinOperator"]
    return lambda op: op in WRITTEN and (op not in _OF_CIRCLE or _OF_CIRCLE[op] in codes)


_OF_CIRCLE = {"instance_norm": "INSTANCE_NORM", "rms_norm": "RMS_NORM"}


def _identifier(graph: Graph, path: str | os.PathLike[str] | None) -> bytes:
    source: Model | None = graph.metadata.get(KEY)
    named = None if path is None else identifier_of(path)
    return named or (source.identifier if source is not None else b"TFL3")


def save(content: bytes, path: str | os.PathLike[str]) -> None:
    """Write a file: whole or not at all."""
    with replaced(path) as file:
        file.write(content)


class _Writer:
    def __init__(self, graph: Graph, identifier: bytes, source: Model | None):
        if held := graph.metadata.get(BUFFERS):
            names = ", ".join(held)
            raise UnsupportedOp(f"{graph.name} hands variables on from run to run, which are not written: {names}")
        self.graph, self.source = graph, source
        self.subgraph = Subgraph(schema(identifier), quantization(graph, schema(identifier)))
        self.is_same_format = source is not None and source.identifier == identifier
        self.inside = self._activations()

    def _activations(self) -> dict[Node, tuple[Node, str]]:
        """Return the activations that become part of another operator: the node that makes their operand, and their
        name."""
        found: dict[Node, tuple[Node, str]] = {}
        for node in self.graph.nodes:
            name, x = activation(node), node.inputs[0] if node.inputs else None
            if name is None or x is None or x.producer is None or x.producer in found:
                continue
            alone = x.users == [node] and not self.graph.is_output(x) and len(x.producer.outputs) == 1
            operator = WRITTEN.get(x.producer.op.name)
            if alone and operator is not None and operator.fuses and activation(x.producer) is None:
                found[node] = (x.producer, name)
        return found

    def model(self) -> Table:
        inputs = [self.subgraph.plain(v) for v in self.graph.inputs]
        fused = {made: (node, name) for node, (made, name) in self.inside.items()}
        problems = list[Problem]()
        ends = {node: fused.get(node, (node, "NONE")) for node in self.graph.nodes if node not in self.inside}
        found = {n: counted.made(self.graph, n, last.output) for n, (last, _) in ends.items() if len(n.outputs) == 1}
        made = {node: whole for node, whole in found.items() if whole is not None}
        wholes = {*made.values()}
        for node, (last, name) in ends.items():
            is_own = node.op.name == "dequantize_linear" and not self.graph.is_output(node.output)
            if node.outputs[0] in wholes or (is_own and all(u in made for u in node.output.users)):
                continue  # operators on integers make it, or alone read it
            operator = WRITTEN.get(node.op.name)
            try:
                if operator is None or operator.write is None:
                    raise UnsupportedOp(f"op {node.op.name} has no operator in this format")
                result = made.get(node, last.output)
                operator.write(Emission(self.subgraph, operator.kind, node, result, name, node in made))
            except RenormError as error:
                problems.append(Problem(error, node.name, kind=node.op.name))
        if problems:
            raise together(problems, self.graph.name)
        outputs = self._outputs(inputs)
        self._name(inputs, outputs)
        main = self.subgraph.table(
            "SubGraph",
            name=self.graph.name,
            tensors=self.subgraph.tensors,
            operators=self.subgraph.operators,
            inputs=np.asarray(inputs, np.int32),
            outputs=np.asarray(outputs, np.int32),
        )
        return self._around(main)

    def _outputs(self, inputs: list[int]) -> list[int]:
        """Tensors of the outputs: one of its own for each, since each has a name."""
        names = dict(zip(inputs, (v.name for v in self.graph.inputs)))
        found = list[int]()
        for v in self.graph.outputs:
            tensor = self.subgraph.plain(v)
            if names.setdefault(tensor, v.name) != v.name:
                tensor = self.subgraph.copied(tensor, v.name)
                names[tensor] = v.name
            found.append(tensor)
        return found

    def _name(self, inputs: list[int], outputs: list[int]) -> None:
        """Give each tensor a name: its own where it is an input or output, otherwise that of the tensor which it was
        in the source, otherwise one that no tensor has there."""
        ends = {t: v.name for t, v in zip([*inputs, *outputs], [*self.graph.inputs, *self.graph.outputs])}
        values = self.subgraph.values()
        names = Names({*ends.values()}, set() if self.source is None else {*self.source.main.names})
        for t, table in enumerate(self.subgraph.tensors):
            name = ends.get(t) or self._stated(values.get(t, ()), names.taken)
            if name is None:
                stated = self.subgraph.names[t]
                name = names.fresh(next((n for n in stated if ".order" not in n), stated[0]))
            table["name"] = name
            names.taken.add(name)

    def _stated(self, values: Sequence[tuple[Value, bool]], taken: set[str]) -> str | None:
        """Return the name that a tensor had in the source, in the same order of axes."""
        for v, is_last in values:
            name, was_first = (self.source.forms if self.source is not None else {}).get(v.name, ("", False))
            if name and name not in taken and was_first == is_last:
                return name
        return None

    def _around(self, main: Table) -> Table:
        """Return the model with that subgraph, and what the source says beside it."""
        source = self.source if self.is_same_format else None
        stated = self.subgraph.table("Model", version=3 if self.subgraph.schema is schema(b"TFL3") else 0)
        if source is not None:
            stated = self.subgraph.table("Model", **source.root.fields)
        stated["description"] = stated["description"] or "renorm"
        numbers = {t["name"]: i for i, t in enumerate(self.subgraph.tensors)}
        signatures = [] if source is None else source.signatures(numbers)
        metadata = [] if source is None else source.metadata
        return assemble(stated, main, [*self.subgraph.codes.values()], self.subgraph.buffers, metadata, signatures)


def quantization(graph: Graph, schema: Schema) -> dict[Value, Table]:
    """Return what files say of integers that stand for numbers: of those that are quantized or dequantized, and of
    those that have the same elements. Raises UnsupportedOp."""
    found = dict[Value, tuple[float, int]]()
    for node in graph.nodes:
        whole = node.output if node.op.name == "quantize_linear" else node.inputs[0] if node.inputs else None
        if (step := parameter(node)) is None or whole is None or whole.is_constant:
            continue
        if found.setdefault(whole, step) != step:
            raise UnsupportedOp(
                f"{graph.name}: integers {whole.name!r} stand for several numbers, which is not written"
            )
    for node in (*graph.nodes, *reversed(graph.nodes)):
        operator = WRITTEN.get(node.op.name)
        if operator is not None and operator.picks != ():
            values = [v for v in (*node.inputs, *node.outputs) if v is not None]
            known = next((v for v in values if v in found), None)
            if known is not None:
                found.update({v: found[known] for v in values if v.dtype == known.dtype and v not in found})
    tables = dict[tuple[float, int], Table]()
    for scale, zero in found.values():
        held = {"scale": np.asarray([scale], np.float32), "zero_point": np.asarray([zero], np.int64)}
        tables.setdefault((scale, zero), Table("QuantizationParameters", schema, held))
    return {v: tables[step] for v, step in found.items()}


def activation(node: Node) -> str | None:
    """Return the name of an activation that runtimes compute inside operators, None for others: LiteRT leaves TANH
    out."""
    name = cutting(node)
    return name if name != "RELU_0_TO_1" else None
