"""Instance norm from an ONNX file to schedules on a CPU and a GPU: what took its author a frontend, an op
registration in C++, a compute, a schedule, and a hunt through graph fusion.

Where the article errs:
- its variance is E[x^2] - E[x]^2, which loses all digits once the mean is large against the deviation (shown below);
- it says that batch norm divides by moving_var; it divides by sqrt(moving_var + epsilon);
- it blames fusion for MatMul + ReLU and turns MatMul into Gemm in the exporter; the two are equal at rank 2 only,
and the fault was a
  stage left without threads, which a verifier can name before any code exists (shown below);
- its figures (se_resnet101_ibn_a at batch 8 on a GPU: TVM 429 MB and 37 ms, ONNX 2145 MB and 50 ms) compare memory
that a
  framework reserves with memory that a compiler plans. Ours here are of this block on this CPU.
"""

from __future__ import annotations

import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import renorm
from renorm import te
from renorm.tir import interpret

BATCH, CHANNELS, HEIGHT, WIDTH, EPSILON = 3, 10, 6, 5, 1e-5


def instance_norm_model(shape: tuple[int, ...]) -> onnx.ModelProto:
    """One InstanceNormalization node with random scale and bias."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.normal(size=shape[1]).astype(np.float32), name) for name in ("scale", "bias")
    ]
    node = helper.make_node("InstanceNormalization", ["x", "scale", "bias"], ["y"], name="in0", epsilon=EPSILON)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([node], "instance_norm", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def oracle(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Instance norm in float64."""
    x = x.astype(np.float64)
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    return (x - mean) / np.sqrt(var + EPSILON) * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)


def article_compute(data: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> tuple[te.Tensor, ...]:
    """The article's formula in our words: moments from E[x] and E[x^2]. Gives mean, mean of squares, variance,
    result.
    """
    n, c, h, w = data.shape
    area = float(h * w)

    def average(f, name):
        rh, rw = te.reduce_axis((0, h), name="rh"), te.reduce_axis((0, w), name="rw")
        return te.compute((n, c), lambda b, k: te.sum(f(data[b, k, rh, rw]) / area, axis=[rh, rw]), name=name)

    mean = average(lambda v: v, "mean")
    squares = average(lambda v: te.power(v, 2), "mean_2")
    var = te.compute((n, c), lambda b, k: squares[b, k] - te.power(mean[b, k], 2), name="var")
    y = te.compute(
        data.shape,
        lambda b, k, i, j: (data[b, k, i, j] - mean[b, k]) / te.sqrt(var[b, k] + EPSILON) * gamma[k] + beta[k],
        name="out",
    )
    return mean, squares, var, y


def bind_to_blocks(s: te.Schedule, t: te.Tensor, threads: int = 8) -> None:
    """Batch and channel over blocks of 8 x 8 threads, as the article does for every stage."""
    by, ty = s[t].split(s[t].op.axis[0], factor=threads)
    bx, tx = s[t].split(s[t].op.axis[1], factor=threads)
    s[t].reorder(by, bx, ty, tx)
    for axis, name in ((ty, "threadIdx.y"), (tx, "threadIdx.x"), (by, "blockIdx.y"), (bx, "blockIdx.x")):
        s[t].bind(axis, te.thread_axis((0, threads), name) if "thread" in name else te.thread_axis(name))


def from_onnx_to_the_cpu() -> None:
    """The whole road in one call, against float64; and the article's variance at a large mean."""
    shape = (8, 64, 56, 56)
    model = instance_norm_model(shape)
    scale, bias = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    m = renorm.compile(model)
    rng = np.random.default_rng(1)
    for title, offset in (("mean 0", 0.0), ("mean 80000", 80000.0)):
        x = (rng.normal(size=shape) + offset).astype(np.float32)
        expected = oracle(x, scale, bias)
        ours = np.abs(m.run(x)[0] - expected).max() / np.abs(expected).max()
        mean, squares = x.mean((2, 3), keepdims=True), np.square(x).mean((2, 3), keepdims=True)
        with np.errstate(invalid="ignore"):
            naive = (x - mean) / np.sqrt(squares - mean * mean + np.float32(EPSILON)) * scale.reshape(-1, 1, 1)
        naive = np.abs(naive + bias.reshape(-1, 1, 1) - expected).max() / np.abs(expected).max()
        print(f"{title:11} error of renorm {ours:.1e}, of E[x^2] - E[x]^2 in float32 {naive:.1e}")
        assert ours < 1e-2 if offset else ours < 1e-5
    out = np.empty(shape, np.float32)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        m.run(x, out=[out])
        times.append(time.perf_counter() - start)
    memory = m.report.memory
    print(f"memory: weights {memory.weights} B, arena {memory.arena} B beside input and output")
    print(
        f"{m.report.norms[0]}\n"
        f"kernel {m.report.kernels[0]}: {1e3 * sorted(times)[7]:.2f} ms, {2 * x.nbytes / 1e6:.0f} MB moved"
    )


def the_cuda_schedule() -> None:
    """The article's schedule at 3 samples and 10 channels, neither of which fills a block of 8 x 8 threads."""
    data = te.placeholder((BATCH, CHANNELS, HEIGHT, WIDTH), name="data")
    gamma, beta = te.placeholder((CHANNELS,), name="gamma"), te.placeholder((CHANNELS,), name="beta")
    mean, squares, var, y = article_compute(data, gamma, beta)
    s = te.create_schedule(y.op)
    for t in (mean, squares, var, y):
        bind_to_blocks(s, t)
    args = [data, gamma, beta, y]
    built = renorm.build(s, args, target="cuda -arch=sm_90")
    source = built.imported_modules[0].get_source()
    print(f"CUDA C: {source.count('__global__')} launches, {len(source.splitlines())} lines; the last one:")
    print(source[source.rindex("extern") :])

    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in args]
    interpret.run(te.lower(s, args), arrays)
    expected = oracle(arrays[0], arrays[1].astype(np.float64), arrays[2].astype(np.float64))
    error = np.abs(arrays[3] - expected).max() / np.abs(expected).max()
    print(f"run by the interpreter of blocks and threads: error {error:.1e}")
    assert error < 1e-5

    unbound = te.create_schedule(y.op)
    for t in (mean, squares, y):  # var is forgotten: on a GPU the host would run it on device memory
        bind_to_blocks(unbound, t)
    try:
        renorm.build(unbound, args, target="cuda -arch=sm_90")
    except renorm.errors.InvalidLoops as problem:
        print("--- a stage without threads is refused before there is any code:")
        print(problem)
    else:
        raise AssertionError("an unbound stage must be refused")


def squeeze_excite_model(exporter: str) -> onnx.ModelProto:
    """The two layers of an SE block as exporters wrote them: "transpose": MatMul with a Transpose node in front of
    each weight; "matmul": with weights transposed already; "gemm": the article's way out, Gemm with a zero C, beta 0
    and `broadcast`."""
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 16), (16, 4))]
    nodes, constants, value = [], [], "x"
    for i, (w, activation) in enumerate(zip(weights, ("Relu", "Sigmoid"))):
        name = f"w{i}"
        constants.append(numpy_helper.from_array(w if exporter == "transpose" else w.T.copy(), name))
        if exporter == "transpose":
            nodes.append(helper.make_node("Transpose", [name], [f"t{i}"], perm=[1, 0]))
            name = f"t{i}"
        if exporter == "gemm":
            constants.append(numpy_helper.from_array(np.zeros(w.shape[0], np.float32), f"c{i}"))
            nodes.append(helper.make_node("Gemm", [value, name, f"c{i}"], [f"m{i}"], beta=0.0, alpha=1.0, broadcast=1))
        else:
            nodes.append(helper.make_node("MatMul", [value, name], [f"m{i}"]))
        value = f"y{i}"
        nodes.append(helper.make_node(activation, [f"m{i}"], [value]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 16)) for n in ("x", value)]
    graph = helper.make_graph(nodes, "squeeze_excite", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)


def the_squeeze_excite_block() -> None:
    """What the hunt of the article was about: three ways to write one block give the same kernels and the same bits."""
    x = np.random.default_rng(4).normal(size=(2, 16)).astype(np.float32)
    results = []
    for exporter in ("transpose", "matmul", "gemm"):
        m = renorm.compile(squeeze_excite_model(exporter))
        results.append(([str(k) for k in m.report.kernels], m.run(x)[0].tobytes()))
        print(f"SE block written with {exporter:9}: {', '.join(results[-1][0])}")
    assert results[0] == results[1] == results[2]


def main() -> None:
    print("the article: se_resnet101_ibn_a, batch 8, on a GPU: TVM 429 MB and 37 ms, ONNX (Caffe2) 2145 MB and 50 ms")
    print("ours: one instance norm of that network at batch 8, on this CPU")
    from_onnx_to_the_cpu()
    the_squeeze_excite_block()
    the_cuda_schedule()


if __name__ == "__main__":
    main()
