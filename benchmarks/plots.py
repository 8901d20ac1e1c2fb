"""Plots of results as SVG, small enough to be kept beside the page."""

# matplotlib is in the extra bench
# pyright: reportMissingImports=false

from __future__ import annotations

from math import fsum
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.figures import LABELS, limit_us, mebibytes, milliseconds

COLOURS = {
    "renorm": "#c2410c",
    "renorm_compiling": "#fdba74",
    "ort": "#2563eb",
    "openvino": "#0d9488",
    "mnn": "#be185d",
    "ncnn": "#65a30d",
    "inductor": "#7c3aed",
    "torch": "#9ca3af",
    "renorm_bfloat16": "#fb7185",
    "openvino_default": "#5eead4",
}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "renorm",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SMALL = 0.005  # kernels that take a smaller part of their network than this are left out of the roofline


def draw(result: dict[str, Any], folder: Path) -> None:
    """latency.svg, memory.svg, and, where kernels were measured, roofline.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        _bars(result, milliseconds, "latency (median) relative to renorm").savefig(
            folder / "latency.svg", metadata={"Date": None}
        )
        _bars(result, mebibytes, "peak memory relative to renorm").savefig(
            folder / "memory.svg", metadata={"Date": None}
        )
        if any("layers" in n for n in result["networks"].values()):
            _roofline(result).savefig(folder / "roofline.svg", metadata={"Date": None})


def _bars(result: dict[str, Any], measure: Any, title: str) -> Figure:
    """One group for each network, one bar for each runtime; renorm is 1."""
    networks = result["networks"]
    runtimes = [r for r in COLOURS if any(measure(n, r) for n in networks.values())]
    figure = Figure(figsize=(9, 0.35 * len(networks) * max(2, len(runtimes)) * 0.55 + 1.0), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(runtimes)
    for i, runtime in enumerate(runtimes):
        for at, network in enumerate(networks.values()):
            value, ours = measure(network, runtime), measure(network, "renorm")
            if value and ours:
                y = at + (i + 0.5) * height - 0.4
                label = LABELS[runtime] if at == 0 else None
                axes.barh(y, value / ours, height * 0.9, color=COLOURS[runtime], label=label)
                if value / ours > _FAR:
                    axes.text(_FAR, y, f" {value / ours:.1f}", va="center", fontsize=7, clip_on=False)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlim(0, _FAR)
    axes.set_yticks(range(len(networks)), list(networks))
    axes.invert_yaxis()
    axes.set_xlabel(f"{title}; longer is worse")
    handles = [Patch(color=COLOURS[r], label=LABELS[r]) for r in runtimes]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(runtimes), frameon=False)
    return figure


_FAR = 4.0  # bars are cut here and say how long they are


def _roofline(result: dict[str, Any]) -> Figure:
    """Each kernel by operations per byte and by speed, below what the machine can do."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    measured = {name: n["layers"] for name, n in result["networks"].items() if "layers" in n}
    for i, (name, layers) in enumerate(measured.items()):
        total = fsum(k["us"] for k in layers["kernels"])
        shown = [k for k in layers["kernels"] if k["us"] > SMALL * total and k["flops"] and k["bytes"]]
        points = [(k["flops"] / k["bytes"], k["flops"] / k["us"] / 1e3) for k in shown]
        colour = mpl.colormaps["tab20"](i % 20)
        axes.plot(*zip(*points), "o", markersize=4, color=colour, markeredgewidth=0, label=name)
    limits = {k: max(layers["limits"][k] for layers in measured.values()) for k in ("flops", "bytes")}
    intensities = [0.05 * 1.3**i for i in range(42)]
    roof = [x / limit_us({"flops": x, "bytes": 1}, limits) / 1e3 for x in intensities]
    axes.plot(intensities, roof, color="black", linewidth=1, label="limit")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte that must move")
    axes.set_ylabel("GFLOP/s (of the direct algorithm)")
    figure.legend(loc="outside right upper", frameon=False, markerscale=1.5)
    return figure
