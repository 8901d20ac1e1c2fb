"""A step of training of a small ResNet on the CPU, with torch's norms or with renorm's; what part of it they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.networks.residual import ResNet

BATCH, SIZE, DEPTHS = 16, 112, (1, 1, 1, 1)


def step(threads: int, replaced: bool) -> Callable[[], None]:
    """Return forward, backward and SGD on random images. replaced: with renorm's norms."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = ResNet(DEPTHS).train()
    if replaced:
        from renorm.torch import replace_norms, set_background

        set_background(False)
        replace_norms(model)
    return sgd(model, model, BATCH, SIZE)


def sgd(model: nn.Module, forward: Callable[[torch.Tensor], Any], batch: int, size: int) -> Callable[[], None]:
    """Return a step on random images. forward: what runs the model. size: of images, in pixels."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()

    return run


def share(run: Callable[[], None], times: int = 5) -> float:
    """Return the part of a step that goes into batch norms, torch's or ours, forward and backward, by torch's
    profiler."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(times):
            run()
    found = profile.key_averages()
    total = sum(event.self_cpu_time_total for event in found)
    norms = [e for e in found if "batch_norm" in e.key or "BatchNorm" in e.key]
    return sum(event.self_cpu_time_total for event in norms) / total


def peak() -> float:
    """Megabytes of memory that this process had at most, since it was last asked."""
    with open("/proc/self/status") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return kilobytes / 1024
