"""The device, and what it reaches: the limits beside which everything else is shown."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.place import Place, nvidia_smi
from benchmarks.gpu.timing import settle, side_by_side

TOLD = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "ecc.mode.current")


def facts(place: Place) -> dict[str, Any]:
    """Return what the device is; "copy", bytes per second that copying 1 GB reads and writes; "matmul", operations per
    second of PyTorch's float32 product of 8192x8192, in TF32 where that is measured."""
    settle(place)
    n, size = (1 << 28, 8192) if place.is_gpu else (1 << 20, 256)
    x, a = torch.randn(n, device=place.device), torch.randn(size, size, device=place.device)
    y, c = torch.empty_like(x), torch.empty_like(a)
    times = side_by_side(place, {"copy": lambda: y.copy_(x), "matmul": lambda: torch.mm(a, a, out=c)}, 1.0)
    limits = {"copy": 8 * n / median(times["copy"]), "matmul": 2 * size**3 / median(times["matmul"])}
    return {**_device(place), "torch": torch.__version__, **limits}


def _device(place: Place) -> dict[str, Any]:
    if not place.is_gpu:
        return {"device": "CPU"}
    about, told = torch.cuda.get_device_properties(0), dict[str, str]()
    with suppress(OSError, subprocess.CalledProcessError, IndexError):
        told.update(zip(TOLD, nvidia_smi(",".join(TOLD)).split(", ")))
    return {
        "device": about.name,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "memory": about.total_memory,
        "l2": getattr(about, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **told,
    }
