"""Texts of CUDA C that tests write by hand, and ways to run them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.gpu.host_device import run_text

from renorm.codegen.cuda.source import Launch
from renorm.tir.nodes import Buffer

HEAD = 'extern "C" __global__ void __launch_bounds__(64) f(const float* __restrict__ a, float* __restrict__ b) {'


def launch(text: str, *arrays: np.ndarray[Any, Any], grid: int = 1, block: int = 64, check_races: bool = True) -> None:
    """Run kernel `f` of a text on arrays, the last of which it writes."""
    params = [Buffer(f"p{i}", str(a.dtype), a.size) for i, a in enumerate(arrays)]
    launches = [Launch("f", (grid, 1, 1), (block, 1, 1), tuple(params))]
    run_text(text, launches, params, arrays, check_races=check_races)


def kernel(body: str, *arrays: np.ndarray[Any, Any], **options: Any) -> None:
    """Run the body of a kernel of 64 threads from `a` to `b`, in lines from 2 on."""
    launch(f"{HEAD}\nconst int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;\n{body}\n}}\n", *arrays, **options)


def numbers(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.random.default_rng(n).normal(size=n).astype(np.float32), np.zeros(n, np.float32)
