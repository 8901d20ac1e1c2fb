"""Training parameters of the batch norms of an imported network, in its convention and in others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from renorm.graph.ir import Graph, Node
from renorm.ops.batch_norm import BatchNorm
from renorm.ops.batch_norm_training import BatchNormTraining
from renorm.training.conventions import CONVENTIONS, Convention
from renorm.training.conversion import convert


@dataclass(frozen=True)
class Settings:
    """Batch norms that are alike. nodes: their names; convention: what momentum means there, and which variance runs;
    momentum: None where it comes at run time; is_training: statistics are those of the batch."""

    nodes: tuple[str, ...]
    convention: Convention
    momentum: float | None
    epsilon: float
    is_training: bool

    def translated(self, target: str) -> dict[str, Any]:
        """momentum and epsilon in the convention `target`, and running_var: what the running variance is multiplied
        by, in words."""
        given = {"epsilon": self.epsilon} | ({} if self.momentum is None else {"momentum": self.momentum})
        found = convert(given, self.convention.name, target)
        here, there = self.convention.corrected, CONVENTIONS[target].corrected
        found["running_var"] = "as it is" if here == there else "times n / (n - 1)" if there else "times (n - 1) / n"
        return found if self.momentum is not None else found | {"momentum": None}

    def to_json(self) -> dict[str, Any]:
        said = {"nodes": list(self.nodes), "convention": self.convention.name, "momentum": self.momentum}
        return said | {"epsilon": self.epsilon, "is_training": self.is_training}


def settings_of(graph: Graph) -> list[Settings]:
    """Of each kind of batch norm in a graph as it was read, the most frequent first."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for node in graph.nodes:
        if isinstance(node.op, (BatchNorm, BatchNormTraining)):
            found.setdefault(_said(node), []).append(node.name)
    alike = [Settings(tuple(nodes), *said) for said, nodes in found.items()]
    return sorted(alike, key=lambda s: -len(s.nodes))


def _said(node: Node) -> tuple[Convention, float | None, float, bool]:
    op = node.op
    if isinstance(op, BatchNormTraining):
        momentum = node.inputs[5]
        held = None if momentum is None or momentum.data is None else float(momentum.data.reshape(()))
        name = "torch" if op.corrected else "onnx"
        if op.momentum_multiplies != CONVENTIONS[name].momentum_multiplies and held is not None:
            held = 1.0 - held
        return CONVENTIONS[name], held, op.epsilon, True
    assert isinstance(op, BatchNorm)
    return CONVENTIONS["onnx"], op.momentum, op.epsilon, op.training_mode
