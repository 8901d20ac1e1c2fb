"""Cubins of CUDA C by NVRTC, which needs no GPU: architectures, what kernels take, errors."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import renorm
from renorm import te
from renorm.codegen.cuda import nvrtc
from renorm.core.errors import InternalError, InvalidTarget

pytestmark = pytest.mark.skipif(not nvrtc.identity(), reason="there is no NVRTC")

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")

# many: 200 accumulators are more than the 64 registers that 1024 threads leave each; local: an array that data index
# lies on the stack; block: 24 floats of shared memory
TAKING = """
extern "C" __global__ void __launch_bounds__(1024) many(float* y, const float* x) {
  float sums[200];
  #pragma unroll
  for (int i = 0; i < 200; i++) sums[i] = x[i * 7];
  for (int k = 0; k < 1000; k++) {
    #pragma unroll
    for (int i = 0; i < 200; i++) sums[i] = sums[i] * sums[(i + 1) % 200] + x[k];
  }
  #pragma unroll
  for (int i = 0; i < 200; i++) y[i * 5 + threadIdx.x] = sums[i];
}
extern "C" __global__ void __launch_bounds__(32) local(float* y, const int* x) {
  float kept[300];
  for (int i = 0; i < 300; i++) kept[i] = y[i];
  for (int i = 0; i < 10; i++) kept[x[i]] += 1.0f;
  y[threadIdx.x] = kept[x[threadIdx.x]];
}
extern "C" __global__ void __launch_bounds__(32) block(float* y) {
  __shared__ float shared[24];
  shared[threadIdx.x % 24] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = shared[(threadIdx.x * 5) % 24];
}
"""


def _generated(dtype: str) -> str:
    a: Any = te.placeholder((1000,), dtype, "a")
    b: Any = te.compute((1000,), lambda i: te.tanh(a[i]) * te.const(2.0, dtype), "b")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], 64)
    s[b].bind(outer, te.thread_axis("blockIdx.x"))
    s[b].bind(inner, te.thread_axis("threadIdx.x"))
    return renorm.build(s, [a, b], target="cuda -arch=sm_90").get_source()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_generated_text_is_taken(dtype: str) -> None:
    text = _generated(dtype)
    assert ("#include" in text) == (dtype == "float16")
    cubins = [nvrtc.assemble(text, arch) for arch in ARCHITECTURES]
    assert all(cubin.startswith(b"\x7fELF") and b"main_kernel0" in cubin for cubin in cubins)
    assert len(set(cubins)) == len(ARCHITECTURES)
    assert nvrtc.assemble(text, "sm_90") == cubins[2], "equal texts have equal cubins, which caches count on"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_kernels_take(arch: str) -> None:
    many, local, block = nvrtc.resources(TAKING, arch)
    assert (many.name, local.name, block.name) == ("many", "local", "block")
    assert 0 < many.registers <= 64
    assert many.spill_stores > 4 * 100
    assert many.spill_loads > 4 * 100
    assert local.stack >= 4 * 300
    assert (local.spill_stores, local.spill_loads, local.shared) == (0, 0, 0)
    # the first KiB of a block's shared memory is the system's from sm_90 on, and may be counted
    assert block.shared - 4 * 24 in (0, 1024)
    assert (block.stack, block.spill_stores) == (0, 0)


def test_what_a_kernel_that_calls_takes() -> None:
    text = """
    __device__ __noinline__ float called(const float* x, int i) { float a[50]; for (int k = 0; k < 50; k++) a[k] = x[k];
      a[i] = 2.0f; return a[(int)x[i]]; }
    extern "C" __global__ void calls(float* y) { y[threadIdx.x] = called(y, threadIdx.x); }
    """
    (found,) = nvrtc.resources(text, "sm_90")
    assert found.name == "calls"
    assert found.stack >= 4 * 50, "what is told of the function after it, where its frame is not, is not the kernel's"


def test_threads_compile_side_by_side() -> None:
    texts = [_generated("float32").replace("2.0f", f"{i}.5f") for i in range(12)]
    alone = [nvrtc.assemble(text, "sm_80") for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: nvrtc.assemble(text, "sm_80"), texts)) == alone
    assert len(set(alone)) == 12


@pytest.mark.parametrize("arch", ["sm_20", "sm_70", "sm_9999", "compute_90", "", "sm_", "host", "sm_90 -G", "--help"])
def test_no_such_architecture(arch: str) -> None:
    with pytest.raises(InvalidTarget, match="makes no code for") as error:
        nvrtc.assemble(TAKING, arch)
    assert "sm_90, " in str(error.value)
    assert "-arch=" in str(error.value)


def test_a_text_that_is_wrong() -> None:
    with pytest.raises(InternalError) as error:
        nvrtc.assemble('extern "C" __global__ void f(float* y) {\n  y[0] = absent;\n}', "sm_90")
    assert 'kernels.cu(2): error: identifier "absent" is undefined' in str(error.value)
    with pytest.raises(InternalError, match=r"absent\.h"):
        nvrtc.assemble("#include <absent.h>", "sm_90")


def test_without_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "_headers", lambda: ())
    nvrtc.assemble(_generated("float32"), "sm_90")
    with pytest.raises(InvalidTarget, match=r"(?s)headers of CUDA.*pip install 'renorm\[cuda\]'"):
        nvrtc.assemble("#include <absent.h>", "sm_90")


def test_headers_of_a_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_header_directory", lambda _: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert nvrtc._headers.__wrapped__() == (str(tmp_path / "include"),)


def test_identity() -> None:
    assert nvrtc.identity().startswith(("nvidia-cuda-nvrtc 1", "NVRTC 1"))


# a finder in front of all others: nothing of `cuda` is installed
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cuda":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
import renorm
from renorm.codegen.cuda import nvrtc
assert nvrtc.identity() == ""
assert not renorm.cuda(0).exist
try:
    nvrtc.assemble("", "sm_90")
except renorm.errors.InvalidTarget as error:
    print(error)
"""

# identity and import ask which compiler there is, and load none
WARM = """
import sys
import renorm
from renorm.codegen.cuda import nvrtc
import renorm.runtime.gpu.driver
print(renorm.cuda, nvrtc.assemble)
assert not [name for name in sys.modules if name.split(".")[0] == "cuda"]
"""


def test_nothing_is_imported_before_it_is_needed() -> None:
    subprocess.run([sys.executable, "-c", WARM], check=True)


def test_without_bindings() -> None:
    said = subprocess.run([sys.executable, "-c", WITHOUT], check=True, capture_output=True, text=True).stdout
    assert "NVRTC, which is not here" in said
    assert "pip install 'renorm[cuda]'" in said
