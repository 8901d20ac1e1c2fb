"""The target "onednn": convolutions and batch norms, with the ReLU after them, run on oneDNN's primitives.

A bridge to a library in the sense of "bring your own code generation": batch norm stays one primitive with its four
parameters, and what the library does not have runs on llvm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.core.target import Target
from renorm.graph.ir import Graph, Node
from renorm.ops.batch_norm import BatchNorm
from renorm.ops.conv import Conv
from renorm.ops.conv_transpose import ConvTranspose
from renorm.targets.onednn.chain import Window
from renorm.targets.onednn.code import Code, Stage
from renorm.targets.onednn.library import MOST_AXES, NORM_AXES, Unimplemented, library

Pattern = Callable[..., Any]


def generate(group: Graph) -> Code | str:
    """Return the chain for a group, or why there is none. InvalidTarget where oneDNN is not installed."""
    library()
    x, values = group.nodes[0].inputs[0], [v for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None]
    if x is None or x.is_constant:
        return "what it reads is a constant: it is computed once, when the network is compiled"
    computed = [v for n in group.nodes for v in n.inputs[1:] if v is not None and not v.is_constant]
    if computed:
        return f"{computed[0].name!r} is computed: weights and statistics must be constants"
    if x.dtype != "float32" or any(v.dtype != "float32" for n in group.nodes for v in n.outputs):
        return f"{x.name!r} is {x.dtype}: only float32 runs on oneDNN"
    if any(0 in v.shape for v in values) or any(v.type.rank > MOST_AXES for v in values):
        return f"{x.name!r} has no elements, or too many axes"
    stages: list[Stage] = []
    for node in group.nodes:
        stage = _stage(node, stages)
        if isinstance(stage, str):
            return stage
        stages = stage
    try:
        return Code(static(x.shape), stages)
    except Unimplemented as error:
        return f"oneDNN {library().version} has no primitive for it ({error})"


def _stage(node: Node, before: list[Stage]) -> list[Stage] | str:
    """Return the stages with that of one more node, or why there is none."""
    op, shape = node.op, static(node.output.shape)
    arrays = tuple(np.ascontiguousarray(v.elements, np.float32) for v in node.inputs[1:] if v is not None)
    match op:
        case BatchNorm():
            if op.training_mode:
                return "its statistics are the batch's: oneDNN is given stored ones"
            if len(shape) > NORM_AXES:
                return f"a batch norm over {len(shape)} axes: those of oneDNN are right for up to {NORM_AXES}"
            return [*before, Stage(op.name, shape, arrays, epsilon=op.epsilon)]
        case Conv() | ConvTranspose():
            window = _window(node, op)
            return window if isinstance(window, str) else [*before, Stage(op.name, shape, arrays, window=window)]
        case _:
            *others, last = before
            return [*others, Stage(last.kind, shape, last.arrays, True, last.window, last.epsilon)]


def _window(node: Node, op: Conv | ConvTranspose) -> Window | str:
    """Return the window of a convolution as oneDNN has it. Where it is transposed, the padding after it makes up
    its extent."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    spatial, kernel = static(x.shape[2:]), static(w.shape[2:])
    rank = len(spatial)
    if not 1 <= rank <= 3:
        return f"a window over {rank} axes: oneDNN has windows over 1 to 3"
    strides, dilations = op.along("strides", rank), op.along("dilations", rank)
    if isinstance(op, Conv):
        before, after = zip(*((s.before, s.after) for s in op.spans(spatial, kernel)), strict=True)
    else:
        before = static(b for _, b, _ in op.results(spatial, kernel))
        extents = static(node.output.shape[2:])
        after = tuple(
            (e - 1) * s + (k - 1) * d + 1 - b - y
            for e, s, k, d, b, y in zip(spatial, strides, kernel, dilations, before, extents, strict=True)
        )
    return Window(strides, dilations, before, after, op.group)


def _products(product: Callable[[Any, Any, Any], Any]) -> tuple[Pattern, ...]:
    """Return a product alone, and with a norm after it. b stands for no bias too."""

    def alone(x: Any, w: Any, b: Any) -> Any:
        return product(x, w, b)

    def normalized(x: Any, w: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return ops.batch_norm(product(x, w, b), scale, bias, mean, var)

    return alone, normalized


def _norm(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return ops.batch_norm(x, scale, bias, mean, var)


def _ending_in_relu(pattern: Pattern) -> Pattern:
    @wraps(pattern)
    def ended(*values: Any) -> Any:
        return ops.relu(pattern(*values))

    return ended


PATTERNS = (*_products(ops.conv), *_products(ops.conv_transpose), _norm)
TARGET = Target("onednn", base="llvm", supports=(*PATTERNS, *map(_ending_in_relu, PATTERNS)), codegen=generate)
