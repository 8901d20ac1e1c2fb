"""torch.compile(backend="renorm") beside eager PyTorch and inductor: programs of torch.export, each runtime in a
process of its own, taking turns; the first call with empty caches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import commit, machine, now
from benchmarks.networks import NETWORKS, trained
from benchmarks.run import write
from renorm.driver.measure import Contender, Measured, obstacle, side_by_side

RUNTIMES = ("torch", "inductor", "torch_renorm")
OURS = RUNTIMES[-1]


def _exported(name: str, batch: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the program of a network, and inputs, for a batch."""
    network = NETWORKS[name]
    inputs = {k: v.repeat(batch, *[1] * (v.dim() - 1)) if v.shape[0] == 1 else v for k, v in network.inputs().items()}
    path = folder / f"{name}-{batch}.pt2"
    torch.export.save(torch.export.export(trained(network), tuple(inputs.values())), path)
    return path, {k: v.numpy() for k, v in inputs.items()}


def measure(
    names: Sequence[str], batches: Sequence[int], threads: int, rounds: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return what each network took, by name and batch."""
    found = dict[str, Any]()
    for name in names:
        for batch in batches:
            with tempfile.TemporaryDirectory() as folder:
                program, inputs = _exported(name, batch, Path(folder))
                empty = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "RENORM_CACHE_DIR": f"{folder}/renorm"}
                contenders = [Contender(r, r, program, variables=empty) for r in RUNTIMES if not obstacle(r)]
                compared = side_by_side(
                    contenders, inputs, threads, rounds=rounds, seconds=seconds, again=rounds, tell=lambda line: None
                )
            reference = compared.measured[0]
            found[f"{name}, batch {batch}"] = {m.name: _plain(m, reference) for m in compared.measured}
            tell(f"{name}, batch {batch}: {_line(compared.measured)}")
    return found


def _plain(m: Measured, reference: Measured) -> dict[str, Any]:
    if m.latency is None:
        return {"failure": m.failure}
    return {
        "ms": m.latency.median,
        "p10": m.latency.p10,
        "p90": m.latency.p90,
        "first_seconds": m.first_seconds,
        "peak_bytes": m.peak_bytes,
        "error": m.error(reference),
    }


def _line(measured: Sequence[Measured]) -> str:
    return ", ".join(f"{m.name} {m.latency.median:.1f} ms" if m.latency else f"{m.name} failed" for m in measured)


def summary(found: dict[str, Any]) -> dict[str, float]:
    """Return geometric means of the time by the faster of the others, and of the first call by inductor's, and the
    worst time by eager's."""
    rows = [r for r in found.values() if all("ms" in r.get(k, {}) for k in RUNTIMES)]
    if not rows:
        return {"networks": 0}
    ratios = [r[OURS]["ms"] / min(r["torch"]["ms"], r["inductor"]["ms"]) for r in rows]
    first = [r[OURS]["first_seconds"] / r["inductor"]["first_seconds"] for r in rows]
    eager = [r[OURS]["ms"] / r["torch"]["ms"] for r in rows]
    return {"networks": len(rows), "of the faster": _mean(ratios), "first call": _mean(first), "of eager": max(eager)}


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def run(
    names: Sequence[str],
    batches: Sequence[int],
    threads: int,
    rounds: int,
    seconds: float,
    into: Path,
    tell: Callable[[str], None],
) -> None:
    """Measure networks, and write what they took to a file."""
    found = measure(names or [*NETWORKS], batches, threads, rounds, seconds, tell)
    said = summary(found)
    tell(", ".join(f"{k} {v:.3g}" for k, v in said.items()))
    settings = {"threads": threads, "rounds": rounds, "seconds": seconds}
    result = {"when": now(), "commit": commit(), "machine": machine(), "settings": settings}
    write(into, {**result, "summary": said, "networks": found})
