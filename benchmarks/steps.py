"""A step of training of a small ResNet on the CPU: with torch's norms, with renorm's, with ReLUs and additions in them;
what part each had of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.networks.residual import ResNet

BATCH, SIZE, DEPTHS = 16, 112, (1, 1, 1, 1)


def step(threads: int, replaced: bool, fused: bool = False) -> Callable[[], None]:
    """Forward, backward and SGD on random images. replaced: with renorm's norms; fused: and what follows them."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = ResNet(DEPTHS).train()
    if replaced:
        from renorm.torch import replace_norms, set_background

        set_background(False)
        replace_norms(model, fuse=fused)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, 1000, (BATCH,))

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return run


def shares(run: Callable[[], None], times: int = 5) -> list[float]:
    """The parts of a step that go into batch norms, torch's or ours, and into ReLUs and additions of what they gave,
    forward and backward, by torch's profiler."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(times):
            run()
    found = profile.key_averages()
    total = sum(event.self_cpu_time_total for event in found)
    norms = [e for e in found if "batch_norm" in e.key or "BatchNorm" in e.key]
    others = [e for e in found if e.key in ("aten::add", "aten::add_", "aten::clamp_min", "aten::threshold_backward")]
    return [sum(e.self_cpu_time_total for e in part) / total for part in (norms, others)]


def peak() -> float:
    """Megabytes of memory that this process had at most, since it was last asked."""
    with open("/proc/self/status") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return kilobytes / 1024
