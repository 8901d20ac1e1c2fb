"""What runs under NVIDIA's sanitizers: samples of ops and a small network, in a process without PyTorch.

compute-sanitizer --tool memcheck python -m benchmarks.gpu.sanitized "cuda -arch=sm_90" 30
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import renorm
from benchmarks.gpu.deviation import TOLERANCE, largest
from benchmarks.gpu.ops import judged
from benchmarks.gpu.place import Place
from renorm import ops
from renorm.graph import interpret
from renorm.graph.ir import Graph

OPS = (
    *("matmul", "conv", "softmax", "layer_norm", "instance_norm", "group_norm", "reduce_sum", "max_pool", "transpose"),
    *("conv_transpose", "gemm", "rms_norm", "batch_norm_training", "average_pool", "arg_max", "cum_sum", "top_k"),
    *("winograd_conv", "attention", "add", "concat", "gather", "resize"),
)


def network(place: Place) -> float:
    """Run a small network whose sizes fill no tile, and return how far it is from its interpreter in float64."""
    rng = np.random.default_rng(0)
    graph: Any = Graph("sanitized")

    def constant(*shape: int) -> Any:
        return graph.constant(rng.uniform(0.5, 1.5, shape).astype(np.float32), f"c{len(graph.constants)}")

    x = graph.input("x", "float32", (2, 5, 19, 23))
    y: Any = ops.conv(x, constant(37, 5, 3, 3), pads=(1, 1, 1, 1))
    y = ops.relu(ops.instance_norm(y, constant(37), constant(37)))
    y = ops.relu(ops.conv(y, constant(33, 37, 1, 1), constant(33), strides=(2, 2)))
    y = ops.reshape(ops.conv(y, constant(12, 33, 3, 3)), np.array([2, -1], np.int64))
    y = ops.softmax(ops.layer_norm(y, constant(y.shape[1]), constant(y.shape[1])))
    graph.outputs = [y]
    array = rng.standard_normal((2, 5, 19, 23)).astype(np.float32)
    module: Any = renorm.compile(graph, target=place.target)
    (found,), wanted = module.run(array), interpret.evaluate(graph, [array])[y]
    return largest([found], [wanted])


def main(target: str, seconds: float) -> None:
    """Run the network, then as many ops as fit in the seconds, and say what came of them."""
    place, until, done = Place(target), time.monotonic() + seconds, 0
    place.prepare()
    error = network(place)
    off = [] if error <= TOLERANCE else ["network"]
    for name in OPS:
        if time.monotonic() > until:
            break
        done += 1
        answer = judged(place, name, 0)
        off += [] if answer.get("outcome") == "right" else [name]
    print(f"network off by {error:.1e}; {done} ops, not right: {', '.join(off) or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
