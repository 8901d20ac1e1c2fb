"""python -m benchmarks.gpu: phase by phase, the most important one first, each within its own seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu.phases import PHASES, Found, Phase, Run
from benchmarks.gpu.place import Place, place
from benchmarks.gpu.workers import FAILED, said
from benchmarks.machine import ROOT, commit, machine, now
from renorm.core.dtypes import PRECISIONS

NETWORKS = ("se_resnet101_ibn", "resnet50", "mobilenet_v2", "unet", "style_transfer", "dcgan", "densenet121")


@click.command()
@click.option(
    "--target", default="cuda", show_default=True, help='What renorm compiles for: "llvm" proves this script.'
)
@click.option("--precision", type=click.Choice(PRECISIONS), default="fast", show_default=True, help="Of networks.")
@click.option("--phases", default=",".join(PHASES), show_default=True, help="In this order.")
@click.option("--seconds", type=float, default=540.0, show_default=True, help="For all phases together.")
@click.option("--budgets", default="", help="Seconds of single phases: ops=60,speed=90.")
@click.option("--models", type=click.Path(exists=True, file_okay=False), help="A folder of .onnx and .tflite files.")
@click.option("--networks", default=",".join(NETWORKS), show_default=True, help="Names of benchmarks.networks.")
@click.option("--batches", default="8,1", show_default=True, help="Of networks whose speed is measured.")
@click.option("--only", default="", help="Only ops whose names have this in them.")
@click.option("--samples", type=click.IntRange(0), default=0, help="How many samples of ops; 0: all.")
@click.option(
    "--json", "into", type=click.Path(path_type=Path), help="The file of results.  [default: by day and commit]"
)
def main(
    target: str,
    precision: str,
    phases: str,
    seconds: float,
    budgets: str,
    models: str | None,
    networks: str,
    batches: str,
    only: str,
    samples: int,
    into: Path | None,
) -> None:
    """Measures a GPU: correctness of ops and networks, speed beside PyTorch and the limits of the device."""
    into = into or ROOT / "benchmarks" / "results" / f"gpu-{now()[:10]}-{commit()['id'][:8] or 'unknown'}.json"
    into.parent.mkdir(parents=True, exist_ok=True)
    own = {k: float(v) for k, _, v in (part.partition("=") for part in budgets.split(",") if part)}
    chosen = [name for name in phases.split(",") if name]
    if unknown := [name for name in (*chosen, *own) if name not in PHASES]:
        raise click.BadParameter(f"there is no phase {', '.join(unknown)}")
    run = Run(
        _place(target, models, precision), networks.split(","), [*map(int, batches.split(","))],
        str(into.with_suffix(".log").resolve()), only, samples,
    )  # fmt: skip
    end, results = time.monotonic() + seconds, dict[str, Any]()
    told = {"when": now(), "commit": commit(), "machine": machine(), **run.place.options, "phases": results}
    for name in chosen:
        phase, budget = PHASES[name]
        begin = time.monotonic()
        until = min(end, begin + own.get(name, budget))
        results[name], lines = _contained(phase, run, until)
        took = results[name]["took_seconds"] = round(time.monotonic() - begin, 1)
        print(f"== {name}: {took} of {until - begin:.0f} s", *lines, "", sep="\n", flush=True)
        into.write_text(json.dumps(told, indent=1))
    print(into)


def _place(target: str, models: str | None, precision: str) -> Place:
    try:
        return place(target, models or "", precision)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"there is no NVIDIA GPU ({said(error)}): give --target llvm")


def _contained(phase: Phase, run: Run, until: float) -> Found:
    """Run a phase; what it raises is its result."""
    if time.monotonic() >= until - 1.0:
        return {FAILED: "no time was left"}, ["no time was left"]
    try:
        return phase(run, until)
    except Exception as error:
        return {FAILED: said(error)}, [f"FAILED: {said(error)}"]


if __name__ == "__main__":
    main()
