"""How many nodes an ONNX model has with bodies of functions in the place of calls: counted before any is put there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renorm.core.errors import InvalidModel
from renorm.core.limits import Limits
from renorm.frontends.onnx.messages import ModelProto, NodeProto, inner_graphs
from renorm.frontends.order import topological

_Key = tuple[str, str, str]  # of a function: domain, name, overload


@dataclass(frozen=True)
class _Size:
    """Of a body, with those that it calls. depth: functions within each other."""

    nodes: int
    depth: int


def check(model: ModelProto, label: str, limits: Limits) -> None:
    """Raise LimitExceeded for a model, ours or an onnx.ModelProto, of too many nodes, or too deep, InvalidModel for
    functions that call themselves."""
    kinds, nesting = _kinds(model.graph.node)
    sizes = _sizes(model, label)
    called = {k: sizes[k] for k in kinds if k in sizes}
    made = {k: kinds[k] * size.nodes for k, size in called.items()}
    largest = max(made, key=made.__getitem__, default=None)
    expansions, own = sum(made.values()), sum(kinds.values()) - sum(kinds[k] for k in called)
    deepest = max((size.depth for size in called.values()), default=0)
    where = f"most of {largest[0]}::{largest[1]}" if largest else ""
    limits.check(
        label,
        [
            ("nodes", own + expansions, ""),
            ("expansions", expansions, where),
            ("nesting", nesting, "graphs within each other"),
            ("nesting", deepest, "functions that call functions"),
        ],
    )


def _kinds(nodes: Sequence[NodeProto]) -> tuple[Counter[_Key], int]:
    """Return how often each op or function is applied, branches included, and how deep these stand within each
    other."""
    found, deepest = Counter[_Key](), 0
    waiting = [(nodes, 0)]
    while waiting:
        held, depth = waiting.pop()
        deepest = max(deepest, depth)
        for n in held:
            found[_key(n.domain, n.op_type, n)] += 1
            for a in n.attribute:
                waiting += [(g.node, depth + 1) for g in inner_graphs(a)]
    return found, deepest


def _key(domain: str, name: str, named: Any) -> _Key:
    return "" if domain == "ai.onnx" else domain, name, getattr(named, "overload", "")


def _sizes(model: ModelProto, label: str) -> dict[_Key, _Size]:
    """Of all functions, which may stand in any order."""
    bodies = {_key(f.domain, f.name, f): _kinds(f.node) for f in model.functions}
    keys, sizes = [*bodies], dict[_Key, _Size]()
    order, ring = topological([kinds for kinds, _ in bodies.values()], [[key] for key in keys])
    if ring:
        circle = [keys[place] for place in (*ring, ring[0])]
        raise InvalidModel(
            f"{label}: functions of the model call themselves",
            [" -> ".join(f"{domain}::{name}" for domain, name, _ in circle)],
        )
    for key in (keys[place] for place in order):
        kinds, nesting = bodies[key]
        called = {k: sizes[k] for k in kinds if k in bodies}
        nodes = sum(n * (called[k].nodes if k in called else 1) for k, n in kinds.items())
        sizes[key] = _Size(nodes, nesting + 1 + max((s.depth for s in called.values()), default=0))
    return sizes
