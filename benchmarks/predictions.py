"""Predicted beside measured time of every kernel of networks: what tir.predicted is worth.

Kernels run one after the other as in the network, on one thread; the fastest of some runs counts. Predictions are
scaled by one factor for all, the median of measured over predicted. For another target than this machine's CPU they are
those of its instructions with this machine's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import renorm
from benchmarks.run import FILES
from renorm.codegen.estimates import Estimates
from renorm.codegen.in_place import in_place
from renorm.codegen.phases import cut
from renorm.core.machine import Machine
from renorm.core.random_inputs import random_inputs
from renorm.driver.module import CompiledModule, KernelText
from renorm.runtime.profile import StepTime, profile
from renorm.targets import find
from renorm.tir.passes import prepare

NETWORKS = ("resnet50", "se_resnet101_ibn", "dcgan", "unet", "mobilenet_v2", "densenet121", "style_transfer")
_TURNS, _REPEATS = 3, 20


@dataclass(frozen=True)
class Kernel:
    """seconds: the fastest. predicted: in seconds too, as it stands."""

    network: str
    name: str
    seconds: float
    predicted: float
    bound: str


def measure(networks: Sequence[str], target: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return each kernel of the networks, and how well predictions agree."""
    kernels = list[Kernel]()
    for network in networks:
        found = list(_of(network, target))
        kernels += found
        tell(f"{network}: {sum(k.seconds for k in found) * 1e3:.2f} ms, {len(found)} kernels")
    times, predicted = (np.array([getattr(k, what) for k in kernels]) for what in ("seconds", "predicted"))
    scale = float(np.median(times / predicted))
    errors = np.abs(predicted * scale / times - 1)
    return {
        "target": target,
        "kernels": [asdict(k) for k in kernels],
        "nanoseconds of a predicted one": scale,
        "rank correlation": float(np.corrcoef(_ranks(times), _ranks(predicted))[0, 1]),
        "median error": median(map(float, errors)),
        "ninth of ten errors": float(np.quantile(errors, 0.9)),
    }


def outliers(result: dict[str, Any], count: int) -> list[str]:
    """Return lines on kernels that are predicted worst, by what that is in microseconds."""
    scale = result["nanoseconds of a predicted one"]
    kernels = [Kernel(**k) for k in result["kernels"]]
    kernels.sort(key=lambda k: -abs(k.predicted * scale - k.seconds))
    return [
        f"{k.network} {k.name}: {k.seconds * 1e6:.0f} us, predicted {k.predicted * scale * 1e6:.0f} ({k.bound})"
        for k in kernels[:count]
    ]


def _of(network: str, target: str) -> Iterator[Kernel]:
    """Kernels that take no time that could be measured are left out."""
    file = Path(network) if network.endswith(".onnx") else FILES / f"{network}.onnx"
    module = renorm.compile(file, target=target, threads=1)
    assert isinstance(module, CompiledModule)
    inputs = list(random_inputs(module.inputs).values())
    turns = [profile(module, *inputs, repeats=_REPEATS) for _ in range(_TURNS)]
    machine, here = Machine.of(find(target).machine_target), Machine.of(find("llvm").machine_target)
    machine = replace(machine, caches=here.caches, memory=here.memory)
    is_far = not here.keeps(module.program.weight_bytes)
    for launch in zip(*turns, strict=True):
        steps: tuple[StepTime, ...] = launch
        text, seconds = module.kernel(steps[0].kernel), min(step.fastest for step in steps)
        if isinstance(text, KernelText) and seconds:
            loops = prepare(text.kernel)
            estimates = Estimates(loops, cut(loops)[0], in_place(text.kernel), machine)
            about = estimates.far if is_far else estimates.near
            yield Kernel(Path(network).stem, text.name, seconds, about.nanoseconds * 1e-9, about.bound)


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.argsort(np.argsort(values))
