"""A step of training of a small ResNet on the CPU: with torch's norms, with renorm's; what part torch's norms had."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.networks.residual import ResNet

BATCH, SIZE, DEPTHS = 16, 112, (1, 1, 1, 1)


def step(threads: int, replaced: bool) -> Callable[[], None]:
    """Forward, backward and SGD on random images. replaced: with renorm's norms."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = ResNet(DEPTHS).train()
    if replaced:
        from renorm.torch import replace_norms

        replace_norms(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, 1000, (BATCH,))

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return run


def share(run: Callable[[], None], times: int = 5) -> float:
    """The part of a step that torch spends in batch norms, forward and backward, by its profiler."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(times):
            run()
    found = profile.key_averages()
    norms = sum(event.self_cpu_time_total for event in found if "batch_norm" in event.key)
    return norms / sum(event.self_cpu_time_total for event in found)
