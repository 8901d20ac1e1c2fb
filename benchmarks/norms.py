"""Normalizations alone, on tensors larger than any cache, held against a copy of memory in the same rounds.

One read and one write of the tensor are counted, which is the least that a normalization needs; of a gradient, two
reads and one write.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

import renorm
from renorm.driver import roofline
from renorm.driver.worker import timed
from renorm.graph.op import OpDef
from renorm.ops.group_norm_gradient import GroupNormGradient
from renorm.ops.group_norm_training import GroupNormTraining
from renorm.training import kernels

IMAGES, ROWS = (32, 64, 112, 112), (32768, 784)  # 103 MB each
GROUPS = 32
# operands after x, with their length: of a channel, or of the last axis
SCALED = ("scale", "bias")
NORMS: dict[str, tuple[str, tuple[int, ...], tuple[str, ...], dict[str, Any]]] = {
    "batch norm, inference": ("BatchNormalization", IMAGES, (*SCALED, "mean", "variance"), {}),
    "instance norm": ("InstanceNormalization", IMAGES, SCALED, {}),
    "group norm": ("GroupNormalization", IMAGES, SCALED, {"num_groups": GROUPS}),
    "layer norm": ("LayerNormalization", ROWS, SCALED, {}),
    "RMS norm": ("RMSNormalization", ROWS, SCALED[:1], {}),
}
CHANNELS_LAST = (IMAGES[0], IMAGES[2] * IMAGES[3], IMAGES[1])
# ops of training, by shape and attributes
TRAINED: dict[str, tuple[type[OpDef], tuple[int, ...], dict[str, Any]]] = {
    "group norm, channels last": (GroupNormTraining, CHANNELS_LAST, {"num_groups": GROUPS, "axis": 2}),
    "layer norm, gradient": (GroupNormGradient, ROWS, {"num_groups": 1}),
    "RMS norm, gradient": (GroupNormGradient, ROWS, {"num_groups": 1, "centered": False}),
    "group norm, gradient": (GroupNormGradient, (*IMAGES[:2], IMAGES[2] * IMAGES[3]), {"num_groups": GROUPS}),
}


def model(name: str) -> ModelProto:
    """A network of one normalization with random positive constants."""
    op, shape, operands, attributes = NORMS[name]
    rng = np.random.default_rng(0)
    constants = [
        helper.make_tensor(o, TensorProto.FLOAT, [shape[1]], rng.uniform(0.5, 1.5, shape[1]).astype(np.float32))
        for o in operands
    ]
    node = helper.make_node(op, ["x", *operands], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, shape) for v in ("x", "y")]
    graph = helper.make_graph([node], op, ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def trained(name: str, threads: int, target: str) -> tuple[Callable[[], Any], int]:
    """A call of an op of training, and the bytes that it must move."""
    op, shape, attributes = TRAINED[name]
    rng = np.random.default_rng(0)
    channels, slices = shape[attributes.get("axis", 1)], (shape[0], attributes["num_groups"])
    scale, bias = rng.uniform(0.5, 1.5, (2, channels)).astype(np.float32)
    statistics = rng.uniform(0.5, 1.5, (2, *slices)) if op is GroupNormGradient else ()
    tensors = [rng.standard_normal(shape, dtype=np.float32) for _ in range(2 if op is GroupNormGradient else 1)]
    operands = [*tensors, *statistics, scale, *([] if op is GroupNormGradient else [bias])]
    types = [(a.shape, a.dtype) for a in operands]
    module = kernels.compiled(op, tuple(attributes.items()), threads, types, target)
    out = [np.empty_like(tensors[0]), *[None] * (len(op.parsed.results) - 1)]
    return lambda: module.run(*operands, out=out), (len(tensors) + 1) * tensors[0].nbytes


def measure(threads: int, rounds: int, seconds: float, target: str = "llvm") -> dict[str, Any]:
    """Milliseconds of each, with its output given, and its bytes per second relative to the copy's."""
    copy, copied = roofline.copy(threads)
    calls: dict[str, Callable[[], Any]] = {"copy": copy}
    moved = {"copy": copied}
    for name, (_, shape, _, _) in NORMS.items():
        module = renorm.compile(model(name), target=target, threads=threads)
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        y = np.empty_like(x)
        calls[name] = lambda module=module, x=x, y=y: module.run(x, out=[y])
        moved[name] = 2 * x.nbytes
    for name in TRAINED:
        calls[name], moved[name] = trained(name, threads, target)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(median(timed(call, seconds / rounds)))
    speeds = {name: moved[name] / median(ms) * 1e3 for name, ms in times.items()}
    return {
        name: {
            "ms": round(median(ms), 3),
            "bytes_per_second": round(speeds[name]),
            "of_copy": round(speeds[name] / speeds["copy"], 3),
        }
        for name, ms in times.items()
    }
