"""Graphs of TensorFlow by way of tf2onnx, as docs/keras.md says: in an environment of its own (scripts/tensorflow)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import renorm

PYTHON = Path(__file__).parents[2] / "build" / "tensorflow" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="TensorFlow is not there: scripts/tensorflow"),
]

# The first is conv2d_transpose and FusedBatchNormV3 of "Fold Batch Normalization in Transposed Convolution": ones over
# 1 2 3 4, normalized by the mean and variance of the result. The second has random numbers, strides and channels.
PROGRAM = """
import numpy as np
import tensorflow as tf

def fused(x, w, shape, stride, padding, scale, offset, mean, variance, epsilon):
    y = tf.compat.v1.nn.conv2d_transpose(x, w, output_shape=shape, strides=[1, stride, stride, 1], padding=padding)
    held = (tf.constant(v, tf.float32) for v in (scale, offset, mean, variance))
    return tf.raw_ops.FusedBatchNormV3(
        **dict(zip(("x", "scale", "offset", "mean", "variance"), (y, *held))), epsilon=epsilon, is_training=False
    )[0]

images, kernel = np.arange(1.0, 5).reshape(1, 2, 2, 1).astype(np.float32), tf.ones((3, 3, 1, 1))
y = tf.compat.v1.nn.conv2d_transpose(images, kernel, (1, 4, 4, 1), strides=[1, 1, 1, 1], padding="VALID").numpy()
with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
    x = tf.compat.v1.placeholder(tf.float32, (1, 2, 2, 1), name="x")
    given = (1, 4, 4, 1), 1, "VALID", [1.05], [0.015], [np.mean(y)], [np.var(y)], 0.0
    result = tf.identity(fused(x, tf.ones((3, 3, 1, 1)), *given), name="y")
    results = session.run(result, {x: images})
open("frozen.pb", "wb").write(graph.as_graph_def().SerializeToString())
np.savez("frozen.npz", x=images, y=results)

draw = np.random.default_rng(0)
class Net(tf.Module):
    def __init__(self):
        self.w = tf.Variable(draw.normal(size=(3, 3, 6, 3)).astype(np.float32))
        self.held = [draw.uniform(0.5, 1.5, 6).astype(np.float32) for _ in range(4)]

    @tf.function(input_signature=[tf.TensorSpec((None, 5, 4, 3), tf.float32)])
    def __call__(self, x):
        shape = tf.stack([tf.shape(x)[0], 10, 8, 6])
        return {"y": tf.nn.relu(fused(x, self.w, shape, 2, "SAME", *self.held, 1e-3))}

net, images = Net(), draw.normal(size=(2, 5, 4, 3)).astype(np.float32)
tf.saved_model.save(net, "saved", signatures=net.__call__.get_concrete_function())
np.savez("saved.npz", x=images, y=net(images)["y"].numpy())
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("frozen", ["--graphdef", "frozen.pb", "--inputs", "x:0", "--outputs", "y:0"]),
        ("saved", ["--saved-model", "saved"]),
    ],
)
def test_batch_norms_fold_into_transposed_convolutions(name: str, options: list[str], tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KERAS"))}
    convert = ["-m", "tf2onnx.convert", *options, "--output", f"{name}.onnx"]
    for arguments in (["-c", PROGRAM], convert):
        made = subprocess.run([PYTHON, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    m = renorm.compile(tmp_path / f"{name}.onnx")
    with np.load(tmp_path / f"{name}.npz") as arrays:
        (found,) = m.run(arrays["x"])
        np.testing.assert_allclose(found, arrays["y"], rtol=1e-5, atol=1e-5)
    (norm,) = m.report.norms
    assert (norm.kind, norm.fate) == ("batch_norm", "folded")
