"""A graph's memory of the ONNX file it was read from, so that it can be written back in the file's own terms."""

from __future__ import annotations

from dataclasses import dataclass, field

from renorm.graph.op import OpDef

KEY = "onnx"  # in Graph.metadata: a Provenance


@dataclass(frozen=True)
class SourceNode:
    """How the source file wrote a node: its type, domain and attributes (serialized). Valid as long as the node has
    this op and these operands. present: which operands it has.
    """

    op: OpDef
    op_type: str
    domain: str
    attributes: tuple[bytes, ...]
    present: tuple[bool, ...]


@dataclass
class Provenance:
    """opsets: version by domain. label: how errors call the model. forms: by node name, of nodes that renorm reads one
    to one. dims: names of dim parameters by symbol. properties: the model's own metadata. early: op types that the file
    uses though its opset has none, and the version as which they are meant."""

    ir_version: int
    opsets: dict[str, int]
    label: str
    forms: dict[str, SourceNode] = field(default_factory=dict[str, SourceNode])
    dims: dict[str, str] = field(default_factory=dict[str, str])
    properties: dict[str, str] = field(default_factory=dict[str, str])
    early: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def default(cls) -> Provenance:
        """For a graph that was not read from ONNX: versions that runtimes of the last years read."""
        return cls(ir_version=10, opsets={"": 21}, label="graph")
