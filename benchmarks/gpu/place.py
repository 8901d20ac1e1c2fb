"""The place of a measurement: a GPU, or the CPU on small extents, which proves the measuring."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.deviation import TOLERANCE
from benchmarks.machine import ROOT
from renorm.core.tolerance import tolerance

EMULATED = "host"  # the architecture of tests/gpu/host_device.py: CUDA C that the CPU runs


@dataclass(frozen=True)
class Place:
    """target: what renorm compiles for. models: a folder of trained networks, or "". precision: of renorm's networks,
    and PyTorch's, of which it is TF32 or autocast."""

    target: str
    models: str = ""
    precision: str = "fast"

    @property
    def arch(self) -> str:
        """Return the architecture that the target names, or ""."""
        return next((word.removeprefix("-arch=") for word in self.target.split() if word.startswith("-arch=")), "")

    @property
    def is_gpu(self) -> bool:
        """Return whether code runs on an NVIDIA GPU."""
        return self.target.startswith("cuda") and self.arch != EMULATED

    @property
    def device(self) -> str:
        """Return PyTorch's name of the device."""
        return "cuda" if self.is_gpu else "cpu"

    @property
    def options(self) -> dict[str, Any]:
        """Return what renorm compiles with."""
        return {"target": self.target, "precision": self.precision}

    @property
    def tolerance(self) -> float:
        """Return how far outputs may be off, relative to the largest."""
        return TOLERANCE if self.precision in ("fast", "exact") else tolerance(self.precision)

    def prepare(self) -> None:
        """Make this process ready to compile for the target."""
        if str(ROOT) not in sys.path:
            sys.path.insert(0, str(ROOT))
        if self.arch == EMULATED:
            importlib.import_module("tests.gpu.host_device").register()

    @property
    def files(self) -> list[Path]:
        """Return the trained networks."""
        kinds = (".onnx", ".tflite")
        return sorted(p for p in Path(self.models).iterdir() if p.suffix in kinds) if self.models else []


def place(target: str, models: str = "", precision: str = "fast") -> Place:
    """Return where a target's code runs; "cuda" alone means the GPU that is there. Raises OSError, CalledProcessError
    without one."""
    if target == "cuda":
        target = f"cuda -arch=sm_{_capability()}"
    return Place(target, models, precision)


def nvidia_smi(what: str) -> str:
    """Return what the driver's tool tells of the first GPU. Raises OSError, CalledProcessError without one."""
    return _first_line(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"])


def _capability() -> str:
    try:
        told = nvidia_smi("compute_cap")
    except (OSError, subprocess.CalledProcessError):  # PyTorch asks the driver itself: in a process of its own
        ask = "import torch; print('{}.{}'.format(*torch.cuda.get_device_capability()))"
        told = _first_line([sys.executable, "-c", ask])
    return told.replace(".", "")


def _first_line(call: list[str]) -> str:
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.splitlines()[0].strip()
