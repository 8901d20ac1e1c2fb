"""What the language of host_cuda.h means on the CPU: conversions, shuffles, atomics, vectors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import run_text
from tests.gpu.host_texts import HEAD, kernel, launch, numbers

from renorm.codegen.cuda.source import Launch
from renorm.tir.nodes import Buffer

pytestmark = needs_compiler


@pytest.mark.parametrize(
    ("type_", "dtype", "widen", "narrow"),
    [
        ("__half", np.float16, "__half2float", "__float2half_rn"),
        ("__nv_bfloat16", ml_dtypes.bfloat16, "__bfloat162float", "__float2bfloat16_rn"),
    ],
)
def test_conversions_are_exact(type_: str, dtype: Any, widen: str, narrow: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    text = f"""
extern "C" __global__ void __launch_bounds__(64) f(const {type_}* a, const float* x, float* wide, {type_}* rounded) {{
  const int i = blockIdx.x * 64 + threadIdx.x;
  wide[i] = {widen}(a[i]);
  rounded[i] = {narrow}(x[i]);
}}
"""
    # between neighbours, on the way to each by halves and by one bit more or less than that
    near = every.astype(np.float32)
    step = np.random.default_rng(0).integers(0, 1 << 17, near.shape).astype(np.uint32)
    ties = np.where(np.arange(near.size) % 2, 1 << 12 if dtype is np.float16 else 1 << 15, step).astype(np.uint32)
    x = (near.view(np.uint32) + ties).view(np.float32)
    small = np.random.default_rng(1).uniform(-1, 1, 1 << 14).astype(np.float32) * np.float32(2.0**-14)
    x[: small.size] = small  # what becomes subnormal as float16
    wide, rounded = np.zeros(near.shape, np.float32), np.zeros(near.shape, dtype)
    params = [Buffer(n, d, near.size) for n, d in zip("axwr", (np.dtype(dtype).name, "float32", "float32"))]
    params.append(Buffer("r", np.dtype(dtype).name, near.size))
    run_text(text, [Launch("f", (1024, 1, 1), (64, 1, 1), tuple(params))], params, [every, x, wide, rounded])
    assert_same_numbers(wide, near)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(dtype)
    assert_same_numbers(rounded, want)


def assert_same_numbers(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Bit by bit, but for how a NaN is written."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    kept, bits = ~np.isnan(want), np.dtype(f"u{want.itemsize}")
    np.testing.assert_array_equal(got.view(bits)[kept], want.view(bits)[kept])


@pytest.mark.parametrize("threads", [64, 41])
def test_sum_by_shuffles(threads: int) -> None:
    """The last warp is not whole: no lane may read what is not there."""
    a, b = numbers(threads)
    body = """
float v = a[t];
for (int d = 16; d; d /= 2) {
  const float other = __shfl_down_sync(0xffffffffu, v, d);
  if (t % 32 + d < 32 && t + d < blockDim.x) v += other;
}
b[t] = __shfl_sync(0xffffffffu, v, 0);
"""
    kernel(body, a, b, block=threads)
    want = [a[t // 32 * 32 : t // 32 * 32 + 32].astype(np.float64).sum() for t in range(threads)]
    np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-5)


def test_shuffles() -> None:
    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    lanes = np.arange(64)
    kernel("b[t] = __shfl_xor_sync(0xffffffffu, a[t], 5);", a, b)
    np.testing.assert_array_equal(b, lanes ^ 5)
    kernel("b[t] = __shfl_up_sync(0xffffffffu, int(a[t]), 3);", a, b)
    np.testing.assert_array_equal(b, np.where(lanes % 32 < 3, lanes, lanes - 3))
    kernel("b[t] = __shfl_down_sync(0xffffffffu, double(a[t]), 3, 8);", a, b)
    np.testing.assert_array_equal(b, np.where(lanes % 8 > 4, lanes, lanes + 3))
    kernel("if (t % 32 < 16) b[t] = __shfl_sync(0xffffu, a[t], t + 1, 16); else b[t] = -1;", a, b)
    np.testing.assert_array_equal(b, np.where(lanes % 32 < 16, lanes // 16 * 16 + (lanes + 1) % 16, -1))


def test_atomics_and_vectors() -> None:
    a, b = numbers(256)
    kernel("const float4 v = ((const float4*)a)[t];\nb[t] = v.x + v.y + v.z + v.w;", a, b[:64])
    np.testing.assert_allclose(b[:64], a.reshape(-1, 4).astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)
    counts = np.zeros(3, np.int32)
    text = HEAD.replace("float* __restrict__ b", "int* b") + "\natomicAdd(&b[threadIdx.x % 3], 1); }\n"
    launch(text, a, counts, grid=4)
    np.testing.assert_array_equal(counts, [88, 84, 84])


def test_device_functions_may_wait() -> None:
    """Where a function holds the barrier, its kernels are found to wait."""
    a, b = numbers(64)
    text = "static __device__ float turn(float* s, float v, int t) { s[t] = v; __syncthreads(); return s[63 - t]; }\n\n"
    text += HEAD + "\n__shared__ float s[64];\nb[threadIdx.x] = turn(s, a[threadIdx.x], threadIdx.x);\n}\n"
    launch(text, a, b)
    np.testing.assert_array_equal(b, a[::-1])
