"""A server's day: images come one by one and in batches, of all sizes. One compile serves them all.

Random requests go to one module of renorm and to one session of ONNX Runtime; every result is compared. A shape that
was never seen before costs a table of numbers, no compilation.

    python examples/any_shape.py --requests 60
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import renorm

RNG = np.random.default_rng(14)


def network(width: int = 32, blocks: int = 4) -> onnx.ModelProto:
    """A residual network with batch norm and random weights, for images of any size in batches of any size."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, value: np.ndarray[Any, Any]) -> str:
        weights.append(numpy_helper.from_array(value.astype("float32"), name))
        return name

    def conv_norm(x: str, name: str, inputs: int, stride: int = 1) -> str:
        w = constant(f"{name}_w", RNG.standard_normal((width, inputs, 3, 3)) / np.sqrt(9 * inputs))
        nodes.append(helper.make_node("Conv", [x, w], [f"{name}_c"], strides=[stride] * 2, pads=[1] * 4))
        norm = [RNG.uniform(0.5, 1.5, width), RNG.normal(0, 0.1, width), RNG.normal(0, 0.1, width)]
        given = [constant(f"{name}_{i}", v) for i, v in enumerate((*norm, RNG.uniform(0.5, 1.5, width)))]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}_c", *given], [name]))
        return name

    x = conv_norm("image", "stem", 3, stride=2)
    for i in range(blocks):
        y = conv_norm(x, f"a{i}", width)
        nodes.append(helper.make_node("Relu", [y], [f"{y}_r"]))
        y = conv_norm(f"{y}_r", f"b{i}", width)
        nodes.append(helper.make_node("Add", [x, y], [f"sum{i}"]))
        nodes.append(helper.make_node("Relu", [f"sum{i}"], [f"out{i}"]))
        x = f"out{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["features"]))
    graph = helper.make_graph(
        nodes,
        "any_shape",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "height", "width"])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def requests(count: int) -> Iterator[np.ndarray[Any, Any]]:
    for _ in range(count):
        shape = int(RNG.integers(1, 9)), 3, *map(int, RNG.integers(24, 129, 2))
        yield RNG.standard_normal(shape, "float32")


def milliseconds(run: Any) -> tuple[float, Any]:
    since = time.perf_counter()
    result = run()
    return 1e3 * (time.perf_counter() - since), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20)
    count = parser.parse_args().requests
    model = network()
    seconds, m = milliseconds(lambda: renorm.compile(model))
    print(f"compiled for all shapes in {seconds / 1e3:.1f} s")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    print(f"{'shape':>20} {'renorm':>8} {'again':>8} {'ONNX Runtime':>13}   milliseconds")
    totals = np.zeros(3)
    for x in requests(count):
        first, (y,) = milliseconds(lambda x=x: m.run(x))
        again, _ = milliseconds(lambda x=x: m.run(x))
        other, (expected,) = milliseconds(lambda x=x: session.run(None, {"image": x}))
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
        print(f"{x.shape!s:>20} {first:8.2f} {again:8.2f} {other:13.2f}")
        totals += first, again, other
    print(f"{'all':>20} {totals[0]:8.2f} {totals[1]:8.2f} {totals[2]:13.2f}")


if __name__ == "__main__":
    main()
