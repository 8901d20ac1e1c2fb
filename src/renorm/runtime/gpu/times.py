"""Times of launches, where a device tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from renorm.core.errors import InvalidTarget
from renorm.runtime.gpu.device import Device


@dataclass(frozen=True)
class LaunchTime:
    """What a launch takes by itself, or external code with the copies of what it reads and writes. seconds: in order,
    the least first. function: "" for external code, which has no grid. shared: bytes of a block. registers: of a
    thread; shared and these are as far as the device tells."""

    kernel: str
    seconds: tuple[float, ...]
    function: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    registers: int | None = None

    @property
    def median(self) -> float:
        """Return the time in the middle."""
        return self.seconds[len(self.seconds) // 2]

    @property
    def fastest(self) -> float:
        """Return the least time."""
        return self.seconds[0]


def timer(device: Device) -> Callable[[Callable[[], None], int], list[float]]:
    """Return what tells the seconds of calls on a device (Device.time). Raises InvalidTarget where nothing does."""
    time = getattr(device, "time", None)
    if time is None:
        raise InvalidTarget(f"{device.name} tells no times of launches", do="measure on the GPU that runs it")
    return time
