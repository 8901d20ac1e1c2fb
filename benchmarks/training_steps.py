"""Steps of training of whole networks, compiled by torch.compile(backend="renorm"), beside inductor and eager PyTorch,
with its norms and with renorm's layers: each in a process of its own, taking turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.machine import commit, machine, now
from benchmarks.networks.residual import ResNet
from benchmarks.steps import peak, sgd
from benchmarks.training import GAP, Measures, processes, serve, spread
from renorm.driver.worker import timed
from renorm.torch import replace_norms, wait

KINDS = ("renorm", "eager", "layers", "inductor")
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: ResNet((3, 4, 6, 3)),
    "resnet50_ibn": lambda: ResNet((3, 4, 6, 3), ibn=True),
}
SIZE, TURN = 112, 2.0  # pixels; seconds of a turn


def step(kind: str, network: str, batch: int, threads: int) -> Callable[[], None]:
    """Return forward, backward and SGD on random images, after the first of them."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = NETWORKS[network]().train()
    run: Any = model
    if kind == "layers":
        replace_norms(model)
    elif kind != "eager":
        run = torch.compile(model, backend=kind)
    return sgd(model, run, batch, SIZE)


def _measures(case: str, threads: int) -> Measures:
    kind, network, batch = case.split("/")
    begin = time.perf_counter()
    run = step(kind, network, int(batch), threads)
    run()
    first = time.perf_counter() - begin
    wait()  # kernels of layers, which compute with torch's until then
    run()

    def memory(_: float) -> list[float]:
        peak()
        run()
        return [peak()]

    return {"step": lambda seconds: timed(run, seconds), "first": lambda _: [first], "memory": memory}


def measure(
    threads: int, rounds: int, networks: list[str], batches: list[int], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return milliseconds of steps, how many times as long as the others renorm takes (medians and quartiles over
    turns), seconds of the first step, and megabytes at most."""
    found = dict[str, Any]()
    for network in networks:
        for batch in batches:
            times: dict[str, list[float]] = {k: [] for k in KINDS}
            cases = {k: f"{k}/{network}/{batch}" for k in KINDS}
            with processes(tuple(cases.values()), threads, (), "benchmarks.training_steps") as running:
                for _ in range(rounds):
                    for kind, case in cases.items():
                        time.sleep(GAP)
                        times[kind].append(median(running[case].measured("step", TURN)))
                first = {k: round(running[c].measured("first", 0.0)[0], 1) for k, c in cases.items()}
                megabytes = {k: round(running[c].measured("memory", 0.0)[0]) for k, c in cases.items()}
            of = {k: spread([a / b for a, b in zip(times["renorm"], times[k])]) for k in KINDS[1:]}
            ms = {k: spread(v) for k, v in times.items()}
            found[f"{network}, batch {batch}"] = {"ms": ms, "of": of, "first": first, "megabytes": megabytes}
            tell(f"{network}, batch {batch}: " + ", ".join(f"{v['median']:.3f} of {k}" for k, v in of.items()))
    settings = {"threads": threads, "rounds": rounds, "size": SIZE}
    return {"when": now(), "commit": commit(), "machine": machine(), "settings": settings, "steps": found}


if __name__ == "__main__":
    serve(lambda: _measures(sys.argv[1], int(sys.argv[2])))
