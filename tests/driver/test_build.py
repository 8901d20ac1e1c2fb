"""renorm.lower and renorm.build under TVM's names; the article's program as it stands, down to the compiled module."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.shared_files import article, between

import renorm
from renorm import te
from renorm.codegen.cuda import nvrtc
from renorm.driver.build import CudaModule
from renorm.runtime.gpu import driver
from renorm.tir import interpret


def test_program_of_the_article_runs_as_it_stands() -> None:
    seed = article("000")
    program = "\n".join(
        [
            "import renorm as tvm\nfrom renorm import te, topi\nimport numpy as np",
            between(seed, "def batch_norm(c", "    return X, Mean"),
            between(seed, "c = 32", "print(tvm.lower"),
            between(seed, "def get_bn_data(c, n, constructor", "    return data, mean"),
            between(seed, "data, mean, var, gamma, beta, out = get_bn_data(c, n, tvm.nd.array)", "mod(data"),
        ]
    )
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "<seed 000>", "exec"), names)
    listing = between(seed, "// attr [T_subtract]", "To execute it").splitlines()[:-1]
    words = [line.strip() for line in listing if line.strip()]
    assert [line.strip() for line in printed.getvalue().splitlines() if line.strip()] == words
    data, mean, var, gamma, beta = (
        names[k].asnumpy().astype(np.float64) for k in ("data", "mean", "var", "gamma", "beta")
    )
    expected = (data - mean) / np.sqrt(var + 1e-5) * gamma + beta
    np.testing.assert_allclose(names["out"].asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_module_takes_arrays_of_several_kinds() -> None:
    a = te.placeholder((5, 7), name="A")
    b = te.compute((7, 5), lambda i, j: a[j, i] * 2.0, name="B")
    module = renorm.build(te.create_schedule(b.op), [a, b])
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    out = np.zeros((7, 5), np.float32)
    module(x, out)
    np.testing.assert_array_equal(out, x.T * 2)
    held = renorm.nd.array(np.zeros((7, 5), np.float32))
    module(renorm.nd.array(x), held)
    np.testing.assert_array_equal(held.numpy(), x.T * 2)


def test_wrong_arrays_are_all_named() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="B")
    module = renorm.build(te.create_schedule(b.op), [a, b])
    with pytest.raises(renorm.errors.InvalidInput, match="takes 2 arrays, not 1"):
        module(np.zeros(4, np.float32))
    with pytest.raises(renorm.errors.InvalidInput, match=r"(?s)A.*float64"):
        module(np.zeros(4), np.zeros(4, np.float32))


def test_sources() -> None:
    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: te.exp(a[i]), name="B")
    s = te.create_schedule(b.op)
    _, lane = s[b].split(b.op.axis[0], factor=8)
    s[b].vectorize(lane)
    module = renorm.build(s, [a, b])
    assert "define" in module.get_source()
    assert "vectorized" in module.get_source("loops")
    assert "phase0" in module.get_source("asm")
    with pytest.raises(renorm.errors.InvalidInput, match="known: ll, asm, loops"):
        module.get_source("ptx")


def tiled_product(n: int, m: int, k: int):
    """C = A B on a GPU: tiles of A and B in shared memory, 4 x 4 threads a block."""
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    s = te.create_schedule(c.op)
    by, ty = s[c].split(c.op.axis[0], factor=4)
    bx, tx = s[c].split(c.op.axis[1], factor=4)
    s[c].reorder(by, bx, ty, tx)
    for axis, name in ((by, "blockIdx.y"), (bx, "blockIdx.x")):
        s[c].bind(axis, te.thread_axis(name))
    s[c].bind(ty, te.thread_axis((0, 4), "threadIdx.y"))
    s[c].bind(tx, te.thread_axis((0, 4), "threadIdx.x"))
    return s, [a, b, c]


@pytest.mark.parametrize("shape", [(8, 8, 8), (5, 7, 3)])
def test_cuda_source_and_its_loops(shape, tmp_path: Path) -> None:
    s, args = tiled_product(*shape)
    gpu = renorm.cuda(0).exist and nvrtc.identity() != ""
    built = renorm.build(s, args, target=f"cuda -arch={driver.device(0).arch if gpu else 'sm_90'}")
    assert isinstance(built, CudaModule)
    source = built.imported_modules[0].get_source()
    assert source.count("__global__") == 1
    (launch,) = built.generated.launches
    assert launch.grid == (-(-shape[1] // 4), -(-shape[0] // 4), 1)
    assert launch.block == (4, 4, 1)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in args]
    interpret.run(te.lower(s, args), arrays)
    np.testing.assert_allclose(arrays[2], arrays[0].astype(np.float64) @ arrays[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(renorm.errors.InvalidInput, match="known: cu"):
        built.get_source("ll")
    if gpu:
        fresh = [*arrays[:2], np.full_like(arrays[2], np.nan)]
        built(*fresh)
        np.testing.assert_allclose(fresh[2], arrays[2], rtol=1e-5, atol=1e-5)
    else:
        evaluator = built.time_evaluator(built.entry_name, number=1)
        for call in (lambda: built(*arrays), lambda: evaluator(*arrays)):
            with pytest.raises(renorm.errors.InvalidTarget, match=r"no NVIDIA GPU|renorm\[cuda\]"):
                call()
    if shutil.which("nvcc"):
        assert_compiles(source, tmp_path)


def assert_compiles(source: str, folder: Path) -> None:
    """CUDA's own compiler takes it."""
    (folder / "kernel.cu").write_text(source)
    call = ["nvcc", "-arch=sm_90", "-cubin", "-o", str(folder / "kernel.cubin"), str(folder / "kernel.cu")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_cuda_takes_every_form(dtype: str, tmp_path: Path) -> None:
    x = te.placeholder((40, 12), dtype=dtype, name="X")
    functions = [te.exp, te.tanh, te.sigmoid, te.sqrt, te.erf] if dtype.startswith("float") else []

    def element(i, j):
        wide = x[i, j].astype("float32") if dtype == "float16" else x[i, j]
        value = te.if_then_else(wide > 1, wide, 1) + wide % 3 if dtype == "int32" else wide * 2.0
        for f in functions:
            value = f(value)
        value = te.if_then_else(te.all(i > 2, j < 9), value, te.const(0, value.dtype))
        return value.astype(dtype)

    y = te.compute((40, 12), element, name="Y")
    s = te.create_schedule(y.op)
    whole = s[y].fuse(*y.op.axis)
    block, thread = s[y].split(whole, factor=64)
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis("threadIdx.x"))
    assert_compiles(renorm.build(s, [x, y], target="cuda -arch=sm_90").get_source(), tmp_path)


def test_unbound_stage_is_refused_for_a_gpu() -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="forgotten")
    with pytest.raises(renorm.errors.InvalidLoops, match="forgotten"):
        renorm.build(te.create_schedule(b.op), [a, b], target="cuda -arch=sm_90")


def test_other_targets() -> None:
    a = te.placeholder((32,), name="A")
    b = te.compute((32,), lambda i: a[i] * a[i], name="B")
    s = te.create_schedule(b.op)
    built = renorm.build(s, [a, b], target="llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
    assert "fmul" in built.get_source()
    with pytest.raises(renorm.errors.InvalidTarget):
        built(np.zeros(32, np.float32), np.zeros(32, np.float32))
    with pytest.raises(renorm.errors.InvalidTarget, match="known: "):
        renorm.build(s, [a, b], target="vulkan")


def test_arguments_of_one_name_keep_their_shapes() -> None:
    a, b = te.placeholder((3, 4)), te.placeholder((4,))
    c = te.compute((3, 4), lambda i, j: a[i, j] + b[j])
    module = renorm.build(te.create_schedule(c.op), [a, b, c])
    x, y, out = np.ones((3, 4), np.float32), np.arange(4, dtype=np.float32), np.zeros((3, 4), np.float32)
    module(x, y, out)
    np.testing.assert_array_equal(out, x + y)
    with pytest.raises(renorm.errors.InvalidInput, match=r"expected float32\[4\]"):
        module(x, x, out)


def test_lowered_functions_keep_shapes() -> None:
    a = te.placeholder((3, 4), name="A")
    b = te.compute((3, 4), lambda i, j: a[i, j] * 2.0, name="B")
    s = te.create_schedule(b.op)
    module = renorm.build(renorm.lower(s, [a, b]))
    out = np.zeros((3, 4), np.float32)
    module(np.ones((3, 4), np.float32), out)
    assert (out == 2).all()
    for wrong in (np.ones(12, np.float32), np.ones((4, 3), np.float32), np.ones((3, 4))):
        with pytest.raises(renorm.errors.InvalidInput, match=r"A"):
            module(wrong, out)
