"""docs/torch-compile.md: networks and steps of training under torch.compile(backend="renorm"), on each machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.compiled import OURS, RUNTIMES, summary
from benchmarks.machine import ROOT, label
from benchmarks.run import RESULTS

PAGE = ROOT / "docs" / "torch-compile.md"
INFERENCE, TRAINING = ("torch-compile-*.json", "networks"), ("steps-*.json", "steps")  # files, and where rows are
WIDTH = 120  # of a line of text

_HEAD = """# torch.compile(backend="renorm") beside eager PyTorch and inductor

Written by `python -m benchmarks compiled-page` from the newest results of each machine. All in float32, runtimes take
turns, each in a process of its own. Medians; below 1 renorm takes less.
"""

Rows = dict[str, dict[str, Any]]


def newest(files: str, where: str, folder: Path = RESULTS) -> dict[str, tuple[Rows, str]]:
    """Return rows by machine, each the one that was written last, and what they were measured by."""
    found = dict[str, tuple[Rows, str]]()
    held = sorted((json.loads(f.read_text()) for f in folder.glob(files)), key=lambda r: (label(r), r["when"]))
    for machine, results in groupby(held, key=label):
        rows, commits, settings = Rows(), dict[str, str](), dict[str, Any]()
        for result in results:
            rows |= result[where]
            commits |= dict.fromkeys(result[where], result["commit"]["id"][:8])
            settings = result["settings"]
        by = ", ".join(f"`{c}`" for c in dict.fromkeys(commits.values()))
        found[machine] = rows, f"{settings['threads']} threads, {settings['rounds']} rounds, commits {by}"
    return found


def page(inference: Mapping[str, tuple[Rows, str]], training: Mapping[str, tuple[Rows, str]]) -> str:
    """Return the page."""
    parts = [_HEAD, "## Inference\n"]
    for machine, (rows, by) in inference.items():
        parts += [f"### {machine}\n", fill(f"{by}. {_means(rows)}", WIDTH) + "\n", *_networks(rows)]
    parts += [
        "## Training\n",
        "Steps of SGD on images of 112x112: renorm's time as part of eager PyTorch's, of eager's with renorm's layers"
        " in it, and of inductor's; medians over rounds, and quartiles.\n",
    ]
    for machine, (rows, by) in training.items():
        parts += [f"### {machine}\n", fill(f"{by}.", WIDTH) + "\n", *_steps(rows)]
    return "\n".join(parts).rstrip() + "\n"


def _means(rows: Rows) -> str:
    said = summary(rows)
    if not said["networks"]:
        return "No row was measured by all runtimes."
    slower = [f"{name} ({r:.2f})" for name, row in rows.items() if (r := _to_best(row)) and r > 1]
    return (
        f"Geometric means over {said['networks']} rows: {said['of the faster']:.2f} of the faster of eager PyTorch and "
        f"inductor, {said['first call']:.2f} of inductor's first call, which starts from empty caches; at most "
        f"{said['of eager']:.2f} of eager's time. Slower than the faster one: {', '.join(slower) or 'none'}."
    )


def _to_best(row: Mapping[str, Any]) -> float | None:
    ms = [row.get(r, {}).get("ms") for r in RUNTIMES]
    return None if None in ms else ms[-1] / min(ms[:-1])


def _networks(rows: Rows) -> Iterable[str]:
    yield "| network | eager, ms | inductor | renorm | of the faster | first call, of inductor's |"
    yield "|---|---|---|---|---|---|"
    for name, row in rows.items():
        ratio = _to_best(row)
        if ratio is None:
            said = ", ".join(f"{r} {row[r]['failure']}" for r in RUNTIMES if "failure" in row.get(r, {}))
            yield f"| {name} | {said or 'not measured'} | | | | |"
            continue
        times = " | ".join(f"{row[r]['ms']:.{1 if row[r]['ms'] < 100 else 0}f}" for r in RUNTIMES)
        first = row[OURS]["first_seconds"] / row["inductor"]["first_seconds"]
        yield f"| {name} | {times} | {ratio:.2f} | {first:.2f} |"
    yield ""


def _steps(rows: Rows) -> Iterable[str]:
    kinds = ("eager", "layers", "inductor")
    yield "| network, images | of eager | with renorm's layers | of inductor | MB at most: renorm, eager, inductor |"
    yield "|---|---|---|---|---|"
    for name, row in rows.items():
        of = " | ".join(
            f"{r['median']:.2f} ({r['lower']:.2f} to {r['upper']:.2f})" for r in (row["of"][k] for k in kinds)
        )
        megabytes = ", ".join(f"{row['megabytes'][k]:,}" for k in ("renorm", "eager", "inductor"))
        yield f"| {name.replace(' batch', '')} | {of} | {megabytes} |"
    yield ""


def write() -> Path:
    """Write the page of all results."""
    PAGE.write_text(page(newest(*INFERENCE), newest(*TRAINING)))
    return PAGE
