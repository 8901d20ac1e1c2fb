"""docs/quantized.md: how far quantized networks are from integer kernels of other runtimes, and how fast they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.quantized_latency import OF_ONNX, OF_TFLITE
from benchmarks.run import RESULTS

PAGE = ROOT / "docs" / "quantized.md"
STEP = 1.01  # with what rounding adds to the difference of two neighbours
FEW = 4  # tensors that are named of a file
PEERS = ("ort", "openvino", "openvino_default", "litert")


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return what was measured: of each part the newest."""
    found = dict[str, Any]()
    for file in sorted(folder.glob("quantized-*.json"), key=lambda f: json.loads(f.read_text())["when"]):
        found |= json.loads(file.read_text())
    return found


def page(found: Mapping[str, Any]) -> str:
    """Return the page."""
    cases = [of for own in found["networks"].values() for of in own.values()]
    near = [of for of in cases if of.get("steps", 2 * STEP) <= STEP]
    exact = sum(of.get("steps") == 0 for of in cases)
    packages = found["machine"]["packages"]
    return (
        "\n".join(
            [
                f"""# Quantized networks

{len(near)} of {len(cases)} files of {len(found["networks"])} networks agree with the integer kernels of ONNX Runtime
{packages.get("onnxruntime", "")} to one step at every output, {exact} of them in every element
(`python -m benchmarks quantized`). Networks have public definitions and random weights; ONNX Runtime's quantizer and
its optimizer make the files. Inputs are random numbers and walks, whose neighbours are alike; the second batch is of 3
images of odd sizes, and the first file of each network is compiled once for both.

A step is the scale of an output that is dequantized, or a 255th of the range of another one. *reference off* is how far
ONNX Runtime is from what the file says, computed in float64; *off* is how far renorm is. Files that are more than one
step from ONNX Runtime are bold.

## What quantized files become

- Integers between kernels are counted in steps from their zero point. A product of two quantized tensors is one of
  integers, with one multiplication by `x_scale * w_scale` behind it; sums are exact.
- Rounding is to nearest, halves to even, and results are cut to the range of the integer type, where files say so.
- A NaN becomes 0 where integers are written, and stays one between kernels.
- What QuantizeLinear and DequantizeLinear enclose is computed in float32, as the file says: ONNX Runtime replaces some
  operators (softmax, sigmoid) by tables of 256 entries, which may differ by a step.

## Agreement with ONNX Runtime
""",
                *_agreement(found["networks"]),
                *_departures(found["networks"]),
                *(_flat(found["flat"]) if "flat" in found else ()),
                *(_latency(found["latency"]) if "latency" in found else ()),
            ]
        ).rstrip()
        + "\n"
    )


def _agreement(networks: Mapping[str, Any]) -> Iterator[str]:
    yield "| network | form | steps | share that differs | off | reference off |"
    yield "|---|---|---|---|---|---|"
    for name, own in networks.items():
        for form, of in own.items():
            if "said" in of:
                yield f"| {name} | {form} | not read | | | {of['said'].splitlines()[0]} |"
                continue
            steps = _steps(of["steps"])
            steps = steps if of["steps"] <= STEP else f"**{steps}**"
            off, others = _steps(of["from definition"]), _steps(of["reference from definition"])
            yield f"| {name} | {form} | {steps} | {of['share']:.1%} | {off} | {others} |"
    yield ""


def _departures(networks: Mapping[str, Any]) -> Iterator[str]:
    """Of files that are more than a step apart, the tensors that are not what the definition makes of those before."""
    apart = [
        (f"{n}, {form}", of["departures"]) for n, o in networks.items() for form, of in o.items() if "departures" in of
    ]
    if not apart:
        return
    yield """## Where they depart

Of files that are more than a step apart: the quantized tensors that a runtime computes otherwise than the definition
does from the quantized tensors that the runtime itself made before.

| file | renorm | ONNX Runtime |
|---|---|---|"""
    for name, of in apart:
        columns = ["; ".join(places[:FEW]) + ("; ..." if len(places) > FEW else "") for places in of.values()]
        yield f"| {name} | {' | '.join(columns)} |"
    yield ""


def _flat(networks: Mapping[str, Any]) -> Iterator[str]:
    near = sum(of.get("reference", 2 * STEP) <= STEP for of in networks.values())
    yield f"""## Agreement with LiteRT

{near} of {len(networks)} TensorFlow Lite files are at most one step from LiteRT's reference kernels. Beside them are
its own fast kernels, those of XNNPACK, and how far XNNPACK is from the reference itself.

| file | reference | built in | xnnpack | xnnpack from reference |
|---|---|---|---|---|"""
    for name, of in networks.items():
        if "said" in of:
            yield f"| {name} | not read | | | {of['said'].splitlines()[0]} |"
            continue
        columns = [_steps(of[key]) for key in ("reference", "built in", "xnnpack", "xnnpack from reference")]
        yield f"| {name} | {' | '.join(columns)} |"
    yield ""


def _latency(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = (*OF_ONNX, *OF_TFLITE)
    yield f"""## Latency

Milliseconds, medians of turns that are interleaved, each runtime in a process of its own. *renorm_tflite* and *litert*
run the TensorFlow Lite file of the same architecture. The ratio is renorm's faster one to the fastest of the others.

| network | threads | {" | ".join(names)} | ratio |
|---|---|{"---|" * len(names)}---|"""
    for of in measured:
        times = {name: of["runtimes"].get(name, {}).get("ms") for name in names}
        own, others = ([times[n] for n in names if times[n] and (n in PEERS) == is_peer] for is_peer in (False, True))
        ratio = f"{min(own) / min(others):.2f}" if own and others else ""
        columns = [f"{times[n]:.3f}" if times[n] else "" for n in names]
        yield f"| {of['network']} | {of['threads']} | {' | '.join(columns)} | {ratio} |"
    yield ""


def _steps(value: float) -> str:
    """Return a number of steps, 0 where it is that of rounding."""
    return "0" if value < 0.005 else f"{value:.2f}".rstrip("0").rstrip(".")


def write() -> Path:
    """Write the page of all results."""
    PAGE.write_text(page(results()))
    return PAGE
