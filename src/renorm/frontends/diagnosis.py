"""What is wrong with a model that can be read: found at import, recorded in the graph, warned of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.graph.ir import Graph, Node

KEY = "diagnoses"  # in Graph.metadata: a tuple of Diagnosis


@dataclass(frozen=True)
class Diagnosis:
    """node: its name; problem: a sentence with the figures; fix: what to do about it."""

    node: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"node {self.node!r}: {self.problem}\n  do: {self.fix}"


def diagnose(graph: Graph) -> tuple[Diagnosis, ...]:
    """Looks for constants that make results NaN, records what it finds in the graph, and warns."""
    found = tuple(d for n in graph.nodes for d in _variance(n))
    if found:
        graph.metadata[KEY] = found
        shown = "\n".join(str(d) for d in found[:8]) + ("" if len(found) <= 8 else f"\n... and {len(found) - 8} more")
        warnings.warn(f"{graph.name}: {shown}", RuntimeWarning, stacklevel=4)
    return found


def _variance(node: Node) -> Iterator[Diagnosis]:
    """A stored variance below zero or NaN; whatever epsilon makes of it, no data has such a variance."""
    epsilon = getattr(node.op, "epsilon", None)
    named = {p.name: v for p, v in zip(node.op.parsed.operands, node.operands)}
    value = named.get("var")
    if epsilon is None or value is None or isinstance(value, list) or value.data is None:
        return
    var: np.ndarray[Any, Any] = value.data.astype(np.float64).ravel()
    bad = np.flatnonzero(~(var >= 0))
    if bad.size == 0:
        return
    broken = np.flatnonzero(~(var + epsilon > 0))
    first = ", ".join(f"[{i}] = {var[i]:g}" for i in bad[:4]) + (", ..." if bad.size > 4 else "")
    effect = (
        f"{broken.size} of them stay at or below zero with epsilon {epsilon:g}, so these channels give NaN or Inf"
        if broken.size
        else f"with epsilon {epsilon:g} they are above zero, so results are finite but not what training computed"
    )
    yield Diagnosis(
        node.name,
        f"variance {value.name!r} is negative or NaN in {bad.size} of {var.size} channels ({first}); {effect}",
        "re-estimate the running statistics from data, or set these channels to the variance they had in training; "
        "a tiny negative value left by a converter's rounding means 0",
    )
