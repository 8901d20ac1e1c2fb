"""How long each kernel of a module takes on a GPU, launch by launch, and how fast the GPU copies its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from renorm.core.errors import OutOfMemory
from renorm.runtime.gpu.device import Device
from renorm.runtime.gpu.module import GpuModule
from renorm.runtime.gpu.times import LaunchTime, timer
from renorm.runtime.profile import Roofline, StepTime
from renorm.runtime.report import KernelRecord

_COPIED = 1 << 28  # bytes: 256 MiB, more than a cache of a GPU holds
_COPIES = 10


@dataclass(frozen=True)
class GpuStepTime(StepTime):
    """A kernel, or external code. launches: of which it consists; their times are added."""

    launches: tuple[LaunchTime, ...] = ()

    @property
    def is_external(self) -> bool:
        """Return whether code of the host runs it, whose copies are counted."""
        return any(not t.function for t in self.launches)

    def to_json(self, roofline: Roofline | None = None) -> dict[str, Any]:
        data = super().to_json(roofline)
        del data["predicted"], data["bound"]  # what CPUs are expected to take
        return data | {"launches": list(map(_json, self.launches))}


def _json(t: LaunchTime) -> dict[str, Any]:
    about = {name: getattr(t, name) for name in ("function", "grid", "block", "shared", "registers")}
    return about | {"seconds": t.median, "fastest": t.fastest}


def measured(
    module: GpuModule, /, *args: Any, repeats: int = 20, **named: Any
) -> tuple[list[GpuStepTime], list[float]]:
    """Return the times of all kernels in order, on the inputs given as for `Module.run`, and the seconds of runs: on
    what lies on the GPU, from the first launch to the end of the last. Raises InvalidTarget where the device tells no
    times."""
    times, runs = module.launch_times(*args, repeats=repeats, **named)
    return list(_steps(module, iter(times))), runs


def _steps(module: GpuModule, times: Iterator[LaunchTime]) -> Iterator[GpuStepTime]:
    program, known = module.program, module.report.kernels
    records = known if len(known) == len(program.steps) else [KernelRecord(s.kernel) for s in program.steps]
    for step, record in zip(program.steps, records):
        code = program.codes[step.code]
        own = tuple(islice(times, 1 if code.is_external else len(code.launches)))
        seconds, fastest = sum(t.median for t in own), sum(t.fastest for t in own)
        yield GpuStepTime(step.kernel, seconds, fastest, record.nodes, record.work, launches=own)


def copying(device: Device) -> Roofline | None:
    """Return the speed at which a GPU copies its memory as all that limits it, each byte counted as it is read and as
    it is written; None where it has too little memory to tell."""
    held = list[int]()
    try:
        held += [device.allocate(_COPIED)]
        held += [device.allocate(_COPIED)]
        seconds = min(timer(device)(lambda: device.copy(held[1], held[0], _COPIED, 0), _COPIES))
    except OutOfMemory:
        return None
    finally:
        for address in held:
            device.free(address)
    return Roofline(float("inf"), 2 * _COPIED / seconds)
