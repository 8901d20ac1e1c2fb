"""docs/pytorch-networks.md: which networks of PyTorch's packages are read, how exactly, and what becomes of norms."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.outcome import TOLERANCE
from benchmarks.run import RESULTS

PAGE = ROOT / "docs" / "pytorch-networks.md"


def results(folder: Path = RESULTS) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return versions of packages, and what became of networks: of each network the newest."""
    versions, found = dict[str, str](), dict[tuple[str, str], dict[str, Any]]()
    for file in sorted(folder.glob("pytorch-*.json"), key=lambda f: json.loads(f.read_text())["when"]):
        held = json.loads(file.read_text())
        versions |= held["packages"]
        found |= {(n["package"], n["network"]): n for n in held["networks"]}
    return versions, list(found.values())


def page(versions: Mapping[str, str], networks: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    right = sum(n["error"] <= TOLERANCE for n in networks)
    parts = [
        f"""# Networks of PyTorch's packages

{right} of {len(networks)} networks with random weights, from `torch.export` to renorm with a dynamic batch, agree with
eager PyTorch in float64 to {TOLERANCE:g} of the largest output, in batches of 1 and 3, after one compilation, without
fallback (`python -m benchmarks pytorch`, PyTorch {versions["torch"]}). Errors are the largest difference from float64,
of the largest output; beside them is that of eager PyTorch in float32. Batch norms have the statistics of two random
images, so that deep networks magnify rounding: bold errors are above {TOLERANCE:g}. Transformers have the sizes that
their configurations have by default, two layers, and 1,000 words. What becomes of norms: folded into the weights of a
neighbour; fused, as a scale and a shift, into a neighbour's kernel; kept, as a kernel that others join.
"""
    ]
    for package in dict.fromkeys(n["package"] for n in networks):
        own = [n for n in networks if n["package"] == package]
        parts += [f"## {package} {versions.get(package, '')}\n", *_table(own)]
    return "\n".join(parts).rstrip() + "\n"


def _table(networks: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield "| network | largest error | eager float32 | kernels | norms and their fate |"
    yield "|---|---|---|---|---|"
    for n in networks:
        if n["said"]:
            yield f"| {n['network']} | not read | | | {n['said'].splitlines()[0]} |"
            continue
        error = f"{n['error']:.1e}" if n["error"] <= TOLERANCE else f"**{n['error']:.1e}**"
        yield f"| {n['network']} | {error} | {n['eager']:.1e} | {n['kernels']} | {fates(n['norms'])} |"
    yield ""


def fates(norms: Mapping[str, int]) -> str:
    """Return what became of norms, as the pages of networks say it."""
    of = dict[str, Counter[str]]()
    for said, count in norms.items():
        kind, _, fate = said.partition(" ")
        of.setdefault(kind.removesuffix("_norm").replace("_", " "), Counter())[fate] += count
    kinds = (f"{k}: {', '.join(f'{n} {fate}' for fate, n in sorted(f.items()))}" for k, f in sorted(of.items()))
    return "; ".join(kinds) or "none"


def write() -> Path:
    """Write the page of all results."""
    PAGE.write_text(page(*results()))
    return PAGE
