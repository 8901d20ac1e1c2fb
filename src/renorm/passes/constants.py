"""Constant folding: what can be computed at compile time is, by the references of the ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Sym, static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Node, Value
from renorm.ops.reshape import Reshape
from renorm.ops.shared.reshaping import extents_of
from renorm.passes.context import Context
from renorm.passes.dead_code import discard_dead

_SMALL = 1024  # elements of what is computed for an operand that must be known
_FREE = 1 << 20  # bytes that a folded constant may have in any case
_IN_ALL = 1 << 28  # bytes that all constants folded in one go may have in any case
_DEQUANTIZES = "dequantize_linear"
_GROWTH = 2  # how many times larger than its operands it may be otherwise; Expand and ConstantOfShape stay computed


@dataclass(frozen=True)
class FixStaticOperands:
    """op(.., computed) -> op(.., constant) where the op needs the operand at compile time; what computed only that
    goes.

    Part of lowering: exporters write the shape that Reshape takes as a chain of nodes (Shape, Gather, Concat, ...),
    which is arithmetic of the compiler and no work of the network. Chains over open extents stay, where a model is to
    be left that can be written; with `opens` they become extents.
    """

    opens: bool = False

    def run(self, graph: Graph, context: Context) -> None:
        unread = [n for n in graph.nodes if not any(v.readers or graph.is_output(v) for v in n.outputs)]
        known, changed = interpret.Known(lambda v: v.told, _is_small), set[Value]()
        for node in graph.nodes:
            # extents that depend on operands just fixed, which later nodes read
            if self._fix(graph, node, known) or not changed.isdisjoint(v for v in node.inputs if v is not None):
                graph.infer_again([node])
                changed.update(node.outputs)
        discard_dead(graph, wanted=unread)

    def _fix(self, graph: Graph, node: Node, known: interpret.Known) -> bool:
        """Return whether there was something to do."""
        before = node.operands
        for parameter, v in zip(node.op.parsed.operands, before, strict=True):
            if parameter.is_static and isinstance(v, Value) and not v.is_constant:
                data = known(v)
                if data is not None:
                    maker = v.producer.name if v.producer else v.name
                    node.replace_operand(v, graph.constant(data, v.name, f"computed by {maker}"))
                elif not self.opens or v.name in graph.extents or (extents := _extents(v)) is None:
                    continue
                elif isinstance(node.op, Reshape):  # to which an extent of 0 would mean another one
                    node.op = node.op.with_attributes(allowzero=True)
                    node.replace_operand(v, extents_of(graph, node.output.shape))
                else:
                    node.replace_operand(v, graph.open_constant(extents, v.name, v.dtype))
        return node.operands is not before


def _extents(v: Value) -> np.ndarray[Any, Any] | None:
    """Return known elements that are integers or extents, be they of floats; None for others."""
    if v.known is None:
        return None
    whole = np.empty(v.known.size, dtype=object)
    for i, e in enumerate(v.known.flat):
        whole[i] = e if isinstance(e, (int, Sym)) else int(e) if isinstance(e, np.floating) and e == e // 1 else None
    return None if any(e is None for e in whole) else whole.reshape(v.known.shape)


def _is_small(v: Value) -> bool:
    return v.type.is_static and prod(static(v.shape)) <= _SMALL


@dataclass(frozen=True)
class FoldConstants:
    """op(constants) -> constant, in float64 rounded once, integers exactly; Shape of a fixed shape -> constant.

    A node that is kept, one whose result is an output of the graph, and one whose result is much larger than its
    operands stay; and so do all from where together they would be much larger than the constants that there were. What
    is dequantized has a few times the bytes of its file, and does not count. stays: which other nodes do.
    """

    stays: Callable[[Node], bool] = lambda _: False

    def run(self, graph: Graph, context: Context) -> None:
        gone: list[Node] = []
        left = max(_IN_ALL, _GROWTH * sum(map(_bytes, graph.constants.values())))
        for node in graph.nodes:
            if context.kept(node) or self.stays(node) or not self._may_fold(graph, node):
                continue
            left -= sum(map(_bytes, node.outputs)) if node.op.name != _DEQUANTIZES else 0
            if left < 0:
                break
            tracked = _tracked(node)
            env = {v: interpret.widen(v.data) for v in node.inputs if v is not None and v.data is not None}
            results = [tracked] if tracked is not None else interpret.apply(node, env)
            for v, data in zip(node.outputs, results):
                with np.errstate(over="ignore"):  # what is beyond a dtype is an infinity, as it is in loops
                    array = data.astype(dtypes.numpy_dtype(v.dtype))
                graph.replace(v, graph.constant(array, v.name, f"computed by {node.name}"))
            gone.append(node)
        graph.discard(gone)
        graph.discard_constants()

    def _may_fold(self, graph: Graph, node: Node) -> bool:
        results = node.outputs
        if any(graph.is_output(v) or not v.type.is_static for v in results):
            return False
        if _tracked(node) is not None:
            return True
        operands = [v for v in node.inputs if v is not None]
        if not all(v.is_constant for v in operands):
            return False
        return node.op.name == _DEQUANTIZES or sum(map(_bytes, results)) <= max(
            _FREE, _GROWTH * sum(map(_bytes, operands))
        )


def _tracked(node: Node) -> np.ndarray[Any, Any] | None:
    """Elements of the node's one result, where shape inference has found them already."""
    return node.output.told if len(node.outputs) == 1 else None


def _bytes(v: Value) -> int:
    return dtypes.itemsize(v.dtype) * prod(static(v.shape))
