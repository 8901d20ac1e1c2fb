"""An op and a schedule of one's own, from one's own file: nothing in renorm is edited.

The op is the channel norm of a fictional camera vendor: every pixel's channels are divided by their Euclidean
length. The schedule makes batch norm opaque on one target, as somebody would who has a hand-written kernel for it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import renorm
from renorm import te
from renorm.graph.attributes import Float
from renorm.graph.op import OPAQUE, REDUCTION, Reject, Sample
from renorm.graph.types import f32


# --- one op ---
class ChannelLengthNorm(renorm.OpDef):
    """y = x / sqrt(sum over channels of x^2 + epsilon)."""

    signature = "x: T[N, C, *S] -> y: T[N, C, *S]"
    types = {"T": ("float32", "float64")}
    epsilon = Float(1e-6, at_least=0.0)
    onnx = {"com.example::ChannelLengthNorm": 1}
    fusion = REDUCTION
    scheduled_as = "reduction"

    def compute(self, x: te.Tensor) -> te.Tensor:
        c = te.reduce_axis((0, x.shape[1]), name="c")
        square = te.compute(
            (x.shape[0], *x.shape[2:]),
            lambda n, *s: te.sum(x[(n, c, *s)] * x[(n, c, *s)], axis=c),
            name="square",
            tag="reduce",
        )
        return te.compute(
            x.shape, lambda n, k, *s: x[(n, k, *s)] / te.sqrt(square[(n, *s)] + self.epsilon), name="scaled"
        )

    def reference(self, x):
        return x / np.sqrt(np.square(x).sum(axis=1, keepdims=True) + self.epsilon)

    samples = [Sample(f32[2, 3, 5, 7]), Sample(f32[1, 4, 6], epsilon=0.5)]
    rejects = [Reject(f32[3], because="x has rank 1")]


# --- one hand schedule, for one op on one target ---
def whole_batch_norm(op, x, scale, bias, mean, var):
    """Batch norm of inference in one stage, as the hand-written kernel has it."""
    return te.compute(
        x.shape,
        lambda n, c, *s: (x[(n, c, *s)] - mean[c]) / te.sqrt(var[c] + op.epsilon) * scale[c] + bias[c],
        name="whole_batch_norm",
    )


def hand_schedule(s, outs, target):
    """Samples and channels over threads, rows as they come."""
    (y,) = outs
    n, c, *_ = s[y].op.axis
    s[y].parallel(s[y].fuse(n, c))


def model() -> onnx.ModelProto:
    """conv -> batch norm -> relu -> ChannelLengthNorm, as an exporter of that vendor would write it."""
    rng = np.random.default_rng(0)
    names = {
        "w": rng.normal(size=(6, 3, 3, 3)), "scale": rng.uniform(0.5, 2, 6), "bias": rng.normal(size=6),
        "mean": rng.normal(size=6), "var": rng.uniform(0.5, 2, 6),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["b"], name="norm0"),
        helper.make_node("Relu", ["b"], ["r"], name="relu0"),
        helper.make_node("ChannelLengthNorm", ["r"], ["y"], name="length0", domain="com.example", epsilon=1e-4),
    ]
    graph = helper.make_graph(
        nodes,
        "camera",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 9, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6, 9, 8])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in names.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def main() -> None:
    renorm.register(ChannelLengthNorm)
    x = np.random.default_rng(1).normal(size=(2, 3, 9, 8)).astype(np.float32)
    m = renorm.compile(model())
    print("kernels:", ", ".join(map(str, m.report.kernels)))
    y = m.run(x)[0]

    renorm.override("batch_norm", target="llvm", compute=whole_batch_norm, schedule=hand_schedule, fusion=OPAQUE)
    try:
        hand = renorm.compile(model(), keep=["batch_norm"])
    finally:
        renorm.override("batch_norm", target="llvm")  # back to renorm's own
    print("with an opaque batch norm:", ", ".join(map(str, hand.report.kernels)))
    for norm in hand.report.norms:
        print(" ", norm)
    z = hand.run(x)[0]
    error = float(np.abs(y - z).max() / np.abs(y).max())
    print(f"largest difference, relative to the largest output: {error:.1e}")
    assert error < 1e-5
    assert any(str(k) == "batch_norm" for k in hand.report.kernels)
    assert "whole_batch_norm" in hand.kernel("batch_norm").loops


if __name__ == "__main__":
    main()
