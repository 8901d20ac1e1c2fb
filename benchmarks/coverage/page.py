"""docs/networks.md: which networks of public definitions are read, how exactly, and what becomes of their norms."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.pytorch_page import fates
from benchmarks.run import RESULTS

PAGE = ROOT / "docs" / "networks.md"
FLOATS, STEP = 1e-4, 1 / 128  # of the largest output: what is allowed to networks in floats, and of 8 bits
EXPORTERS = {"script": "TorchScript", "dynamo": "torch.export"}


def results(folder: Path = RESULTS) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return versions of packages, and what became of files: of each the newest."""
    versions, found = dict[str, str](), dict[tuple[str, ...], dict[str, Any]]()
    for file in sorted(folder.glob("coverage-*.json"), key=lambda f: json.loads(f.read_text())["when"]):
        held = json.loads(file.read_text())
        versions |= held["packages"]
        of = held["commit"]["id"][:8] + " with changes" * held["commit"]["changed"]
        found |= {(n["package"], n["network"], n["exporter"], n["form"]): n | {"commit": of} for n in held["networks"]}
    return versions, list(found.values())


def is_right(n: Mapping[str, Any]) -> bool:
    """Return whether a file runs, and how far it departs is allowed: to one step where its outputs are of 8 bits."""
    if n["said"]:
        return False
    if n["steps"] == n["steps"]:
        return n["steps"] < 1.5
    allowed = FLOATS if n["form"] in ("float", "4-bit weights") else STEP
    return n["error"] <= allowed or n["own"] <= max(allowed, 2 * n["ort"])


def page(versions: Mapping[str, str], files: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    ours = [n for n in files if not n["said"] or n["stage"] in ("compile", "run", "compare", "process")]
    names = {(n["package"], n["network"]) for n in ours}
    norms = Counter[str]()
    for n in ours:
        norms.update({fate.rpartition(" ")[2]: count for fate, count in n["norms"].items()})
    refused = [n for n in ours if n["said"]]
    told = ", ".join(f"{p} {v}" for p, v in versions.items() if v)
    commits = ", ".join(f"{count} on {of}" for of, count in Counter(n["commit"] for n in ours).most_common())
    parts = [
        f"""# Networks of public definitions, as ONNX files

{len(names)} networks with random weights, each as the package or the paper defines it but narrow, a few layers deep and
on small inputs, in {len(ours)} files: by PyTorch's two exporters, with extents that are open or not, and quantized by
ONNX Runtime's tools. {_count(len(refused))} refused; {sum(map(is_right, ours))} agree with ONNX Runtime on random
inputs of two shapes: networks in floats to {FLOATS:g} of the largest output, outputs of 8 bits to one step, other
quantized ones to {STEP:.4f} of the largest output, or, where both round, are no further than twice as far from PyTorch
in float64 as ONNX Runtime is. Quantized files are held against ONNX Runtime with its own rewrites off: what the file
says, node by node. Bold deviations are larger; those of detectors are so where scores of random weights are nearer to
each other than float32 tells, so that boxes come in another order in each runtime, those of Srcnn where ONNX
Runtime's cubic means are 3e-6 from float64 ([quantized.md](quantized.md)). Seconds of compiling are of one core, which
other work may have shared.
`python -m benchmarks coverage` measures them, `coverage-page` writes this page. Files by the commit that they were
measured on: {commits}. Versions:
{told}.

Norms in all files: {", ".join(f"{count} {fate}" for fate, count in sorted(norms.items()))}. What that means:
[pytorch-networks.md](pytorch-networks.md) says; the exporter by torch.export folds batch norms itself, and so do the
tools that quantize statically. Why norms are not folded:

{"".join(f"- {count} {reason}{chr(10)}" for reason, count in _reasons(ours).most_common())}"""
    ]
    for task in sorted({n["task"] for n in ours}):
        parts += [f"## {task[0].upper()}{task[1:]}\n", *_table([n for n in ours if n["task"] == task])]
    return "\n".join(parts).rstrip() + "\n"


def _count(number: int) -> str:
    return "None is" if not number else "One is" if number == 1 else f"{number} are"


def _reasons(files: Iterable[Mapping[str, Any]]) -> Counter[str]:
    found = Counter[str]()
    for n in files:
        found.update(n["reasons"])
    return found


def _table(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| network | of | exporter | open | form | nodes | kernels | deviation | norms and their fate | compile s |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for n in files:
        start = f"| {n['network']} | {n['package']} | {EXPORTERS[n['exporter']]} | {', '.join(n['opens']) or 'none'} "
        start += f"| {n['form']} | {n['nodes']}"
        if n["said"]:
            yield f"{start} | | not read | {' '.join(n['said'].splitlines()[0].split())} | |"
            continue
        error = f"{n['error']:.1e}" if n["steps"] != n["steps"] else f"{n['steps']:.0f} step{'s' * (n['steps'] >= 1.5)}"
        if n["own"] == n["own"]:
            error += f" (from float64 {n['own']:.1e}, ONNX Runtime {n['ort']:.1e})"
        error = error if is_right(n) else f"**{error}**"
        yield f"{start} | {n['kernels']} | {error} | {fates(n['norms'])} | {n['seconds']['compile']:.1f} |"
    yield ""


def write() -> Path:
    """Write the page of all results."""
    PAGE.write_text(page(*results()))
    return PAGE
